package ratelimit

import (
	"errors"
	"math"
	"sync"
	"time"
)

// Key is one limit of a team.
type Key struct {
	Team string
	Kind Kind
}

// BankOptions of a Bank. Tell must be set.
type BankOptions struct {
	// Tell tells an activator, newest last; what is not written yet is overtaken by
	// what is told later of the same. It must not block, nor call the bank.
	Tell func(id string, g Grants)
	// Saved is what was left of a limit when somebody wrote it down, and how long ago
	// that was; may be nil.
	Saved func(Key) (left float64, ago time.Duration, ok bool)
	// Dead reports whether an activator that is away is known to live no more; may
	// be nil.
	Dead func(id string) bool
	// Gathering banks wait for Gathered.
	Gathering bool
}

// Bank has what nobody else has. Its methods may be called concurrently; now is an
// argument everywhere.
type Bank struct {
	o BankOptions

	mu        sync.Mutex
	accounts  map[Key]*account
	hungry    map[*account]bool
	members   map[string]*member
	gathering bool
	seq       uint64
}

// member is an activator.
type member struct {
	lost  time.Time // zero while it is linked
	told  float64   // its part
	knows float64   // its part as it said itself
	holds map[*account]*holding
}

func (m *member) part() float64 { return max(m.told, m.knows) }

// account is one limit.
type account struct {
	key      Key
	size     float64
	level    float64 // units in the bank; of places it is counted anew
	at       time.Time
	begun    bool    // level is what there is, and not what has come since
	echo     float64 // what a bank before had left, by the activator that was told last
	echoed   uint64  // the number of that; 0: nobody was told
	recall   uint64
	recallAt time.Time
	turn     int
	of       []*holding
}

// holding is what one activator has of one limit.
type holding struct {
	id       string
	m        *member
	given    int64
	back     int64
	have     int64 // at most
	used     int64
	want     int64
	waits    int64
	recalled uint64
	told     Grant
}

// NewBank makes one.
func NewBank(o BankOptions) *Bank {
	return &Bank{o: o, accounts: map[Key]*account{}, hungry: map[*account]bool{}, members: map[string]*member{}, gathering: o.Gathering}
}

// mostAccounts bounds what activators may tell of.
const mostAccounts = 1 << 17

func (b *Bank) account(k Key, now time.Time) *account {
	a := b.accounts[k]
	if a == nil && len(b.accounts) < mostAccounts {
		a = &account{key: k, at: now}
		b.accounts[k] = a
	}
	return a
}

// SetLimits tells all limits there are.
func (b *Bank) SetLimits(limits map[Key]int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, n := range limits {
		a := b.account(k, now)
		if a == nil || a.size == float64(n) {
			continue
		}
		b.fill(a, now)
		if a.begun && a.size > 0 {
			a.level += float64(n) - a.size // what was used stays used
		}
		a.size = float64(n)
		b.begin(a)
		b.deal(a, now)
	}
	for k, a := range b.accounts {
		if limits[k] == 0 && a.size > 0 {
			a.size, a.level, a.begun = 0, 0, false
			delete(b.hungry, a)
		}
	}
}

// begin gives an account what a bank before had left, or what it begins with.
func (b *Bank) begin(a *account) {
	if a.begun || b.gathering || a.size == 0 {
		return
	}
	a.begun = true
	if a.echoed > 0 {
		a.level += a.echo
	} else {
		a.level = a.size
		if b.o.Saved != nil {
			if left, ago, ok := b.o.Saved(a.key); ok {
				a.level = min(a.size, left+in(a.size, a.key.Kind, ago))
			}
		}
	}
	a.level = min(a.level, b.room(a))
}

// room is how much the bank may have of a limit.
func (b *Bank) room(a *account) float64 {
	n := a.size
	for _, h := range a.of {
		have := float64(h.have)
		if !h.m.lost.IsZero() && a.key.Kind.Span() > 0 {
			have = max(have, a.size*h.m.part())
		}
		n -= have
	}
	if a.key.Kind.Span() > 0 {
		for _, m := range b.members {
			if !m.lost.IsZero() && m.holds[a] == nil {
				n -= a.size * m.part()
			}
		}
	}
	return n
}

// filling is the part of each limit that comes to the bank and not to purses.
func (b *Bank) filling() float64 {
	part := 1.0
	if b.gathering {
		part = 0
	}
	for _, m := range b.members {
		switch {
		case b.gathering && m.lost.IsZero():
			part += m.knows
		case !b.gathering && !m.lost.IsZero():
			part -= m.part()
		}
	}
	return min(1, max(0, part))
}

