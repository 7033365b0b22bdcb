package agent

import (
	"context"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/nodestore"
)

// readAheadFor bounds the reading ahead for one start; an engine that boots for longer
// reads for itself.
const readAheadFor = 10 * time.Minute

// readAhead has the kernel read a checkpoint from the disk while its engine's process
// starts. stop ends that early.
func (s *Stager) readAhead(c *loader.Checkpoint) (stop func()) {
	ctx, cancel := context.WithTimeout(s.ctx, readAheadFor)
	s.background.Go(func() {
		defer cancel()
		nodestore.ReadIntoMemory(ctx, c)
	})
	return cancel
}
