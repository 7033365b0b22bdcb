// Package waiters is an index of the requests that wait now, by their ids and the clients' own,
// and signals when none waits (for a drain); it has no order and wakes no request.
package waiters

import "sync"

// Index has the requests that wait now. The zero value is empty; its methods may be called
// concurrently.
type Index[R comparable] struct {
	mu    sync.Mutex
	byID  map[string]R  // by request id and by the client's own id
	count int           // of requests
	empty chan struct{} // made by a drain; closed when no request waits
}

// Add adds a request. clientID is the client's own, "" none; of two requests with one the
// newer is found.
func (i *Index[R]) Add(r R, id, clientID string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.byID == nil {
		i.byID = map[string]R{}
	}
	i.byID[id] = r
	if clientID != "" {
		i.byID[clientID] = r
	}
	i.count++
}

// Remove removes a request that was added with these ids.
func (i *Index[R]) Remove(r R, id, clientID string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.byID, id)
	if clientID != "" && i.byID[clientID] == r {
		delete(i.byID, clientID)
	}
	if i.count--; i.count == 0 && i.empty != nil {
		close(i.empty)
		i.empty = nil
	}
}

// Find is the request with an id; false: none waits.
func (i *Index[R]) Find(id string) (r R, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, ok = i.byID[id]
	return r, ok
}

// Drained returns a channel that is closed when no request waits.
func (i *Index[R]) Drained() <-chan struct{} {
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
