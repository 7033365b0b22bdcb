package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
)

// Planner is an incremental Policy.Decide: it caches what it derived from unchanged
// functions and nodes, so the cost of a plan depends on the changes. A plan equals
// the one that Decide makes of the same world.
//
// It has no clock, goroutine or lock, and is not safe for concurrent use. It keeps the
// pointers it is given and reads them when it plans. Their owner may change them
// between plans and reports that with NodeChanged or FunctionChanged before the next one; only
// Node.Seen may move forward unreported. Slices of GPU numbers are replaced, never
// written into.
type Planner struct {
	decision  decision
	queue     pendingQueue
	functions map[functions.Name]*functionEntry
	born      uint64
	touched   []*functionEntry
	looking   []*functionEntry // functions that this plan evaluates
	reopened  []*functionEntry // functions that got actions in the last plan: evaluated again until they get none
	timers    timerHeap

	// Buffers reused by later plans.
	idle, busy []victim
	oldOffers  []offerKey
}

// functionEntry is the planner's state of a function.
type functionEntry struct {
	f     *Function
	owner *owner
	born  uint64  // sequence number of the first report
	due   Instant // time of its next evaluation
	at    int     // index in timers; -1 none

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
	planner := &Planner{functions: map[functions.Name]*functionEntry{}, decision: decision{
		policy: p, log: explain.NewLog(), counts: newTeamCounts(), owners: map[string]*owner{},
		world:     world{nodes: map[string]*Node{}, index: map[string]int{}},
		plan:      plan{acted: map[string]struct{}{}, slept: map[functions.Name]struct{}{}},
		estimates: roomEstimates{known: map[waitKey]roomEstimate{}},
	}}
	planner.queue = pendingQueue{
		decision: &planner.decision, memoTTL: memoTTL, classes: map[equivalenceClass]*pendingClass{}, blocked: map[functions.Name]Verdict{},
	}
	return planner
}

// NodeChanged reports that n is new or has changed.
func (p *Planner) NodeChanged(n *Node) {
	p.decision.helpCount++
	p.decision.world.changed(n)
}

func (p *Planner) DropNode(id string) { p.decision.world.drop(id) }

// Teams replaces guarantees, maximums and recent use of all teams.
func (p *Planner) Teams(teams map[string]Team) {
	if maps.Equal(p.decision.counts.teams, teams) {
		return
	}
	p.decision.helpCount++
	barred := false
	for t, x := range teams {
		barred = barred || p.decision.counts.teams[t].OverBudget != x.OverBudget
	}
	for t, x := range p.decision.counts.teams {
		barred = barred || teams[t].OverBudget != x.OverBudget
	}
	living := p.decision.living
	if !barred {
		living = nil
	}
	for _, e := range living { // going over budget or back changes how a team's functions scale
		if t := e.f.Name.Team; p.decision.counts.teams[t].OverBudget != teams[t].OverBudget {
			p.touch(e)
		}
	}
	p.decision.counts.teams = maps.Clone(teams)
}

// FunctionChanged reports that f or its replicas are new or have changed.
func (p *Planner) FunctionChanged(f *Function) {
	e := p.functions[f.Name]
	if e == nil {
		p.born++
		o := p.decision.owners[f.Name.Team]
		if o == nil {
			o = &owner{}
			p.decision.owners[f.Name.Team] = o
		}
		o.functions++
		e = &functionEntry{owner: o, born: p.born, at: -1}
		p.functions[f.Name] = e
	}
	e.f = f
	p.touch(e)
}

// touch has e evaluated by the next plan, with its reservations.
func (p *Planner) touch(e *functionEntry) {
	if !e.dirty {
		e.dirty = true
		p.touched = append(p.touched, e)
	}
}

func (p *Planner) Drop(name functions.Name) {
	e := p.functions[name]
	if e == nil {
		return
	}
	delete(p.functions, name)
	if e.owner.functions--; e.owner.functions == 0 {
		delete(p.decision.owners, name.Team)
	}
	p.decision.releaseReservations(e)
	p.withdrawOffers(e)
	p.queue.clearPending(e)
	p.setAlive(e, false)
	p.timers.set(e, math.MaxInt64)
	e.f, e.dirty, e.open = nil, false, false // lists that still contain e skip it
}

// Plan plans the actions for now. It evaluates functions that were touched or are due,
// those that got actions in the last plan, and blocked ones if a change may unblock
// them. The result belongs to the caller, except for Blocked and Changed, which are
// valid until the next call.
func (p *Planner) Plan(now Instant) Plan {
	p.decision.plan = p.decision.plan.following(now)
	p.decision.counts.check = guaranteeCheck{}
	p.updateNodes()
	p.collectLooks()
	for _, e := range p.looking {
		if e.dirty {
			e.dirty = false
			p.decision.updateReservations(e)
		}
		p.setAlive(e, !e.f.resting(now))
		p.updateOffers(e)
	}
	p.relieveHostMemory()
	for _, e := range p.looking {
		e.look = false
		p.scaleEntry(e)
	}
	clear(p.looking)
	p.looking = p.looking[:0]
	p.queue.placeAll()
	plan := Plan{Actions: p.decision.plan.actions, Blocked: p.queue.blocked, Changed: p.decision.plan.changed}
	if len(p.timers) > 0 {
		p.decision.plan.dueAt(p.timers[0].due)
	}
	if p.decision.plan.next != math.MaxInt64 {
		plan.Next = p.decision.plan.next
	}
	p.queue.undoPromises()
	return plan
}

