package simulate

import "time"

// actor receives events; what is the kind of event. An event whose generation is
// no longer the actor's is cancelled: it stays in the heap and is skipped. Generation 0
// cannot be cancelled.
type actor interface {
	act(event uint8)
	generation() uint32
}

type event struct {
	at    time.Duration
	seq   uint64 // events at the same time fire in the order they were scheduled
	actor actor
	gen   uint32
	kind  uint8
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// clock is the virtual time and its scheduled events: a 4-ary heap, half as deep as a
// binary one, with siblings on one cache line.
type clock struct {
	now  time.Duration
	seq  uint64
	heap []event
}

// set schedules an event of an actor; a time in the past means now.
func (c *clock) set(at time.Duration, who actor, what uint8, gen uint32) {
	c.seq++
	e := event{at: max(at, c.now), seq: c.seq, actor: who, gen: gen, kind: what}
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
