package replica

import (
	"context"
	"time"
)

// earlyStaging is a checkpoint that was still arriving when its engine was started.
// Run owns it.
type earlyStaging struct {
	PartialCheckpoint
	ctx      context.Context // the staging's, for the cause of its end
	began    time.Time
	rest     chan stagingResult
	stop     func()
	finished bool // rest was taken
}

// startEarlyStaging has the rest of a checkpoint come. stop ends that, and is called in
// any case.
func startEarlyStaging(ctx context.Context, a PartialCheckpoint, began time.Time, stop func()) *earlyStaging {
	c := &earlyStaging{PartialCheckpoint: a, ctx: ctx, began: began, rest: make(chan stagingResult, 1), stop: stop}
	go func() {
		ckpt, err := a.Rest(ctx)
		c.rest <- stagingResult{ckpt: ckpt, err: err}
	}()
	return c
}

// finishStaging is called when the engine has all it wants: paths may be switched,
// caches kept.
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
			r.log.Warn("the engine's caches are not kept", "error", err)
		}
	})
}

// endEarlyStaging ends an arrival, whole or not.
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

// stagingErrorWait is how long the end of a staging may come after that of its engine.
const stagingErrorWait = 300 * time.Millisecond

// stagingError is why a checkpoint does not come, nil if it does: an engine that was
// reading it then says only that a read failed, and may say so first.
func (r *Replica) stagingError(rest <-chan stagingResult) error {
	if rest == nil {
		return nil
	}
	t := time.NewTimer(stagingErrorWait)
	defer t.Stop()
	select {
	case s := <-rest:
		r.early.finished = true
		if s.err != nil {
			return cancelCause(r.early.ctx, s.err)
		}
		r.ckpt = s.ckpt
	case <-t.C:
	}
	return nil
}
