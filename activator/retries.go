package activator

import (
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/httpserver"
)

// A client's retry joins the plain request that it repeats, while that waits or runs, and
// gets its answer: the engine generates once. A retry is a request with the same
// Idempotency-Key, or with X-Stainless-Retry-Count above 0, and the same key, path,
// function and body. A client that gives a request up at its own timeout closes the
// connection and comes back seconds later; until then the request goes on without it.
// Streams are not joined: their clients wait as long as comments come.

// retryGrace is how long a request goes on without a client: the pause before a retry of
// the official clients is at most 8 s.
const retryGrace = 10 * time.Second

// maxSharedRuns bounds the requests in each of the runShards that a retry may join.
const (
	runShards     = 16
	maxSharedRuns = 256
)

// runKey identifies the requests that are one.
type runKey struct {
	fingerprint
	team, key   string
	idempotency string
}

// sharedRuns finds the requests that a retry may join. The zero value is empty once init
// was called.
type sharedRuns struct {
	seedA, seedB maphash.Seed
	shards       [runShards]struct {
		mu   sync.Mutex
		runs map[runKey]*sharedRun
	}
}

func (s *sharedRuns) init() { s.seedA, s.seedB = maphash.MakeSeed(), maphash.MakeSeed() }

// sharedRun is a plain request that retries may join. Its request's context outlives the
// client by the grace, and until the last retry that has joined has left.
type sharedRun struct {
	id   string // of the request that runs
	key  runKey
	ctx  httpserver.Context
	stop func() bool // unhooks the client's departure
	now  func() time.Time
	runs atomic.Bool // at an engine; false while the request waits

	mu     sync.Mutex
	lasts  time.Time // a client that leaves from then on may come back; zero: none does
	alone  bool      // the client has left
	over   bool      // the request has ended
	joined int       // retries that wait for the answer
	grace  *time.Timer
	done   chan struct{}        // closed when answer is set; nil before the first retry joins
	answer *httpserver.Response // nil: a retry runs by itself
	taken  chan struct{}        // closed when a retry joins; nil unless a kept answer waits for one
}

