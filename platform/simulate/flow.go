package simulate

import (
	"math"
	"slices"
	"time"
)

// pipe is a rate shared evenly by its flows: a node's link, disk or GPU copy, or the
// total rate of the sources.
type pipe struct {
	rate  float64 // bytes a second
	flows []*flow
}

func (p *pipe) share() float64 {
	return p.rate / float64(max(len(p.flows), 1))
}

// flow is a transfer through pipes at the smallest of its shares. The rest of its other
// shares stays unused, so a simulated fleet is never faster than a real one.
type flow struct {
	st    *State
	pipes [2]*pipe // the second may be nil
	left  float64
	rate  float64
	last  time.Duration
	gen   uint32
	done  func()
}

// flow starts a transfer; done is called when all bytes have arrived.
func (st *State) flow(bytes float64, done func(), pipes ...*pipe) *flow {
	f := &flow{st: st, left: max(bytes, 0), last: st.clock.now, done: done}
	for i, p := range pipes {
		f.pipes[i] = p
		p.flows = append(p.flows, f)
	}
	st.reflow(pipes)
	return f
}

func (f *flow) act(uint8) {
	f.end()
	f.done()
}

func (f *flow) age() uint32 { return f.gen }

// stop removes f from its pipes and returns the bytes not transferred.
func (f *flow) stop() (left float64) {
	f.settle()
	f.end()
	return f.left
}

func (f *flow) end() {
	f.gen++
	pipes := make([]*pipe, 0, 2)
	for i, p := range f.pipes {
		if p != nil {
			p.flows = slices.DeleteFunc(p.flows, func(x *flow) bool { return x == f })
			pipes = append(pipes, p)
			f.pipes[i] = nil
		}
	}
	f.st.reflow(pipes)
}

// settle adds the bytes transferred since the last call.
func (f *flow) settle() {
	now := f.st.clock.now
	f.left = max(0, f.left-f.rate*(now-f.last).Seconds())
	f.last = now
}

// reflow recomputes the rates of all flows in pipes.
func (st *State) reflow(pipes []*pipe) {
	for i, p := range pipes {
		for _, f := range p.flows {
			if i > 0 && (f.pipes[0] == pipes[0] || f.pipes[1] == pipes[0]) {
				continue // already handled with the first pipe
			}
			rate := math.Inf(1)
			for _, q := range f.pipes {
				if q != nil {
					rate = min(rate, q.share())
				}
			}
			if rate == f.rate {
				continue
			}
			f.settle()
			f.rate = rate
			f.gen++
			if rate > 0 {
				st.clock.set(st.clock.now+durationOf(f.left/rate), f, 0, f.gen)
			}
		}
	}
}

// durationOf converts seconds to a duration, bounded by the largest one.
func durationOf(seconds float64) time.Duration {
	return time.Duration(min(math.Ceil(seconds*1e9), math.MaxInt64/4))
}
