package nodeloader

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

// maxPrefetches bounds the stagings that no pod waits for.
const maxPrefetches = 32

// prefetchFreshFor is how long a prefetched checkpoint counts as the source's present one:
// a pod that comes within it does not wait for another listing of the source.
const prefetchFreshFor = time.Minute

// prefetch is a staging that no pod waits for, and then its checkpoint, until a pod
// comes or PrefetchFor is over.
type prefetch struct {
	cancel     context.CancelFunc
	timer      *time.Timer
	began      time.Time
	checkpoint *loader.Checkpoint // nil until complete; guarded by the daemon's mu
}

// prefetch stages a checkpoint for a pod that is still being scheduled. Only the controller
// requests it, never a pod.
func (d *Daemon) prefetch(r functions.LoadRequest) {
	log := d.o.Log.With("team", r.Team, "model", r.Model, "source", r.Spec.Source)
	if r.Spec.Source == "" {
		return
	}
	locationKey, f := d.checkSource(r.Spec.Source, r.Spec.StagedFiles())
	if f == nil {
		f = d.owners.checkTeam(r.Team, r.Spec.Source)
	}
	if f != nil {
		log.Warn("a prefetch is refused", "error", f.Message)
		return
	}
	if d.extendPrefetch(locationKey) {
		return
	}
	d.mu.Lock()
	ctx := d.ctx
	d.mu.Unlock()
	if ctx == nil {
		return
	}
	// Without the digest, even if the controller knows it: pods request none, and must
	// join the same staging.
	t, err := d.o.Store.Loader().Stage(ctx, r.Spec.Source, loader.StageOptions{Files: r.Spec.StagedFiles(), Priority: loader.Low})
	if err != nil {
		log.Warn("a prefetch has failed to start", "error", err)
		return
	}
	if d.continuePrefetch(locationKey, t, "a pod is being scheduled") {
		log.Info("prefetching for a pod")
	}
}

// extendPrefetch reports whether a pod has requested place or it is being prefetched; a
// prefetch's timer starts again.
func (d *Daemon) extendPrefetch(locationKey string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.prefetches[locationKey]; a != nil {
		if a.timer.Stop() {
			a.timer.Reset(d.o.PrefetchFor)
		}
		return true
	}
	for _, s := range d.shims {
		s.mu.Lock()
		_, ok := s.bytes[locationKey]
		s.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

// continuePrefetch keeps a staging that no pod waits for, until a pod comes or its time is
// over. It takes ownership of t, and returns false if it released t instead.
func (d *Daemon) continuePrefetch(locationKey string, t *loader.Staging, reason string) bool {
	t.SetPriority(loader.Low)
	d.mu.Lock()
	if d.endingLocked() || d.prefetches[locationKey] != nil || len(d.prefetches) >= maxPrefetches {
		d.mu.Unlock()
		t.Release()
		return false
	}
	ctx, cancel := context.WithCancel(d.ctx)
	a := &prefetch{cancel: cancel, timer: time.AfterFunc(d.o.PrefetchFor, cancel), began: time.Now()}
	d.prefetches[locationKey] = a
	d.prefetching.Add(1)
	d.mu.Unlock()
	go func() {
		defer d.prefetching.Done()
		defer cancel()
		defer a.timer.Stop()
		lease, err := d.awaitPrefetch(ctx, t, a)
		d.mu.Lock()
		replaced := d.prefetches[locationKey] != a
		if !replaced {
			delete(d.prefetches, locationKey)
		}
		ending := d.endingLocked()
		d.mu.Unlock()
		lease.Release()
		switch {
		case replaced:
			d.counts.used.Add(1)
		case err != nil && ctx.Err() == nil:
			d.counts.wasted.Add(1)
			d.o.Log.Warn("a prefetch has failed", "source", locationKey, "why", reason, "error", err)
		case !ending:
			d.counts.wasted.Add(1)
			d.o.Log.Info("no pod has come for a prefetch", "source", locationKey, "why", reason, "done", err == nil)
		}
	}()
	return true
}

// awaitPrefetch waits for a staging, and then holds its checkpoint until ctx ends.
func (d *Daemon) awaitPrefetch(ctx context.Context, t *loader.Staging, a *prefetch) (*store.Lease, error) {
	c, err := t.Wait(ctx)
	t.Release()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	a.checkpoint = c
	d.mu.Unlock()
	d.changes.Set()
	nodestore.ReadIntoMemory(ctx, c)
	<-ctx.Done()
	return c.Lease, nil
}

// takePrefetched returns a pod's prefetched checkpoint with a lease of its own; nil if it
// must be staged.
func (d *Daemon) takePrefetched(locationKey, digest string) *loader.Checkpoint {
	d.mu.Lock()
	a := d.prefetches[locationKey]
	if a == nil || a.checkpoint == nil || time.Since(a.began) > prefetchFreshFor || digest != "" && digest != a.checkpoint.Digest {
		d.mu.Unlock()
		return nil
	}
	c := *a.checkpoint
	d.mu.Unlock()
	_, lease, err := d.o.Store.Checkpoints().Acquire(c.Digest)
	if err != nil {
		return nil
	}
	c.Lease = lease
	return &c
}

// endPrefetch ends the prefetch of a checkpoint that a pod holds now.
func (d *Daemon) endPrefetch(locationKey string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.prefetches[locationKey]; a != nil {
		delete(d.prefetches, locationKey)
		a.cancel()
	}
}
