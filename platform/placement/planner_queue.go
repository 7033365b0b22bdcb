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

// pendingQueue is the functions that lack replicas, by class, with what is known to be
// blocked.
type pendingQueue struct {
	*decision
	classes   map[equivalenceClass]*pendingClass
	classList []*pendingClass
	active    []*pendingClass // to try in this plan
	order     uint64          // incremented when a function is promised something else than in the last plan
	changed   bool            // order is incremented at the end of this plan
	memoTTL   time.Duration   // the constant memoTTL; tests disable the expiry
	blocked   map[functions.Name]Verdict
	current   attempt // a buffer
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
	order   uint64  // valid in later plans while pendingQueue.order has this value
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
func (q *pendingQueue) setPending(e *functionEntry, n need, lacks int) {
	if lacks <= 0 {
		q.clearPending(e)
		return
	}
	key := equivalenceClass{team: n.f.Name.Team, machine: n.f.host(), requires: n.f.Requires, reason: n.reason, resources: n.f.Resources,
		waits: n.f.waits()}
	// prewarms depend on the function's own score
	if len(n.f.Replicas) > 0 || n.f.Size > q.world.smallestStore || n.f.CachedNodesOnly != "" || n.f.RetryOn != "" ||
		n.reason == reasonPrewarm {
		key.own = e
	}
	if e.class != nil && e.class.equivalenceClass == key && e.need == n && e.missing == lacks {
		return
	}
	q.clearPending(e)
	c := q.classes[key]
	if c == nil {
		c = &pendingClass{equivalenceClass: key}
		q.classes[key] = c
		q.classList = append(q.classList, c)
	}
	e.class, e.need, e.missing, e.sum = c, n, lacks, 0
	at, _ := slices.BinarySearchFunc(c.items, e, func(a, b *functionEntry) int { return a.before(b.need.since, b.born) })
	c.items = slices.Insert(c.items, at, e)
	c.fresh = append(c.fresh, e)
	if q.log != nil {
		record := q.log.Begin(q.plan.now, n.f.Name, explain.Scale, n.reason)
		record.Add(explain.Row{Names: &demandPartNames, Parts: [4]float64{float64(q.policy.Want(n.f, q.plan.now)), float64(lacks), float64(n.f.Queued), float64(n.f.Active)}})
	}
}

// clearPending removes e from the functions that lack replicas.
func (q *pendingQueue) clearPending(e *functionEntry) {
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
		q.order++ // its promised room is available to others
	}
	q.setVerdict(e, Verdict{}, false)
	if len(c.items) == 0 {
		delete(q.classes, c.equivalenceClass)
		q.classList = slices.Delete(q.classList, slices.Index(q.classList, c), slices.Index(q.classList, c)+1)
	}
}

// placeAll places pending functions by rank. Room promised to one, even if it must
// still be freed, is not available to those behind it.
func (q *pendingQueue) placeAll() {
	q.active = q.active[:0]
	for _, c := range q.classList {
		c.cursor, c.left, c.active, c.ranked = 0, c.items[0].missing, false, false
		q.activate(c)
	}
	q.plan.actedBefore = len(q.plan.acted) > 0
	for len(q.active) > 0 {
		c := q.active[0]
		for _, o := range q.active {
			if q.rankOf(o).before(q.rankOf(c)) {
				c = o
			}
		}
		q.placeFirst(c)
	}
	for _, c := range q.classList {
		q.publishVerdicts(c)
	}
	if q.changed {
		q.changed = false
		q.order++
	}
}

