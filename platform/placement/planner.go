package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Planner is an incremental Policy.Decide: it caches what it derived from unchanged
// functions and nodes, so the cost of a plan depends on the changes. A plan equals
// the one that Decide makes of the same world.
//
// It has no clock, goroutine or lock, and is not safe for concurrent use. It keeps the
// pointers it is given and reads them when it plans. Their owner may change them
// between plans and reports that with Node or Touch before the next one; only
// Node.Seen may move forward unreported. Slices of GPU numbers are replaced, never
// written into.
type Planner struct {
	decision
	functions       map[functions.Name]*functionEntry
	nodes           map[string]*Node
	born            uint64
	slab            []functionEntry // preallocated entries
	touched         []*functionEntry
	looking         []*functionEntry // functions that this plan evaluates
	reopened        []*functionEntry // functions that got actions in the last plan: evaluated again until they get none
	timers          timerHeap
	stale           bool // rooms must be rebuilt from nodes
	scanned         bool // first is up to date
	first           *Node
	firstDue        Instant
	lost            []*Node
	memoTTL         time.Duration // the constant memoTTL; tests disable the expiry
	stored          bool          // store is up to date
	store           functions.Bytes
	worldRooms      []freeRoom // per room, now and soon without the promises of this plan
	slots           []gpuSlot  // backing array of the rooms' GPUs
	worldSlots      []gpuSlot  // backing array of worldRooms
	changedVerdicts []functions.Name
	placed          bool // this plan tried to place something

	plans   uint64
	order   uint64 // incremented when a function is promised something else than in the last plan
	changed bool   // order is incremented at the end of this plan

	// Buffers reused by later plans.
	idle, busy        []victim
	oldOffers         []offerKey
	spareReservations []reservation
	freeClasses       []*pendingClass
	active            []*pendingClass

	classes   map[equivalenceClass]*pendingClass
	classList []*pendingClass
}

// functionEntry is the planner's state of a function.
type functionEntry struct {
	f    *Function
	born uint64  // sequence number of the first Touch
	due  Instant // time of its next evaluation
	at   int     // index in timers; -1 none

	offersDue Instant // when its offers change with time alone

	dirty, look, open, alive bool
	reservations             []reservation
	offers                   []offerKey

	// The replicas it lacks.
	class         *pendingClass
	need          need
	missing       int
	sum           uint64 // fingerprint of what it was promised last
	sums          uint64 // the fingerprint while it is being placed
	hasVerdict    bool
	changedInPlan uint64 // the last plan that changed its verdict
}

// offerKey identifies a victim that a function put into a room's eviction list.
type offerKey struct {
	replica   string
	room      int
	busy      bool
	sliceOver bool
	residing  bool
	ready     bool
	low       lowUse
}

// reservation is the share of its node and of its team's count that a replica holds.
type reservation struct {
	node              string
	team              string
	now, soon         functions.Resources
	nowGPUs, soonGPUs []int
	waiting           int
	gpus              teamCount
}

// Planner returns a planner of the policy without nodes or functions.
func (p Policy) Planner() *Planner {
	c := &Planner{functions: map[functions.Name]*functionEntry{}, nodes: map[string]*Node{}}
	c.policy, c.log, c.memoTTL = p, newDecisionLog(), memoTTL
	c.held, c.leaving, c.pledged, c.claimed = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	c.acted, c.slept = map[string]struct{}{}, map[functions.Name]struct{}{}
	c.count = map[string]teamCount{}
	c.waits = map[waitKey]roomEstimate{}
	c.index = map[string]int{}
	c.classes = map[equivalenceClass]*pendingClass{}
	c.blocked = map[functions.Name]Verdict{}
	return c
}

// Node reports that n is new or has changed.
func (c *Planner) Node(n *Node) {
	old := c.nodes[n.ID]
	c.nodes[n.ID] = n
	c.helpCount++
	c.scanned, c.stored = false, false
	at, ok := c.index[n.ID]
	if !ok || old != n || c.stale {
		c.stale = true
		return
	}
	m := &c.rooms[at]
	if m.here != n.Here || !slices.Equal(m.gpus, n.GPUs) {
		c.stale = true
		return
	}
	if is := n.host(); is != m.host {
		for _, s := range []*freeRoom{&m.now, &m.soon, &c.worldRooms[2*at], &c.worldRooms[2*at+1]} {
			s.resize(is, m.host)
		}
		m.host = is
	}
}

