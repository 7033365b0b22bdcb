package gpu

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Healthy is the Health of a GPU without problems.
const Healthy = "ok"

// answerWithin bounds one reading from the driver.
const answerWithin = 2 * time.Second

// driver is the GPU driver; it is called by one goroutine at a time.
type driver interface {
	list() []functions.GPU
	watch(ctx context.Context, bad func(uuid, problem string)) error
	holders(index int) []holder // processes with memory of a GPU
	close()
}

// Facts reads the state of this machine's GPUs. Its methods may be called from any
// goroutine.
type Facts struct {
	d   driver // nil if there is none
	Why string // no GPUs are listed; "" if there is a driver

	mu      sync.Mutex
	last    []functions.GPU
	held    map[string]functions.Bytes // of a GPU, by supervised id
	bad     map[string]string          // problems from events, by UUID
	reading chan struct{}              // closed at the end of the current reading; nil if there is none
}

// Open opens the driver. Facts is never nil; without a driver it lists no GPUs. The
// error reports a driver that does not work.
func Open() (*Facts, error) {
	d, reason, err := openDriver()
	return newFacts(d, reason), err
}

func newFacts(d driver, reason string) *Facts {
	return &Facts{d: d, Why: reason, bad: map[string]string{}}
}

// List returns the GPUs by index. If the driver does not answer within 2 s, the last
// list is returned with that as Health.
func (f *Facts) List() []functions.GPU {
	if f.d == nil {
		return nil
	}
	f.mu.Lock()
	if f.reading == nil {
		f.reading = make(chan struct{})
		go f.read(f.reading)
	}
	done := f.reading
	f.mu.Unlock()
	timedOut := false
	select {
	case <-done:
	case <-time.After(answerWithin):
		timedOut = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.last)
	for i := range out {
		if problem := f.bad[out[i].UUID]; problem != "" {
			out[i].Health = problem
		}
		if timedOut {
			out[i].Health = "the driver does not answer"
		}
	}
	return out
}

// read reads the list once; it may block in the driver.
func (f *Facts) read(done chan struct{}) {
	gpus, held := f.d.list(), map[string]functions.Bytes{}
	for i := range gpus {
		var ours map[string]functions.Bytes
		gpus[i].Holders, gpus[i].Foreign, ours = f.readHolders(gpus[i].Index)
		for id, bytes := range ours {
			held[id] = max(held[id], bytes)
		}
	}
	f.mu.Lock()
	f.last, f.held, f.reading = gpus, held, nil
	f.mu.Unlock()
	close(done)
}

// Watch handles the driver's events until ctx ends: an XID of broken hardware or an
// uncorrectable memory error sets the GPU's Health permanently; tell is called for each.
// Without a driver it waits for ctx.
func (f *Facts) Watch(ctx context.Context, report func(uuid, problem string)) error {
	if f.d == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return f.d.watch(ctx, func(uuid, problem string) {
		f.mu.Lock()
		first := f.bad[uuid] == ""
		if first {
			f.bad[uuid] = problem
		}
		f.mu.Unlock()
		if first && report != nil {
			report(uuid, problem)
		}
	})
}

// Close closes the driver; no method may be called after it.
func (f *Facts) Close() {
	if f.d != nil {
		f.d.close()
	}
}
