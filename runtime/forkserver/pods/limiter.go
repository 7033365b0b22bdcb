package pods

import (
	"fmt"
	"sync"
	"time"
)

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

// allow counts a request, or returns why it is refused. A refused one is not counted, so
// that a pod that asks too often still gets its share, and takes no other pod's.
func (l *requestLimiter) allow(pod string, now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.recent) > 0 && now.Sub(l.recent[0].at) >= l.within {
		l.recent = l.recent[1:]
	}
	own := 0
	for _, a := range l.recent {
		if a.pod == pod {
			own++
		}
	}
	switch {
	case own >= l.pod:
		return fmt.Sprintf("more than %d requests of a pod in %s", l.pod, l.within)
	case len(l.recent) >= l.all:
		return fmt.Sprintf("more than %d requests in %s", l.all, l.within)
	}
	l.recent = append(l.recent, podRequest{pod, now})
	return ""
}
