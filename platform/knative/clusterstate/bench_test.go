package clusterstate

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// manyNodes makes a cluster state with one pod for every fourth revision.
func manyNodes(nodes, revisions int) *State {
	f := New(Options{
		Epoch: 1, Life: "x", Log: slog.New(slog.DiscardHandler), Now: time.Now,
		SendHeartbeat: func(functions.Heartbeat, orchestrator.Node) {},
	})
	for i := range nodes {
		f.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{knative.GPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("1Ti")},
		}})
	}
	for i := range revisions {
		name := functions.Name{Team: "a", Name: fmt.Sprintf("m%d-00001", i)}
		f.SetRevision(name, name.Name+"-deployment", true)
		pods := 0
		if i%4 == 0 {
			pods = 1
			f.SetPod(aPod(fmt.Sprint("p", i), fmt.Sprint("n", i%nodes), runs, func(p *corev1.Pod) {
				p.Name, p.Labels = fmt.Sprintf("%s-deployment-x", name.Name), map[string]string{serving.RevisionLabelKey: name.Name}
			}))
		}
		f.SetDeployment(name, pods, "")
	}
	return f
}

// BenchmarkFleet measures the half-second tick without changes, and the cost of one
// change.
func BenchmarkFleet(b *testing.B) {
	for _, size := range []struct{ nodes, revisions int }{{1, 200}, {500, 2000}, {500, 10000}} {
		f := manyNodes(size.nodes, size.revisions)
		f.SendHeartbeats(true)
		f.outdatedScales(true)
		name := fmt.Sprintf("nodes=%d/revisions=%d/", size.nodes, size.revisions)
		b.Run(name+"tick", func(b *testing.B) {
			for b.Loop() {
				f.SendHeartbeats(true)
				f.outdatedScales(true)
			}
		})
		b.Run(name+"change", func(b *testing.B) {
			for b.Loop() {
				f.mu.Lock()
				f.due.markNode("n0")
				f.due.scales[functions.Name{Team: "a", Name: "m0-00001"}] = true
				f.mu.Unlock()
				f.SendHeartbeats(false)
				f.outdatedScales(false)
			}
		})
	}
}
