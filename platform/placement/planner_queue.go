package placement

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
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
func (c *Planner) setPending(e *functionEntry) {
	if len(c.needy) == 0 {
		c.clearPending(e)
		return
	}
	n, lacks := c.needy[0], len(c.needy)
	key := equivalenceClass{team: n.f.Name.Team, machine: n.f.Machine, requires: n.f.Requires, reason: n.reason, resources: n.f.Resources, waits: n.f.waits()}
	if len(n.f.Replicas) > 0 || n.f.Size > c.store || n.f.CachedNodesOnly != "" || n.f.RetryOn != "" || n.reason == reasonPrewarm { // prewarms depend on the function's own score
		key.own = e
	}
	if e.class != nil && e.class.equivalenceClass == key && e.need == n && e.missing == lacks {
		return
	}
	c.clearPending(e)
	k := c.classes[key]
	if k == nil {
		if i := len(c.freeClasses) - 1; i >= 0 {
			k, c.freeClasses = c.freeClasses[i], c.freeClasses[:i]
		} else {
			k = &pendingClass{}
		}
		*k = pendingClass{equivalenceClass: key, items: k.items[:0], fresh: k.fresh[:0]}
		c.classes[key] = k
		c.classList = append(c.classList, k)
	}
	e.class, e.need, e.missing, e.sum = k, n, lacks, 0
	at, _ := slices.BinarySearchFunc(k.items, e, func(a, b *functionEntry) int { return a.before(b.need.since, b.born) })
	k.items = slices.Insert(k.items, at, e)
	k.fresh = append(k.fresh, e)
	if p := c.log.begin(c.now, n.f.Name, KindScale, n.reason); p != nil {
		p.add(candidateRow{names: &demandPartNames, parts: [4]float64{float64(c.policy.Want(n.f, c.now)), float64(lacks), float64(n.f.Queued), float64(n.f.Active)}})
	}
}

// clearPending removes e from the functions that lack replicas.
func (c *Planner) clearPending(e *functionEntry) {
	k := e.class
	if k == nil {
		return
	}
	e.class = nil
	at, _ := slices.BinarySearchFunc(k.items, e, func(a, b *functionEntry) int { return a.before(b.need.since, b.born) })
	k.items = slices.Delete(k.items, at, at+1)
	if at := slices.Index(k.fresh, e); at >= 0 {
		k.fresh = slices.Delete(k.fresh, at, at+1)
	}
	if k.from == e {
		k.from = nil
	}
	if e.sum != 0 {
		c.order++ // its promised room is available to others
	}
	c.setVerdict(e, Verdict{}, false)
	if len(k.items) == 0 {
		delete(c.classes, k.equivalenceClass)
		c.classList = slices.Delete(c.classList, slices.Index(c.classList, k), slices.Index(c.classList, k)+1)
		k.own = nil
		c.freeClasses = append(c.freeClasses, k)
	}
}

// placeAll places pending functions by rank. Room promised to one, even if it must
// still be freed, is not available to those behind it.
func (c *Planner) placeAll() {
	d := &c.decision
	c.active = c.active[:0]
	for _, k := range c.classList {
		k.cursor, k.left, k.active, k.ranked = 0, k.items[0].missing, false, false
		c.activate(k)
	}
	d.actedBefore = len(d.acted) > 0
	for len(c.active) > 0 {
		k := c.active[0]
		for _, o := range c.active {
			if c.rankOf(o).before(c.rankOf(k)) {
				k = o
			}
		}
		c.placeFirst(k)
	}
	for _, k := range c.classList {
		c.publishVerdicts(k)
	}
	if c.changed {
		c.changed = false
		c.order++
	}
}

