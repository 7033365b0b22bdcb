package admission

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

var t0 = time.Unix(1000, 0)

var errTest = openai.New(openai.ShuttingDown, "")

// freeSlots is a queue without replicas.
func freeSlots(requests int, bytes int64) *Queue {
	q := &Queue{}
	m := &functions.Model{}
	m.Spec.Queue.Requests, m.Spec.Queue.Bytes = requests, functions.Bytes(bytes)
	q.Publish(nil, &snapshot.Snapshot{Model: m}, t0)
	return q
}

// publish replaces the replicas of q and returns how many requests were admitted.
func publish(q *Queue, now time.Time, rs ...snapshot.Replica) int {
	before := q.Load(now).Active
	q.Publish(&snapshot.Snapshot{}, &snapshot.Snapshot{Replicas: rs}, now)
	return q.Load(now).Active - before
}

func replicaOf(id string, slots int, adapters ...string) snapshot.Replica {
	return snapshot.Replica{ID: id, Slots: slots, Adapters: adapters}
}

func requestOf(team string, bytes int64) Request { return Request{Team: team, Bytes: bytes} }

func TestBounds(t *testing.T) {
	q := freeSlots(2, 100)
	a, b, c := requestOf("t", 60), requestOf("t", 41), requestOf("t", 0)
	if got := a.Enter(q, t0); got != Waiting {
		t.Fatal(got)
	}
	if got := b.Enter(q, t0); got != Full {
		t.Fatal("bytes:", got)
	}
	b.Bytes = 40
	if got := b.Enter(q, t0); got != Waiting {
		t.Fatal(got)
	}
	if got := c.Enter(q, t0); got != Full {
		t.Fatal("count:", got)
	}
	if a.Leave(t0) {
		t.Fatal("not deserted yet")
	}
	c.Bytes = 60
	if got := c.Enter(q, t0); got != Waiting {
		t.Fatal("a request that leaves must free its place and bytes at once:", got)
	}
	b.Leave(t0)
	if !c.Leave(t0) || c.Leave(t0) {
		t.Fatal("deserted is returned once")
	}
	if l := q.Load(t0); l != (Load{}) {
		t.Fatal(l)
	}
	if q.waiting.teamQueues != nil {
		t.Fatal("an empty queue owns no lanes")
	}
}

func TestReleaseIsPaced(t *testing.T) {
	q := freeSlots(10, 1000)
	ws := make([]Request, 5)
	for i := range ws {
		ws[i] = requestOf("t", 1)
		ws[i].Enter(q, t0)
	}
	if n := publish(q, t0, replicaOf("a", 2)); n != 2 {
		t.Fatal("admitted", n)
	}
	for i := range ws {
		select {
		case <-ws[i].Done():
			if i > 1 {
				t.Fatal("too many admitted")
			}
		default:
			if i < 2 {
				t.Fatal("first come first served")
			}
		}
	}
	if p := q.Position(&ws[4]); p != 3 {
		t.Fatal("position", p)
	}
	ws[0].Leave(t0.Add(time.Second))
	<-ws[2].Done()
	expired := requestOf("t", 1)
	if a := expired.Enter(q, t0); a != Waiting {
		t.Fatal("no request passes those that wait:", a)
	}
	if l := q.Load(t0); l.Active != 2 || l.Queued != 3 || !l.LastEnd.Equal(t0.Add(time.Second)) || l.AdmitsAtOnce() {
		t.Fatalf("%+v", l)
	}
	q.RejectAll(errTest)
	<-expired.Done()
	if expired.Rejection() != errTest || ws[2].Rejection() != nil {
		t.Fatal("rejections")
	}
	expired.Leave(t0)
	ws[1].Leave(t0)
	ws[2].Leave(t0)
	if l := q.Load(t0); l.Active != 0 || l.Queued != 0 {
		t.Fatal(l)
	}
}

