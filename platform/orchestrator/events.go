package orchestrator

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/words"
)

const (
	keepEvents = 1000
	follower   = 256 // buffer of a follower; a slower one misses events
)

// eventLog keeps the newest events, and sends each to its followers, the log and a
// hook.
type eventLog struct {
	wallClock func() time.Time
	log       *slog.Logger
	hook      func(functions.Event) // nil: none

	ringMu    sync.Mutex
	seq       uint64
	ring      []functions.Event
	followers followers[functions.Event]
}

// Events returns the events after seq, oldest first; the last 1,000 are kept.
func (e *eventLog) Events(after uint64) []functions.Event {
	e.ringMu.Lock()
	defer e.ringMu.Unlock()
	from := max(0, len(e.ring)-keepEvents)
	for from < len(e.ring) && e.ring[from].Seq <= after {
		from++
	}
	return append([]functions.Event(nil), e.ring[from:]...)
}

// Follow sends events as they happen until ctx ends, then closes the channel. A
// follower more than 256 events behind misses some; Seq shows the gap.
func (e *eventLog) Follow(ctx context.Context) <-chan functions.Event {
	return e.followers.add(ctx, follower)
}

func (e *eventLog) event(kind string, name functions.Name, replica, node, reason, message string) {
	e.PublishEvent(functions.Event{Kind: kind, Replica: replica, Node: node, Reason: reason, Message: message}, name)
}

// replicaEvent publishes an event of a replica; whom is the function that gets its
// room, "" for none.
func (e *eventLog) replicaEvent(kind string, r *replicaState, reason, whom string) {
	e.PublishEvent(functions.Event{Kind: kind, Replica: r.id, Node: r.node, Reason: reason, For: whom}, r.function.Name)
}

// PublishEvent adds an event about a function, or with no name about the machines.
func (e *eventLog) PublishEvent(v functions.Event, name functions.Name) {
	v.At = e.wallClock()
	if v.Message == "" {
		v.Message = words.Sentence(v.Kind, v.Reason)
	}
	if name.Name != "" {
		v.Function = name.String()
	}
	e.add(v)
	fields := make([]any, 0, 12)
	for _, w := range [...][2]string{{"function", v.Function}, {"replica", v.Replica}, {"node", v.Node}, {"reason", v.Reason}, {"for", v.For}, {"message", v.Message}} {
		if w[1] != "" {
			fields = append(fields, w[0], w[1])
		}
	}
	e.log.Info(v.Kind, fields...)
	if e.hook != nil {
		e.hook(v)
	}
}

func (e *eventLog) add(v functions.Event) {
	e.ringMu.Lock()
	defer e.ringMu.Unlock()
	e.seq++
	v.Seq = e.seq
	if len(e.ring) >= 2*keepEvents {
		e.ring = append(e.ring[:0], e.ring[len(e.ring)-keepEvents:]...)
	}
	e.ring = append(e.ring, v)
	e.followers.send(v)
}

// followers are channels that get each value, unless their buffer is full.
type followers[T any] struct {
	mu       sync.Mutex
	channels map[chan T]struct{}
}

// add returns a channel that is closed when ctx ends.
func (f *followers[T]) add(ctx context.Context, buffer int) <-chan T {
	ch := make(chan T, buffer)
	f.mu.Lock()
	setInMap(&f.channels, ch, struct{}{})
	f.mu.Unlock()
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		delete(f.channels, ch)
		f.mu.Unlock()
		close(ch)
	})
	return ch
}

func (f *followers[T]) send(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.channels {
		select {
		case ch <- v:
		default:
		}
	}
}
