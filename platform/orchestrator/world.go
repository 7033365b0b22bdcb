package orchestrator

import (
	"log/slog"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/events"
	"github.com/thaw-dev/thaw/platform/orchestrator/metrics"
)

// world is what the parts of the loop share. Its mutex protects it and them: it is locked
// during a turn, and by readers.
type world struct {
	sync.Mutex
	clock
	registry
	events *events.Log
	counts *metrics.Counters
	log    *slog.Logger
}

// Events returns the events after seq, oldest first; the last 1,000 are kept.
func (o *Orchestrator) Events(after uint64) []functions.Event { return o.loop.events.After(after) }

// PublishEvent adds an event about a function, or with no name about the machines.
func (o *Orchestrator) PublishEvent(v functions.Event, name functions.Name) {
	o.loop.events.Publish(v, name)
}

func (w *world) event(kind string, name functions.Name, replica, node, reason, message string) {
	w.events.Publish(functions.Event{Kind: kind, Replica: replica, Node: node, Reason: reason, Message: message}, name)
}

// replicaEvent publishes an event of a replica; whom is the function that gets its
// room, "" for none.
func (w *world) replicaEvent(kind string, r *replicaState, reason, whom string) {
	w.events.Publish(functions.Event{Kind: kind, Replica: r.ID, Node: r.Node, Reason: reason, For: whom}, r.function.Name)
}
