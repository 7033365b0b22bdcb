// Package initverb implements the verb thaw init: from a model's configuration and headers at its
// source it works out engine, GPUs, memory and context, and prints a model file to deploy.
package initverb

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/inspect"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

const readTimeout = 2 * time.Minute

// Options is what the verb uses of the program.
type Options struct {
	*kit.Terminal
	// Sources opens the sources by scheme; end closes their connections.
	Sources func() (all map[string]loader.Source, end func())
	// GPUs lists those of this machine; nil: not known.
	GPUs func() (gpus []functions.GPU, driver string, err error)
	// Folder is what a relative path counts from.
	Folder func() (string, error)
}

// wishes are the flags.
type wishes struct {
	name, engine         string
	context, concurrency int
	gpus                 int // -1: chosen
	gpuMemory            functions.Bytes
	adapters             []string
}

func New(o Options) *kit.Command {
	var w wishes
	var gpus kit.Count
	cmd := &kit.Command{
		Use: "init SOURCE", Short: "Print a model file worked out from a checkpoint", GroupID: "own", Args: kit.ExactArgs("a source"),
		Long: `Print a model file that is worked out from what a checkpoint says of itself: its
engine, context, adapters, and how much memory it takes (weights, KV cache of
--concurrency requests of --context tokens, and the engine's own), with the
arithmetic as comments. Read are the listing, config.json, the index of shards and
one header (of GGUF the metadata), for ember the tokenizer; no weights are downloaded.

SOURCE is spelled as in a model file: a folder, az://…, s3://…, gs://…,
hf://ORG/REPO[@REV] or https://…. A folder is printed with its whole path, so the
file may be put anywhere on this machine.

GPUs are those of this machine, unless --gpus or --gpu-memory name others. Where
the model does not fit on them, the file is printed all the same, and what would
make it fit is told: more GPUs, a shorter context, a quantised variant.`,
		Example: `  thaw init ./my-model > model.yaml; thaw deploy -f model.yaml
  thaw init hf://Qwen/Qwen3-8B --context 32768 --concurrency 16
  thaw init az://acct/models/llama-70b --gpu-memory 80Gi
  thaw init hf://ORG/MODEL-GGUF --gpus 0
  thaw init hf://ORG/BASE --adapter pirate=hf://ORG/PIRATE-LORA`,
		RunE: func(cmd *kit.Command, args []string) error {
			w.gpus = int(gpus)
			return o.run(cmd.Context(), args[0], w)
		},
	}
	f := cmd.Flags()
	f.StringVar(&w.name, "name", "", "name of the model (default: of the source's last part)")
	f.StringVar(&w.engine, "engine", "", "engine: vllm, sglang, llamacpp or ember (default: by the checkpoint)")
	f.IntVar(&w.context, "context", 0, "tokens of a request, prompt and answer (default: what the model takes, at most 8192)")
	f.IntVar(&w.concurrency, "concurrency", functions.Defaults().Scale.Target, "requests that a replica serves at once")
	f.TextVar(&gpus, "gpus", kit.Count(-1),
		"GPUs that share the model: auto, the fewest that hold it, or a `number`; 0 is processors only")
	f.TextVar(&w.gpuMemory, "gpu-memory", functions.Bytes(0), "memory of one GPU, where other GPUs than this machine's are meant")
	f.StringArrayVar(&w.adapters, "adapter", nil, "NAME=SOURCE of a LoRA adapter; may be repeated")
	return cmd
}

func (o Options) run(ctx context.Context, src string, w wishes) error {
	if err := w.check(); err != nil {
		return err
	}
	folder, err := o.Folder()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	sources, end := o.Sources()
	defer end()
	read := inspect.Options{Sources: sources, Folder: folder}
	switch functions.Engine(w.engine) {
	case functions.EngineLlamaCpp:
		read.Format = inspect.GGUF
	case functions.EngineVLLM, functions.EngineSGLang, functions.EngineEmber:
		read.Format = inspect.Safetensors
	}
	c, err := inspect.Read(ctx, src, read)
	if err != nil {
		return withHint(err, src)
	}
	d := draft{wishes: w, checkpoint: c, machine: o.machine()}
	if err := d.readAdapters(ctx, read); err != nil {
		return withHint(err, src)
	}
	if err := d.plan(); err != nil {
		return err
	}
	text := d.file()
	if _, err := catalog.Decode("model.yaml", []byte(text)); err != nil {
		return fmt.Errorf("the model file that was worked out is not valid: %w", err)
	}
	if _, err := fmt.Fprint(o.Out, text); err != nil {
		return err
	}
	for _, r := range d.remarks {
		o.Remark("%s", r)
	}
	return nil
}

