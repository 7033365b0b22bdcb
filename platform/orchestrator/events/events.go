package events

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/orchestrator/words"
)

const Keep = 1000

// Log keeps the newest events, and passes each to the log and a hook.
type Log struct {
	wallClock func() time.Time
	log       *slog.Logger
	hook      func(functions.Event) // nil: none

	ringMu sync.Mutex
	seq    uint64
	ring   newest.Ring[functions.Event]
}

// New returns a Log. hook gets every event, and may be nil.
func New(wallClock func() time.Time, log *slog.Logger, hook func(functions.Event)) *Log {
	return &Log{wallClock: wallClock, log: log, hook: hook}
}

// After returns the events after seq, oldest first; the last 1,000 are kept.
func (l *Log) After(seq uint64) []functions.Event {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	var out []functions.Event
	for v := range l.ring.All {
		if v.Seq <= seq {
			break
		}
		out = append(out, v)
	}
	slices.Reverse(out)
	return out
}

// Publish adds an event about a function, or with no name about the machines.
func (l *Log) Publish(v functions.Event, name functions.Name) {
	v.At = l.wallClock()
	v.Message = cmp.Or(v.Message, words.Sentence(v.Kind, v.Reason))
	if name.Name != "" {
		v.Function = name.String()
	}
	l.add(v)
	fields := make([]any, 0, 12)
	for _, w := range [...][2]string{{"function", v.Function}, {"replica", v.Replica}, {"node", v.Node}, {"reason", v.Reason}, {"for", v.For}, {"message", v.Message}} {
		if w[1] != "" {
			fields = append(fields, w[0], w[1])
		}
	}
	l.log.Info(v.Kind, fields...)
	if l.hook != nil {
		l.hook(v)
	}
}

func (l *Log) add(v functions.Event) {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	l.seq++
	v.Seq = l.seq
	l.ring.Put(v, Keep)
}

// Followers are channels that get each value, unless their buffer is full.
type Followers[T any] struct {
	mu       sync.Mutex
	channels map[chan T]struct{}
}

// Add returns a channel that is closed when ctx ends.
func (f *Followers[T]) Add(ctx context.Context, buffer int) <-chan T {
	ch := make(chan T, buffer)
	f.mu.Lock()
	if f.channels == nil {
		f.channels = map[chan T]struct{}{}
	}
	f.channels[ch] = struct{}{}
	f.mu.Unlock()
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		delete(f.channels, ch)
		f.mu.Unlock()
		close(ch)
	})
	return ch
}

// Send sends v to every channel that has room.
func (f *Followers[T]) Send(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.channels {
		select {
		case ch <- v:
		default:
		}
	}
}
