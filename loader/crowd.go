package loader

import (
	"context"
	"sync"
)

// crowd is goroutines that end together: the first error ends all.
type crowd struct {
	wg   sync.WaitGroup
	fail context.CancelCauseFunc
}

// Go runs body beside the others; also from a body that runs.
func (c *crowd) Go(body func() error) {
	c.wg.Go(func() {
		if err := body(); err != nil {
			c.fail(err)
		}
	})
}

// together runs begin and whatever it lets run, waits for all of them and
// returns the first error. The context it hands on ends with the first error.
func together(ctx context.Context, begin func(ctx context.Context, c *crowd)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &crowd{fail: cancel}
	begin(ctx, c)
	c.wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
