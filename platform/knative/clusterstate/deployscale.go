package clusterstate

import (
	"context"
	"errors"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
)

// desired is the number of pods that each revision needs; absent means 0. mu must be held.
func (s *State) desired() map[*revisionState]int {
	out := map[*revisionState]int{}
	for _, w := range s.bindings.replicas {
		if !w.ending && (w.pod == nil || !w.pod.terminating) {
			out[w.rev]++
		}
	}
	now := s.o.Now()
	for _, p := range s.bindings.pods {
		// An unscheduled pod that no replica waits for becomes a replica once it has a
		// node.
		if p.rev != nil && p.replica == nil && p.node == "" && p.active() && now.Sub(p.created) < unschedulable {
			out[p.rev]++
		}
	}
	for _, r := range s.revisions {
		if k := len(r.lost); k > 0 {
			out[r] += k
		}
	}
	s.holdForTermination(out)
	return out
}

// holdForTermination keeps Deployments small until the pods that are to end are
// terminating. A Deployment that shrinks and grows again at once keeps the pod whose
// engine has exited and creates no other. mu must be held.
func (s *State) holdForTermination(desired map[*revisionState]int) {
	leave := map[*revisionState]int{}
	for _, w := range s.bindings.replicas {
		if w.ending && w.pod != nil && w.pod.active() {
			leave[w.rev]++
		}
	}
	for r, k := range leave {
		size := r.written
		if size < 0 {
			size = r.observed
		}
		// k of the existing or requested pods must go.
		desired[r] = min(desired[r], max(0, max(size, s.bindings.pods.count(r))-k))
	}
}

// outdatedScales lists the revisions whose Deployment has a wrong size.
func (s *State) outdatedScales(all bool) []*revisionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !all && len(s.due.scales) == 0 {
		return nil
	}
	var out []*revisionState
	now, desired := s.o.Now(), s.desired()
	look := func(r *revisionState) {
		if r == nil || r.deployment == "" || r.observed < 0 {
			return
		}
		want := desired[r]
		if r.written < 0 && want < r.observed && now.Sub(r.firstObserved) < adoptDelay {
			return // scaled by others a moment ago; its pods may not exist yet
		}
		switch {
		case r.written >= 0 && r.written != want: // the observed value may be older than the written one
		case r.observed != want && (r.written < 0 || now.Sub(r.writtenAt) > rewriteAfter):
		default:
			return
		}
		out = append(out, r)
	}
	if all {
		for _, r := range s.revisions {
			look(r)
		}
	} else {
		for name := range s.due.scales {
			look(s.revisions[name])
		}
	}
	clear(s.due.scales)
	return out
}

// writeScaleAsLeader retries writeScale while the lease is in doubt. The orchestrator
// takes ErrStaleEpoch as final and would reject all waiting requests; here either the
// lease is renewed, or ctx ends with the term.
func (s *State) writeScaleAsLeader(ctx context.Context, r *revisionState) error {
	for {
		err := s.writeScale(ctx, r)
		if !errors.Is(err, functions.ErrStaleEpoch) {
			return err
		}
		if !backoff.Sleep(ctx, staleEpochRetry) {
			return ctx.Err()
		}
	}
}

// staleEpochRetry is the pause between writes while the lease is in doubt.
const staleEpochRetry = 200 * time.Millisecond

// writeScale writes a revision's Deployment if its size is wrong.
func (s *State) writeScale(ctx context.Context, r *revisionState) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.mu.Lock()
	want, target := s.desired()[r], r.deployment
	fresh := r.written == want && s.o.Now().Sub(r.writtenAt) <= rewriteAfter
	if target == "" || fresh || r.observed == want && (r.written == want || r.written < 0) {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	if err := s.o.Writer.Scale(ctx, r.name, target, want); err != nil {
		return err
	}
	s.mu.Lock()
	r.written, r.writtenAt = want, s.o.Now()
	s.mu.Unlock()
	return nil
}

// adoptDelay is how long a size that others gave a Deployment stands before its pods
// exist: a new revision's, or one of a controller that has just ended.
const adoptDelay = 5 * time.Second

// rewriteAfter is when a written scale that was not observed is written again.
const rewriteAfter = 3 * time.Second

func (s *State) ReplicaCounts(name functions.Name) (desired, actual, ready int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.revisions[name]
	if r == nil {
		return 0, 0, 0
	}
	now := s.o.Now()
	for _, w := range s.bindings.replicas {
		if w.rev != r {
			continue
		}
		if !w.ending {
			desired++
		}
		if w.pod == nil || w.pod.terminating {
			continue
		}
		actual++
		if w.status(s.bindings.pods, now).State == functions.Ready {
			ready++
		}
	}
	return desired, actual, ready
}
