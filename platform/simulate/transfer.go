package simulate

import (
	"math"
	"slices"
	"time"
)

// pipe is a rate shared evenly by its transfers: a node's link, disk or GPU copy, or the
// total rate of the sources.
type pipe struct {
	rate      float64 // bytes a second
	transfers []*transfer
}

func (p *pipe) share() float64 {
	return p.rate / float64(max(len(p.transfers), 1))
}

// transfer is a transfer through pipes at the smallest of its shares. The rest of its other
// shares stays unused, so a simulated fleet is never faster than a real one.
type transfer struct {
	st    *State
	pipes [2]*pipe // the second may be nil
	left  float64
	rate  float64
	last  time.Duration
	gen   uint32
	done  func()
}

// startTransfer starts a transfer; done is called when all bytes have arrived.
func (s *State) startTransfer(bytes float64, done func(), pipes ...*pipe) *transfer {
	f := &transfer{st: s, left: max(bytes, 0), last: s.clock.now, done: done}
	for i, p := range pipes {
		f.pipes[i] = p
		p.transfers = append(p.transfers, f)
	}
	s.reflow(pipes)
	return f
}

func (t *transfer) act(uint8) {
	t.end()
	t.done()
}

func (t *transfer) generation() uint32 { return t.gen }

// stop removes t from its pipes and returns the bytes not transferred.
func (t *transfer) stop() (left float64) {
	t.advance()
	t.end()
	return t.left
}

func (t *transfer) end() {
	t.gen++
	pipes := make([]*pipe, 0, 2)
	for i, p := range t.pipes {
		if p != nil {
			p.transfers = slices.DeleteFunc(p.transfers, func(x *transfer) bool { return x == t })
			pipes = append(pipes, p)
			t.pipes[i] = nil
		}
	}
	t.st.reflow(pipes)
}

// advance adds the bytes transferred since the last call.
func (t *transfer) advance() {
	now := t.st.clock.now
	t.left = max(0, t.left-t.rate*(now-t.last).Seconds())
	t.last = now
}

// reflow recomputes the rates of all transfers in pipes.
func (s *State) reflow(pipes []*pipe) {
	for i, p := range pipes {
		for _, f := range p.transfers {
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
			f.advance()
			f.rate = rate
			f.gen++
			if rate > 0 {
				s.clock.set(s.clock.now+durationOf(f.left/rate), f, 0, f.gen)
			}
		}
	}
}

// durationOf converts seconds to a duration, bounded by the largest one.
func durationOf(seconds float64) time.Duration {
	return time.Duration(min(math.Ceil(seconds*1e9), math.MaxInt64/4))
}
