package admission

import "time"

// maxAlone bounds the requests of a queue that wait to run alone.
const maxAlone = 64

// admitAlone grants the first request of q.alone a replica that serves no other. Until there
// is one, the least loaded replica gets no new requests. One request of a queue runs alone at
// a time, and the others are admitted before the next. mu is held.
func (q *Queue) admitAlone(now time.Time) {
	r := q.alone.peek()
	if r == nil || q.runsAlone {
		return
	}
	var at *replica
	for _, c := range q.replicas {
		if c.usable(now) && (at == nil || c.inFlight < at.inFlight || c.inFlight == at.inFlight && c == q.apart) {
			at = c
		}
	}
	if q.apart = at; at == nil || at.inFlight > 0 {
		return
	}
	q.alone.take()
	q.assignSlot(r, at, now)
	r.Grant.Alone, q.runsAlone = true, true
	r.notify()
	q.demandChanged()
}

// reopenApart opens the replica that was kept for a request of q.alone, unless that runs.
// mu is held.
func (q *Queue) reopenApart() {
	if !q.runsAlone {
		q.apart = nil
	}
}

// ReleaseAlone makes the requests that wait to run alone wait as all others do: the request
// to blame is found.
func (q *Queue) ReleaseAlone(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := q.alone.take(); r != nil; r = q.alone.take() {
		r.Alone = false
		q.orderOf(r).add(r)
	}
	q.reopenApart()
	q.admit(now)
}

func (q *Queue) orderOf(r *Request) *order {
	switch {
	case r.Alone:
		return &q.alone
	case r.Priority == Low:
		return &q.low
	}
	return &q.waiting
}
