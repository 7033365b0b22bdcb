package adapteruse

import (
	"fmt"
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	var table Table
	for _, c := range []struct {
		replica, adapter string
		after            time.Duration
		due              bool
	}{
		{"r1", "a", 0, true},
		{"r1", "a", Interval - 1, false},
		{"r1", "b", Interval - 1, true}, // each adapter by itself
		{"r2", "a", Interval - 1, true}, // at each replica
		{"r1", "a", Interval, true},
		{"r1", "a", 2*Interval - 1, false}, // counted from the report, not from the use between
		{"r1", "b", 2*Interval - 1, true},
	} {
		if due := table.Due(c.replica, c.adapter, began.Add(c.after)); due != c.due {
			t.Errorf("%s at %s after %v: due %t, want %t", c.adapter, c.replica, c.after, due, c.due)
		}
	}
}

// TestTableIsBounded: many adapters do not make the table grow; one dropped is reported again.
func TestTableIsBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var table Table
	for i := range 3 * maxUses {
		if !table.Due("r", fmt.Sprint(i), now) {
			t.Fatalf("the first use of adapter %d is not due", i)
		}
		if len(table.at) > maxUses {
			t.Fatalf("%d entries", len(table.at))
		}
	}
	if !table.Due("r", "0", now) {
		t.Error("a dropped use is not reported again")
	}
}
