package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/platform/sizer"
)

// mostGPUs is the number of GPUs of the node that --gpu-memory plans for.
const mostGPUs = 8

// checkSources returns the problems of models whose source, as this machine reads it, has no single
// set of weights, or attention heads that their GPUs cannot share.
func checkSources(ctx context.Context, models []*functions.Model) error {
	s := sizer.Sizer{Sources: nodestore.OpenSources}
	found := make([]catalog.Problems, len(models))
	var running sync.WaitGroup
	for i, m := range models {
		running.Go(func() {
			if err := s.CheckWeights(ctx, m); err != nil {
				found[i] = append(found[i], knative.ProblemOf(m, "spec.weights", "", err.Error()))
			}
			if err := s.CheckGPUs(ctx, m); err != nil {
				found[i] = append(found[i], knative.ProblemOf(m, "spec.resources.gpus", "", err.Error()))
			}
		})
	}
	running.Wait()
	if all := slices.Concat(found...); len(all) > 0 {
		return all
	}
	return nil
}

// size fills in the resources that model files leave out: from their sources, which this
// machine reads, and the GPUs of --gpu-memory or of the cluster, which may be nil. With
// --skip-preflight the sources are not checked.
func (c *command) size(ctx context.Context, models []*functions.Model, cluster *knative.Cluster) error {
	if !c.unchecked {
		if err := checkSources(ctx, models); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(models, func(m *functions.Model) bool { return sizer.LeavesOut(&m.Spec) }) {
		return nil
	}
	var nodes []functions.Node
	hint := ""
	switch {
	case c.render.GPUMemory > 0:
		nodes = []functions.Node{{ID: "--gpu-memory", GPUs: slices.Repeat([]functions.GPU{{MemoryTotal: c.render.GPUMemory}}, mostGPUs)}}
	case cluster != nil:
		var err error
		if nodes, err = cluster.GPUNodes(ctx); err != nil {
			return err
		}
		fallthrough
	default:
		hint = "; --gpu-memory 80Gi plans for GPUs of that size"
	}
	s := sizer.Sizer{Sources: nodestore.OpenSources, Nodes: func() []functions.Node { return nodes }}
	texts := make([]string, len(models))
	var running sync.WaitGroup
	for i, m := range models {
		running.Go(func() { m.Spec.Resources, texts[i] = s.Size(ctx, m) })
	}
	running.Wait()
	for i, m := range models {
		if m.Spec.Resources == (functions.Resources{}) && texts[i] != "" {
			texts[i] += hint
		}
		if texts[i] != "" {
			fmt.Fprintln(c.Err, kit.Plain(m.Metadata.Name+": "+texts[i]))
		}
	}
	return nil
}

// openFor opens the cluster and fills in the resources that these models leave out by its GPUs.
func (c *command) openFor(ctx context.Context, models []*functions.Model) (*knative.Cluster, error) {
	cluster, err := knative.Open(c.access)
	if err != nil {
		return nil, err
	}
	return cluster, c.size(ctx, models, cluster)
}
