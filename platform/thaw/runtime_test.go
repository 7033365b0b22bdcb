package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
)

// nodeLoader plays the loader of a pod's node at its socket. It has folders
// in its store and records requests and reports.
type nodeLoader struct {
	t       *testing.T
	store   string
	folders map[string]string // source to folder

	mu    sync.Mutex
	ln    net.Listener
	conns map[*jsonsocket.Conn]bool
	asked []controlstream.Stage
	hello controlstream.Shim
	said  []functions.ReplicaStatus
	fails controlstream.Failed // the answer for unknown sources
	mute  bool                 // requests are not answered
	wg    sync.WaitGroup
}

func newNodeLoader(t *testing.T) *nodeLoader {
	t.Helper()
	store, err := os.MkdirTemp("", "thaw-pod") // short, for a unix socket
	if err != nil {
		t.Fatal(err)
	}
	l := &nodeLoader{t: t, store: store, folders: map[string]string{}, conns: map[*jsonsocket.Conn]bool{}}
	t.Cleanup(func() { l.close(); os.RemoveAll(store) })
	return l
}

// has copies a checkpoint into the store.
func (l *nodeLoader) has(source, dir string) {
	l.t.Helper()
	to := filepath.Join(l.store, fmt.Sprintf("checkpoint-%d", len(l.folders)))
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		l.t.Fatal(err)
	}
	l.folders[source] = to
}

func (l *nodeLoader) open() {
	l.t.Helper()
	path := filepath.Join(l.store, "sockets", "loader.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatal(err)
	}
	os.Remove(path)
	ln, err := net.Listen("unix", path)
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	l.ln = ln
	l.mu.Unlock()
	l.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.serve(c) })
		}
	})
}

// close closes the socket and every connection, as the end of the process would.
func (l *nodeLoader) close() {
	l.mu.Lock()
	if l.ln != nil {
		l.ln.Close()
	}
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *nodeLoader) serve(nc net.Conn) {
	c := jsonsocket.NewConn(nc, controlstream.MaxLine)
	defer c.Close()
	var m controlstream.FromPod
	if c.Receive(&m) != nil || m.Hello == nil {
		return
	}
	l.mu.Lock()
	l.hello, l.conns[c] = *m.Hello, true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}()
	c.Send(controlstream.ToPod{Welcome: &controlstream.Welcome{Node: "n1", UID: "u1", Store: l.store}})
	for {
		var m controlstream.FromPod
		if c.Receive(&m) != nil {
			return
		}
		l.mu.Lock()
		if m.Status != nil {
			l.said = append(l.said, *m.Status)
		}
		mute, fails := l.mute, l.fails
		if m.Stage != nil {
			l.asked = append(l.asked, *m.Stage)
		}
		l.mu.Unlock()
		if s := m.Stage; s != nil && !mute {
			dir, ok := l.folders[s.Source]
			if !ok {
				fails.ID = s.ID
				c.Send(controlstream.ToPod{Failed: &fails})
				continue
			}
			c.Send(controlstream.ToPod{Staging: &controlstream.Staging{ID: s.ID, Done: 1, Total: 2, State: "fetching"}})
			c.Send(controlstream.ToPod{Staged: &controlstream.Staged{ID: s.ID, Path: dir, Digest: "sha256:" + filepath.Base(dir), Bytes: 2}})
		}
	}
}

// send sends a message to every shim.
func (l *nodeLoader) send(m controlstream.ToPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Send(m)
	}
}

// last returns the newest status.
func (l *nodeLoader) last() (st functions.ReplicaStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.said); n > 0 {
		st = l.said[n-1]
	}
	return st
}

func (l *nodeLoader) stages() []controlstream.Stage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]controlstream.Stage(nil), l.asked...)
}

// podProcess is a shim in its own process, as in a pod. The platform's request methods send to
// it.
type podProcess struct {
	*platform
	out     *journal // the engine's output
	message string   // the termination message
	scratch string
	ended   chan struct{}
	exit    int
}

var answersOn = regexp.MustCompile(`address=\S+:(\d+)`)

