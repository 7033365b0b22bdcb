package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// TestChaos runs many clients on more models than fit in memory, while engines are killed
// and stopped, an agent is killed and restarted, and models are stopped, woken and edited,
// also invalidly. Every request must end exactly once: with a complete answer,
// with an error that names the cause, or with a cut connection, and never with a partial
// answer that looks complete. Afterwards nothing may be left over.
//
// THAW_SEED sets the random seed, THAW_CHAOS_TIME the duration.
func TestChaos(t *testing.T) { runChaos(t, false) }

// TestChaosWithAgent is TestChaos with an agent that reports another machine, so that the
// requests for its replicas pass through it.
func TestChaosWithAgent(t *testing.T) { runChaos(t, true) }

func runChaos(t *testing.T, far bool) {
	if testing.Short() {
		t.Skip("takes twenty seconds")
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("processes are found in /proc")
	}
	seed, length := uint64(1), 5*time.Second
	if v := os.Getenv("THAW_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	if v := os.Getenv("THAW_CHAOS_TIME"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatal(err)
		}
		length = d
	}
	t.Parallel()
	newStorm(t, seed, far).run(length)
}

const (
	chaosModels  = 4
	chaosClients = 6
)

type chaos struct {
	t     *testing.T
	p     *platform
	seed  uint64
	whole string // the model's completion at the greatest length requested

	mu       sync.Mutex
	texts    map[int]string // by number of tokens
	outcomes map[string]int
	wrong    []string
}

func newStorm(t *testing.T, seed uint64, far bool) *chaos {
	files := map[string]string{}
	for i := range chaosModels {
		files[fmt.Sprintf("m%d.yaml", i)] = chaosModel(t, i, 3)
	}
	addr := "127.0.0.1:0"
	if far {
		addr = "0.0.0.0:0"
	}
	// There is memory for one model here and for one at the agent.
	p := spawn(t, files, "--memory", "600Mi", "--addr", addr)
	p.bearer = p.admin()
	return &chaos{t: t, seed: seed, p: p, texts: map[int]string{}, outcomes: map[string]int{}}
}

func chaosModel(t *testing.T, i, delay int) string {
	return tiny(t, fmt.Sprintf("m%d", i), fmt.Sprintf(`args: [--token-delay, %dms, --ready-delay, 100ms]
resources: {memory: 500Mi}
scale: {idle: 700ms}
queue: {wait: 6s}
deadlines: {hang: 1s, firstToken: 4s, start: 8s, drain: 2s}
`, delay))
}

func (c *chaos) run(length time.Duration) {
	t, p := c.t, c.p
	r := p.chat("m0", `"stream":true,"ignore_eos":true,"max_tokens":48`)
	if c.whole = r.text(); c.whole == "" {
		t.Fatalf("before the faults: %d %v %s", r.status, r.err, r.body)
	}
	agent := c.agent()
	p.eventually("two nodes", func() bool { return len(p.items("/api/v1/nodes")) == 2 })
	for i := range chaosModels {
		p.chat(fmt.Sprintf("m%d", i), `"max_tokens":2`)
	}
	p.awaitNoRequests()
	fds, threads := p.fds(), p.threads()

	end := time.Now().Add(length)
	var clients sync.WaitGroup
	for i := range chaosClients {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(c.seed, uint64(i)))
			for time.Now().Before(end) {
				c.request(rng)
			}
		})
	}
	agent = c.injectFaults(rand.New(rand.NewPCG(c.seed, 1000)), end, agent)
	clients.Wait()

	for i := range chaosModels {
		p.file(fmt.Sprintf("m%d.yaml", i), chaosModel(t, i, 3))
	}
	for i := range chaosModels {
		testkit.Eventually(t, fmt.Sprintf("an answer of m%d after the faults", i), func() (bool, string) {
			name := fmt.Sprintf("m%d", i)
			p.do("POST", "/api/v1/functions/default/"+name+"/wake", `{"lease":"1s"}`, "Authorization", p.admin()) // ends the pause after failed starts
			r := p.chat(name, `"max_tokens":2`)
			return r.status == 200, fmt.Sprint(r.status, " ", r.err, " ", r.body)
		})
	}
	p.awaitNoRequests()
	p.eventually("no open files left over", func() bool { return p.fds() <= fds+6 })
	if n := p.threads(); n > threads+24 {
		t.Errorf("threads: %d before the faults, %d after", threads, n)
	}
	p.proc.Process.Signal(syscall.SIGTERM)
	if err := p.proc.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	p.proc = nil
	agent.Process.Signal(syscall.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	p.awaitNoProcess()

	log := p.log.String()
	for _, word := range []string{"DATA RACE", "panic", "goroutine "} {
		if i := strings.Index(log, word); i >= 0 {
			t.Errorf("the log says %q: %.3000s", word, log[max(0, i-200):])
		}
	}
	for _, w := range c.wrong {
		t.Error(w)
	}
	t.Logf("seed %d: %v", c.seed, c.outcomes)
	if t.Failed() {
		t.Logf("again: THAW_SEED=%d go test -run %s ./platform/thaw", c.seed, t.Name())
	}
}