// placeFirst tries to place the next function of class c, and then reactivates the
// classes that the result may affect.
func (q *pendingQueue) placeFirst(c *pendingClass) {
	first, e := c.rank, c.items[c.cursor]
	help, order, outer, acts := q.helpCount, q.order, q.plan.next, len(q.plan.actions)
	q.plan.next = math.MaxInt64
	for _, o := range q.classList {
		if o.team == e.f.Name.Team && q.skipped(o) {
			q.rankOf(o) // computed before e's promises change it
		}
	}
	a := &q.current
	*a = attempt{decision: q.decision, low: e.need.reason == reasonLow, freeingTeams: a.freeingTeams[:0]}
	ok := q.tryPlace(a, e)
	due := q.plan.next
	q.plan.next = outer
	// Prewarms are tried again in every plan: the value of other replicas changes,
	// and prewarms are few.
	c.acted = c.acted || !ok && (len(q.plan.actions) > acts || c.reason == reasonPrewarm)
	if !ok && len(q.plan.actions) > acts {
		q.changed = true // these actions may not be repeated in the next plan
	}
	if c.left == e.missing {
		e.sums = 0
	}
	if !ok {
		q.notePromise(e, e.sums)
		c.memo = blockedMemo{set: true, at: q.plan.now, plan: q.plan.number, help: q.helpCount, since: e.need.since, born: e.born, left: c.left,
			turn: a.timeSlice, patient: a.timeSlice && !q.withinPatience(e), verdict: a.verdict}
		if due != math.MaxInt64 {
			c.memo.due = due
		}
		q.deactivate(c)
	} else {
		q.plan.dueAt(due)
		e.sums = e.sums*fnvPrime + a.sum | 1
		if c.left--; c.left == 0 {
			q.deactivate(c)
			if c.cursor++; c.cursor < len(c.items) {
				c.left = c.items[c.cursor].missing
			}
			q.notePromise(e, e.sums)
			q.activate(c)
		}
	}
	if q.order != order {
		q.keepMemosBefore(first)
	}
	for _, o := range q.classList { // a team's rank depends on what it holds
		if o.team == e.f.Name.Team || slices.Contains(a.freeingTeams, o.team) {
			o.ranked = false
		}
	}
	if q.helpCount != help || q.order != order {
		for _, c := range q.classList {
			q.activate(c)
		}
	}
}

// tryPlace tries once to find room for e.
func (q *pendingQueue) tryPlace(a *attempt, e *functionEntry) (ok bool) {
	q.counts.check = guaranteeCheck{}
	q.plan.tried = true
	q.attempt = a
	switch {
	case e.need.reason != reasonPrewarm:
		ok = a.place(e.need)
	case !q.demandBlocked():
		ok = a.placeAhead(e.need)
	}
	q.attempt = nil
	if len(a.freeingTeams) > 0 {
		if a.freedTooMuch(e.f) {
			q.helpCount++
		}
		q.retryClaimants(a.freeingTeams)
	}
	return ok
}

// notePromise records the fingerprint of e's promises. If it differs from the last
// plan, the memos of other classes may be invalid.
func (q *pendingQueue) notePromise(e *functionEntry, sum uint64) {
	if e.sum != sum {
		e.sum = sum
		q.order++
	}
}

// retryClaimants retries classes of teams that just lost a replica: they may now claim
// their guarantee.
func (q *pendingQueue) retryClaimants(teams []string) {
	for _, c := range q.classList {
		if c.cursor < len(c.items) && c.memo.set && slices.Contains(teams, c.team) {
			c.memo.set = false
			q.activate(c)
		}
	}
}

// keepMemosBefore keeps the memos of classes that rank before first. A new promise to
// a function of rank first affects only those behind it.
func (q *pendingQueue) keepMemosBefore(first rank) {
	for _, c := range q.classList {
		if q.skipped(c) && q.rankOf(c).before(first) {
			c.memo.plan = q.plan.number
		}
	}
}

// skipped reports whether this plan skips c because of the memo of an earlier plan.
func (q *pendingQueue) skipped(c *pendingClass) bool {
	return !c.active && c.cursor < len(c.items) && c.memo.set && c.memo.plan != q.plan.number
}

// rankOf is the rank of the next function in c, cached until its team's count changes.
func (q *pendingQueue) rankOf(c *pendingClass) rank {
	if !c.ranked {
		c.ranked, c.rank = true, q.counts.rank(c.items[c.cursor])
	}
	return c.rank
}

// withinPatience reports whether e's oldest waiter has waited for less than Patience,
// which must pass before it ends time slices.
func (q *pendingQueue) withinPatience(e *functionEntry) bool {
	return e.f.Oldest+q.policy.Patience > q.plan.now
}

