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
	Since     time.Time // when the connection ended; refilling begins disconnectDelay later
}

// disconnectDelay is how much later the coordinator may see a connection end.
const disconnectDelay = 2 * time.Second

// refillShare is the share of a limit by which a bucket refills itself, and since when.
func (m *Membership) refillShare() (part float64, since time.Time) {
	switch {
	case !m.Shared:
		return 1, time.Time{}
	case m.Connected || m.Since.IsZero():
		return 0, time.Time{}
	}
	return m.Share, m.Since.Add(disconnectDelay)
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
func (b *Bucket) Size() int { return int(b.size) }

// Resize sets the limit; used units stay used.
func (b *Bucket) Resize(n int, m *Membership) {
	was := b.size
	b.size = float64(max(n, 0))
	switch {
	case m.Shared: // which knows it
		if b.kind.Span() > 0 {
			b.level = min(b.level, b.size)
		}
	case b.kind.Span() == 0, was == 0:
		b.level = b.size
	default:
		b.level += b.size - was
	}
}

// refill adds the units that came by time, without the coordinator.
func (b *Bucket) refill(m *Membership, now time.Time) {
	part, since := m.refillShare()
	from := b.at
	if from.IsZero() {
		b.at = now
		return
	}
	if since.After(from) {
		from = since
	}
	if !now.After(b.at) {
		return
	}
	b.at = now
	if maximum := b.size * part; b.level < maximum {
		b.level = min(maximum, b.level+refilled(maximum, b.kind, now.Sub(from)))
	}
}

// Free is how many units may be taken now; negative is a debt.
func (b *Bucket) Free(m *Membership, now time.Time) float64 {
	b.refill(m, now)
	return b.level - float64(b.used)
}

// Take takes n units, even into debt. A negative n returns places.
func (b *Bucket) Take(n int64, now time.Time) {
	b.decayBurn(now)
	if b.kind.Span() == 0 {
		b.used += n
		b.burn = max(b.burn, float64(b.used))
		return
	}
	b.level -= float64(n)
	b.burn += float64(n)
}

// Used is how many places are in use.
func (b *Bucket) Used() int { return int(b.used) }

// Left is how many units are left in all buckets, as far as known here.
func (b *Bucket) Left(m *Membership, now time.Time) int {
	n := b.Free(m, now)
	if m.Connected {
		n += b.left
	}
	return int(max(0, math.Floor(n+epsilon)))
}

// Until is the time until there are n units in all, if none is spent meanwhile.
func (b *Bucket) Until(n float64, m *Membership, now time.Time) time.Duration {
	have, size := b.Free(m, now), b.size
	switch part, _ := m.refillShare(); {
	case m.Connected:
		have += b.left
	case m.Shared:
		size *= part
	}
	return timeToRefill(n-have, size, b.kind)
}

// decayBurn ages the recent use.
func (b *Bucket) decayBurn(now time.Time) {
	if d := now.Sub(b.burnAt); d > 0 && !b.burnAt.IsZero() {
		if b.burn *= math.Exp(-d.Seconds()); b.burn < 0.05 {
			b.burn = 0
		}
	}
	b.burnAt = now
}

// Missing records that a unit was missing. It reports whether another bucket may have one,
// which Await waits for, and otherwise when there will be one.
func (b *Bucket) Missing(m *Membership, now time.Time) (remote bool, after time.Duration) {
	b.missingAt = now
	if !m.Connected {
		return false, b.Until(1, m, now)
	}
	if d := now.Sub(b.exhaustedAt); b.exhausted > 0 && d < exhaustedFor {
		return false, max(b.exhausted-d, time.Millisecond)
	}
	return true, b.Until(1, m, now)
}

// Await returns a channel that the next allotment closes. EndAwait must follow.
func (b *Bucket) Await() <-chan struct{} {
	b.waiting++
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

// EndAwait ends one Await.
func (b *Bucket) EndAwait() { b.waiting-- }

func (b *Bucket) Apply(g *Allotment, now time.Time) {
	if more := g.Granted - b.received; more > 0 {
		b.received = g.Granted
		b.level += float64(more)
	}
	b.idle, b.recall = g.Idle, max(b.recall, g.Recall)
	if g.Seq >= b.seq {
		b.seq, b.left = g.Seq, g.Left
	}
	if b.exhausted, b.exhaustedAt = g.Exhausted, now; b.exhausted > 0 {
		b.reported.Waiting = 0 // they have their answer
	}
	b.wake()
}

// wake ends the waits that Await began.
func (b *Bucket) wake() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// OnDisconnect wakes waiters: no allotment comes any more.
func (b *Bucket) OnDisconnect(m *Membership, now time.Time) {
	b.refill(m, now)
	b.wake()
}

// NeedsReport reports whether the bucket should be reported now and not later.
func (b *Bucket) NeedsReport(m *Membership) bool {
	if !m.Connected || b.size == 0 {
		return false
	}
	if b.recall > b.recalled {
		return true
	}
	free := int64(math.Floor(b.level+epsilon)) - b.used
	return free*2 < b.need() && b.reported.Want == 0
}

// need is how many units the bucket should hold ahead.
func (b *Bucket) need() int64 {
	if b.kind.Span() == 0 {
		return max(0, int64(math.Ceil(b.burn-epsilon))-b.used)
	}
	return int64(math.Ceil(b.burn * prefill.Seconds()))
}

// Report returns the usage report to send, if any. first is the first of a connection,
// which says everything; all returns unneeded units as well.
func (b *Bucket) Report(team string, m *Membership, first, all bool, now time.Time) (UsageReport, bool) {
	b.refill(m, now)
	b.decayBurn(now)
	if first {
		b.returned, b.received, b.recall, b.recalled, b.exhausted = 0, 0, 0, 0, 0
	}
	if b.size == 0 && (!first || b.level == 0) {
		return UsageReport{}, false
	}
	free := int64(math.Floor(b.level+epsilon)) - b.used
	retained := max(b.need(), b.idle)
	if now.Sub(b.missingAt) < time.Second && !b.missingAt.IsZero() {
		retained = max(retained, 1)
	}
	var spare int64
	switch {
	case b.size == 0 || first:
		retained = 0
	case b.recall > b.recalled:
		spare = free - b.waiting
	case all:
		spare = free - b.waiting - retained
	}
	b.recalled = b.recall
	if spare > 0 {
		free -= spare
		b.level -= float64(spare)
		b.returned += spare
	}
	c := UsageReport{
		Team: team, Kind: b.kind, Held: int64(math.Ceil(b.level - epsilon)), Used: b.used, Waiting: b.waiting,
		Returned: b.returned, Received: b.received, Recalled: b.recalled,
	}
	if free < b.waiting || free*2 < b.waiting+retained {
		c.Want = max(0, b.waiting+retained-free)
	}
	if first {
		c.Seq, c.Left = b.seq, b.left
	}
	same := c.Want == b.reported.Want && c.Waiting == b.reported.Waiting && c.Returned == b.reported.Returned &&
		c.Recalled == b.reported.Recalled &&
		(c.Want == 0 || c.Received == b.reported.Received) &&
		(!all || c.Held == b.reported.Held && c.Used == b.reported.Used && c.Received == b.reported.Received)
	if same && !first {
		return UsageReport{}, false
	}
	b.reported = c
	return c, true
}
