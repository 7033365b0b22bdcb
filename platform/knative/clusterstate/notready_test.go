package clusterstate

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// TestEarlyReplicas: activators get the address of a starting pod as soon as its shim reports
// it, until the pod is READY in a snapshot or cannot become READY.
func TestEarlyReplicas(t *testing.T) {
	s := newTestCluster(t, true)
	want := func(when, endpoint string, picture snapshot.Snapshot) {
		t.Helper()
		picture.Name = web
		got := s.EarlyReplicas(&picture)
		switch {
		case endpoint == "" && len(got) == 0:
		case len(got) == 1 && got[0].ID == "r1" && got[0].Endpoint == endpoint:
		default:
			t.Errorf("%s: %+v, want %q", when, got, endpoint)
		}
	}
	says := func(state functions.State, endpoint string) {
		s.OnPodStatus("n1", false, []controlstream.Pod{{UID: "p1", Status: functions.ReplicaStatus{State: state, Endpoint: endpoint}}})
	}
	const door = "http://10.0.0.9:8080"
	s.load("n1", "r1")
	want("there is no pod", "", snapshot.Snapshot{})
	s.SetPod(aPod("p1", "n1", runs))
	want("its shim has said nothing", "", snapshot.Snapshot{})
	says(functions.Downloading, "http://10.0.0.7:8080")
	want("it starts", door, snapshot.Snapshot{}) // with the address from Kubernetes
	says(functions.Loading, door)
	want("it loads", door, snapshot.Snapshot{})
	says(functions.Ready, door)
	want("it is READY and the picture older", door, snapshot.Snapshot{})
	want("it is READY", "", snapshot.Snapshot{Replicas: []snapshot.Replica{{ID: "r1"}}})
	want("it has left the picture, and is about to be told to stop", "", snapshot.Snapshot{})
	says(functions.Failed, "")
	want("it has failed", "", snapshot.Snapshot{})
	says(functions.Loading, door)
	s.OnPodStatus("n1", false, []controlstream.Pod{{UID: "p1", Gone: true}})
	want("its shim has hung up", "", snapshot.Snapshot{})
	says(functions.Loading, door)
	s.SetPod(aPod("p1", "n1", waits("CrashLoopBackOff", "")))
	want("its container keeps crashing", "", snapshot.Snapshot{})
	s.SetPod(aPod("p1", "n1", runs))
	want("it runs again", door, snapshot.Snapshot{})
	s.SetPod(aPod("p1", "n1", runs, ends))
	want("its pod is to end", "", snapshot.Snapshot{})

	s = newTestCluster(t, false)
	s.load("n1", "r1")
	s.SetPod(aPod("p1", "n1", runs))
	says(functions.Loading, door)
	want("it has no shim", "", snapshot.Snapshot{})
	s.DropPod(types.UID("p1"))
	want("it is gone", "", snapshot.Snapshot{})
	s.DropRevision(web)
	want("so is its revision", "", snapshot.Snapshot{})
}
