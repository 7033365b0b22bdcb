package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// These tests misuse the program in ways that the journeys do not cover.

// TestTermWithHeldRequests: held requests are answered at once when the server ends, which
// does not wait for a loading model.
func TestTermWithHeldRequests(t *testing.T) {
	t.Parallel()
	p := spawn(t, map[string]string{"m.yaml": tiny(t, "m", "args: [--ready-delay, 10m]\nqueue: {wait: 20m}\ndeadlines: {start: 20m}")})
	got := make(chan reply, 8)
	var held sync.WaitGroup
	for i := range 8 {
		held.Go(func() { got <- p.chat("m", fmt.Sprintf(`"stream":%t`, i%2 == 0)) })
	}
	// Half of them are streams, whose headers are sent after three seconds.
	p.eventually("eight held", func() bool { return p.metric("thaw_buffered_requests{") == 8 })
	res, err := newRequest(t.Context(), p.url+"/v1/chat/completions", strings.NewReader(chatBody("m", `"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() // its headers are sent
	p.proc.Process.Signal(syscall.SIGTERM)
	held.Wait()
	close(got)
	for r := range got {
		// A stream ends by its error frame, without the end of its body.
		ended := r.status == 503 && r.err == nil || r.status == 200 && errors.Is(r.err, io.ErrUnexpectedEOF)
		if f := r.failure(); f.Code != "shutting_down" || !ended || strings.Contains(r.body, "[DONE]") {
			t.Errorf("held: %d %v %s", r.status, r.err, r.body)
		}
	}
	rest, err := io.ReadAll(res.Body)
	if f := (reply{body: string(rest)}).failure(); !errors.Is(err, io.ErrUnexpectedEOF) || f.Code != "shutting_down" {
		t.Errorf("a held stream whose head is out: %v %s", err, rest)
	}
	if err := p.proc.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	p.proc = nil
	p.awaitNoProcess()
}

// TestSecondServerOnTheSameData: servers never share a data folder with its engines.
func TestSecondServerOnTheSameData(t *testing.T) {
	t.Parallel()
	p := spawn(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "")})
	if r := p.chat("tiny", `"max_tokens":2`); r.status != 200 {
		t.Fatal(r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], p.args...)
	var errs bytes.Buffer
	c.Stderr = &errs
	c.Stdout = &errs
	err := c.Run()
	if err == nil || ctx.Err() != nil || !strings.Contains(errs.String(), p.data) && !strings.Contains(errs.String(), "another") {
		t.Errorf("a second server: %v %v\n%s", err, ctx.Err(), errs.String())
	}
	if r := p.chat("tiny", `"max_tokens":2`); r.status != 200 || r.header.Get("Thaw-Cold-Start") != "" {
		t.Errorf("the first one afterwards: %d %v %s", r.status, r.header, r.body)
	}
}

// TestOldHTTP: HTTP/1.0 has no chunks. The end of the connection ends a stream, so an
// error must not look like a normal end.
func TestOldHTTP(t *testing.T) {
	t.Parallel()
	files := map[string]string{"whole.yaml": fakeModel("whole", "", "")}
	for _, mode := range []string{"cut", "half"} {
		files[mode+".yaml"] = fakeModel(mode, "--mode "+mode, "")
	}
	p := start(t, files)
	for _, c := range []struct{ model, more, want string }{
		{"whole", `"stream":true`, "data: [DONE]\n\n"},
		{"whole", `"stream":false`, `"finish_reason":"stop"`},
		{"cut", `"stream":true`, `"error"`},
		{"half", `"stream":true`, `"error"`},
	} {
		body := chatBody(c.model, c.more)
		got, err := p.sendRaw(
			fmt.Sprintf("POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				len(body), body))
		if err != nil && c.model == "whole" || !strings.Contains(got, " 200 ") || strings.Contains(strings.ToLower(got), "transfer-encoding") ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s %s: %v\n%s", c.model, c.more, err, got)
		}
	}
}

// sendRaw sends bytes and reads until the connection ends.
func (p *platform) sendRaw(s string) (string, error) {
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, s)
	b, err := io.ReadAll(c)
	return string(b), err
}

// TestWaysToSendABody checks several legal ways to send a body.
func TestWaysToSendABody(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"m.yaml": fakeModel("m", "", "")})
	body := chatBody("m", "")
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
	var chunked strings.Builder
	for i := range len(body) {
		fmt.Fprintf(&chunked, "1\r\n%c\r\n", body[i])
	}
	for name, s := range map[string]string{
		"chunked, byte by byte":     head + "Transfer-Encoding: chunked\r\n\r\n" + chunked.String() + "0\r\n\r\n",
		"chunked with a trailer":    head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Sum: 1\r\n\r\n", len(body), body),
		"chunked with an extension": head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x;a=b\r\n%s\r\n0\r\n\r\n", len(body), body),
		"100-continue, not awaited": head + fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		"two in one write":          fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body) + head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"no content type":           fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		"an offer of HTTP/2": strings.Replace(head, "Connection: close",
			"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB", 1) +
			"Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body),
		"a query": strings.Replace(head, "completions ", "completions?api-version=1&beta=true ", 1) +
			fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"white space around": strings.Replace(head, "Host: localhost", "Host:  \t localhost  ", 1) + fmt.Sprintf("Content-Length: %d \r\n\r\n  %s\n ", len(body)+4, body),
	} {
		got, err := p.sendRaw(s)
		if n := strings.Count(got, `"finish_reason":"stop"`); err != nil || n != 1+strings.Count(name, "two in one") {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
	if r := p.do("HEAD", "/v1/models", ""); r.status != 200 || r.body != "" {
		t.Errorf("HEAD: %d %q %v", r.status, r.body, r.err)
	}
	for name, s := range map[string]string{
		"gzip":             head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
		"a bad chunk":      head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		"both lengths":     head + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
		"negative":         head + "Content-Length: -1\r\n\r\n",
		"a bare newline":   "GET /v1/models HTTP/1.1\nHost: localhost\n\n",
		"a folded field":   "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
		"no host":          "GET /v1/models HTTP/1.1\r\n\r\n",
		"two hosts":        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
		"a large head":     "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 20<<10) + "\r\n\r\n",
		"HTTP/2's preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		got, _ := p.sendRaw(s)
		if !strings.HasPrefix(got, "HTTP/1.1 4") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestServerKilledUnderLoad: kill -9 of the server cuts running requests, which no client
// mistakes for complete answers. Later requests reach the same engine.
func TestServerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	loads := filepath.Join(t.TempDir(), "loads")
	if err := os.WriteFile(loads, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, map[string]string{"m.yaml": tiny(t, "m", "args: [--token-delay, 20ms]"), "cold.yaml": fakeModel("cold", "--loads "+loads, "")})
	p.args[2] = strings.TrimPrefix(p.url, "http://") // the same address as before
	if r := p.chat("m", `"max_tokens":2`); r.status != 200 {
		t.Fatal(r)
	}
	engine := p.engine("m")
	var clients sync.WaitGroup
	got := make(chan reply, 16)
	for i := range 12 {
		clients.Go(func() {
			got <- p.chat([]string{"m", "cold"}[i%2], fmt.Sprintf(`"stream":%t,"ignore_eos":true,"max_tokens":1000`, i%3 != 0))
		})
	}
	p.eventually("requests in flight and held", func() bool {
		return p.metric("thaw_active_requests{") >= 6 && p.metric("thaw_buffered_requests{") == 6
	})
	p.kill()
	clients.Wait()
	close(got)
	for r := range got {
		if r.err == nil {
			t.Errorf("ended as if whole: %d %s", r.status, r.body)
		}
	}
	os.Remove(loads)
	p.respawn()
	p.eventually("the live engine adopted", func() bool { return p.state("default/m") == "READY" })
	if now := p.engine("m"); now != engine {
		t.Errorf("engine %d became %d", engine, now)
	}
	for _, m := range []string{"m", "cold"} {
		if r := p.chat(m, `"max_tokens":2`); r.status != 200 {
			t.Errorf("%s afterwards: %d %v %s", m, r.status, r.err, r.body)
		}
	}
	if n := strings.Count(fmt.Sprint(p.items("/api/v1/replicas")), "default/cold"); n != 1 {
		t.Errorf("%d replicas of the model that was loading", n)
	}
	p.awaitNoRequests()
}

// TestEditedUnderLoad: when a model is edited while it answers, running requests finish on
// the old engine and new ones go to a new engine.
func TestEditedUnderLoad(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"m.yaml": tiny(t, "m", "args: [--token-delay, 10ms]")})
	res, r := p.open(t.Context(), "m", 150)
	defer res.Body.Close()
	old := p.engine("m")
	p.file("m.yaml", tiny(t, "m", "args: [--token-delay, 1ms]"))
	p.eventually("another engine", func() bool {
		a := p.chat("m", `"max_tokens":2`)
		if a.status != 200 {
			t.Errorf("while it changes: %d %v %s", a.status, a.err, a.body)
		}
		for _, pid := range p.processes() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if bytes.Contains(line, []byte("\x00engine\x00")) && pid != old {
				return true
			}
		}
		return false
	})
	rest, err := io.ReadAll(r)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream was cut by the edit: %v\n%s", err, rest)
	}
	p.eventually("the old engine gone", func() bool { return syscall.Kill(old, 0) != nil })
	// The model is removed during a request.
	res, r = p.open(t.Context(), "m", 150)
	defer res.Body.Close()
	os.Remove(filepath.Join(p.functions, "m.yaml"))
	if rest, err = io.ReadAll(r); err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream was cut by the removal: %v\n%s", err, rest)
	}
	p.eventually("the model gone", func() bool { return p.chat("m", "").status == http.StatusNotFound })
	p.eventually("its engine gone", func() bool { return p.engine("m") == 0 })
}

// running lists the processes of a verb.
func (p *platform) running(verb string) (pids []int) {
	for _, pid := range p.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(line, []byte("\x00"+verb+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestKeeperKilled: when a supervisor is killed, running requests are completed, and then
// another engine takes over.
func TestKeeperKilled(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	p := spawn(t, map[string]string{"m.yaml": tiny(t, "m", "args: [--token-delay, 30ms]")})
	if r := p.chat("m", `"max_tokens":2`); r.status != 200 {
		t.Fatal(r)
	}
	got := make(chan reply, 2)
	for i := range 2 {
		go func() { got <- p.chat("m", fmt.Sprintf(`"stream":%t,"ignore_eos":true,"max_tokens":150`, i == 0)) }()
	}
	p.eventually("two in flight", func() bool { return p.metric("thaw_active_requests{") == 2 })
	engine := p.engine("m")
	for _, pid := range p.running("keep") {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for range 2 {
		// An engine without its parent may end as well; then the client gets an error.
		r := <-got
		failed := r.failure().Code != ""
		whole := r.err == nil || failed && r.status == 200 && errors.Is(r.err, io.ErrUnexpectedEOF) // a stream that breaks has no end
		if !whole || r.status == 200 && !failed && !strings.Contains(r.body, `"finish_reason":"length"`) {
			t.Errorf("%d %v %s", r.status, r.err, r.body)
		}
	}
	p.eventually("the old engine gone", func() bool { return syscall.Kill(engine, 0) != nil })
	p.eventually("an answer again", func() bool { return p.chat("m", `"max_tokens":2`).status == 200 })
	if n := len(p.running("engine")); n != 1 {
		t.Errorf("%d engines", n)
	}
}

// TestMachineUnreachable: a machine stops as a whole and closes no connection. Requests
// that wait for it fail in time, and its models start elsewhere.
func TestMachineUnreachable(t *testing.T) {
	linuxOnly(t)
	t.Parallel()
	p := spawn(t, map[string]string{"m.yaml": tiny(t, "m", "args: [--token-delay, 40ms]\nresources: {memory: 2Gi}")}, "--memory", "1Gi", "--addr", "0.0.0.0:0")
	p.bearer = p.admin()
	// By this address agents do not know that they are on the server's machine, so requests
	// go through them, over TLS.
	server, _ := p.joinToken("")
	far := strings.Replace(server, "127.0.0.1", "0.0.0.0", 1)
	p.agent("second", "--memory", "4Gi", "--server", far)
	p.eventually("two nodes", func() bool { return len(p.items("/api/v1/nodes")) == 2 })
	if r := p.chat("m", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	for _, r := range p.items("/api/v1/replicas") {
		if endpoint := fmt.Sprint(r["endpoint"]); !strings.HasPrefix(endpoint, "https://") {
			t.Errorf("requests reach the agent's replica at %s", endpoint)
		}
	}
	p.agent("third", "--memory", "4Gi", "--server", far)
	p.eventually("three nodes", func() bool { return len(p.items("/api/v1/nodes")) == 3 })
	got := make(chan reply, 4)
	res, begun := p.open(t.Context(), "m", 100)
	defer res.Body.Close()
	for i := range 4 {
		go func() { got <- p.chat("m", fmt.Sprintf(`"stream":%t,"ignore_eos":true,"max_tokens":100`, i%2 == 0)) }()
	}
	p.eventually("five in flight", func() bool { return p.metric("thaw_active_requests{") == 5 })
	stopped := p.running("engine")
	for _, pid := range append(p.running("agent"), p.running("keep")...) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(line, []byte("-second")) {
			stopped = append(stopped, pid)
		}
	}
	for _, pid := range stopped {
		signalPID(t, pid, syscall.SIGSTOP)
	}
	defer func() {
		for _, pid := range stopped {
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}()
	began := time.Now()
	for range 4 {
		select {
		case r := <-got:
			// It failed with an error or was answered by the other machine.
			// A stream that had begun ends with an error frame and without its terminating chunk.
			told := r.failure().Code != ""
			if r.err != nil && !(told && errors.Is(r.err, io.ErrUnexpectedEOF)) || !told && !strings.Contains(r.body, `"finish_reason":"length"`) {
				t.Errorf("%d %v %s", r.status, r.err, r.body)
			}
		case <-time.After(60 * time.Second):
			t.Fatalf("a request still waits: %v", p.items("/api/v1/replicas"))
		}
	}
	rest, err := io.ReadAll(begun)
	if f := (reply{body: string(rest)}).failure(); !errors.Is(err, io.ErrUnexpectedEOF) || f.Code != "engine_crashed" ||
		strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream that had begun: %v\n%s", err, rest)
	}
	t.Logf("all were told within %s", time.Since(began))
	p.eventually("an answer of another machine", func() bool { return p.chat("m", `"max_tokens":2`).status == 200 })
}
