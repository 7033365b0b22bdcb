package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/coldstart"
	"github.com/thaw-dev/thaw/bench/fake"
	"github.com/thaw-dev/thaw/bench/gateway"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
)

// Exit codes are those of every verb.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

const usage = `Measures thaw from outside and writes what it found.

Examples:
  thaw bench coldstart --model tiny -n 20
  thaw bench coldstart --model tiny -n 20 --baseline bench/results/coldstart.json
  thaw bench gateway --out bench/results
  thaw bench gateway --quick --only cpu
  thaw bench loader --out bench/results
  thaw bench schedule --out bench/results

Benches:
  coldstart   from zero replicas to the first token, phase by phase
  gateway     CPU, memory and latency of the data path beside nginx and others
  loader      bytes from a blob store to the disk beside azblob, curl and aria2c
  schedule    who gets the GPUs: cold shares, decisions, fairness, the simulator

  thaw bench BENCH --help says more.
`

// verb is one bench, or a program that a bench starts as its own child.
type verb struct {
	run    func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	hidden bool
}

var verbs = map[string]verb{
	"coldstart": {run: runColdstart},
	"gateway":   {run: runGateway},
	"loader":    {run: runLoader},
	"schedule":  {run: runSchedule},
	"blobs":     {run: runBlobs, hidden: true},
	"ceilings":  {run: runCeilings, hidden: true},
	"download":  {run: runDownload, hidden: true},
	"engine":    {run: runEngine, hidden: true},
	"proxy":     {run: runProxy, hidden: true},
}

// errUsage is a mistake in the command line; flag has said what it is.
var errUsage = errors.New("usage")

// Main runs `thaw bench ARGS…` and returns the exit code. Results go to stdout,
// everything else to stderr.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		to, code := stdout, exitOK
		if len(args) == 0 {
			to, code = stderr, exitUsage
		}
		fmt.Fprint(to, usage)
		return code
	}
	v, ok := verbs[args[0]]
	if !ok {
		var names []string
		for n, v := range verbs {
			if !v.hidden {
				names = append(names, n)
			}
		}
		fmt.Fprintf(stderr, "error: there is no bench %q\n", args[0])
		if near := functions.Nearest(args[0], names, 1); len(near) > 0 {
			fmt.Fprintf(stderr, "hint: did you mean %s?\n", near[0])
		}
		return exitUsage
	}
	err := v.run(ctx, args[1:], stdout, stderr)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		return exitUsage
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "interrupted")
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	return exitFailure
}

// flags makes a set whose help begins with what it does and examples.
func flags(name, about string, stderr io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("thaw bench "+name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintf(stderr, "%s\nFlags:\n", about)
		f.PrintDefaults()
	}
	return f
}

func parse(f *flag.FlagSet, args []string) error {
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("%s takes no argument %q", f.Name(), f.Arg(0))
		fmt.Fprintln(f.Output(), "error:", err)
	}
	if err != nil {
		return errUsage
	}
	return nil
}

func usageError(stderr io.Writer, format string, a ...any) error {
	fmt.Fprintf(stderr, "error: "+format+"\n", a...)
	return errUsage
}

// scratch is a folder for data and logs; done removes it when the bench went
// well and says where it is when not.
func scratch(stderr io.Writer) (dir string, done func(error), err error) {
	return scratchIn("", stderr)
}

// scratchIn is scratch in a folder that matters; "" is the system's.
func scratchIn(where string, stderr io.Writer) (dir string, done func(error), err error) {
	dir, err = os.MkdirTemp(where, "thaw-bench-")
	return dir, func(err error) {
		if err == nil {
			os.RemoveAll(dir)
			return
		}
		fmt.Fprintf(stderr, "logs and data are kept in %s\n", dir)
	}, err
}

// program is the path of the thaw to measure: the one named, or this one.
func program(named string) (string, error) {
	if named == "" {
		return os.Executable()
	}
	return filepath.Abs(named)
}

