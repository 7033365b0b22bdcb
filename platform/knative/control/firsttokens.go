package control

import (
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// firstTokens keeps the first_token phase of cold starts, which only activators measure:
// from READY to the first byte of the engine's answer. The zero value is empty.
type firstTokens struct {
	mu        sync.Mutex
	durations map[string]time.Duration // by cold start id
	order     []string                 // oldest first
}

const maxFirstTokens = 1024

// record stores the phase of a cold start. The first report of several activators counts.
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

func (f *firstTokens) complete(t functions.Timeline) functions.Timeline {
	f.mu.Lock()
	took, ok := f.durations[t.ID]
	f.mu.Unlock()
	if !ok {
		return t
	}
	return t.WithFirstToken(took)
}
