package simulate

import "time"

// actor receives events. what tells its events apart. An event of another generation
// than the actor's age was cancelled: events are not removed from the heap. Generation
// 0 cannot be cancelled.
type actor interface {
	act(what uint8)
	age() uint32
}

// event is something that happens at a time.
type event struct {
	at  time.Duration
	seq uint64 // events of one time happen in the order in which they were set
	who actor
	gen uint32
	wha uint8
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// clock is the virtual time and what is due on it: a heap of four branches, which
// is half as deep as one of two and keeps siblings on one line of the cache.
type clock struct {
	now  time.Duration
	seq  uint64
	heap []event
}

// set has who act at a time; one that is past is now.
func (c *clock) set(at time.Duration, who actor, what uint8, gen uint32) {
	c.seq++
	e := event{at: max(at, c.now), seq: c.seq, who: who, gen: gen, wha: what}
	h := append(c.heap, e)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 4
		if !e.before(&h[p]) {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = e
	c.heap = h
}

// next is when the next event is due; false if none is.
func (c *clock) next() (time.Duration, bool) {
	if len(c.heap) == 0 {
		return 0, false
	}
	return c.heap[0].at, true
}

// pop takes the next event out.
func (c *clock) pop() event {
	h := c.heap
	top := h[0]
	n := len(h) - 1
	last := h[n]
	h[n] = event{}
	h = h[:n]
	c.heap = h
	i := 0
	for {
		k := 4*i + 1
		if k >= n {
			break
		}
		best := k
		for j := k + 1; j < min(k+4, n); j++ {
			if h[j].before(&h[best]) {
				best = j
			}
		}
		if !h[best].before(&last) {
			break
		}
		h[i] = h[best]
		i = best
	}
	if n > 0 {
		h[i] = last
	}
	return top
}