func (w *wishes) check() error {
	engines := []functions.Engine{functions.EngineVLLM, functions.EngineSGLang, functions.EngineLlamaCpp, functions.EngineEmber}
	switch {
	case w.engine == string(functions.EngineCommand):
		return kit.Usage("thaw check --schema shows its keys", "a command is your own, so nothing can be worked out for it")
	case w.engine != "" && !slices.Contains(engines, functions.Engine(w.engine)):
		return kit.Usage(kit.DidYouMean(w.engine, []string{"vllm", "sglang", "llamacpp", "ember"}, 1, "vllm, sglang, llamacpp or ember"),
			"%q is no engine that init knows", functions.Clip(w.engine))
	case w.name != "" && !functions.IsLabel(w.name):
		return kit.Usage("1 to 63 lower-case letters, digits and '-'", "--name %q is no DNS label", functions.Clip(w.name))
	case w.context < 0 || w.context > 1<<30:
		return kit.Usage("such as 8192", "--context: %d tokens", w.context)
	case w.concurrency < 1 || w.concurrency > 1<<16:
		return kit.Usage("1 or more", "--concurrency: %d requests", w.concurrency)
	case w.gpus > 1024:
		return kit.Usage("1024 at most", "--gpus: %d", w.gpus)
	case w.gpus == 0 && w.gpuMemory > 0:
		return kit.Usage("leave one out", "--gpu-memory is of a GPU, and --gpus 0 means none")
	}
	for _, a := range w.adapters {
		if name, src, ok := strings.Cut(a, "="); !ok || src == "" || !functions.IsLabel(name) {
			return kit.Usage("--adapter pirate=./pirate", "--adapter %q is no NAME=SOURCE", functions.Clip(a))
		}
	}
	return nil
}

// withHint adds an exit code to an error about a source, and a hint where the word looks like
// a repository.
func withHint(err error, src string) error {
	e, ok := errors.AsType[*source.Error](err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return &kit.Error{Exit: kit.ExitTimeout, What: "the source did not answer within " + kit.Span(readTimeout),
				Hint: "try again; thaw doctor looks at this machine"}
		}
		return err
	}
	out := &kit.Error{Exit: kit.ExitFailed, Err: err}
	switch e.Kind {
	case source.BadSource:
		out.Exit = kit.ExitUsage
	case source.NotFound:
		out.Exit = kit.ExitNotFound
		if strings.Count(src, "/") == 1 && !strings.Contains(src, "://") && !strings.HasPrefix(src, ".") && !strings.HasPrefix(src, "/") {
			out.Hint = "did you mean hf://" + functions.Clip(src) + "?"
		}
	case source.Denied:
		out.Exit = kit.ExitDenied
	case source.Unavailable:
		out.Exit = kit.ExitUnavailable
		if e.Fix == "" {
			out.Hint = "the server has a problem, or asks for fewer requests: try again later"
		}
	}
	return out
}

// machine is the GPUs that a model is planned for.
type machine struct {
	count  int
	memory int64 // of the smallest
	name   string
}

func (o Options) machine() machine {
	if o.GPUs == nil {
		return machine{}
	}
	gpus, _, err := o.GPUs()
	if err != nil {
		return machine{}
	}
	var m machine
	for _, g := range gpus {
		if m.count++; m.memory == 0 || int64(g.MemoryTotal) < m.memory {
			m.memory, m.name = int64(g.MemoryTotal), g.Name
		}
	}
	return m
}

func (d *draft) readAdapters(ctx context.Context, read inspect.Options) error {
	for _, a := range d.checkpoint.Adapters {
		d.adapters = append(d.adapters, adapter{d.freeName(label(path.Base(a.Folder))), d.sourceText() + "/" + a.Folder, a})
	}
	for _, w := range d.wishes.adapters {
		name, src, _ := strings.Cut(w, "=")
		a, location, err := inspect.ReadAdapter(ctx, src, read)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(d.adapters, func(a adapter) bool { return a.name == name }) {
			return kit.Usage("take another NAME", "there are two adapters %q", name)
		}
		d.adapters = append(d.adapters, adapter{name, strings.TrimPrefix(location, "file://"), a})
	}
	return nil
}

// freeName returns a name that no adapter has yet.
func (d *draft) freeName(name string) string {
	for i, try := 2, name; ; i++ {
		if !slices.ContainsFunc(d.adapters, func(a adapter) bool { return a.name == try }) {
			return try
		}
		try = fmt.Sprintf("%.58s-%d", name, i)
	}
}

// noLabel matches what a DNS label has not, or only as "-".
var noLabel = regexp.MustCompile("[^a-z0-9]+")

// label makes a DNS label of the last part of a source.
func label(word string) string {
	s := strings.Trim(noLabel.ReplaceAllString(strings.ToLower(word), "-"), "-")
	s = strings.Trim(s[:min(len(s), 63)], "-")
	if s == "" || s == functions.AutoRouter {
		return "model"
	}
	return s
}
