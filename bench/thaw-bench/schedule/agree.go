package schedule

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// Agreement compares a scripted load run live with its simulation.
type Agreement struct {
	Requests int     `json:"requests"`
	LiveCold int64   `json:"live_cold"`
	SimCold  int64   `json:"simulated_cold"`
	LiveP50  float64 `json:"live_cold_wait_p50_seconds"`
	SimP50   float64 `json:"simulated_cold_wait_p50_seconds"`
	Ratio    float64 `json:"ratio"` // simulated to live
	SimEvict int64   `json:"simulated_evictions"`
	// Medians of the live run in seconds, inputs of the simulation: from the wake to the
	// start order on a node with room, from there to the process, from there to the
	// load, from there to READY; and of an exit.
	Order  float64 `json:"order_seconds"`
	Exec   float64 `json:"exec_seconds"`
	Spawn  float64 `json:"spawn_seconds"`
	Warmup float64 `json:"load_and_warmup_seconds"`
	Exit   float64 `json:"exit_seconds"`
	// Decisions in order: starts, and evictions with their beneficiary. The simulated
	// ones use the times of each live start. Nodes are omitted: the choice among nodes
	// with room depends on earlier start times.
	Live []string `json:"-"`
	Sim  []string `json:"-"`
	// Waits lists the cold requests of the live run, to explain a difference.
	Waits []string `json:"-"`
}

// AgreeOptions are the options of Agree.
type AgreeOptions struct {
	Exe      string // thaw, for `thaw serve` and `thaw agent`
	Dir      string // for data and logs
	Source   string // folder of a small checkpoint for ember
	Requests int
	Seed     uint64
}

// The load: six models of which three fit, so that some are evicted, with pauses long
// enough for others to become idle. Requests at times where a few milliseconds would
// decide are skipped.
const (
	agreeModels = 6
	agreeIdle   = 2500 * time.Millisecond
	agreeSlot   = 64 << 20 // host memory of a replica; one node has room for two, the other for one
	agreeMargin = 150 * time.Millisecond
	agreeTokens = 8
	// Without a delay an ember boots in 10 ms, and the comparison would measure the
	// machine's load. Longer than a turn of the orchestrator, shorter than a test.
	agreeBoot = 120 * time.Millisecond
)

// plannedRequest is one scripted request.
type plannedRequest struct {
	at    time.Duration
	model int
}

// script draws the load: bursts of one to three requests to one model, a third of a
// second or two apart, Zipf over the models.
func script(n int, seed uint64) (out []plannedRequest) {
	draw := rand.New(rand.NewPCG(seed, 6))
	last := map[int]time.Duration{} // time of each model's last request
	at := time.Duration(0)
	for len(out) < n {
		at += 300*time.Millisecond + time.Duration(draw.IntN(300))*time.Millisecond
		if draw.IntN(12) == 0 {
			at += agreeIdle + agreeIdle/2 // long enough for all replicas to stop
		}
		model := 0
		for model = 0; model < agreeModels-1 && draw.IntN(2) != 0; model++ {
		}
		// Skip times at which milliseconds decide whether the model is still up.
		if since, ok := last[model]; ok {
			if d := at - since - agreeIdle; d > -2*agreeMargin && d < 2*agreeMargin {
				at += 4 * agreeMargin
			}
		}
		for range 1 + draw.IntN(3) {
			out = append(out, plannedRequest{at, model})
		}
		last[model] = at
	}
	return out[:n]
}

func agreeName(i int) string { return fmt.Sprintf("m%d", i+1) }

func agreeModel(source string, i int) string {
	return fmt.Sprintf("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s}\nspec:\n  source: %s\n  engine: ember\n  args: "+
		"[--boot-delay, %s]\n  resources: {memory: %d}\n  scale: {idle: %s, target: 8}\n",
		agreeName(i), source, agreeBoot, agreeSlot, agreeIdle)
}

