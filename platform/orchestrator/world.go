package orchestrator

import (
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/events"
	"github.com/thaw-dev/thaw/platform/orchestrator/metrics"
	"github.com/thaw-dev/thaw/platform/placement"
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

// clock converts between times and Instants. Instants leave out the time in which the
// process did not run. It is protected by the mutex of world.
type clock struct {
	timeNow  func() time.Time
	began    time.Time         // Instants count from here
	lastTurn placement.Instant // start of the last turn
}

func (c *clock) now() placement.Instant { return c.timeNow().Sub(c.began) }

// instant converts a time of another package. Both carry monotonic readings.
func (c *clock) instant(t time.Time) placement.Instant {
	if t.IsZero() {
		return 0
	}
	return max(t.Sub(c.began), 1)
}

func (c *clock) wallTime(t placement.Instant) time.Time { return c.began.Add(t) }

// advance begins a turn. Time in which the process did not run (a suspended laptop,
// SIGSTOP, a clock set forward) is skipped and returned: it counts for no silence, idle
// time or lease. If the clock was set back, time continues from the last reading.
func (c *clock) advance() (skipped time.Duration) {
	if c.lastTurn > 0 {
		switch gap := c.now() - c.lastTurn; {
		case gap > clockJumpAfter:
			skipped = gap
			c.began = c.began.Add(gap - tick)
		case gap < 0:
			c.began = c.began.Add(gap)
		}
	}
	c.lastTurn = c.now()
	return skipped
}
