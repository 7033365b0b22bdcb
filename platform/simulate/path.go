package simulate

import (
	"cmp"
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

	queue    *admission.Queue
	snapshot *snapshot.Snapshot // nil before it is published and after it is removed
	last     time.Duration      // time of its last eviction
	evicted  bool
}

// request is an active request. The struct is reused after its end.
type request struct {
	admission.Request
	st   *State
	id   uint64
	slot int // index in State.traffic.active
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
	index       int   // index in rep.work.requests
	lined       bool  // it is in rep.work.line
	first, last time.Duration
	replyLost   bool // its answer was sent but does not arrive
}

// traffic is the active requests, and what their queues have decided.
type traffic struct {
	active   []*request
	pool     []*request // ended, to be reused
	decided  []*request // admitted or rejected, not handled yet
	handling bool       // of those in decided
	stranded []*request // at a node that does not answer
}

// Event kinds of a request.
const (
	reqLimit uint8 = iota // the client disconnects, or the wait times out
	reqEnd
	reqSilent // the first token's deadline passed
	reqFails  // its replica is unreachable
)

func (r *request) generation() uint32 { return r.gen }

// OnChange is called under the queue's lock when r is admitted or rejected. It records
// r; handleDecided handles it later.
func (r *request) OnChange() { r.st.traffic.decided = append(r.st.traffic.decided, r) }

func (s *State) arrive(x *Request) {
	f := s.fns[x.Function.WithoutAdapter()]
	if f == nil && s.catalog.unfit[x.Function.WithoutAdapter()] {
		s.tally.Skipped++
		return
	}
	s.tally.Requests++
	name := cmp.Or(x.Team, x.Function.Team)
	m := s.teamOf(name)
	m.Requests++
	if f == nil || f.snapshot == nil {
		m.Refused++
		s.tally.Refused[string(openai.ModelNotFound)]++
		return
	}
	q := s.fresh()
	q.id = uint64(s.tally.Requests)
	q.slot = len(s.traffic.active)
	s.traffic.active = append(s.traffic.active, q)
	q.f, q.team, q.at = f, m, s.clock.now
	q.input, q.output = cmp.Or(max(x.Input, 0), s.c.Input), cmp.Or(max(x.Output, 0), s.c.Output)
	if x.Low {
		q.Priority = admission.Low
	}
	if x.ClientTimeout > 0 {
		q.disconnectAt = q.at + x.ClientTimeout
	}
	if s.limited {
		lease, refused := s.limits.Admit(name, s.wall())
		if refused != nil {
			q.refuse(openai.New(openai.RateLimitExceeded, refused.Message))
			return
		}
		q.lease, q.leased = lease, true
	}
	q.enter()
	s.traffic.handleDecided()
}

func (s *State) fresh() *request {
	var q *request
	if n := len(s.traffic.pool); n > 0 {
		q, s.traffic.pool = s.traffic.pool[n-1], s.traffic.pool[:n-1]
	} else {
		q = &request{}
	}
	*q = request{st: s, gen: q.gen + 1}
	q.Listener = q
	return q
}

// handleDecided handles the requests that a queue has admitted or rejected.
func (t *traffic) handleDecided() {
	if t.handling {
		return
	}
	t.handling = true
	for i := 0; i < len(t.decided); i++ {
		q := t.decided[i]
		t.decided[i] = nil
		q.unwait()
		if e := q.Rejection(); e != nil {
			q.refuse(e)
			continue
		}
		q.launch()
	}
	t.decided, t.handling = t.decided[:0], false
}

// enter queues the request and decides on it, as the activator does.
func (r *request) enter() {
	st, f := r.st, r.f
	wall := st.wall()
	r.Team, r.Bytes = r.team.Name, 2<<10
	switch r.Enter(f.queue, wall) {
	case admission.Admitted:
		r.launch()
		return
	case admission.Full:
		if f.snapshot == nil {
			r.refuse(openai.New(openai.ModelNotFound, ""))
		} else {
			r.refuse(admission.FullError(f.snapshot, wall))
		}
		return
	}
	r.wait, r.since = true, st.clock.now
	if r.deadline == 0 {
		r.deadline = r.at + admission.MaxWait(f.model, st.c.ClientTimeouts)
	}
	if f.snapshot == nil {
		r.leave()
		r.refuse(openai.New(openai.ModelNotFound, ""))
		return
	}
	counted := r.Cold
	d := r.Decide(f.snapshot, st.c.ClientTimeouts, wall)
	if r.Cold && !counted {
		st.tally.Cold++
		r.team.Cold++
	}
	if e := cmp.Or(r.Ask(f.queue, d.Wake, r), d.Error); e != nil {
		r.leave()
		r.refuse(e)
		return
	}
	r.arm()
}

