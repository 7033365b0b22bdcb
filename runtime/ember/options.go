package ember

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Options of an engine. The zero value of a field is its default.
type Options struct {
	Model string // folder of the checkpoint; required
	// Names are the names of the model; the first one is used in answers. Default:
	// the folder's name.
	Names []string
	Host  string // default 127.0.0.1
	Port  int    // 0: any free one, printed

	MaxSeqs   int // sequences that run at once; default 16
	MaxLen    int // tokens of a sequence, prompt and answer; default and most: the model's
	MaxBatch  int // tokens of one pass; default 32, at least MaxSeqs
	MaxQueued int // requests that wait for a slot; default 1024, more get a 503
	Threads   int // default GOMAXPROCS

	// Copy reads the weights into memory, in the order of the files, instead of
	// mapping them: for files that are still arriving or are removed later.
	Copy bool
	// WeightsFrom is the server of the weight files, which the folder may lack:
	// unix:PATH of a socket on which GET /NAME answers with a whole file. They are
	// copied into memory as they arrive.
	WeightsFrom string

	// MaxAdapters is how many LoRA adapters may be loaded at once; 0 allows none.
	MaxAdapters int
	MaxRank     int // largest rank of an adapter; default 16

	ChatTemplate    string        // the family of an unknown chat template
	ShutdownTimeout time.Duration // time for running sequences after the context ends

	// Pauses for tests of slow models: before READY, and after each pass that
	// generated a token.
	ReadyDelay, TokenDelay time.Duration
	// BootDelay is a pause before the checkpoint is read, like an interpreter's.
	BootDelay time.Duration

	// NotifySocket receives progress and readiness (sd_notify): the path of a unix
	// datagram socket, or @name. Main reads it from NOTIFY_SOCKET.
	NotifySocket string

	// Key is the bearer token of every path but /health, /ping, /version and
	// /metrics; "" for none. Main reads it from EMBER_API_KEY, since every local
	// user can read a command line.
	Key string

	Log *slog.Logger // nil discards
	// Listening, if not nil, is called with the address of the open listener.
	Listening func(addr string)
}

func (o *Options) defaults() error {
	if o.Model == "" {
		return errors.New("no model: --model DIR is required")
	}
	o.Host = cmp.Or(o.Host, "127.0.0.1")
	for _, d := range []struct {
		name   string
		v      *int
		normal int
	}{
		{"--max-num-seqs", &o.MaxSeqs, 16}, {"--max-num-batched-tokens", &o.MaxBatch, 32},
		{"--max-num-queued-reqs", &o.MaxQueued, 1024}, {"--threads", &o.Threads, runtime.GOMAXPROCS(0)},
		{"--max-loras", &o.MaxAdapters, 0}, {"--max-lora-rank", &o.MaxRank, 16},
	} {
		if *d.v < 0 || *d.v > 1<<16 {
			return fmt.Errorf("%s %d: want 1 to 65536", d.name, *d.v)
		}
		*d.v = cmp.Or(*d.v, d.normal)
	}
	o.MaxBatch = max(o.MaxBatch, o.MaxSeqs)
	if o.MaxLen < 0 {
		return fmt.Errorf("--max-model-len %d is negative", o.MaxLen)
	}
	if o.WeightsFrom != "" && !strings.HasPrefix(o.WeightsFrom, unixScheme) {
		return fmt.Errorf("--weights-from %q: want unix:PATH", o.WeightsFrom)
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return nil
}

// parseOptions reads the command line. Flags have vLLM's names if vLLM has them.
func parseOptions(args []string, stderr io.Writer) (Options, error) {
	var o Options
	var names string
	var shutdown float64
	var lora bool
	f := flag.NewFlagSet("ember", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.Model, "model", "", "`folder` of the checkpoint (Hugging Face: config.json, tokenizer.json, *.safetensors)")
	f.StringVar(&names, "served-model-name", "", "`names` the model answers to, with commas between; default the folder's name")
	f.StringVar(&o.Host, "host", "127.0.0.1", "`address` to listen on")
	f.IntVar(&o.Port, "port", 8000, "`port` to listen on; 0 for any")
	f.IntVar(&o.MaxSeqs, "max-num-seqs", 16, "sequences that run at once; the rest waits")
	f.IntVar(&o.MaxLen, "max-model-len", 0, "tokens of one sequence, prompt and answer; default the model's")
	f.IntVar(&o.MaxBatch, "max-num-batched-tokens", 32, "tokens of one pass")
	f.IntVar(&o.MaxQueued, "max-num-queued-reqs", 1024, "requests that may wait; beyond them 503")
	f.IntVar(&o.Threads, "threads", 0, "threads that share a pass; default all processors")
	f.BoolVar(&o.Copy, "copy", false,
		"read the weights into memory instead of mapping them: for files that are still arriving, or that will not stay")
	f.StringVar(&o.WeightsFrom, "weights-from", "",
		"`server` of the files of weights, where they are not in the folder: unix: and the path of a socket; implies --copy")
	f.StringVar(&o.ChatTemplate, "chat-template", "",
		"`family` of the chat template, where the checkpoint's is unknown: plain, chatml, llama3, llama2, mistral")
	f.BoolVar(&lora, "enable-lora", false, "take LoRA adapters: /v1/load_lora_adapter and /v1/unload_lora_adapter")
	f.IntVar(&o.MaxAdapters, "max-loras", 1, "adapters that may be loaded at once, with --enable-lora")
	f.IntVar(&o.MaxRank, "max-lora-rank", 16, "largest rank of an adapter")
	f.Float64Var(&shutdown, "shutdown-timeout", 0, "`seconds` that running sequences may go on after SIGTERM")
	f.DurationVar(&o.BootDelay, "boot-delay", 0, "testing aid: wait so long before reading the checkpoint")
	f.DurationVar(&o.ReadyDelay, "ready-delay", 0, "testing aid: wait so long before being ready")
	f.DurationVar(&o.TokenDelay, "token-delay", 0, "testing aid: wait so long after each token")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.MaxAdapters < 1 {
		return o, fmt.Errorf("--max-loras %d: want 1 to 65536", o.MaxAdapters)
	}
	if !lora {
		o.MaxAdapters = 0
	}
	for n := range strings.SplitSeq(names, ",") {
		if n = strings.TrimSpace(n); n != "" {
			o.Names = append(o.Names, n)
		}
	}
	if shutdown < 0 || shutdown > 86400 {
		return o, fmt.Errorf("--shutdown-timeout %v: want 0 to 86400 seconds", shutdown)
	}
	o.ShutdownTimeout = time.Duration(shutdown * float64(time.Second))
	return o, nil
}

// Main is the engine's program: args are the flags, getenv reads the environment.
// It returns the exit code: 0 after SIGTERM or SIGINT, 1 when the model cannot be
// loaded or served (the last line on stderr is then "error: " and why), 2 for wrong
// flags.
func Main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	o.NotifySocket = getenv("NOTIFY_SOCKET")
	o.Key = getenv("EMBER_API_KEY")
	o.Log = slog.New(slog.NewTextHandler(stderr, nil))
	o.Listening = func(addr string) { fmt.Fprintln(stdout, "listening on http://"+addr) }
	if err := Run(ctx, o); err != nil {
		fmt.Fprintln(stderr, "error:", oneLine(err))
		return 1
	}
	return 0
}

// oneLine puts an error on one line: the platform shows the last line of the log.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
