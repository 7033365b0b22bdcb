package routes

import (
	"maps"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Prewarms asks the platform to start functions that requests were not sent to because
// they are cold. However many requests ask, the platform is asked once per function in
// prewarmInterval. The zero value, without Start, refuses.
type Prewarms struct {
	// Start takes a lease on the team's budget of prewarms. It is called in a goroutine
	// of its own and returns soon.
	Start func(name functions.Name, until time.Time, by string) error

	mu    sync.Mutex
	asked map[functions.Name]prewarmAsked
}

type prewarmAsked struct {
	again time.Time
	err   error // of the last answer
}

const (
	prewarmLease    = 5 * time.Minute
	prewarmInterval = 30 * time.Second
	maxPrewarmAsked = 1024
)

// Ask asks for a function, without waiting for the answer. It returns why the platform
// refused it last, within the interval; "" where it did not.
func (p *Prewarms) Ask(name functions.Name, by string, now time.Time) (refused string) {
	if p.Start == nil {
		return "this server starts nothing ahead"
	}
	name = name.WithoutAdapter()
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.asked[name]; now.Before(last.again) {
		if last.err != nil {
			return last.err.Error()
		}
		return ""
	}
	if p.asked == nil {
		p.asked = map[functions.Name]prewarmAsked{}
	}
	if len(p.asked) >= maxPrewarmAsked {
		maps.DeleteFunc(p.asked, func(_ functions.Name, v prewarmAsked) bool { return !now.Before(v.again) })
	}
	if len(p.asked) >= maxPrewarmAsked {
		return "too many prewarms hold"
	}
	p.asked[name] = prewarmAsked{again: now.Add(prewarmInterval)}
	go func() { // ends with Start, which does not wait
		err := p.Start(name, now.Add(prewarmLease), by)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked[name] = prewarmAsked{again: now.Add(prewarmInterval), err: err}
	}()
	return ""
}
