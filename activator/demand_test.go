package activator

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// TestDemandOfChanged: a function is reported when something about it has changed, once, also when
// the last request has left and when it is removed.
func TestDemandOfChanged(t *testing.T) {
	now := time.Unix(1000, 0)
	w := &testEnv{}
	a := New(Options{Waker: w, Now: func() time.Time { return now }})
	w.act = a
	a.Publish(readyAt(testFunction("x"), 1, "r1"), testFunction("y"), testFunction("z"))
	if got := w.takeDemand(); len(got) != 3 || got["x"].Active+got["x"].Queued != 0 {
		t.Fatalf("new functions: %v", got)
	}
	x, y := &a.names.table.Lookup(testFunction("x").Name).Data.queue, &a.names.table.Lookup(testFunction("y").Name).Data.queue
	one, two, far := admission.Request{Team: "red", Bytes: 1}, admission.Request{Team: "blue", Bytes: 1},
		admission.Request{Team: "red", Bytes: 1}
	one.Enter(x, now)
	two.Enter(x, now)
	far.Enter(y, now)
	got := w.takeDemand()
	if len(got) != 2 || got["x"].Active != 1 || got["x"].Queued != 1 || got["x"].InFlight["r1"] != 1 || got["y"].Queued != 1 {
		t.Fatalf("%+v", got)
	}
	if got := w.takeDemand(); len(got) != 0 {
		t.Fatalf("told twice: %+v", got)
	}
	one.Leave(now) // the second is admitted by it
	if got := w.takeDemand(); len(got) != 1 || got["x"].Active != 1 || got["x"].Queued != 0 || !got["x"].LastEnd.Equal(now) ||
		got["x"].InFlight["r1"] != 1 {
		t.Fatalf("%+v", got)
	}
	two.Leave(now)
	far.Leave(now)
	if got := w.takeDemand(); len(got) != 2 || got["x"].Active+got["y"].Queued+len(got["x"].InFlight) != 0 {
		t.Fatalf("back to nothing: %+v", got)
	}
	if got := w.takeDemand(); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	// A snapshot with free slots admits requests, a failure rejects them: both
	// are news.
	far.Enter(y, now)
	w.takeDemand()
	f := testFunction("y")
	f.Failure = &snapshot.Failure{Reason: "no", Until: now.Add(time.Minute)}
	a.Publish(f)
	if got := w.takeDemand(); len(got) != 1 || got["y"].Queued != 0 {
		t.Fatalf("turned away: %+v", got)
	}
	// A removed function has its requests in flight reported, until there is one of its name again.
	one.Enter(x, now)
	two.Enter(x, now)
	a.Remove(testFunction("x").Name)
	if got := w.takeDemand(); len(got) != 1 || got["x"].Active+got["x"].Queued != 0 || got["x"].InFlight["r1"] != 1 {
		t.Fatalf("removed: %+v", got)
	}
	a.Publish(readyAt(testFunction("x"), 1, "r1"))
	if got := w.takeDemand(); len(got) != 1 || len(got["x"].InFlight) > 0 {
		t.Fatalf("there is one of its name again: %+v", got)
	}
	if one.Leave(now); len(w.takeDemand()) > 0 {
		t.Fatal("the removed one is reported")
	}
}

// TestWakeWithDemand: the demand that a Wake is for is reported before it.
func TestWakeWithDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.act.Publish(testFunction("tiny"))
		w.engineAt("e:1", goodAnswer)
		var client sync.WaitGroup
		client.Go(func() { w.post("/v1/chat/completions", plainRequest) })
		synctest.Wait()
		w.mu.Lock()
		d, wakes := w.atWake, w.wakes
		w.mu.Unlock()
		if wakes != 1 || d.Queued != 1 || d.Oldest.IsZero() {
			t.Errorf("%d wakes, with %+v", wakes, d)
		}
		w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
		client.Wait()
	})
}

// TestPublishReports: when Publish returns, the requests in flight at a replica that it took out of
// the routes are reported, and no later report has fewer than are there.
func TestPublishReports(t *testing.T) {
	now := time.Unix(1000, 0)
	w := &testEnv{}
	w.act = New(Options{Waker: w, Now: func() time.Time { return now }})
	routed := readyAt(testFunction("x"), 1<<20, "r1")
	w.act.Publish(routed)
	q := &w.act.names.table.Lookup(routed.Name).Data.queue
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := &admission.Request{Team: "t", Bytes: 1}
				r.Enter(q, now)
				w.act.reportDemand()
				r.Leave(now)
			}
		})
	}
	for range 500 {
		w.act.Publish(testFunction("x"))
		is := q.InFlight("r1") // it only falls from here on
		w.mu.Lock()
		d := w.reported["x"]
		w.mu.Unlock()
		if now := q.InFlight("r1"); d.InFlight["r1"] < now {
			t.Fatalf("%d, then %d in flight at a replica that left the routes, and %d reported", is, now, d.InFlight["r1"])
		}
		w.act.Publish(routed)
	}
	close(stop)
	clients.Wait()
}

// TestDemandSeesEveryChange: whatever happens meanwhile, the last that was yielded
// of a function is how it is.
func TestDemandSeesEveryChange(t *testing.T) {
	now := time.Unix(1000, 0)
	w := &testEnv{}
	a := New(Options{Waker: w, Now: func() time.Time { return now }})
	w.act = a
	var fs []snapshot.Snapshot
	for i := range 8 {
		fs = append(fs, readyAt(testFunction(fmt.Sprint("m", i)), 2, fmt.Sprint("r", i)))
	}
	a.Publish(fs...)
	last := map[functions.Name]Demand{}
	lookup := func() {
		for _, d := range w.takeDemand() {
			last[d.Name] = d
		}
	}
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(n)))
			for range 2000 {
				q := &a.names.table.Lookup(fs[rnd.IntN(len(fs))].Name).Data.queue
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
		if n := a.InFlightOf(f.Name, "r"+f.Name.Name[1:]); n != last[f.Name].InFlight["r"+f.Name.Name[1:]] {
			t.Errorf("%s has %d in flight, %d when it was yielded last", f.Name, n, last[f.Name].InFlight["r"+f.Name.Name[1:]])
		}
	}
}
