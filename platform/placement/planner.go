package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Planner is Policy.Decide for who calls it often: it keeps what was worked out
// of functions and nodes that have not changed, and a plan costs what changed.
// It is told of changes, and a plan after them is the one that Decide makes of
// the same world.
//
// It is data: no clock, no goroutine, no lock; one caller at a time. It keeps
// the pointers it is given and reads them whenever it plans. The owner may
// change what is behind them at any time between plans and says so with Node or
// Touch before the next one; only Node.Seen may move forward unsaid. Slices of
// GPU numbers are replaced, not written into.
type Planner struct {
	decision
	fns      map[functions.Name]*entry
	nodes    map[string]*Node
	born     uint64
	slab     []entry // entries to hand out
	touched  []*entry
	looks    []*entry // what this plan looks at
	open     []*entry // whose last look asked for actions: looked at until it does not
	dues     dues
	stale    bool // the set of rooms is not that of the nodes
	scanned  bool // first is who will be lost first
	first    *Node
	firstDue Instant
	lost     []*Node
	trust    time.Duration // memoFor; a test believes for ever
	stored   bool          // store is the smallest of the nodes
	store    functions.Bytes
	holds    []free // of each room, as the world has it: now and soon
	slots    []slot // behind the rooms' GPUs
	kept     []slot // the same as the world has it, behind holds
	turned   []functions.Name
	placed   bool // somebody was given something in this plan

	plans   uint64
	order   uint64 // moves when somebody is promised something else than the last time
	changed bool   // it is to move at the end of this plan

	// Memory that is used again.
	idle, busy []victim
	was        []offered
	spare      []holding
	free       []*kin
	active     []*kin

	kins map[kinship]*kin
	list []*kin
}

// entry is what a planner keeps of a function.
type entry struct {
	f    *Function
	born uint64  // in which order they came
	due  Instant // when it is looked at next
	at   int     // in the heap of due times; -1 none

	offersDue Instant // when its offers change by themselves

	dirty, look, open, alive bool
	holdings                 []holding
	offers                   []offered

	// What it lacks.
	kin    *kin
	need   need
	lacks  int
	sum    uint64 // of what it was promised last
	sums   uint64 // the same, while it is placed
	told   bool   // has a verdict
	turned uint64 // the plan in which that changed
}

// offered is a victim as its function offers it; the room has it too.
type offered struct {
	replica string
	room    int
	busy    bool
	ripe    bool
	young   bool
	ready   bool
}

// holding is what one replica takes of its node and of its team's count.
type holding struct {
	node              string
	team              string
	now, soon         functions.Resources
	nowGPUs, soonGPUs []int
	waiting           int
	purse             purse
}

// Planner of the policy, with nothing in its world yet.
func (p Policy) Planner() *Planner {
	c := &Planner{fns: map[functions.Name]*entry{}, nodes: map[string]*Node{}}
	c.policy, c.book, c.trust = p, newBook(), memoFor
	c.held, c.leaving, c.pledged, c.claimed = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	c.acted, c.sunk = map[string]struct{}{}, map[functions.Name]struct{}{}
	c.count = map[string]purse{}
	c.waits = map[crowd]reckoned{}
	c.index = map[string]int{}
	c.kins = map[kinship]*kin{}
	c.blocked = map[functions.Name]Verdict{}
	return c
}

// Node says that n is new or has changed.
func (c *Planner) Node(n *Node) {
	old := c.nodes[n.ID]
	c.nodes[n.ID] = n
	c.help++
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
		for _, s := range []*free{&m.now, &m.soon, &c.holds[2*at], &c.holds[2*at+1]} {
			s.grow(is, m.host)
		}
		m.host = is
	}
}

// DropNode forgets a node.
func (c *Planner) DropNode(id string) {
	if _, ok := c.nodes[id]; ok {
		delete(c.nodes, id)
		c.stale, c.scanned, c.stored = true, false, false
	}
}

// Teams says what each team is owed and may take.
func (c *Planner) Teams(teams map[string]Team) {
	if maps.Equal(c.world.Teams, teams) {
		return
	}
	c.help++
	barred := false
	for t, x := range teams {
		barred = barred || c.world.Teams[t].Barred != x.Barred
	}
	for t, x := range c.world.Teams {
		barred = barred || teams[t].Barred != x.Barred
	}
	living := c.living
	if !barred {
		living = nil
	}
	for _, e := range living { // who is barred, or is no longer, scales otherwise
		if t := e.f.Name.Team; c.world.Teams[t].Barred != teams[t].Barred && !e.dirty {
			e.dirty = true
			c.touched = append(c.touched, e)
		}
	}
	c.world.Teams = maps.Clone(teams)
}

