package httpserver

import (
	"context"
	"os"
	"runtime"
	"time"
)

// ProcTuner sets GOMAXPROCS to as few processors as the load needs.
//
// Go wakes an idle processor for each goroutine that becomes ready and lets it spin.
// In a proxy, whose goroutines each run for microseconds, that costs CPU that the
// engines beside it need: on two cores 46 in place of 39 µs for a JSON request, 334
// in place of 204 µs for a stream of 64 chunks. A GOMAXPROCS in the environment
// turns the tuner off.
type ProcTuner struct {
	minProcs, maxProcs   int
	now                  int
	busyCount, idleCount int // consecutive observations that call for more, or for fewer
	releaseAfter         int // calm observations before one processor is released
	lowered              int // observations since one was released
}

const (
	tuneEvery         = 100 * time.Millisecond
	raiseAfter        = 3   // full observations before more are used
	firstReleaseAfter = 10  // calm observations before one is released, at first
	maxReleaseAfter   = 600 // and at most, after releases that proved wrong
)

// NewProcTuner makes a tuner; it starts nothing.
func NewProcTuner() *ProcTuner {
	n := runtime.GOMAXPROCS(0)
	// At least a quarter of many cores: a stalled disk blocks the processor that
	// waits for it.
	t := &ProcTuner{minProcs: min(n, max(1, n/4)), maxProcs: n, releaseAfter: firstReleaseAfter, lowered: maxReleaseAfter}
	t.now = t.minProcs
	return t
}

// observe takes the load since the last observation, in cores, and returns how many
// processors to use: twice as many after a short overload; one fewer after a longer
// time in which one fewer would have done. A load measured on many processors is
// higher than on fewer, so releasing one is an attempt; after a failed attempt the
// next comes after twice the time.
func (p *ProcTuner) observe(load float64) int {
	p.lowered++
	switch {
	case load > 0.95*float64(p.now) && p.now < p.maxProcs:
		p.idleCount = 0
		if p.busyCount++; p.busyCount < raiseAfter {
			break
		}
		if p.lowered < maxReleaseAfter {
			p.releaseAfter = min(2*p.releaseAfter, maxReleaseAfter)
		} else {
			p.releaseAfter = firstReleaseAfter
		}
		p.now, p.busyCount = min(2*p.now, p.maxProcs), 0
	case p.now > p.minProcs && load < 1.1*float64(p.now-1):
		p.busyCount = 0
		if p.idleCount++; p.idleCount >= p.releaseAfter {
			p.now, p.idleCount, p.lowered = p.now-1, 0, 0
		}
	default:
		p.busyCount, p.idleCount = 0, 0
	}
	return p.now
}

// Run adjusts GOMAXPROCS until ctx ends and then restores it.
func (p *ProcTuner) Run(ctx context.Context) error {
	if os.Getenv("GOMAXPROCS") != "" || p.maxProcs == 1 {
		return nil
	}
	defer runtime.GOMAXPROCS(p.maxProcs)
	t := time.NewTicker(tuneEvery)
	defer t.Stop()
	runtime.GOMAXPROCS(p.now)
	used, at, set := processorTime(), time.Now(), p.now
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		u, now := processorTime(), time.Now()
		if n := p.observe(float64(u-used) / float64(now.Sub(at))); n != set {
			runtime.GOMAXPROCS(n)
			set = n
		}
		used, at = u, now
	}
}