// activate adds c to the classes to try, unless it is known to be blocked.
func (q *pendingQueue) activate(c *pendingClass) {
	if c.active || c.cursor >= len(c.items) || q.knownBlocked(c) {
		return
	}
	c.active = true
	q.active = append(q.active, c)
}

// deactivate removes c from the classes to try.
func (q *pendingQueue) deactivate(c *pendingClass) {
	if c.active {
		c.active = false
		at := slices.Index(q.active, c)
		q.active = slices.Delete(q.active, at, at+1)
	}
}

// knownBlocked reports whether the next function in c is known to be blocked.
func (q *pendingQueue) knownBlocked(c *pendingClass) bool {
	m, e := &c.memo, c.items[c.cursor]
	if !m.set || q.plan.now-m.at >= q.memoTTL && m.plan != q.plan.number || m.plan != q.plan.number && m.order != q.order ||
		m.help != q.helpCount || m.due != 0 && m.due <= q.plan.now {
		return false
	}
	if order := e.before(m.since, m.born); order < 0 || order == 0 && c.left > m.left {
		return false
	}
	return !m.turn || m.patient || q.withinPatience(e)
}

func (q *pendingQueue) publishVerdicts(c *pendingClass) {
	var from *functionEntry
	var v Verdict
	if c.cursor < len(c.items) {
		from, v = c.items[c.cursor], c.memo.verdict
		c.memo.order = q.order
		if c.memo.due != 0 {
			q.plan.dueAt(c.memo.due)
		}
		if c.memo.turn && q.withinPatience(from) {
			q.plan.dueAt(from.f.Oldest + q.policy.Patience)
		}
	}
	if c.acted {
		c.acted, c.memo.set = false, false // the next plan repeats its evictions in case they were lost
	}
	all := c.from != from || c.verdict.Code != v.Code || c.verdict.Message != v.Message
	again := !all && v.Code != "" && q.plan.now-c.verdictAt >= repeatVerdictAfter
	list := c.fresh
	if all || again {
		list, c.verdictAt = c.items, q.plan.now
	}
	if (again || len(list) > 0) && v.ETA >= 0 && v.Code != "" && v.Code != CodeBudget {
		v.ETA = q.estimateWait(from.f, v.Code == CodeQuota)
	}
	for _, e := range list {
		if from != nil && e.before(from.need.since, from.born) >= 0 {
			if e != from && e.sum != 0 {
				e.sum = 0
				q.changed = true
			}
			q.setVerdict(e, v, again)
		} else {
			q.setVerdict(e, Verdict{}, false)
		}
	}
	clear(c.fresh)
	c.fresh, c.from, c.verdict = c.fresh[:0], from, v
}

// repeatVerdictAfter is the interval between updates of a verdict's ETA, which is a
// span and grows stale.
const repeatVerdictAfter = 10 * time.Second

// setVerdict sets or clears e's verdict. again: only the ETA is new.
func (q *pendingQueue) setVerdict(e *functionEntry, v Verdict, again bool) {
	name := e.f.Name
	if v.Code == "" {
		if e.hasVerdict {
			e.hasVerdict = false
			delete(q.blocked, name)
			q.noteVerdictChange(e)
		}
		return
	}
	if old := q.blocked[name]; again || !e.hasVerdict || old.Code != v.Code || old.Message != v.Message {
		e.hasVerdict = true
		if v.ETA >= 0 {
			v.ETA += e.f.coldStartTime()
		}
		q.blocked[name] = v
		q.noteVerdictChange(e)
	}
}

func (q *pendingQueue) noteVerdictChange(e *functionEntry) {
	if e.changedInPlan != q.plan.number {
		e.changedInPlan = q.plan.number
		q.plan.changed = append(q.plan.changed, e.f.Name)
	}
}

const fnvPrime = 1099511628211

// mixPromise adds s to the fingerprint of what the current function is promised.
func (a *attempt) mixPromise(s string) {
	for i := range len(s) {
		a.sum = (a.sum ^ uint64(s[i])) * fnvPrime
	}
	a.sum++
}

// timerHeap is a heap of functions by the time of their next evaluation.
type timerHeap []*functionEntry

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *timerHeap) Push(x any) {
	e := x.(*functionEntry)
	e.at = len(*h)
	*h = append(*h, e)
}

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