// DropNode removes a node.
func (c *Planner) DropNode(id string) {
	if _, ok := c.nodes[id]; ok {
		delete(c.nodes, id)
		c.stale, c.scanned, c.stored = true, false, false
	}
}

// Teams replaces guarantees, maximums and recent use of all teams.
func (c *Planner) Teams(teams map[string]Team) {
	if maps.Equal(c.world.Teams, teams) {
		return
	}
	c.helpCount++
	barred := false
	for t, x := range teams {
		barred = barred || c.world.Teams[t].OverBudget != x.OverBudget
	}
	for t, x := range c.world.Teams {
		barred = barred || teams[t].OverBudget != x.OverBudget
	}
	living := c.living
	if !barred {
		living = nil
	}
	for _, e := range living { // going over budget or back changes how a team's functions scale
		if t := e.f.Name.Team; c.world.Teams[t].OverBudget != teams[t].OverBudget && !e.dirty {
			e.dirty = true
			c.touched = append(c.touched, e)
		}
	}
	c.world.Teams = maps.Clone(teams)
}

// Touch reports that f or its replicas are new or have changed.
func (c *Planner) Touch(f *Function) {
	e := c.functions[f.Name]
	if e == nil {
		if len(c.slab) == 0 {
			c.slab = make([]functionEntry, 64)
		}
		e, c.slab = &c.slab[0], c.slab[1:]
		c.born++
		*e = functionEntry{born: c.born, at: -1}
		c.functions[f.Name] = e
	}
	e.f = f
	if !e.dirty {
		e.dirty = true
		c.touched = append(c.touched, e)
	}
}

// Drop removes a function.
func (c *Planner) Drop(name functions.Name) {
	e := c.functions[name]
	if e == nil {
		return
	}
	delete(c.functions, name)
	c.releaseReservations(e)
	c.withdrawOffers(e)
	c.clearPending(e)
	c.setAlive(e, false)
	c.timers.set(e, math.MaxInt64)
	e.f, e.dirty, e.open = nil, false, false // lists that still contain e skip it
}

// Plan plans the actions for now. It evaluates functions that were touched or are due,
// those that got actions in the last plan, and blocked ones if a change may unblock
// them. The result belongs to the caller, except for Blocked and Changed, which are
// valid until the next call.
func (c *Planner) Plan(now Instant) Plan {
	d := &c.decision
	d.now, d.next, d.actions = now, math.MaxInt64, nil
	clear(d.acted)
	clear(d.slept)
	c.changedVerdicts = c.changedVerdicts[:0]
	c.plans++
	d.plan, d.check = c.plans, guaranteeCheck{}
	c.updateNodes()
	c.collectLooks()
	for _, e := range c.looking {
		if e.dirty {
			e.dirty = false
			c.updateReservations(e)
		}
		c.setAlive(e, !e.f.resting(now))
		c.updateOffers(e)
	}
	c.relieveHostMemory()
	for _, e := range c.looking {
		e.look = false
		c.scaleEntry(e)
	}
	clear(c.looking)
	c.looking = c.looking[:0]
	c.placeAll()
	plan := Plan{Actions: d.actions, Blocked: d.blocked, Changed: c.changedVerdicts}
	if len(c.timers) > 0 {
		d.dueAt(c.timers[0].due)
	}
	if d.next != math.MaxInt64 {
		plan.Next = d.next
	}
	c.undoPromises()
	return plan
}

