package initverb

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/loader/inspect"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
)

// draft is a model file in the making.
type draft struct {
	wishes     wishes
	checkpoint *inspect.Checkpoint
	machine    machine
	adapters   []adapter

	engine  functions.Engine
	why     string // the engine, for its comment
	model   sizing.Model
	fit     sizing.Fit
	args    []string
	host    functions.Bytes // memory of the host
	remarks []string
	notes   []string // comments at the resources
}

type adapter struct {
	name, source string
	inspect.Adapter
}

// defaultContext bounds the context where none is wished: a cache for the longest that
// models take today is larger than their weights.
const defaultContext = 8192

// Checkpoints up to these sizes are served by the embedded engine, if it knows them:
// anywhere, and where there is no GPU.
const (
	smallAnywhere = 64 << 20
	smallHere     = 2 << 30
)

// plan decides everything that the file says.
func (d *draft) plan() error {
	if err := d.chooseEngine(); err != nil {
		return err
	}
	c, w := d.checkpoint, d.wishes
	d.model = c.Sizing
	use := sizing.Use{Engine: d.engine, Context: w.context, Requests: w.concurrency}
	switch {
	case w.context > c.Sizing.Context:
		return kit.Usage(fmt.Sprintf("--context %d or less", c.Sizing.Context), "--context %d: the model takes at most %d tokens (%s)", w.context,
			c.Sizing.Context, c.ContextFrom)
	case w.context > 0:
	case len(c.Sizing.Cache) == 0:
		use.Context = c.Sizing.Context
	default:
		use.Context = min(c.Sizing.Context, defaultContext)
	}
	switch d.engine {
	case functions.EngineEmber:
		d.model.Weights = c.Stored // as in the file
	case functions.EngineLlamaCpp:
		d.model.Heads = 0 // layers are divided between GPUs, not heads
	}
	if n := w.gpus; n > 1 && !d.model.Divides(n) {
		return kit.Usage("--gpus "+d.model.Divisors(), "--gpus %d: its %d heads cannot be divided so", n, d.model.Heads)
	}
	d.planAdapters()
	d.place(use)
	d.engineArgs()
	return nil
}

// chooseEngine takes the engine that is wished, or the one that the weights are for.
func (d *draft) chooseEngine() error {
	c := d.checkpoint
	small := c.Stored <= smallAnywhere || c.Stored <= smallHere && d.machine.count == 0 && d.wishes.gpuMemory == 0
	var ember error
	if c.Format == inspect.Safetensors && (small || d.wishes.engine == string(functions.EngineEmber)) {
		ember = readsEmber(c)
	}
	switch e := functions.Engine(d.wishes.engine); {
	case e == functions.EngineEmber && ember != nil:
		return &kit.Error{Exit: kit.ExitFailed, What: "ember cannot serve it", Err: ember, Hint: "leave --engine out, or --engine vllm"}
	case e == functions.EngineEmber && d.wishes.gpus > 0:
		return kit.Usage("leave --gpus out", "ember runs on processors only")
	case e != "":
		d.engine, d.why = e, "as asked for"
	case c.Format == inspect.GGUF:
		d.engine, d.why = functions.EngineLlamaCpp, "it reads GGUF"
	case ember == nil && d.wishes.gpus <= 0 && small:
		d.engine, d.why = functions.EngineEmber, "embedded, for small models on processors; others: --engine vllm"
	default:
		d.engine, d.why = functions.EngineVLLM, "it reads safetensors"
		if ember != nil && d.wishes.gpus <= 0 && d.machine.count == 0 {
			d.why += "; ember does not read these: " + oneLine(ember.Error())
		}
	}
	if c.Format == inspect.Safetensors && !c.HasTokenizer() {
		d.say("no tokenizer is beside the weights: copy the files of the model's own there")
	}
	if bytes.Contains(c.Config, []byte(`"auto_map"`)) && (d.engine == functions.EngineVLLM || d.engine == functions.EngineSGLang) {
		d.say("it names code of its own (auto_map in config.json): where " + string(d.engine) + " does not know " + oneLine(c.Architecture) +
			`, args: [--trust-remote-code] and files: ["*.py"] run it`)
	}
	return nil
}

