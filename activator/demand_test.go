package activator

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// demandOf is what Demand yields, by name.
func demandOf(a *Activator, all bool) map[string]Demand {
	out := map[string]Demand{}
	a.Demand(all, func(d Demand) { out[d.Name.Name] = d })
	return out
}

// TestDemandOfChanged: a function is yielded when something about it has
// changed, once, also when the last request has left; with all, also who has
// requests and nothing new.
func TestDemandOfChanged(t *testing.T) {
	now := time.Unix(1000, 0)
	a := New(Options{Now: func() time.Time { return now }})
	a.Publish(readyAt(testFunction("x"), 1, "r1"), testFunction("y"), testFunction("z"))
	if got := demandOf(a, true); len(got) != 0 {
		t.Fatalf("of nothing: %v", got)
	}
	x, y := &a.table.Lookup(testFunction("x").Name).Data.queue, &a.table.Lookup(testFunction("y").Name).Data.queue
	one, two, far := admission.Request{Team: "red", Bytes: 1}, admission.Request{Team: "blue", Bytes: 1},
		admission.Request{Team: "red", Bytes: 1}
	one.Enter(x, now)
	id := one.ReplicaID()
	two.Enter(x, now)
	far.Enter(y, now)
	got := demandOf(a, false)
	if len(got) != 2 || got["x"].Active != 1 || got["x"].Queued != 1 || got["y"].Queued != 1 {
		t.Fatalf("%+v", got)
	}
	if got := demandOf(a, false); len(got) != 0 {
		t.Fatalf("told twice: %+v", got)
	}
	if got := demandOf(a, true); len(got) != 2 {
		t.Fatalf("all: %+v", got)
	}
	one.Leave(now) // the second is admitted by it
	if got := demandOf(a, false); len(got) != 1 || got["x"].Active != 1 || got["x"].Queued != 0 || !got["x"].LastEnd.Equal(now) ||
		a.InFlightOf(testFunction("x").Name, id) != 1 {
		t.Fatalf("%+v", got)
	}
	two.Leave(now)
	far.Leave(now)
	if got := demandOf(a, true); len(got) != 2 || got["x"].Active+got["y"].Queued != 0 {
		t.Fatalf("back to nothing: %+v", got)
	}
	if got := demandOf(a, true); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	// A snapshot with free slots admits requests, a failure rejects them: both
	// are news.
	far.Enter(y, now)
	demandOf(a, false)
	f := testFunction("y")
	f.Failure = &snapshot.Failure{Reason: "no", Until: now.Add(time.Minute)}
	a.Publish(f)
	if got := demandOf(a, false); len(got) != 1 || got["y"].Queued != 0 {
		t.Fatalf("turned away: %+v", got)
	}
	// Removed functions are not yielded.
	one.Enter(x, now)
	far.Enter(y, now)
	one.Leave(now)
	a.Remove(testFunction("x").Name)
	if got := demandOf(a, true); len(got) != 1 {
		t.Fatalf("one is gone: %+v", got)
	}
}

// TestDemandSeesEveryChange: whatever happens meanwhile, the last that was yielded
// of a function is how it is.
func TestDemandSeesEveryChange(t *testing.T) {
	now := time.Unix(1000, 0)
	a := New(Options{Now: func() time.Time { return now }})
	var fs []snapshot.Snapshot
	for i := range 8 {
		fs = append(fs, readyAt(testFunction(fmt.Sprint("m", i)), 2, fmt.Sprint("r", i)))
	}
	a.Publish(fs...)
	last := map[functions.Name]Demand{}
	flight := map[functions.Name]int{}
	lookup := func() {
		a.Demand(false, func(d Demand) {
			last[d.Name] = d
			flight[d.Name] = a.InFlightOf(d.Name, "r"+d.Name.Name[1:])
		})
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for range 2000 {
				q := &a.table.Lookup(fs[rnd.IntN(len(fs))].Name).Data.queue
				r := &admission.Request{Team: "t", Bytes: 1}
				if r.Enter(q, now) == admission.Full {
					continue
				}
				if r.Done() != nil {
					if rnd.IntN(2) == 0 { // it waits no longer
						r.Leave(now)
						continue
					}
					<-r.Done()
				}
				r.Leave(now)
				if rnd.IntN(20) == 0 { // some stay
					r.Enter(q, now)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		lookup()
	}
	for _, f := range fs {
		is, _ := a.DemandOf(f.Name)
		if was := last[f.Name]; was.Active != is.Active || was.Queued != is.Queued {
			t.Errorf("%s has %d at engines and %d held, %d and %d were yielded last", f.Name, is.Active, is.Queued, was.Active, was.Queued)
		}
		if n := a.InFlightOf(f.Name, "r"+f.Name.Name[1:]); n != flight[f.Name] {
			t.Errorf("%s has %d in flight, %d when it was yielded last", f.Name, n, flight[f.Name])
		}
	}
}
