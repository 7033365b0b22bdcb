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

// lives is how many earlier lives of an agent are remembered, so that nothing
// they said late is believed.
const lives = 8

// newer reports whether a heartbeat is newer than what n has said so far, and
// notes that it was heard. A new life is newer than the one before it.
func (n *node) newer(hb *functions.Heartbeat) bool {
	if hb.Life != n.life {
		n.change = 0 // a new life counts anew
	}
	switch {
	case hb.Seq == 0:
	case hb.Life == n.life:
		if hb.Seq <= n.seq {
			return false
		}
	case slices.Contains(n.before, hb.Life):
		return false
	default:
		if n.life != "" {
			n.before = append(n.before, n.life)
			n.before = n.before[max(0, len(n.before)-lives):]
		}
	}
	n.life, n.seq = hb.Life, hb.Seq
	return true
}

// hear takes a heartbeat in. One that says nothing new costs next to nothing.
func (s *Steer) hear(ctx context.Context, b beat, now placement.Instant) {
	hb := &b.hb
	n := s.nodes[hb.AgentID]
	if n == nil {
		n = &node{Node: &placement.Node{ID: hb.AgentID, Here: hb.AgentID == s.here}, id: hb.AgentID}
		s.join(n, now)
	}
	if !n.newer(hb) {
		s.counts.late.Inc()
		return
	}
	n.doubted = false
	if hb.Change != 0 && hb.Change == n.change && n.settled == len(n.reps) && n.doubt == 0 && hb.Epoch == n.hb.Epoch {
		n.to, n.hb, n.at, n.Seen = b.node, *hb, b.at, now
		return
	}
	n.looks++
	ours := s.looked(n, hb)
	why := n.implausible(hb)
	if why == "" {
		n.doubt = 0
	} else if n.doubt == 0 {
		n.doubt = now
		s.event("node_suspicious", functions.Name{}, "", n.id, "second_look", why+"; looking again")
	}
	doubted := n.doubt > 0 && now-n.doubt < nodeLook
	if doubted && len(hb.GPUs) == 0 || doubted && newlySick(n.GPUs, hb.GPUs) {
		hb.GPUs = n.hb.GPUs
	}
	n.change = hb.Change
	was := n.hb
	changed := n.set(b, now)
	if s.shelve(n, &was, hb, ours) || changed {
		s.plan.Node(n.Node)
	}
	s.obeys(n, hb.Epoch)
	n.beats++
	strangers := 0
	for i := range hb.Models {
		st := &hb.Models[i]
		if r := ours[i]; r != nil {
			if r.listed == n.beats {
				continue // it is named twice
			}
			r.listed = n.beats
			if r.steady(st) {
				r.stay(st)
			} else {
				s.update(ctx, r, *st, now)
			}
			continue
		}
		if s.stranger(ctx, n, *st, now); s.reps[st.ID] == nil || s.reps[st.ID].node != n.id {
			strangers++
		}
	}
	n.settled = -1
	if doubted {
		return
	}
	n.doubt = 0
	heard := s.instant(b.at)
	missing := false
	for i := len(n.reps) - 1; i >= 0; i-- { // gone takes the one it is at out
		if r := n.reps[i]; r.listed != n.beats {
			if r.seen || r.accepted > 0 && heard-r.accepted > 2*time.Second {
				s.gone(r, "vanished")
			} else {
				missing = true
			}
		}
	}
	if strangers == 0 && !missing {
		n.settled = len(n.reps)
	}
}

// looked finds the replicas that a heartbeat names, nil for one that is not known
// to be on that node. They are good until the next heartbeat. Most are those that
// the last one named, in the same order: agents sort them.
func (s *Steer) looked(n *node, hb *functions.Heartbeat) []*rep {
	last, ours := n.named, n.spare[:0]
	for i := range hb.Models {
		id := hb.Models[i].ID
		for len(last) > 0 && (last[0] == nil || last[0].id < id) {
			last = last[1:]
		}
		var r *rep
		if len(last) > 0 && last[0].id == id && !last[0].forgotten {
			r = last[0]
		} else if r = s.reps[id]; r != nil && r.node != n.id {
			r = nil
		}
		if r != nil {
			r.looked = n.looks
		}
		ours = append(ours, r)
	}
	n.named, n.spare = ours, n.named
	return ours
}

