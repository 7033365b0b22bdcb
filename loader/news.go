package loader

import (
	"sync"
	"time"
)

// Rates are measured over rateWindow; progress goes out every tellEvery at
// most, changes of state at once.
const (
	rateWindow = 3 * time.Second
	tellEvery  = 100 * time.Millisecond
)

// news holds the progress of one staging and passes it on. A subscriber that
// is slow misses what is old, never what is latest.
type news struct {
	mu      sync.Mutex // guards all below
	cur     Progress
	over    bool
	told    time.Time
	subs    map[chan Progress]bool
	samples []sample // the last rateWindow, oldest first
}

type sample struct {
	at   time.Time
	done int64
}

func newNews() *news {
	return &news{cur: Progress{State: Planning}, subs: make(map[chan Progress]bool)}
}

// update changes the progress and reports whether it was passed on.
func (n *news) update(change func(*Progress)) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return false
	}
	was := n.cur.State
	change(&n.cur)
	now := time.Now()
	if n.cur.State == was && now.Sub(n.told) < tellEvery {
		return false
	}
	n.told = now
	n.sample(now)
	n.cur.Rate = n.rate(now)
	if n.over = n.cur.State == Ready || n.cur.State == Failed; n.over {
		n.cur.Rate = 0
	}
	for c := range n.subs {
		n.give(c)
		if n.over {
			close(c)
		}
	}
	if n.over {
		clear(n.subs)
	}
	return true
}

func (n *news) sample(now time.Time) {
	if n.cur.State != Fetching && n.cur.State != Waiting {
		n.samples = nil
		return
	}
	n.samples = append(n.samples, sample{now, n.cur.Done})
	for len(n.samples) > 2 && now.Sub(n.samples[1].at) > rateWindow {
		n.samples = n.samples[1:]
	}
}

func (n *news) rate(now time.Time) float64 {
	if len(n.samples) == 0 {
		return 0
	}
	first := n.samples[0]
	secs := now.Sub(first.at).Seconds()
	if secs <= 0 || n.cur.Done <= first.done {
		return 0
	}
	return float64(n.cur.Done-first.done) / secs
}

// give puts the latest into c, in place of what was not read yet. Only the
// holder of mu sends, so the second send finds room.
func (n *news) give(c chan Progress) {
	select {
	case <-c:
	default:
	}
	c <- n.cur
}

func (n *news) now() Progress {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.cur
	p.Rate = n.rate(time.Now())
	return p
}

func (n *news) subscribe() (<-chan Progress, func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := make(chan Progress, 1)
	n.give(c)
	if n.over {
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
