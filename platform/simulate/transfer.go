package simulate

import (
	"math"
	"slices"
	"time"
)

// pipe is a rate shared evenly by its transfers: a node's link, disk or GPU copy.
type pipe struct {
	rate      float64 // bytes a second
	transfers []*transfer
}

type transfer struct {
	st   *State
	pipe *pipe
	left float64
	rate float64
	last time.Duration
	gen  uint32
	done func()
}

// startTransfer starts a transfer; done is called when all bytes have arrived.
func (s *State) startTransfer(bytes float64, done func(), through *pipe) *transfer {
	t := &transfer{st: s, pipe: through, left: max(bytes, 0), last: s.clock.now, done: done}
	through.transfers = append(through.transfers, t)
	s.reflow(through)
	return t
}

func (t *transfer) act(uint8) {
	t.end()
	t.done()
}

func (t *transfer) generation() uint32 { return t.gen }

// stop removes t from its pipe and returns the bytes not transferred.
func (t *transfer) stop() (left float64) {
	t.advance()
	t.end()
	return t.left
}

func (t *transfer) end() {
	t.gen++
	t.pipe.transfers = slices.DeleteFunc(t.pipe.transfers, func(x *transfer) bool { return x == t })
	t.st.reflow(t.pipe)
}

// advance adds the bytes transferred since the last call.
func (t *transfer) advance() {
	now := t.st.clock.now
	t.left = max(0, t.left-t.rate*(now-t.last).Seconds())
	t.last = now
}

// reflow recomputes the rates of all transfers in p.
func (s *State) reflow(p *pipe) {
	rate := p.rate / float64(max(len(p.transfers), 1))
	for _, t := range p.transfers {
		if rate == t.rate {
			continue
		}
		t.advance()
		t.rate = rate
		t.gen++
		if rate > 0 {
			s.clock.set(s.clock.now+durationOf(t.left/rate), t, 0, t.gen)
		}
	}
}

// durationOf converts seconds to a duration, bounded by the largest one.
func durationOf(seconds float64) time.Duration {
	return time.Duration(min(math.Ceil(seconds*1e9), math.MaxInt64/4))
}
