package loader

import (
	"sync"
	"sync/atomic"
)

// Stats is what a loader has done since it was made.
type Stats struct {
	// Bytes that were brought and kept, by the scheme of the source; "peer" are
	// those of other nodes. What came twice or in vain is in Wasted.
	Bytes map[string]int64
	// Wasted bytes came and were not used: broken ranges, hedges that lost.
	Wasted int64
	// Resumed bytes were here when a staging began, Reused ones were another
	// checkpoint's.
	Resumed, Reused int64
	// PeerSent bytes went to other nodes.
	PeerSent int64
	// Requests for ranges; Retries of them; Hedges are second requests for
	// what a slow one has not brought; Throttles are answers that asked to be
	// left alone.
	Requests, Retries, Hedges, Throttles int64
	// Stagings that ended well, and those that failed.
	Staged, Failed int64
	// InFlight ranges and running Stagings, now.
	InFlight, Stagings int64
}

// counters are the living side of Stats.
type counters struct {
	wasted, resumed, reused, peerSent    atomic.Int64
	requests, retries, hedges, throttles atomic.Int64
	staged, failed, inFlight, stagings   atomic.Int64

	mu    sync.Mutex
	bytes map[string]*atomic.Int64
}

// bytesFrom is the counter of one kind of source.
func (c *counters) bytesFrom(scheme string) *atomic.Int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes == nil {
		c.bytes = make(map[string]*atomic.Int64)
	}
	n := c.bytes[scheme]
	if n == nil {
		n = new(atomic.Int64)
		c.bytes[scheme] = n
	}
	return n
}

// peerScheme is the scheme that bytes of other nodes are counted under.
const peerScheme = "peer"

// Stats counts what this loader did. What its store did is in store.Stats.
func (l *Loader) Stats() Stats {
	c := &l.counts
	s := Stats{
		Bytes:  make(map[string]int64),
		Wasted: c.wasted.Load(), Resumed: c.resumed.Load(), Reused: c.reused.Load(), PeerSent: c.peerSent.Load(),
		Requests: c.requests.Load(), Retries: c.retries.Load(), Hedges: c.hedges.Load(), Throttles: c.throttles.Load(),
		Staged: c.staged.Load(), Failed: c.failed.Load(), InFlight: c.inFlight.Load(), Stagings: c.stagings.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for scheme, n := range c.bytes {
		s.Bytes[scheme] = n.Load()
	}
	return s
}
