package admission

import (
	"cmp"
	"slices"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Wake is what the caller of Request.Decide asks of the platform.
type Wake uint8

const (
	NoWake  Wake = iota // nothing: another request has asked
	Nudge               // to look at the demand
	Replica             // for a first replica; its answer is for Queue.Woken
	// Begin is Replica or Nudge for a request that begins a cold start, for which the limits
	// of its team are asked first. Request.Ask passes on what they say, by ConfirmBegin or
	// RefuseBegin: until then no other request asks.
	Begin
)

// Platform is what a request asks for a replica of its function.
type Platform interface {
	// ChargeStart charges a team for a cold start that its request begins. Where it refuses,
	// the request that asks has left when it returns.
	ChargeStart(team string) *openai.Error
	// Wake asks for a first replica, and Nudge to look at the demand.
	Wake() (coldStart string)
	Nudge()
}

// Ask asks p for what Decide returned, outside the lock of the queue that r waits in or has left.
// The team whose request begins a cold start is charged for it; where that is refused, which is
// returned if it is r's, the next that waits is asked.
func (r *Request) Ask(q *Queue, next Wake, p Platform) (refusal *openai.Error) {
	team, ok := r.Team, true
	begins := next == Begin
	defer func() {
		for begins { // a panic: without an answer to Begin no later request would begin a start
			_, begins = q.RefuseBegin(openai.New(openai.InternalError, ""))
		}
	}()
	for ok && next == Begin {
		e := p.ChargeStart(team)
		if e == nil {
			next = q.ConfirmBegin()
			break
		}
		refusal = cmp.Or(refusal, e)
		team, ok = q.RefuseBegin(e)
	}
	begins = false
	switch next {
	case Replica:
		id := p.Wake()
		q.Woken(id)
		r.ColdStart = id
	case Nudge:
		p.Nudge()
	}
	return refusal
}

// claim is a cold start that a request is about to begin.
type claim struct {
	by     *Request   // nil where it has left the queue
	low    bool       // it is of priority Low
	joined []*Request // that have come since and have not left
}

// wake returns what r asks: a first replica once, however many requests wait. With again it
// is asked for anew: an earlier wake may have been cancelled, and the retry of a refused
// request is the only demand there is. The demand of a Low request is enough: the lease of a
// wake would evict others. mu is held.
func (q *Queue) wake(r *Request, f *snapshot.Snapshot, again bool) Wake {
	switch {
	case q.claim != nil:
		if r.queue != nil {
			q.claim.joined = append(q.claim.joined, r)
		}
		return NoWake
	case !q.wakeAsked && !f.Starting():
		q.claim = &claim{low: r.Priority == Low}
		if r.queue != nil {
			q.claim.by = r
		}
		return Begin
	}
	return q.ask(r.Priority == Low, again, r)
}

// ask is wake without the limits of a team. mu is held.
func (q *Queue) ask(low, again bool, r *Request) Wake {
	first, others := !q.wakeAsked, q.nudged && !low // others: only Low requests have asked
	q.wakeAsked, q.nudged = true, low && (first || q.nudged)
	switch {
	case first:
		q.coldStart = "" // an earlier one's
	case !again && !others:
		r.ColdStart = q.coldStart
		return NoWake
	}
	if low {
		return Nudge
	}
	return Replica
}

// ConfirmBegin lets the request of a Begin begin its cold start. It returns what the caller
// asks: Nudge or Replica.
func (q *Queue) ConfirmBegin() (w Wake) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.claim
	q.claim = nil
	w = q.ask(c.low, true, nil)
	if c.low && slices.ContainsFunc(c.joined, func(r *Request) bool { return r.Priority != Low }) {
		w = q.ask(false, true, nil)
	}
	return w
}

// RefuseBegin ends a Begin whose team's limits refuse it: the request is rejected with reason
// if it waits. The next one that has come since begins the cold start in its place, if the
// limits of the team that is returned admit that; false: there is none.
func (q *Queue) RefuseBegin(reason *openai.Error) (team string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.claim
	if r := c.by; r != nil && r.teamQueue != nil {
		q.orderOf(r).remove(r)
		r.rejection = reason
		r.notify()
		q.reopenApart()
		q.demandChanged()
	}
	for i, r := range c.joined {
		if r.teamQueue != nil {
			q.claim = &claim{by: r, low: r.Priority == Low, joined: c.joined[i+1:]}
			return r.Team, true
		}
	}
	q.claim = nil
	return "", false
}

// dropClaim makes the claim forget a request that leaves. mu is held.
func (q *Queue) dropClaim(r *Request) {
	if c := q.claim; c != nil {
		if c.by == r {
			c.by = nil
		}
		c.joined = slices.DeleteFunc(c.joined, func(x *Request) bool { return x == r })
	}
}

// Woken notes the id of the cold start that the platform has answered a wake with; "": it is
// not known yet.
func (q *Queue) Woken(id string) {
	if id != "" {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.coldStart = id
	}
}