const aboutColdstart = `Brings a function to zero replicas and wakes it by a streamed chat, many times.
Writes coldstart.json, coldstart.html and coldstart.svg.

With --engine vllm it measures, round by round in one run: vllm serve by hand,
thaw without and with its warm interpreter, and what is left of that without
thaw; and the memory of three engines. Writes coldstart-vllm.json and .md.

Without --server a platform of its own is started for the time of the bench.
With --baseline it exits with 1 and names the phase that got worse: its median
grew by more than 20 % and 5 ms, and three rounds of four are above the old one.

Examples:
  thaw bench coldstart --model tiny -n 20
  thaw bench coldstart --model tiny -n 50 --baseline bench/results/coldstart.json
  thaw bench coldstart --model llama --server http://127.0.0.1:8080 --key "$THAW_KEY"
  thaw bench coldstart --engine vllm --vllm ./venv/bin/vllm --model ./tiny -n 10 --out bench/results
`

func runColdstart(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := flags("coldstart", aboutColdstart, stderr)
	model := f.String("model", "tiny", "function to wake: NAME or TEAM/NAME")
	rounds := f.Int("n", 20, "rounds")
	server := f.String("server", os.Getenv("THAW_SERVER"), "address of a running platform (or THAW_SERVER)")
	key := f.String("key", os.Getenv("THAW_KEY"), "admin token or admin's key of that platform (or THAW_KEY)")
	data := f.String("data", "", "read the admin token from this data folder instead")
	functionsDir := f.String("functions", filepath.Join("functions", "shipped"), "model files, when the platform is the bench's own")
	thaw := f.String("thaw", "", "program to measure, when the platform is the bench's own (this one)")
	baseline := f.String("baseline", "", "earlier coldstart.json to compare with")
	out := f.String("out", "bench-results", "folder for the report")
	each := f.Duration("each", 10*time.Minute, "bound of one round")
	asJSON := f.Bool("json", false, "print the result as JSON instead of a table")
	engine := f.String("engine", "", "vllm: measure its ways to start beside each other; --model is a checkpoint's folder then")
	vllm := f.String("vllm", os.Getenv("THAW_ENGINE_VLLM"), "the vllm program, with --engine vllm (or THAW_ENGINE_VLLM, or on PATH)")
	engineArgs := f.String("engine-args", "", "arguments of the engine, separated by spaces (those of a tiny model without a GPU)")
	engineEnv := f.String("engine-env", "TORCHDYNAMO_DISABLE=1", "K=V of the engine's environment, separated by spaces")
	memory := f.Bool("memory", true, "with --engine: also the memory of three engines from one parent and of three plain ones")
	if err := parse(f, args); err != nil {
		return err
	}
	if *engine != "" {
		if *engine != "vllm" {
			return usageError(stderr, "--engine: only vllm has more than one way to start")
		}
		if *rounds < 1 || *rounds > 1000 {
			return usageError(stderr, "-n: 1 to 1000 rounds")
		}
		return runEngines(ctx, args, stdout, stderr, engineBench{
			vllm: *vllm, model: *model, thaw: *thaw, args: *engineArgs, env: *engineEnv, out: *out, rounds: *rounds, each: *each, memory: *memory, asJSON: *asJSON,
		})
	}
	name, err := functions.ParseName(*model, functions.DefaultTeam)
	if err != nil {
		return usageError(stderr, "--model: %v", err)
	}
	if *rounds < 1 || *rounds > 10000 {
		return usageError(stderr, "-n: 1 to 10000 rounds")
	}
	var was coldstart.Result
	if *baseline != "" { // before the work, not after
		if was, err = coldstart.Read(*baseline); err != nil {
			return err
		}
	}
	var p *served.Platform
	if *server != "" {
		token := *key
		if *data != "" {
			if token, err = served.AdminToken(*data); err != nil {
				return err
			}
		}
		p, err = served.At(*server, token)
	} else {
		var dir, exe string
		var done func(error)
		if exe, err = program(*thaw); err != nil {
			return err
		}
		if dir, done, err = scratch(stderr); err != nil {
			return err
		}
		defer func() { done(err) }()
		fmt.Fprintf(stderr, "a platform of the bench's own serves %s\n", *functionsDir)
		p, err = served.Start(ctx, served.Options{Exe: exe, Dir: dir, Functions: *functionsDir})
	}
	if err != nil {
		return err
	}
	defer p.End()
	done, err := coldstart.Run(ctx, p, coldstart.Options{
		Function: name, Rounds: *rounds, Each: *each,
		Progress: func(i, of int, r coldstart.Round) {
			fmt.Fprintf(stderr, "round %d of %d: first token after %s\n", i, of, report.Millis(r.FirstToken))
		},
	})
	if err != nil {
		return err
	}
	r := coldstart.Result{
		Provenance: report.Made(coldstart.Kind, shown("coldstart", args), time.Now()),
		Function:   name.String(), Phases: coldstart.Reduce(done), Rounds: done,
	}
	var worse []coldstart.Worse
	if *baseline != "" {
		worse = coldstart.Compare(was, r)
	}
	if err := r.Write(*out, worse); err != nil {
		return err
	}
	if err := show(stdout, *asJSON, r, r.Table()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "wrote %s\n", filepath.Join(*out, "coldstart.{json,html,svg}"))
	if len(worse) > 0 {
		var lines []string
		for _, w := range worse {
			lines = append(lines, w.String())
		}
		return errors.New(strings.Join(lines, "; "))
	}
	return nil
}

