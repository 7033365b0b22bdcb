package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/coldstart"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
)

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
	f := Flags("coldstart", aboutColdstart, stderr)
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
	if err := Parse(f, args); err != nil {
		return err
	}
	if *engine != "" {
		if *engine != "vllm" {
			return UsageError(stderr, "--engine: only vllm has more than one way to start")
		}
		if *rounds < 1 || *rounds > 1000 {
			return UsageError(stderr, "-n: 1 to 1000 rounds")
		}
		return runEngines(ctx, args, stdout, stderr, engineBench{
			vllm: *vllm, model: *model, thaw: *thaw, args: *engineArgs, env: *engineEnv, out: *out, rounds: *rounds, each: *each, memory: *memory,
			asJSON: *asJSON,
		})
	}
	name, err := functions.ParseName(*model, functions.DefaultTeam)
	if err != nil {
		return UsageError(stderr, "--model: %v", err)
	}
	if *rounds < 1 || *rounds > 10000 {
		return UsageError(stderr, "-n: 1 to 10000 rounds")
	}
	var was coldstart.Result
	if *baseline != "" { // fail before the benchmark, not after it
		if was, err = coldstart.Read(*baseline); err != nil {
			return err
		}
	}
	p, end, err := openPlatform(ctx, stderr, *server, *key, *data, *thaw, *functionsDir)
	if err != nil {
		return err
	}
	defer func() { end(err) }()
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
		Provenance: report.NewProvenance(coldstart.Kind, CommandLine("coldstart", args), time.Now()),
		Function:   name.String(), Phases: coldstart.Reduce(done), Rounds: done,
	}
	var regressions []coldstart.Regression
	if *baseline != "" {
		regressions = coldstart.Compare(was, r)
	}
	if err := r.Write(*out, regressions); err != nil {
		return err
	}
	if err := Show(stdout, *asJSON, r, r.Table()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "wrote %s\n", filepath.Join(*out, "coldstart.{json,html,svg}"))
	return regression(regressions)
}

// regression returns the error of a run slower than its baseline; nil if it is not.
func regression(regressions []coldstart.Regression) error {
	var errs []string
	for _, w := range regressions {
		errs = append(errs, w.String())
	}
	if len(errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(errs, "; "))
}

// openPlatform connects to the platform at server, or starts one. end ends a platform
// that it started and removes its folder after a success.
func openPlatform(ctx context.Context, stderr io.Writer, server, key, data, thaw, functionsDir string) (p *served.Platform, end func(error),
	err error) {
	if server != "" {
		if data != "" {
			if key, err = served.AdminToken(data); err != nil {
				return nil, nil, err
			}
		}
		p, err = served.At(server, key)
		return p, func(error) {}, err
	}
	exe, err := Program(thaw)
	if err != nil {
		return nil, nil, err
	}
	dir, done, err := Scratch(stderr)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(stderr, "a platform of the benchmark's own serves %s\n", functionsDir)
	if p, err = served.Start(ctx, served.Options{Exe: exe, Dir: dir, Functions: functionsDir}); err != nil {
		done(err)
		return nil, nil, err
	}
	return p, done, nil
}

// tinyArgs let vLLM serve a small model without a GPU.
const tinyArgs = "--dtype float32 --max-model-len 512 --enforce-eager --kv-cache-memory-bytes 33554432 --max-num-seqs 8"

// engineBench is the options of `thaw bench coldstart --engine vllm`.
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
	o := coldstart.EngineOptions{Rounds: b.rounds, Each: b.each, Memory: b.memory, Env: strings.Fields(b.env),
		Progress: func(s string) { fmt.Fprintln(stderr, s) }}
	if o.VLLM, err = exec.LookPath(b.vllm); err != nil {
		return UsageError(stderr, "--vllm: %v", err)
	}
	if o.VLLM, err = filepath.Abs(o.VLLM); err != nil {
		return err
	}
	if o.Model, err = filepath.Abs(b.model); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.Model, "config.json")); err != nil {
		return UsageError(stderr, "--model: want the folder of a checkpoint: %v", err)
	}
	if b.args == "" {
		b.args = tinyArgs
	}
	o.Args = strings.Fields(b.args)
	if o.Thaw, err = Program(b.thaw); err != nil {
		return err
	}
	dir, done, err := Scratch(stderr)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	o.Dir = dir
	r := coldstart.EngineResult{Provenance: report.NewProvenance(coldstart.EngineKind, CommandLine("coldstart", args), time.Now())}
	if r, err = coldstart.RunVLLM(ctx, o, r); err != nil {
		return err
	}
	if err := r.Write(b.out); err != nil {
		return err
	}
	if b.asJSON {
		return Show(stdout, true, r)
	}
	for _, t := range []*report.Table{r.Table(), r.Judged(), r.Parts(coldstart.WithForkServer)} {
		if err := t.Text(stdout); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
	}
	fmt.Fprintf(stderr, "wrote %s\n", filepath.Join(b.out, "coldstart-vllm.{json,md}"))
	return nil
}
