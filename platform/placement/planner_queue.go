package placement

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
)

// memoTTL bounds how long a blocked function is assumed to stay blocked. Changes that
// may unblock it end that at once; this bound covers missed ones.
const memoTTL = 5 * time.Second

// equivalenceClass holds every property of a function that decides whether there is
// room for it. Functions of one class are tried in order of need; if one is blocked,
// so are those behind it, untried, until a change may help. A placing or evicting rule
// that reads more of the function must add it here.
type equivalenceClass struct {
	team, machine, requires, reason string
	resources                       functions.Resources
	waits                           bool           // requests wait for it
	own                             *functionEntry // set if the function is a class of its own, see setPending
}

// pendingClass holds the functions of one class that lack replicas.
type pendingClass struct {
	equivalenceClass
	items  []*functionEntry // in order of need
	cursor int              // index of the next item to place in this plan
	left   int              // replicas that this item still lacks
	active bool
	acted  bool // blocked, although replicas were evicted for it
	memo   blockedMemo
	rank   rank             // rank of the next item
	ranked bool             // rank is up to date
	fresh  []*functionEntry // items added since the last plan

	// The last published verdict; it applies to items from this one on.
	from      *functionEntry
	verdict   Verdict
	verdictAt Instant
}

// blockedMemo records which function was blocked, and until when that stays true.
type blockedMemo struct {
	set     bool
	help    uint64  // valid while helpCount has this value
	at      Instant // when the function was found blocked
	plan    uint64  // the plan that found it
	order   uint64  // valid in later plans while Planner.order has this value
	since   Instant
	born    uint64
	left    int     // its replicas that were not placed
	due     Instant // valid until then; 0: no limit
	turn    bool    // evicting replicas past their time slice applied, now or after Patience
	patient bool    // Patience had passed
	verdict Verdict
}

// before compares e with a need by waiting time, then by age.
func (e *functionEntry) before(since Instant, born uint64) int {
	return cmp.Or(cmp.Compare(e.need.since, since), cmp.Compare(e.born, born))
}

// setPending records the starts that scaleFunction found missing for e.
func (p *Planner) setPending(e *functionEntry) {
	if len(p.needy) == 0 {
		p.clearPending(e)
		return
	}
	n, lacks := p.needy[0], len(p.needy)
	key := equivalenceClass{team: n.f.Name.Team, machine: n.f.Machine, requires: n.f.Requires, reason: n.reason, resources: n.f.Resources, waits: n.f.waits()}
	if len(n.f.Replicas) > 0 || n.f.Size > p.smallestStore || n.f.CachedNodesOnly != "" || n.f.RetryOn != "" || n.reason == reasonPrewarm { // prewarms depend on the function's own score
		key.own = e
	}
	if e.class != nil && e.class.equivalenceClass == key && e.need == n && e.missing == lacks {
		return
	}
	p.clearPending(e)
	c := p.classes[key]
	if c == nil {
		if i := len(p.freeClasses) - 1; i >= 0 {
			c, p.freeClasses = p.freeClasses[i], p.freeClasses[:i]
		} else {
			c = &pendingClass{}
		}
		*c = pendingClass{equivalenceClass: key, items: c.items[:0], fresh: c.fresh[:0]}
		p.classes[key] = c
		p.classList = append(p.classList, c)
	}
	e.class, e.need, e.missing, e.sum = c, n, lacks, 0
	at, _ := slices.BinarySearchFunc(c.items, e, func(a, b *functionEntry) int { return a.before(b.need.since, b.born) })
	c.items = slices.Insert(c.items, at, e)
	c.fresh = append(c.fresh, e)
	if p.log != nil {
		record := p.log.Begin(p.now, n.f.Name, explain.Scale, n.reason)
		record.Add(explain.Row{Names: &demandPartNames, Parts: [4]float64{float64(p.policy.Want(n.f, p.now)), float64(lacks), float64(n.f.Queued), float64(n.f.Active)}})
	}
}

// clearPending removes e from the functions that lack replicas.
func (p *Planner) clearPending(e *functionEntry) {
	c := e.class
	if c == nil {
		return
	}
	e.class = nil
	at, _ := slices.BinarySearchFunc(c.items, e, func(a, b *functionEntry) int { return a.before(b.need.since, b.born) })
	c.items = slices.Delete(c.items, at, at+1)
	if at := slices.Index(c.fresh, e); at >= 0 {
		c.fresh = slices.Delete(c.fresh, at, at+1)
	}
	if c.from == e {
		c.from = nil
	}
	if e.sum != 0 {
		p.order++ // its promised room is available to others
	}
	p.setVerdict(e, Verdict{}, false)
	if len(c.items) == 0 {
		delete(p.classes, c.equivalenceClass)
		p.classList = slices.Delete(p.classList, slices.Index(p.classList, c), slices.Index(p.classList, c)+1)
		c.own = nil
		p.freeClasses = append(p.freeClasses, c)
	}
}