// tinyArgs serve a small model where there is no GPU.
const tinyArgs = "--dtype float32 --max-model-len 512 --enforce-eager --kv-cache-memory-bytes 33554432 --max-num-seqs 8"

// engineBench is what `thaw bench coldstart --engine vllm` was told.
type engineBench struct {
	vllm, model, thaw, args, env, out string
	rounds                            int
	each                              time.Duration
	memory, asJSON                    bool
}

func runEngines(ctx context.Context, args []string, stdout, stderr io.Writer, b engineBench) (err error) {
	if b.vllm == "" {
		b.vllm = "vllm"
	}
	o := coldstart.EngineOptions{Rounds: b.rounds, Each: b.each, Memory: b.memory, Env: strings.Fields(b.env), Say: func(s string) { fmt.Fprintln(stderr, s) }}
	if o.VLLM, err = exec.LookPath(b.vllm); err != nil {
		return usageError(stderr, "--vllm: %v", err)
	}
	if o.VLLM, err = filepath.Abs(o.VLLM); err != nil {
		return err
	}
	if o.Model, err = filepath.Abs(b.model); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.Model, "config.json")); err != nil {
		return usageError(stderr, "--model: want the folder of a checkpoint: %v", err)
	}
	if b.args == "" {
		b.args = tinyArgs
	}
	o.Args = strings.Fields(b.args)
	if o.Thaw, err = program(b.thaw); err != nil {
		return err
	}
	dir, done, err := scratch(stderr)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	o.Dir = dir
	r := coldstart.EngineResult{Provenance: report.Made(coldstart.EngineKind, shown("coldstart", args), time.Now())}
	if r, err = coldstart.RunVLLM(ctx, o, r); err != nil {
		return err
	}
	if err := r.Write(b.out); err != nil {
		return err
	}
	if b.asJSON {
		return show(stdout, true, r)
	}
	for _, t := range []*report.Table{r.Table(), r.Judged(), r.Parts(coldstart.Warm)} {
		if err := t.Text(stdout); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
	}
	fmt.Fprintf(stderr, "wrote %s\n", filepath.Join(b.out, "coldstart-vllm.{json,md}"))
	return nil
}

// shown is the command line for the report, without secrets.
func shown(verb string, args []string) []string {
	out := []string{verb}
	for i := 0; i < len(args); i++ {
		name, _, inline := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if strings.HasPrefix(args[i], "-") && name == "key" {
			out = append(out, "--key", "…")
			if !inline {
				i++
			}
			continue
		}
		out = append(out, args[i])
	}
	return out
}

