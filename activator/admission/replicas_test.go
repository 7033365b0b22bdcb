package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
)

// admitted enters a request and returns it with the replica that it was given, ""
// if it would have to wait.
func admitted(q *Queue, r Request, now time.Time) (*Request, string) {
	if r.Enter(q, now) != Admitted {
		r.Leave(now)
		return &r, ""
	}
	return &r, r.ReplicaID()
}

func TestChoice(t *testing.T) {
	q := &Queue{}
	if _, id := admitted(q, Request{}, t0); id != "" {
		t.Fatal("there is no replica")
	}
	publish(q, t0, replicaOf("a", 2), replicaOf("b", 2))
	one, a := admitted(q, Request{}, t0)
	two, b := admitted(q, Request{}, t0)
	if a == b {
		t.Fatal("least loaded first")
	}
	three, c := admitted(q, Request{}, t0)
	four, d := admitted(q, Request{}, t0)
	if _, id := admitted(q, Request{}, t0); id != "" || c == d {
		t.Fatal("both are full")
	}
	two.Leave(t0)
	publish(q, t0, replicaOf("b", 2), replicaOf("c", 1))
	if q.InFlight("a") != 2 || q.InFlight("b") != 1 || q.InFlight("c") != 0 {
		t.Fatal("in flight lost")
	}
	one.Leave(t0)
	publish(q, t0, replicaOf("a", 2))
	if q.InFlight("a") != 1 || q.InFlight("b") != 1 {
		t.Fatal("in flight lost on return")
	}
	three.Leave(t0)
	four.Leave(t0)
	if len(q.replicas) != 1 {
		t.Fatal("replicas that left are forgotten")
	}
}

// TestChoiceByEngine: requests that wait inside an engine count as load, and between equals
// the engine whose KV cache is hit more often is chosen. Affinity ends at an engine that queues.
func TestChoiceByEngine(t *testing.T) {
	type engine struct {
		inFlight, queue int
		hits            float64
	}
	at := func(key uint64) (id string) { // where the key is at home
		q := &Queue{}
		publish(q, t0, replicaOf("a", 8), replicaOf("b", 8))
		_, id = admitted(q, Request{Key: key}, t0)
		return id
	}
	key := uint64(1)
	for at(key) != "a" {
		key++
	}
	for name, c := range map[string]struct {
		a, b engine
		key  uint64
		want string
	}{
		"nothing is known":                 {engine{}, engine{}, 0, "a"},
		"the fewer requests":               {engine{inFlight: 2}, engine{inFlight: 1}, 0, "b"},
		"requests in the engine":           {engine{queue: 1}, engine{}, 0, "b"},
		"both together":                    {engine{inFlight: 1, queue: 3}, engine{inFlight: 3}, 0, "b"},
		"equal, one with more cache hits":  {engine{hits: .2}, engine{hits: .6}, 0, "b"},
		"equal, and equal":                 {engine{hits: .6}, engine{hits: .6}, 0, "a"},
		"cache hits do not outweigh load":  {engine{inFlight: 1, hits: .9}, engine{}, 0, "b"},
		"affinity within its margin":       {engine{inFlight: 1, queue: 1}, engine{hits: .9}, key, "a"},
		"affinity ends at an engine queue": {engine{inFlight: 1, queue: 2}, engine{}, key, "b"},
		"no slot, whatever the queues":     {engine{inFlight: 8}, engine{inFlight: 7, queue: 50}, 0, "b"},
	} {
		q := &Queue{}
		a, b := replicaOf("a", 8), replicaOf("b", 8)
		publish(q, t0, a)
		for range c.a.inFlight {
			admitted(q, Request{}, t0)
		}
		publish(q, t0, b)
		for range c.b.inFlight {
			admitted(q, Request{}, t0)
		}
		a.EngineQueue, a.HitRate, b.EngineQueue, b.HitRate = c.a.queue, c.a.hits, c.b.queue, c.b.hits
		publish(q, t0, a, b)
		if _, id := admitted(q, Request{Key: c.key}, t0); id != c.want {
			t.Errorf("%s: %s", name, id)
		}
	}
}

func TestCoolDown(t *testing.T) {
	q := &Queue{}
	publish(q, t0, replicaOf("a", 2), replicaOf("b", 3))
	r, id := admitted(q, Request{}, t0)
	if id != "a" {
		t.Fatal(id)
	}
	r.MarkFailed(true, t0)
	r.Leave(t0)
	if n := q.Load(t0).FreeSlots; n != 3 || r.FailedReplica != "a" {
		t.Fatal(n)
	}
	for range 3 {
		if _, id := admitted(q, Request{}, t0); id != "b" {
			t.Fatal(id)
		}
	}
	publish(q, t0, replicaOf("a", 4))
	if _, id := admitted(q, Request{}, t0); id != "" {
		t.Fatal("an older snapshot must not end the cool-down")
	}
	if _, id := admitted(q, Request{}, t0.Add(CoolDown)); id != "a" {
		t.Fatal("the cool-down is over")
	}
}

