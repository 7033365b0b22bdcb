package replica

import (
	"context"
	"time"
)

// earlyStaging is a staging that continues after its engine was started. It is owned
// by Run's goroutine.
type earlyStaging struct {
	PartialCheckpoint
	ctx      context.Context // the staging's, for the cause of its end
	began    time.Time
	rest     chan stagingResult
	stop     func()
	finished bool // rest was received
}

// startEarlyStaging stages the rest of a checkpoint. stop ends that; it is always
// called.
func startEarlyStaging(ctx context.Context, a PartialCheckpoint, began time.Time, stop func()) *earlyStaging {
	c := &earlyStaging{PartialCheckpoint: a, ctx: ctx, began: began, rest: make(chan stagingResult, 1), stop: stop}
	go func() {
		ckpt, err := a.Rest(ctx)
		c.rest <- stagingResult{ckpt: ckpt, err: err}
	}()
	return c
}

// finishStaging is called when the engine has read its files: it ends an early staging
// and stores the engine's caches.
func (r *Replica) finishStaging(ctx context.Context) {
	filled := r.ckpt.Filled
	if c := r.early; c != nil {
		r.endEarlyStaging()
		if filled == nil {
			filled = c.Filled
		}
	}
	if filled == nil || r.filled {
		return
	}
	r.filled = true
	ctx, cancel := context.WithCancel(ctx)
	r.background.Go(func() {
		defer cancel()
		if err := filled(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("the engine's caches were not stored", "error", err)
		}
	})
}

// endEarlyStaging ends an early staging, complete or not.
func (r *Replica) endEarlyStaging() {
	c := r.early
	if c == nil {
		return
	}
	r.early = nil
	c.stop()
	if !c.finished {
		if s := <-c.rest; s.err == nil {
			r.ckpt = s.ckpt
		}
	}
	if c.EngineReady != nil {
		c.EngineReady()
	}
}

// stagingErrorWait is how much later than its engine's exit a staging may fail.
const stagingErrorWait = 300 * time.Millisecond

// stagingError returns why the rest of a checkpoint could not be staged, nil if it
// was. An engine that reads the files reports only a failed read, possibly earlier.
func (r *Replica) stagingError(rest <-chan stagingResult) error {
	if rest == nil {
		return nil
	}
	select {
	case s := <-rest:
		r.early.finished = true
		if s.err != nil {
			return cancelCause(r.early.ctx, s.err)
		}
		r.ckpt = s.ckpt
	case <-time.After(stagingErrorWait):
	}
	return nil
}