// runtimeOf starts a shim for a model file.
func runtimeOf(t *testing.T, store, model string, args ...string) *podProcess {
	t.Helper()
	root, err := os.MkdirTemp("", "thaw-pod")
	if err != nil {
		t.Fatal(err)
	}
	p := &podProcess{platform: &platform{t: t, log: &journal{}, data: root}, out: &journal{}, message: filepath.Join(root, "last-words"),
		scratch: filepath.Join(root, "tmp"), ended: make(chan struct{})}
	if err := os.WriteFile(p.message, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Mkdir(p.scratch, 0o777)
	c := exec.Command(os.Args[0], append([]string{"runtime", "--port", "0", "--sockets", filepath.Join(store, "sockets"), "--termination-message", p.message, "--dir", filepath.Join(p.scratch, "thaw")}, args...)...)
	c.Env = append(os.Environ(), "THAW_MODEL="+model, "TMPDIR="+p.scratch, "HOME="+p.scratch, "JOURNEY="+p.scratch)
	c.Stdout, c.Stderr = p.out, p.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p.proc = c
	go func() {
		c.Wait()
		p.exit = c.ProcessState.ExitCode()
		close(p.ended)
	}()
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			c.Process.Kill()
			<-p.ended
		}
		// Every engine has the folder in its arguments or its environment.
		p.eventually("all processes gone", func() bool { return len(processesMarked(p.scratch)) == 0 })
		if t.Failed() {
			t.Logf("the shim's log:\n%s\nthe engine's:\n%s", p.log, p.out)
		}
		os.RemoveAll(root)
	})
	p.eventually("an address", func() bool {
		if m := answersOn.FindStringSubmatch(p.log.String()); m != nil {
			p.url = "http://127.0.0.1:" + m[1]
		}
		return p.url != "" || p.hasEnded()
	})
	return p
}

func (p *podProcess) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// ends waits until the shim ends and checks its exit code and the words in its termination
// message.
func (p *podProcess) ends(exit int, words ...string) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(60 * time.Second):
		p.t.Fatalf("it does not end")
	}
	if p.exit != exit {
		p.t.Errorf("exit code %d, want %d", p.exit, exit)
	}
	b, _ := os.ReadFile(p.message)
	for _, w := range words {
		if !strings.Contains(string(b), w) || !strings.Contains(p.log.String(), w) {
			p.t.Errorf("%q is not in the last words %q and the log", w, b)
		}
	}
	if strings.Contains(string(b), "\n") || len(words) == 0 && len(b) > 0 {
		p.t.Errorf("its last words are %q", b)
	}
	if _, err := os.Stat(filepath.Join(p.scratch, "thaw")); !errors.Is(err, os.ErrNotExist) {
		p.t.Errorf("its folder is left: %v", err)
	}
}

// terminate does what the cluster does with a shim that reported a failure: it sends SIGTERM.
// The shim must wait for that, since a container that exits is restarted.
func (p *podProcess) terminate(l *nodeLoader) {
	p.t.Helper()
	p.eventually("the loader knows of the failure", func() bool { return l.last().State == functions.Failed || p.hasEnded() })
	if p.hasEnded() {
		p.t.Error("it has not waited for its end")
		return
	}
	signalPID(p.t, p.proc.Process.Pid, syscall.SIGTERM)
}

func (p *podProcess) ready() {
	p.t.Helper()
	p.eventually("ready", func() bool { return p.do("GET", "/readyz", "").status == 200 || p.hasEnded() })
	if p.hasEnded() {
		p.t.Fatalf("it ended with %d", p.exit)
	}
}

// inPodOf returns a model file as a pod has it.
func inPodOf(source, engine, more string) string {
	return modelFile("ml/tiny", "  source: "+source+"\n  engine: "+engine+"\n"+indent(more))
}

const tinySource = "az://acct/models/tiny"

