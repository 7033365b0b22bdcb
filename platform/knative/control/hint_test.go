package control

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	servinglisters "knative.dev/serving/pkg/client/listers/serving/v1"
)

// TestHintNeedsUID: where a revision's next pod goes is said to API servers, which send the
// revision's uid with the pod, and not to a client that knows a name alone.
func TestHintNeedsUID(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := index.Add(&servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: web.Team, Name: web.Name, UID: "5b0e"}}); err != nil {
		t.Fatal(err)
	}
	r := &leaderTerm{cluster: s.clusterState, catalog: &revisionCatalog{revs: servinglisters.NewRevisionLister(index)}}
	for uid, want := range map[string]string{"5b0e": "n1", "5b0f": "", "": ""} {
		if node, ok := r.hint(web.Team, web.Name, uid); node != want || ok != (want != "") {
			t.Errorf("%q: %q %v", uid, node, ok)
		}
	}
	if node, ok := r.hint(web.Team, "web-00002", ""); ok {
		t.Errorf("a revision that does not exist: %q", node)
	}
}
