package loader

import (
	"sync"
	"sync/atomic"

	"github.com/thaw-dev/thaw/functions"
)

// counters are the live values of Stats: bytes, and numbers of events.
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

// peerScheme is the key of LoaderStats.Bytes for other nodes.
const peerScheme = "peer"

// Stats returns what the loader has done; what the store has done is in store.Stats.
func (l *Loader) Stats() functions.LoaderStats {
	c := &l.counts
	load := func(n *atomic.Int64) functions.Bytes { return functions.Bytes(n.Load()) }
	s := functions.LoaderStats{
		Bytes:  make(map[string]functions.Bytes),
		Wasted: load(&c.wasted), Resumed: load(&c.resumed), Reused: load(&c.reused), PeerSent: load(&c.peerSent),
		Requests: c.requests.Load(), Retries: c.retries.Load(), Hedges: c.hedges.Load(), Throttles: c.throttles.Load(),
		Staged: c.staged.Load(), Failed: c.failed.Load(), InFlight: c.inFlight.Load(), Stagings: c.stagings.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for scheme, n := range c.bytes {
		s.Bytes[scheme] = load(n)
	}
	return s
}
