package pods

import (
	"fmt"
	"sync"
	"time"
)

// pace bounds the asks of each pod and of all of them.
type pace struct {
	pod, all int
	within   time.Duration

	mu    sync.Mutex
	asked []asked // within the last while, oldest first
}

type asked struct {
	pod string
	at  time.Time
}

func newPace(pod, all int, within time.Duration) *pace {
	return &pace{pod: pod, all: all, within: within}
}

// ask counts one, or says why not: one that is refused counts for nothing, so that
// who asks too often still gets its share, and takes nobody else's.
func (p *pace) ask(pod string, now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.asked) > 0 && now.Sub(p.asked[0].at) >= p.within {
		p.asked = p.asked[1:]
	}
	mine := 0
	for _, a := range p.asked {
		if a.pod == pod {
			mine++
		}
	}
	switch {
	case mine >= p.pod:
		return fmt.Sprintf("%d asks of a pod in %s are enough", p.pod, p.within)
	case len(p.asked) >= p.all:
		return fmt.Sprintf("%d asks in %s are enough", p.all, p.within)
	}
	p.asked = append(p.asked, asked{pod, now})
	return ""
}
