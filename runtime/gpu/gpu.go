package gpu

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Healthy is what Health says of a GPU with which nothing is wrong.
const Healthy = "ok"

// answerWithin bounds one reading of the driver.
const answerWithin = 2 * time.Second

// driver reads the facts; one call at a time.
type driver interface {
	list() []functions.GPU
	watch(ctx context.Context, bad func(uuid, what string)) error
	close()
}

// Facts of this machine's GPUs. Its methods may be called from any goroutine.
type Facts struct {
	d   driver // nil: nothing to read
	why string

	mu      sync.Mutex
	last    []functions.GPU
	bad     map[string]string // by uuid: what an event said
	reading chan struct{}     // closed when the reading under way is over
}

// Open finds the driver. Facts is never nil; the error says that there is a
// driver and it does not work, which is worth a warning. No driver is a fact.
func Open() (*Facts, error) {
	d, why, err := openDriver()
	return newFacts(d, why), err
}

func newFacts(d driver, why string) *Facts {
	return &Facts{d: d, why: why, bad: map[string]string{}}
}

// Why there are no GPUs to list; "" when there is a driver.
func (f *Facts) Why() string { return f.why }

// List is what the driver says now, by index. If it does not answer within
// 2 s, it is what it said last, with a Health that says so.
func (f *Facts) List() []functions.GPU {
	if f.d == nil {
		return nil
	}
	f.mu.Lock()
	if f.reading == nil {
		f.reading = make(chan struct{})
		go f.read(f.reading)
	}
	over := f.reading
	f.mu.Unlock()
	t := time.NewTimer(answerWithin)
	defer t.Stop()
	late := false
	select {
	case <-over:
	case <-t.C:
		late = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.last)
	for i := range out {
		if what := f.bad[out[i].UUID]; what != "" {
			out[i].Health = what
		}
		if late {
			out[i].Health = "the driver does not answer"
		}
	}
	return out
}

// read is one reading; it ends when the driver answers.
func (f *Facts) read(over chan struct{}) {
	gpus := f.d.list()
	f.mu.Lock()
	f.last, f.reading = gpus, nil
	f.mu.Unlock()
	close(over)
}

// Watch follows the driver's events until ctx ends: an XID that says the
// hardware is broken, or an uncorrectable memory error, marks that GPU's
// Health for good. tell hears of each. Without a driver it waits for ctx.
func (f *Facts) Watch(ctx context.Context, tell func(uuid, what string)) error {
	if f.d == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return f.d.watch(ctx, func(uuid, what string) {
		f.mu.Lock()
		first := f.bad[uuid] == ""
		if first {
			f.bad[uuid] = what
		}
		f.mu.Unlock()
		if first && tell != nil {
			tell(uuid, what)
		}
	})
}

// Close lets the driver go; nothing else may be called any more.
func (f *Facts) Close() {
	if f.d != nil {
		f.d.close()
	}
}