func TestFairBetweenTeams(t *testing.T) {
	q := freeSlots(1000, 1000)
	waiting := make([]Request, 100)
	for i := range waiting {
		waiting[i] = requestOf("greedy", 1)
		waiting[i].Enter(q, t0)
	}
	one, two := requestOf("small", 1), requestOf("small", 1)
	one.Enter(q, t0)
	two.Enter(q, t0)
	if p, q := q.Position(&one), q.Position(&two); p != 2 || q != 4 {
		t.Fatalf("positions %d %d, want 2 and 4", p, q)
	}
	if p := q.Position(&waiting[99]); p != 102 {
		t.Fatal("position of the last", p)
	}
	publish(q, t0, replicaOf("a", 2))
	<-one.Done()
}

func TestBroadcast(t *testing.T) {
	q := &Queue{}
	c := q.Changed()
	if c != q.Changed() {
		t.Fatal("one channel until it is closed")
	}
	q.Broadcast()
	<-c
	q.Broadcast()
}

// TestOrderAgainstModel compares the order with a simple model: first in first out inside a team,
// round robin between teams, exact accounting, positions that come true.
func TestOrderAgainstModel(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := &order{}
		model := map[string][]*Request{}
		var ring []string
		var bytes int64
		n := 0
		check := func() {
			if l.count != n || l.bytes != bytes {
				t.Fatalf("seed %d: count %d bytes %d, want %d %d", seed, l.count, l.bytes, n, bytes)
			}
		}
		drop := func(team string, i int) {
			bytes -= model[team][i].Bytes
			n--
			model[team] = slices.Delete(model[team], i, i+1)
			if len(model[team]) == 0 {
				delete(model, team)
				k := slices.Index(ring, team)
				ring = slices.Delete(ring, k, k+1)
			}
		}
		for range 3000 {
			switch k := r.IntN(10); {
			case k < 5:
				w := &Request{Team: fmt.Sprint("t", r.IntN(5)), Bytes: int64(r.IntN(100))}
				l.add(w)
				if model[w.Team] == nil {
					ring = append(ring, w.Team)
				}
				model[w.Team] = append(model[w.Team], w)
				bytes += w.Bytes
				n++
			case k < 7 && n > 0:
				team := ring[r.IntN(len(ring))]
				i := r.IntN(len(model[team]))
				l.remove(model[team][i])
				drop(team, i)
			case n > 0:
				team := ring[0]
				want := model[team][0]
				if p := l.position(want); p != 1 {
					t.Fatalf("seed %d: position of the next is %d", seed, p)
				}
				if got := l.take(); got != want {
					t.Fatalf("seed %d: out of turn", seed)
				}
				drop(team, 0)
				if len(ring) > 0 && ring[0] == team {
					ring = append(ring[1:], team)
				}
			default:
				if l.take() != nil {
					t.Fatal("an empty order admits nothing")
				}
			}
			check()
		}
		// Every position comes true.
		want := map[*Request]int{}
		for _, ws := range model {
			for _, w := range ws {
				want[w] = l.position(w)
			}
		}
		for turn := 1; ; turn++ {
			w := l.take()
			if w == nil {
				break
			}
			if want[w] != turn {
				t.Fatalf("seed %d: told %d, served at %d", seed, want[w], turn)
			}
		}
		if l.teamQueues != nil || l.turn != nil {
			t.Fatal("an empty order keeps nothing")
		}
	}
}

func TestConcurrentAccounting(t *testing.T) {
	q := freeSlots(50, 1<<20)
	publish(q, t0, replicaOf("a", 2), replicaOf("b", 1))
	var wg sync.WaitGroup
	var mu sync.Mutex
	in, maximum := map[string]int{}, map[string]int{}
	for i := range 64 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for range 100 {
				w := Request{Team: fmt.Sprint(i % 3), Bytes: 10, Priority: Priority(r.IntN(3) - 1)}
				switch w.Enter(q, t0) {
				case Full:
					continue
				case Waiting:
					if r.IntN(4) == 0 {
						w.Leave(t0)
						continue
					}
					<-w.Done()
				}
				id := w.ReplicaID()
				mu.Lock()
				in[id]++
				maximum[id] = max(maximum[id], in[id])
				mu.Unlock()
				runtime.Gosched()
				mu.Lock()
				in[id]--
				mu.Unlock()
				w.Leave(t0)
			}
		})
	}
	wg.Wait()
	if l := q.Load(t0); l.Active != 0 || l.Queued != 0 || l.Bytes != 0 {
		t.Fatalf("%+v", l)
	}
	if maximum["a"] > 2 || maximum["b"] > 1 {
		t.Fatal("slots exceeded:", maximum)
	}
}

