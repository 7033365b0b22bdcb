// Package sizer works out the GPUs and memory that a model file leaves out from the checkpoint at
// its source and the nodes' GPUs, once or in the background with the results kept (Folder), and
// checks that the file chooses one set of weights; it changes no model file.
package sizer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/inspect"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// timeout bounds the reads of a source.
const timeout = 20 * time.Second

type Sizer struct {
	// Sources opens the sources by scheme; end closes their connections.
	Sources func() (all map[string]loader.Source, end func())
	Nodes   func() []functions.Node
}

// checkTimeout bounds the listing of a source while a deploy waits.
const checkTimeout = 5 * time.Second

// CheckWeights returns an error for a model whose engine loads one set of weights, if its
// source holds several and the model file chooses none, or none that it chooses.
func (s Sizer) CheckWeights(ctx context.Context, m *functions.Model) error {
	if m.Spec.WeightsPattern() == "" || m.Spec.Source == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	sources, end := s.Sources()
	defer end()
	return inspect.CheckWeights(ctx, m.Spec.Source, inspect.Options{Sources: sources, Folder: m.Dir, Files: m.Spec.StagedFiles()})
}

// CheckGPUs returns an error for a model whose attention heads tensor parallelism cannot divide
// among its GPUs. A source that cannot be read gives none: it may be read from elsewhere.
func (s Sizer) CheckGPUs(ctx context.Context, m *functions.Model) error {
	spec := m.Spec
	if spec.Engine != functions.EngineVLLM && spec.Engine != functions.EngineSGLang || spec.Source == "" {
		return nil
	}
	n := engine.FlagNumber(spec.Args, tensorParallel...)
	if n == 0 && engine.FlagNumber(spec.Args, "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp") == 0 {
		n = spec.Resources.GPUs
	}
	if n < 2 {
		return nil
	}
	if given := spec.Resources.GPUs; given > 0 && n > given {
		return fmt.Errorf("args ask for %d GPUs, and resources.gpus is %d (leave the flag out, or gpus: %d)", n, given, n)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	spec.Adapters = nil
	model, err := s.read(ctx, &spec, m.Dir)
	if err != nil || model.Divides(n) {
		return nil
	}
	return fmt.Errorf("the model's %d attention heads cannot be divided among %d GPUs (gpus: %s)", model.Heads, n, model.Divisors())
}

// Size returns the resources of a model whose file leaves them out, and how they came
// about, for people. Other models get no text and no change; where nothing can be worked
// out the resources stay empty, which reserves nothing, and the text says why.
func (s Sizer) Size(ctx context.Context, m *functions.Model) (functions.Resources, string) {
	spec := &m.Spec
	if !LeavesOut(spec) {
		return spec.Resources, ""
	}
	nothing := func(format string, args ...any) (functions.Resources, string) {
		return functions.Resources{},
			"spec.resources is left out, and nothing is reserved: " + fmt.Sprintf(format, args...) +
				"; write what thaw init prints, or resources: {memory: 4Gi} for processors"
	}
	withGPUs := functions.Filter(s.Nodes(), func(n functions.Node) bool { return len(n.GPUs) > 0 && !n.Lost && smallest(n) > 0 })
	if len(withGPUs) == 0 {
		return nothing("no node has a GPU whose memory is known, so the engine runs on processors")
	}
	model, err := s.read(ctx, spec, m.Dir)
	if err != nil {
		return nothing("it could not be worked out: %v", err)
	}
	use := useOf(spec, &model)
	fit, node := chooseNode(&model, use, withGPUs)
	res := functions.Resources{GPUs: fit.Use.GPUs, GPUMemory: functions.Bytes(fit.Need.Total()),
		Memory: functions.Bytes(sizing.HostMemory(fit.Use))}
	human := func(n int64) string { return functions.Bytes(n).Human() }
	text := fmt.Sprintf("spec.resources is left out, and was worked out: {gpus: %d, gpuMemory: %s, memory: %s}. Each GPU has weights of "+
		"%s, KV cache of %s for %d x %d tokens (requests at once x context), and %s for the engine",
		res.GPUs, res.GPUMemory, res.Memory, human(fit.Need.Weights), human(fit.Need.Cache), fit.Use.Requests, fit.Use.Context,
		human(fit.Need.Adapters+fit.Need.Program+fit.Need.Work))
	if !fit.OK {
		text += fmt.Sprintf("; no node has room for that now, and the largest, %s, has %d x %s: thaw init tells what would fit", node.ID,
			len(node.GPUs), human(smallest(node)))
	}
	return res, text
}

// LeavesOut reports whether a model file leaves resources out that can be worked out.
func LeavesOut(spec *functions.ModelSpec) bool {
	return spec.Resources == functions.Resources{} && spec.Source != "" &&
		(spec.Engine == functions.EngineVLLM || spec.Engine == functions.EngineSGLang || spec.Engine == functions.EngineLlamaCpp)
}

// read looks at a model's source and those of its adapters.
func (s Sizer) read(ctx context.Context, spec *functions.ModelSpec, folder string) (sizing.Model, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("the source did not answer within "+timeout.String()))
	defer cancel()
	sources, end := s.Sources()
	defer end()
	o := inspect.Options{Sources: sources, Folder: folder, Format: inspect.Safetensors, Files: spec.StagedFiles()}
	if spec.Engine == functions.EngineLlamaCpp {
		o.Format = inspect.GGUF
	}
	c, err := inspect.Read(ctx, spec.Source, o)
	if err != nil {
		return sizing.Model{}, err
	}
	model := c.Sizing
	if len(spec.Adapters) == 0 {
		return model, nil
	}
	for _, a := range spec.Adapters {
		ad, _, err := inspect.ReadAdapter(ctx, a.Source, o)
		if err != nil {
			return model, err
		}
		model.Adapter = max(model.Adapter, ad.Bytes)
	}
	model.Slots = engine.AdapterSlots(*spec)
	return model, nil
}

