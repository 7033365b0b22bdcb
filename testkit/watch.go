package testkit

import (
	"runtime"
	"testing"
	"time"
)

// Watch measures how much a busy machine slows the processes of a test down, by a reference
// thread that computes for as long as the watch runs. A promised bound on real processes is
// multiplied by it: on an idle machine it is the promised bound, and work that competes with
// others' takes longer by as much as the reference does.
type Watch struct {
	stop  chan struct{}
	ended chan struct{}
	began time.Time
	wall  time.Duration // time that the reference took
	spent time.Duration // processor time that it got meanwhile
}

// StartWatch starts a watch, which ends with the test at the latest.
func StartWatch(t testing.TB) *Watch {
	w := &Watch{stop: make(chan struct{}), ended: make(chan struct{}), began: time.Now()}
	go w.compute()
	t.Cleanup(func() { w.Stop() })
	return w
}

// compute is the reference: 10 ms of processor time, as long a pause, and again.
func (w *Watch) compute() {
	defer close(w.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		from, used := time.Now(), threadTime()
		spent := time.Duration(0)
		for spent < 10*time.Millisecond {
			for range 20_000 { // loops without effect are not removed
			}
			spent = threadTime() - used
		}
		w.wall, w.spent = w.wall+time.Since(from), w.spent+spent
		select {
		case <-w.stop:
			return
		case <-pause.C:
		}
	}
}

// Stop returns the time since the start, and by what a promised bound is multiplied: 1 where
// the reference took as long as alone. Where it took longer, that counts up to twice: what
// several processes do one after the other also waits for the disk, for memory, and for a
// processor at each hand-over. Later calls return the slowdown of the first.
func (w *Watch) Stop() (took time.Duration, slowdown float64) {
	took = time.Since(w.began)
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	<-w.ended
	ratio := max(1, float64(w.wall)/float64(w.spent))
	return took, ratio * min(ratio, 2)
}

var start = time.Now()

// wallTime returns the time by the clock.
func wallTime() time.Duration { return time.Since(start) }
