package llama

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// team is a group of goroutines that share one pass. The caller of do is a member.
//
// A job is cut into pieces that any free member takes, and only pieces that
// were begun are waited for: a member without a processor delays nothing on a busy
// machine.
//
// A pass has some five short jobs per layer, so waking a sleeping goroutine for
// each would cost as much as the work. A waiting goroutine, a member for the next job or
// the caller for the last pieces, spins for some microseconds, yielding the processor
// each round so that the process's other goroutines run, and then sleeps.
type team struct {
	n       int
	job     atomic.Pointer[job]
	stopped atomic.Bool
	started gate // job has changed
	done    gate // a job's last piece is done
	ended   sync.WaitGroup
}

// job has pieces 0 to n-1; f runs one, with the number of its member.
type job struct {
	f    func(member, piece int)
	n    int64
	next atomic.Int64 // the first piece that is not taken
	left atomic.Int64 // pieces that are not done
}

// spinTries is how often a waiter polls before it sleeps: some 50 microseconds.
const spinTries = 400

// gate is a condition that waiters poll, then sleep on.
type gate struct {
	mu       sync.Mutex
	cond     sync.Cond
	sleepers atomic.Int32
}

// await returns when ok returns true.
func (g *gate) await(ok func() bool) {
	for i := range spinTries {
		if ok() {
			return
		}
		if i > 32 {
			runtime.Gosched()
		}
	}
	g.mu.Lock()
	g.sleepers.Add(1)
	for !ok() {
		g.cond.Wait()
	}
	g.sleepers.Add(-1)
	g.mu.Unlock()
}

// open wakes the sleepers; the condition is true before. A waiter counts itself before
// its last poll, so no wakeup is lost.
func (g *gate) open() {
	if g.sleepers.Load() > 0 {
		g.mu.Lock()
		g.cond.Broadcast()
		g.mu.Unlock()
	}
}

func newTeam(n int) *team {
	t := &team{n: max(n, 1)}
	t.started.cond.L, t.done.cond.L = &t.started.mu, &t.done.mu
	for i := 1; i < t.n; i++ {
		t.ended.Go(func() { t.member(i) })
	}
	return t
}

func (t *team) close() {
	t.stopped.Store(true)
	t.started.open()
	t.ended.Wait()
}

// do runs f for every piece from 0 to n-1 and returns when all are done.
func (t *team) do(n int, f func(member, piece int)) {
	if t.n == 1 || n == 1 {
		for i := range n {
			f(0, i)
		}
		return
	}
	j := &job{f: f, n: int64(n)}
	j.left.Store(j.n)
	t.job.Store(j)
	t.started.open()
	t.help(j, 0)
	t.done.await(func() bool { return j.left.Load() == 0 })
}

// help runs pieces of a job until none is left.
func (t *team) help(j *job, member int) {
	for {
		i := j.next.Add(1) - 1
		if i >= j.n {
			return
		}
		j.f(member, int(i))
		if j.left.Add(-1) == 0 {
			t.done.open()
		}
	}
}

func (t *team) member(i int) {
	var last *job
	for {
		t.started.await(func() bool { return t.stopped.Load() || t.job.Load() != last })
		if t.stopped.Load() {
			return
		}
		last = t.job.Load()
		t.help(last, i)
	}
}
