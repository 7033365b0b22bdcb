package demand

import (
	"slices"
	"testing"
)

// TestChanges: each change is yielded once, and those that come meanwhile with the next call.
func TestChanges(t *testing.T) {
	notes := 0
	c := Changes[string]{Notify: func() { notes++ }}
	for _, f := range []string{"a", "b", "c"} {
		c.Add(f)
	}
	var got []string
	c.Each(func(f string) { got = append(got, f); c.Add(f + "2") })
	c.Each(func(f string) { got = append(got, f) })
	if !slices.Equal(got, []string{"a", "b", "c", "a2", "b2", "c2"}) {
		t.Error(got)
	}
	if c.Each(func(string) { t.Error("none is left") }); notes != 2 {
		t.Errorf("%d notes", notes)
	}
}
