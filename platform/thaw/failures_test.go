package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// These tests give the whole program bad input and failures.

func TestBadInput(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "")}, "--max-body", "64Ki")
	post := func(body string) reply { return p.do("POST", "/v1/chat/completions", body) }
	for _, c := range []struct {
		name   string
		r      reply
		status int
		code   string
		says   string
	}{
		{"unknown model", p.chat("tinny", ""), 404, "model_not_found", "tiny"},
		{"not JSON", post(`{"model":`), 400, "invalid_json", ""},
		{"duplicate model", post(`{"model":"tiny","model":"other","messages":[]}`), 400, "invalid_json", "model"},
		{"spelled duplicate", post(`{"model":"tiny","mo\u0064el":"other","messages":[]}`), 400, "invalid_json", ""},
		{"mis-cased model", post(`{"Model":"tiny","messages":[]}`), 400, "missing_required_parameter", "model"},
		{"no model", post(`{"messages":[]}`), 400, "missing_required_parameter", "model"},
		{"too large", post(`{"model":"tiny","x":"` + strings.Repeat("x", 70<<10) + `"}`), 413, "request_too_large", ""},
		{"control path", p.do("POST", "/v1/load_lora_adapter", `{"model":"tiny"}`), 404, "unknown_endpoint", ""},
		{"method", p.do("GET", "/v1/chat/completions", ""), 405, "", ""},
	} {
		f := c.r.failure()
		if c.r.status != c.status || c.code != "" && f.Code != c.code || !strings.Contains(f.Message+f.Param, c.says) ||
			c.r.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %+v %v %v", c.name, c.r.status, f, c.r.header, c.r.err)
		}
	}
	if r := p.do("GET", "/v1/chat/completions", ""); r.header.Get("Allow") == "" {
		t.Errorf("405 without Allow: %v", r.header)
	}
	if got := p.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"); !strings.HasPrefix(got, "HTTP/1.1 400") || !strings.Contains(got, `"error"`) {
		t.Errorf("two Content-Lengths: %q", got)
	}
	if got := p.raw("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 421") {
		t.Errorf("a foreign Host on loopback: %q", got)
	}
	if got := p.raw("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n"); !strings.HasPrefix(got,
		"HTTP/1.1 403") {
		t.Errorf("a foreign Origin: %q", got)
	}
	if n := p.items("/api/v1/coldstarts"); len(n) != 0 {
		t.Errorf("bad input woke the model: %v", n)
	}
}

// raw sends bytes and returns the beginning of the answer, or all where the connection is closed after it.
func (p *platform) raw(s string) string {
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, s)
	if strings.Contains(s, "Connection: close") {
		b, _ := io.ReadAll(c)
		return string(b)
	}
	b := make([]byte, 4096)
	n, _ := io.ReadAtLeast(c, b, 200)
	return string(b[:n])
}

func TestQueueFullAndWaitOver(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"full.yaml": tiny(t, "full", "args: [--ready-delay, 2m]\nqueue: {requests: 2, wait: 1m}"),
		"slow.yaml": tiny(t, "slow", "args: [--ready-delay, 2m]\nqueue: {requests: 2, wait: 1s}"),
		"ok.yaml":   tiny(t, "ok", ""),
	})
	told := func(r reply, code string) {
		t.Helper()
		if r.failure().Code != code || r.status != 503 || r.header.Get("Retry-After") == "" || r.header.Get("X-Should-Retry") != "true" {
			t.Errorf("want %s: %d %v %s", code, r.status, r.header, r.body)
		}
	}
	var wg sync.WaitGroup
	ctx, leave := context.WithCancel(t.Context())
	for range 2 {
		wg.Go(func() {
			if r, err := newRequest(ctx, p.url+"/v1/chat/completions", strings.NewReader(chatBody("full", ""))); err == nil {
				r.Body.Close()
				t.Errorf("who waits is told %d", r.StatusCode)
			}
		})
	}
	p.eventually("two wait", func() bool { return p.metric(`thaw_buffered_requests{model="full"`) == 2 })
	for range 3 {
		told(p.chat("full", ""), "queue_full")
	}
	for range 2 {
		wg.Go(func() { told(p.chat("slow", ""), "model_loading") })
	}
	if r := p.chat("ok", `"max_tokens":2`); r.status != 200 {
		t.Errorf("another model is disturbed: %d %s", r.status, r.body)
	}
	leave()
	wg.Wait()
}

