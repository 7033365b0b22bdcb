package coldstart

import (
	"fmt"

	"github.com/thaw-dev/thaw/bench/report"
)

// A phase is worse if its median grew by more than both bounds, and all but the quickest
// quarter of the new rounds are slower than the old median: a single slow round does not
// count.
const (
	worseShare   = 0.20
	worseSeconds = 0.005
)

// Regression is a phase that became slower.
type Regression struct {
	Phase    string  `json:"phase"`
	Was, Now float64 // median seconds
}

func (r Regression) String() string {
	return fmt.Sprintf("%s got worse: %s, was %s (median)", r.Phase, report.Millis(r.Now), report.Millis(r.Was))
}

// Compare returns the phases of now that are worse than in was. Phases missing in was
// are skipped.
func Compare(was, now Result) []Regression {
	var out []Regression
	old := map[string]report.Summary{}
	for _, r := range was.Phases {
		old[r.Phase] = r.Seconds
	}
	for _, r := range now.Phases {
		o, ok := old[r.Phase]
		n := r.Seconds
		if ok && n.P50 > o.P50*(1+worseShare) && n.P50 > o.P50+worseSeconds && n.P25 > o.P50 {
			out = append(out, Regression{Phase: r.Phase, Was: o.P50, Now: n.P50})
		}
	}
	return out
}
