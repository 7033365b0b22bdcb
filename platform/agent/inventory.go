package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/gpu"
)

// InventoryPoller polls the GPU driver and the store, so that a heartbeat waits for
// neither.
type InventoryPoller struct {
	facts  *gpu.Facts
	store  *nodestore.Store
	count  int             // GPUs to offer; negative: all
	memory functions.Bytes // of each GPU to offer; 0: all of it

	gpus atomic.Pointer[[]functions.GPU]
}

// NewInventoryPoller polls once. facts may be nil. count and memory limit what is offered;
// a negative count offers all GPUs. A count above what the driver shows declares GPUs, for
// drivers that this build cannot query.
func NewInventoryPoller(facts *gpu.Facts, s *nodestore.Store, count int, memory functions.Bytes) *InventoryPoller {
	l := &InventoryPoller{facts: facts, store: s, count: count, memory: memory}
	l.refresh(true)
	return l
}

const (
	gpuPollEvery   = 2 * time.Second
	storePollEvery = 5 // GPU polls for each of the store
)

// Run polls until ctx ends.
func (p *InventoryPoller) Run(ctx context.Context) error {
	for n := 1; backoff.Sleep(ctx, gpuPollEvery); n++ {
		p.refresh(n%storePollEvery == 0)
	}
	return nil
}

func (p *InventoryPoller) refresh(store bool) {
	var gpus []functions.GPU
	if p.facts != nil {
		gpus = p.facts.List()
	}
	gpus = offeredGPUs(gpus, p.count, p.memory)
	p.store.MeasureRate(time.Now())
	if store {
		_ = p.store.Refresh() // on an error the last listing stays
	}
	p.gpus.Store(&gpus)
}

// offeredGPUs are the GPUs of the driver, cut to count and memory.
func offeredGPUs(found []functions.GPU, count int, memory functions.Bytes) []functions.GPU {
	out := append([]functions.GPU{}, found...)
	if count >= 0 {
		for i := len(out); i < count; i++ {
			out = append(out, functions.GPU{Index: i, Name: "declared", Health: gpu.Healthy, MemoryTotal: memory, MemoryFree: memory})
		}
		out = out[:count]
	}
	for i := range out {
		usable := out[i].MemoryTotal - out[i].Foreign
		if memory > 0 && (out[i].MemoryTotal == 0 || memory < out[i].MemoryTotal) {
			out[i].MemoryTotal = memory
			out[i].MemoryFree = min(out[i].MemoryFree, memory)
		}
		if out[i].Foreign > 0 { // of what is offered
			out[i].Foreign = max(out[i].MemoryTotal-usable, 0)
		}
	}
	return out
}

// GPUs are those of the last poll.
func (p *InventoryPoller) GPUs() []functions.GPU { return *p.gpus.Load() }
