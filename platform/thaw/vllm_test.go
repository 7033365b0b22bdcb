package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// This test runs a real vLLM: THAW_ENGINE_VLLM is its program, THAW_VLLM_MODEL a
// checkpoint that it can serve without a GPU (deploy/vllm). All steps share one platform,
// since each start takes long.

// realVLLM returns the checkpoint to serve. Without vLLM the test is skipped, or fails if
// THAW_REQUIRE=all.
func realVLLM(t *testing.T) (checkpoint string) {
	t.Helper()
	checkpoint = os.Getenv("THAW_VLLM_MODEL")
	if os.Getenv("THAW_ENGINE_VLLM") != "" && checkpoint != "" {
		return checkpoint
	}
	testkit.Missing(t, `THAW_ENGINE_VLLM and THAW_VLLM_MODEL are not set: eval "$(.ci/components)" sets them`)
	return ""
}

// vllmModel returns a model file for a machine without a GPU; more is YAML below spec.
func vllmModel(name, checkpoint, more string) string {
	return modelFile(name, "  source: "+checkpoint+`
  engine: vllm
  args: [--dtype, float32, --enforce-eager, --max-model-len, "2048", --max-num-seqs, "16", --kv-cache-memory-bytes, "33554432"]
  env: {TORCHDYNAMO_DISABLE: "1", VLLM_TARGET_DEVICE: cpu}
`+indent(more))
}

func TestVLLMJourneys(t *testing.T) {
	checkpoint := realVLLM(t)
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("processes are found in /proc")
	}
	// The variable marks every process that descends from this test, whatever its name.
	mark := t.Name() + "-" + strconv.Itoa(os.Getpid())
	t.Setenv("JOURNEY", mark)
	const v = "resources: {memory: 1000Mi}\n"
	p := start(t, map[string]string{
		"v.yaml":     vllmModel("v", checkpoint, v),
		"other.yaml": vllmModel("other", tinyDir(t), "resources: {memory: 2300Mi}\n"),
		"ember.yaml": modelFile("v-ember", "  source: "+checkpoint+"\n  engine: ember\n  resources: {memory: 64Mi}\n") +
			"---\n" + tiny(t, "other-ember", "resources: {memory: 64Mi}\n"),
	}, "--memory", "3Gi", "--warm", "on")
	t.Cleanup(func() {
		p.t = t
		p.stop()
		p.eventually("every process that vLLM started gone", func() bool { return len(processesMarked(mark)) == 0 })
	})
	j := &vllmJourney{p: p, v: v, checkpoint: checkpoint}
	for _, step := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"a warm interpreter", j.warm},
		{"cold, all clients at once", j.cold},
		{"the client leaves", j.leaves},
		{"the same tokens as ember", func(t *testing.T) { j.sameTokens(t, "v", "v-ember") }},
		{"EngineCore killed", j.killed},
		{"from one to two to none", j.scales},
		{"another model makes way", j.evicts},
		{"EngineCore stopped", j.hangs},
	} {
		began := time.Now()
		t.Run(step.name, func(t *testing.T) { p.t = t; step.do(t) })
		t.Logf("%6.1f s  %s", time.Since(began).Seconds(), step.name)
	}
	p.t = t
}

type vllmJourney struct {
	p          *platform
	v          string // spec of the model v
	checkpoint string
}

// warm prepares an interpreter that has imported vLLM, without which each of these starts
// would take twenty seconds. (Plain starts are tested in runtime/replica.)
func (j *vllmJourney) warm(t *testing.T) {
	j.p.eventuallyWithin(2*time.Minute, "a warm interpreter", func() bool {
		for _, n := range j.p.items("/api/v1/nodes") {
			parents, _ := n["warm"].([]any)
			for _, x := range parents {
				if w, _ := x.(map[string]any); w["state"] == "ready" {
					t.Logf("it takes %v MiB", int(w["memory"].(float64))>>20)
					return true
				}
			}
		}
		return false
	})
}