func (b *Bank) fill(a *account, now time.Time) {
	if a.size == 0 {
		a.at = now
		return
	}
	room := b.room(a)
	if a.key.Kind.Span() == 0 {
		if a.level = room; b.gathering {
			a.level = 0
		}
		return
	}
	if d := now.Sub(a.at); d > 0 {
		a.at = now
		a.level += in(a.size*b.filling(), a.key.Kind, d)
	}
	a.level = min(a.level, room)
}

// all fills every account: how fast they fill is about to change.
func (b *Bank) all(now time.Time) {
	for _, a := range b.accounts {
		b.fill(a, now)
	}
}

var errClaim = errors.New("a claim is less than nothing, or takes back what was said")

// Hear takes in what an activator claims. First is the first message of its
// connection: what the activator had on another one it says anew.
func (b *Bank) Hear(id string, first bool, c *Claims, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[id]
	if first {
		b.all(now)
		if m != nil {
			b.forget(m)
		}
		m = &member{holds: map[*account]*holding{}}
		b.members[id] = m
	}
	if m == nil || !m.lost.IsZero() {
		return nil // of a link that has ended
	}
	if c == nil {
		return nil
	}
	if !(c.Part >= 0 && c.Part <= 1) {
		return errClaim
	}
	if first || c.Part != m.knows {
		b.all(now)
		m.knows = c.Part
		if first {
			m.told = c.Part
		}
		b.parts()
	}
	for i := range c.List {
		if err := b.hear(id, m, first, &c.List[i], now); err != nil {
			return err
		}
	}
	return nil
}

// most is more than any limit.
const most = 1 << 52

func (b *Bank) hear(id string, m *member, first bool, c *Claim, now time.Time) error {
	if c.Kind >= Kinds || c.Want < 0 || c.Waits < 0 || c.Used < 0 || c.Have > most || c.Have < -most || c.Want > most || c.Waits > most || math.IsNaN(c.Left) {
		return errClaim
	}
	a := b.account(Key{c.Team, c.Kind}, now)
	if a == nil {
		return nil
	}
	b.fill(a, now)
	h := m.holds[a]
	if h == nil {
		h = &holding{id: id, m: m}
		m.holds[a] = h
		a.of = append(a.of, h)
	}
	back := c.Back - h.back
	// Who is in debt has less than nothing, and gives nothing back.
	if back < 0 || c.Got < 0 || c.Got > h.given || back > max(0, h.have) {
		return errClaim
	}
	h.back = c.Back
	coming := h.given - c.Got
	h.have, h.used, h.recalled = c.Have+coming, c.Used, c.Recalled
	h.want = max(0, c.Want-coming)
	h.waits = min(h.want, max(0, c.Waits-coming))
	b.seq = max(b.seq, c.Seq)
	if a.key.Kind.Span() > 0 {
		a.level += float64(back)
	}
	if first && !a.begun && c.Seq > a.echoed {
		a.echo, a.echoed = c.Left, c.Seq
	}
	b.begin(a)
	b.deal(a, now)
	return nil
}

// forget takes away what an activator had.
func (b *Bank) forget(m *member) {
	for a, h := range m.holds {
		for i := range a.of {
			if a.of[i] == h {
				a.of = append(a.of[:i], a.of[i+1:]...)
				break
			}
		}
	}
	clear(m.holds)
}

// Left is told that an activator's link has ended.
func (b *Bank) Left(id string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.members[id]; m != nil && m.lost.IsZero() {
		b.all(now)
		m.lost = now
		for _, h := range m.holds {
			h.want, h.waits = 0, 0
		}
	}
}

// Gathered says that all activators that are to be expected are there.
func (b *Bank) Gathered(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.gathering {
		return
	}
	b.all(now)
	b.gathering = false
	b.parts()
	for _, a := range b.accounts {
		b.begin(a)
		b.deal(a, now)
	}
}

// Tick looks again at what is wanted and was not there, and at who is away. It is
// called several times a second.
func (b *Bank) Tick(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	gone := false
	for id, m := range b.members {
		if m.lost.IsZero() || now.Sub(m.lost) < Believed && (b.o.Dead == nil || !b.o.Dead(id)) {
			continue
		}
		if !gone {
			b.all(now)
		}
		b.forget(m)
		delete(b.members, id)
		gone = true
	}
	if gone {
		b.parts()
	}
	for a := range b.hungry {
		b.deal(a, now)
	}
}

// parts gives each activator its part of what fills without a link: as much as the
// others, once these have said that they have less.
func (b *Bank) parts() {
	if len(b.members) == 0 || b.gathering {
		return
	}
	even := 1 / float64(len(b.members))
	sum := 0.0
	for id, m := range b.members {
		if m.lost.IsZero() && m.told > even {
			m.told = even
			b.o.Tell(id, Grants{Part: m.told})
		}
		sum += m.part()
	}
	for id, m := range b.members {
		if !m.lost.IsZero() || m.told >= even-epsilon {
			continue
		}
		room := 1 - sum + m.part()
		if next := min(even, room); next > m.told+epsilon {
			sum += max(next, m.knows) - m.part()
			m.told = next
			b.o.Tell(id, Grants{Part: next})
		}
	}
}

