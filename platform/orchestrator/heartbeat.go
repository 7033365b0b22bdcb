package orchestrator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// keepPastLives is how many earlier Life values of an agent are kept, so that late
// heartbeats of its earlier processes are dropped.
const keepPastLives = 8

// accept reports whether a heartbeat is newer than the last one, and records it. One of
// a restarted agent is newer than all of its earlier process.
func (n *nodeState) accept(hb *functions.Heartbeat) bool {
	if hb.Life != n.life {
		n.change = 0 // a restarted agent counts from the beginning
	}
	switch {
	case hb.Seq == 0:
	case hb.Life == n.life:
		if hb.Seq <= n.seq {
			return false
		}
	case slices.Contains(n.pastLives, hb.Life):
		return false
	default:
		if n.life != "" {
			n.pastLives = append(n.pastLives, n.life)
			n.pastLives = n.pastLives[max(0, len(n.pastLives)-keepPastLives):]
		}
	}
	n.life, n.seq = hb.Life, hb.Seq
	return true
}

// onHeartbeat applies a heartbeat. An unchanged one costs next to nothing.
func (l *loop) onHeartbeat(ctx context.Context, b heartbeat, now placement.Instant) {
	hb := &b.message
	n := l.nodes[hb.AgentID]
	if n == nil {
		n = l.joinNode(hb, now)
	}
	if !n.accept(hb) {
		l.counts.Add("thaw_heartbeats_late_total", 1)
		return
	}
	n.leaseExtended = false
	if hb.Change != 0 && hb.Change == n.change && n.settledCount == len(n.replicas) && n.implausibleSince == 0 && hb.Epoch == n.last.Epoch {
		n.commands, n.last, n.heardAt, n.Seen = b.node, *hb, b.at, now
		return
	}
	n.matches++
	ours := l.matchReplicas(n, hb)
	why := n.implausible(hb)
	if why == "" {
		n.implausibleSince = 0
	} else if n.implausibleSince == 0 {
		n.implausibleSince = now
		l.event("node_suspicious", functions.Name{}, "", n.id, "recheck", why+"; looking again")
	}
	doubted := n.implausibleSince > 0 && now-n.implausibleSince < nodeRecheckAfter
	if doubted && len(hb.GPUs) == 0 || doubted && allNewlyUnhealthy(n.GPUs, hb.GPUs) {
		hb.GPUs = n.last.GPUs
	}
	n.change = hb.Change
	was := n.last
	changed := n.setFrom(b, now)
	if l.updateCachedSources(n, &was, hb, ours) || changed {
		l.planner.NodeChanged(n.Node)
	}
	if stale := hb.Epoch > l.commands.epoch; stale != n.stale {
		l.leadership.noteNewerServer(n, stale, fmt.Sprintf("the agent obeys epoch %d, this server has %d", hb.Epoch, l.commands.epoch))
	}
	n.heartbeats++
	strangers := 0
	for i := range hb.Models {
		st := &hb.Models[i]
		if r := ours[i]; r != nil {
			if r.listed != n.heartbeats { // else the heartbeat lists it twice
				r.listed = n.heartbeats
				l.onListedReplica(ctx, n, r, st, now)
			}
			continue
		}
		if l.lifecycle.onUnknownReplica(ctx, n, *st, now); l.replicas[st.ID] == nil || l.replicas[st.ID].Node != n.id {
			strangers++
		}
	}
	n.settledCount = -1
	if doubted {
		return
	}
	n.implausibleSince = 0
	reportedAt, missing := l.instant(b.at), false
	for i := len(n.replicas) - 1; i >= 0; i-- { // backwards: the loop body may remove the current replica
		if r := n.replicas[i]; r.listed != n.heartbeats {
			if r.seen || r.acceptedAt > 0 && reportedAt-r.acceptedAt > 2*time.Second {
				l.lifecycle.removeReplica(r, "vanished")
			} else {
				missing = true
			}
		}
	}
	if strangers == 0 && !missing {
		n.settledCount = len(n.replicas)
	}
}

