package coldstart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench/load"
	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// Ways to start an engine that are compared.
const (
	HandStarted       = "vllm serve by hand"
	WithoutForkServer = "thaw, --warm off"
	WithForkServer    = "thaw, warm interpreter"
	Forked            = "fork alone, without thaw"
)

// EngineOptions are the options of RunVLLM.
type EngineOptions struct {
	Thaw     string   // the program to measure
	VLLM     string   // the engine's command
	Model    string   // folder of the checkpoint
	Args     []string // of the engine
	Env      []string // of the engine, K=V
	Rounds   int
	Memory   bool          // also measure the memory of three engines
	Each     time.Duration // timeout of one start
	Dir      string        // for data and logs
	Progress func(string)
}

// Take is one start: seconds from the request to the first text, and the CPU seconds of
// all processes.
type Take struct {
	Method     string              `json:"way"`
	FirstToken float64             `json:"first_token"`
	CPU        float64             `json:"cpu"`
	Start      string              `json:"start,omitempty"` // kind of start as thaw reports it
	Note       string              `json:"note,omitempty"`
	Timeline   *functions.Timeline `json:"timeline,omitempty"`
}

// Method is all starts of one way.
type Method struct {
	Method     string         `json:"way"`
	FirstToken report.Summary `json:"first_token"`
	CPU        report.Summary `json:"cpu"`
	Ratio      float64        `json:"ratio"`     // of the medians, to the manual start
	CPURatio   float64        `json:"cpu_ratio"` // of the medians, to the manual start
}

// Shared is the memory of three engines in bytes: their private memory and their share
// of the shared memory (PSS).
type Shared struct {
	Plain  int64   `json:"plain"`
	Warm   int64   `json:"warm"`   // engines and their fork server
	Parent int64   `json:"parent"` // the fork server alone, before it has forked
	Ratio  float64 `json:"ratio"`
}

// EngineResult is the JSON document of `thaw bench coldstart --engine vllm`.
type EngineResult struct {
	report.Provenance
	Version string         `json:"version"` // of the engine
	Imports float64        `json:"import_seconds"`
	Methods []Method       `json:"ways"`
	Adds    report.Summary `json:"thaw_adds"` // seconds: a warm start through thaw minus the plain fork of the same round
	Memory  *Shared        `json:"memory,omitempty"`
	Goals   report.Goals   `json:"goals"`
	Takes   []Take         `json:"takes"`
}

// EngineKind is the kind of the document.
const EngineKind = "EngineColdStartBench"

const served3 = 3 // number of engines whose memory is compared

// The overhead of thaw is a small difference of two starts: it is judged only from
// enough rounds, and only if three quarters of them lie this close together.
const (
	minRounds    = 3
	noisySeconds = 0.250
)

// programs is the programs that the ways need, started once.
type programs struct {
	o                EngineOptions
	noFork, warmFork *served.Platform
	supervisor       *supervisor.Client
	socket           string // of the benchmark's own fork server
	facts            forkserver.Facts
	n                int
}

// RunVLLM measures every way once per round.
func RunVLLM(ctx context.Context, o EngineOptions, r EngineResult) (EngineResult, error) {
	g := &programs{o: o}
	defer g.end()
	if err := g.begin(ctx); err != nil {
		return r, err
	}
	r.Version, r.Imports = g.facts.Version, g.facts.Imports
	methods := []struct {
		name string
		run  func(context.Context) (Take, error)
	}{
		{HandStarted, g.byHand},
		{WithoutForkServer, func(ctx context.Context) (Take, error) { return g.through(ctx, g.noFork) }},
		{WithForkServer, func(ctx context.Context) (Take, error) { return g.through(ctx, g.warmFork) }},
		{Forked, g.forked},
	}
	for i := range o.Rounds {
		// Rotate the order, so that no way always runs after the same other.
		for j := range methods {
			w := methods[(i+j)%len(methods)]
			wctx, cancel := context.WithTimeoutCause(ctx, o.Each, fmt.Errorf("not over within %s", o.Each))
			take, err := w.run(wctx)
			cancel()
			if err != nil {
				return r, fmt.Errorf("round %d, %s: %w", i+1, w.name, err)
			}
			take.Method = w.name
			r.Takes = append(r.Takes, take)
			o.Progress(fmt.Sprintf("round %d of %d: %s: first token after %.2f s, %.2f s of processor %s", i+1, o.Rounds, w.name, take.FirstToken,
				take.CPU, take.Start))
		}
	}
	if o.Memory {
		m, err := g.memory(ctx)
		if err != nil {
			return r, fmt.Errorf("memory: %w", err)
		}
		r.Memory = &m
	}
	r.reduce()
	return r, nil
}

