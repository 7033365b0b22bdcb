package orchestrator

import (
	"context"
	"sync"

	"github.com/thaw-dev/thaw/functions"
)

const (
	keepEvents = 1000
	follower   = 256 // buffer of a follower; a slower one misses events
)

// events holds a ring of the last events, and the followers.
type events struct {
	mu   sync.Mutex
	seq  uint64
	ring []functions.Event
	subs map[chan functions.Event]struct{}
}

func (e *events) add(v functions.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	v.Seq = e.seq
	if len(e.ring) >= 2*keepEvents {
		e.ring = append(e.ring[:0], e.ring[len(e.ring)-keepEvents:]...)
	}
	e.ring = append(e.ring, v)
	for ch := range e.subs {
		select {
		case ch <- v:
		default: // it is too slow; Seq shows the gap
		}
	}
}

// Events returns the events after seq, oldest first; the last 1,000 are kept.
func (s *Orchestrator) Events(after uint64) []functions.Event {
	e := &s.events
	e.mu.Lock()
	defer e.mu.Unlock()
	from := max(0, len(e.ring)-keepEvents)
	for from < len(e.ring) && e.ring[from].Seq <= after {
		from++
	}
	return append([]functions.Event(nil), e.ring[from:]...)
}

// Follow sends events as they happen until ctx ends, then closes the channel. A
// follower more than 256 events behind misses some; Seq shows the gap.
func (s *Orchestrator) Follow(ctx context.Context) <-chan functions.Event {
	e := &s.events
	ch := make(chan functions.Event, follower)
	e.mu.Lock()
	if e.subs == nil {
		e.subs = map[chan functions.Event]struct{}{}
	}
	e.subs[ch] = struct{}{}
	e.mu.Unlock()
	context.AfterFunc(ctx, func() {
		e.mu.Lock()
		delete(e.subs, ch)
		e.mu.Unlock()
		close(ch)
	})
	return ch
}

func (s *Orchestrator) event(kind string, name functions.Name, replica, node, reason, message string) {
	s.publishEvent(functions.Event{Kind: kind, Replica: replica, Node: node, Reason: reason, Message: message}, name)
}

// replicaEvent publishes an event of a replica; whom is the function that gets its
// room, "" for none.
func (s *Orchestrator) replicaEvent(kind string, r *replicaState, reason, whom string) {
	s.publishEvent(functions.Event{Kind: kind, Replica: r.id, Node: r.node, Reason: reason, For: whom}, r.function.Name)
}

func (s *Orchestrator) publishEvent(v functions.Event, name functions.Name) {
	v.At = s.timeNow()
	if v.Message == "" {
		v.Message = reasonSentence(v.Kind, v.Reason)
	}
	if name.Name != "" {
		v.Function = name.String()
	}
	s.events.add(v)
	said := make([]any, 0, 12)
	for _, w := range [...][2]string{{"function", v.Function}, {"replica", v.Replica}, {"node", v.Node}, {"reason", v.Reason}, {"for", v.For}, {"message", v.Message}} {
		if w[1] != "" {
			said = append(said, w[0], w[1])
		}
	}
	s.log.Info(v.Kind, said...)
	if s.hooks.Event != nil {
		s.hooks.Event(v)
	}
}
