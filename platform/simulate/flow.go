package simulate

import (
	"math"
	"slices"
	"time"
)

// pipe is a rate that its flows share evenly: a node's link, its disk, its copy to
// GPUs, or all sources together.
type pipe struct {
	rate  float64 // bytes a second
	flows []*flow
}

func (p *pipe) share() float64 {
	return p.rate / float64(max(len(p.flows), 1))
}

// flow is a transfer through pipes. Its rate is the smallest of its shares; what it
// leaves unused of the others goes to no other flow, so a simulated fleet is never
// faster than a real one.
type flow struct {
	st    *State
	pipes [2]*pipe // the second may be nil
	left  float64
	rate  float64
	last  time.Duration
	gen   uint32
	done  func()
}

// flow sets bytes on their way; done is called when they are there.
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

// stop takes f out of its pipes; what it has brought is given back.
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

// settle counts what has come until now.
func (f *flow) settle() {
	now := f.st.clock.now
	f.left = max(0, f.left-f.rate*(now-f.last).Seconds())
	f.last = now
}

// reflow gives the flows of pipes their shares anew.
func (st *State) reflow(pipes []*pipe) {
	for i, p := range pipes {
		for _, f := range p.flows {
			if i > 0 && (f.pipes[0] == pipes[0] || f.pipes[1] == pipes[0]) {
				continue // it was done with the first
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

// durationOf of seconds, no longer than the clock can tell.
func durationOf(seconds float64) time.Duration {
	return time.Duration(min(math.Ceil(seconds*1e9), math.MaxInt64/4))
}
