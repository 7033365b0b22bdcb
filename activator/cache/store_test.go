package cache

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

func modelOf(name string) *snapshot.Snapshot {
	m := &functions.Model{Metadata: functions.Metadata{Name: name, Namespace: "a"}}
	m.Spec.Source = "hf://x/" + name
	return &snapshot.Snapshot{Name: functions.Name{Team: "a", Name: name}, Model: m}
}

func textOf(t *testing.T, n int) *answer {
	t.Helper()
	a := newAnswer("/v1/embeddings", fmt.Appendf(nil, `{"id":"embd-1","data":"%s"}`, bytes.Repeat([]byte("x"), n)), false, openai.Usage{})
	if a == nil {
		t.Fatal("not kept")
	}
	return a
}

func keyNumber(n int) (k [32]byte) {
	k[0], k[1] = byte(n), byte(n>>8)
	return k
}

// TestLeastRecentlyUsed: the budget holds, and what was read last stays.
func TestLeastRecentlyUsed(t *testing.T) {
	one := textOf(t, 1000).size() + overhead
	s := NewStore(3*one+10, nil)
	f, now := s.function(modelOf("m")), time.Unix(0, 0)
	for i := range 3 {
		s.put(keyNumber(i), f, textOf(t, 1000), now, time.Hour)
	}
	s.get(keyNumber(0), now, time.Hour)
	s.put(keyNumber(3), f, textOf(t, 1000), now, time.Hour)
	for i, there := range []bool{true, false, true, true} {
		if a, _ := s.get(keyNumber(i), now, time.Hour); (a != nil) != there {
			t.Errorf("answer %d there: %v", i, a != nil)
		}
	}
	if s.used != 3*one || s.used > s.budget || s.evicted.Load() != 1 || len(f.entries) != 3 {
		t.Errorf("%d bytes used of %d, %d evicted, %d entries", s.used, s.budget, s.evicted.Load(), len(f.entries))
	}
	if s.put(keyNumber(9), f, textOf(t, int(4*one)), now, time.Hour); s.used != 3*one {
		t.Error("an answer larger than the budget made others leave")
	}
	s.put(keyNumber(0), f, textOf(t, 10), now, time.Hour)
	if s.used >= 3*one || len(s.byKey) != 3 {
		t.Errorf("replacing an answer left %d bytes, %d answers", s.used, len(s.byKey))
	}
}

func TestTimeToLive(t *testing.T) {
	s := NewStore(1<<20, nil)
	f, at := s.function(modelOf("m")), time.Unix(1000, 0)
	s.put(keyNumber(1), f, textOf(t, 1), at, time.Minute)
	for _, c := range []struct {
		after, ttl time.Duration
		age        time.Duration
		there      bool
	}{
		{0, time.Minute, 0, true},
		{-time.Second, time.Minute, 0, true}, // the clock went back
		{59 * time.Second, time.Minute, 59 * time.Second, true},
		{59 * time.Second, 30 * time.Second, 0, false}, // the file says less now
		{59 * time.Second, time.Hour, 59 * time.Second, true},
		{time.Minute, time.Hour, 0, false},
		{0, time.Minute, 0, false}, // it was dropped
	} {
		a, age := s.get(keyNumber(1), at.Add(c.after), c.ttl)
		if (a != nil) != c.there || age != c.age {
			t.Errorf("%+v: %v %v", c, a != nil, age)
		}
	}
	if s.used != 0 {
		t.Errorf("%d bytes left", s.used)
	}
}

// TestPurge: a changed file, a removal and a request of a person drop the answers of their
// function alone, also one that is under way.
func TestPurge(t *testing.T) {
	now := time.Unix(0, 0)
	for name, purge := range map[string]func(s *Store, m *snapshot.Snapshot){
		"purge": func(s *Store, m *snapshot.Snapshot) { s.Purge(m.Name) },
		"change": func(s *Store, m *snapshot.Snapshot) {
			c := modelOf("m")
			c.Model.Spec.Args = []string{"--x"}
			s.Publish(c)
		},
		"remote": func(s *Store, m *snapshot.Snapshot) {
			c := modelOf("m")
			c.Model, c.Remote = nil, functions.NewRemote()
			s.Publish(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStore(1<<20, nil)
			m, other := modelOf("m"), modelOf("other")
			f, g := s.function(m), s.function(other)
			s.put(keyNumber(1), f, textOf(t, 1), now, time.Hour)
			s.put(keyNumber(2), g, textOf(t, 1), now, time.Hour)
			s.Publish(modelOf("m")) // the same file read again
			if a, _ := s.get(keyNumber(1), now, time.Hour); a == nil {
				t.Fatal("an unchanged file dropped its answers")
			}
			purge(s, m)
			s.put(keyNumber(3), f, textOf(t, 1), now, time.Hour)
			for i, there := range map[int]bool{1: false, 2: true, 3: false} {
				if a, _ := s.get(keyNumber(i), now, time.Hour); (a != nil) != there {
					t.Errorf("answer %d there: %v", i, a != nil)
				}
			}
		})
	}
	var none *Store
	none.Publish(modelOf("m"))
	if none.Purge(functions.Name{}) != 0 || NewStore(0, nil) != nil {
		t.Error("a store of no bytes holds something")
	}
}

func TestConcurrentUse(t *testing.T) {
	s := NewStore(20_000, nil)
	now := time.Unix(0, 0)
	answers := make([]*answer, 8)
	for i := range answers {
		answers[i] = textOf(t, 100*i)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				f := s.function(modelOf("m"))
				s.put(keyNumber((i*w)%40), f, answers[i%8], now, time.Hour)
				if a, _ := s.get(keyNumber(i%40), now, time.Hour); a != nil {
					a.in(true, false)
				}
				if i%100 == w {
					s.Purge(functions.Name{Team: "a", Name: "m"})
				}
				s.Samples(func(string, float64, ...string) {})
			}
		})
	}
	wg.Wait()
	var sum int64
	for _, e := range s.byKey {
		sum += e.size
	}
	if sum != s.used || s.used > s.budget {
		t.Errorf("%d bytes used, entries have %d", s.used, sum)
	}
	s.Purge(functions.Name{Team: "a", Name: "m"})
	if s.used != 0 || s.list.Len() != 0 {
		t.Errorf("%d bytes left", s.used)
	}
}
