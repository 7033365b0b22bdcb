package replica

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// stagedFiles is a replica's checkpoint from its staging to its release. It is owned by Run's
// goroutine, which calls stage in another.
type stagedFiles struct {
	stager      Stager
	log         *slog.Logger
	have, total atomic.Int64 // the staging's progress
	problem     atomic.Value // string: the staging's, see StageRequest

	ckpt       Checkpoint
	early      *earlyStaging // staging that continues after the engine's start; nil otherwise
	filled     bool          // Checkpoint.Filled was called
	verified   bool          // Checkpoint.Verify was called
	background sync.WaitGroup
}

type stagingResult struct {
	ckpt  Checkpoint         // without an err
	early *PartialCheckpoint // instead of ckpt
	err   error
}

// stage stages the checkpoint: early, if that is allowed and the stager supports it.
func (f *stagedFiles) stage(ctx context.Context, req StageRequest, early bool) stagingResult {
	progress := func(have, total functions.Bytes) {
		f.have.Store(int64(have))
		f.total.Store(int64(total))
	}
	req.Problem = func(problem string) { f.problem.Store(problem) }
	stager, ok := f.stager.(EarlyStager)
	if !ok || !early {
		c, err := f.stager.Stage(ctx, req, progress)
		return checkStaged(req.Engine, c, err)
	}
	p, err := stager.StageEarly(ctx, req, progress)
	if err != nil {
		return stagingResult{err: err}
	}
	if !p.Complete {
		return stagingResult{early: &p}
	}
	c, err := p.Rest(ctx)
	if p.EngineReady != nil {
		p.EngineReady()
	}
	return checkStaged(req.Engine, c, err)
}

// checkStaged is the result of a staging, refused if its engine cannot read what the source is.
func checkStaged(e functions.Engine, c Checkpoint, err error) stagingResult {
	if err == nil {
		if err = refuseSource(e, c.Path); err != nil && c.Release != nil {
			c.Release()
		}
	}
	return stagingResult{ckpt: c, err: err}
}

// progress is how much of the checkpoint has arrived, and what is wrong with its source.
func (f *stagedFiles) progress() (have, total functions.Bytes, problem string) {
	problem, _ = f.problem.Load().(string)
	return functions.Bytes(f.have.Load()), functions.Bytes(f.total.Load()), problem
}

func (f *stagedFiles) release() {
	if f.ckpt.Release != nil {
		f.ckpt.Release()
	}
	f.ckpt = Checkpoint{}
}

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

// finish is called when the engine has read its files: it ends an early staging
// and stores the engine's caches.
func (f *stagedFiles) finish(ctx context.Context) {
	filled := f.ckpt.Filled
	if c := f.early; c != nil {
		f.endEarly()
		if filled == nil {
			filled = c.Filled
		}
	}
	if filled == nil || f.filled {
		return
	}
	f.filled = true
	ctx, cancel := context.WithCancel(ctx)
	f.background.Go(func() {
		defer cancel()
		if err := filled(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("the engine's caches were not stored", "error", err)
		}
	})
}

// endEarly ends an early staging, complete or not.
func (f *stagedFiles) endEarly() {
	c := f.early
	if c == nil {
		return
	}
	f.early = nil
	c.stop()
	if !c.finished {
		if s := <-c.rest; s.err == nil {
			f.ckpt = s.ckpt
		}
	}
	if c.EngineReady != nil {
		c.EngineReady()
	}
}

// stagingErrorWait is how much later than its engine's exit a staging may fail.
const stagingErrorWait = 300 * time.Millisecond

// restError returns why the rest of a checkpoint could not be staged, nil if it
// was. An engine that reads the files reports only a failed read, possibly earlier.
func (f *stagedFiles) restError(rest <-chan stagingResult) error {
	if rest == nil {
		return nil
	}
	select {
	case s := <-rest:
		f.early.finished = true
		if s.err != nil {
			return cancelCause(f.early.ctx, s.err)
		}
		f.ckpt = s.ckpt
	case <-time.After(stagingErrorWait):
	}
	return nil
}

// mayBeDamaged reports whether an engine that ended while loading may have read a damaged
// file of a checkpoint that can be verified. It is true once in a replica's life.
func (f *stagedFiles) mayBeDamaged(x supervisor.Exit, cause string) bool {
	if f.verified || x.Signal != syscall.SIGBUS && !engine.BlamesFile(cause) {
		return false
	}
	f.endEarly()
	return f.ckpt.Verify != nil
}