// Touch says that f or its replicas are new or have changed.
func (c *Planner) Touch(f *Function) {
	e := c.fns[f.Name]
	if e == nil {
		if len(c.slab) == 0 {
			c.slab = make([]entry, 64)
		}
		e, c.slab = &c.slab[0], c.slab[1:]
		c.born++
		*e = entry{born: c.born, at: -1}
		c.fns[f.Name] = e
	}
	e.f = f
	if !e.dirty {
		e.dirty = true
		c.touched = append(c.touched, e)
	}
}

// Drop forgets a function.
func (c *Planner) Drop(name functions.Name) {
	e := c.fns[name]
	if e == nil {
		return
	}
	delete(c.fns, name)
	c.release(e)
	c.withdraw(e)
	c.unneed(e)
	c.setAlive(e, false)
	c.dues.set(e, math.MaxInt64)
	e.f, e.dirty, e.open = nil, false, false // whoever still lists it passes over it
}

// Plan says what to do at now. It looks at what was touched, what is due, what
// its last plan wanted done, and who could not be placed if something has
// changed that may help them. What it returns belongs to the caller, except for
// Blocked and Turned, which are the planner's own and good until the next call.
func (c *Planner) Plan(now Instant) Plan {
	d := &c.decision
	d.now, d.next, d.actions = now, math.MaxInt64, nil
	clear(d.acted)
	clear(d.sunk)
	c.turned = c.turned[:0]
	c.plans++
	d.plan, d.claim = c.plans, claim{}
	c.hosts()
	c.gather()
	for _, e := range c.looks {
		if e.dirty {
			e.dirty = false
			c.account(e)
		}
		c.setAlive(e, !e.f.resting(now))
		c.offerOf(e)
	}
	c.pressure()
	for _, e := range c.looks {
		e.look = false
		c.scale(e)
	}
	clear(c.looks)
	c.looks = c.looks[:0]
	c.placeAll()
	plan := Plan{Actions: d.actions, Blocked: d.blocked, Turned: c.turned}
	if len(c.dues) > 0 {
		d.at(c.dues[0].due)
	}
	if d.next != math.MaxInt64 {
		plan.Next = d.next
	}
	c.undo()
	return plan
}

// hosts finds the nodes that are silent for too long, and makes the rooms anew
// where nodes came, went or changed their GPUs. Of the nodes that can be lost it
// watches the one whose time ends first: the others' can only have moved on.
func (c *Planner) hosts() {
	lease := c.policy.Lease
	if !c.scanned || len(c.lost) > 0 || c.first != nil && (c.first.Seen+lease != c.firstDue || c.firstDue <= c.now) {
		c.scanned, c.first, c.firstDue = true, nil, math.MaxInt64
		for id, n := range c.nodes {
			_, known := c.index[id]
			lost := !n.Here && n.Seen+lease <= c.now
			c.stale = c.stale || lost == known
			if end := n.Seen + lease; !n.Here && !lost && end < c.firstDue {
				c.first, c.firstDue = n, end
			}
		}
	}
	if c.first != nil {
		c.at(c.firstDue)
	}
	c.stores()
	if c.stale {
		c.rebuild()
	}
	for _, n := range c.lost {
		c.do(Action{Kind: Lose, Node: n.ID, Reason: "silent"})
	}
}

// stores finds the smallest store of a node. Whoever's checkpoint is larger is
// like nobody else: which nodes are no place for it depends on its size, and on
// who holds it.
func (c *Planner) stores() {
	if c.stored {
		return
	}
	c.stored = true
	least := functions.Bytes(math.MaxInt64)
	for _, n := range c.nodes {
		if n.Store.Bytes > 0 {
			least = min(least, n.Store.Bytes)
		}
	}
	if least == c.store {
		return
	}
	c.store = least
	for _, e := range c.living {
		if e.kin != nil && e.f.Size > 0 && !e.dirty {
			e.dirty = true
			c.touched = append(c.touched, e)
		}
	}
}