// readsEmber returns why ember cannot serve a checkpoint in safetensors, nil if it can.
func readsEmber(c *inspect.Checkpoint) error {
	if _, err := llama.ParseConfig(c.Config); err != nil {
		return err
	}
	if t := c.TensorType; t != "BF16" && t != "F32" {
		return fmt.Errorf("most weights are of the type %s, not BF16 or F32", t)
	}
	raw, err := c.ReadFile("tokenizer.json")
	if err != nil {
		return err
	}
	if _, err := bpe.Parse(raw); err != nil {
		return fmt.Errorf("tokenizer.json: %w", err)
	}
	return nil
}

// planAdapters counts the adapters, which vLLM and ember serve.
func (d *draft) planAdapters() {
	if len(d.adapters) == 0 {
		return
	}
	if d.engine != functions.EngineVLLM && d.engine != functions.EngineEmber {
		d.remarks = append(d.remarks,
			fmt.Sprintf("left out: %s, which %s does not serve here", kit.CountOf(len(d.adapters), "adapter"), d.engine))
		d.adapters = nil
		return
	}
	for _, a := range d.adapters {
		d.model.Adapter = max(d.model.Adapter, a.Bytes)
	}
	d.model.Slots = min(len(d.adapters), 8) // as thaw gives to an engine whose args name none
}

// place decides on what the model runs.
func (d *draft) place(use sizing.Use) {
	w, here := d.wishes, d.machine
	if w.gpuMemory > 0 {
		here = machine{count: max(w.gpus, 8), memory: int64(w.gpuMemory), name: "GPU"}
	}
	switch {
	case d.engine == functions.EngineEmber || w.gpus == 0 || d.engine == functions.EngineLlamaCpp && here.count == 0 && w.gpus < 0:
		d.onProcessors(use)
		return
	case here.count == 0:
		use.GPUs = max(w.gpus, 1)
		d.fit = sizing.Fit{Use: use, Need: sizing.Of(&d.model, use), OK: true}
		text := fmt.Sprintf("no GPU is known on this machine: it needs %s", perGPU(d.fit))
		for n := use.GPUs * 2; n <= 8; n *= 2 {
			use.GPUs = n
			if d.model.Divides(n) {
				text += fmt.Sprintf(", or %s on each of %d", human(sizing.Of(&d.model, use).Total()), n)
			}
		}
		d.say(text)
		d.remarks = append(d.remarks, "--gpu-memory 80Gi plans for GPUs of that size, --gpus 0 for processors")
	default:
		use.GPUs = max(w.gpus, 0)
		d.fit = sizing.FitOn(&d.model, use, here.memory, here.count)
		d.verdict(here)
	}
	d.host = functions.Bytes(sizing.HostMemory(d.fit.Use))
}

// onProcessors plans for the host's memory.
func (d *draft) onProcessors(use sizing.Use) {
	use.GPUs = 0
	if (d.engine == functions.EngineVLLM || d.engine == functions.EngineSGLang) && !d.model.Quantized {
		// Processors without bfloat16 compute in 32 bits.
		d.model.Weights *= 2
		wide := make([]sizing.Layers, len(d.model.Cache))
		for i, l := range d.model.Cache {
			l.Token, l.State = 2*l.Token, 2*l.State
			wide[i] = l
		}
		d.model.Cache = wide
		d.notes = append(d.notes, "Counted with 32 bits, which processors without bfloat16 compute with.")
	}
	d.fit = sizing.Fit{Use: use, Need: sizing.Of(&d.model, use), OK: true}
	d.host = functions.Bytes(d.fit.Need.Total())
}

func (d *draft) say(text string) {
	d.remarks = append(d.remarks, text)
	d.notes = append(d.notes, strings.ToUpper(text[:1])+text[1:]+".")
}

func perGPU(f sizing.Fit) string {
	if f.Use.GPUs == 1 {
		return human(f.Need.Total()) + " on one GPU"
	}
	return fmt.Sprintf("%s on each of %d GPUs", human(f.Need.Total()), f.Use.GPUs)
}

