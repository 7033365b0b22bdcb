package loader

import (
	"sync"
	"sync/atomic"
)

// Stats counts what a loader has done.
type Stats struct {
	// Bytes fetched and kept, by the source's scheme; "peer" is other nodes.
	Bytes map[string]int64
	// Wasted bytes arrived and were not used: broken ranges, lost hedges.
	Wasted int64
	// Resumed bytes were here when a staging began; Reused ones belong to another
	// checkpoint.
	Resumed, Reused int64
	// PeerSent bytes were sent to other nodes.
	PeerSent int64
	// Requests for ranges and their Retries; Hedges are second requests beside slow
	// ones; Throttles are answers that asked for a pause.
	Requests, Retries, Hedges, Throttles int64
	// Stagings that succeeded, and that failed.
	Staged, Failed int64
	// Ranges in flight and running stagings, now.
	InFlight, Stagings int64
}

// counters are the live values of Stats.
type counters struct {
	wasted, resumed, reused, peerSent    atomic.Int64
	requests, retries, hedges, throttles atomic.Int64
	staged, failed, inFlight, stagings   atomic.Int64

	mu    sync.Mutex
	bytes map[string]*atomic.Int64
}

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

// peerScheme is the key of Stats.Bytes for other nodes.
const peerScheme = "peer"

// Stats returns the counters; those of the store are in store.Stats.
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
