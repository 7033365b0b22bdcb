package simulate

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// work is the requests at an engine, which works on as many at once as it has slots.
type work struct {
	slots    int
	running  int        // requests that the engine works on
	line     []*request // requests waiting inside the engine
	requests []*request // all of them
}

// gpuUse is the GPUs that a replica holds, and their time.
type gpuUse struct {
	gpus   []int
	hold   float64       // GPUs that it holds, fractions included
	held   GPUHours      // in seconds
	last   time.Duration // held is accounted up to here
	served bool          // a request came
}

// accept handles a request that reaches the engine.
func (r *replica) accept(q *request) {
	r.account()
	q.rep, q.index = r, len(r.work.requests)
	r.work.requests = append(r.work.requests, q)
	r.use.served = true
	if r.work.running < r.work.slots {
		r.answer(q)
	} else {
		r.work.line = append(r.work.line, q)
		q.lined = true
	}
}

func (r *replica) answer(q *request) {
	r.work.running++
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
	last := len(r.work.requests) - 1
	if q.index != last {
		r.work.requests[q.index] = r.work.requests[last]
		r.work.requests[q.index].index = q.index
	}
	r.work.requests[last] = nil
	r.work.requests = r.work.requests[:last]
	if q.lined {
		r.work.line = slices.DeleteFunc(r.work.line, func(x *request) bool { return x == q })
		q.lined = false
	} else {
		r.work.running--
		if len(r.work.line) > 0 && r.work.running < r.work.slots {
			next := r.work.line[0]
			r.work.line = slices.Delete(r.work.line, 0, 1)
			next.gen++
			r.answer(next)
			next.arm()
		}
	}
	q.rep = nil
	r.continueWhenIdle()
}

func (r *replica) failRequests() {
	for len(r.work.requests) > 0 {
		r.work.line = r.work.line[:0:0] // the failed requests must not start the waiting ones
		for _, q := range r.work.requests {
			q.lined = false
		}
		r.work.running = len(r.work.requests)
		r.work.requests[len(r.work.requests)-1].fail("it died before the first byte of an answer")
	}
	r.work.line, r.work.running = nil, 0
}

// account adds the GPU time since the last call.
func (r *replica) account() {
	now := r.st.clock.now
	d := (now - r.use.last).Seconds() * r.use.hold
	r.use.last = now
	if d <= 0 {
		return
	}
	var h GPUHours
	switch {
	case r.state == functions.Downloading || r.state == functions.Loading:
		h.Loading = d
	case len(r.work.requests) > 0:
		h.Busy = d
	case r.state == functions.Ready:
		h.Idle = d
	default:
		h.Wasted = d
	}
	r.use.held, r.st.series.sum = r.use.held.plus(h, 1), r.st.series.sum.plus(h, 1)
}

// time returns the GPU time; all of it counts as wasted if the replica never served.
func (u *gpuUse) time() GPUHours {
	if u.served {
		return u.held
	}
	return GPUHours{Wasted: u.held.sum()}
}
