package loader

import (
	"sync"
	"time"
)

// Rates are measured over rateWindow. Progress is published every publishEvery at
// most, changes of state at once.
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
func (n *progressFeed) update(change func(*Progress)) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return false
	}
	was := n.current.State
	change(&n.current)
	now := time.Now()
	if n.current.State == was && now.Sub(n.published) < publishEvery {
		return false
	}
	n.published = now
	n.sample(now)
	n.current.Rate = n.rate(now)
	if n.ended = n.current.State == Ready || n.current.State == Failed; n.ended {
		n.current.Rate = 0
	}
	for c := range n.subs {
		n.send(c)
		if n.ended {
			close(c)
		}
	}
	if n.ended {
		clear(n.subs)
	}
	return true
}

func (n *progressFeed) sample(now time.Time) {
	if n.current.State != Fetching && n.current.State != Waiting {
		n.samples = nil
		return
	}
	n.samples = append(n.samples, sample{now, n.current.Done})
	for len(n.samples) > 2 && now.Sub(n.samples[1].at) > rateWindow {
		n.samples = n.samples[1:]
	}
}

func (n *progressFeed) rate(now time.Time) float64 {
	if len(n.samples) == 0 {
		return 0
	}
	first := n.samples[0]
	secs := now.Sub(first.at).Seconds()
	if secs <= 0 || n.current.Done <= first.done {
		return 0
	}
	return float64(n.current.Done-first.done) / secs
}

// send replaces an unread value in c with the latest. Only the holder of mu sends, so
// the send does not block.
func (n *progressFeed) send(c chan Progress) {
	select {
	case <-c:
	default:
	}
	c <- n.current
}

func (n *progressFeed) now() Progress {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.current
	p.Rate = n.rate(time.Now())
	return p
}

func (n *progressFeed) subscribe() (<-chan Progress, func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := make(chan Progress, 1)
	n.send(c)
	if n.ended {
		close(c)
		return c, func() {}
	}
	n.subs[c] = true
	return c, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.subs[c] {
			delete(n.subs, c)
			close(c)
		}
	}
}