func BenchmarkAdmission(b *testing.B) {
	q := freeSlots(10, 100)
	publish(q, t0, replicaOf("a", 10))
	b.ReportAllocs()
	w := requestOf("t", 10)
	for b.Loop() {
		w.Enter(q, t0)
		w.Leave(t0)
	}
}

func BenchmarkEnterLeaveAmong10000(b *testing.B) {
	q := freeSlots(20000, 1<<30)
	ws := make([]Request, 10000)
	for i := range ws {
		ws[i] = requestOf("t", 10)
		ws[i].Enter(q, t0)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		ws[i].Leave(t0)
		ws[i].Enter(q, t0)
		if q.Position(&ws[i]) != 10000 {
			b.Fatal("position")
		}
		i = (i + 7919) % len(ws)
	}
}

// BenchmarkAdmit1000 queues 1,000 requests and admits them by one Publish.
func BenchmarkAdmit1000(b *testing.B) {
	q := freeSlots(2000, 1<<30)
	ws := make([]Request, 1000)
	for b.Loop() {
		for i := range ws {
			ws[i] = requestOf(fmt.Sprint(i%4), 10)
			ws[i].Enter(q, t0)
		}
		publish(q, t0, replicaOf("a", 500), replicaOf("b", 500))
		for i := range ws {
			<-ws[i].Done()
			ws[i].Leave(t0)
		}
		publish(q, t0)
	}
}

type listener struct {
	Request
	calls int
}

func (l *listener) OnChange() { l.calls++ }

// TestListener: a listener is called once, without a channel, when its request is
// admitted or rejected.
func TestListener(t *testing.T) {
	q := freeSlots(10, 1<<20)
	var ls [4]listener
	for i := range ls {
		ls[i].Listener = &ls[i]
		if a := ls[i].Enter(q, t0); a != Waiting || ls[i].Done() != nil {
			t.Fatalf("%d: %v, done %v", i, a, ls[i].Done())
		}
	}
	publish(q, t0, replicaOf("a", 1))
	if ls[0].calls != 1 || ls[1].calls != 0 || ls[0].Rejection() != nil {
		t.Fatalf("admitted: %d %d %v", ls[0].calls, ls[1].calls, ls[0].Rejection())
	}
	ls[0].Leave(t0)
	if ls[1].calls != 1 {
		t.Fatal("the next was not called")
	}
	q.RejectAll(errTest)
	if ls[2].calls != 1 || ls[3].calls != 1 || ls[3].Rejection() != errTest || ls[0].calls != 1 || ls[1].calls != 1 {
		t.Fatalf("rejected: %+v", ls)
	}
	ls[1].Leave(t0)
	ls[3].Leave(t0)
	if a := ls[3].Enter(q, t0); a != Admitted || ls[3].Listener == nil || ls[3].Rejection() != nil {
		t.Fatalf("again: %v %v", a, ls[3].Rejection())
	}
}