// placeFirst tries to place the next function of class k, and then reactivates the
// classes that the result may affect.
func (c *Planner) placeFirst(k *pendingClass) {
	d := &c.decision
	first, e := k.rank, k.items[k.cursor]
	help, order, outer, acts := d.helpCount, c.order, d.next, len(d.actions)
	d.next, d.sum, d.verdict, d.timeSlice = math.MaxInt64, 0, Verdict{}, false
	for _, o := range c.classList {
		if o.team == e.f.Name.Team && c.skipped(o) {
			c.rankOf(o) // computed before e's promises change it
		}
	}
	ok := c.tryPlace(e)
	due := d.next
	d.next = outer
	// Prewarms are tried again in every plan: the value of other replicas changes,
	// and prewarms are few.
	k.acted = k.acted || !ok && (len(d.actions) > acts || k.reason == reasonPrewarm)
	if !ok && len(d.actions) > acts {
		c.changed = true // these actions may not be repeated in the next plan
	}
	if !ok {
		if k.left == e.missing {
			e.sums = 0
		}
		c.notePromise(e, e.sums)
		k.memo = blockedMemo{set: true, at: c.now, plan: c.plans, help: d.helpCount, since: e.need.since, born: e.born, left: k.left, turn: d.timeSlice, patient: d.timeSlice && !c.withinPatience(e), verdict: d.verdict}
		if due != math.MaxInt64 {
			k.memo.due = due
		}
		c.deactivate(k)
	} else {
		d.dueAt(due)
		if k.left == e.missing {
			e.sums = 0
		}
		e.sums = e.sums*fnvPrime + d.sum | 1
		if k.left--; k.left == 0 {
			c.deactivate(k)
			if k.cursor++; k.cursor < len(k.items) {
				k.left = k.items[k.cursor].missing
			}
			c.notePromise(e, e.sums)
			c.activate(k)
		}
	}
	if c.order != order {
		c.keepMemosBefore(first)
	}
	for _, o := range c.classList { // a team's rank depends on what it holds
		if o.team == e.f.Name.Team || slices.Contains(d.freeingTeams, o.team) {
			o.ranked = false
		}
	}
	if d.helpCount != help || c.order != order {
		for _, k := range c.classList {
			c.activate(k)
		}
	}
}

// tryPlace tries once to find room for e.
func (c *Planner) tryPlace(e *functionEntry) (ok bool) {
	d := &c.decision
	d.check = guaranteeCheck{}
	d.low = e.need.reason == reasonLow
	d.placing, d.reserved, d.freed, d.freeingTeams = true, false, functions.Resources{}, d.freeingTeams[:0]
	c.placed = true
	switch {
	case e.need.reason != reasonPrewarm:
		ok = d.place(e.need)
	case !c.demandBlocked():
		ok = d.placeAhead(e.need)
	}
	d.placing, d.low = false, false
	if len(d.freeingTeams) > 0 {
		if d.freedTooMuch(e.f) {
			d.helpCount++
		}
		c.retryClaimants()
	}
	return ok
}

// notePromise records the fingerprint of e's promises. If it differs from the last
// plan, the memos of other classes may be invalid.
func (c *Planner) notePromise(e *functionEntry, sum uint64) {
	if e.sum != sum {
		e.sum = sum
		c.order++
	}
}

// retryClaimants retries classes whose team just lost a replica: they may now claim
// their guarantee.
func (c *Planner) retryClaimants() {
	for _, k := range c.classList {
		if k.cursor < len(k.items) && k.memo.set && slices.Contains(c.freeingTeams, k.team) {
			k.memo.set = false
			c.activate(k)
		}
	}
}

// keepMemosBefore keeps the memos of classes that rank before first. A new promise to
// a function of rank first affects only those behind it.
func (c *Planner) keepMemosBefore(first rank) {
	for _, k := range c.classList {
		if c.skipped(k) && c.rankOf(k).before(first) {
			k.memo.plan = c.plans
		}
	}
}

// skipped reports whether this plan skips k because of the memo of an earlier plan.
func (c *Planner) skipped(k *pendingClass) bool {
	return !k.active && k.cursor < len(k.items) && k.memo.set && k.memo.plan != c.plans
}

// rankOf is the rank of the next function in k, cached until its team's count changes.
func (c *Planner) rankOf(k *pendingClass) rank {
	if !k.ranked {
		k.ranked, k.rank = true, c.rank(k.items[k.cursor])
	}
	return k.rank
}

