package forecast

import (
	"cmp"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Habit is a function that is usually used soon after another.
type Habit struct {
	Name  functions.Name
	Share float64       // of the leader's uses, at least a half
	Lag   time.Duration // from begin to begin, moving average
}

// Follows returns the habits of a function, four at most, the most frequent first.
func (h *History) Follows(name functions.Name) []Habit {
	p := h.functions[name]
	if p == nil {
		return nil
	}
	var out []Habit
	for i := range p.followedBy {
		if f := &p.followedBy[i]; p.share(f) > 0 {
			out = append(out, Habit{Name: f.who.name, Share: p.share(f), Lag: f.lag})
		}
	}
	slices.SortStableFunc(out, func(a, b Habit) int { return cmp.Compare(b.Share, a.Share) })
	return out
}

// Windows returns the parts of an idle time in which keeping a function READY is worth
// it, eight at most; the first begins at 0 and may be empty. nil if its history is too
// short.
func (h *History) Windows(name functions.Name, w Worth) []Window {
	p := h.functions[name]
	if p == nil || p.idle.total < minIdleTimes {
		return nil
	}
	return p.idle.windows(w, h.points)
}
