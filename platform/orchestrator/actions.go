package orchestrator

import (
	"context"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// reasonUser marks replicas stopped by `thaw stop`.
const reasonUser = "asked"

func (o *Orchestrator) perform(ctx context.Context, a *placement.Action, now placement.Instant) {
	switch a.Kind {
	case placement.Start:
		o.lifecycle.startReplica(ctx, a, now)
		if f := o.functions[a.Function]; f != nil {
			o.teams.recordRestart(f, now)
		}
	case placement.Stop:
		if r := o.replicas[a.Replica]; r != nil && !r.Stopping {
			o.teams.recordEviction(a, now)
			o.lifecycle.stopReplica(r, a.Drain, a.Reason, a.For, now)
		}
	case placement.Sleep:
		if r := o.replicas[a.Replica]; r != nil && !r.Stopping {
			o.teams.recordEviction(a, now)
			o.sleeping.begin(r, a, now)
		}
	case placement.WakeUp:
		o.sleeping.wakeUp(ctx, a, now)
		if f := o.functions[a.Function]; f != nil {
			o.teams.recordRestart(f, now)
		}
	case placement.CancelStart:
		r := o.replicas[a.Replica]
		n := o.nodes[a.Node]
		if r == nil || n == nil {
			return
		}
		r.Cancelled, r.reason = true, a.Reason
		o.markChanged(r.function)
		o.event("start_cancelled", r.function.Name, r.ID, r.Node, a.Reason, "")
		o.commands.unload(ctx, n, functions.UnloadRequest{ID: r.ID, Reason: functions.ReasonCalledOff})
	case placement.MarkNodeLost:
		n := o.nodes[a.Node]
		if n == nil {
			return
		}
		o.dropNode(n)
		if n.last.URL != "" {
			o.publisher.lostAgents = append(o.publisher.lostAgents, n.last.URL)
		}
		if o.leadership.superseded {
			o.leadership.updateSuperseded()
		}
		o.event("node_lost", functions.Name{}, "", a.Node, a.Reason, "")
		for _, r := range n.replicas {
			o.lifecycle.removeReplica(r, "node_lost")
		}
	}
}