// deal gives what is wanted as far as there is something, and calls in what others
// may have.
func (b *Bank) deal(a *account, now time.Time) {
	if a.size == 0 {
		return
	}
	b.fill(a, now)
	linked := int64(0)
	for _, m := range b.members {
		if m.lost.IsZero() {
			linked++
		}
	}
	var wanted, waiting int64
	for _, h := range a.of {
		wanted += h.want
		waiting += h.waits
	}
	free := int64(math.Floor(max(0, a.level) + epsilon))
	spare := int64(0)
	if wanted <= free && linked > 0 && now.Sub(a.recallAt) >= calm {
		spare = int64(a.size) / (idle * linked)
	}
	first := min(free, waiting)
	b.divide(a, first, func(h *holding) *int64 { return &h.waits })
	// Soon after a recall nobody gets what he does not need now, or it goes to and fro.
	if free -= first; free > 0 && now.Sub(a.recallAt) >= calm {
		b.divide(a, min(free, wanted-first), func(h *holding) *int64 { return &h.want })
	}
	hungry := false
	for _, h := range a.of {
		hungry = hungry || h.want > 0
	}
	if hungry {
		b.hungry[a] = true
	} else {
		delete(b.hungry, a)
	}
	called := b.call(a, now)
	for _, h := range a.of {
		if !h.m.lost.IsZero() {
			continue
		}
		g := Grant{Team: a.key.Team, Kind: a.key.Kind, Given: h.given, Idle: spare, Recall: a.recall}
		if h.waits > 0 && !called {
			g.Dry = max(until(1-a.level, a.size*max(b.filling(), epsilon), a.key.Kind), time.Millisecond)
		}
		if g.Given == h.told.Given && g.Idle == h.told.Idle && g.Recall == h.told.Recall && g.Dry == 0 {
			continue
		}
		if g.Dry > 0 { // one answer; who still waits after it asks again
			h.waits = 0
		}
		h.told = g
		b.seq++
		g.Seq, g.Left = b.seq, a.level
		b.o.Tell(h.id, Grants{Part: h.m.told, List: []Grant{g}})
	}
}

// divide gives n units to those whose need is not nothing, evenly and by turns.
func (b *Bank) divide(a *account, n int64, need func(*holding) *int64) {
	for n > 0 {
		var open []*holding
		for i := range a.of {
			if h := a.of[(i+a.turn)%len(a.of)]; h.m.lost.IsZero() && *need(h) > 0 {
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
			h.given += k
			h.have += k
			h.want -= k
			if h.waits -= k; h.waits < 0 {
				h.waits = 0
			}
			a.level -= float64(k)
		}
		a.turn++
	}
}

// call calls in what others have of a limit that somebody waits for. It tells whether
// an answer may still bring something.
func (b *Bank) call(a *account, now time.Time) bool {
	waits, pending, some := false, false, false
	for _, h := range a.of {
		waits = waits || h.waits > 0
	}
	if !waits {
		return false
	}
	for _, h := range a.of {
		if !h.m.lost.IsZero() || h.have <= 0 || h.waits > 0 {
			continue
		}
		some = true
		pending = pending || h.recalled < a.recall
	}
	switch {
	case pending:
		return true
	case some && now.Sub(a.recallAt) >= recall:
		a.recall++
		a.recallAt = now
		return true
	}
	return false
}

// Use is what a team has used of a limit, as far as the bank knows.
type Use struct {
	Size int64
	Left float64 // unspent, wherever it is; of places those that are free
	Used int64   // places in use
}

// Use of a limit now.
func (b *Bank) Use(k Key, now time.Time) Use {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[k]
	if a == nil || a.size == 0 {
		return Use{}
	}
	b.fill(a, now)
	u := Use{Size: int64(a.size), Left: a.level}
	for _, h := range a.of {
		u.Used += h.used
		u.Left += float64(h.have)
	}
	if k.Kind.Span() == 0 {
		u.Left = a.size - float64(u.Used)
	}
	u.Left = max(0, u.Left)
	return u
}

// Levels are what is left of the limits that are not full.
func (b *Bank) Levels(kind Kind, now time.Time) map[string]float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]float64{}
	for k, a := range b.accounts {
		if k.Kind != kind || a.size == 0 || !a.begun {
			continue
		}
		b.fill(a, now)
		left := a.level
		for _, h := range a.of {
			left += float64(h.have)
		}
		if left < a.size-epsilon {
			out[k.Team] = left
		}
	}
	return out
}
