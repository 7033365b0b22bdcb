package ratelimit

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

// Key is one limit of a team.
type Key struct {
	Team string
	Kind Kind
}

// CoordinatorOptions of a Coordinator. Send must be set.
type CoordinatorOptions struct {
	// Send queues a message to an activator; a later one about the same limit replaces one
	// not written yet. It must not block, nor call the coordinator.
	Send func(id string, g Allotments)
	// Dead reports whether a disconnected activator is known to be dead; may be nil.
	Dead func(id string) bool
	// Recovering banks wait for Gathered.
	Recovering bool
}

// Coordinator holds the units not allotted to any activator. Its methods may be called concurrently; now is an
// argument everywhere.
type Coordinator struct {
	o CoordinatorOptions

	mu         sync.Mutex
	limits     map[Key]*limit
	unmet      map[*limit]bool
	members    map[string]*member
	recovering bool
	seq        uint64
}

type member struct {
	disconnectedAt time.Time // zero while it is connected
	sent           float64   // its share
	reported       float64   // its share as it reported itself
	holds          map[*limit]*holding
}

func (m *member) share() float64 { return max(m.sent, m.reported) }

type limit struct {
	key       Key
	size      float64
	level     float64 // units not allotted; of places it is computed anew
	at        time.Time
	exact     bool    // level is the true remainder, not only what came since the start
	priorLeft float64 // what a former coordinator had left, by the newest allotment
	priorSeq  uint64  // the Seq of that; 0: there is none
	recall    uint64
	recallAt  time.Time
	turn      int
	holdings  []*holding
}

// holding is one activator's part of one limit.
type holding struct {
	id       string
	member   *member
	granted  int64
	returned int64
	have     int64 // at most
	used     int64
	want     int64
	waiting  int64
	recalled uint64
	sent     Allotment
}

func NewCoordinator(o CoordinatorOptions) *Coordinator {
	return &Coordinator{o: o, limits: map[Key]*limit{}, unmet: map[*limit]bool{}, members: map[string]*member{}, recovering: o.Recovering}
}

// maxLimits bounds the limits that activators may report.
const maxLimits = 1 << 17

func (c *Coordinator) limit(k Key, now time.Time) *limit {
	l := c.limits[k]
	if l == nil && len(c.limits) < maxLimits {
		l = &limit{key: k, at: now}
		c.limits[k] = l
	}
	return l
}

// SetLimits replaces all limits.
func (c *Coordinator) SetLimits(limits map[Key]int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range limits {
		l := c.limit(k, now)
		if l == nil || l.size == float64(n) {
			continue
		}
		c.refill(l, now)
		if l.exact && l.size > 0 {
			l.level += float64(n) - l.size // what was used stays used
		}
		l.size = float64(n)
		c.initLevel(l)
		c.allot(l, now)
	}
	for k, l := range c.limits {
		if limits[k] == 0 && l.size > 0 {
			l.size, l.level, l.exact = 0, 0, false
			delete(c.unmet, l)
		}
	}
}

// initLevel gives an account what a former coordinator had left, or what it begins with.
func (c *Coordinator) initLevel(l *limit) {
	if l.exact || c.recovering || l.size == 0 {
		return
	}
	l.exact = true
	if l.priorSeq > 0 {
		l.level += l.priorLeft
	} else {
		l.level = l.size
	}
	l.level = min(l.level, c.maxLevel(l))
}

// maxLevel is how much the coordinator may have of a limit.
func (c *Coordinator) maxLevel(l *limit) float64 {
	n := l.size
	for _, h := range l.holdings {
		have := float64(h.have)
		if !h.member.disconnectedAt.IsZero() && l.key.Kind.Span() > 0 {
			have = max(have, l.size*h.member.share())
		}
		n -= have
	}
	if l.key.Kind.Span() > 0 {
		for _, m := range c.members {
			if !m.disconnectedAt.IsZero() && m.holds[l] == nil {
				n -= l.size * m.share()
			}
		}
	}
	return n
}

// refillShare is the part of each limit that comes to the coordinator and not to buckets.
func (c *Coordinator) refillShare() float64 {
	part := 1.0
	if c.recovering {
		part = 0
	}
	for _, m := range c.members {
		switch {
		case c.recovering && m.disconnectedAt.IsZero():
			part += m.reported
		case !c.recovering && !m.disconnectedAt.IsZero():
			part -= m.share()
		}
	}
	return min(1, max(0, part))
}

func (c *Coordinator) refill(l *limit, now time.Time) {
	if l.size == 0 {
		l.at = now
		return
	}
	missing := c.maxLevel(l)
	if l.key.Kind.Span() == 0 {
		if l.level = missing; c.recovering {
			l.level = 0
		}
		return
	}
	if d := now.Sub(l.at); d > 0 {
		l.at = now
		l.level += refilled(l.size*c.refillShare(), l.key.Kind, d)
	}
	l.level = min(l.level, missing)
}

