package replica

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// damagedNode is a node whose checkpoint has a damaged file until it is staged again.
type damagedNode struct {
	*fakeNode
	damaged  bool // the file is damaged; nothing is wrong with it otherwise
	forGood  bool // also after it was staged again
	slow     time.Duration
	staged   atomic.Int64
	verified atomic.Int64
}

func (d *damagedNode) Stage(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error) {
	if d.staged.Add(1) > 3 {
		return Checkpoint{}, errors.New("staged again and again")
	}
	c, err := d.fakeNode.Stage(ctx, req, progress)
	c.Verify = func(ctx context.Context) error {
		d.verified.Add(1)
		select {
		case <-time.After(d.slow):
		case <-ctx.Done():
			return ctx.Err()
		}
		if d.damaged {
			return fmt.Errorf("%w: model.safetensors", ErrDamaged)
		}
		return nil
	}
	return c, err
}

// TestDamagedFile: an engine fails as it does on a damaged file. The checkpoint is read
// again; if a file is damaged it is staged anew and the engine started once more.
func TestDamagedFile(t *testing.T) {
	const bad = "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"
	for name, c := range map[string]struct {
		node     *damagedNode
		tail     string
		spawns   int64
		verified int64
		why      string // "": READY
	}{
		"damaged once":     {node: &damagedNode{damaged: true}, tail: bad, spawns: 2, verified: 1},
		"damaged for good": {node: &damagedNode{damaged: true, forGood: true}, tail: bad, spawns: 2, verified: 1, why: "vllm ended while loading: " + bad},
		"files are well":   {node: &damagedNode{}, tail: bad, spawns: 1, verified: 1, why: "vllm ended while loading: " + bad},
		"another cause":    {node: &damagedNode{damaged: true}, tail: "ValueError: bad kernel", spawns: 1, why: "vllm ended while loading: ValueError: bad kernel"},
		"verify too slow":  {node: &damagedNode{damaged: true, slow: 2 * time.Hour}, tail: bad, spawns: 1, verified: 1, why: "vllm ended while loading: " + bad},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := c.node
				d.fakeNode = &fakeNode{loadTime: time.Second}
				d.tokenErr = func(int64) error {
					if d.spawned.Load() > 1 && !d.forGood {
						return nil
					}
					d.die(supervisor.Exit{Code: 1, Tail: c.tail})
					return errors.New("EOF")
				}
				o := d.options()
				o.Stager = d
				l := startReplica(t, o, New)
				if c.why == "" {
					time.Sleep(time.Minute)
					expectState(t, l, functions.Ready)
					l.Unload(0, "done")
					l.ended(t, functions.Unloaded, "")
				} else {
					time.Sleep(2 * time.Hour)
					expectState(t, l, functions.Failed)
					l.ended(t, functions.Failed, c.why)
				}
				if d.spawned.Load() != c.spawns || d.staged.Load() != c.spawns || d.verified.Load() != c.verified {
					t.Errorf("%d starts, %d stagings, %d verifications", d.spawned.Load(), d.staged.Load(), d.verified.Load())
				}
				if d.released.Load() != d.staged.Load() {
					t.Errorf("%d of %d leases released", d.released.Load(), d.staged.Load())
				}
			})
		})
	}
}

// TestUnloadWhileVerifying: an unload ends the reading.
func TestUnloadWhileVerifying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &damagedNode{fakeNode: &fakeNode{loadTime: time.Second}, damaged: true, slow: 30 * time.Minute}
		d.tokenErr = func(int64) error {
			d.die(supervisor.Exit{Code: 1, Tail: "OSError: [Errno 5] Input/output error"})
			return errors.New("EOF")
		}
		o := d.options()
		o.Stager = d
		l := startReplica(t, o, New)
		time.Sleep(time.Minute)
		expectState(t, l, functions.Loading)
		began := time.Now()
		l.Unload(0, "no one waits")
		l.ended(t, functions.Unloaded, "")
		if took := time.Since(began); took > time.Second {
			t.Errorf("ended after %s", took)
		}
	})
}
