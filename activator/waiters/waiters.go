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
func (x *Index[R]) Add(r R, id, clientID string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byID == nil {
		x.byID = map[string]R{}
	}
	x.byID[id] = r
	if clientID != "" {
		x.byID[clientID] = r
	}
	x.count++
}

// Remove removes a request that was added with these ids.
func (x *Index[R]) Remove(r R, id, clientID string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, id)
	if clientID != "" && x.byID[clientID] == r {
		delete(x.byID, clientID)
	}
	if x.count--; x.count == 0 && x.empty != nil {
		close(x.empty)
		x.empty = nil
	}
}

// Find is the request with an id; false: none waits.
func (x *Index[R]) Find(id string) (r R, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r, ok = x.byID[id]
	return r, ok
}

// Len is how many requests wait.
func (x *Index[R]) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.count
}

// Drained returns a channel that is closed when no request waits.
func (x *Index[R]) Drained() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.empty == nil {
		x.empty = make(chan struct{})
	}
	c := x.empty
	if x.count == 0 {
		close(x.empty)
		x.empty = nil
	}
	return c
}