// Agree runs the load on a live platform of two agents, and then simulates the requests
// of that platform's log with the phase times it measured.
func Agree(ctx context.Context, o AgreeOptions) (a Agreement, err error) {
	files := filepath.Join(o.Dir, "functions")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return a, err
	}
	for i := range agreeModels {
		if err := os.WriteFile(filepath.Join(files, agreeName(i)+".yaml"), []byte(agreeModel(o.Source, i)), 0o644); err != nil {
			return a, err
		}
	}
	two, one := fmt.Sprint(2*agreeSlot+agreeSlot/2), fmt.Sprint(agreeSlot+agreeSlot/2)
	p, err := served.Start(ctx, served.Options{
		Exe: o.Exe, Dir: o.Dir, Functions: files,
		Args: []string{"--agents-addr", "127.0.0.1:0", "--memory", two, "--gpus", "0", "--warm", "off", "--log-format", "json"},
	})
	if err != nil {
		return a, err
	}
	ended := sync.OnceFunc(p.End)
	defer ended()
	server, token, err := p.JoinToken(ctx, o.Dir)
	if err != nil {
		return a, err
	}
	second, err := process.Begin("agent", o.Dir, nil, o.Exe, "agent", "--server", server, "--token-file", token,
		"--data", filepath.Join(o.Dir, "second"), "--name", "second", "--memory", one, "--gpus", "0", "--warm", "off", "--orphan-timeout", "2s")
	if err != nil {
		return a, err
	}
	defer second.End(10 * time.Second)
	if err := p.Nodes(ctx, 2); err != nil {
		return a, err
	}
	// The first start of each model is not counted: it fills the page cache.
	for i := range agreeModels {
		name := functions.Name{Team: functions.DefaultTeam, Name: agreeName(i)}
		if err := requestModel(ctx, p, name.Name); err != nil {
			return a, err
		}
		if err := p.Stop(ctx, name); err != nil {
			return a, err
		}
	}
	before, err := lines(p.Process.Log(), agreeModels)
	if err != nil {
		return a, err
	}
	past, err := p.Events(ctx, 0)
	if err != nil {
		return a, err
	}
	if err := playScript(ctx, p, script(o.Requests, o.Seed)); err != nil {
		return a, err
	}
	ids, err := a.live(p.Process.Log(), len(before), o.Requests)
	if err != nil {
		return a, err
	}
	if err := a.measured(ctx, p, ids); err != nil {
		return a, err
	}
	now, err := p.Events(ctx, past[len(past)-1].Seq)
	if err != nil {
		return a, err
	}
	took := a.decided(now)
	if a.Exit == 0 {
		return a, fmt.Errorf("no replica of the live run has made way")
	}
	ended() // the log is complete now
	return a, a.simulated(ctx, p.Process.Log(), len(before), took, o)
}

// playScript sends the requests of the script.
func playScript(ctx context.Context, p *served.Platform, load []plannedRequest) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	began := time.Now()
	for _, x := range load {
		t := time.NewTimer(time.Until(began.Add(x.at)))
		select {
		case <-ctx.Done():
			t.Stop()
		case <-t.C:
			all.Go(func() {
				if err := requestModel(ctx, p, agreeName(x.model)); err != nil {
					stop(err)
				}
			})
			continue
		}
		break
	}
	all.Wait()
	return context.Cause(ctx)
}