func TestRuntime(t *testing.T) {
	t.Parallel()
	l := newNodeLoader(t)
	l.has(tinySource, tinyDir(t))
	l.open()
	p := runtimeOf(t, l.store, inPodOf(tinySource, "ember", "files: [\"*.md\"]\n"))
	p.ready()
	for path, want := range map[string]int{"/readyz": 200, "/livez": 200, "/": 404, "/metrics": 404, "/sleep": 404, "/v1/load_lora_adapter": 404, "/v1/models": 200} {
		if r := p.do("GET", path, ""); r.status != want {
			t.Errorf("GET %s: %d %s", path, r.status, r.body)
		}
	}
	if r := p.chat("tiny", ""); r.status != 200 || r.text() == "" {
		t.Errorf("a chat: %d %s", r.status, r.body)
	}
	if r := p.chat("tiny", `"stream":true`); r.status != 200 || r.text() == "" || !strings.Contains(r.body, "[DONE]") {
		t.Errorf("a stream: %d %s", r.status, r.body)
	}
	if r := p.do("POST", "/infer", `{"model":"tiny","prompt":"What","max_tokens":2}`); r.status != 200 || !strings.Contains(r.body, "text_completion") {
		t.Errorf("a completion by /infer: %d %s", r.status, r.body)
	}
	if r := p.do("GET", "/infer", ""); r.status != 405 {
		t.Errorf("GET /infer: %d", r.status)
	}
	line := p.timeline()
	if line.State != functions.Ready || line.Function != "ml/tiny" || line.Node != "n1" || line.Start != functions.StartPlain {
		t.Errorf("the timeline: %+v", line)
	}
	phases := map[functions.Phase]bool{}
	for _, s := range line.Phases {
		phases[s.Phase] = true
	}
	for _, want := range []functions.Phase{functions.PhaseStage, functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup} {
		if !phases[want] {
			t.Errorf("no phase %s in %+v", want, line.Phases)
		}
	}
	p.eventually("a word to the loader", func() bool { return l.last().State == functions.Ready })
	st := l.last()
	l.mu.Lock()
	port := l.hello.Port
	l.mu.Unlock()
	if !strings.HasSuffix(st.Endpoint, fmt.Sprintf(":%d", port)) || strings.Contains(st.Endpoint, "127.0.0.1") || st.Key != "" ||
		st.ID != "" || st.State != functions.Ready || st.Team != "ml" || st.Model != "tiny" {
		t.Errorf("the loader was told %+v", st)
	}
	if s := l.stages(); len(s) != 1 || s[0].Source != tinySource || len(s[0].Files) != 1 {
		t.Errorf("the loader was asked for %+v", s)
	}
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
	// Its last report may still be in the socket.
	p.eventually("the word of its end", func() bool { return l.last().State == functions.Unloaded })
	if !strings.Contains(p.out.String(), "listening on") {
		t.Errorf("what the engine says is not in the container's log: %q", p.out)
	}
}

// commandInPod returns a model of the fake engine, which needs no weights.
func commandInPod(flags, more string) string {
	return fakeModel("ml/tiny", flags, more)
}