// TestStartFails: every waiting request gets the cause of a failed start at once. Starts
// are not repeated faster than the backoff, and succeed after the fix.
func TestStartFails(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	flag := filepath.Join(root, "dies")
	weights := filepath.Join(root, "w")
	if err := os.CopyFS(weights, os.DirFS(tinyDir(t))); err != nil {
		t.Fatal(err)
	}
	st := filepath.Join(weights, "model.safetensors")
	whole, err := os.ReadFile(st)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file, says string
		spoil, fix       func()
	}{
		{"missing weights", modelFile("m", "  engine: ember\n  source: "+filepath.Join(root, "none")+"\n"), "none", func() {}, func() { os.Symlink(weights, filepath.Join(root, "none")) }},
		{"truncated weights", modelFile("m", "  engine: ember\n  source: "+weights+"\n"), "model.safetensors",
			func() { os.WriteFile(st, whole[:len(whole)/2], 0o644) }, func() { os.WriteFile(st, whole, 0o644) }},
		{"exits while loading", fakeModel("m", "--dies "+flag, ""), "out of GPU memory: CUDA out of memory",
			func() {
				os.WriteFile(flag, []byte(
					"Traceback (most recent call last):\n  File \"x.py\", line 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
					0o644)
			},
			func() { os.Remove(flag) }},
		{"engine missing", modelFile("m", "  engine: vllm\n  source: "+weights+"\n"), "THAW_ENGINE_VLLM", func() {}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spoil()
			p := start(t, map[string]string{"m.yaml": c.file})
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					r := p.chat("m", "")
					if f := r.failure(); r.status != 503 || f.Code != "model_load_failed" || !strings.Contains(f.Message+f.Param, c.says) ||
						r.header.Get("Retry-After") != "" || r.header.Get("X-Should-Retry") != "false" {
						t.Errorf("%d %v %s", r.status, r.header, r.body)
					}
				})
			}
			wg.Wait()
			began := time.Now()
			for range 20 {
				p.chat("m", "")
			}
			if n, spent := len(p.items("/api/v1/coldstarts")), time.Since(began); n > 3 && spent < time.Second {
				t.Errorf("%d starts in %s: faster than the back-off", n, spent)
			}
			if c.fix == nil {
				return
			}
			c.fix()
			p.eventually("an answer after the fix", func() bool { return p.chat("m", `"max_tokens":2`).status == 200 })
		})
	}
}

func TestEngineKilled(t *testing.T) {
	t.Parallel()
	loads := filepath.Join(t.TempDir(), "loads")
	if err := os.WriteFile(loads, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, map[string]string{
		"idle.yaml":   tiny(t, "idle", ""),
		"load.yaml":   fakeModel("load", "--loads "+loads, ""),
		"stream.yaml": tiny(t, "stream", "args: [--token-delay, 30ms]"),
	})
	t.Run("idle", func(t *testing.T) {
		if r := p.chat("idle", `"max_tokens":2`); r.status != 200 {
			t.Fatal(r)
		}
		signalPID(t, p.engine("idle"), syscall.SIGKILL)
		p.eventually("the dead replica out of READY", func() bool { return p.state("default/idle") != "READY" })
		p.eventually("an answer again", func() bool { return p.chat("idle", `"max_tokens":2`).status == 200 })
	})
	t.Run("loading", func(t *testing.T) {
		got := make(chan reply, 1)
		go func() { got <- p.chat("load", `"max_tokens":2`) }()
		p.eventually("the engine's process", func() bool { return p.engine("load") != 0 })
		signalPID(t, p.engine("load"), syscall.SIGKILL)
		r := <-got
		// The request fails with this start and does not wait for another.
		starts := 0
		for _, c := range p.items("/api/v1/coldstarts") {
			if c["function"] == "default/load" {
				starts++
			}
		}
		if r.failure().Code != "model_load_failed" || starts != 1 {
			t.Errorf("after %d starts: %d %s", starts, r.status, r.body)
		}
		os.Remove(loads)
		p.eventually("an answer again", func() bool { return p.chat("load", `"max_tokens":2`).status == 200 })
	})
	t.Run("mid-stream", func(t *testing.T) {
		res, r := p.open(t.Context(), "stream", 1000)
		defer res.Body.Close()
		signalPID(t, p.engine("stream"), syscall.SIGKILL)
		rest, err := io.ReadAll(r)
		if f := (reply{body: string(rest)}).failure(); err == nil || f.Code != "engine_crashed" || strings.Contains(string(rest), "[DONE]") {
			t.Errorf("the stream ended with %v\n%s", err, rest)
		}
		p.eventually("an answer again", func() bool { return p.chat("stream", `"max_tokens":2`).status == 200 })
	})
}

