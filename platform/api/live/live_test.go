package live

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// source is a list that tests change. A read of it takes cost.
type source struct {
	items []Item
	reads int
	cost  time.Duration
}

func (s *source) read() []Item {
	s.reads++
	time.Sleep(s.cost) // in a bubble
	return slices.Clone(s.items)
}

func item(key, value string) Item { return Item{Key: key, JSON: fmt.Appendf(nil, `{"v":%q}`, value)} }

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{items: []Item{item("a", "1"), item("", "event")}}
		l := New("things", s.read, time.Now)
		one, two := l.Watch(), l.Watch()
		whole := `{"list":"things","event":"reset"}
{"list":"things","event":"put","item":{"v":"1"}}
{"list":"things","event":"put","item":{"v":"event"}}
{"list":"things","event":"synced"}
`
		if got := string(one.Append(nil)); got != whole {
			t.Errorf("got %s", got)
		}
		if got := string(two.Append([]byte("x"))); got != "x"+whole {
			t.Errorf("got %s", got)
		}
		if s.reads != 1 {
			t.Errorf("two watchers read the list %d times", s.reads)
		}
		s.items = []Item{item("a", "2"), item("b", "1")}
		if got := one.Append(nil); got != nil {
			t.Errorf("before the gap is over: %s", got)
		}
		time.Sleep(leastGap)
		want := `{"list":"things","event":"put","item":{"v":"2"}}
{"list":"things","event":"put","item":{"v":"1"}}
`
		for _, w := range []*Watcher{one, two} { // the event that is gone has not been undone
			if got := string(w.Append(nil)); got != want {
				t.Errorf("got %s", got)
			}
		}
		s.items = s.items[1:]
		time.Sleep(leastGap)
		if got := string(one.Append(nil)); got != `{"list":"things","event":"removed","name":"a"}`+"\n" {
			t.Errorf("got %s", got)
		}
		if s.reads != 3 {
			t.Errorf("%d reads", s.reads)
		}
		one.Close()
		one.Close()
		two.Close()
		if l.watchers != 0 || l.known != nil || l.lines != nil {
			t.Errorf("kept without watchers: %+v", l)
		}
		// A later watcher begins anew, with what there is then.
		s.items = []Item{item("c", "1")}
		three := l.Watch()
		defer three.Close()
		if got := string(three.Append(nil)); strings.Count(got, "\n") != 3 || !strings.Contains(got, `"v":"1"`) {
			t.Errorf("got %s", got)
		}
		s.items = nil
		time.Sleep(leastGap)
		if got := string(three.Append(nil)); got != `{"list":"things","event":"removed","name":"c"}`+"\n" {
			t.Errorf("got %s", got)
		}
	})
}

// TestSlow: a watcher that is too far behind gets the list once more, and the list keeps no
// more lines for it.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{items: []Item{item("a", "0")}}
		l := New("things", s.read, time.Now)
		quick, slow := l.Watch(), l.Watch()
		defer quick.Close()
		defer slow.Close()
		quick.Append(nil)
		slow.Append(nil)
		for i := range keptLines + 1 {
			s.items = []Item{item("a", fmt.Sprint(i+1))}
			time.Sleep(leastGap)
			if got := string(quick.Append(nil)); strings.Count(got, "\n") != 1 || !strings.Contains(got, fmt.Sprintf("%q", fmt.Sprint(i+1))) {
				t.Fatalf("%d: %s", i, got)
			}
			if i == keptLines-1 && len(l.lines) != keptLines {
				t.Errorf("%d lines", len(l.lines))
			}
		}
		if got := string(slow.Append(nil)); strings.Count(got, "\n") != 3 || !strings.Contains(got, "reset") {
			t.Errorf("got %s", got)
		}
		if len(l.lines) != keptLines {
			t.Errorf("%d lines are kept", len(l.lines))
		}
	})
}

// TestCost: a list that takes long to read is read more seldom.
func TestCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{items: []Item{item("a", "0")}, cost: 40 * time.Millisecond}
		w := New("things", s.read, time.Now).Watch()
		defer w.Close()
		for range 100 {
			w.Append(nil)
			time.Sleep(leastGap)
		}
		if s.reads < 8 || s.reads > 11 {
			t.Errorf("read %d times in 10 s", s.reads)
		}
	})
}
