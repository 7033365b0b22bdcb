package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// memoFor bounds how long it is believed that who was blocked still is. What
// helps is noticed when it happens; this is for what nobody has thought of.
const memoFor = 5 * time.Second

// kinship is all that the answer to "is there room for it" depends on, of the
// function that asks. Functions of one kind are tried in the order of their
// need, and when one is blocked, so are those behind it, untried, until
// something changes that may help. A rule of placing or evicting that looks at
// more of the asking function must enter it here.
type kinship struct {
	team, machine, requires, reason string
	resources                       functions.Resources
	waits                           bool   // somebody is held for it
	own                             *entry // who has replicas of its own, or may be too large for some store, is like nobody else
}

// kin are the functions of one kind that lack replicas.
type kin struct {
	kinship
	items  []*entry // by need
	cursor int      // in a plan: who is next
	left   int      // replicas that it still lacks
	active bool
	acted  bool // blocked, it told others to leave all the same
	memo   memo
	rank   rank     // of who is next
	ranked bool     // that is known
	fresh  []*entry // came since the last plan

	// What was said last: everyone from this one on has this verdict.
	from   *entry
	said   Verdict
	saidAt Instant
}

// memo says who was blocked, and for how long that is known to hold.
type memo struct {
	set     bool
	help    uint64  // holds while this has not moved
	at      Instant // when that was found
	plan    uint64  // and in which plan
	order   uint64  // holds after that plan while this has not moved
	since   Instant
	born    uint64
	left    int     // of its replicas, how many were not placed
	due     Instant // holds until then; 0 for ever
	turn    bool    // a function that has had its turn was or will be asked to go
	patient bool    // it was
	verdict Verdict
}

// before orders the functions of one kind.
func (e *entry) before(since Instant, born uint64) int {
	return cmp.Or(cmp.Compare(e.need.since, since), cmp.Compare(e.born, born))
}

// needs takes over what function has found e to lack.
func (c *Planner) needs(e *entry) {
	if len(c.needy) == 0 {
		c.unneed(e)
		return
	}
	n, lacks := c.needy[0], len(c.needy)
	key := kinship{team: n.f.Name.Team, machine: n.f.Machine, requires: n.f.Requires, reason: n.reason, resources: n.f.Resources, waits: n.f.Queued > 0 && n.f.Oldest > 0}
	if len(n.f.Replicas) > 0 || n.f.Size > c.store || n.f.Fence != "" || n.reason == foreseen { // that looks at what f itself is worth
		key.own = e
	}
	if e.kin != nil && e.kin.kinship == key && e.need == n && e.lacks == lacks {
		return
	}
	c.unneed(e)
	k := c.kins[key]
	if k == nil {
		if i := len(c.free) - 1; i >= 0 {
			k, c.free = c.free[i], c.free[:i]
		} else {
			k = &kin{}
		}
		*k = kin{kinship: key, items: k.items[:0], fresh: k.fresh[:0]} // nothing of who was there before
		c.kins[key] = k
		c.list = append(c.list, k)
	}
	e.kin, e.need, e.lacks, e.sum = k, n, lacks, 0
	at, _ := slices.BinarySearchFunc(k.items, e, func(a, b *entry) int { return a.before(b.need.since, b.born) })
	k.items = slices.Insert(k.items, at, e)
	k.fresh = append(k.fresh, e)
	if p := c.book.begin(c.now, n.f.Name, KindScale, n.reason); p != nil {
		p.add(line{names: &demandParts, parts: [4]float64{float64(c.policy.Want(n.f, c.now)), float64(lacks), float64(n.f.Queued), float64(n.f.Active)}})
	}
}

// unneed takes e from those that lack something.
func (c *Planner) unneed(e *entry) {
	k := e.kin
	if k == nil {
		return
	}
	e.kin = nil
	at, _ := slices.BinarySearchFunc(k.items, e, func(a, b *entry) int { return a.before(b.need.since, b.born) })
	k.items = slices.Delete(k.items, at, at+1)
	if at := slices.Index(k.fresh, e); at >= 0 {
		k.fresh = slices.Delete(k.fresh, at, at+1)
	}
	if k.from == e {
		k.from = nil
	}
	if e.sum != 0 {
		c.order++ // what it was promised is there for others
	}
	c.say(e, Verdict{}, false)
	if len(k.items) == 0 {
		delete(c.kins, k.kinship)
		c.list = slices.Delete(c.list, slices.Index(c.list, k), slices.Index(c.list, k)+1)
		k.own = nil
		c.free = append(c.free, k)
	}
}