// withinPatience reports whether e's oldest waiter has waited for less than Patience,
// which must pass before it ends time slices.
func (c *Planner) withinPatience(e *functionEntry) bool { return e.f.Oldest+c.policy.Patience > c.now }

// activate adds k to the classes to try, unless it is known to be blocked.
func (c *Planner) activate(k *pendingClass) {
	if k.active || k.cursor >= len(k.items) || c.knownBlocked(k) {
		return
	}
	k.active = true
	c.active = append(c.active, k)
}

// deactivate removes k from the classes to try.
func (c *Planner) deactivate(k *pendingClass) {
	if k.active {
		k.active = false
		at := slices.Index(c.active, k)
		c.active = slices.Delete(c.active, at, at+1)
	}
}

// knownBlocked reports whether the next function in k is known to be blocked.
func (c *Planner) knownBlocked(k *pendingClass) bool {
	m, e := &k.memo, k.items[k.cursor]
	if !m.set || c.now-m.at >= c.memoTTL && m.plan != c.plans || m.plan != c.plans && m.order != c.order || m.help != c.helpCount || m.due != 0 && m.due <= c.now {
		return false
	}
	if order := e.before(m.since, m.born); order < 0 || order == 0 && k.left > m.left {
		return false
	}
	return !m.turn || m.patient || c.withinPatience(e)
}

// publishVerdicts sets the verdict of each function in k.
func (c *Planner) publishVerdicts(k *pendingClass) {
	var from *functionEntry
	var v Verdict
	if k.cursor < len(k.items) {
		from, v = k.items[k.cursor], k.memo.verdict
		k.memo.order = c.order
		if k.memo.due != 0 {
			c.dueAt(k.memo.due)
		}
		if k.memo.turn && c.withinPatience(from) {
			c.dueAt(from.f.Oldest + c.policy.Patience)
		}
	}
	if k.acted {
		k.acted, k.memo.set = false, false // the next plan repeats its evictions in case they were lost
	}
	all := k.from != from || k.verdict.Code != v.Code || k.verdict.Message != v.Message
	again := !all && v.Code != "" && c.now-k.verdictAt >= repeatVerdictAfter
	list := k.fresh
	if all || again {
		list, k.verdictAt = k.items, c.now
	}
	if (again || len(list) > 0) && v.ETA >= 0 && v.Code != "" && v.Code != CodeBudget {
		v.ETA = c.estimateWait(from.f, v.Code == CodeQuota)
	}
	for _, e := range list {
		if from != nil && e.before(from.need.since, from.born) >= 0 {
			if e != from && e.sum != 0 {
				e.sum = 0
				c.changed = true
			}
			c.setVerdict(e, v, again)
		} else {
			c.setVerdict(e, Verdict{}, false)
		}
	}
	clear(k.fresh)
	k.fresh, k.from, k.verdict = k.fresh[:0], from, v
}

// repeatVerdictAfter is the interval between updates of a verdict's ETA, which is a
// span and grows stale.
const repeatVerdictAfter = 10 * time.Second

// setVerdict sets or clears e's verdict. again: only the ETA is new.
func (c *Planner) setVerdict(e *functionEntry, v Verdict, again bool) {
	name := e.f.Name
	if v.Code == "" {
		if e.hasVerdict {
			e.hasVerdict = false
			delete(c.blocked, name)
			c.noteVerdictChange(e)
		}
		return
	}
	if old := c.blocked[name]; again || !e.hasVerdict || old.Code != v.Code || old.Message != v.Message {
		e.hasVerdict = true
		if v.ETA >= 0 {
			v.ETA += e.f.coldStartTime()
		}
		c.blocked[name] = v
		c.noteVerdictChange(e)
	}
}

func (c *Planner) noteVerdictChange(e *functionEntry) {
	if e.changedInPlan != c.plans {
		e.changedInPlan = c.plans
		c.changedVerdicts = append(c.changedVerdicts, e.f.Name)
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
