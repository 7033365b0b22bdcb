package balance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var t0 = time.Unix(1000, 0)

func TestPick(t *testing.T) {
	var s Set
	if _, ok := s.Pick(Ask{}, t0); ok {
		t.Fatal("nobody there")
	}
	s.Update([]Target{{ID: "a", Slots: 2}, {ID: "b", Slots: 2}})
	a, _ := s.Pick(Ask{}, t0)
	b, _ := s.Pick(Ask{}, t0)
	if a == b {
		t.Fatal("least loaded first")
	}
	s.Pick(Ask{}, t0)
	s.Pick(Ask{}, t0)
	if _, ok := s.Pick(Ask{}, t0); ok {
		t.Fatal("both are full")
	}
	s.Done("b")
	s.Update([]Target{{ID: "b", Slots: 2}, {ID: "c", Slots: 1}})
	if s.InFlight("a") != 2 || s.InFlight("b") != 1 || s.InFlight("c") != 0 {
		t.Fatal("in flight lost")
	}
	s.Done("a")
	s.Update([]Target{{ID: "a", Slots: 2}})
	if s.InFlight("a") != 1 || s.InFlight("b") != 1 {
		t.Fatal("in flight lost on return")
	}
	s.Done("b")
	s.Done("a")
	if len(s.gone) != 0 {
		t.Fatal("gone replicas are forgotten")
	}
}

func TestBroken(t *testing.T) {
	var s Set
	s.Update([]Target{{ID: "a", Slots: 2}, {ID: "b", Slots: 3}})
	s.Break("a", t0)
	if n := s.Capacity(t0); n != 3 {
		t.Fatal(n)
	}
	for range 3 {
		if id, _ := s.Pick(Ask{}, t0); id != "b" {
			t.Fatal(id)
		}
	}
	s.Update([]Target{{ID: "a", Slots: 4}})
	if _, ok := s.Pick(Ask{}, t0); ok {
		t.Fatal("an older picture must not mend it")
	}
	if id, _ := s.Pick(Ask{}, t0.Add(CoolDown)); id != "a" {
		t.Fatal("cool-down is over")
	}
}

func TestAffinity(t *testing.T) {
	var s Set
	ts := []Target{{ID: "a", Slots: 100}, {ID: "b", Slots: 100}, {ID: "c", Slots: 100}}
	s.Update(ts)
	home := map[uint64]string{}
	count := map[string]int{}
	for i := range 300 {
		k := Key([]byte(fmt.Sprint("session ", i)))
		id, _ := s.Pick(Ask{Key: k}, t0)
		s.Done(id)
		home[k] = id
		count[id]++
	}
	for id, n := range count {
		if n < 60 {
			t.Errorf("%s has %d of 300", id, n)
		}
	}
	s.Update(ts[:2])
	for k, id := range home {
		got, _ := s.Pick(Ask{Key: k}, t0)
		s.Done(got)
		if id != "c" && got != id {
			t.Fatal("a key moved although its replica stayed")
		}
	}
	// A busy home is left.
	var k uint64
	for k2, id := range home {
		if id == "a" {
			k = k2
		}
	}
	for range 26 {
		s.Pick(Ask{Key: k}, t0)
	}
	if s.InFlight("a") != 26 {
		t.Fatal(s.InFlight("a"))
	}
	if id, _ := s.Pick(Ask{Key: k}, t0); id != "b" {
		t.Fatal("affinity must not overload:", id)
	}
}

func TestNeverAboveSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var s Set
	s.Update([]Target{{ID: "a", Slots: 3}, {ID: "b", Slots: 1}, {ID: "c", Slots: 5}})
	var held []string
	for range 5000 {
		if r.IntN(2) == 0 {
			if id, ok := s.Pick(Ask{Key: uint64(r.IntN(5))}, t0); ok {
				held = append(held, id)
			} else if len(held) != 9 {
				t.Fatal("refused with", len(held))
			}
		} else if len(held) > 0 {
			i := r.IntN(len(held))
			s.Done(held[i])
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		if s.InFlight("a") > 3 || s.InFlight("b") > 1 || s.InFlight("c") > 5 {
			t.Fatal("above slots")
		}
	}
}

func BenchmarkPick(b *testing.B) {
	var s Set
	s.Update([]Target{{ID: "a", Slots: 64}, {ID: "b", Slots: 64}, {ID: "c", Slots: 64}, {ID: "d", Slots: 64}})
	b.ReportAllocs()
	for b.Loop() {
		id, _ := s.Pick(Ask{Key: 12345}, t0)
		s.Done(id)
	}
}

func TestPickAdapter(t *testing.T) {
	var s Set
	s.Update([]Target{{ID: "a", Slots: 2}, {ID: "b", Slots: 2, Adapters: []string{"pirate", "poet"}}, {ID: "c", Slots: 2, Adapters: []string{"poet"}}})
	pick := func(a Ask) string {
		id, _ := s.Pick(a, t0)
		return id
	}
	if id := pick(Ask{Adapter: "pirate"}); id != "b" {
		t.Error("the replica that has the adapter is preferred, though all are free:", id)
	}
	if id := pick(Ask{Adapter: "pirate"}); id != "b" {
		t.Error("also when it is busier:", id)
	}
	if id := pick(Ask{Adapter: "pirate"}); id == "b" || id == "" {
		t.Error("it is full, another takes it:", id)
	}
	if id := pick(Ask{Adapter: "poet"}); id != "c" {
		t.Error(id)
	}
	if id := pick(Ask{Adapter: "nobody"}); id == "" {
		t.Error("nobody has it yet: some replica is to load it")
	}
	s = Set{}
	s.Update([]Target{{ID: "a", Slots: 2}, {ID: "b", Slots: 2}})
	for range 2 {
		if id := pick(Ask{Not: "a"}); id != "b" {
			t.Error("not the one that failed it:", id)
		}
	}
	if id := pick(Ask{Not: "a"}); id != "a" {
		t.Error("unless there is no other:", id)
	}
	s.Update([]Target{{ID: "a", Slots: 2, Adapters: []string{"pirate"}}, {ID: "b", Slots: 2}})
	if s.InFlight("a") != 1 || s.InFlight("b") != 2 || pick(Ask{Adapter: "pirate"}) != "a" {
		t.Error("an update of adapters alone is one")
	}
}

// TestTake: a slot that was taken on a replica before it was a target is one of it
// when it is.
func TestTake(t *testing.T) {
	var s Set
	s.Take("a")
	s.Take("a")
	if s.InFlight("a") != 2 || s.Capacity(t0) != 0 {
		t.Error("not in flight, or a target")
	}
	s.Done("a")
	s.Update([]Target{{ID: "a", Slots: 2}})
	s.Take("a")
	if _, ok := s.Pick(Ask{}, t0); ok || s.InFlight("a") != 2 {
		t.Error("its slots are not taken")
	}
	s.Done("a")
	s.Done("a")
	if s.InFlight("a") != 0 || len(s.gone) != 0 {
		t.Error("not given back")
	}
}
