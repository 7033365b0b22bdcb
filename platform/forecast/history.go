package forecast

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Options of a History.
type Options struct {
	Max int // functions remembered; 0: 20,000. Those that come after are not learned
}

// History is what is known of the past of functions. It has one owner.
type History struct {
	max       int
	functions map[functions.Name]*functionUsage
	recent    [maxRecent]*functionUsage // used last, newest first; what follows what is read from it
	fresh     []*functionUsage          // idle since the last look ahead
	due       startHeap
	points    []point
}

// functionUsage of one function.
type functionUsage struct {
	name  functions.Name
	idle  idleTimes
	daily daily

	begin, end time.Time // of the last use; end is zero where it is still in use
	using      bool
	gapUnknown bool // the present idle time was not watched from its begin to its end

	uses   float64 // decayed to usedAt
	usedAt time.Time

	starts     uint16 // uses that followers were counted in
	followedBy [maxFollowers]follower

	hint      time.Time // something else was used that this one usually follows: then
	hintShare float64   // the share in which it did
	useCount  uint32    // counts uses: what is due belongs to one
	queued    bool      // in fresh
}

const (
	manyFunctions = 20_000
	usesDecay     = 3 * time.Hour // the time constant with which uses of long ago count less
	maxSaveGap    = 5 * time.Minute
)

// New returns a history of nothing.
func New(o Options) *History {
	return &History{max: cmp.Or(max(o.Max, 0), manyFunctions), functions: map[functions.Name]*functionUsage{}, points: make([]point, 0, 128)}
}

// Len is how many functions are known.
func (h *History) Len() int { return len(h.functions) }

// Forget drops a function that is gone.
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
		q.followedBy = dropFollower(q.followedBy, p)
	}
}

// Begin says that a function that was idle is used from at on. One in use
// already changes nothing.
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
		if gap := at.Sub(p.end); gap >= 0 { // a clock that was set back teaches nothing
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

// End says that the last request of a function has ended at at.
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

// queueForPlan has Ahead think about p.
func (h *History) queueForPlan(p *functionUsage) {
	if !p.queued {
		p.queued = true
		h.fresh = append(h.fresh, p)
	}
}

func (p *functionUsage) usesAt(now time.Time) float64 {
	if p.uses == 0 {
		return 0
	}
	return p.uses * math.Exp(-max(0, now.Sub(p.usedAt).Seconds())/usesDecay.Seconds())
}

// Uses is how often a function was used; what is three hours older counts for a
// third.
func (h *History) Uses(name functions.Name, now time.Time) float64 {
	if p := h.functions[name]; p != nil {
		return p.usesAt(now)
	}
	return 0
}

// NextUse is when a function is likely to be used next: now plus the price of
// waiting for it, see the package's story. sure is how much of that is the
// function's own history, from 0 to 1. It is the zero time for one never used,
// and now for one in use.
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

// minIdleTimes idle times to be known by them; with fewer the standard holds.
const minIdleTimes = 2

// KeepFor is how long a function is worth being held idle after a use; false
// where too little is known of it.
func (h *History) KeepFor(name functions.Name, w Worth) (time.Duration, bool) {
	p := h.functions[name]
	if p == nil || p.idle.total < minIdleTimes {
		return 0, false
	}
	return p.idle.windows(w, h.points)[0].To, true
}

// Windows are the stretches of an idle time in which a function is worth being
// held, eight at most; the first begins at 0 and may be empty. None where too
// little is known of it.
func (h *History) Windows(name functions.Name, w Worth) []Window {
	p := h.functions[name]
	if p == nil || p.idle.total < minIdleTimes {
		return nil
	}
	return p.idle.windows(w, h.points)
}

// Foreseen is a use that is expected.
type Foreseen struct {
	Name  functions.Name
	Until time.Time // worth being held until then
	Why   string    // rhythm, daily or follows
}

// Ahead calls yield for every function that should be started now to be ready
// for its next use, once each, and returns when it wants to be asked again at
// the latest: the zero time where nothing is foreseen. worth tells what holding
// a function is worth; false: never ahead.
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
		d := h.due.pop()
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

// plan puts the next start ahead of p on the list.
func (h *History) plan(p *functionUsage, now time.Time, worth func(functions.Name) (Worth, bool)) {
	w, ok := worth(p.name)
	if !ok || p.end.IsZero() {
		return
	}
	w.Ahead = true
	if !p.hint.IsZero() && p.hint.Add(hintLasts).After(now) {
		h.due.push(plannedStart{at: laterTime(p.hint.Add(-w.Start), now), until: p.hint.Add(hintLasts), why: "follows", of: p, life: p.useCount})
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
		h.due.push(first)
	}
}

func laterTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// plannedStart is a start ahead.
type plannedStart struct {
	at, until time.Time
	why       string
	of        *functionUsage
	life      uint32
}

// startHeap are a heap, the earliest first.
type startHeap []plannedStart

func (d *startHeap) push(x plannedStart) {
	*d = append(*d, x)
	h := *d
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (d *startHeap) pop() plannedStart {
	h := *d
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = plannedStart{}
	h = h[:last]
	*d = h
	for i := 0; ; {
		down := 2*i + 1
		if down+1 < last && h[down+1].before(h[down]) {
			down++
		}
		if down >= last || !h[down].before(h[i]) {
			return top
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}

// before has the same order for the same times in every run.
func (a plannedStart) before(b plannedStart) bool {
	if c := a.at.Compare(b.at); c != 0 {
		return c < 0
	}
	return slices.Compare([]string{a.of.name.Team, a.of.name.Name, a.why}, []string{b.of.name.Team, b.of.name.Name, b.why}) < 0
}
