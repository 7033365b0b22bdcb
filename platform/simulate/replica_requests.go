package simulate

import (
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// accept handles a request that reaches the engine.
func (r *replica) accept(q *request) {
	r.account()
	q.rep, q.place = r, len(r.here)
	r.here = append(r.here, q)
	r.inFlight++
	if r.served == 0 {
		r.served = 1
	}
	if r.running < r.slots {
		r.work(q)
	} else {
		r.line = append(r.line, q)
		q.lined = true
	}
}

// work starts a request in the engine.
func (r *replica) work(q *request) {
	r.running++
	q.lined = false
	if r.hung {
		r.after(r.spec.Deadlines.Hang.Std()+hangLooks, repHang)
		return
	}
	e := r.eng
	now := r.st.clock.now
	prefill := float64(q.input) / float64(e.Prefill)
	token := 1 / float64(e.Decode)
	q.first = now + durationOf(prefill+token)
	q.last = max(now+durationOf(prefill+token*float64(max(q.output, 1))), q.first)
	r.st.clock.set(q.last, q, reqEnd, q.gen)
}

// part removes a request from the engine, finished or not.
func (r *replica) part(q *request) {
	r.account()
	last := len(r.here) - 1
	if q.place != last {
		r.here[q.place] = r.here[last]
		r.here[q.place].place = q.place
	}
	r.here[last] = nil
	r.here = r.here[:last]
	r.inFlight--
	if q.lined {
		r.line = slices.DeleteFunc(r.line, func(x *request) bool { return x == q })
		q.lined = false
	} else {
		r.running--
		if len(r.line) > 0 && r.running < r.slots {
			next := r.line[0]
			r.line = slices.Delete(r.line, 0, 1)
			next.gen++
			r.work(next)
			next.arm()
		}
	}
	q.rep = nil
	r.settled()
}

// cut fails all its requests.
func (r *replica) cut() {
	for len(r.here) > 0 {
		r.line = r.line[:0:0] // the failed requests must not start the waiting ones
		for _, q := range r.here {
			q.lined = false
		}
		r.running = len(r.here)
		r.here[len(r.here)-1].fail("it died before the first byte of an answer")
	}
	r.line, r.running = nil, 0
}

// account adds the GPU time since the last call.
func (r *replica) account() {
	now := r.st.clock.now
	d := (now - r.last).Seconds() * r.hold
	r.last = now
	if d <= 0 {
		return
	}
	all := &r.st.series.sum
	switch {
	case r.state == functions.Downloading || r.state == functions.Loading:
		r.held.loading += d
		all.loading += d
	case r.inFlight > 0:
		r.held.busy += d
		all.busy += d
	case r.state == functions.Ready:
		r.held.idle += d
		all.idle += d
	default:
		r.held.wasted += d
		all.wasted += d
	}
}

// spent returns its GPU time; all of it counts as wasted if it never served.
func (r *replica) spent() held {
	if r.served > 0 {
		return r.held
	}
	return held{wasted: r.held.sum()}
}

// settleHours adds its GPU time to the tally at its end.
func (r *replica) settleHours() {
	r.f.team.held = r.f.team.held.plus(r.spent())
	r.held = held{}
}