// collectLooks lists the functions that this plan evaluates, in the order of their
// first Touch.
func (c *Planner) collectLooks() {
	add := func(e *functionEntry) {
		if !e.look && e.f != nil {
			e.look = true
			c.looking = append(c.looking, e)
		}
	}
	for _, e := range c.touched {
		add(e)
	}
	if len(c.reopened) > 0 {
		c.helpCount++ // an action that is not repeated leaves its team more GPUs than the last plan counted
	}
	for _, e := range c.reopened {
		e.open = false
		add(e)
	}
	for len(c.timers) > 0 && c.timers[0].due <= c.now {
		e := c.timers[0]
		c.timers.set(e, math.MaxInt64)
		add(e)
	}
	clear(c.touched)
	clear(c.reopened)
	c.touched, c.reopened = c.touched[:0], c.reopened[:0]
	slices.SortFunc(c.looking, func(a, b *functionEntry) int { return cmp.Compare(a.born, b.born) })
}

func (c *Planner) reopen(e *functionEntry) {
	if !e.open {
		e.open = true
		c.reopened = append(c.reopened, e)
	}
}

// updateOffers replaces e's replicas in the eviction lists of the rooms.
func (c *Planner) updateOffers(e *functionEntry) {
	for _, o := range e.offers {
		m := &c.rooms[o.room]
		list := &m.idle
		if o.busy {
			list = &m.busy
		}
		*list = slices.DeleteFunc(*list, func(v victim) bool { return v.f.Name == e.f.Name })
	}
	was := append(c.oldOffers[:0], e.offers...)
	e.offers = e.offers[:0]
	outer := c.next
	c.next = math.MaxInt64
	c.idle, c.busy = c.offer(e.f, c.idle[:0], c.busy[:0])
	e.offersDue, c.next = c.next, outer
	for _, busy := range []bool{false, true} {
		for _, v := range c.offering(busy) {
			v.born = e.born
			m := &c.rooms[v.room]
			list := &m.idle
			if busy {
				list = &m.busy
			}
			at, _ := slices.BinarySearchFunc(*list, v, func(a, b victim) int { return cmp.Or(compareVictims(a, b), cmp.Compare(a.born, b.born), -1) })
			*list = slices.Insert(*list, at, v)
			o := offerKey{replica: v.r.ID, room: v.room, busy: busy, sliceOver: v.sliceOver, residing: v.residing, ready: v.r.State == functions.Ready, low: v.low}
			e.offers = append(e.offers, o)
			if !slices.Contains(was, o) {
				c.helpCount++
			}
		}
	}
	for _, o := range was { // a replica within its residency suppressed the verdicts of others
		if o.residing && !slices.Contains(e.offers, o) {
			c.helpCount++
		}
	}
	c.oldOffers = was
}

func (c *Planner) offering(busy bool) []victim {
	if busy {
		return c.busy
	}
	return c.idle
}

// withdrawOffers removes e's replicas from the eviction lists.
func (c *Planner) withdrawOffers(e *functionEntry) {
	for _, o := range e.offers {
		if c.stale {
			break
		}
		m := &c.rooms[o.room]
		m.idle = slices.DeleteFunc(m.idle, func(v victim) bool { return v.f.Name == e.f.Name })
		m.busy = slices.DeleteFunc(m.busy, func(v victim) bool { return v.f.Name == e.f.Name })
	}
	e.offers = e.offers[:0]
}

// setAlive adds e to or removes it from living, which is ordered by first Touch.
func (c *Planner) setAlive(e *functionEntry, alive bool) {
	if e.alive == alive {
		return
	}
	e.alive = alive
	at, _ := slices.BinarySearchFunc(c.living, e, func(a, b *functionEntry) int { return cmp.Compare(a.born, b.born) })
	if alive {
		c.living = slices.Insert(c.living, at, e)
	} else {
		c.living = slices.Delete(c.living, at, at+1)
	}
}

// scaleEntry scales one function: surplus replicas stop, missing ones are recorded for
// placeAll.
func (c *Planner) scaleEntry(e *functionEntry) {
	acts, outer := len(c.actions), c.next
	c.needy, c.next = c.needy[:0], math.MaxInt64
	if e.alive {
		c.scaleFunction(e.f)
	}
	c.timers.set(e, min(e.offersDue, c.next))
	c.next = outer
	if len(c.actions) > acts {
		c.reopen(e)
	}
	c.setPending(e)
	if e.class != nil && e.class.own == e {
		e.class.memo = blockedMemo{} // it depends on its own replicas and their actions
	}
}