// refillAll refills every limit, before the rate of refill changes.
func (c *Coordinator) refillAll(now time.Time) {
	for _, l := range c.limits {
		c.refill(l, now)
	}
}

var errReport = errors.New("usage report has negative or decreasing totals")

// Report applies an activator's reports. first marks the first message of a connection,
// which replaces what the activator reported on another one.
func (c *Coordinator) Report(id string, first bool, reports *UsageReports, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	if first {
		c.refillAll(now)
		if m != nil {
			c.dropHoldings(m)
		}
		m = &member{holds: map[*limit]*holding{}}
		c.members[id] = m
	}
	if m == nil || !m.disconnectedAt.IsZero() || reports == nil { // of a connection that has ended, or empty
		return nil
	}
	if !(reports.Share >= 0 && reports.Share <= 1) {
		return errReport
	}
	if first || reports.Share != m.reported {
		c.refillAll(now)
		m.reported = reports.Share
		if first {
			m.sent = reports.Share
		}
		c.balanceShares()
	}
	for i := range reports.List {
		if err := c.apply(id, m, first, &reports.List[i], now); err != nil {
			return err
		}
	}
	return nil
}

// maxUnits is more than any limit.
const maxUnits = 1 << 52

func (c *Coordinator) apply(id string, m *member, first bool, report *UsageReport, now time.Time) error {
	if report.Kind >= kindCount || report.Want < 0 || report.Waiting < 0 || report.Used < 0 || report.Held > maxUnits ||
		report.Held < -maxUnits || report.Want > maxUnits || report.Waiting > maxUnits || math.IsNaN(report.Left) {
		return errReport
	}
	l := c.limit(Key{report.Team, report.Kind}, now)
	if l == nil {
		return nil
	}
	c.refill(l, now)
	h := m.holds[l]
	if h == nil {
		h = &holding{id: id, member: m}
		m.holds[l] = h
		l.holdings = append(l.holdings, h)
	}
	back := report.Returned - h.returned
	// A bucket in debt returns nothing.
	if back < 0 || report.Received < 0 || report.Received > h.granted || back > max(0, h.have) {
		return errReport
	}
	h.returned = report.Returned
	coming := h.granted - report.Received
	h.have, h.used, h.recalled = report.Held+coming, report.Used, report.Recalled
	h.want = max(0, report.Want-coming)
	h.waiting = min(h.want, max(0, report.Waiting-coming))
	c.seq = max(c.seq, report.Seq)
	if l.key.Kind.Span() > 0 {
		l.level += float64(back)
	}
	if first && !l.exact && report.Seq > l.priorSeq {
		l.priorLeft, l.priorSeq = report.Left, report.Seq
	}
	c.initLevel(l)
	c.allot(l, now)
	return nil
}

func (c *Coordinator) dropHoldings(m *member) {
	for l, h := range m.holds {
		l.holdings = slices.DeleteFunc(l.holdings, func(x *holding) bool { return x == h })
	}
	clear(m.holds)
}

// OnDisconnect records that an activator's connection has ended.
func (c *Coordinator) OnDisconnect(id string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[id]; m != nil && m.disconnectedAt.IsZero() {
		c.refillAll(now)
		m.disconnectedAt = now
		for _, h := range m.holds {
			h.want, h.waiting = 0, 0
		}
	}
}

// Recovered ends recovery: all expected activators are connected.
func (c *Coordinator) Recovered(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.recovering {
		return
	}
	c.refillAll(now)
	c.recovering = false
	c.balanceShares()
	for _, l := range c.limits {
		c.initLevel(l)
		c.allot(l, now)
	}
}

// Tick serves unmet wants anew and drops activators that are gone for good. It is called
// several times a second.
func (c *Coordinator) Tick(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := false
	for id, m := range c.members {
		if m.disconnectedAt.IsZero() || now.Sub(m.disconnectedAt) < PartitionGrace && (c.o.Dead == nil || !c.o.Dead(id)) {
			continue
		}
		if !gone {
			c.refillAll(now)
		}
		c.dropHoldings(m)
		delete(c.members, id)
		gone = true
	}
	if gone {
		c.balanceShares()
	}
	for l := range c.unmet {
		c.allot(l, now)
	}
}

