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
	mu          sync.Mutex
	waiting     map[string]*proxyRequest // by request id and by the client's own id
	count       int                      // of requests in waiting
	empty       chan struct{}            // made by a drain; closed when no request waits
	started     recent[string]           // cold start ids, by request id and client's own
	causes      recent[string]           // the first request's id, by cold start id
	firstTokens recent[time.Duration]    // times to the first token, by cold start id
}

func (l *requestIndex) init() {
	l.waiting = map[string]*proxyRequest{}
}

func (l *requestIndex) add(x *proxyRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[x.id] = x
	if x.clientID != "" {
		l.waiting[x.clientID] = x // of two requests with one id the newer
	}
	l.count++
}

func (l *requestIndex) remove(x *proxyRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, x.id)
	if x.clientID != "" && l.waiting[x.clientID] == x {
		delete(l.waiting, x.clientID)
	}
	if l.count--; l.count == 0 && l.empty != nil {
		close(l.empty)
		l.empty = nil
	}
}

func (l *requestIndex) waiter(id string) *proxyRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting[id]
}

// drained returns a channel that is closed when no request waits.
func (l *requestIndex) drained() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.empty == nil {
		l.empty = make(chan struct{})
	}
	c := l.empty
	if l.count == 0 {
		close(l.empty)
		l.empty = nil
	}
	return c
}

func (l *requestIndex) rememberColdStart(id, coldStart string) {
	if id == "" || coldStart == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started.put(id, coldStart, rememberRequests)
	if _, ok := l.causes.of[coldStart]; !ok {
		l.causes.put(coldStart, id, rememberColdStarts)
	}
}

func (l *requestIndex) coldStart(id string) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.started.of[id]
	return c, ok
}

// rememberFirstToken stores a cold start's time to the first token; false if it has
// one.
func (l *requestIndex) rememberFirstToken(coldStart string, took time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.firstTokens.of[coldStart]; ok {
		return false
	}
	l.firstTokens.put(coldStart, took, rememberColdStarts)
	return true
}

// ofColdStart returns a cold start's time to the first token, and the id of its first request.
func (l *requestIndex) ofColdStart(coldStart string) (took time.Duration, ok bool, request string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	took, ok = l.firstTokens.of[coldStart]
	return took, ok, l.causes.of[coldStart]
}
