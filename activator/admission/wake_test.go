package admission

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions/openai"
)

// TestBegin: while the limits of one team are asked, other requests do not ask. If they refuse,
// the next one that still waits begins the cold start, and one that they refuse too is rejected.
func TestBegin(t *testing.T) {
	f, refusal := &snapshot.Snapshot{}, openai.New(openai.RateLimitExceeded, "")
	enter := func(q *Queue, r *Request, want Wake) *Request {
		t.Helper()
		if r.Enter(q, t0) != Waiting {
			t.Fatal("it does not wait")
		}
		if d := r.Decide(f, ClientTimeouts{}, t0); d.Verdict != Wait || d.Wake != want || !r.Cold {
			t.Errorf("%s: %+v, want %d", r.Team, d, want)
		}
		return r
	}
	q := freeSlots(100, 1000)
	a := enter(q, &Request{Team: "a"}, Begin)
	b := enter(q, &Request{Team: "b"}, NoWake)
	c := enter(q, &Request{Team: "c"}, NoWake)
	d := enter(q, &Request{Team: "d", Priority: Low}, NoWake)
	a.Leave(t0)
	if team, ok := q.RefuseBegin(refusal); !ok || team != "b" {
		t.Errorf("%q %v, want b", team, ok)
	}
	c.Leave(t0)
	if team, ok := q.RefuseBegin(refusal); !ok || team != "d" {
		t.Errorf("%q %v, want d", team, ok)
	}
	select {
	case <-b.Done():
		if b.Rejection() != refusal {
			t.Error(b.Rejection())
		}
	default:
		t.Error("b waits after its refusal")
	}
	b.Leave(t0)
	e := enter(q, &Request{Team: "e"}, NoWake)
	if w := q.ConfirmBegin(); w != Replica { // a Low request alone would not wake
		t.Errorf("%d, want Replica", w)
	}
	q.Woken("cs-1")
	if g := enter(q, &Request{Team: "g"}, NoWake); g.ColdStart != "cs-1" {
		t.Errorf("%q, want cs-1", g.ColdStart)
	}
	if d.Rejection() != nil || e.Rejection() != nil || q.Load(t0).Queued != 3 {
		t.Errorf("%+v", q.Load(t0))
	}

	q = freeSlots(100, 1000)
	enter(q, &Request{Team: "a", Priority: Low}, Begin)
	if w := q.ConfirmBegin(); w != Nudge {
		t.Errorf("%d, want Nudge", w)
	}
	enter(q, &Request{Team: "b"}, Replica)
}

// TestRefusedHasLeft: a refused request has left the queue. It has the function woken for its
// retry, or reports that the last request has left, but not both: the report ends a lease.
func TestRefusedHasLeft(t *testing.T) {
	for _, c := range []struct {
		t    ClientTimeouts
		p    Priority
		want Wake
	}{
		{ClientTimeouts{RefuseToWait: true}, Normal, Begin},
		{ClientTimeouts{RefuseToWait: true, NoWake: true}, Normal, Nudge},
		{ClientTimeouts{RefuseToWait: true}, Low, Nudge},
	} {
		q := freeSlots(100, 1000)
		r := &Request{Priority: c.p}
		r.Enter(q, t0)
		if d := r.Decide(&snapshot.Snapshot{}, c.t, t0); d.Verdict != Refuse || d.Error == nil || d.Wake != c.want {
			t.Errorf("%+v: %+v", c, d)
		}
		if l := q.Load(t0); l.Queued != 0 || r.Cold || r.Leave(t0) {
			t.Errorf("%+v: %+v", c, l)
		}
	}
}

// TestBeginConcurrently: whichever of many requests begin the cold start, of teams of which half
// are refused: the refused ones end, and a replica is asked for if any other waits.
func TestBeginConcurrently(t *testing.T) {
	f, refusal := &snapshot.Snapshot{}, openai.New(openai.RateLimitExceeded, "")
	for range 200 {
		q := freeSlots(100, 1000)
		var asked atomic.Int32
		var all sync.WaitGroup
		rs := make([]*Request, 8)
		for i := range rs {
			r := &Request{Team: []string{"poor", "rich"}[i%2]}
			rs[i] = r
			all.Go(func() {
				r.Enter(q, t0)
				w, team, ok := r.Decide(f, ClientTimeouts{}, t0).Wake, r.Team, true
				for ; ok && w == Begin; team, ok = q.RefuseBegin(refusal) {
					if team == "rich" {
						w = q.ConfirmBegin()
						break
					}
				}
				if w == Replica {
					asked.Add(1)
				}
			})
		}
		all.Wait()
		if asked.Load() != 1 {
			t.Fatalf("a replica was asked for %d times, want once", asked.Load())
		}
		for i, r := range rs {
			select {
			case <-r.Done():
				if i%2 == 1 {
					t.Fatal("a request of the team that is admitted was rejected")
				}
			default:
			}
			r.Leave(t0)
		}
		if q.claim != nil || q.Load(t0).Queued != 0 {
			t.Fatalf("%+v", q.Load(t0))
		}
	}
}