// rebuild makes the rooms from the nodes, and takes everything that holds room
// for changed.
func (c *Planner) rebuild() {
	c.stale = false
	c.help++
	nodes := make([]*Node, 0, len(c.nodes))
	c.lost = c.lost[:0]
	gpus := 0
	for _, n := range c.nodes {
		if !n.Here && n.Seen+c.policy.Lease <= c.now {
			c.lost = append(c.lost, n)
			continue
		}
		nodes = append(nodes, n)
		gpus += len(n.GPUs)
	}
	slices.SortFunc(nodes, byNode)
	slices.SortFunc(c.lost, byNode)
	clear(c.index)
	clear(c.count)
	clear(c.held)
	clear(c.leaving)
	c.rooms = make([]room, 0, len(nodes))
	c.slots, c.kept = make([]slot, 2*gpus), make([]slot, 2*gpus)
	c.holds = make([]free, 0, 2*len(nodes))
	at := 0
	for _, n := range nodes {
		k := len(n.GPUs)
		for i, g := range n.GPUs {
			for _, s := range [][]slot{c.slots, c.kept} {
				s[at+i].left, s[at+k+i].left = g.Memory, g.Memory
			}
		}
		cut := func(s []slot, from int) free { return free{host: n.host(), gpus: s[from : from+k : from+k]} }
		c.index[n.ID] = len(c.rooms)
		c.rooms = append(c.rooms, room{node: n, here: n.Here, host: n.host(), gpus: slices.Clone(n.GPUs), now: cut(c.slots, at), soon: cut(c.slots, at+k)})
		c.holds = append(c.holds, cut(c.kept, at), cut(c.kept, at+k))
		c.rooms[len(c.rooms)-1].held = &c.holds[len(c.holds)-2]
		at += 2 * k
	}
	for _, e := range c.fns { // gather sorts them
		if len(e.holdings) > 0 || e.alive || len(e.offers) > 0 {
			e.holdings, e.offers = e.holdings[:0], e.offers[:0]
			if !e.dirty {
				e.dirty = true
				c.touched = append(c.touched, e)
			}
		}
	}
}

// byNode: the agent in this process first, then by name.
func byNode(a, b *Node) int {
	if a.Here != b.Here {
		if a.Here {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.ID, b.ID)
}

// gather lists what this plan looks at, in the order in which functions came.
func (c *Planner) gather() {
	add := func(e *entry) {
		if !e.look && e.f != nil {
			e.look = true
			c.looks = append(c.looks, e)
		}
	}
	for _, e := range c.touched {
		add(e)
	}
	if len(c.open) > 0 {
		c.help++ // what they were told and is not repeated leaves a team with more than it seemed to keep
	}
	for _, e := range c.open {
		e.open = false
		add(e)
	}
	for len(c.dues) > 0 && c.dues[0].due <= c.now {
		e := c.dues[0]
		c.dues.set(e, math.MaxInt64)
		add(e)
	}
	clear(c.touched)
	clear(c.open)
	c.touched, c.open = c.touched[:0], c.open[:0]
	slices.SortFunc(c.looks, func(a, b *entry) int { return cmp.Compare(a.born, b.born) })
}

func (c *Planner) reopen(e *entry) {
	if !e.open {
		e.open = true
		c.open = append(c.open, e)
	}
}

// account takes the room of everything that runs or is on its way.
func (c *Planner) account(e *entry) {
	was := e.holdings
	now := c.spare[:0]
	for i := range e.f.Replicas {
		r := &e.f.Replicas[i]
		h := holding{node: r.Node, team: e.f.Name.Team}
		if !r.asleep() {
			h.purse.held = r.Take.GPUs
			if _, ok := c.index[r.Node]; !ok || r.Stopping || r.CalledOff || r.Sinking {
				h.purse.leaving = r.Take.GPUs // on a lost node it is as good as gone
			}
		}
		h.now, h.nowGPUs = r.takes()
		switch {
		case r.Stopping || r.CalledOff:
			h.waiting = 1
		case r.Sinking:
			h.waiting = 1
			h.soon = h.now.OffGPUs()
		default:
			h.soon, h.soonGPUs = h.now, h.nowGPUs
		}
		now = append(now, h)
	}
	if slices.EqualFunc(was, now, holding.equal) {
		c.spare = now
		return
	}
	c.release(e)
	for i := range now {
		c.enter(&now[i], 1)
	}
	e.holdings, c.spare = now, was[:0]
}

func (h holding) equal(o holding) bool {
	return h.node == o.node && h.team == o.team && h.now == o.now && h.soon == o.soon && h.waiting == o.waiting && h.purse == o.purse &&
		slices.Equal(h.nowGPUs, o.nowGPUs) && slices.Equal(h.soonGPUs, o.soonGPUs)
}

// release gives back what e was taken to hold.
func (c *Planner) release(e *entry) {
	for i := range e.holdings {
		c.enter(&e.holdings[i], -1)
	}
	e.holdings = e.holdings[:0]
}

// enter books h, or with a sign of -1 takes it out again.
func (c *Planner) enter(h *holding, sign int) {
	c.help++ // some room or some share has become free, or may have
	p := c.count[h.team]
	p.held += sign * h.purse.held
	p.leaving += sign * h.purse.leaving
	c.count[h.team] = p
	c.held[h.team], c.leaving[h.team] = p.held, p.leaving
	at, ok := c.index[h.node]
	if !ok || c.stale {
		return
	}
	m := &c.rooms[at]
	m.now.move(m.node, h.now, h.nowGPUs, sign)
	m.soon.move(m.node, h.soon, h.soonGPUs, sign)
	c.holds[2*at].move(m.node, h.now, h.nowGPUs, sign)
	c.holds[2*at+1].move(m.node, h.soon, h.soonGPUs, sign)
	m.leaving += sign * h.waiting
	m.waiting = m.leaving > 0
}

// offerOf takes over what e's function offers now to those who need room.
func (c *Planner) offerOf(e *entry) {
	for _, o := range e.offers {
		m := &c.rooms[o.room]
		list := &m.idle
		if o.busy {
			list = &m.busy
		}
		*list = slices.DeleteFunc(*list, func(v victim) bool { return v.f.Name == e.f.Name })
	}
	was := append(c.was[:0], e.offers...)
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
			at, _ := slices.BinarySearchFunc(*list, v, func(a, b victim) int { return cmp.Or(sooner(a, b), cmp.Compare(a.born, b.born), -1) })
			*list = slices.Insert(*list, at, v)
			o := offered{replica: v.r.ID, room: v.room, busy: busy, ripe: v.ripe, young: v.young, ready: v.r.State == functions.Ready}
			e.offers = append(e.offers, o)
			if !slices.Contains(was, o) {
				c.help++
			}
		}
	}
	for _, o := range was { // that something would soon make way kept others from being told
		if o.young && !slices.Contains(e.offers, o) {
			c.help++
		}
	}
	c.was = was
}