// ChargeStart charges a team for a cold start that begins, or refuses it.
func (r *request) ChargeStart(team string) *openai.Error {
	if !r.st.limited {
		return nil
	}
	refusal := r.st.limits.AdmitColdStart(team, r.st.wall())
	if refusal == nil {
		return nil
	}
	r.leave()
	return openai.New(openai.RateLimitExceeded, refusal.Message)
}

func (r *request) Wake() (coldStart string) { return r.st.loop.orchestrator.Wake(r.f.name) }
func (r *request) Nudge()                   { r.st.loop.orchestrator.Nudge(r.f.name) }

// arm schedules the timeout of r's current step.
func (r *request) arm() {
	at := time.Duration(0)
	if r.wait {
		at = r.deadline
	}
	if r.disconnectAt > 0 && (r.first == 0 || r.first > r.disconnectAt) && (at == 0 || r.disconnectAt < at) {
		at = r.disconnectAt
	}
	if at > 0 {
		r.st.clock.set(at, r, reqLimit, r.gen)
	}
}

// unwait ends the wait and adds it to r.waited.
func (r *request) unwait() {
	if r.wait {
		r.wait = false
		r.waited += r.st.clock.now - r.since
		r.gen++
	}
}

// leave releases the replica slot, or the place in the queue.
func (r *request) leave() {
	st, f := r.st, r.f
	r.gen++
	if r.rep != nil {
		r.rep.removeRequest(r)
	}
	if r.to != nil {
		st.traffic.stranded = slices.DeleteFunc(st.traffic.stranded, func(x *request) bool { return x == r })
		r.to = nil
	}
	r.unwait()
	r.first, r.last, r.replyLost = 0, 0, false
	if r.Leave(st.wall()) {
		st.loop.orchestrator.Nudge(f.name)
	}
}

func (r *request) launch() { r.st.send(r, r.st.reps[r.ReplicaID()]) }

// send sends q to r; r may have ended.
func (s *State) send(q *request, r *replica) {
	q.gen++
	switch {
	case r == nil || !r.n.dead && !r.n.mute && r.state != functions.Ready && r.state != functions.Draining && r.state != functions.Sleeping:
		// The replica is gone or not READY.
		s.clock.set(s.clock.now+time.Millisecond, q, reqFails, q.gen)
		return
	case r.n.dead || r.n.mute:
		q.to = r.n // no answer until the connection is cut
		s.traffic.stranded = append(s.traffic.stranded, q)
	default:
		r.accept(q)
		if r.state == functions.Sleeping && r.level > 0 {
			r.wakeUp()
		}
	}
	bound := q.f.firstToken()
	if q.first == 0 || q.first > s.clock.now+bound {
		s.clock.set(s.clock.now+bound, q, reqSilent, q.gen)
	}
	q.arm()
}

// firstToken is the timeout from sending a request to its first token.
func (f *function) firstToken() time.Duration {
	if f.model != nil && f.model.Spec.Deadlines.FirstToken > 0 {
		return f.model.Spec.Deadlines.FirstToken.Std()
	}
	return 2 * time.Minute
}

func (r *request) act(event uint8) {
	st := r.st
	switch event {
	case reqLimit:
		switch now := st.clock.now; {
		case r.wait && now >= r.deadline:
			e := r.f.queue.ExpiredError(r.f.snapshot, st.instant(r.since), st.wall())
			r.leave()
			r.refuse(e)
		case r.first > 0 && r.first <= now: // it arrived in time
		default:
			r.leave()
			st.tally.Left++
			r.end(EndClientLeft, "")
		}
	case reqEnd:
		if r.rep.hung {
			break
		}
		if r.rep.n.mute {
			r.replyLost = true
			break
		}
		r.done()
	case reqSilent:
		if r.first == 0 || r.first > st.clock.now {
			r.fail("it said nothing within the deadline for its first token")
		}
	case reqFails:
		r.fail("it refuses connections")
	}
	st.traffic.handleDecided()
}

func (r *request) done() {
	t := &r.st.tally
	t.Answered++
	if r.first == 0 {
		r.first = r.st.clock.now
	}
	ttft := r.first - r.at
	t.ttft.add(ttft)
	if r.Cold {
		t.coldTTFT.add(ttft)
		t.coldWait.add(r.waited)
	} else {
		t.warmTTFT.add(ttft)
	}
	t.wait.add(r.waited)
	r.team.wait.add(r.waited)
	first := r.first
	r.leave()
	r.first = first
	r.end("", "")
}