// verdict tells whether the model fits on GPUs, and what would make it fit.
func (d *draft) verdict(here machine) {
	f := d.fit
	whose := "this machine's"
	if d.wishes.gpuMemory > 0 {
		whose = "such"
	}
	size := human(here.memory)
	if f.OK && f.Use.GPUs <= here.count {
		text := fmt.Sprintf("fits: %s, which have %s", perGPU(f), size)
		if f.Use.GPUs == 1 {
			text = fmt.Sprintf("fits: %s, which has %s", perGPU(f), size)
		}
		if most, _ := sizing.Shorter(&d.model, f.Use, here.memory); most > f.Use.Context && f.Use.Context < d.model.Context &&
			len(d.model.Cache) > 0 {
			text += fmt.Sprintf("; up to --context %d would", min(most, d.model.Context))
		}
		d.say(text)
		return
	}
	if f.OK {
		d.say(fmt.Sprintf("it needs %s, and here are %d", perGPU(f), here.count))
		return
	}
	text := fmt.Sprintf("does not fit: it needs %s, and %s have %s", perGPU(f), whose, size)
	var ways []string
	if n := f.Ways.GPUs; n > 0 {
		way := fmt.Sprintf("--gpus %d", n)
		if n > here.count && d.wishes.gpuMemory == 0 {
			way += fmt.Sprintf(" (here are %d)", here.count)
		}
		ways = append(ways, way)
	}
	if f.Ways.Context > 0 {
		way := fmt.Sprintf("--context %d", min(f.Ways.Context, f.Use.Context))
		if f.Ways.Requests < f.Use.Requests {
			way += fmt.Sprintf(" --concurrency %d", f.Ways.Requests)
		}
		ways = append(ways, way)
	}
	if f.Ways.Bits > 0 {
		ways = append(ways, fmt.Sprintf("a variant of it quantised to %d bits", f.Ways.Bits))
	}
	if len(ways) == 0 {
		ways = []string{"GPUs with more memory, or a smaller model"}
	}
	d.say(text + "; what would: " + strings.Join(ways, ", or "))
}

// engineArgs spells context and concurrency for the engine.
func (d *draft) engineArgs() {
	u := d.fit.Use
	n := strconv.Itoa(u.Context)
	shorter := u.Context < d.model.Context
	switch d.engine {
	case functions.EngineVLLM, functions.EngineEmber:
		if shorter {
			d.args = []string{"--max-model-len", n}
		}
	case functions.EngineSGLang:
		if shorter {
			d.args = []string{"--context-length", n}
		}
	case functions.EngineLlamaCpp:
		switch d.checkpoint.Kind {
		case inspect.Embeds:
			d.args = []string{"--embedding"}
		case inspect.Scores:
			d.args = []string{"--reranking"}
		}
		// The whole of the cache, which its slots divide between them.
		d.args = append(d.args, "--ctx-size", strconv.Itoa(u.Context*u.Requests), "--parallel", strconv.Itoa(u.Requests))
		if u.GPUs > 0 {
			d.args = append(d.args, "--n-gpu-layers", "999")
		}
	}
}

// sourceText is the source as the file names it: a folder by its path.
func (d *draft) sourceText() string { return strings.TrimPrefix(d.checkpoint.Location, "file://") }

func (d *draft) name() string {
	where := d.sourceText()
	if repo := snapshot.FindStringSubmatch(where); repo != nil {
		where = repo[1]
	}
	if d.checkpoint.Scheme == "hf" {
		where = revision.ReplaceAllString(where, "")
	}
	return cmp.Or(d.wishes.name, label(path.Base(where)))
}

// revision matches that of a source of the hub.
var revision = regexp.MustCompile(`@(refs/[^/]+/[^/]+|[^/]*)`)

// snapshot matches the folder of a revision in a cache of Hugging Face.
var snapshot = regexp.MustCompile(`/models--[^/]+--([^/]+)/snapshots/[^/]+$`)

func human(n int64) string { return functions.Bytes(n).Human() }