func (l *loop) onListedReplica(ctx context.Context, n *nodeState, r *replicaState, st *functions.ReplicaStatus,
	now placement.Instant) {
	if f := r.function; r.specHash == f.specHash && f.RecordGPUMemory(st.GPUMemory, n.Node) {
		l.event("footprint", f.Name, r.ID, n.id, "", f.FootprintText(f.model.Spec.Resources.GPUMemory))
		l.enqueue(f)
	}
	if r.unchanged(st) {
		if r.status.QueueLength != st.QueueLength {
			l.markUnpublished(r.function)
		}
		r.refresh(st)
	} else {
		l.lifecycle.onStatus(ctx, r, *st, now)
	}
}

// joinNode registers the node of an agent's first heartbeat.
func (l *loop) joinNode(hb *functions.Heartbeat, now placement.Instant) *nodeState {
	n := &nodeState{Node: &placement.Node{ID: hb.AgentID, Here: hb.AgentID == l.lifecycle.here, Seen: now}, id: hb.AgentID, settledCount: -1}
	l.addNode(n)
	l.leadership.nextSilenceCheck = min(l.leadership.nextSilenceCheck, now)
	if l.leadership.superseded {
		l.leadership.updateSuperseded()
	}
	l.event("node_joined", functions.Name{}, "", n.id, "", hb.ForeignGPUMemory())
	return n
}

// unchanged reports whether a status of a READY replica equals the last one in every
// field that the loop reads.
func (r *replicaState) unchanged(st *functions.ReplicaStatus) bool {
	was := &r.status
	return r.seen && r.ReadyAt > 0 && !r.Cancelled && (r.coldStart == nil || r.coldStart.Over) &&
		st.State == functions.Ready && was.State == functions.Ready && st.SleepLevel == was.SleepLevel &&
		st.Endpoint == was.Endpoint && st.Key == was.Key && st.TotalBytes == was.TotalBytes && slices.Equal(st.Adapters, was.Adapters)
}

// refresh copies the fields that an unchanged status may still update.
func (r *replicaState) refresh(st *functions.ReplicaStatus) {
	was := &r.status
	was.Tier, was.Bytes, was.Percent, was.EngineLoad = st.Tier, st.Bytes, st.Percent, st.EngineLoad
	was.Phases, was.Error, was.Spec, was.GPUs, was.Start, was.StartNote = st.Phases, st.Error, st.Spec, st.GPUs, st.Start, st.StartNote
	was.AdapterNotes, was.Since = st.AdapterNotes, st.Since
}

// nodeRecheckAfter is how long an implausible heartbeat is not applied: until the next one.
const nodeRecheckAfter = 1500 * time.Millisecond

// implausible describes what makes a heartbeat implausible, "" if nothing: most replicas
// of a node, all its GPUs, or the health of several GPUs are lost at once. Such a
// heartbeat is rechecked, not refused. The replicas must be matched before.
func (n *nodeState) implausible(hb *functions.Heartbeat) string {
	known, missing := 0, 0
	for _, r := range n.replicas {
		if !r.seen || r.Stopping || r.Cancelled || r.status.State.Over() {
			continue
		}
		known++
		if r.matched != n.matches {
			missing++
		}
	}
	switch {
	case missing > 1 && 2*missing > known:
		return fmt.Sprintf("%d of its %d replicas are gone at once", missing, known)
	case len(n.GPUs) > 0 && len(hb.GPUs) == 0:
		return fmt.Sprintf("all its GPUs (%d) are gone", len(n.GPUs))
	case allNewlyUnhealthy(n.GPUs, hb.GPUs):
		return "all its GPUs are unhealthy at once"
	}
	return ""
}

// allNewlyUnhealthy reports whether all GPUs of a node, at least two, broke at once.
func allNewlyUnhealthy(before []rooms.GPU, now []functions.GPU) bool {
	if len(before) == 0 || len(now) < 2 {
		return false
	}
	return !slices.ContainsFunc(now, func(g functions.GPU) bool {
		return !gpuUnhealthy(g) || slices.ContainsFunc(before, func(b rooms.GPU) bool { return b.Index == g.Index && b.Unhealthy })
	})
}

func gpuUnhealthy(g functions.GPU) bool {
	return g.Health != "" && g.Health != "ok" && g.Health != functions.GPUUnknown
}

// Superseded reports whether most agents obey a newer server. This one then sends no
// commands.
func (o *Orchestrator) Superseded() bool {
	o.loop.Lock()
	defer o.loop.Unlock()
	return o.loop.leadership.superseded
}
