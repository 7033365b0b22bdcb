package main

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/thaw-dev/thaw/platform/link"
)

// nodeLoader is the loader of a pod's node as the socket knows it: it has the
// folders of shelf in its store, and says what it is asked.
type nodeLoader struct {
	t     *testing.T
	store string
	shelf map[string]string // source to folder

	mu    sync.Mutex
	ln    net.Listener
	conns map[net.Conn]bool
	asked []link.Stage
	hello link.Shim
	said  []functions.ReplicaStatus
	fails link.Failed // the answer to sources it does not know
	mute  bool        // stagings are not answered
	wg    sync.WaitGroup
}

func newNodeLoader(t *testing.T) *nodeLoader {
	t.Helper()
	store, err := os.MkdirTemp("", "thaw-pod") // short: it holds a unix socket
	if err != nil {
		t.Fatal(err)
	}
	l := &nodeLoader{t: t, store: store, shelf: map[string]string{}, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { l.close(); os.RemoveAll(store) })
	return l
}

// has puts a checkpoint into the store and gives the path in it.
func (l *nodeLoader) has(source, dir string) {
	l.t.Helper()
	to := filepath.Join(l.store, fmt.Sprintf("checkpoint-%d", len(l.shelf)))
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		l.t.Fatal(err)
	}
	l.shelf[source] = to
}

func (l *nodeLoader) open() {
	l.t.Helper()
	path := filepath.Join(l.store, "loader.sock")
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

// close ends the socket and every connection, as the end of the process would.
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

func (l *nodeLoader) serve(c net.Conn) {
	defer c.Close()
	in := link.NewLines(c)
	var m link.FromPod
	if in.Read(&m) != nil || m.Hello == nil {
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
	link.WriteLine(c, link.ToPod{Welcome: &link.Welcome{Node: "n1", UID: "u1", Store: l.store}})
	for {
		var m link.FromPod
		if in.Read(&m) != nil {
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
			dir, ok := l.shelf[s.Source]
			if !ok {
				fails.ID = s.ID
				link.WriteLine(c, link.ToPod{Failed: &fails})
				continue
			}
			link.WriteLine(c, link.ToPod{Staging: &link.Staging{ID: s.ID, Done: 1, Total: 2, State: "fetching"}})
			link.WriteLine(c, link.ToPod{Staged: &link.Staged{ID: s.ID, Path: dir, Digest: "sha256:" + filepath.Base(dir), Bytes: 2}})
		}
	}
}

// tell says something to every shim.
func (l *nodeLoader) tell(m link.ToPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		link.WriteLine(c, m)
	}
}

// last is the newest status.
func (l *nodeLoader) last() (st functions.ReplicaStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.said); n > 0 {
		st = l.said[n-1]
	}
	return st
}

func (l *nodeLoader) stages() []link.Stage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]link.Stage(nil), l.asked...)
}

// podded is a shim that runs, in a process of its own as in a pod. What of a
// platform asks, asks it.
type podded struct {
	*platform
	out     *journal // what its engine says
	message string   // file for its last words
	scratch string
	ended   chan struct{}
	exit    int
}

var answersOn = regexp.MustCompile(`address=\S+:(\d+)`)

// runtimeOf starts a shim for a model file.
func runtimeOf(t *testing.T, store, model string, args ...string) *podded {
	t.Helper()
	root, err := os.MkdirTemp("", "thaw-pod")
	if err != nil {
		t.Fatal(err)
	}
	p := &podded{platform: &platform{t: t, log: &journal{}, data: root}, out: &journal{}, message: filepath.Join(root, "last-words"), scratch: filepath.Join(root, "tmp"), ended: make(chan struct{})}
	if err := os.WriteFile(p.message, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Mkdir(p.scratch, 0o777)
	c := exec.Command(os.Args[0], append([]string{"runtime", "--port", "0", "--store", store, "--termination-message", p.message, "--dir", filepath.Join(p.scratch, "thaw")}, args...)...)
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
		// Each engine has the folder in its arguments or its environment.
		p.eventually(10*time.Second, "all processes gone", func() bool { return len(inheritors(p.scratch)) == 0 })
		if t.Failed() {
			t.Logf("the shim's log:\n%s\nthe engine's:\n%s", p.log, p.out)
		}
		os.RemoveAll(root)
	})
	p.eventually(20*time.Second, "an address", func() bool {
		if m := answersOn.FindStringSubmatch(p.log.String()); m != nil {
			p.url = "http://127.0.0.1:" + m[1]
		}
		return p.url != "" || p.over()
	})
	return p
}

func (p *podded) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// ends waits for the shim's end, which is to be this exit code, with these words
// in the termination message.
func (p *podded) ends(exit int, words ...string) {
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

func (p *podded) ready() {
	p.t.Helper()
	p.eventually(60*time.Second, "ready", func() bool { return p.do("GET", "/readyz", "").status == 200 || p.over() })
	if p.over() {
		p.t.Fatalf("it ended with %d", p.exit)
	}
}

// inPodOf is a model as a pod has it.
func inPodOf(source, engine, more string) string {
	return modelFile("ml/tiny", "  source: "+source+"\n  engine: "+engine+"\n"+indent(more))
}

const tinySource = "az://acct/models/tiny"

func TestRuntime(t *testing.T) {
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
	var line functions.Timeline
	if err := json.Unmarshal([]byte(p.do("GET", "/timeline", "").body), &line); err != nil || line.State != functions.Ready || line.Function != "ml/tiny" || line.Node != "n1" {
		t.Errorf("the timeline: %+v, %v", line, err)
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
	st := l.last()
	if !strings.HasSuffix(st.Endpoint, fmt.Sprintf(":%d", l.hello.Port)) || strings.Contains(st.Endpoint, "127.0.0.1") || st.Key != "" || st.ID != "" || st.State != functions.Ready || st.Team != "ml" || st.Model != "tiny" {
		t.Errorf("the loader was told %+v", st)
	}
	if s := l.stages(); len(s) != 1 || s[0].Source != tinySource || len(s[0].Files) != 1 {
		t.Errorf("the loader was asked for %+v", s)
	}
	p.proc.Process.Signal(syscall.SIGTERM)
	p.ends(0)
	if st := l.last(); st.State != functions.Unloaded {
		t.Errorf("the last it said was %s", st.State)
	}
	if !strings.Contains(p.out.String(), "listening on") {
		t.Errorf("what the engine says is not in the container's log: %q", p.out)
	}
}