// steady reports whether a status says of a READY replica what the last one said:
// most do.
func (r *rep) steady(st *functions.ReplicaStatus) bool {
	was := &r.status
	return r.seen && r.readyAt > 0 && !r.calledOff && (r.cold == nil || r.cold.over) &&
		st.State == functions.Ready && was.State == functions.Ready && st.SleepLevel == was.SleepLevel &&
		st.Endpoint == was.Endpoint && st.Key == was.Key && st.TotalBytes == was.TotalBytes && slices.Equal(st.Adapters, was.Adapters)
}

// stay takes in what a steady status may say anew.
func (r *rep) stay(st *functions.ReplicaStatus) {
	was := &r.status
	was.Tier, was.Bytes, was.Percent, was.InFlight, was.QueueLength, was.KVCacheHitRate = st.Tier, st.Bytes, st.Percent, st.InFlight, st.QueueLength, st.KVCacheHitRate
	was.Phases, was.Error, was.Spec, was.GPUs, was.Start, was.StartNote = st.Phases, st.Error, st.Spec, st.GPUs, st.Start, st.StartNote
	was.AdapterNotes, was.Since = st.AdapterNotes, st.Since
}

// join enters a new node in the books.
func (s *Steer) join(n *node, now placement.Instant) {
	n.Seen, n.settled = now, -1
	s.nodes[n.id] = n
	s.sched.Nodes = append(s.sched.Nodes, n.Node)
	slices.SortFunc(s.sched.Nodes, func(a, b *placement.Node) int {
		if a.Here != b.Here {
			if a.Here {
				return -1
			}
			return 1
		}
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	s.silent = min(s.silent, now)
	if s.superseded {
		s.rank()
	}
	s.event("node_joined", functions.Name{}, "", n.id, "", "")
}

const (
	// nodeLook is for how long an agent is not believed that most of what it had
	// has gone at once: until its next heartbeat, that is.
	nodeLook = 1500 * time.Millisecond
)

// implausible says what is hard to believe of a heartbeat, whose replicas have
// been looked up: that most replicas of a node, all its GPUs, or the health of
// several have gone at once. It is a reason to look again, not to refuse.
func (n *node) implausible(hb *functions.Heartbeat) string {
	known, missing := 0, 0
	for _, r := range n.reps {
		if !r.seen || r.stopping || r.calledOff || r.status.State.Over() {
			continue
		}
		known++
		if r.looked != n.looks {
			missing++
		}
	}
	switch {
	case missing > 1 && 2*missing > known:
		return fmt.Sprintf("%d of its %d replicas are gone at once", missing, known)
	case len(n.GPUs) > 0 && len(hb.GPUs) == 0:
		return fmt.Sprintf("its %d GPUs are gone", len(n.GPUs))
	case newlySick(n.GPUs, hb.GPUs):
		return "all its GPUs are unhealthy at once"
	}
	return ""
}

// newlySick reports whether several GPUs, all there are, broke together.
func newlySick(before []placement.GPU, now []functions.GPU) bool {
	if len(before) == 0 || len(now) < 2 {
		return false
	}
	for _, g := range now {
		if !sick(g) || slices.ContainsFunc(before, func(b placement.GPU) bool { return b.Index == g.Index && b.Sick }) {
			return false
		}
	}
	return true
}

func sick(g functions.GPU) bool { return g.Health != "" && g.Health != "ok" }

// obeys takes in which epoch an agent obeys. One above ours: it has heard a newer
// server. Where most agents have, we are superseded as a whole.
func (s *Steer) obeys(n *node, epoch int64) {
	if stale := epoch > s.epoch; stale != n.stale {
		s.outrank(n, stale, fmt.Sprintf("the agent obeys epoch %d, this server has %d", epoch, s.epoch))
	}
}

// outrank notes that an agent obeys a newer server, or no longer does.
func (s *Steer) outrank(n *node, stale bool, why string) {
	if n.stale == stale {
		return
	}
	n.stale, n.Avoid = stale, 0
	defer s.plan.Node(n.Node)
	if stale {
		n.Avoid = math.MaxInt64
		s.event("superseded", functions.Name{}, "", n.id, "stale_epoch", why)
	}
	s.rank()
}

// rank finds out whether this server is still the one that is obeyed. Superseded,
// it says so, commands nobody, and tells whoever asks for what does not run.
func (s *Steer) rank() {
	stale := 0
	for _, x := range s.sched.Nodes {
		if s.nodes[x.ID].stale {
			stale++
		}
	}
	over := stale > 0 && 2*stale > len(s.nodes)
	if over == s.superseded {
		return
	}
	s.superseded = over
	if over {
		for _, f := range s.list { // who waits shall not wait in vain
			if f.Queued > 0 {
				s.deny(f, s.last)
			}
		}
		s.event("superseded", functions.Name{}, "", "", "stale_epoch", fmt.Sprintf("%d of %d agents obey a newer server than this one, whose epoch is %d; it gives no more commands", stale, len(s.nodes), s.epoch))
	} else {
		s.event("restored", functions.Name{}, "", "", "", "most agents obey this server again")
	}
}

// deny tells who waits for a function that does not run that this server starts
// nothing any more.
func (s *Steer) deny(f *fn, now placement.Instant) {
	if !slices.ContainsFunc(f.reps, func(r *rep) bool { return r.serves() }) {
		s.pause(f, "a newer server has taken over, and this one starts nothing any more", time.Minute, now)
	}
}

// mine reports whether a node may be commanded.
func (s *Steer) mine(n *node) bool { return n != nil && !n.stale && !s.superseded }

// Superseded reports whether a newer server commands the agents, and this one
// therefore none.
func (s *Steer) Superseded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.superseded
}

// silence looks for nodes that are about to be lost. Where most have fallen
// silent together it is more likely that nobody is heard: they are given one more
// lease, once.
func (s *Steer) silence(now placement.Instant) {
	if now < s.silent {
		return
	}
	lease := s.policy.Lease
	quiet, remote, due := 0, 0, 0
	s.silent = math.MaxInt64
	for _, n := range s.sched.Nodes {
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
			s.silent = min(s.silent, end)
		}
	}
	if due == 0 || quiet < 2 || 2*quiet <= remote {
		return
	}
	given := 0
	for _, x := range s.sched.Nodes {
		n := s.nodes[x.ID]
		if n.Here || n.doubted || now-n.Seen <= lease/2 {
			continue
		}
		n.doubted = true
		n.Seen = now
		s.silent = min(s.silent, now+lease)
		given++
	}
	if given > 0 {
		s.event("nodes_suspicious", functions.Name{}, "", "", "second_look", fmt.Sprintf("%d of %d agents are silent at once; waiting %v more for %d of them", quiet, remote, lease, given))
	}
}

