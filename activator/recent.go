package activator

import (
	"sync"
	"time"
)

// Bounds of what requestIndex remembers.
const (
	rememberRequests   = 8192
	rememberColdStarts = 1024
)

// recent is a map of the newest entries.
type recent[V any] struct {
	of    map[string]V
	order []string // a ring
	next  int
}

func (r *recent[V]) put(id string, v V, maximum int) {
	if r.of == nil {
		r.of = map[string]V{}
	}
	if _, ok := r.of[id]; !ok {
		if len(r.order) < maximum {
			r.order = append(r.order, id)
		} else {
			delete(r.of, r.order[r.next])
			r.order[r.next] = id
			r.next = (r.next + 1) % maximum
		}
	}
	r.of[id] = v
}

// requestIndex finds waiting requests by id, and the cold starts of recent ones. Only
// requests that waited are in it, so a warm request pays nothing.
type requestIndex struct {
	mu         sync.Mutex
	waiting    map[string]*proxyRequest // by request id and by the client's own id
	count      int                      // of requests in waiting
	empty      chan struct{}            // made by a drain; closed when no request waits
	started    recent[string]           // cold start ids, by request id and client's own
	causes     recent[string]           // the first request's id, by cold start id
	firstBytes recent[time.Duration]    // times to the first byte, by cold start id
}

func (i *requestIndex) init() {
	i.waiting = map[string]*proxyRequest{}
}

func (i *requestIndex) add(p *proxyRequest) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waiting[p.id] = p
	if p.clientID != "" {
		i.waiting[p.clientID] = p // of two requests with one id the newer
	}
	i.count++
}

func (i *requestIndex) remove(p *proxyRequest) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.waiting, p.id)
	if p.clientID != "" && i.waiting[p.clientID] == p {
		delete(i.waiting, p.clientID)
	}
	if i.count--; i.count == 0 && i.empty != nil {
		close(i.empty)
		i.empty = nil
	}
}

func (i *requestIndex) waiter(id string) *proxyRequest {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.waiting[id]
}

// drained returns a channel that is closed when no request waits.
func (i *requestIndex) drained() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.empty == nil {
		i.empty = make(chan struct{})
	}
	c := i.empty
	if i.count == 0 {
		close(i.empty)
		i.empty = nil
	}
	return c
}

func (i *requestIndex) rememberColdStart(id, coldStart string) {
	if id == "" || coldStart == "" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.started.put(id, coldStart, rememberRequests)
	if _, ok := i.causes.of[coldStart]; !ok {
		i.causes.put(coldStart, id, rememberColdStarts)
	}
}

func (i *requestIndex) coldStart(id string) (string, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c, ok := i.started.of[id]
	return c, ok
}

// rememberFirstByte stores a cold start's time to the first byte; false if it has
// one.
func (i *requestIndex) rememberFirstByte(coldStart string, took time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.firstBytes.of[coldStart]; ok {
		return false
	}
	i.firstBytes.put(coldStart, took, rememberColdStarts)
	return true
}

// ofColdStart returns a cold start's time to the first byte, and the id of its first request.
func (i *requestIndex) ofColdStart(coldStart string) (took time.Duration, ok bool, request string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	took, ok = i.firstBytes.of[coldStart]
	return took, ok, i.causes.of[coldStart]
}