// placeAll places pending functions by rank. Room promised to one, even if it must
// still be freed, is not available to those behind it.
func (p *Planner) placeAll() {
	d := &p.decision
	p.active = p.active[:0]
	for _, c := range p.classList {
		c.cursor, c.left, c.active, c.ranked = 0, c.items[0].missing, false, false
		p.activate(c)
	}
	d.actedBefore = len(d.acted) > 0
	for len(p.active) > 0 {
		c := p.active[0]
		for _, o := range p.active {
			if p.rankOf(o).before(p.rankOf(c)) {
				c = o
			}
		}
		p.placeFirst(c)
	}
	for _, c := range p.classList {
		p.publishVerdicts(c)
	}
	if p.changed {
		p.changed = false
		p.order++
	}
}

// placeFirst tries to place the next function of class c, and then reactivates the
// classes that the result may affect.
func (p *Planner) placeFirst(c *pendingClass) {
	d := &p.decision
	first, e := c.rank, c.items[c.cursor]
	help, order, outer, acts := d.helpCount, p.order, d.next, len(d.actions)
	d.next, d.sum, d.verdict, d.timeSlice = math.MaxInt64, 0, Verdict{}, false
	for _, o := range p.classList {
		if o.team == e.f.Name.Team && p.skipped(o) {
			p.rankOf(o) // computed before e's promises change it
		}
	}
	ok := p.tryPlace(e)
	due := d.next
	d.next = outer
	// Prewarms are tried again in every plan: the value of other replicas changes,
	// and prewarms are few.
	c.acted = c.acted || !ok && (len(d.actions) > acts || c.reason == reasonPrewarm)
	if !ok && len(d.actions) > acts {
		p.changed = true // these actions may not be repeated in the next plan
	}
	if !ok {
		if c.left == e.missing {
			e.sums = 0
		}
		p.notePromise(e, e.sums)
		c.memo = blockedMemo{set: true, at: p.now, plan: p.plans, help: d.helpCount, since: e.need.since, born: e.born, left: c.left, turn: d.timeSlice, patient: d.timeSlice && !p.withinPatience(e), verdict: d.verdict}
		if due != math.MaxInt64 {
			c.memo.due = due
		}
		p.deactivate(c)
	} else {
		d.dueAt(due)
		if c.left == e.missing {
			e.sums = 0
		}
		e.sums = e.sums*fnvPrime + d.sum | 1
		if c.left--; c.left == 0 {
			p.deactivate(c)
			if c.cursor++; c.cursor < len(c.items) {
				c.left = c.items[c.cursor].missing
			}
			p.notePromise(e, e.sums)
			p.activate(c)
		}
	}
	if p.order != order {
		p.keepMemosBefore(first)
	}
	for _, o := range p.classList { // a team's rank depends on what it holds
		if o.team == e.f.Name.Team || slices.Contains(d.freeingTeams, o.team) {
			o.ranked = false
		}
	}
	if d.helpCount != help || p.order != order {
		for _, c := range p.classList {
			p.activate(c)
		}
	}
}

// tryPlace tries once to find room for e.
func (p *Planner) tryPlace(e *functionEntry) (ok bool) {
	d := &p.decision
	d.check = guaranteeCheck{}
	d.low = e.need.reason == reasonLow
	d.placing, d.reserved, d.freed, d.freeingTeams = true, false, functions.Resources{}, d.freeingTeams[:0]
	p.placed = true
	switch {
	case e.need.reason != reasonPrewarm:
		ok = d.place(e.need)
	case !p.demandBlocked():
		ok = d.placeAhead(e.need)
	}
	d.placing, d.low = false, false
	if len(d.freeingTeams) > 0 {
		if d.freedTooMuch(e.f) {
			d.helpCount++
		}
		p.retryClaimants()
	}
	return ok
}

// notePromise records the fingerprint of e's promises. If it differs from the last
// plan, the memos of other classes may be invalid.
func (p *Planner) notePromise(e *functionEntry, sum uint64) {
	if e.sum != sum {
		e.sum = sum
		p.order++
	}
}

// retryClaimants retries classes whose team just lost a replica: they may now claim
// their guarantee.
func (p *Planner) retryClaimants() {
	for _, c := range p.classList {
		if c.cursor < len(c.items) && c.memo.set && slices.Contains(p.freeingTeams, c.team) {
			c.memo.set = false
			p.activate(c)
		}
	}
}

// keepMemosBefore keeps the memos of classes that rank before first. A new promise to
// a function of rank first affects only those behind it.
func (p *Planner) keepMemosBefore(first rank) {
	for _, c := range p.classList {
		if p.skipped(c) && p.rankOf(c).before(first) {
			c.memo.plan = p.plans
		}
	}
}

// skipped reports whether this plan skips c because of the memo of an earlier plan.
func (p *Planner) skipped(c *pendingClass) bool {
	return !c.active && c.cursor < len(c.items) && c.memo.set && c.memo.plan != p.plans
}

// rankOf is the rank of the next function in c, cached until its team's count changes.
func (p *Planner) rankOf(c *pendingClass) rank {
	if !c.ranked {
		c.ranked, c.rank = true, p.rank(c.items[c.cursor])
	}
	return c.rank
}