// begin starts two platforms, without and with --warm, a supervisor and a fork server.
func (p *programs) begin(ctx context.Context) error {
	models := filepath.Join(p.o.Dir, "models")
	if err := os.MkdirAll(models, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(models, "bench.yaml"), []byte(p.modelFile()), 0o600); err != nil {
		return err
	}
	start := func(mode string) (*served.Platform, error) {
		dir := filepath.Join(p.o.Dir, mode)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		return served.Start(ctx, served.Options{
			Exe: p.o.Thaw, Dir: dir, Functions: models, Args: []string{"--warm", mode, "--gpus", "0"}, Env: []string{"THAW_ENGINE_VLLM=" + p.o.VLLM},
		})
	}
	var err error
	if p.noFork, err = start("off"); err != nil {
		return err
	}
	if p.warmFork, err = start("on"); err != nil {
		return err
	}
	dir := filepath.Join(p.o.Dir, "supervisor")
	kctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if p.supervisor, err = supervisor.Ensure(kctx,
		supervisor.Start{Exe: p.o.Thaw, Socket: filepath.Join(dir, "supervisor.sock"), Dir: dir}); err != nil {
		return err
	}
	env, err := forkserver.FindEnvironment(p.o.VLLM)
	if err != nil {
		return err
	}
	script, err := forkserver.InstallScript(dir)
	if err != nil {
		return err
	}
	cmd, _, err := p.command()
	if err != nil {
		return err
	}
	p.socket = filepath.Join(dir, "warm.sock")
	parent, err := p.supervisor.Spawn(ctx, supervisor.Process{
		ID: "warm", Argv: env.ParentArgv(script, p.socket, forkserver.ImportList("vllm")),
		Env: forkserver.ParentEnviron(engine.Environ(cmd.Env)),
	})
	if err != nil {
		return err
	}
	p.o.Progress("two platforms and a warm interpreter are starting")
	return p.until(ctx, func() (bool, error) {
		select {
		case e := <-parent.Exited:
			return false, fmt.Errorf("the warm interpreter ended: %v: %s", e, e.Tail)
		default:
		}
		if p.facts.PID == 0 {
			if f, err := forkserver.AskFacts(ctx, p.socket); err == nil {
				p.facts = f
			}
		}
		ready, err := p.warmFork.HasWarm(ctx)
		return err == nil && ready && p.facts.PID != 0, nil
	})
}

func (p *programs) modelFile() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: Model\nmetadata: {name: bench}\nspec:\n  source: %q\n  engine: vllm\n  args:\n",
		functions.APIVersion, "file://"+p.o.Model)
	for _, a := range p.o.Args {
		fmt.Fprintf(&b, "    - %q\n", a)
	}
	if len(p.o.Env) > 0 {
		b.WriteString("  env:\n")
	}
	for _, kv := range p.o.Env {
		k, v, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&b, "    %s: %q\n", k, v)
	}
	return b.String()
}

func (p *programs) end() {
	for _, platform := range []*served.Platform{p.noFork, p.warmFork} {
		if platform != nil {
			platform.End()
		}
	}
	if p.supervisor != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		p.supervisor.End(ctx, time.Second)
	}
}

