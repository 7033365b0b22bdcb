package records

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestFind: a record is found by the request's id before the client's own, the newest first,
// and only by its team.
func TestFind(t *testing.T) {
	var l Log[string]
	for _, r := range [][3]string{
		{"a", "1", "mine"},
		{"a", "2", "mine"},
		{"b", "3", "mine"}, // another team took the same id
		{"a", "4", "2"},    // a client took another request's
		{"a", "5", ""},
	} {
		l.Put(nil, 10, r[0], r[1], r[2], "record "+r[1])
	}
	for _, tc := range []struct{ team, id, want string }{
		{"a", "1", "record 1"},
		{"a", "mine", "record 2"},
		{"b", "mine", "record 3"},
		{"", "mine", "record 3"},
		{"a", "2", "record 2"},
		{"a", "3", ""},
		{"b", "1", ""},
		{"", "5", "record 5"},
		{"", "6", ""},
		{"c", "1", ""},
		{"", "", ""}, // no client's own id
	} {
		t.Run(tc.team+"/"+tc.id, func(t *testing.T) {
			if got, ok := l.Find(tc.team, tc.id, nil); got != tc.want || ok != (tc.want != "") {
				t.Errorf("%q, %t", got, ok)
			}
		})
	}
}

// TestNewest: the newest records are kept, and listed for one team or for all.
func TestNewest(t *testing.T) {
	var l Log[int]
	if got := l.Newest("", 5); got == nil || len(got) > 0 {
		t.Errorf("%#v of an empty log: it is no list in JSON", got)
	}
	for i := range 9 {
		l.Put(nil, 6, []string{"a", "b"}[i%2], fmt.Sprint(i), "", i)
	}
	for _, tc := range []struct {
		team  string
		limit int
		want  []int
	}{
		{"", 10, []int{8, 7, 6, 5, 4, 3}},
		{"", 2, []int{8, 7}},
		{"a", 10, []int{8, 6, 4}},
		{"b", 2, []int{7, 5}},
		{"b", 0, nil},
		{"c", 10, nil},
	} {
		if got := l.Newest(tc.team, tc.limit); !slices.Equal(got, tc.want) {
			t.Errorf("%d of team %q: %v, want %v", tc.limit, tc.team, got, tc.want)
		}
	}
	if _, ok := l.Find("", "2", nil); ok {
		t.Error("a record beyond the maximum was kept")
	}
}

// TestReplace: a request has one record, which its entry changes, also when newer ones have
// taken its place in the log.
func TestReplace(t *testing.T) {
	var l Log[string]
	at := l.Put(nil, 2, "a", "1", "", "begun")
	l.Put(nil, 2, "a", "2", "", "other")
	if again := l.Put(at, 2, "b", "9", "", "ended"); again != at {
		t.Error("another entry for the same request")
	}
	if got := l.Newest("a", 9); !slices.Equal(got, []string{"other", "ended"}) {
		t.Errorf("%q", got)
	}
	l.Change(at, func(r *string) { *r = strings.ToUpper(*r) })
	got, ok := l.Find("", "1", func(r *string, team string) { *r += " of " + team })
	if again, _ := l.Find("", "1", nil); !ok || got != "ENDED of a" || again != got {
		t.Errorf("%q, then %q", got, again)
	}
	l.Put(nil, 2, "a", "3", "", "new")
	l.Put(at, 2, "a", "1", "", "late")
	if got := l.Newest("", 9); !slices.Equal(got, []string{"new", "other"}) {
		t.Errorf("a record that was dropped is back: %q", got)
	}
	if _, ok := l.Find("", "1", nil); ok || at.Record != "late" {
		t.Errorf("found %t, and its entry has %q", ok, at.Record)
	}
}

// TestConcurrent: every request's changes are in its record, whatever others read meanwhile.
func TestConcurrent(t *testing.T) {
	const requests, changes = 8, 200
	type record struct{ first, second int }
	var l Log[record]
	var wg sync.WaitGroup
	entries := make([]*Entry[record], requests)
	for i := range requests {
		wg.Go(func() {
			entries[i] = l.Put(nil, requests, "a", fmt.Sprint(i), "", record{})
			for range changes {
				l.Change(entries[i], func(r *record) { r.first++; r.second++ })
			}
		})
		wg.Go(func() {
			for range changes {
				all := l.Newest("a", requests)
				if r, ok := l.Find("", fmt.Sprint(i), nil); ok {
					all = append(all, r)
				}
				for _, r := range all {
					if r.first != r.second {
						t.Errorf("half of a change was seen: %+v", r)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	for i, r := range l.Newest("", requests+1) {
		if r != (record{changes, changes}) {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	if n := len(l.Newest("", requests+1)); n != requests {
		t.Errorf("%d records", n)
	}
}
