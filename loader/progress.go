package loader

import (
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/newest"
)

// Rates are measured over rateWindow. Progress is published every publishEvery at
// most, changes of state and of the problem at once.
const (
	rateWindow   = 3 * time.Second
	publishEvery = 100 * time.Millisecond
)

// progressFeed holds the progress of one staging and publishes it. A slow subscriber
// misses old values, never the latest.
type progressFeed struct {
	mu        sync.Mutex // guards all below
	current   Progress
	ended     bool
	published time.Time
	subs      map[chan Progress]bool
	samples   []sample // the last rateWindow, oldest first
}

type sample struct {
	at   time.Time
	done int64
}

func newProgressFeed() *progressFeed {
	return &progressFeed{current: Progress{State: Planning}, subs: make(map[chan Progress]bool)}
}

// update changes the progress and reports whether it was published.
func (f *progressFeed) update(change func(*Progress)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	was := f.current
	change(&f.current)
	now := time.Now()
	if f.current.State == was.State && f.current.Problem == was.Problem && now.Sub(f.published) < publishEvery {
		return false
	}
	f.published = now
	f.sample(now)
	f.current.Rate = f.rate(now)
	if f.ended = f.current.State == Ready || f.current.State == Failed; f.ended {
		f.current.Rate = 0
	}
	for c := range f.subs {
		newest.Offer(c, f.current)
		if f.ended {
			close(c)
		}
	}
	if f.ended {
		clear(f.subs)
	}
	return true
}

func (f *progressFeed) sample(now time.Time) {
	if f.current.State != Fetching && f.current.State != Waiting {
		f.samples = nil
		return
	}
	f.samples = append(f.samples, sample{now, f.current.Done})
	for len(f.samples) > 2 && now.Sub(f.samples[1].at) > rateWindow {
		f.samples = f.samples[1:]
	}
}

func (f *progressFeed) rate(now time.Time) float64 {
	if len(f.samples) == 0 {
		return 0
	}
	first := f.samples[0]
	secs := now.Sub(first.at).Seconds()
	if secs <= 0 || f.current.Done <= first.done {
		return 0
	}
	return float64(f.current.Done-first.done) / secs
}

func (f *progressFeed) now() Progress {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.current
	p.Rate = f.rate(time.Now())
	return p
}

func (f *progressFeed) subscribe() (<-chan Progress, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan Progress, 1)
	newest.Offer(c, f.current)
	if f.ended {
		close(c)
		return c, func() {}
	}
	f.subs[c] = true
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.subs[c] {
			delete(f.subs, c)
			close(c)
		}
	}
}
