package llama

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// team is the goroutines that share one pass. The caller of do is one of them.
//
// A pass asks for some five short parallel parts per layer, so waking a sleeping
// goroutine for each would cost as much as the work. Between parts of one pass
// the others spin, yielding the processor each round so that the process's other
// goroutines run; after spins rounds they sleep until the next part.
type team struct {
	n    int
	work func(part, parts int) // set before round is raised

	round atomic.Uint32 // raised once per part
	left  atomic.Int32  // how many others have not finished it
	over  atomic.Bool

	mu     sync.Mutex
	wake   *sync.Cond // for the sleepers
	asleep int        // guarded by mu
	ended  sync.WaitGroup
}

const spins = 2000

func newTeam(n int) *team {
	t := &team{n: max(n, 1)}
	t.wake = sync.NewCond(&t.mu)
	for i := 1; i < t.n; i++ {
		t.ended.Go(func() { t.member(i) })
	}
	return t
}

func (t *team) close() {
	t.over.Store(true)
	t.start()
	t.ended.Wait()
}

func (t *team) start() {
	t.round.Add(1)
	t.mu.Lock()
	if t.asleep > 0 {
		t.wake.Broadcast()
	}
	t.mu.Unlock()
}

// do runs f once in every member, and returns when all are done.
func (t *team) do(f func(part, parts int)) {
	if t.n == 1 {
		f(0, 1)
		return
	}
	t.work = f
	t.left.Store(int32(t.n - 1))
	t.start()
	f(0, t.n)
	for i := 0; t.left.Load() > 0; i++ {
		if i > 64 {
			runtime.Gosched()
		}
	}
}

func (t *team) member(i int) {
	seen := uint32(0)
	for {
		t.await(seen)
		seen++
		if t.over.Load() {
			return
		}
		t.work(i, t.n)
		t.left.Add(-1)
	}
}

// await returns when the round after seen has begun.
func (t *team) await(seen uint32) {
	for i := range spins {
		if t.round.Load() != seen {
			return
		}
		if i > 64 {
			runtime.Gosched()
		}
	}
	t.mu.Lock()
	t.asleep++
	for t.round.Load() == seen {
		t.wake.Wait()
	}
	t.asleep--
	t.mu.Unlock()
}

// share cuts n things into parts, in multiples of unit.
func share(n, unit, part, parts int) (lo, hi int) {
	units := (n + unit - 1) / unit
	return min(n, units*part/parts*unit), min(n, units*(part+1)/parts*unit)
}
