// Package coldstarts remembers in memory which cold start each recent request waited for, and adds
// to a cold start's timeline its first request's id and the time from READY to the engine's first
// byte.
package coldstarts

import (
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
)

// Bounds of what Records remembers.
const (
	maxRequests   = 8192
	maxColdStarts = 1024
)

// index is a map of the newest entries.
type index[V any] struct {
	of  map[string]V
	ids newest.Ring[string]
}

func (i *index[V]) put(id string, v V, bound int) {
	if i.of == nil {
		i.of = map[string]V{}
	}
	if _, ok := i.of[id]; !ok {
		if old, full := i.ids.Put(id, bound); full {
			delete(i.of, old)
		}
	}
	i.of[id] = v
}

// Records are those of one activator. Only requests that waited are in it, so a warm request
// pays nothing. The zero value is empty; its methods may be called concurrently.
type Records struct {
	mu         sync.Mutex
	started    index[string]        // cold start ids, by request id and client's own
	causes     index[string]        // the first request's id, by cold start id
	firstBytes index[time.Duration] // times to the first byte, by cold start id
}

// Remember stores the cold start that a request took part in. An empty id is none.
func (r *Records) Remember(request, coldStart string) {
	if request == "" || coldStart == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started.put(request, coldStart, maxRequests)
	if _, ok := r.causes.of[coldStart]; !ok {
		r.causes.put(coldStart, request, maxColdStarts)
	}
}

// Of is the cold start of a request.
func (r *Records) Of(request string) (coldStart string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	coldStart, ok = r.started.of[request]
	return coldStart, ok
}

// RememberFirstByte stores a cold start's time to the first byte; false if it has one.
func (r *Records) RememberFirstByte(coldStart string, took time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.firstBytes.of[coldStart]; ok {
		return false
	}
	r.firstBytes.put(coldStart, took, maxColdStarts)
	return true
}

// WithFirstTokenPhase adds to a timeline the first request, and the phase from READY to the
// engine's first byte where it lacks that.
func (r *Records) WithFirstTokenPhase(t functions.Timeline) functions.Timeline {
	r.mu.Lock()
	took, ok := r.firstBytes.of[t.ID]
	t.Request = r.causes.of[t.ID]
	r.mu.Unlock()
	if !ok {
		return t
	}
	return t.WithFirstToken(took)
}
