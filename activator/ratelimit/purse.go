package ratelimit

import (
	"math"
	"time"
)

// Tie is how purses stand to the bank. The zero Tie has none: all of a limit is one
// purse's. It is immutable.
type Tie struct {
	Bank   bool      // there is one
	Linked bool      // and it is heard
	Part   float64   // of each limit, without a link
	Since  time.Time // that there is no link: it counts a little later, when the bank knows it too
}

// late is how much later the other end of a link may see its end.
const late = 2 * time.Second

// fills is which part of a limit fills a purse by itself at a time, and since when.
func (t *Tie) fills() (part float64, since time.Time) {
	switch {
	case !t.Bank:
		return 1, time.Time{}
	case t.Linked || t.Since.IsZero():
		return 0, time.Time{}
	}
	return t.Part, t.Since.Add(late)
}

// Purse is what an activator has of one limit of a team. It has no lock of its own.
type Purse struct {
	kind  Kind
	size  float64 // of the limit; 0 is none
	level float64 // units; of places those lent
	used  int64   // places in use
	at    time.Time

	burn   float64 // units spent in the last second or so; of places the most in use
	burnAt time.Time
	lacked time.Time // when one was missing last

	waits            int64
	back, got        int64 // of this connection
	idle             int64
	recall, recalled uint64
	dry              time.Duration
	dryAt            time.Time
	seq              uint64
	left             float64
	claimed          Claim
	changed          chan struct{} // closed with the next grant; nil: nobody waits
}

// NewPurse makes one for a limit that is not told yet.
func NewPurse(k Kind) Purse { return Purse{kind: k} }

// Size is the limit, 0 where there is none.
func (p *Purse) Size() int { return int(p.size) }

// Resize tells the limit; what was used stays used.
func (p *Purse) Resize(n int, t *Tie) {
	was := p.size
	p.size = float64(max(n, 0))
	switch {
	case t.Bank: // which knows it
		if p.kind.Span() > 0 {
			p.level = min(p.level, p.size)
		}
	case p.kind.Span() == 0:
		p.level = p.size
	case was == 0:
		p.level = p.size
	default:
		p.level += p.size - was
	}
}

// fill adds what has come without the bank.
func (p *Purse) fill(t *Tie, now time.Time) {
	part, since := t.fills()
	from := p.at
	if from.IsZero() {
		p.at = now
		return
	}
	if since.After(from) {
		from = since
	}
	if !now.After(p.at) {
		return
	}
	p.at = now
	if most := p.size * part; p.level < most {
		p.level = min(most, p.level+in(most, p.kind, now.Sub(from)))
	}
}

// Free is how many units may be taken now; less than nothing is a debt.
func (p *Purse) Free(t *Tie, now time.Time) float64 {
	p.fill(t, now)
	return p.level - float64(p.used)
}

// Take takes n units, whether there are so many or not. Places are given back with a
// negative n.
func (p *Purse) Take(n int64, now time.Time) {
	p.cool(now)
	if p.kind.Span() == 0 {
		p.used += n
		p.burn = max(p.burn, float64(p.used))
		return
	}
	p.level -= float64(n)
	p.burn += float64(n)
}

// Used is how many places are in use.
func (p *Purse) Used() int { return int(p.used) }

// Left is how many units there are in all, as far as is known here.
func (p *Purse) Left(t *Tie, now time.Time) int {
	n := p.Free(t, now)
	if t.Linked {
		n += p.left
	}
	return int(max(0, math.Floor(n+epsilon)))
}

// Until is how long it takes, without anybody spending, until there are n in all.
func (p *Purse) Until(n float64, t *Tie, now time.Time) time.Duration {
	have, size := p.Free(t, now), p.size
	switch part, _ := t.fills(); {
	case t.Linked:
		have += p.left
	case t.Bank:
		size *= part
	}
	return until(n-have, size, p.kind)
}

// cool lets what was spent be forgotten.
func (p *Purse) cool(now time.Time) {
	if d := now.Sub(p.burnAt); d > 0 && !p.burnAt.IsZero() {
		if p.burn *= math.Exp(-d.Seconds()); p.burn < 0.05 {
			p.burn = 0
		}
	}
	p.burnAt = now
}