// enter finds the run that a retry joins. Otherwise it begins the given one, so that retries
// may join it; both are nil if there are too many.
func (s *sharedRuns) enter(k runKey, retry bool, begin func() *sharedRun) (joined, own *sharedRun) {
	shard := &s.shards[k.bodyA%runShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if r := shard.runs[k]; r != nil && retry && r.join() {
		return r, nil
	}
	if len(shard.runs) >= maxSharedRuns {
		return nil, nil
	}
	if shard.runs == nil {
		shard.runs = map[runKey]*sharedRun{}
	}
	own = begin()
	shard.runs[k] = own
	return nil, own
}

// finish ends a run: see sharedRun.finish. Retries find it until it returns.
func (s *sharedRuns) finish(r *sharedRun, res *httpserver.Response) {
	r.finish(res)
	shard := &s.shards[r.key.bodyA%runShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.runs[r.key] == r {
		delete(shard.runs, r.key)
	}
}

// follow ends the run with its client's context, or lets it go on for the grace.
func (r *sharedRun) follow(client *httpserver.Context) {
	r.stop = client.AfterFunc(func() { r.clientEnded(client.Err()) })
}

// clientEnded ends the run, or starts the grace of a client that may come back.
func (r *sharedRun) clientEnded(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alone = true
	switch {
	case r.joined > 0 && errors.Is(cause, httpserver.ErrGone):
	case errors.Is(cause, httpserver.ErrGone) && !r.lasts.IsZero() && !r.now().Before(r.lasts):
		r.await()
	default:
		r.ctx.End(cause)
	}
}

// await starts the grace. mu is held.
func (r *sharedRun) await() {
	r.grace = time.AfterFunc(retryGrace, func() { r.ctx.End(httpserver.ErrGone) })
}

// join counts a retry that waits for the answer; false if the run is about to end.
func (r *sharedRun) join() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over && r.answer == nil || r.grace != nil && !r.grace.Stop() || r.ctx.Err() != nil {
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

// leave takes back a join. The last one that leaves a request without a client begins the
// grace anew.
func (r *sharedRun) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joined--; r.joined == 0 && r.alone && !r.over {
		r.await()
	}
}

// finish hands the answer to the retries that have joined; nil is none. An answer whose
// client has left is kept for the rest of the grace.
func (r *sharedRun) finish(res *httpserver.Response) {
	r.mu.Lock()
	r.over = true
	streams := res != nil && res.Stream != nil
	if streams { // and its client's departure ends it, at once
		r.lasts = time.Time{}
	} else if res != nil && sharesAnswer(res.Status) && (r.alone || r.joined > 0) {
		r.answer = &httpserver.Response{Status: res.Status, Fields: slices.Clone(res.Fields), Body: res.Body}
	}
	var taken chan struct{}
	if r.answer != nil && r.joined == 0 {
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
		case <-r.ctx.Done():
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
	r.ctx.End(errRequestOver)
}

// sharesAnswer reports whether a retry gets the answer of this status; others are about
// the request's own wait or the moment.
func sharesAnswer(status int) bool {
	switch status {
	case 429, 499, 503, 504:
		return false
	}
	return true
}

// joinRun answers a retry by the request that it repeats. Otherwise it returns false: the
// request runs by itself, and retries of it may join it.
func (x *proxyRequest) joinRun(keyID string, res *httpserver.Response) bool {
	if x.stream || x.hold() == HoldPad {
		return false
	}
	idempotency, count := x.header("Idempotency-Key"), x.header("X-Stainless-Retry-Count")
	if idempotency == "" && count == "" || len(idempotency) > 255 {
		return false
	}
	runs := &x.a.runs
	k := runKey{fingerprint: x.fingerprint(), team: x.team, key: keyID, idempotency: idempotency}
	patience, _ := admission.ParseSpan(x.header("X-Stainless-Timeout"))
	if gap, ok := admission.ParseSpan(x.header("X-Stainless-Read-Timeout")); ok && (patience == 0 || gap < patience) {
		patience = gap
	}
	var lasts time.Time
	if idempotency != "" {
		lasts = x.began
	} else if patience > 0 {
		lasts = x.began.Add(patience - patience/10)
	}
	client := x.req.Context()
	begin := func() *sharedRun {
		r := &sharedRun{id: x.id, key: k, now: x.a.o.Now, lasts: lasts}
		r.follow(client)
		return r
	}
	for {
		r, own := runs.enter(k, idempotency != "" || count != "" && count != "0", begin)
		if x.shared = own; r == nil {
			return false
		}
		if x.awaitRun(r, res) {
			return true
		}
	}
}

// awaitRun waits for the answer of the request that x repeats; false if that has none for
// others. The bound of the queue's wait holds while that request waits. At an engine it runs
// for as long as the answer takes, unless x's client has a timeout of its own.
func (x *proxyRequest) awaitRun(r *sharedRun, res *httpserver.Response) bool {
	defer r.leave()
	x.timeouts = admission.ParseTimeouts(x.header, false)
	late := time.NewTimer(x.waitDeadline().Sub(x.a.o.Now()))
	defer late.Stop()
	for {
		select {
		case <-r.done:
			if r.answer == nil {
				return false
			}
			x.answerAs(r, res)
			return true
		case <-x.context().Done():
			x.contextEnded()
		case <-late.C:
			if r.runs.Load() {
				limit := admission.ParseTimeouts(x.headerWithoutWait, false).Wait
				if limit == 0 {
					continue
				}
				if left := limit - x.a.o.Now().Sub(x.began); left > 0 {
					late.Reset(left)
					continue
				}
			}
			x.refuse(x.fn.Data.queue.ExpiredError(x.fn.Snapshot(), x.began, x.a.o.Now()))
		}
		x.answerWithout(res)
		return true
	}
}

// headerWithoutWait is header, but for the bound that is the queue's alone.
func (x *proxyRequest) headerWithoutWait(name string) string {
	if name == "thaw-max-wait" {
		return ""
	}
	return x.header(name)
}

// answerAs answers x as the request that it repeats was answered.
func (x *proxyRequest) answerAs(r *sharedRun, res *httpserver.Response) {
	res.Status, res.Body = r.answer.Status, r.answer.Body
	x.setCommonFields(res)
	res.Set("thaw-joined", r.id)
	for _, f := range r.answer.Fields {
		if !slices.ContainsFunc(res.Fields, func(own httpserver.Field) bool { return own.Name == f.Name }) {
			res.Set(f.Name, f.Value)
		}
	}
	x.shared = r
	x.finish(res.Status)
}

// endRun hands the request's answer to the retries that have joined it; nil is none.
func (x *proxyRequest) endRun(res *httpserver.Response) {
	if x.leads() {
		x.a.runs.finish(x.shared, res)
	}
}

// leads reports whether retries may join the request.
func (x *proxyRequest) leads() bool { return x.shared != nil && x.shared.id == x.id }
