package activator

import "sync"

// rememberColdStarts is how many requests' cold starts are remembered.
const rememberColdStarts = 8192

// ledger knows by id who waits now, and which cold start recent requests took
// part in. Only requests that had to wait are in it, so a warm one pays nothing.
type ledger struct {
	mu      sync.Mutex
	waiting map[string]*exchange // by request id and by the client's own id
	count   int                  // of exchanges in waiting
	empty   chan struct{}        // made by a drain; closed when nobody waits
	started map[string]string    // request id or client's id to cold start id
	order   []string             // of started, a ring
	next    int
}

func (l *ledger) init() {
	l.waiting = map[string]*exchange{}
	l.started = map[string]string{}
}

func (l *ledger) enter(x *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[x.id] = x
	if x.clientID != "" {
		l.waiting[x.clientID] = x // of two that call themselves alike the newer
	}
	l.count++
}

func (l *ledger) leave(x *exchange) {
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

func (l *ledger) waiter(id string) *exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting[id]
}

// deserted is closed when nobody waits.
func (l *ledger) deserted() <-chan struct{} {
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

func (l *ledger) cold(id, coldStart string) {
	if id == "" || coldStart == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.started[id]; ok {
		l.started[id] = coldStart
		return
	}
	if len(l.order) < rememberColdStarts {
		l.order = append(l.order, id)
	} else {
		delete(l.started, l.order[l.next])
		l.order[l.next] = id
		l.next = (l.next + 1) % rememberColdStarts
	}
	l.started[id] = coldStart
}

func (l *ledger) coldStart(id string) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.started[id]
	return c, ok
}
