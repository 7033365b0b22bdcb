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
	"slices"
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

// Agreement is one scripted load, run live and simulated.
type Agreement struct {
	Requests  int     `json:"requests"`
	LiveCold  int64   `json:"live_cold"`
	SimCold   int64   `json:"simulated_cold"`
	LiveP50   float64 `json:"live_cold_wait_p50_seconds"`
	SimP50    float64 `json:"simulated_cold_wait_p50_seconds"`
	Ratio     float64 `json:"ratio"` // simulated to live
	LiveEvict int     `json:"live_evictions"`
	SimEvict  int64   `json:"simulated_evictions"`
	// Phases are the medians of the live run's cold starts, in seconds, which the
	// simulation was given.
	Phases map[functions.Phase]float64 `json:"phases_seconds"`
	// Told is each cold start of both, for whoever has to find a difference.
	Live []string `json:"-"`
	Sim  []string `json:"-"`
}

// AgreeOptions are those of Agree.
type AgreeOptions struct {
	Exe      string // thaw, which is `thaw serve` and `thaw agent`
	Dir      string // for data and logs
	Source   string // folder of a small checkpoint for ember
	Requests int
	Seed     uint64
}

// The load: six models of which four fit, so that some must make way, with
// pauses long enough for others to go to rest. Moments at which a few
// milliseconds would decide are left out (clear).
const (
	agreeModels = 6
	agreeIdle   = 3 * time.Second
	agreeSlot   = 64 << 20 // host memory of a replica; a node has room for two
	agreeMargin = 350 * time.Millisecond
	agreeTokens = 8
)

// ask is one scripted request.
type ask struct {
	at    time.Duration
	model int
}

// script draws the load: bursts of one to three requests to one model, half a
// second to a second apart, Zipf over the models.
func script(n int, seed uint64) (out []ask) {
	draw := rand.New(rand.NewPCG(seed, 6))
	last := map[int]time.Duration{} // of each model's last request
	at := time.Duration(0)
	for len(out) < n {
		at += 500*time.Millisecond + time.Duration(draw.IntN(500))*time.Millisecond
		if draw.IntN(8) == 0 {
			at += agreeIdle + agreeIdle/2 // long enough for everybody to rest
		}
		model := 0
		for model = 0; model < agreeModels-1 && draw.IntN(3) != 0; model++ {
		}
		// Whether one is still up may hang on milliseconds: not here.
		if since, ok := last[model]; ok {
			if d := at - since - agreeIdle; d > -2*agreeMargin && d < 2*agreeMargin {
				at += 4 * agreeMargin
			}
		}
		for range 1 + draw.IntN(3) {
			out = append(out, ask{at, model})
		}
		last[model] = at
	}
	return out[:n]
}

func agreeName(i int) string { return fmt.Sprintf("m%d", i+1) }

func agreeModel(source string, i int) string {
	return fmt.Sprintf("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s}\nspec:\n  source: %s\n  engine: ember\n  resources: {memory: %d}\n  scale: {idle: %s, target: 8}\n",
		agreeName(i), source, agreeSlot, agreeIdle)
}

// Agree runs the load on a live platform of two agents, and then simulates what
// that platform's own log says was asked, with the phase times it measured.
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
	memory := fmt.Sprint(2*agreeSlot + agreeSlot/2)
	p, err := served.Start(ctx, served.Options{Exe: o.Exe, Dir: o.Dir, Functions: files, Args: []string{"--memory", memory, "--gpus", "0", "--warm", "off", "--log-format", "json"}})
	if err != nil {
		return a, err
	}
	ended := sync.OnceFunc(p.End)
	defer ended()
	second, err := process.Begin("agent", o.Dir, nil, o.Exe, "agent", "--server", p.URL, "--token-file", filepath.Join(o.Dir, "data", "join-token"),
		"--data", filepath.Join(o.Dir, "second"), "--name", "second", "--memory", memory, "--gpus", "0", "--warm", "off", "--orphan", "2s")
	if err != nil {
		return a, err
	}
	defer second.End(10 * time.Second)
	if err := p.Nodes(ctx, 2); err != nil {
		return a, err
	}
	// The first start of each is left out: it pays for the page cache.
	for i := range agreeModels {
		name := functions.Name{Team: functions.DefaultTeam, Name: agreeName(i)}
		if err := put(ctx, p, name.Name); err != nil {
			return a, err
		}
		if err := p.Stop(ctx, name); err != nil {
			return a, err
		}
	}
	before, err := logged(p.Process.Log())
	if err != nil {
		return a, err
	}
	if err := play(ctx, p, script(o.Requests, o.Seed)); err != nil {
		return a, err
	}
	ids, err := a.live(p.Process.Log(), len(before))
	if err != nil {
		return a, err
	}
	if err := a.measured(ctx, p, ids); err != nil {
		return a, err
	}
	ended() // what it has logged is whole now
	return a, a.simulated(ctx, p.Process.Log(), len(before), files, o)
}

