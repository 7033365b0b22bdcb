package control

import (
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// firsts are the phases of cold starts that only activators see: from READY to the
// first byte of the engine's answer. The zero value knows none.
type firsts struct {
	mu    sync.Mutex
	of    map[string]time.Duration // by cold start
	order []string                 // the oldest first
}

const firstsMost = 1024

// note takes in what the first request of a cold start took. Another activator's
// word of the same one comes too late.
func (f *firsts) note(_ functions.Name, coldStart string, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.of[coldStart]; ok || coldStart == "" {
		return
	}
	if f.of == nil {
		f.of = map[string]time.Duration{}
	}
	if len(f.order) == firstsMost {
		delete(f.of, f.order[0])
		f.order = f.order[1:]
	}
	f.of[coldStart] = took
	f.order = append(f.order, coldStart)
}

// complete adds that phase to a timeline.
func (f *firsts) complete(t functions.Timeline) functions.Timeline {
	f.mu.Lock()
	took, ok := f.of[t.ID]
	f.mu.Unlock()
	if !ok || t.State != functions.Ready {
		return t
	}
	t.Phases = append(slices.Clone(t.Phases), functions.Span{Phase: functions.PhaseFirstToken, Start: t.Total, Duration: took.Seconds()})
	return t
}