func (p *programs) until(ctx context.Context, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.o.Each, fmt.Errorf("not within %s", p.o.Each))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// command returns the command thaw would run, for the ways that bypass thaw.
func (p *programs) command() (engine.Command, string, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return engine.Command{}, "", err
	}
	_, port, _ := net.SplitHostPort(addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		return engine.Command{}, "", err
	}
	env := map[string]string{}
	for _, kv := range p.o.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	have := append(os.Environ(), "THAW_ENGINE_VLLM="+p.o.VLLM)
	cmd, err := engine.Programs{Environ: func() []string { return have }}.Prepare(engine.Request{
		Spec: functions.ModelSpec{Engine: functions.EngineVLLM, Args: p.o.Args, Env: env}, Name: "bench", Path: p.o.Model, Port: n,
		Key: engine.NewKey(),
	})
	return cmd, addr, err
}

// byHand runs `vllm serve` as a user would.
func (p *programs) byHand(ctx context.Context) (Take, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return Take{}, err
	}
	_, port, _ := net.SplitHostPort(addr)
	p.n++
	began := time.Now()
	proc, err := process.Begin("hand-"+strconv.Itoa(p.n), p.o.Dir, append([]string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"}, p.o.Env...),
		append([]string{p.o.VLLM, "serve", p.o.Model, "--served-model-name", "bench", "--host", "127.0.0.1", "--port", port}, p.o.Args...)...)
	if err != nil {
		return Take{}, err
	}
	defer proc.End(0)
	first, err := firstToken(ctx, addr, "", func() error {
		select {
		case <-proc.Exited():
			return fmt.Errorf("vllm ended: %s", proc.Tail())
		default:
			return nil
		}
	})
	if err != nil {
		return Take{}, err
	}
	return Take{FirstToken: first.Sub(began).Seconds(), CPU: processorSeconds(proc.PID)}, nil
}

// forked starts an engine from the fork server and sends it the request directly.
func (p *programs) forked(ctx context.Context) (Take, error) {
	c, cmd, addr, err := p.spawn(ctx, p.socket)
	if err != nil {
		return Take{}, err
	}
	defer p.kill(c)
	first, err := firstToken(ctx, addr, cmd.Key, func() error {
		select {
		case e := <-c.Exited:
			return fmt.Errorf("the fork ended: %v: %s", e, e.Tail)
		default:
			return nil
		}
	})
	if err != nil {
		return Take{}, err
	}
	return Take{FirstToken: first.Sub(cmd.began).Seconds(), CPU: processorSeconds(c.PID)}, nil
}

// timedCommand is a command and its start time.
type timedCommand struct {
	engine.Command
	began time.Time
}

// spawn starts an engine under the benchmark's own supervisor, forked from via if given.
func (p *programs) spawn(ctx context.Context, forkSocket string) (c *supervisor.Child, a timedCommand, addr string, err error) {
	cmd, addr, err := p.command()
	if err != nil {
		return nil, a, "", err
	}
	p.n++
	a = timedCommand{cmd, time.Now()}
	c, err = p.supervisor.Spawn(ctx, supervisor.Process{ID: "e" + strconv.Itoa(p.n), ForkSocket: forkSocket, Argv: cmd.Argv, Env: cmd.Env})
	return c, a, addr, err
}

func (p *programs) kill(c *supervisor.Child) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p.supervisor.Kill(ctx, c.ID)
	select {
	case <-c.Exited:
	case <-ctx.Done():
	}
}

// firstToken polls an engine until it serves, and then sends a streamed request.
func firstToken(ctx context.Context, addr, key string, alive func() error) (time.Time, error) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		if err := alive(); err != nil {
			return time.Time{}, err
		}
		res, err := client.Get("http://" + addr + "/health")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
	}
	a, err := stream(ctx, addr, key)
	return a.First, err
}