// stranger is a replica that we have not started in this life.
func (s *Steer) stranger(ctx context.Context, n *node, st functions.ReplicaStatus, now placement.Instant) {
	name := functions.Name{Team: st.Team, Name: st.Model}
	f := s.fns[name]
	if st.State.Over() || st.State == functions.Draining || f == nil || f.Gone || s.reps[st.ID] != nil {
		since, ok := s.orphans[st.ID]
		if !ok {
			s.orphans[st.ID], since = now, now
		}
		if st.State.Over() || now-since >= orphanFor {
			s.orphans[st.ID] = now // and again, if it is still there then
			if s.mine(n) {
				s.unload(ctx, n, functions.UnloadRequest{ID: st.ID, Reason: "unknown", DrainSeconds: 30})
			}
		}
		if len(s.orphans) > 4096 {
			clear(s.orphans)
		}
		return
	}
	delete(s.orphans, st.ID)
	r := &rep{id: st.ID, fn: f, node: n.id, take: f.Resources, gpus: st.GPUs, recipe: f.recipe, accepted: now, asked: now}
	if st.Spec != nil {
		r.take = st.Spec.Resources
		dir := ""
		if f.model != nil {
			dir = f.model.Dir
		}
		r.recipe = recipe(*st.Spec, dir)
	}
	r.listed = n.beats
	s.enlist(r, n)
	s.event("adopted", name, r.id, n.id, string(st.State), "")
	// Whoever waits for it may be at an activator that has not been heard yet.
	if st.State == functions.Downloading || st.State == functions.Loading {
		f.held = max(f.held, now+placement.Instant(hearsay))
		s.stir(f)
	}
	s.update(ctx, r, st, now)
}