// TestRuntimeDrains: requests in flight may finish, whichever way the stop arrives.
func TestRuntimeDrains(t *testing.T) {
	t.Parallel()
	l := newNodeLoader(t)
	l.open()
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(p *podProcess){
		"by its container": func(p *podProcess) { p.proc.Process.Signal(syscall.SIGTERM) },
		"by the loader": func(p *podProcess) {
			l.send(controlstream.ToPod{Stop: &controlstream.Drain{Seconds: 60, Reason: "makes way for ml/other"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			os.WriteFile(hold, nil, 0o600)
			p := runtimeOf(t, l.store, commandInPod("--holds "+hold, ""))
			p.ready()
			p.eventually("a word to the loader", func() bool { return l.last().State == functions.Ready })
			res, rest := p.open(t.Context(), "tiny", 1)
			defer res.Body.Close()
			end(p)
			p.eventually("not ready", func() bool {
				r := p.do("GET", "/readyz", "")
				return r.status == 503 && strings.Contains(r.body, "draining")
			})
			if p.hasEnded() {
				t.Fatal("it ended with a stream open")
			}
			os.Remove(hold)
			if b, err := io.ReadAll(rest); err != nil || !strings.Contains(string(b), "[DONE]") {
				t.Errorf("the stream ended with %q, %v", b, err)
			}
			p.eventually("the word of its end", func() bool { return l.last().State == functions.Unloaded })
			if name == "by the loader" {
				// It must not exit: Kubernetes would restart the container until its pod is deleted.
				if r := p.chat("tiny", ""); p.hasEnded() || r.status != 503 || r.failure().Code != "shutting_down" {
					t.Errorf("after the stop: %d %s", r.status, r.body)
				}
				p.proc.Process.Signal(syscall.SIGTERM)
			}
			p.ends(0)
		})
	}
}

// TestRuntimeChecksRequests: a request that did not come through the gateway is checked by
// all bounds before the engine, and the engine never gets the client's request id.
func TestRuntimeChecksRequests(t *testing.T) {
	t.Parallel()
	p := runtimeOf(t, t.TempDir(), commandInPod("", ""))
	p.ready()
	for _, x := range []struct{ body, param string }{
		{`"n":100000`, "/n"},
		{`"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string","pattern":"(a+)+\\1$"}}}`, "/response_format"},
		{`"guided_json":"{\"type\":\"string\",\"minLength\":1000000000}"`, "/guided_json"},
		{`"logprobs":100000`, "/logprobs"},
		{`"request_id":"evil"`, "/request_id"},
		{`"kv_transfer_params":{"remote_host":"10.0.0.1"}`, "/kv_transfer_params"},
		{`"cache_salt":"a\nb"`, "/cache_salt"},
		{`"media":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]`, "/media"},
		{`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]`, "/messages"},
		{`"n":1,"n":2`, "/n"},
	} {
		for _, path := range []string{"/infer", "/v1/chat/completions", "/v1/completions", "/v1/score"} {
			if r := p.do("POST", path, `{"model":"tiny",`+x.body+`}`); r.status != 400 || r.failure().Param != x.param {
				t.Errorf("%s %s: %d %s", path, x.body, r.status, r.body)
			}
		}
	}
	seen := map[string]bool{}
	for _, path := range []string{"/infer", "/v1/chat/completions"} {
		for range 2 {
			r := p.do("POST", path, `{"model":"tiny","messages":[{"role":"user","content":"echo-id"}]}`, "X-Request-Id", "evil-id")
			id := r.text()
			if r.status != 200 || len(id) != 32 || seen[id] {
				t.Errorf("%s: the engine got the id %q: %d %s", path, id, r.status, r.body)
			}
			seen[id] = true
		}
	}
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
}

// TestRuntimeDrainsNoLonger: a stream longer than the drain is cut, and the shim ends.
func TestRuntimeDrainsNoLonger(t *testing.T) {
	t.Parallel()
	p := runtimeOf(t, t.TempDir(), commandInPod("--mode flood", "deadlines: {drain: 300ms}\n"))
	p.ready()
	res, rest := p.open(t.Context(), "tiny", 1)
	defer res.Body.Close()
	p.proc.Process.Signal(syscall.SIGTERM)
	if _, err := io.Copy(io.Discard, rest); err == nil {
		t.Error("the stream ended as if it were whole")
	}
	p.ends(0)
}

// TestRuntimeOutputIsNotRead: a shim whose stdout is not read answers, and ends (F33).
func TestRuntimeOutputIsNotRead(t *testing.T) {
	t.Parallel()
	linuxOnly(t)
	p := runtimeOf(t, t.TempDir(), commandInPod("--mode loud", ""))
	p.ready()
	p.out.mu.Lock() // which stops the reading of the pipe
	for range 3 {
		if r := p.chat("tiny", ""); r.status != 200 {
			t.Errorf("%d %v %s", r.status, r.err, r.body)
		}
	}
	p.proc.Process.Signal(syscall.SIGTERM)
	p.eventually("the shim has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.proc.Process.Pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
	p.out.mu.Unlock()
	p.ends(0)
}

// TestRuntimeLoaderComesAndGoes: the loader may start late and be restarted.
func TestRuntimeLoaderComesAndGoes(t *testing.T) {
	t.Parallel()
	l := newNodeLoader(t)
	l.has(tinySource, tinyDir(t))
	l.mute = true
	p := runtimeOf(t, l.store, inPodOf(tinySource, "ember", ""))
	p.eventually("a word in the log", func() bool {
		return strings.Contains(p.log.String(), "the weights come from it") && strings.Contains(p.log.String(), `"giving up after"=2m0s`)
	})
	if r := p.do("GET", "/readyz", ""); r.status != 503 || !strings.Contains(r.body, "staging") {
		t.Errorf("without a loader: %d %s", r.status, r.body)
	}
	if r := p.chat("tiny", ""); r.status != 503 || r.failure().Code != "model_loading" {
		t.Errorf("without a loader: %d %s", r.status, r.body)
	}
	l.open()
	asked := func(n int) func() bool { return func() bool { return len(l.stages()) >= n } }
	p.eventually("a wish for the weights", asked(1))
	// The loader ends before the checkpoint is staged; the next one has it.
	l.close()
	l.mute = false
	l.open()
	p.ready()
	p.eventually("that it is ready", func() bool { return l.last().State == functions.Ready })
	// The loader ends while the weights are in use.
	l.close()
	p.eventually("a word in the log", func() bool { return strings.Contains(p.log.String(), "dialling again") })
	if r := p.chat("tiny", ""); r.status != 200 {
		t.Errorf("without a loader: %d %s", r.status, r.body)
	}
	n := len(l.stages())
	l.mu.Lock()
	l.said = nil
	l.mu.Unlock()
	l.open()
	p.eventually("all of it again", func() bool { return asked(n+1)() && l.last().State == functions.Ready })
	if s := l.stages()[n]; s.Digest != "sha256:checkpoint-0" || s.Source != tinySource {
		t.Errorf("it asked again for %+v, and not for what it has", s)
	}
	// A late failure of an earlier request changes nothing.
	l.send(controlstream.ToPod{Failed: &controlstream.Failed{ID: 1, Kind: "source_not_found", Message: "gone"}})
	if r := p.chat("tiny", ""); r.status != 200 {
		t.Errorf("after a failure of another request: %d %s", r.status, r.body)
	}
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
}

// TestRuntimeFails: each failure has an exit code and a termination message of one line.
func TestRuntimeFails(t *testing.T) {
	t.Parallel()
	known := newNodeLoader(t)
	known.fails = controlstream.Failed{Kind: "source_not_found", Message: "no such container: models", Fix: "look at the account"}
	known.open()
	dies := filepath.Join(t.TempDir(), "dies")
	if err := os.WriteFile(dies, []byte("RuntimeError: the weights are of another shape"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		store, model string
		args         []string
		exit         int
		words        []string
	}{
		"no model":           {model: "  ", exit: kit.ExitUsage, words: []string{"THAW_MODEL is empty"}},
		"no YAML":            {model: "{{", exit: kit.ExitUsage, words: []string{"THAW_MODEL"}},
		"an unknown key":     {model: inPodOf("az://a/b", "ember", "sacle: {}\n"), exit: kit.ExitUsage, words: []string{"THAW_MODEL", "sacle"}},
		"a team":             {model: "apiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: a}\n", exit: kit.ExitUsage, words: []string{"one document of kind Model"}},
		"two models":         {model: inPodOf("az://a/b", "ember", "") + "---\n" + inPodOf("az://a/c", "ember", ""), exit: kit.ExitUsage, words: []string{"THAW_MODEL"}},
		"no loader":          {model: inPodOf(tinySource, "ember", ""), args: []string{"--loader-wait", "300ms"}, exit: kit.ExitUnavailable, words: []string{"loader does not answer", "300ms"}},
		"no source":          {store: known.store, model: inPodOf("az://acct/none", "ember", ""), exit: kit.ExitFailed, words: []string{"no such container", "look at the account"}},
		"no program":         {model: modelFile("ml/tiny", "  engine: command\n  args: [/nowhere/engine, \"{port}\"]\n"), exit: kit.ExitFailed, words: []string{"/nowhere/engine"}},
		"the engine's fault": {model: commandInPod("--dies "+dies, ""), exit: kit.ExitFailed, words: []string{"the weights are of another shape"}},
		"never ready":        {model: modelFile("ml/tiny", "  engine: command\n  args: [sleep, \"60\"]\n  env: {P: \"{port}\"}\n  deadlines: {start: 1s}\n"), exit: kit.ExitFailed, words: []string{"not ready within 1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.store == "" {
				c.store = t.TempDir()
			}
			p := runtimeOf(t, c.store, c.model, c.args...)
			if c.store == known.store {
				p.terminate(known)
			}
			p.ends(c.exit, c.words...)
		})
	}
	if st := known.last(); st.State != functions.Failed || !strings.Contains(st.Error, "no such container") {
		t.Errorf("the loader was told %+v", st)
	}
}

// TestRuntimeEngineDies: if the engine ends, the shim is not ready and exits as well.
func TestRuntimeEngineDies(t *testing.T) {
	t.Parallel()
	l := newNodeLoader(t)
	l.open()
	p := runtimeOf(t, l.store, commandInPod("", ""))
	p.ready()
	var engine int
	for _, pid := range processesMarked(p.scratch) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), "\x00fake\x00") {
			engine = pid
		}
	}
	signalPID(t, engine, syscall.SIGKILL)
	p.terminate(l)
	p.ends(kit.ExitFailed, "ended while ready", "killed")
	if st := l.last(); st.State != functions.Failed || st.Endpoint != "" {
		t.Errorf("the loader was told %+v", st)
	}
}

