package forecast

import (
	"cmp"
	"container/heap"
	"math"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// History records when functions were used. It is not safe for concurrent use.
type History struct {
	max       int // most functions kept; further ones are not learned
	functions map[functions.Name]*functionUsage
	recent    [maxRecent]*functionUsage // functions used last, newest first; the leaders of new followers
	fresh     []*functionUsage          // functions to plan in the next Ahead
	due       startHeap
	points    []point
}

type functionUsage struct {
	name  functions.Name
	idle  idleTimes
	daily daily

	begin, end time.Time // of the last use; end is zero while in use
	using      bool
	gapUnknown bool // the present idle time was not observed from its begin

	uses   float64 // decayed as of usedAt
	usedAt time.Time

	starts     uint16 // uses for which followers were counted
	followedBy [maxFollowers]follower

	hint      time.Time // predicted use, after a function that this one usually follows
	hintShare float64   // share of that function's uses that it followed
	useCount  uint32    // number of uses; a plannedStart belongs to one of them
	queued    bool      // it is in fresh
}

const (
	manyFunctions = 20_000
	usesDecay     = 3 * time.Hour // time constant of the decay of uses
	maxSaveGap    = 5 * time.Minute
)

func New() *History {
	return &History{max: manyFunctions, functions: map[functions.Name]*functionUsage{}, points: make([]point, 0, 128)}
}

func (h *History) Len() int { return len(h.functions) }

func (h *History) Forget(name functions.Name) {
	p := h.functions[name]
	if p == nil {
		return
	}
	delete(h.functions, name)
	p.useCount++
	for i := range h.recent {
		if h.recent[i] == p {
			h.recent[i] = nil
		}
	}
	for _, q := range h.functions {
		for i := range q.followedBy {
			if q.followedBy[i].who == p {
				q.followedBy[i] = follower{}
			}
		}
	}
}

// Begin records that a use of an idle function begins at at. It has no effect on a
// function in use.
func (h *History) Begin(name functions.Name, at time.Time) {
	p := h.functions[name]
	if p == nil {
		if len(h.functions) >= h.max {
			return
		}
		p = &functionUsage{name: name}
		h.functions[name] = p
	}
	if p.using {
		return
	}
	if !p.end.IsZero() && !p.gapUnknown {
		if gap := at.Sub(p.end); gap >= 0 { // no sample if the clock was set back
			p.idle.add(gap)
		}
	}
	p.useCount++
	p.using, p.gapUnknown, p.begin, p.end, p.hint = true, false, at, time.Time{}, time.Time{}
	p.uses = p.usesAt(at) + 1
	p.usedAt = at
	if p.daily.record(at) && p.idle.total >= fadesFrom {
		p.idle.halve()
	}
	h.learnFollowers(p, at)
}

// End records that the last request of a function ended at at.
func (h *History) End(name functions.Name, at time.Time) {
	p := h.functions[name]
	if p == nil || !p.using {
		return
	}
	p.using, p.end = false, at
	if at.Before(p.begin) {
		p.end = p.begin
	}
	h.queueForPlan(p)
}

// queueForPlan makes the next Ahead plan p.
func (h *History) queueForPlan(p *functionUsage) {
	if !p.queued {
		p.queued = true
		h.fresh = append(h.fresh, p)
	}
}

func (u *functionUsage) usesAt(now time.Time) float64 {
	if u.uses == 0 {
		return 0
	}
	return u.uses * math.Exp(-max(0, now.Sub(u.usedAt).Seconds())/usesDecay.Seconds())
}

// Uses is the decayed number of uses of a function: after three hours a use counts a
// third.
func (h *History) Uses(name functions.Name, now time.Time) float64 {
	if p := h.functions[name]; p != nil {
		return p.usesAt(now)
	}
	return 0
}

// NextUse predicts the next use of a function: now plus its price, see the package
// comment. sure is the weight of the function's own history in it, from 0 to 1. at is
// the zero time for a function never used, and now for one in use.
func (h *History) NextUse(name functions.Name, now time.Time) (at time.Time, sure float64) {
	p := h.functions[name]
	switch {
	case p == nil || p.begin.IsZero():
		return time.Time{}, 0
	case p.using:
		return now, 1
	}
	wait, sure := p.idle.price(now.Sub(p.end))
	if next, share, ok := p.daily.next(now); ok {
		if w := time.Duration(float64(max(next.Sub(now), 0)+quarterHour/2) / share); w < wait {
			wait, sure = w, share
		}
	}
	if !p.hint.IsZero() && now.Before(p.hint.Add(hintLasts)) {
		if w := max(time.Duration(float64(p.hint.Sub(now))/p.hintShare), minPrice); w < wait {
			wait, sure = w, p.hintShare
		}
	}
	return now.Add(wait), sure
}

// minIdleTimes is the number of idle times needed for predictions; with fewer the
// standard keep-alive applies.
const minIdleTimes = 2

// KeepFor is how long keeping a function idle after a use is worth it; false if its
// history is too short.
func (h *History) KeepFor(name functions.Name, w Worth) (time.Duration, bool) {
	p := h.functions[name]
	if p == nil || p.idle.total < minIdleTimes {
		return 0, false
	}
	return p.idle.windows(w, h.points)[0].To, true
}

// Foreseen is a predicted use.
type Foreseen struct {
	Name  functions.Name
	Until time.Time // end of the window in which holding is worth it
	Why   string    // rhythm, daily or follows
}

// Ahead yields every function that must be started now to be READY for its next use,
// once per predicted use, and returns the latest time of the next call: zero if
// nothing is predicted. worth returns the Worth of a function; false: never ahead.
func (h *History) Ahead(now time.Time, worth func(functions.Name) (Worth, bool), yield func(Foreseen)) time.Time {
	for _, p := range h.fresh {
		p.queued = false
		if h.functions[p.name] == p && !p.using {
			h.plan(p, now, worth)
		}
	}
	clear(h.fresh)
	h.fresh = h.fresh[:0]
	for len(h.due) > 0 && !h.due[0].at.After(now) {
		d := heap.Pop(&h.due).(plannedStart)
		p := d.of
		if d.life != p.useCount || p.using {
			continue
		}
		if d.until.After(now) {
			yield(Foreseen{Name: p.name, Until: d.until, Why: d.why})
		}
		if d.why != "follows" {
			h.plan(p, now.Add(time.Millisecond), worth)
		}
	}
	if len(h.due) == 0 {
		return time.Time{}
	}
	return h.due[0].at
}

// plan adds the next start ahead of p to due.
func (h *History) plan(p *functionUsage, now time.Time, worth func(functions.Name) (Worth, bool)) {
	w, ok := worth(p.name)
	if !ok || p.end.IsZero() {
		return
	}
	w.Ahead = true
	if !p.hint.IsZero() && p.hint.Add(hintLasts).After(now) {
		at := p.hint.Add(-w.Start)
		if at.Before(now) {
			at = now
		}
		heap.Push(&h.due, plannedStart{at: at, until: p.hint.Add(hintLasts), why: "follows", of: p, life: p.useCount})
		p.hint = time.Time{}
	}
	var first plannedStart
	if p.idle.total >= minIdleTimes {
		age := now.Sub(p.end)
		for _, x := range p.idle.windows(w, h.points) {
			if x.From > 0 && x.From > age {
				first = plannedStart{at: p.end.Add(x.From), until: p.end.Add(x.To), why: "rhythm"}
				break
			}
		}
	}
	if next, _, ok := p.daily.next(now.Add(w.Start)); ok {
		if at := next.Add(-w.Start); at.After(now) && (first.at.IsZero() || at.Before(first.at)) {
			first = plannedStart{at: at, until: next.Add(quarterHour), why: "daily"}
		}
	}
	if !first.at.IsZero() {
		first.of, first.life = p, p.useCount
		heap.Push(&h.due, first)
	}
}

// plannedStart is a start ahead of a predicted use.
type plannedStart struct {
	at, until time.Time
	why       string
	of        *functionUsage
	life      uint32
}

type startHeap []plannedStart

func (s startHeap) Len() int           { return len(s) }
func (s startHeap) Less(i, j int) bool { return s[i].before(s[j]) }
func (s startHeap) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *startHeap) Push(x any)        { *s = append(*s, x.(plannedStart)) }

func (s *startHeap) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// before orders equal times by name, so that every run has the same order.
func (s plannedStart) before(b plannedStart) bool {
	return cmp.Or(s.at.Compare(b.at), s.of.name.Compare(b.of.name), strings.Compare(s.why, b.why)) < 0
}