func TestAffinity(t *testing.T) {
	q := &Queue{}
	ts := []snapshot.Replica{replicaOf("a", 100), replicaOf("b", 100), replicaOf("c", 100)}
	publish(q, t0, ts...)
	preferred := map[uint64]string{}
	count := map[string]int{}
	for i := range 300 {
		k := AffinityKey([]byte(fmt.Sprint("session ", i)))
		r, id := admitted(q, Request{Key: k}, t0)
		r.Leave(t0)
		preferred[k] = id
		count[id]++
	}
	for id, n := range count {
		if n < 60 {
			t.Errorf("%s has %d of 300", id, n)
		}
	}
	publish(q, t0, ts[:2]...)
	for k, id := range preferred {
		r, got := admitted(q, Request{Key: k}, t0)
		r.Leave(t0)
		if id != "c" && got != id {
			t.Fatal("a key moved although its replica stayed")
		}
	}
	// A busy replica is left.
	var k uint64
	for k2, id := range preferred {
		if id == "a" {
			k = k2
		}
	}
	for range 26 {
		admitted(q, Request{Key: k}, t0)
	}
	if q.InFlight("a") != 26 {
		t.Fatal(q.InFlight("a"))
	}
	if _, id := admitted(q, Request{Key: k}, t0); id != "b" {
		t.Fatal("affinity must not overload:", id)
	}
}

func TestNeverAboveSlots(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	q := &Queue{}
	publish(q, t0, replicaOf("a", 3), replicaOf("b", 1), replicaOf("c", 5))
	var held []*Request
	for range 5000 {
		if rnd.IntN(2) == 0 {
			if r, id := admitted(q, Request{Key: uint64(rnd.IntN(5))}, t0); id != "" {
				held = append(held, r)
			} else if len(held) != 9 {
				t.Fatal("refused with", len(held))
			}
		} else if len(held) > 0 {
			i := rnd.IntN(len(held))
			held[i].Leave(t0)
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		if q.InFlight("a") > 3 || q.InFlight("b") > 1 || q.InFlight("c") > 5 {
			t.Fatal("above slots")
		}
	}
}

func BenchmarkChoice(b *testing.B) {
	q := &Queue{}
	publish(q, t0, replicaOf("a", 64), replicaOf("b", 64), replicaOf("c", 64), replicaOf("d", 64))
	b.ReportAllocs()
	r := Request{Key: 12345}
	for b.Loop() {
		r.Enter(q, t0)
		r.Leave(t0)
	}
}

func TestChoiceByAdapter(t *testing.T) {
	q := &Queue{}
	publish(q, t0, replicaOf("a", 2), replicaOf("b", 2, "pirate", "poet"), replicaOf("c", 2, "poet"))
	give := func(r Request) string {
		_, id := admitted(q, r, t0)
		return id
	}
	if id := give(Request{Adapter: "pirate"}); id != "b" {
		t.Error("the replica that has the adapter is preferred, though all are free:", id)
	}
	if id := give(Request{Adapter: "pirate"}); id != "b" {
		t.Error("also when it is busier:", id)
	}
	if id := give(Request{Adapter: "pirate"}); id == "b" || id == "" {
		t.Error("it is full, another takes it:", id)
	}
	if id := give(Request{Adapter: "poet"}); id != "c" {
		t.Error(id)
	}
	if id := give(Request{Adapter: "unknown"}); id == "" {
		t.Error("no replica has it yet: one is to load it")
	}
	q = &Queue{}
	publish(q, t0, replicaOf("a", 2), replicaOf("b", 2))
	for range 2 {
		if id := give(Request{FailedReplica: "a"}); id != "b" {
			t.Error("not the one that failed it:", id)
		}
	}
	if id := give(Request{FailedReplica: "a"}); id != "a" {
		t.Error("unless there is no other:", id)
	}
	publish(q, t0, replicaOf("a", 2, "pirate"), replicaOf("b", 2))
	if q.InFlight("a") != 1 || q.InFlight("b") != 2 || give(Request{Adapter: "pirate"}) != "a" {
		t.Error("a change of adapters alone counts")
	}
}

// TestSlotBeforeSnapshot: a slot that was taken on a replica before it was in a
// snapshot counts when it is.
func TestSlotBeforeSnapshot(t *testing.T) {
	q := freeSlots(10, 100)
	x := replicaOf("a", 2)
	a, b := Request{}, Request{}
	a.Enter(q, t0)
	b.Enter(q, t0)
	a.AdmitAt(&x)
	b.AdmitAt(&x)
	if q.InFlight("a") != 2 || q.Load(t0).FreeSlots != 0 {
		t.Error("not in flight, or chosen")
	}
	a.Leave(t0)
	publish(q, t0, x)
	c, id := admitted(q, Request{}, t0)
	if id != "a" || q.InFlight("a") != 2 {
		t.Error("one slot is free")
	}
	if _, id := admitted(q, Request{}, t0); id != "" {
		t.Error("its slots are not taken")
	}
	b.Leave(t0)
	c.Leave(t0)
	publish(q, t0)
	if q.InFlight("a") != 0 || len(q.replicas) != 0 {
		t.Error("not given back")
	}
}
