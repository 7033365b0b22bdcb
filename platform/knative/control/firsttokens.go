package control

import (
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// firstTokens are the phases of cold starts that only activators see: from READY to the
// first byte of the engine's answer. The zero value knows none.
type firstTokens struct {
	mu        sync.Mutex
	durations map[string]time.Duration // by cold start
	order     []string                 // the oldest first
}

const maxFirstTokens = 1024

// record takes in what the first request of a cold start took. Another activator's
// word of the same one comes too late.
func (f *firstTokens) record(_ functions.Name, coldStart string, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.durations[coldStart]; ok || coldStart == "" {
		return
	}
	if f.durations == nil {
		f.durations = map[string]time.Duration{}
	}
	if len(f.order) == maxFirstTokens {
		delete(f.durations, f.order[0])
		f.order = f.order[1:]
	}
	f.durations[coldStart] = took
	f.order = append(f.order, coldStart)
}

// complete adds that phase to a timeline.
func (f *firstTokens) complete(t functions.Timeline) functions.Timeline {
	f.mu.Lock()
	took, ok := f.durations[t.ID]
	f.mu.Unlock()
	if !ok || t.State != functions.Ready {
		return t
	}
	t.Phases = append(slices.Clone(t.Phases), functions.Span{Phase: functions.PhaseFirstToken, Start: t.Total, Duration: took.Seconds()})
	return t
}
