package replica

import (
	"context"
	"errors"

	"github.com/thaw-dev/thaw/functions"
)

// verifying is LOADING_TO_GPU after an engine failed as it does on a damaged file. The
// checkpoint is read again: if a file is damaged it is staged anew and the engine started
// once more, else the replica fails with cause.
func (r *Replica) verifying(cause string) state {
	return func(ctx context.Context) state {
		r.files.verified = true
		vctx, cancel := context.WithTimeout(ctx, r.o.Spec.Deadlines.Stage.Std())
		defer cancel()
		got := make(chan error, 1)
		go func() { got <- r.files.ckpt.Verify(vctx) }()
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
				r.files.release()
				r.report.now.Endpoint, r.report.now.Key = "", ""
				r.report.enter(functions.Downloading)
				return r.staging
			case <-r.commands.ready:
				if reason, cause := r.commands.take().stop(); cause != nil {
					end = reason
					cancel()
				}
			}
		}
	}
}