// collectLooks lists the functions that this plan evaluates, in the order of their
// first report.
func (p *Planner) collectLooks() {
	add := func(e *functionEntry) {
		if !e.look && e.f != nil {
			e.look = true
			p.looking = append(p.looking, e)
		}
	}
	for _, e := range p.touched {
		add(e)
	}
	if len(p.reopened) > 0 {
		p.decision.helpCount++ // an action that is not repeated leaves its team more GPUs than the last plan counted
	}
	for _, e := range p.reopened {
		e.open = false
		add(e)
	}
	for len(p.timers) > 0 && p.timers[0].due <= p.decision.plan.now {
		e := p.timers[0]
		p.timers.set(e, math.MaxInt64)
		add(e)
	}
	clear(p.touched)
	clear(p.reopened)
	p.touched, p.reopened = p.touched[:0], p.reopened[:0]
	slices.SortFunc(p.looking, func(a, b *functionEntry) int { return cmp.Compare(a.born, b.born) })
}

func (p *Planner) reopen(e *functionEntry) {
	if !e.open {
		e.open = true
		p.reopened = append(p.reopened, e)
	}
}

// updateOffers replaces e's replicas in the eviction lists of the rooms.
func (p *Planner) updateOffers(e *functionEntry) {
	was := append(p.oldOffers[:0], e.offers...)
	p.withdrawOffers(e)
	outer := p.decision.plan.next
	p.decision.plan.next = math.MaxInt64
	p.idle, p.busy = p.decision.victimsOf(e.f, p.idle[:0], p.busy[:0])
	e.offersDue, p.decision.plan.next = p.decision.plan.next, outer
	for i, victims := range [...][]victim{p.idle, p.busy} {
		for _, v := range victims {
			busy := i == 1
			v.owner, v.born = e.owner, e.born
			list := p.decision.world.rooms[v.room].change(busy)
			at, _ := slices.BinarySearchFunc(*list, v,
				func(a, b victim) int { return cmp.Or(compareVictims(a, b), cmp.Compare(a.born, b.born), -1) })
			*list = slices.Insert(*list, at, v)
			o := offerKey{replica: v.r.ID, room: v.room, busy: busy, sliceOver: v.sliceOver, residing: v.residing,
				ready: v.r.State == functions.Ready, low: v.low}
			e.offers = append(e.offers, o)
			if !slices.Contains(was, o) {
				p.decision.helpCount++
			}
		}
	}
	for _, o := range was { // a replica within its residency suppressed the verdicts of others
		if o.residing && !slices.Contains(e.offers, o) {
			p.decision.helpCount++
		}
	}
	p.oldOffers = was
}

// withdrawOffers removes e's replicas from the eviction lists.
func (p *Planner) withdrawOffers(e *functionEntry) {
	for _, o := range e.offers {
		if p.decision.world.stale {
			break
		}
		list := p.decision.world.rooms[o.room].change(o.busy)
		*list = slices.DeleteFunc(*list, func(v victim) bool { return v.f.Name == e.f.Name })
	}
	e.offers = e.offers[:0]
}

// setAlive adds e to or removes it from living, which is ordered by first report.
func (p *Planner) setAlive(e *functionEntry, alive bool) {
	if e.alive == alive {
		return
	}
	e.alive = alive
	at, _ := slices.BinarySearchFunc(p.decision.living, e, func(a, b *functionEntry) int { return cmp.Compare(a.born, b.born) })
	if alive {
		p.decision.living = slices.Insert(p.decision.living, at, e)
	} else {
		p.decision.living = slices.Delete(p.decision.living, at, at+1)
	}
}

// scaleEntry scales one function: surplus replicas stop, missing ones are recorded for
// placeAll.
func (p *Planner) scaleEntry(e *functionEntry) {
	acts, outer := len(p.decision.plan.actions), p.decision.plan.next
	p.decision.plan.next = math.MaxInt64
	var what need
	missing := 0
	if e.alive {
		what, missing = p.decision.scaleFunction(e.f)
	}
	p.timers.set(e, min(e.offersDue, p.decision.plan.next))
	p.decision.plan.next = outer
	if len(p.decision.plan.actions) > acts {
		p.reopen(e)
	}
	p.queue.setPending(e, what, missing)
	if e.class != nil && e.class.own == e {
		e.class.memo = blockedMemo{} // it depends on its own replicas and their actions
	}
}

// Explain returns the last decision about a function of a kind of package explain, and
// the time of its plan. ok is false if none is recorded. The caller fills in State, Now and
// Decided.
func (p *Planner) Explain(name functions.Name, kind string) (x functions.Explanation, at Instant, ok bool) {
	x, at, ok = p.decision.log.Last(name, kind)
	if v, blocked := p.queue.blocked[name]; ok && blocked && x.Kind == explain.Place && x.Chosen == "" {
		x.Reason = v.Message
	}
	return x, at, ok
}

// Names of the parts of scores in explanations.
var (
	evictPartNames  = [4]string{"loss", "gib", "idle_seconds", "back_seconds"}
	placePartNames  = [4]string{"ready", "packing", "topology", "store"}
	demandPartNames = [4]string{"wanted", "lacks", "queued", "active"}
)