// placeAll gives room to those who come first; what one of them has been
// promised, even if it must still be freed, nobody behind it can take.
func (c *Planner) placeAll() {
	d := &c.decision
	c.active = c.active[:0]
	for _, k := range c.list {
		k.cursor, k.left, k.active, k.ranked = 0, k.items[0].lacks, false, false
		c.wake(k)
	}
	d.before = len(d.acted) > 0
	for len(c.active) > 0 {
		k := c.active[0]
		for _, o := range c.active {
			if c.rankOf(o).before(c.rankOf(k)) {
				k = o
			}
		}
		first, e := k.rank, k.items[k.cursor]
		help, order, outer, acts := d.help, c.order, d.next, len(d.actions)
		d.next, d.sum, d.verdict, d.turn = math.MaxInt64, 0, Verdict{}, false
		for _, o := range c.list {
			if o.team == e.f.Name.Team && c.skipped(o) {
				c.rankOf(o) // before what e is promised changes it
			}
		}
		d.claim = claim{}
		d.placing, d.reserved, d.freed, d.freeing = true, false, functions.Resources{}, d.freeing[:0]
		c.placed = true
		ok := false
		switch {
		case e.need.reason != foreseen:
			ok = d.place(e.need)
		case !c.waitsInVain():
			ok = d.placeAhead(e.need)
		}
		d.placing = false
		if len(d.freeing) > 0 {
			if d.leftOver(e.f) {
				d.help++
			}
			c.claimants()
		}
		due := d.next
		d.next = outer
		// What is only foreseen is looked at anew in every plan: what others are
		// worth changes, and there is little of it.
		k.acted = k.acted || !ok && (len(d.actions) > acts || k.reason == foreseen)
		if !ok && len(d.actions) > acts {
			c.changed = true // whoever is not told so the next time is there for others
		}
		if !ok {
			if k.left == e.lacks {
				e.sums = 0
			}
			c.promised(e, e.sums)
			k.memo = memo{set: true, at: c.now, plan: c.plans, help: d.help, since: e.need.since, born: e.born, left: k.left, turn: d.turn, patient: d.turn && !c.impatient(e), verdict: d.verdict}
			if due != math.MaxInt64 {
				k.memo.due = due
			}
			c.rest(k)
		} else {
			d.at(due)
			if k.left == e.lacks {
				e.sums = 0
			}
			e.sums = e.sums*prime + d.sum | 1
			if k.left--; k.left == 0 {
				c.rest(k)
				if k.cursor++; k.cursor < len(k.items) {
					k.left = k.items[k.cursor].lacks
				}
				c.promised(e, e.sums)
				c.wake(k)
			}
		}
		if c.order != order {
			c.passed(first)
		}
		for _, o := range c.list { // what a team holds weighs in its rank
			if o.team == e.f.Name.Team || slices.Contains(d.freeing, o.team) {
				o.ranked = false
			}
		}
		if d.help != help || c.order != order {
			for _, k := range c.list {
				c.wake(k)
			}
		}
	}
	for _, k := range c.list {
		c.settle(k)
	}
	if c.changed {
		c.changed = false
		c.order++
	}
}

// promised notes what e was promised. If that is not what it was the last time,
// what was known of others then may not hold any more.
func (c *Planner) promised(e *entry, sum uint64) {
	if e.sum != sum {
		e.sum = sum
		c.order++
	}
}

// claimants has those tried again whose team has just lost a replica: they may
// claim now what it is owed.
func (c *Planner) claimants() {
	for _, k := range c.list {
		if k.cursor < len(k.items) && k.memo.set && slices.Contains(c.freeing, k.team) {
			k.memo.set = false
			c.wake(k)
		}
	}
}

// passed: e, whose rank was first, got what it did not get the last time. That
// changes who is next; those known to be blocked who ranked before e are so still.
func (c *Planner) passed(first rank) {
	for _, k := range c.list {
		if c.skipped(k) && c.rankOf(k).before(first) {
			k.memo.plan = c.plans
		}
	}
}

// skipped reports whether k is not tried because of what an earlier plan found.
func (c *Planner) skipped(k *kin) bool {
	return !k.active && k.cursor < len(k.items) && k.memo.set && k.memo.plan != c.plans
}

// rankOf is the rank of who is next in k, as it was when that was last asked and
// nothing of its team had changed.
func (c *Planner) rankOf(k *kin) rank {
	if !k.ranked {
		k.ranked, k.rank = true, c.rank(k.items[k.cursor])
	}
	return k.rank
}

// impatient reports whether e's oldest waiter has not waited long enough for
// those who had their turn to make way.
func (c *Planner) impatient(e *entry) bool { return e.f.Oldest+c.policy.Patience > c.now }

// wake has k tried in this plan, unless it is known to be blocked.
func (c *Planner) wake(k *kin) {
	if k.active || k.cursor >= len(k.items) || c.known(k) {
		return
	}
	k.active = true
	c.active = append(c.active, k)
}

