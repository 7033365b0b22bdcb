package orchestrator

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
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
func (o *Orchestrator) onHeartbeat(ctx context.Context, b heartbeat, now placement.Instant) {
	hb := &b.message
	n := o.nodes[hb.AgentID]
	if n == nil {
		n = o.joinNode(hb, now)
	}
	if !n.accept(hb) {
		o.counts.add("thaw_heartbeats_late_total", 1)
		return
	}
	n.leaseExtended = false
	if hb.Change != 0 && hb.Change == n.change && n.settledCount == len(n.replicas) && n.implausibleSince == 0 && hb.Epoch == n.last.Epoch {
		n.commands, n.last, n.heardAt, n.Seen = b.node, *hb, b.at, now
		return
	}
	n.matches++
	ours := o.matchReplicas(n, hb)
	why := n.implausible(hb)
	if why == "" {
		n.implausibleSince = 0
	} else if n.implausibleSince == 0 {
		n.implausibleSince = now
		o.event("node_suspicious", functions.Name{}, "", n.id, "recheck", why+"; looking again")
	}
	doubted := n.implausibleSince > 0 && now-n.implausibleSince < nodeRecheckAfter
	if doubted && len(hb.GPUs) == 0 || doubted && allNewlyUnhealthy(n.GPUs, hb.GPUs) {
		hb.GPUs = n.last.GPUs
	}
	n.change = hb.Change
	was := n.last
	changed := n.setFrom(b, now)
	if o.updateCachedSources(n, &was, hb, ours) || changed {
		o.planner.Node(n.Node)
	}
	if stale := hb.Epoch > o.commands.epoch; stale != n.stale {
		o.noteNewerServer(n, stale, fmt.Sprintf("the agent obeys epoch %d, this server has %d", hb.Epoch, o.commands.epoch))
	}
	n.heartbeats++
	strangers := 0
	for i := range hb.Models {
		st := &hb.Models[i]
		if r := ours[i]; r != nil {
			if r.listed != n.heartbeats { // else the heartbeat lists it twice
				r.listed = n.heartbeats
				o.onListedReplica(ctx, n, r, st, now)
			}
			continue
		}
		if o.onUnknownReplica(ctx, n, *st, now); o.replicas[st.ID] == nil || o.replicas[st.ID].node != n.id {
			strangers++
		}
	}
	n.settledCount = -1
	if doubted {
		return
	}
	n.implausibleSince = 0
	reportedAt, missing := o.instant(b.at), false
	for i := len(n.replicas) - 1; i >= 0; i-- { // backwards: the loop body may remove the current replica
		if r := n.replicas[i]; r.listed != n.heartbeats {
			if r.seen || r.acceptedAt > 0 && reportedAt-r.acceptedAt > 2*time.Second {
				o.removeReplica(r, "vanished")
			} else {
				missing = true
			}
		}
	}
	if strangers == 0 && !missing {
		n.settledCount = len(n.replicas)
	}
}

// onListedReplica applies the status of a replica in a heartbeat.
func (o *Orchestrator) onListedReplica(ctx context.Context, n *nodeState, r *replicaState, st *functions.ReplicaStatus, now placement.Instant) {
	if f := r.function; r.recipe == f.recipe && f.RecordGPUMemory(st.GPUMemory, n.Node) {
		o.event("footprint", f.Name, r.id, n.id, "", f.FootprintText(f.model.Spec.Resources.GPUMemory))
		o.enqueue(f)
	}
	if r.unchanged(st) {
		if r.status.QueueLength != st.QueueLength {
			o.markForPublish(r.function)
		}
		r.refresh(st)
	} else {
		o.onStatus(ctx, r, *st, now)
	}
}

// joinNode registers the node of an agent's first heartbeat.
func (o *Orchestrator) joinNode(hb *functions.Heartbeat, now placement.Instant) *nodeState {
	n := &nodeState{Node: &placement.Node{ID: hb.AgentID, Here: hb.AgentID == o.here, Seen: now}, id: hb.AgentID, settledCount: -1}
	o.addNode(n)
	o.nextSilenceCheck = min(o.nextSilenceCheck, now)
	if o.superseded {
		o.updateSuperseded()
	}
	o.event("node_joined", functions.Name{}, "", n.id, "", hb.ForeignGPUMemory())
	return n
}

// unchanged reports whether a status of a READY replica equals the last one in every
// field that the loop reads.
func (r *replicaState) unchanged(st *functions.ReplicaStatus) bool {
	was := &r.status
	return r.seen && r.readyAt > 0 && !r.cancelled && (r.coldStart == nil || r.coldStart.over) &&
		st.State == functions.Ready && was.State == functions.Ready && st.SleepLevel == was.SleepLevel &&
		st.Endpoint == was.Endpoint && st.Key == was.Key && st.TotalBytes == was.TotalBytes && slices.Equal(st.Adapters, was.Adapters)
}

