package nodeloader

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

// maxAhead bounds what is staged with no pod waiting.
const maxAhead = 32

// freshFor is how long what was staged ahead is what the source has: a pod that
// comes within it does not wait until the source has been listed once more.
const freshFor = time.Minute

// ahead is a staging that no pod waits for, or no more, and then its checkpoint,
// until a pod has come for it or its time is over.
type ahead struct {
	cancel context.CancelFunc
	timer  *time.Timer
	began  time.Time
	got    *loader.Checkpoint // once it is here; under the daemon's mu
}

// prefetch stages what a pod will want that is still being scheduled. It is a word
// of the controller's, and no pod's.
func (d *Daemon) prefetch(r functions.LoadRequest) {
	log := d.log.With("team", r.Team, "model", r.Model, "source", r.Spec.Source)
	if r.Spec.Source == "" {
		return
	}
	place, f := d.place(r.Spec.Source, r.Spec.Files)
	if f == nil {
		f = d.allows(r.Team, r.Spec.Source)
	}
	if f != nil {
		log.Warn("what the controller wants ahead is not staged", "error", f.Message)
		return
	}
	if d.awaited(place) {
		return
	}
	d.mu.Lock()
	ctx := d.ctx
	d.mu.Unlock()
	if ctx == nil {
		return
	}
	// Without the digest, also where the controller knows one: pods say none, and
	// theirs is to be the same staging.
	t, err := d.o.Shelf.Loader().Stage(ctx, r.Spec.Source, loader.StageOptions{Files: r.Spec.Files, Priority: loader.Low})
	if err != nil {
		log.Warn("what the controller wants ahead cannot be staged", "error", err)
		return
	}
	if d.keep(place, t, "a pod is on its way") {
		log.Info("staging ahead of the pod")
	}
}

// awaited reports whether a pod has it or waits for it, or it is kept at already:
// then its time begins anew.
func (d *Daemon) awaited(place string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.ahead[place]; a != nil {
		if a.timer.Stop() {
			a.timer.Reset(d.o.AheadFor)
		}
		return true
	}
	for _, s := range d.shims {
		s.mu.Lock()
		_, ok := s.bytes[place]
		s.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

// keep goes on with a staging that is nobody's for as long as somebody may come for
// it. It takes t over.
func (d *Daemon) keep(place string, t *loader.Staging, why string) bool {
	t.SetPriority(loader.Low)
	d.mu.Lock()
	if d.over() || d.ahead[place] != nil || len(d.ahead) >= maxAhead {
		d.mu.Unlock()
		t.Release()
		return false
	}
	ctx, cancel := context.WithCancel(d.ctx)
	a := &ahead{cancel: cancel, timer: time.AfterFunc(d.o.AheadFor, cancel), began: time.Now()}
	d.ahead[place] = a
	d.aheads.Add(1)
	d.mu.Unlock()
	go func() {
		defer d.aheads.Done()
		defer cancel()
		defer a.timer.Stop()
		lease, err := d.finish(ctx, t, a)
		d.mu.Lock()
		came := d.ahead[place] != a
		if !came {
			delete(d.ahead, place)
		}
		ending := d.over()
		d.mu.Unlock()
		lease.Release()
		switch {
		case came:
			d.counts.used.Add(1)
		case err != nil && ctx.Err() == nil:
			d.counts.vain.Add(1)
			d.log.Warn("what was staged with no pod waiting has failed", "source", place, "why", why, "error", err)
		case !ending:
			d.counts.vain.Add(1)
			d.log.Info("nobody has come for what was staged", "source", place, "why", why, "done", err == nil)
		}
	}()
	return true
}

// finish waits for a staging, and then holds it until ctx ends.
func (d *Daemon) finish(ctx context.Context, t *loader.Staging, a *ahead) (*store.Lease, error) {
	c, err := t.Wait(ctx)
	t.Release()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	a.got = c
	d.mu.Unlock()
	d.changed()
	nodestore.IntoMemory(ctx, c)
	<-ctx.Done()
	return c.Lease, nil
}

// fresh is what was staged ahead for the pod that wants it now, with a lease of its
// own; nil where it has to be staged.
func (d *Daemon) fresh(place, digest string) *loader.Checkpoint {
	d.mu.Lock()
	a := d.ahead[place]
	if a == nil || a.got == nil || time.Since(a.began) > freshFor || digest != "" && digest != a.got.Digest {
		d.mu.Unlock()
		return nil
	}
	c := *a.got
	d.mu.Unlock()
	_, lease, err := d.o.Shelf.Store().Acquire(c.Digest)
	if err != nil {
		return nil
	}
	c.Lease = lease
	return &c
}

// came ends what was kept for the pod that has it now.
func (d *Daemon) came(place string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.ahead[place]; a != nil {
		delete(d.ahead, place)
		a.cancel()
	}
}