// TestEngineHangs: a stopped engine answers nothing although its health endpoint may; the
// hang is detected by missing tokens.
func TestEngineHangs(t *testing.T) {
	t.Parallel()
	p := spawn(t, map[string]string{"m.yaml": tiny(t, "m", "args: [--token-delay, 20ms]\ndeadlines: {hang: 1s, firstToken: 5s}")})
	res, r := p.open(t.Context(), "m", 1000)
	defer res.Body.Close()
	pid := p.engine("m")
	signalPID(t, pid, syscall.SIGSTOP)
	rest, _ := io.ReadAll(r)
	if f := (reply{body: string(rest)}).failure(); f.Code == "" || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream of a hung engine ended as\n%s", rest)
	}
	p.eventually("the hung process gone", func() bool { return syscall.Kill(pid, 0) != nil })
	p.eventually("an answer again", func() bool { return p.chat("m", `"max_tokens":2`).status == 200 })
}

// TestRequestCrashesEngines: a request in flight at two crashes runs alone, and is refused
// when the engine crashes a third time. All others are answered, before and afterwards.
func TestRequestCrashesEngines(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"m.yaml": fakeModel("m", "", "")})
	if r := p.chat("m", ""); r.status != 200 {
		t.Fatal(r)
	}
	crashes := func() (n int) {
		for _, e := range p.items("/api/v1/events") {
			if e["kind"] == "failed" {
				n++
			}
		}
		return n
	}
	var codes []string
	p.eventually("a refusal", func() bool {
		r := p.chat("m", `"user":"crash-engine"`)
		if code := r.failure().Code; len(codes) == 0 || codes[len(codes)-1] != code {
			codes = append(codes, code)
		}
		return r.status == 422
	})
	if codes[0] != "engine_crashed" || codes[len(codes)-1] != "request_quarantined" {
		t.Error(codes)
	}
	p.eventually("an answer to another", func() bool { return p.chat("m", `"user":"b"`).status == 200 })
	engine, before := p.engine("m"), crashes()
	if r := p.chat("m", `"user":"crash-engine"`); r.status != 422 || !strings.Contains(r.failure().Message, "Change the request") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := p.chat("m", `"user":"c"`); r.status != 200 || p.engine("m") != engine || crashes() != before || before != 3 {
		t.Errorf("%d, engine %d then %d, %d crashes then %d", r.status, engine, p.engine("m"), before, crashes())
	}
}

// TestBrokenStreams: engines end streams in ways that look complete and are not.
func TestBrokenStreams(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for _, mode := range []string{"cut", "half", "frame"} {
		files[mode+".yaml"] = fakeModel(mode, "--mode "+mode, "")
	}
	p := start(t, files)
	for mode := range files {
		mode = strings.TrimSuffix(mode, ".yaml")
		r := p.chat(mode, `"stream":true`)
		if r.status != 200 || r.failure().Message == "" {
			t.Errorf("%s: %d %v\n%s", mode, r.status, r.err, r.body)
		}
		if mode != "frame" && strings.Contains(r.body, "[DONE]") {
			t.Errorf("%s: a broken stream ended with [DONE]:\n%s", mode, r.body)
		}
	}
}

func TestClientLeaves(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"warm.yaml": tiny(t, "warm", "args: [--token-delay, 200ms]"), // its answer outlasts the test's wait
	})
	t.Run("mid-stream", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		res, _ := p.open(ctx, "warm", 1000)
		leave()
		res.Body.Close()
		p.eventually("the slot free", func() bool { return p.metric(`thaw_active_requests{`) == 0 })
		endpoint := fmt.Sprint(p.items("/api/v1/replicas")[0]["endpoint"])
		p.eventually("the generation cancelled", func() bool {
			r, err := web.Get(endpoint + "/metrics")
			if err != nil {
				return false
			}
			defer r.Body.Close()
			b, _ := io.ReadAll(r.Body)
			return value(string(b), "vllm:num_requests_running{") == 0
		})
	})
}