// refresh copies the fields that an unchanged status may still update.
func (r *replicaState) refresh(st *functions.ReplicaStatus) {
	was := &r.status
	was.Tier, was.Bytes, was.Percent, was.InFlight, was.QueueLength, was.KVCacheHitRate = st.Tier, st.Bytes, st.Percent, st.InFlight, st.QueueLength, st.KVCacheHitRate
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
		if !r.seen || r.stopping || r.cancelled || r.status.State.Over() {
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
func allNewlyUnhealthy(before []placement.GPU, now []functions.GPU) bool {
	if len(before) == 0 || len(now) < 2 {
		return false
	}
	for _, g := range now {
		if !gpuUnhealthy(g) || slices.ContainsFunc(before, func(b placement.GPU) bool { return b.Index == g.Index && b.Unhealthy }) {
			return false
		}
	}
	return true
}

func gpuUnhealthy(g functions.GPU) bool {
	return g.Health != "" && g.Health != "ok" && g.Health != functions.GPUUnknown
}

// noteNewerServer records whether an agent obeys a newer server.
func (o *Orchestrator) noteNewerServer(n *nodeState, stale bool, why string) {
	if n.stale == stale {
		return
	}
	n.stale, n.AvoidUntil = stale, 0
	defer o.planner.Node(n.Node)
	if stale {
		n.AvoidUntil = math.MaxInt64
		o.event("superseded", functions.Name{}, "", n.id, "stale_epoch", why)
	}
	o.updateSuperseded()
}

// updateSuperseded decides whether most agents obey a newer server. A superseded
// server reports it, sends no commands and refuses starts.
func (o *Orchestrator) updateSuperseded() {
	stale := 0
	for _, n := range o.nodeList {
		if n.stale {
			stale++
		}
	}
	over := stale > 0 && 2*stale > len(o.nodes)
	if over == o.superseded {
		return
	}
	o.superseded = over
	if over {
		for _, f := range o.functionList { // nothing will be started for their waiters
			if f.Queued > 0 {
				o.refuseStart(f, o.lastTurn)
			}
		}
		o.event("superseded", functions.Name{}, "", "", "stale_epoch", fmt.Sprintf("%d of %d agents obey a newer server than this one, whose epoch is %d; it gives no more commands", stale, len(o.nodes), o.commands.epoch))
	} else {
		o.event("restored", functions.Name{}, "", "", "", "most agents obey this server again")
	}
}

// refuseStart fails the waiters of f, unless it is READY: this server was superseded
// and starts nothing.
func (o *Orchestrator) refuseStart(f *functionState, now placement.Instant) {
	if !slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() }) {
		o.backOff(f, "a newer server has taken over, and this one starts nothing any more", time.Minute, now)
	}
}

// mayCommand reports whether commands may be sent to a node.
func (o *Orchestrator) mayCommand(n *nodeState) bool { return n != nil && !n.stale && !o.superseded }

// Superseded reports whether most agents obey a newer server. This one then sends no
// commands.
func (o *Orchestrator) Superseded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.superseded
}

// extendSilentNodes extends the lease of nodes about to be lost, once, if most nodes are
// silent together: then this server more likely receives nothing.
func (o *Orchestrator) extendSilentNodes(now placement.Instant) {
	if now < o.nextSilenceCheck {
		return
	}
	lease := o.policy.Lease
	quiet, remote, due := 0, 0, 0
	o.nextSilenceCheck = math.MaxInt64
	for _, n := range o.nodeList {
		if n.Here {
			continue
		}
		remote++
		if now-n.Seen > lease/2 {
			quiet++
		}
		if end := n.Seen + lease; end <= now {
			due++
		} else {
			o.nextSilenceCheck = min(o.nextSilenceCheck, end)
		}
	}
	if due == 0 || quiet < 2 || 2*quiet <= remote {
		return
	}
	given := 0
	for _, n := range o.nodeList {
		if n.Here || n.leaseExtended || now-n.Seen <= lease/2 {
			continue
		}
		n.leaseExtended = true
		n.Seen = now
		o.nextSilenceCheck = min(o.nextSilenceCheck, now+lease)
		given++
	}
	if given > 0 {
		o.event("nodes_suspicious", functions.Name{}, "", "", "recheck", fmt.Sprintf("%d of %d agents are silent at once; waiting %v more for %d of them", quiet, remote, lease, given))
	}
}

// onUnknownReplica adopts a replica that this process did not start, or after a recheck
// stops it if its model is unknown.
func (o *Orchestrator) onUnknownReplica(ctx context.Context, n *nodeState, st functions.ReplicaStatus, now placement.Instant) {
	name := functions.Name{Team: st.Team, Name: st.Model}
	f := o.functions[name]
	if st.State.Over() || st.State == functions.Draining || f == nil || f.Gone || o.replicas[st.ID] != nil {
		since, ok := o.orphans[st.ID]
		if !ok {
			o.orphans[st.ID], since = now, now
		}
		if st.State.Over() || now-since >= orphanGrace {
			o.orphans[st.ID] = now // repeated if it is still there after orphanGrace
			if o.mayCommand(n) {
				o.commands.unload(ctx, n, functions.UnloadRequest{ID: st.ID, Reason: "unknown", DrainSeconds: 30})
			}
		}
		if len(o.orphans) > 4096 {
			clear(o.orphans)
		}
		return
	}
	delete(o.orphans, st.ID)
	r := &replicaState{id: st.ID, function: f, node: n.id, reserved: f.Resources, gpus: st.GPUs, recipe: f.recipe, acceptedAt: now, requestedAt: now}
	if st.Spec != nil {
		r.reserved = st.Spec.Resources
		dir := ""
		if f.model != nil {
			dir = f.model.Dir
		}
		r.recipe = recipeHash(*st.Spec, dir)
	}
	r.listed = n.heartbeats
	o.addReplica(r, n)
	o.event("adopted", name, r.id, n.id, string(st.State), "")
	// An activator may not have reported its waiters yet.
	if st.State == functions.Downloading || st.State == functions.Loading {
		f.userLease = max(f.userLease, now+placement.Instant(adoptedStartLease))
		o.enqueue(f)
	}
	o.onStatus(ctx, r, st, now)
}