// TestRuntimeEngineBreaks: an engine that answers each request with an error, though its health
// is good, ends the shim.
func TestRuntimeEngineBreaks(t *testing.T) {
	t.Parallel()
	p := runtimeOf(t, t.TempDir(), commandInPod("", ""))
	p.ready()
	for range 2 {
		if r := p.chat("tiny", `"user":"break-engine"`); r.status != 500 || !strings.Contains(r.body, "illegal memory access") {
			t.Errorf("%d %v %s", r.status, r.err, r.body)
		}
	}
	p.ends(kit.ExitFailed, "answers with errors alone: HTTP 500: CUDA error: an illegal memory access was encountered")
}

// TestRuntimeAdapters: the loader stages a vLLM adapter at its first request.
func TestRuntimeAdapters(t *testing.T) {
	_, program, _ := strings.Cut(asVLLM(t), "=")
	t.Setenv("THAW_ENGINE_VLLM", program)
	l := newNodeLoader(t)
	dir := t.TempDir()
	writeAdapter(t, filepath.Join(dir, "pirate"), "v_proj", `{"r":8}`)
	writeAdapter(t, filepath.Join(dir, "wide"), "q_proj", `{"r":64}`)
	l.has(tinySource, tinyDir(t))
	l.has("az://a/pirate", filepath.Join(dir, "pirate"))
	l.has("az://a/wide", filepath.Join(dir, "wide"))
	l.open()
	p := runtimeOf(t, l.store,
		inPodOf(tinySource, "vllm",
			"adapters: [{name: pirate, source: az://a/pirate}, {name: wide, source: az://a/wide}, {name: lost, source: az://a/lost}]\n"))
	p.ready()
	for model, want := range map[string]struct {
		status int
		starts string
	}{
		"tiny": {200, "tiny of "}, "tiny:pirate": {200, "pirate of "}, "pirate": {200, "pirate of "},
		"tiny:wide": {400, "adapter_invalid"}, "lost": {503, "adapter_unavailable"}, "tiny:cook": {404, ""},
	} {
		r := p.chat(model, "")
		said := r.text()
		if r.status != 200 {
			said = r.failure().Code
		}
		if r.status != want.status || !strings.HasPrefix(said, want.starts) {
			t.Errorf("%s: %d %s", model, r.status, r.body)
		}
	}
	p.eventually("a word of it", func() bool { return fmt.Sprint(l.last().Adapters) == "[pirate]" })
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
}

