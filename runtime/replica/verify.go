package replica

import (
	"context"
	"errors"
	"syscall"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// mayBeDamaged reports whether an engine that ended while loading may have read a damaged
// file of a checkpoint that can be verified. It is true once in a replica's life.
func (r *Replica) mayBeDamaged(x supervisor.Exit, cause string) bool {
	if r.verified || x.Signal != syscall.SIGBUS && !engine.BlamesFile(cause) {
		return false
	}
	r.endEarlyStaging()
	return r.ckpt.Verify != nil
}

// verifying is LOADING_TO_GPU after an engine failed as it does on a damaged file. The
// checkpoint is read again: if a file is damaged it is staged anew and the engine started
// once more, else the replica fails with cause.
func (r *Replica) verifying(cause string) state {
	return func(ctx context.Context) state {
		r.verified = true
		vctx, cancel := context.WithTimeout(ctx, r.o.Spec.Deadlines.Stage.Std())
		defer cancel()
		got := make(chan error, 1)
		go func() { got <- r.ckpt.Verify(vctx) }()
		end := ""
		for {
			select {
			case err := <-got:
				switch {
				case end != "":
					return r.unloaded(end)
				case ctx.Err() != nil:
					return nil
				case !errors.Is(err, ErrDamaged):
					return r.failed(cause)
				}
				r.log.Warn("a file of the checkpoint is damaged, it is staged again", "error", err, "cause", cause)
				if r.ckpt.Release != nil {
					r.ckpt.Release()
				}
				r.ckpt = Checkpoint{}
				r.enter(functions.Downloading)
				return r.staging
			case <-r.commandReady:
				switch c := r.takeCommands(); {
				case c.unload:
					end = c.reason
					cancel()
				case c.cancelStart:
					end = ErrStartCancelled.Error()
					cancel()
				}
			}
		}
	}
}
