package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
)

// TestSessions: a session's requests go to the replica that served it last, also where its
// hash prefers another; a replica that is gone, has failed or is saturated is replaced for
// good, and the request notes why.
func TestSessions(t *testing.T) {
	for i := range uint64(20) { // some hash to a, some to b
		q := &Queue{}
		request := Request{Key: i | 1<<32, Session: true}
		visit := func(want string, moved Moved) {
			t.Helper()
			r, id := admitted(q, request, t0)
			if id != want || r.Moved != moved {
				t.Fatalf("session %d: at %s, moved %q; want %s, %q", i, id, r.Moved, want, moved)
			}
			r.Leave(t0)
		}
		publish(q, t0, replicaOf("a", 8))
		visit("a", NotMoved)
		publish(q, t0, replicaOf("a", 8), replicaOf("b", 8))
		visit("a", NotMoved)
		var others []*Request
		for range 3 { // beyond the margin
			r := &Request{}
			q.mu.Lock()
			r.queue = q
			q.assignSlot(r, findReplica(q.replicas, "a"), t0)
			q.mu.Unlock()
			others = append(others, r)
		}
		visit("b", MovedSaturated)
		for _, r := range others {
			r.Leave(t0)
		}
		visit("b", NotMoved)
		publish(q, t0, replicaOf("a", 8))
		visit("a", MovedGone)
		publish(q, t0, replicaOf("a", 8), replicaOf("b", 8))
		r, id := admitted(q, request, t0)
		if id != "a" {
			t.Fatal(id)
		}
		r.MarkFailed(false, t0)
		r.Leave(t0)
		if r.Enter(q, t0) != Admitted || r.ReplicaID() != "b" || r.Moved != MovedGone {
			t.Fatalf("%s, moved %q", r.ReplicaID(), r.Moved)
		}
		r.Leave(t0)
		visit("b", NotMoved)
	}
}

// TestSessionFollowsItsAdapter: a session goes where the request's adapter is loaded, and its last
// replica is not called saturated.
func TestSessionFollowsItsAdapter(t *testing.T) {
	with := func(id string, adapters ...string) snapshot.Replica {
		r := replicaOf(id, 8)
		r.Adapters = adapters
		return r
	}
	q := &Queue{}
	request := Request{Key: 7, Session: true, Adapter: "x"}
	for _, step := range []struct {
		a, b  []string
		at    string
		moved Moved
	}{{[]string{"x"}, nil, "a", NotMoved}, {[]string{"y"}, []string{"x"}, "b", MovedAdapter}, {[]string{"x"}, []string{"x"}, "b", NotMoved}} {
		publish(q, t0, with("a", step.a...), with("b", step.b...))
		r, id := admitted(q, request, t0)
		if id != step.at || r.Moved != step.moved {
			t.Errorf("at %s, moved %q; want %+v", id, r.Moved, step)
		}
		r.Leave(t0)
	}
}

// TestSessionsAreForgotten after a while, and the oldest where there are too many.
func TestSessionsAreForgotten(t *testing.T) {
	var s sessions
	s.store(1, "a", t0)
	if s.find(1, t0.Add(sessionHalf+1)) != "a" || s.find(1, t0.Add(2*sessionHalf+2)) != "" {
		t.Error("not between one and two halves")
	}
	s.store(2, "a", t0.Add(3*sessionHalf))
	if s.find(2, t0.Add(9*sessionHalf)) != "" || len(s.recent)+len(s.older) != 0 {
		t.Error("a session outlives a pause of all")
	}
	for i := range uint64(5 * maxSessions) {
		s.store(i, fmt.Sprint("r", i), t0.Add(9*sessionHalf+time.Duration(i)))
		if n := len(s.recent) + len(s.older); n > 2*maxSessions {
			t.Fatalf("%d are remembered", n)
		}
	}
	at := t0.Add(9*sessionHalf + 5*maxSessions)
	if s.find(0, at) != "" || s.find(5*maxSessions-1, at) != fmt.Sprint("r", 5*maxSessions-1) {
		t.Error("not the oldest is forgotten")
	}
	q := &Queue{}
	publish(q, t0, replicaOf("a", 8))
	if r, _ := admitted(q, Request{Key: 1}, t0); r.Moved != NotMoved || q.sessions.recent != nil {
		t.Error("the beginning of a prompt is remembered")
	}
}