func TestRuntimeInstall(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "thaw")
	for range 2 { // also over an existing file
		var out, errs strings.Builder
		if exit := run(t.Context(), []string{"runtime", "--install", to}, strings.NewReader(""), &out, &errs); exit != 0 || out.String()+errs.String() != "" {
			t.Fatalf("%d %s%s", exit, out.String(), errs.String())
		}
		st, err := os.Stat(to)
		own, err2 := os.Stat(os.Args[0])
		if err != nil || err2 != nil || st.Size() != own.Size() || st.Mode().Perm() != 0o755 {
			t.Fatalf("%v %v %v", st, err, err2)
		}
	}
	for _, bad := range []string{dir, filepath.Join(dir, "none", "thaw")} {
		var errs strings.Builder
		if exit := run(t.Context(), []string{"runtime", "--install", bad}, strings.NewReader(""), io.Discard, &errs); exit != 1 || errs.Len() == 0 {
			t.Errorf("%s: %d %s", bad, exit, errs.String())
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestRuntimeImportsByItself: without a fork server the engine starts plainly, and the
// timeline has the reason.
func TestRuntimeImportsByItself(t *testing.T) {
	dir := t.TempDir()
	python, program := filepath.Join(dir, "python3-fake"), filepath.Join(dir, "vllm")
	for path, text := range map[string]string{
		python:  "#!/bin/sh\ncase \"$1\" in */parent-*.py) echo \"ModuleNotFoundError: No module named 'vllm'\" >&2; exit 1;; esac\nshift\nexec " + os.Args[0] + " fake-vllm \"$@\"\n",
		program: "#!" + python + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("THAW_ENGINE_VLLM", program)
	l := newNodeLoader(t)
	l.has(tinySource, tinyDir(t))
	l.open()
	p := runtimeOf(t, l.store, inPodOf(tinySource, "vllm", ""))
	p.ready()
	line := p.timeline()
	if line.Start != functions.StartPlain || !strings.Contains(line.StartNote, "No module named 'vllm'") {
		t.Errorf("started %s: %s", line.Start, line.StartNote)
	}
	if r := p.chat("tiny", ""); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
}

func (p *podProcess) timeline() (line functions.Timeline) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.do("GET", "/timeline", "").body), &line); err != nil {
		p.t.Error(err)
	}
	return line
}

