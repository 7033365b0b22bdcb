package pods

import (
	"fmt"
	"sync"
	"time"
)

// requestLimiter bounds the requests of each pod and of all of them.
type requestLimiter struct {
	pod, all int
	within   time.Duration

	mu     sync.Mutex
	recent []podRequest // within the last while, oldest first
}

type podRequest struct {
	pod string
	at  time.Time
}

func newRequestLimiter(pod, all int, within time.Duration) *requestLimiter {
	return &requestLimiter{pod: pod, all: all, within: within}
}

// allow counts a request, or returns why it is refused. A refused one is not counted, so
// that a pod that asks too often still gets its share, and takes no other pod's.
func (p *requestLimiter) allow(pod string, now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.recent) > 0 && now.Sub(p.recent[0].at) >= p.within {
		p.recent = p.recent[1:]
	}
	own := 0
	for _, a := range p.recent {
		if a.pod == pod {
			own++
		}
	}
	switch {
	case own >= p.pod:
		return fmt.Sprintf("more than %d requests of a pod in %s", p.pod, p.within)
	case len(p.recent) >= p.all:
		return fmt.Sprintf("more than %d requests in %s", p.all, p.within)
	}
	p.recent = append(p.recent, podRequest{pod, now})
	return ""
}