// withinPatience reports whether e's oldest waiter has waited for less than Patience,
// which must pass before it ends time slices.
func (p *Planner) withinPatience(e *functionEntry) bool { return e.f.Oldest+p.policy.Patience > p.now }

// activate adds c to the classes to try, unless it is known to be blocked.
func (p *Planner) activate(c *pendingClass) {
	if c.active || c.cursor >= len(c.items) || p.knownBlocked(c) {
		return
	}
	c.active = true
	p.active = append(p.active, c)
}

// deactivate removes c from the classes to try.
func (p *Planner) deactivate(c *pendingClass) {
	if c.active {
		c.active = false
		at := slices.Index(p.active, c)
		p.active = slices.Delete(p.active, at, at+1)
	}
}

// knownBlocked reports whether the next function in c is known to be blocked.
func (p *Planner) knownBlocked(c *pendingClass) bool {
	m, e := &c.memo, c.items[c.cursor]
	if !m.set || p.now-m.at >= p.memoTTL && m.plan != p.plans || m.plan != p.plans && m.order != p.order || m.help != p.helpCount || m.due != 0 && m.due <= p.now {
		return false
	}
	if order := e.before(m.since, m.born); order < 0 || order == 0 && c.left > m.left {
		return false
	}
	return !m.turn || m.patient || p.withinPatience(e)
}

// publishVerdicts sets the verdict of each function in c.
func (p *Planner) publishVerdicts(c *pendingClass) {
	var from *functionEntry
	var v Verdict
	if c.cursor < len(c.items) {
		from, v = c.items[c.cursor], c.memo.verdict
		c.memo.order = p.order
		if c.memo.due != 0 {
			p.dueAt(c.memo.due)
		}
		if c.memo.turn && p.withinPatience(from) {
			p.dueAt(from.f.Oldest + p.policy.Patience)
		}
	}
	if c.acted {
		c.acted, c.memo.set = false, false // the next plan repeats its evictions in case they were lost
	}
	all := c.from != from || c.verdict.Code != v.Code || c.verdict.Message != v.Message
	again := !all && v.Code != "" && p.now-c.verdictAt >= repeatVerdictAfter
	list := c.fresh
	if all || again {
		list, c.verdictAt = c.items, p.now
	}
	if (again || len(list) > 0) && v.ETA >= 0 && v.Code != "" && v.Code != CodeBudget {
		v.ETA = p.estimateWait(from.f, v.Code == CodeQuota)
	}
	for _, e := range list {
		if from != nil && e.before(from.need.since, from.born) >= 0 {
			if e != from && e.sum != 0 {
				e.sum = 0
				p.changed = true
			}
			p.setVerdict(e, v, again)
		} else {
			p.setVerdict(e, Verdict{}, false)
		}
	}
	clear(c.fresh)
	c.fresh, c.from, c.verdict = c.fresh[:0], from, v
}

// repeatVerdictAfter is the interval between updates of a verdict's ETA, which is a
// span and grows stale.
const repeatVerdictAfter = 10 * time.Second

// setVerdict sets or clears e's verdict. again: only the ETA is new.
func (p *Planner) setVerdict(e *functionEntry, v Verdict, again bool) {
	name := e.f.Name
	if v.Code == "" {
		if e.hasVerdict {
			e.hasVerdict = false
			delete(p.blocked, name)
			p.noteVerdictChange(e)
		}
		return
	}
	if old := p.blocked[name]; again || !e.hasVerdict || old.Code != v.Code || old.Message != v.Message {
		e.hasVerdict = true
		if v.ETA >= 0 {
			v.ETA += e.f.coldStartTime()
		}
		p.blocked[name] = v
		p.noteVerdictChange(e)
	}
}

func (p *Planner) noteVerdictChange(e *functionEntry) {
	if e.changedInPlan != p.plans {
		e.changedInPlan = p.plans
		p.changedVerdicts = append(p.changedVerdicts, e.f.Name)
	}
}

// fnvPrime is the 64-bit prime of FNV-1a.
const fnvPrime = 1099511628211

// mixPromise adds s to the fingerprint of what the current function is promised.
func (d *decision) mixPromise(s string) {
	for i := range len(s) {
		d.sum = (d.sum ^ uint64(s[i])) * fnvPrime
	}
	d.sum++
}

// timerHeap is a heap of functions by the time of their next evaluation.
type timerHeap []*functionEntry

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *timerHeap) Push(x any) {
	e := x.(*functionEntry)
	e.at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last], e.at = nil, -1
	*h = (*h)[:last]
	return e
}

// set changes e's due time; math.MaxInt64 removes e.
func (h *timerHeap) set(e *functionEntry, due Instant) {
	e.due = due
	switch {
	case due == math.MaxInt64 && e.at >= 0:
		heap.Remove(h, e.at)
	case due == math.MaxInt64:
	case e.at < 0:
		heap.Push(h, e)
	default:
		heap.Fix(h, e.at)
	}
}