func (c *Planner) offering(busy bool) []victim {
	if busy {
		return c.busy
	}
	return c.idle
}

// withdraw takes what e offers out of the rooms.
func (c *Planner) withdraw(e *entry) {
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

// setAlive keeps the list of functions that have replicas or are wanted, in the
// order in which they came.
func (c *Planner) setAlive(e *entry, alive bool) {
	if e.alive == alive {
		return
	}
	e.alive = alive
	at, _ := slices.BinarySearchFunc(c.living, e, func(a, b *entry) int { return cmp.Compare(a.born, b.born) })
	if alive {
		c.living = slices.Insert(c.living, at, e)
	} else {
		c.living = slices.Delete(c.living, at, at+1)
	}
}

// pressure ends sleepers of nodes that have promised more of the host than there
// is: a budget has shrunk, others have come, or sleep takes more than was thought.
func (c *Planner) pressure() {
	for i := range c.rooms {
		m := &c.rooms[i]
		for m.soon.owes() {
			var in *entry
			var r *Replica
			for _, e := range c.living {
				for j := range e.f.Replicas {
					if s := &e.f.Replicas[j]; s.Node == m.node.ID && s.asleep() && !s.Stopping && !c.told(s) && (r == nil || s.SleptAt < r.SleptAt) {
						in, r = e, s
					}
				}
			}
			if r == nil {
				break
			}
			c.stop(in.f, r, "pressure")
			// Its own look is made with this told, now and the next time.
			c.reopen(in)
			if !in.look {
				in.look = true
				at, _ := slices.BinarySearchFunc(c.looks, in, func(a, b *entry) int { return cmp.Compare(a.born, b.born) })
				c.looks = slices.Insert(c.looks, at, in)
			}
		}
	}
}

// scale looks at one function: what it has too many of is stopped, what it lacks
// is noted for placeAll.
func (c *Planner) scale(e *entry) {
	acts, outer := len(c.actions), c.next
	c.needy, c.next = c.needy[:0], math.MaxInt64
	if e.alive {
		c.function(e.f)
	}
	c.dues.set(e, min(e.offersDue, c.next))
	c.next = outer
	if len(c.actions) > acts {
		c.reopen(e)
	}
	c.needs(e)
	if e.kin != nil && e.kin.own == e {
		e.kin.memo = memo{} // it depends on its own replicas, and on what they were told
	}
}

// undo takes back what the plan has promised: rooms and shares are what the
// world says again.
func (c *Planner) undo() {
	if len(c.actions) == 0 && !c.placed {
		return
	}
	c.placed = false
	copy(c.slots, c.kept)
	for i := range c.rooms {
		m := &c.rooms[i]
		m.now.host, m.soon.host = c.holds[2*i].host, c.holds[2*i+1].host
		m.waiting = m.leaving > 0
	}
	back := func(team string) {
		p := c.count[team]
		c.held[team], c.leaving[team] = p.held, p.leaving
	}
	for i := range c.actions {
		back(c.actions[i].Function.Team)
	}
	for _, k := range c.list {
		back(k.team)
	}
	clear(c.pledged)
	clear(c.claimed)
}
