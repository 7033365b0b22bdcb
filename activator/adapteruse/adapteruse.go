// Package adapteruse decides when the activator reports again that an adapter (LoRA) is in use at a
// replica, so that another one is unloaded where room is needed: at most once in ten seconds for
// each pair of replica and adapter; it sends no report and counts no requests.
package adapteruse

import (
	"sync"
	"time"
)

// Interval is the least time between two reports of the use of an adapter at a replica.
const Interval = 10 * time.Second

// maxUses bounds a Table. Beyond it all are dropped, and reported again.
const maxUses = 1024

// Table is when the use of each adapter was last reported, per replica. Engines
// evict the adapter used longest ago; they need not get a report of every request. The zero
// value is empty; its methods may be called concurrently.
type Table struct {
	mu sync.Mutex
	at map[use]time.Time
}

type use struct{ replica, adapter string }

// Due reports whether the use must be reported again, and notes that it is.
func (t *Table) Due(replica, adapter string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := use{replica, adapter}
	if last, ok := t.at[k]; ok && now.Sub(last) < Interval {
		return false
	}
	if t.at == nil || len(t.at) >= maxUses {
		t.at = map[use]time.Time{}
	}
	t.at[k] = now
	return true
}