// awaitNoRequests waits until no request is queued or at an engine.
func (p *platform) awaitNoRequests() {
	p.t.Helper()
	for _, g := range []string{"thaw_active_requests", "thaw_buffered_requests", "thaw_buffer_bytes"} {
		p.eventually(g+" at 0", func() bool { return p.metric(g) == 0 })
	}
}

func (p *platform) fds() int {
	d, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.proc.Process.Pid))
	return len(d)
}

func (p *platform) threads() int {
	d, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.proc.Process.Pid))
	return len(d)
}

// agent starts the second node.
func (c *chaos) agent() *exec.Cmd {
	cmd := exec.Command(os.Args[0], append(c.p.agentArgs("second"), "--memory", "600Mi")...)
	cmd.Stderr = c.p.log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd
}

// injectFaults injects random faults until end, and returns the agent's current process.
func (c *chaos) injectFaults(rng *rand.Rand, end time.Time, agent *exec.Cmd) *exec.Cmd {
	p := c.p
	engines := func() (pids []int) {
		for _, pid := range p.processes() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.Contains(string(line), "\x00engine\x00") {
				pids = append(pids, pid)
			}
		}
		slices.Sort(pids)
		return pids
	}
	strike := func(sig syscall.Signal) {
		if pids := engines(); len(pids) > 0 {
			syscall.Kill(pids[rng.IntN(len(pids))], sig)
		}
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for <-next.C; time.Now().Before(end); <-next.C {
		m := rng.IntN(chaosModels)
		name := fmt.Sprintf("m%d", m)
		switch n := rng.IntN(20); {
		case n < 5:
			strike(syscall.SIGKILL)
		case n < 7:
			strike(syscall.SIGSTOP)
		case n < 8: // stopped, for shorter or longer than its lease
			pid := agent.Process.Pid
			syscall.Kill(pid, syscall.SIGSTOP)
			thaws := time.AfterFunc(time.Duration(rng.IntN(8000))*time.Millisecond, func() { syscall.Kill(pid, syscall.SIGCONT) })
			defer func() {
				if thaws.Stop() {
					syscall.Kill(pid, syscall.SIGCONT)
				}
			}()
		case n < 10:
			agent.Process.Kill()
			agent.Wait()
			agent = c.agent()
		case n < 12:
			p.do("POST", "/api/v1/functions/default/"+name+"/stop", "", "Authorization", p.admin())
		case n < 15:
			p.do("POST", "/api/v1/functions/default/"+name+"/wake", `{"lease":"300ms"}`, "Authorization", p.admin())
		case n < 17:
			p.file(name+".yaml", chaosModel(c.t, m, 2+rng.IntN(4)))
		case n < 18:
			p.file(name+".yaml", "kind: Model\nspec: [")
		case n < 19:
			p.file(name+".yaml", strings.Replace(chaosModel(c.t, m, 3), "memory: 500Mi", "memory: 900Gi", 1)) // fits on no node
		default:
			os.Remove(filepath.Join(p.functions, name+".yaml"))
		}
		next.Reset(time.Duration(50+rng.IntN(500)) * time.Millisecond)
	}
	return agent
}

// request sends one request as a random kind of client does, and checks how it ended.
func (c *chaos) request(rng *rand.Rand) {
	model, tokens := fmt.Sprintf("m%d", rng.IntN(chaosModels)), 1+rng.IntN(48)
	kind, header := "plain", ""
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	switch rng.IntN(10) {
	case 0, 1, 2, 3:
		kind = "stream"
	case 4:
		kind = "stream left"
		time.AfterFunc(time.Duration(rng.IntN(400))*time.Millisecond, leave)
	case 5:
		kind = "plain left"
		time.AfterFunc(time.Duration(rng.IntN(400))*time.Millisecond, leave)
	case 6:
		kind, header = "impatient stream", "300ms"
	case 7:
		kind, header = "impatient plain", "300ms"
	}
	stream := strings.Contains(kind, "stream")
	more := fmt.Sprintf(`"ignore_eos":true,"max_tokens":%d`, tokens)
	if stream {
		more += `,"stream":true`
		if rng.IntN(2) == 0 {
			more += `,"stream_options":{"include_usage":true}`
		}
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", c.p.url+"/v1/chat/completions", strings.NewReader(chatBody(model, more)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", c.p.bearer)
	if header != "" {
		req.Header.Set("thaw-max-wait", header)
	}
	began := time.Now()
	outcome, wrong := c.ask(ctx, req, stream, tokens)
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[outcome]++
	if wrong != "" && len(c.wrong) < 20 {
		c.wrong = append(c.wrong, fmt.Sprintf("%s of %d tokens from %s after %s: %s", kind, tokens, model, took.Round(time.Millisecond), wrong))
	}
}