// rest takes k from those that are tried.
func (c *Planner) rest(k *kin) {
	if k.active {
		k.active = false
		at := slices.Index(c.active, k)
		c.active = slices.Delete(c.active, at, at+1)
	}
}

// known reports whether who is next in k is known to be blocked.
func (c *Planner) known(k *kin) bool {
	m, e := &k.memo, k.items[k.cursor]
	if !m.set || c.now-m.at >= c.trust && m.plan != c.plans || m.plan != c.plans && m.order != c.order || m.help != c.help || m.due != 0 && m.due <= c.now {
		return false
	}
	if order := e.before(m.since, m.born); order < 0 || order == 0 && k.left > m.left {
		return false
	}
	return !m.turn || m.patient || c.impatient(e)
}

// settle says of each function in k what became of it.
func (c *Planner) settle(k *kin) {
	var from *entry
	var v Verdict
	if k.cursor < len(k.items) {
		from, v = k.items[k.cursor], k.memo.verdict
		k.memo.order = c.order
		if k.memo.due != 0 {
			c.at(k.memo.due)
		}
		if k.memo.turn && c.impatient(from) {
			c.at(from.f.Oldest + c.policy.Patience)
		}
	}
	if k.acted {
		k.acted, k.memo.set = false, false // it is to ask for the same again, should that get lost
	}
	all := k.from != from || k.said.Code != v.Code || k.said.Message != v.Message
	again := !all && v.Code != "" && c.now-k.saidAt >= sayAgain
	list := k.fresh
	if all || again {
		list, k.saidAt = k.items, c.now
	}
	if (again || len(list) > 0) && v.ETA >= 0 && v.Code != "" && v.Code != CodeBudget {
		v.ETA = c.wait(from.f, v.Code == CodeQuota)
	}
	for _, e := range list {
		if from != nil && e.before(from.need.since, from.born) >= 0 {
			if e != from && e.sum != 0 {
				e.sum = 0
				c.changed = true
			}
			c.say(e, v, again)
		} else {
			c.say(e, Verdict{}, false)
		}
	}
	clear(k.fresh)
	k.fresh, k.from, k.said = k.fresh[:0], from, v
}

// sayAgain is after how long the ETA of a verdict is told anew: it is a span, and
// time has passed.
const sayAgain = 10 * time.Second

// say gives e a verdict, or none. With again it is the old one with another ETA.
func (c *Planner) say(e *entry, v Verdict, again bool) {
	name := e.f.Name
	if v.Code == "" {
		if e.told {
			e.told = false
			delete(c.blocked, name)
			c.verdictTurned(e)
		}
		return
	}
	if old := c.blocked[name]; again || !e.told || old.Code != v.Code || old.Message != v.Message {
		e.told = true
		if v.ETA >= 0 {
			v.ETA += e.f.cold()
		}
		c.blocked[name] = v
		c.verdictTurned(e)
	}
}

func (c *Planner) verdictTurned(e *entry) {
	if e.turned != c.plans {
		e.turned = c.plans
		c.turned = append(c.turned, e.f.Name)
	}
}

// prime of FNV-1a.
const prime = 1099511628211

// mix adds s to the sum of what the function that is placed is promised.
func (d *decision) mix(s string) {
	for i := range len(s) {
		d.sum = (d.sum ^ uint64(s[i])) * prime
	}
	d.sum++
}

// dues is a heap of functions by when they are to be looked at.
type dues []*entry

// set gives e a time; math.MaxInt64 takes it out.
func (h *dues) set(e *entry, due Instant) {
	s := *h
	switch {
	case due == math.MaxInt64 && e.at < 0:
		e.due = due
		return
	case due == math.MaxInt64:
		last := len(s) - 1
		at := e.at
		if at != last {
			s[at] = s[last]
			s[at].at = at
		}
		s[last] = nil
		*h = s[:last]
		if at != last {
			h.down(h.up(at))
		}
		e.at, e.due = -1, due
	case e.at < 0:
		e.at, e.due = len(s), due
		*h = append(s, e)
		h.up(e.at)
	default:
		e.due = due
		h.down(h.up(e.at))
	}
}

func (h *dues) up(at int) int {
	s := *h
	for at > 0 {
		p := (at - 1) / 2
		if s[p].due <= s[at].due {
			break
		}
		s[p], s[at] = s[at], s[p]
		s[p].at, s[at].at = p, at
		at = p
	}
	return at
}

func (h *dues) down(at int) {
	s := *h
	for {
		c := 2*at + 1
		if c >= len(s) {
			return
		}
		if c+1 < len(s) && s[c+1].due < s[c].due {
			c++
		}
		if s[at].due <= s[c].due {
			return
		}
		s[c], s[at] = s[at], s[c]
		s[c].at, s[at].at = c, at
		at = c
	}
}
