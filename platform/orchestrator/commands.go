package orchestrator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// commander sends commands to nodes, each in a goroutine of its own, bounded in number
// and time, and puts their results into the inbox.
type commander struct {
	epoch      int64
	runCommand func(limit time.Duration, f func(context.Context)) // nil: goroutines
	slots      chan struct{}                                      // bounds concurrent commands
	running    sync.WaitGroup
	inbox      *inbox
	log        *slog.Logger
}

// run runs f within the time of a command.
func (c *commander) run(ctx context.Context, f func(ctx context.Context)) {
	c.runWithin(ctx, commandTimeout, f)
}

func (c *commander) runWithin(ctx context.Context, limit time.Duration, f func(ctx context.Context)) {
	if c.runCommand != nil {
		c.runCommand(limit, f)
		return
	}
	c.running.Go(func() {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-c.slots }()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		f(ctx)
	})
}

func (c *commander) load(ctx context.Context, n *nodeState, req functions.LoadRequest) {
	to, node := n.commands, n.id
	req.Epoch = c.epoch
	c.run(ctx, func(ctx context.Context) {
		_, err := to.Load(ctx, req)
		c.inbox.put(func(u *updates) { u.loaded.Put(req.ID, commandResult{node, c.inbox.wallClock(), err}) })
	})
}

func (c *commander) unload(ctx context.Context, n *nodeState, req functions.UnloadRequest) {
	to, node := n.commands, n.id
	req.Epoch = c.epoch
	c.run(ctx, func(ctx context.Context) {
		err := to.Unload(ctx, req)
		if err != nil && !errors.Is(err, context.Canceled) {
			c.log.Warn("unload refused", "replica", req.ID, "node", node, "error", err)
		}
		c.inbox.put(func(u *updates) { u.unloaded.Put(req.ID, commandResult{node, c.inbox.wallClock(), err}) })
	})
}

// sleep sends a sleep command, or with level 0 a wake command. Only a refusal is put
// into the inbox.
func (c *commander) sleep(ctx context.Context, r *replicaState, n *nodeState, level int, reason string) {
	to, node, id := n.commands, n.id, r.ID
	c.run(ctx, func(ctx context.Context) {
		err := errors.New("the agent of this replica cannot")
		if z, ok := to.(Sleeper); ok {
			err = z.Sleep(ctx, functions.SleepRequest{ID: id, Epoch: c.epoch, Level: level, Reason: reason})
		}
		if err == nil || errors.Is(err, context.Canceled) {
			return
		}
		c.inbox.put(func(u *updates) { u.sleepRefusals.Put(id, commandResult{node, c.inbox.wallClock(), err}) })
	})
}

// reasonUser marks replicas stopped by `thaw stop`.
const reasonUser = "asked"

func (l *loop) perform(ctx context.Context, a *placement.Action, now placement.Instant) {
	switch a.Kind {
	case placement.Stop, placement.Sleep:
		r := l.replicas[a.Replica]
		if r == nil || r.Stopping {
			return
		}
		if l.teams.recordEviction(a, now); a.Kind == placement.Sleep {
			l.sleeping.begin(r, a, now)
		} else {
			l.lifecycle.stopReplica(r, a.Drain, a.Reason, a.For, now)
		}
	case placement.Start, placement.WakeUp:
		if a.Kind == placement.Start {
			l.lifecycle.startReplica(ctx, a, now)
		} else {
			l.sleeping.wakeUp(ctx, a, now)
		}
		if f := l.functions[a.Function]; f != nil {
			l.teams.recordRestart(f, now)
		}
	case placement.CancelStart:
		r := l.replicas[a.Replica]
		n := l.nodes[a.Node]
		if r == nil || n == nil {
			return
		}
		r.Cancelled, r.reason = true, a.Reason
		l.markChanged(r.function)
		l.event("start_cancelled", r.function.Name, r.ID, r.Node, a.Reason, "")
		l.commands.unload(ctx, n, functions.UnloadRequest{ID: r.ID, Reason: functions.ReasonCalledOff})
	case placement.MarkNodeLost:
		n := l.nodes[a.Node]
		if n == nil {
			return
		}
		l.dropNode(n)
		if n.last.URL != "" {
			l.publisher.lostAgents = append(l.publisher.lostAgents, n.last.URL)
		}
		if l.leadership.superseded {
			l.leadership.updateSuperseded()
		}
		l.event("node_lost", functions.Name{}, "", a.Node, a.Reason, "")
		for _, r := range n.replicas {
			l.lifecycle.removeReplica(r, "node_lost")
		}
	}
}
