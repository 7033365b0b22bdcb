// Package sharedrun keeps a plain request running ten seconds after its client left, if that client
// may retry, so that a marked retry under the same key (made by the caller) joins it or gets its
// answer; other departures end it at once.
//
// A client that gives a request up at its own timeout closes the connection and comes back
// seconds later; until then the request goes on without it.
package sharedrun

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
)

// Grace is how long a request goes on without a client: the pause before a retry of
// the official clients is at most 8 s.
const Grace = 10 * time.Second

// MaxRuns bounds the requests in each of the shards that a retry may join.
const (
	shardCount = 16
	MaxRuns    = 256
)

// ErrOver is what a run's context ends with once the request has been answered.
var ErrOver = errors.New("the request is over")

// Table finds the requests that a retry may join, by what makes them one.
type Table[K comparable] struct {
	hash   func(K) uint64
	shards [shardCount]shard[K]
}

type shard[K comparable] struct {
	mu   sync.Mutex
	runs map[K]*Run
}

// NewTable makes an empty table; hash spreads keys.
func NewTable[K comparable](hash func(K) uint64) *Table[K] { return &Table[K]{hash: hash} }

// Len is how many runs there are.
func (t *Table[K]) Len() (n int) {
	for i := range t.shards {
		t.shards[i].mu.Lock()
		n += len(t.shards[i].runs)
		t.shards[i].mu.Unlock()
	}
	return n
}

// Run is a plain request that retries may join. Its request's context outlives the
// client by the grace, and until the last retry that has joined has left.
type Run struct {
	ID       string // of the request that runs
	Context  httpserver.Context
	AtEngine atomic.Bool // at an engine; false while the request waits

	stop   func() bool // unhooks the client's departure
	now    func() time.Time
	remove func() // from its table

	mu            sync.Mutex
	retryableFrom time.Time // a client that leaves from then on may come back; zero: none does
	clientLeft    bool      // the client has left
	over          bool      // the request has ended
	joined        int       // retries that wait for the answer
	grace         *time.Timer
	done          chan struct{}        // closed when answer is set; nil before the first retry joins
	Answer        *httpserver.Response // nil: a retry runs by itself
	taken         chan struct{}        // closed when a retry joins; nil unless a kept answer waits for one
}

// New makes a run for a request of a client, whose departure from retryableFrom on may be
// followed by a retry; zero: none is. It must be entered or forgotten before the client's context ends.
func New(id string, client *httpserver.Context, retryableFrom time.Time, now func() time.Time) *Run {
	r := &Run{ID: id, retryableFrom: retryableFrom, now: now}
	r.stop = client.AfterFunc(func() { r.clientEnded(client.Err()) })
	return r
}

// JoinOrBegin finds the run that a retry joins. Otherwise it begins one, so that retries may join
// it; both are nil if there are too many.
func (t *Table[K]) JoinOrBegin(k K, retry bool, begin func() *Run) (joined, own *Run) {
	s := &t.shards[t.hash(k)%shardCount]
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[k]; r != nil && retry && r.join() {
		return r, nil
	}
	if len(s.runs) >= MaxRuns {
		return nil, nil
	}
	if s.runs == nil {
		s.runs = map[K]*Run{}
	}
	own = begin()
	own.remove = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.runs[k] == own {
			delete(s.runs, k)
		}
	}
	s.runs[k] = own
	return nil, own
}

// clientEnded ends the run, or starts the grace of a client that may come back.
func (r *Run) clientEnded(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clientLeft = true
	switch {
	case r.joined > 0 && errors.Is(cause, httpserver.ErrGone):
	case errors.Is(cause, httpserver.ErrGone) && !r.retryableFrom.IsZero() && !r.now().Before(r.retryableFrom):
		r.startGrace()
	default:
		r.Context.End(cause)
	}
}

// startGrace starts the timer of the grace. mu is held.
func (r *Run) startGrace() {
	r.grace = time.AfterFunc(Grace, func() { r.Context.End(httpserver.ErrGone) })
}

// join counts a retry that waits for the answer; false if the run is about to end.
func (r *Run) join() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over && r.Answer == nil || r.grace != nil && !r.grace.Stop() || r.Context.Err() != nil {
		return false
	}
	r.grace = nil
	r.joined++
	if r.taken != nil {
		close(r.taken)
		r.taken = nil
	}
	if r.done == nil {
		r.done = make(chan struct{})
		if r.over {
			close(r.done)
		}
	}
	return true
}

// Leave takes back a join. The last one that leaves a request without a client begins the
// grace anew.
func (r *Run) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joined--; r.joined == 0 && r.clientLeft && !r.over {
		r.startGrace()
	}
}

// Finish ends the run and hands the answer to the retries that have joined; nil is none. An
// answer whose client has left is kept for the rest of the grace. Retries find the run until
// Finish returns.
func (r *Run) Finish(res *httpserver.Response) {
	defer r.remove()
	r.mu.Lock()
	r.over = true
	streams := res != nil && res.Stream != nil
	if streams { // and its client's departure ends it, at once
		r.retryableFrom = time.Time{}
	} else if res != nil && sharesAnswer(res.Status) && (r.clientLeft || r.joined > 0) {
		r.Answer = &httpserver.Response{Status: res.Status, Fields: slices.Clone(res.Fields), Body: res.Body}
	}
	var taken chan struct{}
	if r.Answer != nil && r.joined == 0 {
		taken = make(chan struct{})
		r.taken = taken
	}
	if r.done != nil {
		close(r.done)
	}
	r.mu.Unlock()
	if taken != nil {
		select {
		case <-taken:
		case <-r.Context.Done():
		}
	}
	if streams {
		return
	}
	r.stop()
	r.mu.Lock()
	if r.grace != nil {
		r.grace.Stop()
	}
	r.mu.Unlock()
	r.Context.End(ErrOver)
}

// sharesAnswer reports whether a retry gets the answer of this status; others are about
// the request's own wait or the moment.
func sharesAnswer(status int) bool {
	return !slices.Contains([]int{429, 499, 503, 504}, status)
}

// Done is closed when the run that a retry has joined is over.
func (r *Run) Done() <-chan struct{} { return r.done }
