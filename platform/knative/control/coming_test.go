package control

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/activator/route"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/link"
)

// TestComing: activators are told of a door that takes requests ahead as soon as its
// shim has said where it is, and no longer than its pod may become READY.
func TestComing(t *testing.T) {
	s := newStage(t, true)
	want := func(when, endpoint string, picture route.Function) {
		t.Helper()
		picture.Name = web
		got := s.Coming(&picture)
		switch {
		case endpoint == "" && len(got) == 0:
		case len(got) == 1 && got[0].ID == "r1" && got[0].Node == "n1" && got[0].Endpoint == endpoint:
		default:
			t.Errorf("%s: %+v, want %q", when, got, endpoint)
		}
	}
	says := func(state functions.State, endpoint string) {
		s.Said("n1", false, []link.Pod{{UID: "p1", Status: functions.ReplicaStatus{State: state, Endpoint: endpoint}}})
	}
	const door = "http://10.0.0.9:8080"
	s.load("n1", "r1")
	want("there is no pod", "", route.Function{})
	s.SetPod(aPod("p1", "n1", runs))
	want("its shim has said nothing", "", route.Function{})
	says(functions.Downloading, "http://10.0.0.7:8080")
	want("it starts", door, route.Function{}) // at the address that Kubernetes has
	says(functions.Loading, door)
	want("it loads", door, route.Function{})
	says(functions.Ready, door)
	want("it is READY and the picture older", door, route.Function{})
	want("it is READY", "", route.Function{Replicas: []route.Replica{{ID: "r1"}}})
	want("it has left the picture, and is about to be told to stop", "", route.Function{})
	says(functions.Failed, "")
	want("it has failed", "", route.Function{})
	says(functions.Loading, door)
	s.Said("n1", false, []link.Pod{{UID: "p1", Gone: true}})
	want("its shim has hung up", "", route.Function{})
	says(functions.Loading, door)
	s.SetPod(aPod("p1", "n1", waits("CrashLoopBackOff", "")))
	want("its container ends again and again", "", route.Function{})
	s.SetPod(aPod("p1", "n1", runs))
	want("it runs again", door, route.Function{})
	s.SetPod(aPod("p1", "n1", runs, ends))
	want("its pod is to end", "", route.Function{})

	s = newStage(t, false)
	s.load("n1", "r1")
	s.SetPod(aPod("p1", "n1", runs))
	says(functions.Loading, door)
	want("it has no shim", "", route.Function{})
	s.DropPod(types.UID("p1"))
	want("it is gone", "", route.Function{})
	s.DropRevision(web)
	want("so is its revision", "", route.Function{})
}
