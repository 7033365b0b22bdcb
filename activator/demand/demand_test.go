package demand

import (
	"slices"
	"testing"
)

// TestChanges: a reader that stops gets the rest with the next call, and what changed meanwhile.
func TestChanges(t *testing.T) {
	notes := 0
	c := Changes[string]{Notify: func() { notes++ }}
	for _, f := range []string{"a", "b", "c"} {
		c.Add(f)
	}
	var got []string
	if c.Each(func(f string) bool { got = append(got, f); c.Add(f + "2"); return f != "b" }) {
		t.Error("it was stopped")
	}
	if !c.Each(func(f string) bool { got = append(got, f); return true }) || !slices.Equal(got, []string{"a", "b", "a2", "b2", "c"}) {
		t.Error(got)
	}
	if c.Each(func(string) bool { t.Error("none is left"); return true }); notes != 2 {
		t.Errorf("%d notes", notes)
	}
}
