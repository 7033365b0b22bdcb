package explain

import (
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestLogIsBounded: the oldest records are overwritten, and a record keeps the best rows.
func TestLogIsBounded(t *testing.T) {
	l := NewLog()
	var names []functions.Name
	for i := range 3 * keepDecisions {
		n := functions.Name{Team: "t", Name: string(rune('a'+i%26)) + time.Duration(i).String()}
		names = append(names, n)
		r := l.Begin(1, n, Place, "demand")
		for j := range 20 {
			r.Add(Row{Score: float64((j * 7) % 20), Names: &[4]string{"loss"}})
		}
		scores := []float64{}
		for _, row := range r.rows[:r.n] {
			scores = append(scores, row.Score)
		}
		if slices.Sort(scores); r.seen != 20 || scores[7] != 7 {
			t.Fatalf("the best of 20 are %v", scores)
		}
	}
	if len(l.records) != keepDecisions || len(l.order) != keepDecisions || l.records[key{names[0], Place}] != nil ||
		l.records[key{names[len(names)-1], Place}] == nil {
		t.Errorf("%d records are kept", len(l.records))
	}
}
