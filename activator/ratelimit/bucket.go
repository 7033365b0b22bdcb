package ratelimit

import (
	"math"
	"time"
)

// Membership is an activator's relation to the coordinator. The zero value has none: a
// bucket holds the whole limit. It is immutable.
type Membership struct {
	Shared    bool      // there is a coordinator
	Connected bool      // and a connection to it
	Share     float64   // of each limit, without a connection
	Since     time.Time // when the connection ended; refilling begins disconnectLag later
}

// disconnectDelay is how much later the coordinator may see a connection end.
const disconnectDelay = 2 * time.Second

// refillShare is the share of a limit by which a bucket refills itself, and since when.
func (t *Membership) refillShare() (part float64, since time.Time) {
	switch {
	case !t.Shared:
		return 1, time.Time{}
	case t.Connected || t.Since.IsZero():
		return 0, time.Time{}
	}
	return t.Share, t.Since.Add(disconnectDelay)
}

// Bucket holds an activator's units of one limit of a team. It has no lock of its own.
type Bucket struct {
	kind  Kind
	size  float64 // of the limit; 0 is none
	level float64 // units; of places those lent
	used  int64   // places in use
	at    time.Time

	burn      float64 // units spent in the last second or so; of places the most in use
	burnAt    time.Time
	missingAt time.Time // when one was missing last

	waiting            int64
	returned, received int64 // of this connection
	idle               int64
	recall, recalled   uint64
	exhausted          time.Duration
	exhaustedAt        time.Time
	seq                uint64
	left               float64
	reported           UsageReport
	changed            chan struct{} // closed with the next allotment; nil: no request waits
}

// NewBucket makes a bucket without a limit.
func NewBucket(k Kind) Bucket { return Bucket{kind: k} }

// Size is the limit, 0 where there is none.
func (p *Bucket) Size() int { return int(p.size) }

