package agent

import (
	"context"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/runtime/gpu"
)

// Ledger keeps the books of a node: it looks at the driver and at the store
// every so often, so that a heartbeat never waits for either.
type Ledger struct {
	facts  *gpu.Facts
	store  *store.Store
	count  int                          // GPUs to offer; negative: all there are
	memory functions.Bytes              // of each GPU to offer; 0: all of it
	loads  func() functions.LoaderStats // nil: nothing is said of a loader

	mu     sync.Mutex
	rate   float64 // bytes a second that came between the last two looks
	loaded functions.Bytes
	looked time.Time
	gpus   []functions.GPU
	use    functions.StoreUse
	cached []functions.CachedModel
}

// NewLedger looks once. facts and st may be nil. count and memory are what the
// operator wants offered: count negative is all that there are; where he names
// more than the driver shows, his word holds (a driver this build cannot ask).
func NewLedger(facts *gpu.Facts, st *store.Store, count int, memory functions.Bytes) *Ledger {
	l := &Ledger{facts: facts, store: st, count: count, memory: memory}
	l.look(true)
	return l
}

const (
	lookEvery  = 2 * time.Second
	storeEvery = 5 // looks at GPUs for one at the store
)

// Run looks again and again until ctx ends.
func (l *Ledger) Run(ctx context.Context) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			l.look(n%storeEvery == 0)
		}
	}
}

func (l *Ledger) look(store bool) {
	var gpus []functions.GPU
	if l.facts != nil {
		gpus = l.facts.List()
	}
	gpus = offer(gpus, l.count, l.memory)
	var use functions.StoreUse
	var cached []functions.CachedModel
	if store && l.store != nil {
		_, budget, _ := l.store.Usage()
		use.Bytes = functions.Bytes(budget)
		entries, err := l.store.List()
		for _, e := range entries {
			use.Used += functions.Bytes(e.Bytes)
			t, memory, _ := nearness(e)
			cached = append(cached, functions.CachedModel{Source: e.Source, Digest: e.Digest, Tier: t, Bytes: functions.Bytes(e.Bytes), Memory: memory})
		}
		store = err == nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gpus = gpus
	l.measure(time.Now())
	if store {
		l.use, l.cached = use, cached
	}
}

// measure takes the rate of the loader since the last look.
func (l *Ledger) measure(now time.Time) {
	if l.loads == nil {
		return
	}
	var sum functions.Bytes
	for _, b := range l.loads().Bytes {
		sum += b
	}
	if d := now.Sub(l.looked).Seconds(); !l.looked.IsZero() && d > 0 {
		l.rate = float64(sum-l.loaded) / d
	}
	l.loaded, l.looked = sum, now
}

// offer is what of the GPUs found is offered.
func offer(found []functions.GPU, count int, memory functions.Bytes) []functions.GPU {
	out := append([]functions.GPU{}, found...)
	if count >= 0 {
		for i := len(out); i < count; i++ {
			out = append(out, functions.GPU{Index: i, Name: "declared", Health: gpu.Healthy, MemoryTotal: memory, MemoryFree: memory})
		}
		out = out[:count]
	}
	for i := range out {
		if memory > 0 && (out[i].MemoryTotal == 0 || memory < out[i].MemoryTotal) {
			out[i].MemoryTotal = memory
			out[i].MemoryFree = min(out[i].MemoryFree, memory)
		}
	}
	return out
}

// GPUs as they were last seen.
func (l *Ledger) GPUs() []functions.GPU {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gpus
}

// Store as it was last seen.
func (l *Ledger) Store() (functions.StoreUse, []functions.CachedModel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	use := l.use
	if l.loads != nil {
		s := l.loads()
		s.Rate = l.rate
		use.Loader = &s
	}
	return use, l.cached
}
