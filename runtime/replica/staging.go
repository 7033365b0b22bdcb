package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// staging is DOWNLOADING: the checkpoint is staged.
func (r *Replica) staging(ctx context.Context) state {
	began := time.Now()
	if r.o.Spec.Source == "" {
		return r.starting
	}
	limit := r.o.Spec.Deadlines.Stage.Std()
	sctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("not staged within %s", limit)) })
	on := false // the staging continues after the engine's start
	defer func() {
		if !on {
			timer.Stop()
			cancel(nil)
		}
	}()

	got := make(chan stagingResult, 1)
	go func() { got <- r.stageFiles(sctx) }()
	tick := time.NewTicker(stagingReportEvery)
	defer tick.Stop()
	end := ""
	for {
		select {
		case s := <-got:
			switch {
			case s.err != nil:
			case s.early != nil:
				on = true
				r.early = startEarlyStaging(sctx, *s.early, began, func() { timer.Stop(); cancel(nil) })
				if end != "" || ctx.Err() != nil {
					cancel(nil)
				}
			default:
				r.ckpt = s.ckpt
				r.now.Bytes, r.now.TotalBytes = s.ckpt.Bytes, s.ckpt.Bytes
			}
			switch {
			case end != "":
				return r.unloaded(end)
			case ctx.Err() != nil:
				return nil
			case s.err != nil:
				r.addPhase(functions.PhaseStage, began, time.Now())
				return r.failed("stage: " + cancelCause(sctx, s.err).Error())
			case on:
				return r.starting
			}
			r.addPhase(functions.PhaseStage, began, time.Now())
			return r.starting
		case <-tick.C:
			r.reportStaging()
		case <-r.commandReady:
			switch c := r.takeCommands(); {
			case c.unload:
				end = c.reason
				cancel(errors.New("unloaded"))
			case c.cancelStart:
				end = ErrStartCancelled.Error()
				cancel(ErrStartCancelled)
			}
		}
	}
}

// cancelCause returns the context's cause if err is its cancellation, else err.
func cancelCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

type stagingResult struct {
	ckpt  Checkpoint
	early *PartialCheckpoint // instead of ckpt
	err   error
}

func (r *Replica) stageRequest() StageRequest {
	key := r.o.Cache
	if key == "" {
		key = r.o.Programs.CacheKey(r.o.Spec, r.o.GPUName, len(r.o.GPUs))
	}
	return StageRequest{Source: r.o.Spec.Source, Dir: r.o.Dir, Digest: r.o.Digest, Files: r.o.Spec.StagedFiles(), Cache: key,
		Engine: r.o.Spec.Engine}
}

func (r *Replica) stage(ctx context.Context) stagingResult {
	return r.staged(r.o.Stager.Stage(ctx, r.stageRequest(), r.setStaged))
}

// staged is the result of a staging that is over.
func (r *Replica) staged(c Checkpoint, err error) stagingResult {
	if err == nil {
		if err = refuseAdapter(r.o.Spec.Engine, c.Path); err != nil && c.Release != nil {
			c.Release()
		}
	}
	if err != nil {
		return stagingResult{err: err}
	}
	return stagingResult{ckpt: c}
}

func (r *Replica) setStaged(have, total functions.Bytes) {
	r.stagedBytes.Store(int64(have))
	r.stageTotal.Store(int64(total))
}

// stageFiles stages the checkpoint, early if stager and engine support it.
func (r *Replica) stageFiles(ctx context.Context) stagingResult {
	early, ok := r.o.Stager.(EarlyStager)
	// A confined engine reaches only the arriving files, which are gone when a deep
	// sleeper reads its weights again.
	if !ok || !engine.Streams(r.o.Spec.Engine) || r.o.Confine != nil && engine.Sleeps(r.o.Spec) {
		return r.stage(ctx)
	}
	a, err := early.StageEarly(ctx, r.stageRequest(), r.setStaged)
	if err != nil {
		return stagingResult{err: err}
	}
	if !a.Complete {
		return stagingResult{early: &a}
	}
	c, err := a.Rest(ctx)
	if a.EngineReady != nil {
		a.EngineReady()
	}
	return r.staged(c, err)
}

func (r *Replica) reportStaging() {
	have, total := r.stagedBytes.Load(), r.stageTotal.Load()
	if functions.Bytes(have) == r.now.Bytes && functions.Bytes(total) == r.now.TotalBytes {
		return
	}
	r.now.Bytes, r.now.TotalBytes = functions.Bytes(have), functions.Bytes(total)
	percent := -1
	if total > 0 {
		percent = int(have * 100 / total)
	}
	r.now.Percent = percent
	r.notify()
}
