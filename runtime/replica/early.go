package replica

import (
	"context"
	"time"
)

// arrival is a checkpoint that was still arriving when its engine was started.
// Run owns it.
type arrival struct {
	Arriving
	ctx   context.Context // the staging's, for the cause of its end
	began time.Time
	rest  chan staged
	stop  func()
	over  bool // rest was taken
}

// arrive has the rest of a checkpoint come. stop ends that, and is called in
// any case.
func arrive(ctx context.Context, a Arriving, began time.Time, stop func()) *arrival {
	c := &arrival{Arriving: a, ctx: ctx, began: began, rest: make(chan staged, 1), stop: stop}
	go func() {
		ckpt, err := a.Rest(ctx)
		c.rest <- staged{ckpt: ckpt, err: err}
	}()
	return c
}

// settle is called when the engine has all it wants: paths may be switched,
// caches kept.
func (r *Replica) settle(ctx context.Context) {
	filled := r.ckpt.Filled
	if c := r.coming; c != nil {
		r.arrived()
		if filled == nil {
			filled = c.Filled
		}
	}
	if filled == nil || r.filled {
		return
	}
	r.filled = true
	ctx, cancel := context.WithCancel(ctx)
	r.beside.Go(func() {
		defer cancel()
		if err := filled(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("the engine's caches are not kept", "error", err)
		}
	})
}

// arrived ends an arrival, whole or not.
func (r *Replica) arrived() {
	c := r.coming
	if c == nil {
		return
	}
	r.coming = nil
	c.stop()
	if !c.over {
		if s := <-c.rest; s.err == nil {
			r.ckpt = s.ckpt
		}
	}
	if c.Settled != nil {
		c.Settled()
	}
}

// tornWait is how long the end of a staging may come after that of its engine.
const tornWait = 300 * time.Millisecond

// torn is why a checkpoint does not come, nil if it does: an engine that was
// reading it then says only that a read failed, and may say so first.
func (r *Replica) torn(rest <-chan staged) error {
	if rest == nil {
		return nil
	}
	t := time.NewTimer(tornWait)
	defer t.Stop()
	select {
	case s := <-rest:
		r.coming.over = true
		if s.err != nil {
			return because(r.coming.ctx, s.err)
		}
		r.ckpt = s.ckpt
	case <-t.C:
	}
	return nil
}
