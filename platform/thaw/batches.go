package main

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// openBatches opens the files and batches of a data folder, on a data path.
func openBatches(c *cli.ServeConfig, act *activator.Activator, cat *catalog.Catalog, gpus func() int, money *spend.Ledger,
	limits *ratelimit.Limits, keys *auth.KeyStore, metrics *telemetry.Registry, log *slog.Logger) (*batches.Server, error) {
	b, err := batches.Open(batches.Options{
		Data: c.Data, Serve: act.Serve, Describe: act.DescribeModel, Caller: act.Caller, MaxLine: int64(c.MaxBody), GPUs: gpus, Ledger: money,
		Log: log, Now: time.Now,
		HasKey: func(id string) bool {
			return slices.ContainsFunc(keys.List(""), func(k auth.Key) bool { return k.ID == id })
		},
		Demand: func(yield func(batches.Demand) bool) {
			for _, m := range cat.Models() {
				d, ok := act.DemandOf(m.FullName())
				if ok && !yield(batches.Demand{Name: d.Name, GPUs: m.Spec.Resources.GPUs, Active: d.Active, Queued: d.Queued, LastEnd: d.LastEnd}) {
					return
				}
			}
		},
		Spare: func(team string) int { return spareLines(limits.Usage(team, time.Now())) },
		Count: func(metric string, value float64, labels ...string) { metrics.Series(metric, labels...)(value) },
	})
	if err != nil {
		return nil, fmt.Errorf("the files and batches: %w", err)
	}
	metrics.Add(b.Samples)
	return b, nil
}

// spareLines is how many lines of batches may be sent now, so that a quarter of each limit is
// left to the team's other requests.
func spareLines(u ratelimit.Usage) int {
	n := math.MaxInt
	for _, x := range []struct{ limit, left int }{
		{u.Limits.Concurrent, u.Limits.Concurrent - u.Active - u.Held}, {u.Limits.RequestsPerMinute, u.Requests},
	} {
		if x.limit > 0 {
			n = min(n, max(0, x.left-x.limit/4))
		}
	}
	if limit := u.Limits.TokensPerMinute; limit > 0 && u.Tokens <= limit/4 {
		return 0
	}
	return n
}
