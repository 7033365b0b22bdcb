package memlimit

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/thaw-dev/thaw/functions/backoff"
)

const (
	usualPercent = 100 // Go's own: as much garbage as there is memory in use
	maxPercent   = 400
	minGarbage   = 32 << 20
	paceEvery    = 250 * time.Millisecond
)

// percent is the garbage that may come before the collector runs, in percent of the memory in
// use: that memory again, or where it is little up to 32 MiB. A gateway uses few MiB and makes
// some KiB of garbage per request, so that the collector would run many times a second.
func (p Plan) percent(inUse int64) int {
	garbage := min(minGarbage, p.Limit/8)
	return int(min(max(garbage*100/max(inUse, 1), usualPercent), maxPercent))
}

// PaceCollector keeps the collector at that until ctx ends. A GOGC in the environment turns it
// off.
func (p Plan) PaceCollector(ctx context.Context) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	defer debug.SetGCPercent(usualPercent)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for set := usualPercent; ; {
		metrics.Read(live)
		// Each change stops the program for a moment.
		if n := p.percent(int64(live[0].Value.Uint64())); n > set+set/8 || n < set-set/8 {
			debug.SetGCPercent(n)
			set = n
		}
		if !backoff.Sleep(ctx, paceEvery) {
			return nil
		}
	}
}