var tensorParallel = []string{"--tensor-parallel-size", "-tp", "--tp-size", "--tp"}

// useOf is how a model's engine is told to serve it, by its args.
func useOf(spec *functions.ModelSpec, m *sizing.Model) sizing.Use {
	u := sizing.Use{Engine: spec.Engine, Context: m.Context, Requests: spec.Scale.Target}
	number := func(flags ...string) int { return engine.FlagNumber(spec.Args, flags...) }
	if spec.Engine == functions.EngineLlamaCpp {
		m.Heads = 0 // layers are divided between GPUs, not heads
		// The cache is of --ctx-size tokens, which the requests divide between them.
		if n := number("--ctx-size", "-c"); n > 0 {
			u.Context = n
		}
		u.Requests = 1
		return u
	}
	if n := number("--max-model-len", "--context-length"); n > 0 {
		u.Context = n
	}
	u.GPUs = number(tensorParallel...)
	return u
}

// chooseNode returns where a model fits with the most requests at once, on the fewest GPUs; where it
// fits nowhere, what it needs of the node with the most memory.
func chooseNode(m *sizing.Model, u sizing.Use, nodes []functions.Node) (sizing.Fit, functions.Node) {
	large := nodes[0]
	for _, n := range nodes {
		if smallest(n)*int64(len(n.GPUs)) > smallest(large)*int64(len(large.GPUs)) {
			large = n
		}
	}
	// The cache is of pages: with fewer, requests wait inside of the engine.
	for u.Requests = max(u.Requests, 1); ; u.Requests /= 2 {
		var chosen sizing.Fit
		var at functions.Node
		for _, n := range nodes {
			fit := sizing.FitOn(m, u, smallest(n), len(n.GPUs))
			if fit.OK && fit.Use.GPUs <= len(n.GPUs) && (!chosen.OK || fit.Use.GPUs < chosen.Use.GPUs) {
				chosen, at = fit, n
			}
		}
		if chosen.OK {
			return chosen, at
		}
		if u.Requests == 1 {
			fit := sizing.FitOn(m, u, smallest(large), len(large.GPUs))
			fit.OK = false
			return fit, large
		}
	}
}

// smallest is the memory of a node's smallest GPU.
func smallest(n functions.Node) int64 {
	return int64(slices.MinFunc(n.GPUs, func(a, b functions.GPU) int { return cmp.Compare(a.MemoryTotal, b.MemoryTotal) }).MemoryTotal)
}
