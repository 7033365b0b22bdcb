package nodeloader

import (
	"context"
	"sync"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// startVerification starts to read a checkpoint again that the pod holds. A pod has one
// verification at a time, and the node reads for one pod after another.
func (s *shim) startVerification(ctx context.Context, v controlstream.Verify, background *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	problem := ""
	switch {
	case s.leases[v.Digest] == nil:
		problem = "the pod does not hold this checkpoint"
	case s.verifying:
		problem = "a checkpoint of this pod is being verified already"
	}
	if problem != "" {
		s.d.counts.refused.Add(1)
		s.out.put(controlstream.ToPod{Verified: &controlstream.Verified{ID: v.ID, Error: problem}})
		return
	}
	s.verifying = true
	background.Go(func() {
		answer := s.d.verify(ctx, v.Digest)
		s.mu.Lock()
		s.verifying = false
		s.mu.Unlock()
		if ctx.Err() != nil {
			return // the pod is gone, or asks the next loader
		}
		answer.ID = v.ID
		s.out.put(controlstream.ToPod{Verified: &answer})
	})
}

// verify reads a checkpoint again and removes it if it is damaged. A checkpoint that
// another pod's verification has removed counts as damaged: it is staged again.
func (d *Daemon) verify(ctx context.Context, digest string) controlstream.Verified {
	select {
	case d.reading <- struct{}{}:
		defer func() { <-d.reading }()
	case <-ctx.Done():
		return controlstream.Verified{Error: ctx.Err().Error()}
	}
	err := d.o.Store.Loader().Verify(ctx, digest)
	if err == nil {
		return controlstream.Verified{}
	}
	kind := source.KindOf(err)
	damaged := kind == source.Digest || kind == source.Missing
	if damaged {
		d.o.Log.Warn("a pod's checkpoint is damaged and was removed; it is staged again", "digest", digest, "error", err)
		d.changes.Set()
	}
	return controlstream.Verified{Damaged: damaged, Error: err.Error()}
}
