package simulate

import (
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// function is one model of the run and its activator queue.
type function struct {
	st       *State
	name     functions.Name
	team     *team
	model    *functions.Model
	source   string // source in store listings; "" if nothing is staged
	size     functions.Bytes
	drawSeed uint64 // seeds its random draws
	starts   int

	queue   *admission.Queue
	pic     *snapshot.Snapshot // nil before it is published and after it is removed
	busy    bool               // it is in State.busy
	last    time.Duration      // time of its last eviction
	evicted bool
}

// request is an active request. The struct is reused after its end.
type request struct {
	admission.Request
	st   *State
	id   uint64
	slot int // index in State.live
	f    *function
	team *team
	at   time.Duration
	gen  uint32 // generation of its events
	wait bool   // it is waiting

	input, output int
	disconnectAt  time.Duration // when the client disconnects unless the answer has begun; 0 never
	deadline      time.Duration // end of its wait; 0 if it never waited
	since         time.Duration // start of its wait
	waited        time.Duration
	lease         ratelimit.Lease
	leased        bool

	rep         *replica
	to          *node // node that received it and does not answer
	index       int   // index in rep.here
	lined       bool  // it is in rep.line
	first, last time.Duration
	replyLost   bool // its answer was sent but does not arrive
}

// Event kinds of a request.
const (
	reqLimit uint8 = iota // the client disconnects, or the wait times out
	reqEnd
	reqSilent // the first token's deadline passed
	reqFails  // its replica is unreachable
)

func (q *request) age() uint32 { return q.gen }

// OnChange is called under the queue's lock when q is admitted or rejected. It records
// q; handleDecided handles it later.
func (q *request) OnChange() { q.st.decided = append(q.st.decided, q) }

// arrive starts a request of the trace.
func (st *State) arrive(x *Request) {
	f := st.fns[x.Function.WithoutAdapter()]
	if f == nil && st.unfit[x.Function.WithoutAdapter()] {
		st.tally.skipped++
		return
	}
	st.tally.requests++
	name := x.Team
	if name == "" {
		name = x.Function.Team
	}
	var m *team
	if f != nil && f.team.name == name {
		m = f.team
	} else {
		m = st.teamOf(name)
	}
	m.requests++
	if f == nil || f.pic == nil {
		m.refused++
		st.tally.refused[string(openai.ModelNotFound)]++
		return
	}
	q := st.fresh()
	q.id = uint64(st.tally.requests)
	q.slot = len(st.active)
	st.active = append(st.active, q)
	q.f, q.team, q.at = f, m, st.clock.now
	q.input, q.output = x.Input, x.Output
	if q.input <= 0 {
		q.input = st.c.Input
	}
	if q.output <= 0 {
		q.output = st.c.Output
	}
	if x.Low {
		q.Priority = admission.Low
	}
	if x.ClientTimeout > 0 {
		q.disconnectAt = q.at + x.ClientTimeout
	}
	if st.limited {
		lease, refused := st.limits.Admit(name, st.wall())
		if refused != nil {
			q.refuse(openai.New(openai.RateLimitExceeded, refused.Message))
			return
		}
		q.lease, q.leased = lease, true
	}
	q.enter()
	st.handleDecided()
}

func (st *State) fresh() *request {
	if n := len(st.pool); n > 0 {
		q := st.pool[n-1]
		st.pool = st.pool[:n-1]
		gen := q.gen + 1
		*q = request{st: st, gen: gen}
		q.Listener = q
		return q
	}
	q := &request{st: st, gen: 1}
	q.Listener = q
	return q
}

// handleDecided handles the requests that a queue has admitted or rejected.
func (st *State) handleDecided() {
	if st.handlingDecided {
		return
	}
	st.handlingDecided = true
	for i := 0; i < len(st.decided); i++ {
		q := st.decided[i]
		st.decided[i] = nil
		q.unwait()
		if e := q.Rejection(); e != nil {
			q.refuse(e)
			continue
		}
		q.launch()
	}
	st.decided = st.decided[:0]
	st.handlingDecided = false
}

// enter queues the request and decides on it, as the activator does.
func (q *request) enter() {
	st, f := q.st, q.f
	wall := st.wall()
	q.Team, q.Bytes = q.team.name, 2<<10
	switch q.Enter(f.queue, wall) {
	case admission.Admitted:
		q.launch()
		return
	case admission.Full:
		if f.pic == nil {
			q.refuse(openai.New(openai.ModelNotFound, ""))
		} else {
			q.refuse(admission.FullError(f.pic, wall))
		}
		return
	}
	q.wait, q.since = true, st.clock.now
	if q.deadline == 0 {
		q.deadline = q.at + admission.MaxWait(f.model, st.c.ClientTimeouts)
	}
	if f.pic == nil {
		q.disconnect()
		q.refuse(openai.New(openai.ModelNotFound, ""))
		return
	}
	counted := q.Cold
	switch d, alone := q.Decide(f.pic, st.c.ClientTimeouts, wall); {
	case d.Verdict == admission.Refuse:
		q.disconnect()
		if d.WakeForRetry {
			if e := q.wake(true); e != nil {
				q.refuse(e)
				return
			}
		}
		q.refuse(d.Error)
		return
	case len(f.pic.Replicas) > 0:
		st.orchestrator.Nudge(f.name)
	default:
		if !counted {
			st.tally.cold++
			q.team.cold++
		}
		if e := q.wake(alone); e != nil {
			q.disconnect()
			q.refuse(e)
			return
		}
	}
	q.arm()
}

// wake asks the orchestrator for a first replica.
func (q *request) wake(again bool) *openai.Error {
	st, f := q.st, q.f
	return q.Wake(f.queue, f.pic, again, func() *openai.Error {
		if st.limited {
			if r := st.limits.AdmitColdStart(q.team.name, st.wall()); r != nil {
				return openai.New(openai.RateLimitExceeded, r.Message)
			}
		}
		return nil
	}, func() string { return st.orchestrator.Wake(f.name, q.team.name) }, func() { st.orchestrator.Nudge(f.name) })
}

// arm schedules the timeout of q's current step.
func (q *request) arm() {
	at := time.Duration(0)
	if q.wait {
		at = q.deadline
	}
	if q.disconnectAt > 0 && (q.first == 0 || q.first > q.disconnectAt) && (at == 0 || q.disconnectAt < at) {
		at = q.disconnectAt
	}
	if at > 0 {
		q.st.clock.set(at, q, reqLimit, q.gen)
	}
}

// unwait ends the wait and adds it to q.waited.
func (q *request) unwait() {
	if q.wait {
		q.wait = false
		q.waited += q.st.clock.now - q.since
		q.gen++
	}
}

// disconnect releases the replica slot, or the place in the queue.
func (q *request) disconnect() {
	st, f := q.st, q.f
	q.gen++
	if q.rep != nil {
		q.rep.part(q)
	}
	if q.to != nil {
		st.stranded = slices.DeleteFunc(st.stranded, func(x *request) bool { return x == q })
		q.to = nil
	}
	q.unwait()
	q.first, q.last, q.replyLost = 0, 0, false
	if q.Leave(st.wall()) {
		st.orchestrator.Nudge(f.name)
	}
}

// launch sends an admitted request to its replica.
func (q *request) launch() { q.st.served(q, q.st.reps[q.ReplicaID()]) }

// served sends q to r; r may have ended.
func (st *State) served(q *request, r *replica) {
	q.gen++
	switch {
	case r == nil || !r.n.dead && !r.n.mute && r.state != functions.Ready && r.state != functions.Draining && r.state != functions.Sleeping:
		// The replica is gone or not READY.
		st.clock.set(st.clock.now+time.Millisecond, q, reqFails, q.gen)
		return
	case r.n.dead || r.n.mute:
		q.to = r.n // no answer until the connection is cut
		st.stranded = append(st.stranded, q)
	default:
		r.accept(q)
		if r.state == functions.Sleeping && r.level > 0 {
			r.wakeUp()
		}
	}
	bound := q.f.firstToken()
	if q.first == 0 || q.first > st.clock.now+bound {
		st.clock.set(st.clock.now+bound, q, reqSilent, q.gen)
	}
	q.arm()
}

// streamIdle is the timeout between tokens after the first.
const streamIdle = 5 * time.Minute

// firstToken is the timeout from sending a request to its first token.
func (f *function) firstToken() time.Duration {
	if f.model != nil && f.model.Spec.Deadlines.FirstToken > 0 {
		return f.model.Spec.Deadlines.FirstToken.Std()
	}
	return 2 * time.Minute
}

func (q *request) act(event uint8) {
	st := q.st
	switch event {
	case reqLimit:
		switch now := st.clock.now; {
		case q.wait && now >= q.deadline:
			e := q.f.queue.ExpiredError(q.f.pic, st.instant(q.since), st.wall())
			q.disconnect()
			q.refuse(e)
		case q.first > 0 && q.first <= now: // it arrived in time
		default:
			q.disconnect()
			st.tally.left++
			q.end(EndClientLeft, "")
		}
	case reqEnd:
		if q.rep.hung {
			break
		}
		if q.rep.n.mute {
			q.replyLost = true
			break
		}
		q.done()
	case reqSilent:
		if q.first == 0 || q.first > st.clock.now {
			q.fail("it said nothing within the deadline for its first token")
		}
	case reqFails:
		q.fail("it refuses connections")
	}
	st.handleDecided()
}

// done ends an answered request.
func (q *request) done() {
	t := &q.st.tally
	t.answered++
	if q.first == 0 {
		q.first = q.st.clock.now
	}
	ttft := q.first - q.at
	t.ttft.add(ttft)
	if q.Cold {
		t.coldTTFT.add(ttft)
		t.coldWait.add(q.waited)
	} else {
		t.warmTTFT.add(ttft)
	}
	t.wait.add(q.waited)
	q.team.wait.add(q.waited)
	first := q.first
	q.disconnect()
	q.first = first
	q.end("", "")
}

// fail ends an attempt without an answer. The request is retried once, and only before
// its first token.
func (q *request) fail(problem string) {
	st, f := q.st, q.f
	began := q.first > 0 && q.first <= st.clock.now
	q.MarkFailed(true, st.wall())
	q.disconnect()
	st.clock.set(st.clock.now+admission.CoolDown, f, 0, 0)
	st.orchestrator.ReportFailure(f.name, q.FailedReplica, problem)
	if began {
		st.tally.broken++
		q.end(EndBroken, problem)
		return
	}
	if q.Retry(false, q.deadline > 0 && st.clock.now >= q.deadline) != admission.TryAgain {
		q.refuse(openai.New(openai.EngineCrashed, ""))
		return
	}
	q.enter()
}

// refuse ends the request with an error.
func (q *request) refuse(e *openai.Error) {
	st := q.st
	st.tally.refused[string(e.Code)]++
	q.team.refused++
	q.end(e.Code, e.Message)
}

// end records the request's end and releases it.
func (q *request) end(code openai.Code, message string) {
	st := q.st
	if q.leased {
		q.lease.End(q.input+q.output, st.wall())
		q.leased = false
	}
	q.gen++
	last := len(st.active) - 1
	st.active[q.slot] = st.active[last]
	st.active[q.slot].slot = q.slot
	st.active[last] = nil
	st.active = st.active[:last]
	if st.OnRequestEnd != nil {
		st.OnRequestEnd(RequestEnd{ID: q.id, Function: q.f.name, Arrived: q.at, Code: code, Message: message, First: q.first, Replica: q.FailedReplica, Low: q.Priority == admission.Low})
	}
	st.pool = append(st.pool, q)
}

// act admits waiting requests after the cool-down of a replica.
func (f *function) act(uint8) {
	f.queue.Readmit(f.st.wall())
	f.st.handleDecided()
}

func (f *function) age() uint32 { return 0 }

// OnChange records that the demand for f has changed.
func (f *function) OnChange() {
	f.st.demandChanged = append(f.st.demandChanged, f)
	if !f.busy {
		f.busy = true
		f.st.busy = append(f.st.busy, f)
	}
}

// demand returns the current demand for f; later changes call OnChange again.
func (f *function) demand() orchestrator.Demand {
	l, teams := f.queue.TakeDemand(f.st.wall())
	return orchestrator.Demand{Name: f.name, Active: l.Active, Queued: l.Queued, Oldest: l.Oldest, LastEnd: l.LastEnd, Low: l.Low, Teams: teams}
}

// path is the data path of one orchestrator. A replaced orchestrator has none: its data
// path belonged to another process.
type path struct {
	*State
	of *loop
}

var _ orchestrator.DataPath = (*path)(nil)

// superseded reports whether the orchestrator has been replaced.
func (p *path) superseded() bool { return p.State.loop != p.of }

// Publish applies snapshots. Requests admitted by them are sent before it returns.
func (p *path) Publish(fs ...snapshot.Snapshot) {
	st := p.State
	if p.superseded() {
		return
	}
	wall := st.wall()
	for i := range fs {
		f := st.functionOf(fs[i].Name)
		before := f.pic
		pic := fs[i]
		f.pic = &pic
		if pic.Model != nil && pic.Model != f.model {
			f.set(pic.Model)
		}
		f.queue.Publish(before, f.pic, wall)
	}
	st.handleDecided()
}

// Remove removes functions.
func (p *path) Remove(names ...functions.Name) {
	st := p.State
	if p.superseded() {
		return
	}
	for _, n := range names {
		if f := st.fns[n]; f != nil && f.pic != nil {
			f.pic = nil
			f.queue.Close(n)
		}
	}
	st.handleDecided()
}

// Demand yields the functions whose demand may have changed since the last call, and
// with all every other function that has requests.
func (p *path) Demand(all bool, yield func(orchestrator.Demand) bool) {
	st := p.State
	if p.superseded() {
		return
	}
	changed := st.demandChanged
	st.demandChanged, st.spare = st.spare[:0], nil
	for i, f := range changed {
		if !yield(f.demand()) {
			st.demandChanged = append(st.demandChanged, changed[i+1:]...)
			return
		}
	}
	clear(changed)
	st.spare = changed[:0]
	if !all {
		return
	}
	stillBusy := st.busy[:0]
	more := true
	for _, f := range st.busy {
		d := f.demand()
		if d.Active+d.Queued == 0 {
			f.busy = false
			continue
		}
		stillBusy = append(stillBusy, f)
		more = more && yield(d)
	}
	clear(st.busy[len(stillBusy):])
	st.busy = stillBusy
}

// InFlightOf returns the number of requests at a replica.
func (p *path) InFlightOf(name functions.Name, replica string) int {
	f := p.fns[name.WithoutAdapter()]
	if f == nil {
		return 0
	}
	return f.queue.InFlight(replica)
}

// Cut fails the requests at an agent that was declared lost.
func (p *path) Cut(agent string) {
	st := p.State
	if p.superseded() {
		return
	}
	n := st.byID[strings.TrimPrefix(agent, "http://")]
	if n == nil {
		return
	}
	for _, q := range slices.Clone(st.stranded) {
		if q.to == n {
			q.fail("its agent is given up")
		}
	}
	for _, r := range n.reps {
		r.failRequests()
	}
	st.handleDecided()
}
