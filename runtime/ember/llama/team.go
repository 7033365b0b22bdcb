package llama

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// team is the goroutines that share one pass. The caller of do is one of them.
//
// A pass asks for some five short parallel parts per layer, so waking a sleeping
// goroutine for each would cost as much as the work. Whoever waits, a member for the
// next part or the caller for the members, spins for some microseconds, yielding the
// processor each round so that the process's other goroutines run, and then sleeps:
// on a machine that is busy with something else, spinning would take the processor
// from the one that is waited for.
type team struct {
	n    int
	work func(part, parts int) // set before round is raised

	round atomic.Uint32 // raised once per part
	left  atomic.Int32  // how many others have not finished it
	over  atomic.Bool
	begun gate // round was raised
	done  gate // left fell to zero

	ended sync.WaitGroup
}

// spins is how often a waiter looks before it sleeps: some 50 microseconds.
const spins = 400

// gate is where waiters sleep.
type gate struct {
	mu     sync.Mutex
	cond   sync.Cond
	asleep atomic.Int32
}

// await returns when ok does.
func (g *gate) await(ok func() bool) {
	for i := range spins {
		if ok() {
			return
		}
		if i > 32 {
			runtime.Gosched()
		}
	}
	g.mu.Lock()
	g.asleep.Add(1)
	for !ok() {
		g.cond.Wait()
	}
	g.asleep.Add(-1)
	g.mu.Unlock()
}

// open wakes the sleepers, after what they wait for has become true. A waiter counts
// itself before it looks a last time, so one of the two sees the other.
func (g *gate) open() {
	if g.asleep.Load() > 0 {
		g.mu.Lock()
		g.cond.Broadcast()
		g.mu.Unlock()
	}
}

func newTeam(n int) *team {
	t := &team{n: max(n, 1)}
	t.begun.cond.L, t.done.cond.L = &t.begun.mu, &t.done.mu
	for i := 1; i < t.n; i++ {
		t.ended.Go(func() { t.member(i) })
	}
	return t
}

func (t *team) close() {
	t.over.Store(true)
	t.round.Add(1)
	t.begun.open()
	t.ended.Wait()
}

// do runs f once in every member, and returns when all are done.
func (t *team) do(f func(part, parts int)) {
	if t.n == 1 {
		f(0, 1)
		return
	}
	t.work = f
	t.left.Store(int32(t.n - 1))
	t.round.Add(1)
	t.begun.open()
	f(0, t.n)
	t.done.await(func() bool { return t.left.Load() == 0 })
}

func (t *team) member(i int) {
	for seen := uint32(0); ; seen++ {
		t.begun.await(func() bool { return t.round.Load() != seen })
		if t.over.Load() {
			return
		}
		t.work(i, t.n)
		if t.left.Add(-1) == 0 {
			t.done.open()
		}
	}
}

// share cuts n things into parts, in multiples of unit.
func share(n, unit, part, parts int) (lo, hi int) {
	units := (n + unit - 1) / unit
	return min(n, units*part/parts*unit), min(n, units*(part+1)/parts*unit)
}
