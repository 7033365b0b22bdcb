// Package memlimit sets the Go memory limit of this process from its cgroup or the machine, unless
// GOMEMLIMIT is set, computes how many connections and bytes of request bodies fit, and has a small
// heap collected less often, unless GOGC is set. The HTTP front refuses what does not fit.
package memlimit

import (
	"context"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// Share is the part of the control group's, or the machine's, memory that is the
// process's own.
type Share int

const (
	Alone         Share = iota // the process has its control group to itself
	BesideEngines              // engines run in the same control group, or on the machine
)

// Plan is the memory of one process, in bytes. Bodies and Connections together are five
// eighths of Limit; the rest is for tables, frames of the control stream and garbage.
type Plan struct {
	Limit  int64  // of all memory that Go manages: soft, it makes the collector work harder
	Source string // what Limit comes from: GOMEMLIMIT, cgroup or machine
	// Bodies is for bodies of requests, while they are read, held and sent.
	Bodies int64
	// Connections is how many connections of clients there may be, also by the number of
	// open files.
	Connections int
}

const (
	perConnection = 32 << 10 // a held request without its body: goroutines, buffers, head
	minLimit      = 128 << 20
	maxBodies     = 2 << 30
)

// divide makes a plan. given is GOMEMLIMIT, group the limit of the control group and
// machine the machine's memory; 0 is none, or unknown.
func divide(share Share, given, group, machine int64) Plan {
	p := Plan{Limit: given, Source: "GOMEMLIMIT"}
	if given <= 0 {
		p.Limit, p.Source = group, "cgroup"
		if group <= 0 || machine > 0 && machine < group {
			p.Limit, p.Source = machine, "machine"
		}
		if p.Limit <= 0 {
			p.Limit, p.Source = 4<<30, "default"
		}
		most := p.Limit / 8 * 7 // what the kernel holds for sockets counts for the group too
		if p.Limit = most; share == BesideEngines {
			p.Limit = min(max(p.Limit/4, minLimit), most)
		}
	}
	p.Bodies = min(p.Limit/4, maxBodies)
	p.Connections = int(min(p.Limit/8*3/perConnection, 1<<20))
	return p
}

// Apply reads the limits, makes the plan of this process, and has the runtime keep to it
// unless the environment sets GOMEMLIMIT, which then decides.
func Apply(share Share, log *slog.Logger) Plan {
	var given int64
	set := os.Getenv("GOMEMLIMIT") != "" // off too
	if set {
		if n := debug.SetMemoryLimit(-1); n < math.MaxInt64 {
			given = n
		}
	}
	m, _ := hostinfo.ReadMemory()
	p := divide(share, given, hostinfo.GroupLimit(), m.Total)
	if n := hostinfo.MaxFiles(); n > 0 {
		p.Connections = min(p.Connections, n/4*3) // others are to engines, to the store, and to other parts
	}
	if !set {
		debug.SetMemoryLimit(p.Limit)
	}
	log.Info("memory budget", "limit", functions.Bytes(p.Limit).String(), "from", p.Source, "bodies", functions.Bytes(p.Bodies).String(),
		"connections", p.Connections)
	return p
}

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