// requestModel sends one request and reads the answer.
func requestModel(ctx context.Context, p *served.Platform, model string) error {
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"messages":[{"role":"user","content":"What is thaw?"}]}`, model, agreeTokens)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+p.Token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.300s", model, res.Status, b)
	}
	return nil
}

// line is a request's line in the log.
type line struct {
	Time   time.Time     `json:"time"`
	Msg    string        `json:"msg"`
	ID     string        `json:"id"`
	Model  string        `json:"model"`
	Cold   string        `json:"cold_start"`
	Waited time.Duration `json:"waited"`
	Took   time.Duration `json:"took"`
	raw    []byte
}

// logged returns the requests in a log.
func logged(file string) (out []line, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var l line
		if json.Unmarshal(in.Bytes(), &l) == nil && l.Msg == "request" && l.Model != "" {
			l.raw = bytes.Clone(in.Bytes())
			out = append(out, l)
		}
	}
	return out, in.Err()
}

// lines waits until the log has n requests: it is written in batches.
func lines(file string, n int) (out []line, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		if out, err = logged(file); err != nil || len(out) >= n || time.Now().After(end) {
			return out, err
		}
	}
}

// live counts the events of the run and returns the cold start of each cold request.
func (a *Agreement) live(file string, before, n int) (ids []string, err error) {
	all, err := lines(file, before+n)
	if err != nil {
		return nil, err
	}
	var waits []float64
	for _, l := range all[before:] {
		a.Requests++
		if l.Cold == "" {
			continue
		}
		a.LiveCold++
		waits = append(waits, l.Waited.Seconds())
		ids = append(ids, l.Cold)
		a.Waits = append(a.Waits,
			fmt.Sprintf("%s %s waited %v", l.Time.Add(-l.Took).Format("15:04:05.000"), l.Model, l.Waited.Round(time.Millisecond)))
	}
	a.LiveP50 = report.Quantile(waits, 0.5)
	return ids, nil
}

// measured computes the medians of the phases over the requests that waited for them.
func (a *Agreement) measured(ctx context.Context, p *served.Platform, ids []string) error {
	if len(ids) == 0 {
		return fmt.Errorf("no request of the live run was cold")
	}
	var order, exec, spawn, warmup []float64
	known := map[string]functions.Timeline{}
	for _, id := range ids {
		t, ok := known[id]
		if !ok {
			var err error
			if t, err = p.ColdStart(ctx, id); err != nil {
				return err
			}
			known[id] = t
		}
		at := map[functions.Phase]functions.Span{}
		for _, s := range t.Phases {
			at[s.Phase] = s
		}
		placed := at[functions.PhasePlace].Start + at[functions.PhasePlace].Duration
		process, load := at[functions.PhaseSpawn].Start, at[functions.PhaseLoad].Start
		placed = min(placed, process) // it may be recorded a moment later
		order = append(order, placed)
		exec = append(exec, process-placed)
		spawn = append(spawn, load-process)
		warmup = append(warmup, at[functions.PhaseWarmup].Start+at[functions.PhaseWarmup].Duration-load)
	}
	// Some starts waited for room, which the simulation does too; the quickest did not.
	a.Order, a.Exec = report.Quantile(order, 0.1), report.Quantile(exec, 0.5)
	a.Spawn, a.Warmup = report.Quantile(spawn, 0.5), report.Quantile(warmup, 0.5)
	return nil
}

// start has a replica's times: from the start order to READY, and from the stop order to
// its reported end; 0 if not reached.
type start struct {
	began, reported time.Time
	ready, exit     time.Duration
}

// decided lists the decisions and the times of each model's starts in order. All come
// from this run: the machine's load may have differed before.
func (a *Agreement) decided(events []functions.Event) map[string][]*start {
	took, known := map[string][]*start{}, map[string]*start{}
	var exits []float64
	for _, e := range events {
		a.Live = append(a.Live, decision(e.Kind, e.Function, e.For)...)
		x := known[e.Replica]
		switch {
		case e.Kind == "start":
			x = &start{began: e.At}
			known[e.Replica], took[e.Function] = x, append(took[e.Function], x)
		case x == nil: // started before the run
		case e.Kind == "ready":
			x.ready = e.At.Sub(x.began)
		case e.Kind == "stop":
			x.reported = e.At
		case e.Kind == "ended" && !x.reported.IsZero():
			x.exit = e.At.Sub(x.reported)
			exits = append(exits, x.exit.Seconds())
		}
	}
	if len(exits) > 0 {
		a.Exit = report.Quantile(exits, 0.5)
	}
	return took
}

// decision describes an event's decision; none for other events, and none for an idle
// stop, which follows from the last request.
func decision(kind, function, target string) []string {
	model := strings.TrimPrefix(function, functions.DefaultTeam+"/")
	switch {
	case kind == "start":
		return []string{"start " + model}
	case kind == "stop" && target != "":
		return []string{"stop " + model + " for " + strings.TrimPrefix(target, functions.DefaultTeam+"/")}
	}
	return nil
}

// answerRate is the tokens per second of a simulated engine.
const answerRate = 2000

// simulated replays the platform's log on an equal fleet: with the medians of the
// phases, for the number of cold requests and their waits, and with the times of each
// start, for the decisions.
func (a *Agreement) simulated(ctx context.Context, file string, before int, took map[string][]*start, o AgreeOptions) error {
	all, err := logged(file)
	if err != nil {
		return err
	}
	seconds := func(v float64) functions.Duration {
		return functions.Duration(max(v, 1e-9) * float64(time.Second)) // 0 would mean the default
	}
	c := simulate.Config{Name: "lru", Gather: -1, Seed: o.Seed, Sizes: map[functions.Name]functions.Bytes{}}
	for i := range agreeModels {
		m := functions.NewModel()
		m.Metadata.Name = agreeName(i)
		m.Spec.Engine = functions.EngineEmber
		m.Spec.Resources.Memory = agreeSlot
		m.Spec.Scale.Idle, m.Spec.Scale.Target = functions.Duration(agreeIdle), 8
		c.Functions = append(c.Functions, m)
		c.Sizes[m.FullName()] = 1 // the measured warm-up includes the load
	}
	// A fleet needs a GPU; no model here uses it.
	var first, second fleet.HostKind
	first.Default()
	first.Name, first.GPUs, first.Memory = "first", 1, 2*agreeSlot+agreeSlot/2
	second.Default()
	second.Name, second.GPUs, second.Memory = "second", 1, agreeSlot+agreeSlot/2
	c.Fleet = &fleet.Fleet{Nodes: []fleet.HostKind{first, second}, Engine: fleet.Engine{
		Exec: seconds(a.Exec), Spawn: seconds(a.Spawn), Warmup: seconds(a.Warmup), Exit: seconds(a.Exit),
		Prefill: 100_000, Decode: answerRate,
	}}

	c.Latency = seconds(a.Order).Std()
	if c.Requests, err = replay(filepath.Join(o.Dir, "replay.jsonl"), all[before:], false); err != nil {
		return err
	}
	r, err := simulate.Run(ctx, c)
	if err != nil {
		return err
	}
	a.SimCold, a.SimP50, a.SimEvict = r.Cold, r.WaitCold.P50, r.Evictions
	if a.LiveP50 > 0 {
		a.Ratio = a.SimP50 / a.LiveP50
	}

	c.Latency = -1 // the measured times include the messages
	if c.Requests, err = replay(filepath.Join(o.Dir, "replay-answers.jsonl"), all[before:], true); err != nil {
		return err
	}
	c.Times = func(name functions.Name, nth int, drawn simulate.StartTimes) simulate.StartTimes {
		s := took[name.String()]
		if nth > len(s) {
			return drawn // no live start to take the times from
		}
		if was := s[nth-1]; was.ready > 0 {
			drawn.Spawn = max(was.ready-drawn.Exec-drawn.Warmup, 0)
			drawn.Warmup = was.ready - drawn.Exec - drawn.Spawn
		}
		if was := s[nth-1]; was.exit > 0 {
			drawn.Exit = was.exit
		}
		return drawn
	}
	c.Event = func(e functions.Event) {
		a.Sim = append(a.Sim, decision(e.Kind, e.Function, e.For)...)
	}
	_, err = simulate.Run(ctx, c)
	return err
}

// replay writes requests of a log to a file and opens it. With answers, each request
// gets the number of tokens that matches its duration.
func replay(file string, all []line, answers bool) (trace.Requests, error) {
	var b bytes.Buffer
	for _, l := range all {
		raw := l.raw
		if answers {
			var fields map[string]any
			if err := json.Unmarshal(raw, &fields); err != nil {
				return nil, err
			}
			fields["completion_tokens"] = int((l.Took - l.Waited).Seconds() * answerRate)
			var err error
			if raw, err = json.Marshal(fields); err != nil {
				return nil, err
			}
		}
		b.Write(append(raw, '\n'))
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		return nil, err
	}
	tr, err := trace.Open(file, trace.Options{})
	if err != nil {
		return nil, err
	}
	return tr.Read(), nil
}

// Table returns the agreement as a table.
func (a *Agreement) Table() *report.Table {
	t := &report.Table{Head: []string{"agreement with a live platform", "live", "simulated", "ratio"}}
	t.Add("requests", a.Requests, a.Requests, "")
	t.Add("cold", a.LiveCold, a.SimCold, ratio(float64(a.SimCold), float64(a.LiveCold)))
	t.Add("wait of the cold, p50", report.Millis(a.LiveP50), report.Millis(a.SimP50), ratio(a.SimP50, a.LiveP50))
	return t
}

// ratio formats the ratio of a to b.
func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fx", a/b)
}