// cold: every client sends a request to the cold model, half of them streamed. All wait
// for one start and get the same answer.
func (j *vllmJourney) cold(t *testing.T) {
	var clients []official
	kinds := slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.texts })
	for _, k := range kinds {
		clients = append(clients, k.open(t, j.p.url+"/v1", "none", "v", "v"))
	}
	// A first answer shows that the client program runs.
	for i, do := range clients {
		s, err := do(t.Context(), "unknown_model")
		if e := s.Error; err != nil || e == nil || !e.Known || e.Status != 404 {
			t.Fatalf("%s, unknown_model: %v %+v", kinds[i].name, err, e)
		}
	}
	var mu sync.Mutex
	texts := map[string][]string{}
	var wg sync.WaitGroup
	for i, do := range clients {
		wg.Go(func() {
			for n := range 2 {
				c := []string{"cold_stream", "cold_plain"}[(i+n)%2]
				s, err := do(t.Context(), c)
				if err != nil || s.Error != nil || s.Text == "" || s.Usage == 0 || s.Finish != "length" {
					t.Errorf("%s, %s: %v %+v %+v", kinds[i].name, c, err, s, s.Error)
				}
				mu.Lock()
				texts[s.Text] = append(texts[s.Text], kinds[i].name+" "+c)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(texts) != 1 {
		t.Errorf("the same question has different answers: %q", texts)
	}
	all := j.p.items("/api/v1/coldstarts")
	if len(all) != 1 {
		t.Fatalf("%d cold starts, want one: %v", len(all), all)
	}
	j.timeline(t, fmt.Sprint(all[0]["id"]))
}

// timeline: the phases are consecutive and cover the whole time, and the engine's own
// steps lie inside them.
func (j *vllmJourney) timeline(t *testing.T, id string) {
	var tl functions.Timeline
	r := j.p.do("GET", "/api/v1/coldstarts/"+id, "")
	if err := json.Unmarshal([]byte(r.body), &tl); err != nil || tl.State != functions.Ready {
		t.Fatalf("%d %s", r.status, r.body)
	}
	var names []string
	var sum float64
	for i, ph := range tl.Phases {
		names = append(names, string(ph.Phase))
		t.Logf("%-12s %7.3f s for %7.3f s", ph.Phase, ph.Start, ph.Duration)
		if ph.Phase != functions.PhaseFirstToken { // it belongs to the request: the total ends at READY
			sum += ph.Duration
		}
		if i > 0 && ph.Start < tl.Phases[i-1].Start {
			t.Errorf("%s begins before the phase in front of it: %+v", ph.Phase, tl.Phases)
		}
		for _, part := range ph.Parts {
			t.Logf("    %-10s %7.3f s for %7.3f s", part.Name, part.Start, part.Duration)
			// vLLM's log has whole milliseconds, so its steps may exceed the phases a little.
			if part.Duration < 0 || part.Start < ph.Start-0.5 || part.Start+part.Duration > ph.Start+ph.Duration+0.5 {
				t.Errorf("the step %s %+v lies outside of %s %.3f+%.3f", part.Name, part, ph.Phase, ph.Start, ph.Duration)
			}
		}
	}
	if tl.Start != functions.StartWarm {
		t.Errorf("started %s: %s", tl.Start, tl.StartNote)
	}
	if want := "queue place stage spawn load warmup first_token"; strings.Join(names, " ") != want {
		t.Errorf("phases %v, want %s", names, want)
	}
	if sum < 0.9*tl.Total || sum > tl.Total+1 {
		t.Errorf("the phases take %.3f s of %.3f s", sum, tl.Total)
	}
}

// leaves: if a client disconnects in the middle, its request is aborted. (vLLM does not
// count aborted requests: fewer tokens than were asked for show it. How many fewer depends
// on the machine.)
func (j *vllmJourney) leaves(t *testing.T) {
	p := j.p
	const tokens = 1900
	made := func() float64 { return p.engineMetric("v", "vllm:generation_tokens_total", "") }
	before := made()
	ctx, cancel := context.WithCancel(t.Context())
	res, _ := p.open(ctx, "v", tokens)
	cancel()
	res.Body.Close()
	p.eventually("nothing running", func() bool { return p.engineMetric("v", "vllm:num_requests_running", "") == 0 })
	if n := made() - before; n == 0 || n >= tokens {
		t.Errorf("%v tokens were made for a client that left after the first of %d", n, tokens)
	}
}

// sameTokens: with greedy sampling in float32, vLLM and ember give the same answer.
func (j *vllmJourney) sameTokens(t *testing.T, model, ember string) {
	for _, prompt := range []string{
		"<|im_start|>user\nWhat is thaw?<|im_end|>\n<|im_start|>assistant\n",
		"the quick brown fox",
		"Grüße, 東京! 1234567890\n\n\t",
		strings.Repeat("a model at rest, a request, an answer. ", 12),
	} {
		var got, want completion
		for _, x := range []struct {
			model string
			into  *completion
		}{{model, &got}, {ember, &want}} {
			body, _ := json.Marshal(map[string]any{"model": x.model, "prompt": prompt, "max_tokens": 48, "temperature": 0, "logprobs": 0, "ignore_eos": true})
			r := j.p.do("POST", "/v1/completions", string(body))
			if err := json.Unmarshal([]byte(r.body), x.into); err != nil || len(x.into.Choices) != 1 {
				t.Fatalf("%s: %d %v %s", x.model, r.status, r.err, r.body)
			}
		}
		g, w := got.Choices[0], want.Choices[0]
		// A token that is part of a character is � in one answer and nothing in the other,
		// also at the end.
		g.Text, w.Text = strings.TrimRight(g.Text, "\ufffd"), strings.TrimRight(w.Text, "\ufffd")
		for i, token := range w.Logprobs.Tokens {
			w.Logprobs.Tokens[i] = strings.ReplaceAll(token, "\ufffd", "")
		}
		if g.Text != w.Text || len(w.Logprobs.Tokens) != 48 || !slices.Equal(g.Logprobs.Tokens, w.Logprobs.Tokens) || got.Usage != want.Usage {
			t.Errorf("%q:\n vllm says %q %q, %+v\nember says %q %q, %+v", prompt, g.Text, g.Logprobs.Tokens, got.Usage, w.Text, w.Logprobs.Tokens,
				want.Usage)
		}
	}
}

type completion struct {
	Choices []struct {
		Text     string
		Logprobs struct{ Tokens []string }
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

// killed: EngineCore is killed during a stream. The client gets an error, and the next
// request is answered.
func (j *vllmJourney) killed(t *testing.T) {
	p := j.p
	api, core := p.vllm("v")
	res, rest := p.open(t.Context(), "v", 1900)
	defer res.Body.Close()
	signalPID(t, core, syscall.SIGKILL)
	tail := untilEnd(rest)
	// The error is vLLM's own, if it had the time, or thaw's.
	if e := (reply{body: tail}).failure(); e.Code != "engine_crashed" && e.Type != "InternalServerError" {
		t.Errorf("the stream ended with %q", last(tail, 400))
	}
	if m := p.do("GET", "/metrics", "", "Authorization", p.admin()); !regexp.MustCompile(`(?m)^thaw_engine_errors_total\{[^}]*model="v"[^}]*\} 1$`).MatchString(m.body) {
		t.Errorf("no failed request was counted: %s", strings.Join(regexp.MustCompile(`(?m)^thaw_engine_errors_total.*$`).FindAllString(m.body, -1), "\n"))
	}
	if r := p.chat("v", `"max_tokens":2`); r.status != 200 {
		t.Errorf("the next request: %d %v %s", r.status, r.err, r.body)
	}
	p.eventually("nothing of the engine that died", func() bool { return !processAlive(api) && !processAlive(core) })
}

// scales: load starts a second replica, and later none is left.
func (j *vllmJourney) scales(t *testing.T) {
	p := j.p
	ready := func() (n int) {
		for _, r := range p.items("/api/v1/replicas") {
			if r["function"] == "default/v" && r["state"] == "READY" {
				n++
			}
		}
		return n
	}
	p.file("v.yaml", vllmModel("v", j.checkpoint, j.v+"scale: {min: 2, max: 2}\n"))
	p.eventuallyWithin(3*time.Minute, "two replicas", func() bool { return ready() == 2 })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if r := p.chat("v", `"max_tokens":4`); r.status != 200 {
				t.Errorf("%d %v %s", r.status, r.err, r.body)
			}
		})
	}
	wg.Wait()
	p.file("v.yaml", vllmModel("v", j.checkpoint, j.v+"scale: {idle: 300ms}\n"))
	p.eventually("no replica", func() bool { return p.state("default/v") == "" })
	p.file("v.yaml", vllmModel("v", j.checkpoint, j.v))
	p.eventually("idle for five minutes again", func() bool {
		return strings.Contains(p.do("GET", "/api/v1/functions/default/v", "").body, `"idle":"5m`)
	})
}

// evicts: there is memory for one of two models, and the requested one runs.
func (j *vllmJourney) evicts(t *testing.T) {
	p := j.p
	for i, m := range []string{"v", "other", "v"} {
		if r := p.chat(m, `"max_tokens":2`); r.status != 200 {
			t.Fatalf("%d: %s: %d %v %s", i, m, r.status, r.err, r.body)
		}
		other := map[string]string{"v": "other", "other": "v"}[m]
		if s := p.state("default/" + other); s != "" {
			t.Errorf("%s is %s beside %s", other, s, m)
		}
		if m == "other" {
			j.sameTokens(t, "other", "other-ember")
		}
	}
	evicted := map[any]int{}
	for _, e := range p.items("/api/v1/events") {
		if e["reason"] == "evicted" {
			evicted[e["function"]]++
		}
	}
	if evicted["default/v"] == 0 || evicted["default/other"] == 0 {
		t.Errorf("evicted: %v of %v", evicted, p.items("/api/v1/events"))
	}
}

// hangs: EngineCore is stopped while its health endpoint answers. Streamed and plain
// requests fail, and no process of the engine is left.
func (j *vllmJourney) hangs(t *testing.T) {
	p := j.p
	api, core := p.vllm("v")
	res, rest := p.open(t.Context(), "v", 1900)
	defer res.Body.Close()
	for range 40 { // until the platform has seen tokens; all of them take the engine seconds
		if _, err := rest.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	signalPID(t, core, syscall.SIGSTOP)
	waits := make(chan reply, 1)
	go func() { waits <- p.chat("v", `"max_tokens":4`) }()
	tail := untilEnd(rest)
	if e := (reply{body: tail}).failure(); e.Code != "engine_hung" && e.Code != "engine_crashed" || strings.Contains(tail, "[DONE]") {
		t.Errorf("the stream ended with %q", last(tail, 400))
	}
	// Nothing of this answer was sent: it fails, or is sent again to a new engine.
	r := <-waits
	if r.status != 200 && !strings.Contains(r.body, "hung") {
		t.Errorf("who waited: %d %v %s", r.status, r.err, r.body)
	}
	p.eventually("the engine gone", func() bool { return !processAlive(api) && !processAlive(core) })
}

// untilEnd reads the rest of a stream.
func untilEnd(r *bufio.Reader) string {
	b, _ := io.ReadAll(r)
	return string(b)
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// engineMetric sums an engine's samples whose labels contain label.
func (p *platform) engineMetric(name, metric, label string) (sum float64) {
	p.t.Helper()
	r, err := web.Get(p.endpoint(name) + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	s := bufio.NewScanner(r.Body)
	for s.Scan() {
		if rest, ok := strings.CutPrefix(s.Text(), metric+"{"); ok && strings.Contains(rest, label) {
			f, _ := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			sum += f
		}
	}
	return sum
}

func (p *platform) endpoint(name string) string {
	p.t.Helper()
	for _, r := range p.items("/api/v1/replicas") {
		if r["function"] == "default/"+name && r["state"] == "READY" {
			return fmt.Sprint(r["endpoint"])
		}
	}
	p.t.Fatalf("%s has no replica that is ready", name)
	return ""
}

// vllm finds the processes of a function's replica: the API server, which listens at its
// endpoint, and its child EngineCore. Their names depend on how they were started.
func (p *platform) vllm(name string) (api, core int) {
	p.t.Helper()
	_, port, _ := strings.Cut(strings.TrimPrefix(p.endpoint(name), "http://"), ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		p.t.Fatal(err)
	}
	api = listener(n)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		stat, _ := os.ReadFile(filepath.Join(d, "stat"))
		var state string
		var parent int
		fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent)
		if parent == api && api != 0 && bytes.Contains(line, []byte("EngineCore")) {
			core, _ = strconv.Atoi(filepath.Base(d))
		}
	}
	if api == 0 || core == 0 {
		p.t.Fatalf("the engine of %s at port %d: API server %d, EngineCore %d", name, n, api, core)
	}
	return api, core
}

// listener returns the process that listens on a loopback port, 0 for none.
func listener(port int) int {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0
	}
	at := fmt.Sprintf("0100007F:%04X", port)
	var socket string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == at && f[3] == "0A" {
			socket = "socket:[" + f[9] + "]"
		}
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	pid := 0
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == socket {
			n, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			// A child or a warm interpreter may have inherited it: take the oldest.
			if pid == 0 || n < pid {
				pid = n
			}
		}
	}
	return pid
}

// processesMarked lists the processes with the mark in their environment.
func processesMarked(mark string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		env, _ := os.ReadFile(filepath.Join(d, "environ"))
		if pid != os.Getpid() && bytes.Contains(env, []byte("JOURNEY="+mark+"\x00")) && processAlive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processAlive reports whether a process runs and is no zombie.
func processAlive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	at := bytes.LastIndexByte(stat, ')')
	return err == nil && at > 0 && at+2 < len(stat) && stat[at+2] != 'Z' && stat[at+2] != 'X'
}
