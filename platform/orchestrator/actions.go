package orchestrator

import (
	"context"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

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