// Resize sets the limit; used units stay used.
func (p *Bucket) Resize(n int, t *Membership) {
	was := p.size
	p.size = float64(max(n, 0))
	switch {
	case t.Shared: // which knows it
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

// refill adds the units that came by time, without the coordinator.
func (p *Bucket) refill(t *Membership, now time.Time) {
	part, since := t.refillShare()
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
	if maximum := p.size * part; p.level < maximum {
		p.level = min(maximum, p.level+refilled(maximum, p.kind, now.Sub(from)))
	}
}

// Free is how many units may be taken now; negative is a debt.
func (p *Bucket) Free(t *Membership, now time.Time) float64 {
	p.refill(t, now)
	return p.level - float64(p.used)
}

// Take takes n units, even into debt. A negative n returns places.
func (p *Bucket) Take(n int64, now time.Time) {
	p.decayBurn(now)
	if p.kind.Span() == 0 {
		p.used += n
		p.burn = max(p.burn, float64(p.used))
		return
	}
	p.level -= float64(n)
	p.burn += float64(n)
}

// Used is how many places are in use.
func (p *Bucket) Used() int { return int(p.used) }

// Left is how many units are left in all buckets, as far as known here.
func (p *Bucket) Left(t *Membership, now time.Time) int {
	n := p.Free(t, now)
	if t.Connected {
		n += p.left
	}
	return int(max(0, math.Floor(n+epsilon)))
}

// Until is the time until there are n units in all, if none is spent meanwhile.
func (p *Bucket) Until(n float64, t *Membership, now time.Time) time.Duration {
	have, size := p.Free(t, now), p.size
	switch part, _ := t.refillShare(); {
	case t.Connected:
		have += p.left
	case t.Shared:
		size *= part
	}
	return timeToRefill(n-have, size, p.kind)
}

// decayBurn ages the recent use.
func (p *Bucket) decayBurn(now time.Time) {
	if d := now.Sub(p.burnAt); d > 0 && !p.burnAt.IsZero() {
		if p.burn *= math.Exp(-d.Seconds()); p.burn < 0.05 {
			p.burn = 0
		}
	}
	p.burnAt = now
}

// Missing records that a unit was missing. It reports whether another bucket may have one,
// which Await waits for, and otherwise when there will be one.
func (p *Bucket) Missing(t *Membership, now time.Time) (remote bool, after time.Duration) {
	p.missingAt = now
	if !t.Connected {
		return false, p.Until(1, t, now)
	}
	if d := now.Sub(p.exhaustedAt); p.exhausted > 0 && d < exhaustedFor {
		return false, max(p.exhausted-d, time.Millisecond)
	}
	return true, p.Until(1, t, now)
}

// Await returns a channel that the next allotment closes. EndAwait must follow.
func (p *Bucket) Await() <-chan struct{} {
	p.waiting++
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// EndAwait ends one Await.
func (p *Bucket) EndAwait() { p.waiting-- }

// Apply applies an allotment.
func (p *Bucket) Apply(g *Allotment, now time.Time) {
	if more := g.Granted - p.received; more > 0 {
		p.received = g.Granted
		p.level += float64(more)
	}
	p.idle, p.recall = g.Idle, max(p.recall, g.Recall)
	if g.Seq >= p.seq {
		p.seq, p.left = g.Seq, g.Left
	}
	if p.exhausted, p.exhaustedAt = g.Exhausted, now; p.exhausted > 0 {
		p.reported.Waiting = 0 // they have their answer
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Disconnected wakes waiters: no allotment comes any more.
func (p *Bucket) Disconnected(t *Membership, now time.Time) {
	p.refill(t, now)
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// NeedsReport reports whether the bucket should be reported now and not later.
func (p *Bucket) NeedsReport(t *Membership) bool {
	if !t.Connected || p.size == 0 {
		return false
	}
	if p.recall > p.recalled {
		return true
	}
	free := int64(math.Floor(p.level+epsilon)) - p.used
	return free*2 < p.need() && p.reported.Want == 0
}

// need is how many units the bucket should hold ahead.
func (p *Bucket) need() int64 {
	if p.kind.Span() == 0 {
		return max(0, int64(math.Ceil(p.burn-epsilon))-p.used)
	}
	return int64(math.Ceil(p.burn * prefill.Seconds()))
}

// Report returns the usage report to send, if any. first is the first of a connection,
// which says everything; all returns unneeded units as well.
func (p *Bucket) Report(team string, t *Membership, first, all bool, now time.Time) (UsageReport, bool) {
	p.refill(t, now)
	p.decayBurn(now)
	if first {
		p.returned, p.received, p.recall, p.recalled, p.exhausted = 0, 0, 0, 0, 0
	}
	if p.size == 0 && (!first || p.level == 0) {
		return UsageReport{}, false
	}
	free := int64(math.Floor(p.level+epsilon)) - p.used
	retained := max(p.need(), p.idle)
	if now.Sub(p.missingAt) < time.Second && !p.missingAt.IsZero() {
		retained = max(retained, 1)
	}
	var spare int64
	switch {
	case p.size == 0 || first:
		retained = 0
	case p.recall > p.recalled:
		spare = free - p.waiting
	case all:
		spare = free - p.waiting - retained
	}
	p.recalled = p.recall
	if spare > 0 {
		free -= spare
		p.level -= float64(spare)
		p.returned += spare
	}
	c := UsageReport{
		Team: team, Kind: p.kind, Held: int64(math.Ceil(p.level - epsilon)), Used: p.used, Waiting: p.waiting,
		Returned: p.returned, Received: p.received, Recalled: p.recalled,
	}
	if free < p.waiting || free*2 < p.waiting+retained {
		c.Want = max(0, p.waiting+retained-free)
	}
	if first {
		c.Seq, c.Left = p.seq, p.left
	}
	same := c.Want == p.reported.Want && c.Waiting == p.reported.Waiting && c.Returned == p.reported.Returned && c.Recalled == p.reported.Recalled &&
		(c.Want == 0 || c.Received == p.reported.Received) && (!all || c.Held == p.reported.Held && c.Used == p.reported.Used && c.Received == p.reported.Received)
	if same && !first {
		return UsageReport{}, false
	}
	p.reported = c
	return c, true
}
