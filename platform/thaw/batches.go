package main

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/batches"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// openBatches opens the files and batches of a data folder, on a data path.
func openBatches(c *cli.ServeConfig, data *activator.Activator, cat *catalog.Catalog, gpus func() int, keys *auth.KeyStore, metrics *telemetry.Registry, log *slog.Logger) (*batches.Server, error) {
	b, err := batches.Open(batches.Options{
		Data: c.Data, Serve: data.Serve, Describe: data.DescribeModel, Caller: data.Caller, MaxLine: int64(c.MaxBody), GPUs: gpus, Log: log,
		HasKey: func(id string) bool {
			return slices.ContainsFunc(keys.List(""), func(k auth.Key) bool { return k.ID == id })
		},
		Demand: func(yield func(batches.Demand) bool) {
			for _, m := range cat.Models() {
				d, ok := data.DemandOf(m.FullName())
				if ok && !yield(batches.Demand{Name: d.Name, GPUs: m.Spec.Resources.GPUs, Active: d.Active, Queued: d.Queued, LastEnd: d.LastEnd}) {
					return
				}
			}
		},
		Count: func(metric string, value float64, labels ...string) { metrics.Series(metric, labels...)(value) },
	})
	if err != nil {
		return nil, fmt.Errorf("the files and batches: %w", err)
	}
	metrics.Add(b.Samples)
	return b, nil
}
