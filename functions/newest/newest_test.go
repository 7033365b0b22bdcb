package newest

import (
	"fmt"
	"slices"
	"testing"
)

func TestRing(t *testing.T) {
	var r Ring[int]
	for v := range 5 {
		if old, full := r.Put(v, 3); full != (v >= 3) || full && old != v-3 {
			t.Errorf("%d replaces %d, %v", v, old, full)
		}
	}
	var got []int
	for v := range r.All {
		if got = append(got, v); v == 3 {
			break
		}
	}
	if !slices.Equal(got, []int{4, 3}) || !slices.Equal(slices.Collect(r.All), []int{4, 3, 2}) {
		t.Error(got, slices.Collect(r.All))
	}
}

func TestMap(t *testing.T) {
	m := Map[string, int]{Max: 3}
	for i, k := range []string{"b", "a", "b", "c", "d", "a"} {
		m.Put(k, i)
	}
	if got := fmt.Sprint(m.Entries()); got != "[{b 2} {a 5} {c 3}]" {
		t.Errorf("entries %s", got)
	}
	if got := m.Values(); !slices.Equal(got, []int{2, 5, 3}) {
		t.Errorf("values %v", got)
	}
	if v, ok := m.Get("a"); v != 5 || !ok {
		t.Errorf("a is %d, %v", v, ok)
	}
	if _, ok := m.Get("d"); ok {
		t.Error("a key beyond Max was kept")
	}
	m.Clear()
	if _, ok := m.Get("a"); ok || m.Len() != 0 || m.Values() != nil {
		t.Error("Clear left something")
	}
	m.Put("d", 1)
	if got := fmt.Sprint(m.Entries()); got != "[{d 1}]" {
		t.Errorf("after Clear: %s", got)
	}
}

func TestMapClearsLarge(t *testing.T) {
	m := Map[int, int]{Max: 2 * keepCapacity}
	for i := range 2 * keepCapacity {
		m.Put(i, i)
	}
	m.Clear()
	if m.Len() != 0 || cap(m.list) != 0 || m.Max != 2*keepCapacity {
		t.Errorf("len %d, capacity %d, max %d", m.Len(), cap(m.list), m.Max)
	}
}

func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Set()
	s.Set()
	<-s
	select {
	case <-s:
		t.Error("two Sets before a receive are two signals")
	default:
	}
}

func TestOffer(t *testing.T) {
	c := make(chan int, 1)
	Offer(c, 1)
	Offer(c, 2)
	if v := <-c; v != 2 || len(c) != 0 {
		t.Errorf("got %d, then %d more", v, len(c))
	}
}