// play asks as the script says.
func play(ctx context.Context, p *served.Platform, load []ask) error {
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
				if err := put(ctx, p, agreeName(x.model)); err != nil {
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

// put asks a model once and reads the answer.
func put(ctx context.Context, p *served.Platform, model string) error {
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

// line is what the log says of a request.
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

// logged are the requests in a log.
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

// lines waits until the log has so many requests: it is written in batches.
func lines(file string, n int) (out []line, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(5 * time.Second); ; <-tick.C {
		if out, err = logged(file); err != nil || len(out) >= n || time.Now().After(end) {
			return out, err
		}
	}
}

// live counts what happened, and lists the cold starts there were.
func (a *Agreement) live(file string, before int) (ids []string, err error) {
	all, err := lines(file, before+1)
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
		if !slices.Contains(ids, l.Cold) {
			ids = append(ids, l.Cold)
		}
		a.Live = append(a.Live, fmt.Sprintf("%s %s waited %v", l.Time.Add(-l.Took).Format("15:04:05.000"), l.Model, l.Waited.Round(time.Millisecond)))
	}
	a.LiveP50 = report.Quantile(waits, 0.5)
	return ids, nil
}

// measured takes the medians of the phases of the cold starts.
func (a *Agreement) measured(ctx context.Context, p *served.Platform, ids []string) error {
	if len(ids) == 0 {
		return fmt.Errorf("no request of the live run was cold")
	}
	spans := map[functions.Phase][]float64{}
	for _, id := range ids {
		t, err := p.ColdStart(ctx, id)
		if err != nil {
			return err
		}
		for _, s := range t.Phases {
			spans[s.Phase] = append(spans[s.Phase], s.Duration)
		}
	}
	a.Phases = map[functions.Phase]float64{}
	for ph, d := range spans {
		a.Phases[ph] = report.Quantile(d, 0.5)
	}
	return nil
}

// simulated replays the platform's log on a fleet like it.
func (a *Agreement) simulated(ctx context.Context, file string, before int, files string, o AgreeOptions) error {
	all, err := logged(file)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, l := range all[before:] {
		b.Write(append(l.raw, '\n'))
	}
	replay := filepath.Join(o.Dir, "replay.jsonl")
	if err := os.WriteFile(replay, b.Bytes(), 0o600); err != nil {
		return err
	}
	tr, err := trace.Open(replay, trace.Options{})
	if err != nil {
		return err
	}
	var models []*functions.Model
	for i := range agreeModels {
		m := functions.NewModel()
		m.Metadata.Name = agreeName(i)
		m.Spec.Engine = functions.EngineEmber
		m.Spec.Resources.Memory = agreeSlot
		m.Spec.Scale.Idle, m.Spec.Scale.Target = functions.Duration(agreeIdle), 8
		models = append(models, m)
	}
	seconds := func(ph functions.Phase) functions.Duration {
		return functions.Duration(a.Phases[ph] * float64(time.Second))
	}
	// A GPU stands there because a fleet needs one; nobody here wants it.
	var node fleet.Node
	node.Default()
	node.Name, node.Count, node.GPUs, node.Memory = "node", 2, 1, 2*agreeSlot+agreeSlot/2
	f := &fleet.Fleet{Nodes: []fleet.Node{node}, Engine: fleet.Engine{
		Spawn: seconds(functions.PhaseSpawn), Warmup: seconds(functions.PhaseLoad) + seconds(functions.PhaseWarmup),
		Prefill: 100_000, Decode: 2000,
	}}
	r, err := simulate.Run(ctx, simulate.Config{Fleet: f, Functions: models, Requests: tr.Read(), Name: "lru", Seed: o.Seed})
	if err != nil {
		return err
	}
	a.SimCold, a.SimP50, a.SimEvict = r.Cold, r.WaitCold.P50, r.Evictions
	if a.LiveP50 > 0 {
		a.Ratio = a.SimP50 / a.LiveP50
	}
	return nil
}

// Table of the agreement.
func (a *Agreement) Table() *report.Table {
	t := &report.Table{Head: []string{"agreement with a live platform", "live", "simulated", "ratio"}}
	t.Add("requests", a.Requests, a.Requests, "")
	t.Add("cold", a.LiveCold, a.SimCold, ratio(float64(a.SimCold), float64(a.LiveCold)))
	t.Add("wait of the cold, p50", report.Millis(a.LiveP50), report.Millis(a.SimP50), ratio(a.SimP50, a.LiveP50))
	return t
}

// ratio spells a to b.
func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fx", a/b)
}
