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
	timer := time.AfterFunc(limit, func() {
		text := fmt.Sprintf("not staged within %s (deadlines.stage)", limit)
		have, total, problem := r.files.progress()
		if total > 0 {
			text += fmt.Sprintf(", %s of %s came", have.Human(), total.Human())
		}
		if problem != "" {
			text += ": " + problem
		}
		cancel(errors.New(text))
	})
	stop := func() { timer.Stop(); cancel(nil) }
	defer func() {
		if r.files.early == nil {
			stop()
		}
	}()

	got := make(chan stagingResult, 1)
	// A confined engine reaches only the arriving files, which are gone when a deep
	// sleeper reads its weights again.
	early := engine.Streams(r.o.Spec.Engine) && (r.o.Confine == nil || !engine.Sleeps(r.o.Spec))
	go func() { got <- r.files.stage(sctx, r.stageRequest(), early) }()
	tick := time.NewTicker(stagingReportEvery)
	defer tick.Stop()
	end := ""
	for {
		select {
		case s := <-got:
			switch {
			case s.err != nil:
			case s.early != nil:
				r.files.early = startEarlyStaging(sctx, *s.early, began, stop) // it goes on after the engine's start
			default:
				r.files.ckpt = s.ckpt
				r.report.now.Bytes, r.report.now.TotalBytes = s.ckpt.Bytes, s.ckpt.Bytes
			}
			switch {
			case end != "":
				return r.unloaded(end)
			case ctx.Err() != nil:
				return nil
			case s.early != nil:
				return r.starting
			}
			r.report.addPhase(functions.PhaseStage, began, time.Now())
			_, _, r.report.now.StartNote = r.files.progress()
			if s.err != nil {
				return r.failed("stage: " + cancelCause(sctx, s.err).Error())
			}
			return r.starting
		case <-tick.C:
			r.report.stagingProgress(r.files.progress())
		case <-r.commands.ready:
			if reason, cause := r.commands.take().stop(); cause != nil {
				end = reason
				cancel(cause)
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

func (r *Replica) stageRequest() StageRequest {
	key := r.o.Cache
	if key == "" {
		key = r.o.Programs.CacheKey(r.o.Spec, r.o.GPUName, len(r.o.GPUs))
	}
	return StageRequest{Source: r.o.Spec.Source, Dir: r.o.Dir, Digest: r.o.Digest, Files: r.o.Spec.StagedFiles(), Cache: key,
		Engine: r.o.Spec.Engine}
}