// Lack notes that a unit was missing. It tells whether there may be one elsewhere,
// which Wait waits for, and otherwise when there will be.
func (p *Purse) Lack(t *Tie, now time.Time) (elsewhere bool, after time.Duration) {
	p.lacked = now
	if !t.Linked {
		return false, p.Until(1, t, now)
	}
	if d := now.Sub(p.dryAt); p.dry > 0 && d < dryFor {
		return false, max(p.dry-d, time.Millisecond)
	}
	return true, p.Until(1, t, now)
}

// Wait is closed with the next grant. Unwait is called when the waiting is over.
func (p *Purse) Wait() <-chan struct{} {
	p.waits++
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// Unwait ends what Wait began.
func (p *Purse) Unwait() { p.waits-- }

// Grant takes in what the bank says.
func (p *Purse) Grant(g *Grant, now time.Time) {
	if more := g.Given - p.got; more > 0 {
		p.got = g.Given
		p.level += float64(more)
	}
	p.idle, p.recall = g.Idle, max(p.recall, g.Recall)
	if g.Seq >= p.seq {
		p.seq, p.left = g.Seq, g.Left
	}
	if p.dry, p.dryAt = g.Dry, now; p.dry > 0 {
		p.claimed.Waits = 0 // they have their answer
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Unlinked says that no grant comes any more.
func (p *Purse) Unlinked(t *Tie, now time.Time) {
	p.fill(t, now)
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Short reports whether the bank should hear of the purse now and not later.
func (p *Purse) Short(t *Tie) bool {
	if !t.Linked || p.size == 0 {
		return false
	}
	if p.recall > p.recalled {
		return true
	}
	free := int64(math.Floor(p.level+epsilon)) - p.used
	return free*2 < p.need() && p.claimed.Want == 0
}

// need is what it should have beforehand.
func (p *Purse) need() int64 {
	if p.kind.Span() == 0 {
		return max(0, int64(math.Ceil(p.burn-epsilon))-p.used)
	}
	return int64(math.Ceil(p.burn * ahead.Seconds()))
}

// Claim is what the bank is to be told, if anything. First is the first of a
// connection: it says everything. All gives back what is not needed as well.
func (p *Purse) Claim(team string, t *Tie, first, all bool, now time.Time) (Claim, bool) {
	p.fill(t, now)
	p.cool(now)
	if first {
		p.back, p.got, p.recall, p.recalled, p.dry = 0, 0, 0, 0, 0
	}
	if p.size == 0 && (!first || p.level == 0) {
		return Claim{}, false
	}
	free := int64(math.Floor(p.level+epsilon)) - p.used
	keep := max(p.need(), p.idle)
	if now.Sub(p.lacked) < time.Second && !p.lacked.IsZero() {
		keep = max(keep, 1)
	}
	var spare int64
	switch {
	case p.size == 0 || first:
		keep = 0
	case p.recall > p.recalled:
		spare = free - p.waits
	case all:
		spare = free - p.waits - keep
	}
	p.recalled = p.recall
	if spare > 0 {
		free -= spare
		p.level -= float64(spare)
		p.back += spare
	}
	c := Claim{
		Team: team, Kind: p.kind, Have: int64(math.Ceil(p.level - epsilon)), Used: p.used, Waits: p.waits,
		Back: p.back, Got: p.got, Recalled: p.recalled,
	}
	if free < p.waits || free*2 < p.waits+keep {
		c.Want = max(0, p.waits+keep-free)
	}
	if first {
		c.Seq, c.Left = p.seq, p.left
	}
	same := c.Want == p.claimed.Want && c.Waits == p.claimed.Waits && c.Back == p.claimed.Back && c.Recalled == p.claimed.Recalled &&
		(c.Want == 0 || c.Got == p.claimed.Got) && (!all || c.Have == p.claimed.Have && c.Used == p.claimed.Used && c.Got == p.claimed.Got)
	if same && !first {
		return Claim{}, false
	}
	p.claimed = c
	return c, true
}