// stream sends a short streamed chat request.
func stream(ctx context.Context, addr, key string) (load.Answer, error) {
	k, err := load.Dial(ctx, addr)
	if err != nil {
		return load.Answer{}, err
	}
	defer func() { k.Close() }()
	req := load.Request{Model: "bench", Key: key, Stream: true, Prompt: "What is thaw?", Extra: `,"max_completion_tokens":4,"ignore_eos":true`}.Bytes()
	a, err := k.Do(ctx, req)
	switch {
	case err != nil:
		return a, errors.Join(err, context.Cause(ctx))
	case a.Status != http.StatusOK || a.First.IsZero() || !bytes.HasSuffix(bytes.TrimSpace(a.Body), []byte("data: [DONE]")):
		return a, fmt.Errorf("no whole stream: status %d: %.300s", a.Status, a.Body)
	}
	return a, nil
}

// through measures a cold start as a client of thaw.
func (p *programs) through(ctx context.Context, platform *served.Platform) (Take, error) {
	name := functions.Name{Team: functions.DefaultTeam, Name: "bench"}
	if err := platform.Stop(ctx, name); err != nil {
		return Take{}, err
	}
	before := processorSeconds(platform.Process.PID)
	began := time.Now()
	a, err := stream(ctx, platform.Addr, platform.Token)
	if err != nil {
		return Take{}, err
	}
	t := Take{FirstToken: a.First.Sub(began).Seconds(), CPU: processorSeconds(platform.Process.PID) - before}
	id := a.ColdStart
	if id == "" || id == "1" {
		id = a.RequestID
	}
	line, err := platform.ColdStart(ctx, id)
	if err != nil {
		return Take{}, fmt.Errorf("timeline: %w", err)
	}
	t.Timeline, t.Start, t.Note = &line, line.Start, line.StartNote
	return t, platform.Stop(ctx, name)
}

// processorSeconds returns the CPU time of a process and its descendants.
func processorSeconds(pid int) float64 {
	tree, err := process.Tree(pid)
	if err != nil {
		return 0
	}
	var sum time.Duration
	for _, p := range tree {
		if d, err := process.CPU(p); err == nil { // an error means that it has ended
			sum += d
		}
	}
	return sum.Seconds()
}

// memory compares three engines forked from one parent with three plain ones.
func (p *programs) memory(ctx context.Context) (Shared, error) {
	m := Shared{}
	alive := func() error { return nil }
	parent, err := proportionalMemory(p.facts.PID)
	if err != nil {
		return m, err
	}
	m.Parent = parent
	// three starts three engines one way and returns their memory once all have
	// answered.
	three := func(forkSocket string) (int64, error) {
		pids := []int{}
		if forkSocket != "" {
			pids = append(pids, p.facts.PID)
		}
		for range served3 {
			fctx, cancel := context.WithTimeoutCause(ctx, p.o.Each, fmt.Errorf("not over within %s", p.o.Each))
			defer cancel()
			c, cmd, addr, err := p.spawn(fctx, forkSocket)
			if err != nil {
				return 0, err
			}
			defer p.kill(c)
			if _, err := firstToken(fctx, addr, cmd.Key, alive); err != nil {
				return 0, err
			}
			pids = append(pids, c.PID)
		}
		return proportionalMemory(pids...)
	}
	if m.Warm, err = three(p.socket); err != nil {
		return m, err
	}
	if m.Plain, err = three(""); err != nil {
		return m, err
	}
	m.Ratio = float64(m.Warm) / float64(m.Plain)
	p.o.Progress(fmt.Sprintf("memory of %d engines: %d MiB from one parent, %d MiB plain", served3, m.Warm>>20, m.Plain>>20))
	return m, nil
}

// proportionalMemory returns the PSS of processes and their descendants.
func proportionalMemory(pids ...int) (sum int64, err error) {
	seen := map[int]bool{}
	for _, pid := range pids {
		tree, err := process.Tree(pid)
		if err != nil {
			return 0, err
		}
		for _, p := range tree {
			if seen[p] {
				continue
			}
			seen[p] = true
			n, err := process.PSS(p)
			if err != nil {
				continue // it has ended
			}
			sum += n
		}
	}
	return sum, nil
}