// ask returns how a request ended, and what was wrong with that end.
func (c *chaos) ask(ctx context.Context, req *http.Request, stream bool, tokens int) (outcome, wrong string) {
	res, err := web.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "left", ""
		}
		return "no answer", "no answer: " + err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil && ctx.Err() != nil {
		return "left", ""
	}
	body := string(b)
	r := reply{res.StatusCode, res.Header, body, err}
	switch {
	case res.Header.Get("X-Request-Id") == "":
		return "nameless", fmt.Sprintf("no request id: %d %v %s", r.status, r.header, body)
	case r.status != 200:
		f := r.failure()
		if err != nil || f.Code == "" || f.Type == "" || f.Message == "" || !slices.Contains([]int{404, 429, 502, 503, 504}, r.status) {
			return "bad error", fmt.Sprintf("%d %v %v %s", r.status, err, r.header, body)
		}
		if after := r.header.Get("Retry-After"); after != "" {
			if n, err := strconv.Atoi(after); err != nil || n < 1 || n > 55 {
				return "bad error", "Retry-After: " + after
			}
		}
		return fmt.Sprint(r.status, " ", f.Code), ""
	case err != nil && !(stream && r.failure().Code != ""):
		return "cut", "" // the client sees that the answer is incomplete
	case stream:
		return c.judgeStream(r, tokens)
	}
	var o struct {
		Choices []struct {
			FinishReason string `json:"finish_reason"`
		}
		Usage struct {
			Tokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal(b, &o); err != nil || len(o.Choices) != 1 || o.Choices[0].FinishReason != "length" || o.Usage.Tokens != tokens {
		return "bad answer", fmt.Sprintf("not a whole answer (%v): %s", err, body)
	}
	return "answered", c.checkAnswer(r.text(), tokens)
}

func (c *chaos) judgeStream(r reply, tokens int) (outcome, wrong string) {
	if kind := r.header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return "bad stream", "a stream is " + kind + ": " + r.body
	}
	finished, done, failed := false, 0, 0
	for line := range strings.Lines(r.body) {
		data, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: ")
		switch {
		case line == "\n" || strings.HasPrefix(line, ": thaw "):
		case !ok || !strings.HasSuffix(line, "\n"):
			return "bad stream", fmt.Sprintf("a line is %q in %s", line, r.body)
		case done+failed > 0:
			return "bad stream", "something follows the end: " + r.body
		case data == "[DONE]":
			done++
		case strings.HasPrefix(data, `{"error":`):
			failed++
		case !json.Valid([]byte(data)):
			return "bad stream", fmt.Sprintf("data is %q in %s", data, r.body)
		case strings.Contains(data, `"finish_reason":"length"`):
			finished = true
		}
	}
	text := r.text()
	switch {
	case failed == 1:
		f := r.failure()
		if f.Code == "" || f.Type == "" || f.Message == "" {
			return "bad stream", "an error frame without a code: " + r.body
		}
		if r.err == nil {
			return "bad stream", "complete behind an error frame: " + r.body
		}
		if !strings.HasPrefix(c.whole, strings.TrimRight(text, "\uFFFD")) {
			wrong = fmt.Sprintf("the part before the error is %q", text)
		}
		return "frame " + f.Code, wrong
	case done == 1 && finished:
		return "streamed", c.checkAnswer(text, tokens)
	}
	return "truncated", "ended cleanly without its end: " + r.body
}

// checkAnswer checks that equal requests get equal answers.
func (c *chaos) checkAnswer(text string, tokens int) (wrong string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, known := c.texts[tokens]
	if !known {
		c.texts[tokens] = text
		was = text
	}
	if text == "" || text != was || !strings.HasPrefix(c.whole, strings.TrimRight(text, "\uFFFD")) {
		return fmt.Sprintf("the answer of %d tokens is %q, was %q, all of it is %q", tokens, text, was, c.whole)
	}
	return ""
}