// fail ends an attempt without an answer. The request is retried once, and only before
// its first token.
func (r *request) fail(problem string) {
	st, f := r.st, r.f
	began := r.first > 0 && r.first <= st.clock.now
	r.MarkFailed(true, st.wall())
	r.leave()
	st.clock.set(st.clock.now+admission.CoolDown, f, 0, 0)
	st.loop.orchestrator.ReportFailure(f.name, r.FailedReplica, problem)
	if began {
		st.tally.Broken++
		r.end(EndBroken, problem)
		return
	}
	if r.Retry(false, r.deadline > 0 && st.clock.now >= r.deadline) != admission.TryAgain {
		r.refuse(openai.New(openai.EngineCrashed, ""))
		return
	}
	r.enter()
}

// refuse ends the request with an error.
func (r *request) refuse(e *openai.Error) {
	st := r.st
	st.tally.Refused[string(e.Code)]++
	r.team.Refused++
	r.end(e.Code, e.Message)
}

func (r *request) end(code openai.Code, message string) {
	st := r.st
	if r.leased {
		r.lease.End(r.input+r.output, st.wall())
		r.leased = false
	}
	r.gen++
	last := len(st.traffic.active) - 1
	st.traffic.active[r.slot] = st.traffic.active[last]
	st.traffic.active[r.slot].slot = r.slot
	st.traffic.active[last] = nil
	st.traffic.active = st.traffic.active[:last]
	if st.OnRequestEnd != nil {
		st.OnRequestEnd(RequestEnd{ID: r.id, Function: r.f.name, Arrived: r.at, Code: code, Message: message, First: r.first,
			Replica: r.FailedReplica, Low: r.Priority == admission.Low})
	}
	st.traffic.pool = append(st.traffic.pool, r)
}

// act admits waiting requests after the cool-down of a replica.
func (f *function) act(uint8) {
	f.queue.Readmit(f.st.wall())
	f.st.traffic.handleDecided()
}

func (f *function) generation() uint32 { return 0 }

// OnChange records that the demand for f has changed.
func (f *function) OnChange() {
	f.st.demandChanged = append(f.st.demandChanged, f)
}

// demand returns the current demand for f; later changes call OnChange again.
func (f *function) demand() orchestrator.Demand {
	l, inFlight := f.queue.TakeLoad(f.st.wall())
	return orchestrator.Demand{
		Name: f.name, Active: l.Active, Queued: l.Queued, Oldest: l.Oldest, LastEnd: l.LastEnd, Low: l.Low, InFlight: inFlight,
	}
}

// reportDemand gives the demand that has changed to the orchestrator.
func (s *State) reportDemand() {
	for _, f := range s.demandChanged {
		s.loop.orchestrator.Demand(f.demand())
	}
	clear(s.demandChanged)
	s.demandChanged = s.demandChanged[:0]
}

// A loop is the data path of its orchestrator until another replaces it: then that data path
// belonged to another process.
var _ orchestrator.DataPath = (*loop)(nil)

// superseded reports whether the orchestrator has been replaced.
func (l *loop) superseded() bool { return l.st.loop != l }

// Publish applies snapshots. Requests admitted by them are sent before it returns.
func (l *loop) Publish(fs ...snapshot.Snapshot) {
	st := l.st
	if l.superseded() {
		return
	}
	wall := st.wall()
	for i := range fs {
		f := st.functionOf(fs[i].Name)
		before := f.snapshot
		next := fs[i]
		f.snapshot = &next
		if next.Model != nil && next.Model != f.model {
			f.set(next.Model)
		}
		f.queue.Publish(before, f.snapshot, wall)
	}
	st.traffic.handleDecided()
	st.reportDemand()
}

// Remove removes functions.
func (l *loop) Remove(names ...functions.Name) {
	st := l.st
	if l.superseded() {
		return
	}
	for _, n := range names {
		if f := st.fns[n]; f != nil && f.snapshot != nil {
			f.snapshot = nil
			f.queue.Close(n)
		}
	}
	st.traffic.handleDecided()
	st.reportDemand()
}

// AbortThrough fails the requests at an agent that was declared lost.
func (l *loop) AbortThrough(agent string) {
	st := l.st
	if l.superseded() {
		return
	}
	n := st.byID[strings.TrimPrefix(agent, "http://")]
	if n == nil {
		return
	}
	for _, q := range slices.Clone(st.traffic.stranded) {
		if q.to == n {
			q.fail("its agent is given up")
		}
	}
	for _, r := range n.reps {
		r.failRequests()
	}
	st.traffic.handleDecided()
	st.reportDemand()
}
