package simulate

import (
	"cmp"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// accept handles a request that reaches the engine.
func (r *replica) accept(q *request) {
	r.account()
	q.rep, q.index = r, len(r.requests)
	r.requests = append(r.requests, q)
	r.inFlight++
	r.served = cmp.Or(r.served, 1)
	if r.running < r.slots {
		r.work(q)
	} else {
		r.line = append(r.line, q)
		q.lined = true
	}
}

func (r *replica) work(q *request) {
	r.running++
	q.lined = false
	if r.hung {
		r.after(r.spec.Deadlines.Hang.Std()+hangProbeDelay, repHang)
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

// removeRequest removes a request from the engine, finished or not.
func (r *replica) removeRequest(q *request) {
	r.account()
	last := len(r.requests) - 1
	if q.index != last {
		r.requests[q.index] = r.requests[last]
		r.requests[q.index].index = q.index
	}
	r.requests[last] = nil
	r.requests = r.requests[:last]
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
	r.continueWhenIdle()
}

func (r *replica) failRequests() {
	for len(r.requests) > 0 {
		r.line = r.line[:0:0] // the failed requests must not start the waiting ones
		for _, q := range r.requests {
			q.lined = false
		}
		r.running = len(r.requests)
		r.requests[len(r.requests)-1].fail("it died before the first byte of an answer")
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

// gpuTime returns its GPU time; all of it counts as wasted if it never served.
func (r *replica) gpuTime() held {
	if r.served > 0 {
		return r.held
	}
	return held{wasted: r.held.sum()}
}