// TestAdmitAt: a request that has its answer already leaves the queue out of turn,
// though no replica has a slot, and counts at the replica that answered it.
func TestAdmitAt(t *testing.T) {
	q := freeSlots(4, 100)
	a, b, c := requestOf("t", 10), requestOf("t", 10), requestOf("t", 10)
	for _, w := range []*Request{&a, &b, &c} {
		if got := w.Enter(q, t0); got != Waiting {
			t.Fatal(got)
		}
	}
	x := replicaOf("x", 1)
	if !b.AdmitAt(&x) || b.AdmitAt(&x) {
		t.Error("admitted other than once")
	}
	if l := q.Load(t0); l.Active != 1 || l.Queued != 2 || l.Bytes != 20 || q.Position(&c) != 2 || q.InFlight("x") != 1 {
		t.Errorf("%+v", l)
	}
	if n := publish(q, t0, x); n != 0 {
		t.Errorf("%d admitted beside it", n)
	}
	b.Leave(t0)
	select {
	case <-a.Done():
	default:
		t.Error("its slot was not given to the next")
	}
	if a.AdmitAt(&x) {
		t.Error("admitted out of turn though admitted")
	}
	q.RejectAll(errTest)
	if c.AdmitAt(&x) {
		t.Error("admitted though rejected")
	}
	c.Leave(t0)
	a.Leave(t0)
	publish(q, t0)
	a.Enter(q, t0)
	if !a.AdmitAt(&x) || q.waiting.teamQueues != nil {
		t.Error("the last of the queue leaves team queues behind")
	}
	if a.Leave(t0); q.active != 0 || q.queued() != 0 || len(q.replicas) != 0 {
		t.Errorf("%+v", q.Load(t0))
	}
}

// TestLeaveAgain: a slot is given back once.
func TestLeaveAgain(t *testing.T) {
	q := freeSlots(4, 100)
	publish(q, t0, replicaOf("x", 1))
	a, b := requestOf("t", 1), requestOf("t", 1)
	a.Enter(q, t0)
	b.Enter(q, t0)
	a.Leave(t0)
	<-b.Done()
	a.Leave(t0)
	if l := q.Load(t0); l.Active != 1 || b.ReplicaID() != "x" || a.ReplicaID() != "" {
		t.Errorf("%+v", l)
	}
}

// TestAdmittedHoldsSlot: whatever happens at random, each admitted request holds a
// slot of a replica, no replica has more requests than slots while its slots do not
// shrink, and no request waits while a usable replica has a free slot.
func TestAdmittedHoldsSlot(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		q := freeSlots(1000, 1<<20)
		now := t0
		var in []*listener
		slots := map[string]int{"a": 2, "b": 3, "c": 1}
		for range 2000 {
			now = now.Add(time.Duration(rnd.IntN(300)) * time.Millisecond)
			q.Readmit(now)
			switch k := rnd.IntN(10); {
			case k < 4:
				w := &listener{Request: Request{Team: fmt.Sprint(rnd.IntN(3)), Bytes: 1, Key: uint64(rnd.IntN(4))}}
				w.Listener = w
				if w.Enter(q, now) != Full {
					in = append(in, w)
				}
			case k < 8 && len(in) > 0:
				i := rnd.IntN(len(in))
				if rnd.IntN(4) == 0 {
					in[i].MarkFailed(true, now)
				}
				in[i].Leave(now)
				in = slices.Delete(in, i, i+1)
			default:
				var rs []snapshot.Replica
				for _, id := range []string{"a", "b", "c"} {
					if rnd.IntN(3) > 0 {
						rs = append(rs, replicaOf(id, slots[id]))
					}
				}
				publish(q, now, rs...)
			}
			l := q.Load(now)
			if l.Queued > 0 && l.FreeSlots > 0 {
				t.Fatalf("seed %d: %d wait with %d free slots", seed, l.Queued, l.FreeSlots)
			}
			held, waits := map[string]int{}, 0
			for _, w := range in {
				if id := w.ReplicaID(); id != "" {
					held[id]++
				} else {
					waits++
				}
			}
			if waits != l.Queued {
				t.Fatalf("seed %d: %d neither wait nor hold a slot", seed, waits-l.Queued)
			}
			for id, n := range held {
				if n != q.InFlight(id) || n > slots[id] {
					t.Fatalf("seed %d: %s has %d requests, %d by the queue, of %d slots", seed, id, n, q.InFlight(id), slots[id])
				}
			}
		}
	}
}