const aboutGateway = `Measures what a request through thaw costs, beside nginx, a plain ReverseProxy
and vllm-router (those that are found), in front of an engine that answers at
once. Writes gateway.json and gateway.md. Needs Linux for processor time and
memory.

Parts (--only): cpu      processor time of each gateway for plain answers and streams
                held     memory of each of 10,000 held requests
                release  from the engine's readiness to the first held byte, and
                         what a local 0→1 adds to the engine's own start
                waiters  the last of 1,000 requests waiting for one wake

Examples:
  thaw bench gateway --out bench/results
  thaw bench gateway --quick --only cpu
  thaw bench gateway --vllm-router ./venv/bin/vllm-router
`

// counts of a whole bench, and of one that only shows that everything works.
var (
	wholeBench = gateway.Options{Rounds: 5, JSON: 20000, SSE: 5000, Paced: 1024, Held: 10000, Wakes: 100, Waiters: 1000, Turns: 5}
	quickBench = gateway.Options{Rounds: 1, JSON: 300, SSE: 100, Paced: 32, Held: 200, Wakes: 3, Waiters: 50, Turns: 1}
)

func runGateway(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := flags("gateway", aboutGateway, stderr)
	quick := f.Bool("quick", false, "few of everything: shows that it works, its numbers mean nothing")
	only := f.String("only", "cpu,held,release,waiters", "parts to run")
	rounds := f.Int("rounds", 0, "rounds of each load on each gateway (5)")
	nginx := f.String("nginx", "", "nginx to measure (found on PATH)")
	router := f.String("vllm-router", "", "vllm-router to measure (found on PATH)")
	thaw := f.String("thaw", "", "thaw to measure (this program)")
	told := reportFlags(f)
	if err := parse(f, args); err != nil {
		return err
	}
	o := wholeBench
	if *quick {
		o = quickBench
	}
	if *rounds > 0 {
		o.Rounds = *rounds
	}
	parts := map[string]bool{}
	for _, part := range strings.Split(*only, ",") {
		switch part = strings.TrimSpace(part); part {
		case "cpu", "held", "release", "waiters":
			parts[part] = true
		default:
			return usageError(stderr, "--only: there is no part %q", part)
		}
	}
	if !parts["cpu"] {
		o.Rounds = 0
	}
	if !parts["held"] {
		o.Held = 0
	}
	if !parts["release"] {
		o.Wakes = 0
	}
	if !parts["waiters"] {
		o.Waiters = 0
	}
	if o.Self, err = program(*thaw); err != nil {
		return err
	}
	dir, done, err := scratch(stderr)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	o.Dir, o.Nginx, o.Router = dir, *nginx, *router
	o.Say = func(s string) { fmt.Fprintln(stderr, s) }
	r := gateway.Result{Provenance: report.Made(gateway.Kind, shown("gateway", args), time.Now())}
	if r, err = gateway.Run(ctx, o, r); err != nil {
		return err
	}
	return told.tell("gateway", r, r.Goals, stdout, stderr)
}

func runEngine(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := flags("engine", "An engine that generates nothing (for the benches).\n", stderr)
	addr := f.String("addr", "127.0.0.1:8000", "address to listen on")
	ready := f.String("ready-file", "", "say that it is loading until this file exists")
	if err := parse(f, args); err != nil {
		return err
	}
	e := fake.New(fake.Options{ReadyFile: *ready})
	ln, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	return e.Serve(ctx, ln)
}

func runProxy(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := flags("proxy", "A plain ReverseProxy (for the benches).\n", stderr)
	addr := f.String("addr", "127.0.0.1:8001", "address to listen on")
	to := f.String("to", "127.0.0.1:8000", "host:port of the engine")
	if err := parse(f, args); err != nil {
		return err
	}
	if err := gateway.Proxy(ctx, *addr, *to); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
