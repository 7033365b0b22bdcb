package orchestrator

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
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
	followers map[chan functions.Event]struct{}
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
	ch := make(chan functions.Event, follower)
	e.ringMu.Lock()
	setInMap(&e.followers, ch, struct{}{})
	e.ringMu.Unlock()
	context.AfterFunc(ctx, func() {
		e.ringMu.Lock()
		delete(e.followers, ch)
		e.ringMu.Unlock()
		close(ch)
	})
	return ch
}

func (e *eventLog) event(kind string, name functions.Name, replica, node, reason, message string) {
	e.publishEvent(functions.Event{Kind: kind, Replica: replica, Node: node, Reason: reason, Message: message}, name)
}

// replicaEvent publishes an event of a replica; whom is the function that gets its
// room, "" for none.
func (e *eventLog) replicaEvent(kind string, r *replicaState, reason, whom string) {
	e.publishEvent(functions.Event{Kind: kind, Replica: r.id, Node: r.node, Reason: reason, For: whom}, r.function.Name)
}

func (e *eventLog) publishEvent(v functions.Event, name functions.Name) {
	v.At = e.wallClock()
	if v.Message == "" {
		v.Message = reasonSentence(v.Kind, v.Reason)
	}
	if name.Name != "" {
		v.Function = name.String()
	}
	e.addToRing(v)
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

func (e *eventLog) addToRing(v functions.Event) {
	e.ringMu.Lock()
	defer e.ringMu.Unlock()
	e.seq++
	v.Seq = e.seq
	if len(e.ring) >= 2*keepEvents {
		e.ring = append(e.ring[:0], e.ring[len(e.ring)-keepEvents:]...)
	}
	e.ring = append(e.ring, v)
	for ch := range e.followers {
		select {
		case ch <- v:
		default: // it is too slow; Seq shows the gap
		}
	}
}
