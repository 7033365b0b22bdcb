package orchestrator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
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
