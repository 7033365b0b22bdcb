package control

import (
	"context"
	"errors"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// desired is how many pods each revision is to have; those that are absent none.
// Under mu.
func (f *clusterState) desired() map[*revisionState]int {
	out := map[*revisionState]int{}
	for _, w := range f.replicas {
		if !w.ending && (w.pod == nil || !w.pod.terminating) {
			out[w.rev]++
		}
	}
	now := f.o.now()
	for _, p := range f.pods {
		// One that nobody asked for here and that looks for its node: it is somebody's
		// once it has found one.
		if p.rev != nil && p.replica == nil && p.node == "" && !p.terminating && !p.ended && now.Sub(p.created) < unschedulable {
			out[p.rev]++
		}
	}
	for _, r := range f.revisions {
		if k := len(r.lost); k > 0 {
			out[r] += k
		}
	}
	f.holdForTermination(out)
	return out
}

// holdForTermination has Deployments be small until the pods that are to end have begun to:
// Kubernetes looks at what is wanted now, not at what was in between, and one that is
// made smaller and larger again at once keeps the pod whose engine has ended, and
// makes no other. Under mu.
func (f *clusterState) holdForTermination(desired map[*revisionState]int) {
	var leave map[*revisionState]int
	for _, w := range f.replicas {
		if w.ending && w.pod != nil && !w.pod.terminating && !w.pod.ended {
			if leave == nil {
				leave = map[*revisionState]int{}
			}
			leave[w.rev]++
		}
	}
	for r, k := range leave {
		have := 0
		for _, p := range f.pods {
			if p.rev == r && !p.terminating && !p.ended {
				have++
			}
		}
		size := r.written
		if size < 0 {
			size = r.observed
		}
		// Of those that are there, or are being made, so many are to go.
		desired[r] = min(desired[r], max(0, max(size, have)-k))
	}
}

// outdatedScales are the revisions whose Deployment is not as it should be.
func (f *clusterState) outdatedScales(all bool) []*revisionState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !all && len(f.dueScales) == 0 {
		return nil
	}
	var out []*revisionState
	now, desired := f.o.now(), f.desired()
	look := func(r *revisionState) {
		if r == nil || r.deployment == "" || r.observed < 0 {
			return
		}
		want := desired[r]
		if r.written < 0 && want < r.observed && now.Sub(r.firstObserved) < adoptDelay {
			return // its pods may not have been made yet: somebody else has scaled it
		}
		switch {
		case r.written >= 0 && r.written != want: // whatever is seen may be what was before
		case r.observed != want && (r.written < 0 || now.Sub(r.writtenAt) > rewriteAfter):
		default:
			return
		}
		out = append(out, r)
	}
	if all {
		for _, r := range f.revisions {
			look(r)
		}
	} else {
		for name := range f.dueScales {
			look(f.revisions[name])
		}
	}
	clear(f.dueScales)
	return out
}

// writeScaleAsLeader is write for steer, which takes the word that somebody else leads for an
// order to send everybody away. Here it is a doubt that passes: either the lease is
// renewed after all, or the reign ends, with ctx, and who waits is held for the next.
func (f *clusterState) writeScaleAsLeader(ctx context.Context, r *revisionState) error {
	for {
		err := f.writeScale(ctx, r)
		if !errors.Is(err, functions.ErrStaleEpoch) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(staleEpochRetry):
		}
	}
}

// staleEpochRetry is how long who may not lead any more waits before it asks again.
const staleEpochRetry = 200 * time.Millisecond

// writeScale brings a revision's Deployment to what it should be.
func (f *clusterState) writeScale(ctx context.Context, r *revisionState) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.mu.Lock()
	want, target := f.desired()[r], r.deployment
	fresh := r.written == want && f.o.now().Sub(r.writtenAt) <= rewriteAfter
	if target == "" || fresh || r.observed == want && (r.written == want || r.written < 0) {
		f.mu.Unlock()
		return nil
	}
	f.mu.Unlock()
	if err := f.o.writer.Scale(ctx, r.name, target, want); err != nil {
		return err
	}
	f.mu.Lock()
	r.written, r.writtenAt = want, f.o.now()
	f.mu.Unlock()
	return nil
}

// adoptDelay is how long the size of a Deployment that somebody else gave it stands
// though its pods are not seen: a new revision's, or that of a controller that has
// just ended.
const adoptDelay = 5 * time.Second

// rewriteAfter is when a scale that was written and is not seen is written again.
const rewriteAfter = 3 * time.Second

// ReplicaCounts is how a revision stands.
func (f *clusterState) ReplicaCounts(name functions.Name) (desired, actual, ready int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revisions[name]
	if r == nil {
		return 0, 0, 0
	}
	now := f.o.now()
	for _, w := range f.replicas {
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
		if f.replicaStatus(w, now).State == functions.Ready {
			ready++
		}
	}
	return desired, actual, ready
}
