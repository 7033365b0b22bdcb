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
	max    int
	all    map[functions.Name]*past
	recent [recents]*past // used last, newest first; what follows what is read from it
	fresh  []*past        // idle since the last look ahead
	due    dues
	points []point
}

// past of one function.
type past struct {
	name functions.Name
	idle times
	days daily

	begin, end time.Time // of the last use; end is zero where it is still in use
	using      bool
	torn       bool // the present idle time was not watched from its begin to its end

	uses   float64 // decayed to usedAt
	usedAt time.Time

	starts uint16 // uses that followers were counted in
	after  [followers]follower

	hint  time.Time // something else was used that this one usually follows: then
	sure  float64   // the share in which it did
	life  uint32    // counts uses: what is due belongs to one
	queue bool      // in fresh
}

const (
	manyFunctions = 20_000
	fades         = 3 * time.Hour // the time constant with which uses of long ago count less
	longGap       = 5 * time.Minute
)

// New returns a history of nothing.
func New(o Options) *History {
	return &History{max: cmp.Or(max(o.Max, 0), manyFunctions), all: map[functions.Name]*past{}, points: make([]point, 0, 128)}
}

// Len is how many functions are known.
func (h *History) Len() int { return len(h.all) }

// Forget drops a function that is gone.
func (h *History) Forget(name functions.Name) {
	p := h.all[name]
	if p == nil {
		return
	}
	delete(h.all, name)
	p.life++
	for i := range h.recent {
		if h.recent[i] == p {
			h.recent[i] = nil
		}
	}
	for _, q := range h.all {
		q.after = drop(q.after, p)
	}
}

// Begin says that a function that was idle is used from at on. One in use
// already changes nothing.
func (h *History) Begin(name functions.Name, at time.Time) {
	p := h.all[name]
	if p == nil {
		if len(h.all) >= h.max {
			return
		}
		p = &past{name: name}
		h.all[name] = p
	}
	if p.using {
		return
	}
	if !p.end.IsZero() && !p.torn {
		if gap := at.Sub(p.end); gap >= 0 { // a clock that was set back teaches nothing
			p.idle.add(gap)
		}
	}
	p.life++
	p.using, p.torn, p.begin, p.end, p.hint = true, false, at, time.Time{}, time.Time{}
	p.uses = p.usesAt(at) + 1
	p.usedAt = at
	if p.days.note(at) && p.idle.total >= fadesFrom {
		p.idle.halve()
	}
	h.follow(p, at)
}

// End says that the last request of a function has ended at at.
func (h *History) End(name functions.Name, at time.Time) {
	p := h.all[name]
	if p == nil || !p.using {
		return
	}
	p.using, p.end = false, at
	if at.Before(p.begin) {
		p.end = p.begin
	}
	h.look(p)
}

// look has Ahead think about p.
func (h *History) look(p *past) {
	if !p.queue {
		p.queue = true
		h.fresh = append(h.fresh, p)
	}
}

func (p *past) usesAt(now time.Time) float64 {
	if p.uses == 0 {
		return 0
	}
	return p.uses * math.Exp(-max(0, now.Sub(p.usedAt).Seconds())/fades.Seconds())
}

// Uses is how often a function was used; what is three hours older counts for a
// third.
func (h *History) Uses(name functions.Name, now time.Time) float64 {
	if p := h.all[name]; p != nil {
		return p.usesAt(now)
	}
	return 0
}

// NextUse is when a function is likely to be used next: now plus the price of
// waiting for it, see the package's story. sure is how much of that is the
// function's own history, from 0 to 1. It is the zero time for one never used,
// and now for one in use.
func (h *History) NextUse(name functions.Name, now time.Time) (at time.Time, sure float64) {
	p := h.all[name]
	switch {
	case p == nil || p.begin.IsZero():
		return time.Time{}, 0
	case p.using:
		return now, 1
	}
	wait, sure := p.idle.price(now.Sub(p.end))
	if next, share, ok := p.days.next(now); ok {
		if w := time.Duration(float64(max(next.Sub(now), 0)+slot/2) / share); w < wait {
			wait, sure = w, share
		}
	}
	if !p.hint.IsZero() && now.Before(p.hint.Add(hintFor)) {
		if w := max(time.Duration(float64(p.hint.Sub(now))/p.sure), soonest); w < wait {
			wait, sure = w, p.sure
		}
	}
	return now.Add(wait), sure
}

// enough idle times to be known by them; with fewer the standard holds.
const enough = 2

// KeepFor is how long a function is worth being held idle after a use; false
// where too little is known of it.
func (h *History) KeepFor(name functions.Name, w Worth) (time.Duration, bool) {
	p := h.all[name]
	if p == nil || p.idle.total < enough {
		return 0, false
	}
	return p.idle.windows(w, h.points)[0].To, true
}

// Windows are the stretches of an idle time in which a function is worth being
// held, eight at most; the first begins at 0 and may be empty. None where too
// little is known of it.
func (h *History) Windows(name functions.Name, w Worth) []Window {
	p := h.all[name]
	if p == nil || p.idle.total < enough {
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
		p.queue = false
		if h.all[p.name] == p && !p.using {
			h.plan(p, now, worth)
		}
	}
	clear(h.fresh)
	h.fresh = h.fresh[:0]
	for len(h.due) > 0 && !h.due[0].at.After(now) {
		d := h.due.pop()
		p := d.of
		if d.life != p.life || p.using {
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
func (h *History) plan(p *past, now time.Time, worth func(functions.Name) (Worth, bool)) {
	w, ok := worth(p.name)
	if !ok || p.end.IsZero() {
		return
	}
	w.Ahead = true
	if !p.hint.IsZero() && p.hint.Add(hintFor).After(now) {
		h.due.push(due{at: later(p.hint.Add(-w.Start), now), until: p.hint.Add(hintFor), why: "follows", of: p, life: p.life})
		p.hint = time.Time{}
	}
	var first due
	if p.idle.total >= enough {
		age := now.Sub(p.end)
		for _, x := range p.idle.windows(w, h.points) {
			if x.From > 0 && x.From > age {
				first = due{at: p.end.Add(x.From), until: p.end.Add(x.To), why: "rhythm"}
				break
			}
		}
	}
	if next, _, ok := p.days.next(now.Add(w.Start)); ok {
		if at := next.Add(-w.Start); at.After(now) && (first.at.IsZero() || at.Before(first.at)) {
			first = due{at: at, until: next.Add(slot), why: "daily"}
		}
	}
	if !first.at.IsZero() {
		first.of, first.life = p, p.life
		h.due.push(first)
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// due is a start ahead.
type due struct {
	at, until time.Time
	why       string
	of        *past
	life      uint32
}

// dues are a heap, the earliest first.
type dues []due

func (d *dues) push(x due) {
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

func (d *dues) pop() due {
	h := *d
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = due{}
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
func (a due) before(b due) bool {
	if c := a.at.Compare(b.at); c != 0 {
		return c < 0
	}
	return slices.Compare([]string{a.of.name.Team, a.of.name.Name, a.why}, []string{b.of.name.Team, b.of.name.Name, b.why}) < 0
}