// TestVLLMRuntime: a real vLLM imports its modules once for both of its processes, and the
// fork server ends once it serves.
func TestVLLMRuntime(t *testing.T) {
	checkpoint := realVLLM(t)
	l := newNodeLoader(t)
	l.has(tinySource, checkpoint)
	l.open()
	p := runtimeOf(t, l.store, inPodOf(tinySource, "vllm", `args: [--dtype, float32, --enforce-eager, --max-model-len, "512", --max-num-seqs, "8", --kv-cache-memory-bytes, "33554432"]
env: {TORCHDYNAMO_DISABLE: "1", VLLM_TARGET_DEVICE: cpu}
`))
	p.eventuallyWithin(5*time.Minute, "ready", func() bool { return p.do("GET", "/readyz", "").status == 200 || p.hasEnded() })
	line := p.timeline()
	if line.State != functions.Ready || line.Start != functions.StartPlain ||
		!strings.Contains(line.StartNote, "imported the engine while its weights came") {
		t.Fatalf("%+v", line)
	}
	t.Logf("READY after %.1f s: %+v", line.Total, line.Phases)
	if r := p.chat("tiny", `"max_tokens":4`); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	p.eventually("one process of its own left", func() bool { return !strings.Contains(commands(processesMarked(p.scratch)), "parent-") })
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
}

// commands returns the command lines of processes.
func commands(pids []int) string {
	var b strings.Builder
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}

// TestRuntimeEndsEarly: a SIGTERM before there is an engine ends the shim.
func TestRuntimeEndsEarly(t *testing.T) {
	t.Parallel()
	p := runtimeOf(t, t.TempDir(), inPodOf(tinySource, "ember", ""))
	p.eventually("a word in the log", func() bool { return strings.Contains(p.log.String(), "the weights come from it") })
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
}