// metric sums the samples whose line begins with prefix.
func (p *platform) metric(prefix string) float64 {
	r := p.do("GET", "/metrics", "")
	return value(r.body, prefix)
}

func value(text, prefix string) (sum float64) {
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		if line := s.Text(); strings.HasPrefix(line, prefix) {
			var v float64
			fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v)
			sum += v
		}
	}
	return sum
}

func TestClientLeavesWhileCold(t *testing.T) {
	t.Parallel()
	loads := filepath.Join(t.TempDir(), "loads")
	if err := os.WriteFile(loads, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, map[string]string{"m.yaml": fakeModel("m", "--loads "+loads, "scale: {idle: 500ms}")})
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		req := strings.NewReader(chatBody("m", ""))
		r, err := newRequest(ctx, p.url+"/v1/chat/completions", req)
		if err == nil {
			r.Body.Close()
		}
	}()
	p.eventually("a held request, and an engine", func() bool { return p.metric("thaw_buffered_requests{") == 1 && p.engine("m") != 0 })
	leave()
	<-done
	p.eventually("the held request forgotten", func() bool { return p.metric("thaw_buffered_requests{") == 0 })
	// The engine's process exists: the replica becomes READY and ends after its idle time.
	os.Remove(loads)
	p.eventually("READY all the same", func() bool { return len(p.items("/api/v1/events?function=default/m&kind=ready")) > 0 })
	p.eventually("gone after its idle time", func() bool { return p.state("default/m") == "" && p.engine("m") == 0 })
}

func TestServerKilledAndBack(t *testing.T) {
	t.Parallel()
	p := spawn(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "")})
	if r := p.chat("tiny", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	engine := p.engine("tiny")
	p.kill()
	p.respawn()
	p.eventually("the live engine adopted", func() bool { return p.state("default/tiny") == "READY" })
	if now := p.engine("tiny"); now != engine {
		t.Errorf("engine %d became %d", engine, now)
	}
	if r := p.chat("tiny", `"max_tokens":2`); r.status != 200 || r.header.Get("Thaw-Cold-Start") != "" {
		t.Errorf("after adoption: %d %v", r.status, r.header)
	}
}

func TestServerKilledForGood(t *testing.T) {
	t.Parallel()
	p := spawn(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "")}, "--orphan-timeout", "5s")
	if r := p.chat("tiny", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	p.kill()
	if len(p.processes()) < 2 {
		t.Errorf("keeper and engine died with the server: %v", p.processes())
	}
	p.awaitNoProcess()
}

func TestTermWithStreamInFlight(t *testing.T) {
	t.Parallel()
	p := spawn(t, map[string]string{"m.yaml": tiny(t, "m", "args: [--token-delay, 5ms]")})
	res, r := p.open(t.Context(), "m", 150)
	defer res.Body.Close()
	p.proc.Process.Signal(syscall.SIGTERM)
	rest, err := io.ReadAll(r)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("a stream was cut by the drain: %v\n%s", err, rest)
	}
	if err := p.proc.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	p.proc = nil
	p.awaitNoProcess()
}

// TestAgentKilled: replicas of a killed agent are started elsewhere.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	p := spawn(t, map[string]string{
		"m.yaml": tiny(t, "m", "resources: {memory: 2Gi}"),
	}, "--memory", "1Gi")
	a := p.agent("second", "--memory", "4Gi")
	p.eventually("two nodes", func() bool { return len(p.items("/api/v1/nodes")) == 2 })
	if r := p.chat("m", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	if n := p.items("/api/v1/replicas")[0]["node"]; n != "second" {
		t.Fatalf("placed on %v", n)
	}
	p.agent("third", "--memory", "4Gi")
	p.eventually("three nodes", func() bool { return len(p.items("/api/v1/nodes")) == 3 })
	a()
	p.eventually("an answer from another node", func() bool {
		r := p.chat("m", `"max_tokens":2`)
		for _, x := range p.items("/api/v1/replicas") {
			if x["node"] == "third" && x["state"] == "READY" {
				return r.status == 200
			}
		}
		return false
	})
}