// balanceShares gives connected activators equal shares of what refills without a
// connection. A share grows only after the others have confirmed smaller ones.
func (c *Coordinator) balanceShares() {
	if len(c.members) == 0 || c.recovering {
		return
	}
	even := 1 / float64(len(c.members))
	sum := 0.0
	for id, m := range c.members {
		if m.disconnectedAt.IsZero() && m.sent > even {
			m.sent = even
			c.o.Send(id, Allotments{Share: m.sent})
		}
		sum += m.share()
	}
	for id, m := range c.members {
		if !m.disconnectedAt.IsZero() || m.sent >= even-epsilon {
			continue
		}
		missing := 1 - sum + m.share()
		if next := min(even, missing); next > m.sent+epsilon {
			sum += max(next, m.reported) - m.share()
			m.sent = next
			c.o.Send(id, Allotments{Share: next})
		}
	}
}

// allot serves wants as far as there are units, and recalls units of other activators.
func (c *Coordinator) allot(l *limit, now time.Time) {
	if l.size == 0 {
		return
	}
	c.refill(l, now)
	connected := int64(0)
	for _, m := range c.members {
		if m.disconnectedAt.IsZero() {
			connected++
		}
	}
	var wanted, waiting int64
	for _, h := range l.holdings {
		wanted += h.want
		waiting += h.waiting
	}
	free := int64(math.Floor(max(0, l.level) + epsilon))
	spare := int64(0)
	if wanted <= free && connected > 0 && now.Sub(l.recallAt) >= recallPause {
		spare = int64(l.size) / (idleParts * connected)
	}
	first := min(free, waiting)
	c.divide(l, first, func(h *holding) *int64 { return &h.waiting })
	// Soon after a recall only waiting requests are served, or units would oscillate.
	if free -= first; free > 0 && now.Sub(l.recallAt) >= recallPause {
		c.divide(l, min(free, wanted-first), func(h *holding) *int64 { return &h.want })
	}
	if slices.ContainsFunc(l.holdings, func(h *holding) bool { return h.want > 0 }) {
		c.unmet[l] = true
	} else {
		delete(c.unmet, l)
	}
	called := c.requestRecall(l, now)
	for _, h := range l.holdings {
		if !h.member.disconnectedAt.IsZero() {
			continue
		}
		g := Allotment{Team: l.key.Team, Kind: l.key.Kind, Granted: h.granted, Idle: spare, Recall: l.recall}
		if h.waiting > 0 && !called {
			g.Exhausted = max(timeToRefill(1-l.level, l.size*max(c.refillShare(), epsilon), l.key.Kind), time.Millisecond)
		}
		if g.Granted == h.sent.Granted && g.Idle == h.sent.Idle && g.Recall == h.sent.Recall && g.Exhausted == 0 {
			continue
		}
		if g.Exhausted > 0 { // answered once; a request that still waits asks again
			h.waiting = 0
		}
		h.sent = g
		c.seq++
		g.Seq, g.Left = c.seq, l.level
		c.o.Send(h.id, Allotments{Share: h.member.sent, List: []Allotment{g}})
	}
}

// divide deals n units evenly and in turns to holdings with a need.
func (c *Coordinator) divide(l *limit, n int64, need func(*holding) *int64) {
	for n > 0 {
		var open []*holding
		for i := range l.holdings {
			if h := l.holdings[(i+l.turn)%len(l.holdings)]; h.member.disconnectedAt.IsZero() && *need(h) > 0 {
				open = append(open, h)
			}
		}
		if len(open) == 0 {
			return
		}
		each := max(1, n/int64(len(open)))
		for _, h := range open {
			k := min(each, *need(h), n)
			n -= k
			h.granted += k
			h.have += k
			h.want -= k
			h.waiting = max(0, h.waiting-k)
			l.level -= float64(k)
		}
		l.turn++
	}
}

// requestRecall recalls the spare units of a limit that requests wait for. It reports
// whether a recall under way may still bring some.
func (c *Coordinator) requestRecall(l *limit, now time.Time) bool {
	if !slices.ContainsFunc(l.holdings, func(h *holding) bool { return h.waiting > 0 }) {
		return false
	}
	pending, any := false, false
	for _, h := range l.holdings {
		if !h.member.disconnectedAt.IsZero() || h.have <= 0 || h.waiting > 0 {
			continue
		}
		any = true
		pending = pending || h.recalled < l.recall
	}
	switch {
	case pending:
		return true
	case any && now.Sub(l.recallAt) >= recallEvery:
		l.recall++
		l.recallAt = now
		return true
	}
	return false
}

// Use is a team's use of a limit, as far as the coordinator knows.
type Use struct {
	Left float64 // unspent, wherever it is; of places those that are free
	Used int64   // places in use
}

func (c *Coordinator) Use(k Key, now time.Time) Use {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.limits[k]
	if l == nil || l.size == 0 {
		return Use{}
	}
	c.refill(l, now)
	u := Use{Left: l.level}
	for _, h := range l.holdings {
		u.Used += h.used
		u.Left += float64(h.have)
	}
	if k.Kind.Span() == 0 {
		u.Left = l.size - float64(u.Used)
	}
	u.Left = max(0, u.Left)
	return u
}
