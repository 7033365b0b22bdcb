package control

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	servinglisters "knative.dev/serving/pkg/client/listers/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

var web = functions.Name{Team: "a", Name: "web-00001"}

// ignoredScales is the writer of a cluster whose Deployments stay as they are.
type ignoredScales struct{ clusterstate.Writer }

func (ignoredScales) Scale(context.Context, functions.Name, string, int) error { return nil }

// newTestCluster makes the state of a cluster of one node with two GPUs and the revision web.
func newTestCluster(sendHeartbeat func(functions.Heartbeat, orchestrator.Node)) *clusterstate.State {
	s := clusterstate.New(clusterstate.Options{
		Epoch: 7, Life: "x", Log: slog.New(slog.DiscardHandler), Now: time.Now, Writer: ignoredScales{},
		SendHeartbeat: sendHeartbeat, Send: func(string, controlstream.Update) bool { return true },
	})
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		Allocatable: corev1.ResourceList{knative.GPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi")},
	}})
	s.SetRevision(web, "web-00001-deployment", true)
	s.SetDeployment(web, 0, "")
	return s
}

// TestHintNeedsUID: where a revision's next pod goes is said to API servers, which send the
// revision's uid with the pod, and not to a client that knows a name alone.
func TestHintNeedsUID(t *testing.T) {
	var n1 orchestrator.Node
	s := newTestCluster(func(_ functions.Heartbeat, n orchestrator.Node) { n1 = n })
	s.SendHeartbeats(true)
	if _, err := n1.Load(t.Context(), functions.LoadRequest{ID: "r1", Team: web.Team, Model: web.Name, GPUs: []int{0}, Spec: functions.ModelSpec{Source: "https://x/y"}}); err != nil {
		t.Fatal(err)
	}
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := index.Add(&servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: web.Team, Name: web.Name, UID: "5b0e"}}); err != nil {
		t.Fatal(err)
	}
	r := &leaderTerm{cluster: s, catalog: &revisionCatalog{revs: servinglisters.NewRevisionLister(index)}}
	for uid, want := range map[string]string{"5b0e": "n1", "5b0f": "", "": ""} {
		if node, ok := r.hint(web.Team, web.Name, uid); node != want || ok != (want != "") {
			t.Errorf("%q: %q %v", uid, node, ok)
		}
	}
	if node, ok := r.hint(web.Team, "web-00002", ""); ok {
		t.Errorf("a revision that does not exist: %q", node)
	}
}
