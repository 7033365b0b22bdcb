package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/fake"
)

// TestMain lets the test binary be the program: supervisors, engines, servers and agents
// of these tests are this binary with the program's verbs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "fake-vllm":
			os.Exit(fakeVLLM(os.Args[2:]))
		case "bench-engine":
			os.Exit(benchEngine(os.Args[2:]))
		case "keep", "loader", "runtime", "engine", "serve", "agent", "bench", "fake", "pull":
			if os.Args[1] == "fake" {
				os.Exit(fakeEngine(os.Args[2:]))
			}
			main()
		}
	}
	// More tests run at once than there are cores, since they mostly wait for other processes.
	flag.Parse()
	flag.Set("test.parallel", "4")
	// A replica would occupy its memory for a second longer, and on a busy machine the agent,
	// which waits 1.2 s, would kill an engine that is still exiting.
	testkit.ShortenExits()
	os.Exit(m.Run())
}

// benchEngine serves the benchmarks' engine, which generates nothing, at --addr, ready once
// --ready-file exists and --load has passed.
func benchEngine(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := flag.NewFlagSet("bench-engine", flag.ExitOnError)
	addr, ready, loads := f.String("addr", "", ""), f.String("ready-file", "", ""), f.Duration("load", 0, "")
	f.Parse(args)
	ln, err := net.Listen("tcp", *addr)
	if err == nil {
		err = fake.New(fake.Options{ReadyFile: *ready, Load: *loads}).Serve(ctx, ln)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// journal keeps the output of a server for the log of a failed test.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// platform is one `thaw serve` under test.
type platform struct {
	t         *testing.T
	url       string
	functions string // folder of model files
	data      string
	log       *journal
	args      []string
	bearer    string       // default Authorization of do
	sessions  map[int]bool // process sessions of its supervisors

	// In this process:
	cancel context.CancelFunc
	code   chan int
	// Or in its own process:
	proc   *exec.Cmd
	before string // shell commands that the process runs before it becomes the program
}

var says = regexp.MustCompile(`thaw serves on (http://\S+)`)

// tinyDir returns the folder of the embedded model's checkpoint.
func tinyDir(t testing.TB) string {
	d, err := filepath.Abs("../../functions/shipped/tiny")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// tiny returns a model file of that checkpoint; more is YAML below spec.
func tiny(t testing.TB, name, more string) string {
	return modelFile(name, "  source: "+tinyDir(t)+"\n  engine: ember\n"+indent(more))
}

func modelFile(name, spec string) string {
	ns := "default"
	if a, b, ok := strings.Cut(name, "/"); ok {
		ns, name = a, b
	}
	return fmt.Sprintf("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: %s, namespace: %s}\nspec:\n%s", name, ns, spec)
}

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString("  " + line)
	}
	if b.Len() > 0 && !strings.HasSuffix(s, "\n") {
		b.WriteString("\n")
	}
	return b.String()
}

// start runs a server in this process, with files (name to text) as its functions folder.
// At the test's end it is stopped and no engine may be left.
func start(t *testing.T, files map[string]string, args ...string) *platform {
	t.Helper()
	p := prepare(t, files, args...)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.code = cancel, make(chan int, 1)
	out := p.serving(func(stdout io.Writer) {
		code := run(ctx, p.args, strings.NewReader(""), stdout, p.log)
		p.code <- code
	})
	t.Cleanup(func() { p.stop() })
	p.await(out)
	return p
}

// spawn runs a server in its own process, so that it can be killed.
func spawn(t *testing.T, files map[string]string, args ...string) *platform {
	t.Helper()
	return spawnAfter(t, "", files, args...)
}

// spawnAfter is spawn of a process that runs shell commands before it becomes the server.
func spawnAfter(t *testing.T, before string, files map[string]string, args ...string) *platform {
	t.Helper()
	p := prepare(t, files, args...)
	p.before = before
	t.Cleanup(func() { // also where the server does not come up
		if p.proc != nil && p.proc.Process != nil {
			p.proc.Process.Signal(syscall.SIGTERM)
			if err := p.proc.Wait(); err != nil {
				t.Errorf("the server ended with %v", err)
			}
		}
		p.awaitNoProcess()
	})
	p.respawn()
	return p
}

func prepare(t *testing.T, files map[string]string, args ...string) *platform {
	t.Helper()
	root, err := os.MkdirTemp("", "thaw") // short, for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	p := &platform{t: t, data: filepath.Join(root, "data"), functions: filepath.Join(root, "f"), log: &journal{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server log:\n%s", p.log)
		}
		os.RemoveAll(root)
	})
	if err := os.Mkdir(p.functions, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		p.file(name, text)
	}
	p.args = append([]string{"serve", "--addr", "127.0.0.1:0", "--agents-addr", freeAddress(t), "--data", p.data, "--functions", p.functions, "--log-level", "debug"}, args...)
	return p
}

// freeAddress is one that stays where a server is started again. Its port is below those that
// systems give to connections.
func freeAddress(t testing.TB) string {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(20000))); err == nil {
			l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}

// file writes a model file.
func (p *platform) file(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.functions, name)
	if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		p.t.Fatal(err)
	}
}

func (p *platform) serving(run func(stdout io.Writer)) <-chan string {
	r, w := io.Pipe()
	out := make(chan string, 1)
	go func() {
		s := bufio.NewScanner(r)
		for s.Scan() {
			if m := says.FindStringSubmatch(s.Text()); m != nil {
				out <- m[1]
			}
		}
	}()
	go func() { run(w); w.Close(); close(out) }()
	return out
}

func (p *platform) await(out <-chan string) {
	p.t.Helper()
	select {
	case u, ok := <-out:
		if !ok {
			p.t.Fatalf("the server ended before it served:\n%s", p.log)
		}
		p.url = u
	case <-time.After(patience):
		p.t.Fatalf("the server does not serve:\n%s", p.log)
	}
}

// respawn starts the server's process (again) on the same folders.
func (p *platform) respawn() {
	p.t.Helper()
	p.proc = exec.Command(os.Args[0], p.args...)
	if p.before != "" {
		p.proc = exec.Command("/bin/sh", append([]string{"-ec", p.before + "\nexec \"$0\" \"$@\"", os.Args[0]}, p.args...)...)
	}
	p.proc.Stderr = p.log
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.proc.Stdout = w
	if err := p.proc.Start(); err != nil {
		p.t.Fatal(err)
	}
	w.Close()
	p.await(p.serving(func(stdout io.Writer) { io.Copy(stdout, r); r.Close() }))
}

// kill ends the server's process with SIGKILL.
func (p *platform) kill() {
	if p.proc != nil {
		p.proc.Process.Kill()
		p.proc.Wait()
		p.proc = nil
	}
}

// stop ends the server with SIGTERM, and expects exit code 0 and no process left.
func (p *platform) stop() {
	p.t.Helper()
	if p.cancel == nil {
		return
	}
	p.cancel()
	p.cancel = nil
	select {
	case code := <-p.code:
		if code != 0 {
			p.t.Errorf("the server ended with %d", code)
		}
	case <-time.After(patience):
		p.t.Errorf("the server does not end")
	}
	p.awaitNoProcess()
}

// processes lists the platform's processes: those whose arguments name its folder and
// those in a session of its supervisors, also zombies, without the test's own process.
func (p *platform) processes() []int {
	type process struct{ pid, session int }
	var all []process
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(d, "stat"))
		at := bytes.LastIndexByte(b, ')')
		if err != nil || at < 0 {
			continue
		}
		var x process
		var state string
		var parent, group int
		fmt.Sscanf(filepath.Base(d), "%d", &x.pid)
		fmt.Sscan(string(b[at+1:]), &state, &parent, &group, &x.session)
		if state == "Z" || x.pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		if bytes.Contains(line, []byte(p.data)) {
			if bytes.Contains(line, []byte("\x00keep\x00")) {
				if p.sessions == nil {
					p.sessions = map[int]bool{}
				}
				p.sessions[x.session] = true
			} else {
				x.session = -1
			}
		}
		all = append(all, x)
	}
	var out []int
	for _, x := range all {
		if x.session == -1 || p.sessions[x.session] {
			out = append(out, x.pid)
		}
	}
	return out
}

// awaitNoProcess expects that no process of the platform remains.
func (p *platform) awaitNoProcess() {
	p.t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return // needs Linux's /proc
	}
	p.eventually("all processes gone", func() bool { return len(p.processes()) == 0 })
}

// patience bounds waits for what must happen: more than a busy machine needs.
const patience = testkit.Timeout

// eventually polls a condition outside this process, where there is no event to wait for.
// It is for the test's own goroutine.
func (p *platform) eventually(what string, ok func() bool) {
	p.t.Helper()
	p.eventuallyWithin(patience, what, ok)
}

// eventuallyWithin is eventually for a real engine, which takes longer.
func (p *platform) eventuallyWithin(bound time.Duration, what string, ok func() bool) {
	p.t.Helper()
	testkit.EventuallyWithin(p.t, bound, what, func() (bool, string) {
		if ok() {
			return true, ""
		}
		return false, fmt.Sprintf("processes %v", p.processes())
	})
}

// answered waits until a node has had an answer to a heartbeat, which contains the peers:
// its following heartbeat proves that.
func (p *platform) answered(node string) {
	p.t.Helper()
	seen := func() string {
		for _, n := range p.items("/api/v1/nodes") {
			if n["id"] == node {
				return fmt.Sprint(n["seen"])
			}
		}
		return ""
	}
	first := ""
	p.eventually(node+" has joined", func() bool { first = seen(); return first != "" })
	p.eventually(node+" has had an answer", func() bool { return seen() != first })
}

// reply is an answer, completely read.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

var web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Minute}

func (p *platform) do(method, path, body string, header ...string) reply {
	req, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if p.bearer != "" && req.Header.Get("Authorization") == "" {
		req.Header.Set("Authorization", p.bearer)
	}
	res, err := web.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

// chat sends a chat request; more is JSON members beside model and messages.
func (p *platform) chat(model, more string, header ...string) reply {
	return p.do("POST", "/v1/chat/completions", chatBody(model, more), header...)
}

func chatBody(model, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"What is thaw?"}],"temperature":0%s}`, model, more)
}

// text returns the answer's content, streamed or not.
func (r reply) text() string {
	type choice struct {
		Message, Delta struct{ Content string }
	}
	var out strings.Builder
	for line := range strings.Lines(r.body) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
		var c struct{ Choices []choice }
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &c) == nil {
			for _, x := range c.Choices {
				out.WriteString(x.Message.Content + x.Delta.Content)
			}
		}
	}
	return out.String()
}

// failure returns the error object of an answer or of its last event.
func (r reply) failure() (e struct{ Message, Type, Code, Param string }) {
	at := strings.LastIndex(r.body, `{"error":`)
	if at < 0 {
		return
	}
	var o struct{ Error any }
	json.NewDecoder(strings.NewReader(r.body[at:])).Decode(&o)
	if m, ok := o.Error.(map[string]any); ok {
		s := func(k string) string { v, _ := m[k].(string); return v }
		e.Message, e.Type, e.Code, e.Param = s("message"), s("type"), s("code"), s("param")
	}
	return
}

func (p *platform) items(path string) []map[string]any {
	p.t.Helper()
	r := p.do("GET", path, "")
	var o struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(r.body), &o); err != nil || r.status != 200 {
		p.t.Fatalf("GET %s: %d %s %v", path, r.status, r.body, r.err)
	}
	return o.Items
}

// state returns the state of a function's only replica, "" if it has none.
func (p *platform) state(function string) string {
	for _, r := range p.items("/api/v1/replicas") {
		if r["function"] == function {
			return fmt.Sprint(r["state"])
		}
	}
	return ""
}

// engine finds the process of a function's engine.
func (p *platform) engine(name string) int {
	p.t.Helper()
	for _, pid := range p.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		args := strings.Split(string(line), "\x00")
		if len(args) > 2 && (args[1] == "engine" || args[1] == "fake") && strings.Contains(string(line), "\x00"+name+"\x00") {
			return pid
		}
	}
	return 0
}

func (p *platform) admin() string {
	b, err := os.ReadFile(filepath.Join(p.data, "admin-token"))
	if err != nil {
		p.t.Fatal(err)
	}
	return "Bearer " + strings.TrimSpace(string(b))
}

// open starts a streamed chat and returns after the first content.
func (p *platform) open(ctx context.Context, model string, tokens int) (*http.Response, *bufio.Reader) {
	p.t.Helper()
	req, _ := http.NewRequestWithContext(ctx, "POST", p.url+"/v1/chat/completions", strings.NewReader(chatBody(model, fmt.Sprintf(`"stream":true,"ignore_eos":true,"max_tokens":%d`, tokens))))
	req.Header.Set("Content-Type", "application/json")
	if p.bearer != "" {
		req.Header.Set("Authorization", p.bearer)
	}
	res, err := web.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	r := bufio.NewReader(res.Body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			p.t.Fatalf("no content: %v", err)
		}
		if strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`) {
			return res, r
		}
	}
}

func signalPID(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if pid == 0 {
		t.Fatal("no such process")
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// newRequest makes a POST of JSON with a context.
func newRequest(ctx context.Context, url string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return web.Do(req)
}

// agentArgs are the arguments of an agent that joins, with a token made for it.
func (p *platform) agentArgs(name string) []string {
	p.t.Helper()
	server, token := p.joinToken(name)
	file := p.data + "-" + name + ".token"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return []string{"agent", "--server", server, "--token-file", file, "--data", p.data + "-" + name, "--name", name, "--orphan-timeout", "1s"}
}

// joinToken makes a join token for an agent, or with "" for any.
func (p *platform) joinToken(name string) (server, token string) {
	p.t.Helper()
	r := p.do("POST", "/api/v1/agents/tokens", fmt.Sprintf(`{"agent":%q}`, name), "Authorization", p.admin())
	var made struct{ Server, Token string }
	if json.Unmarshal([]byte(r.body), &made); r.status != 201 || made.Token == "" {
		p.t.Fatalf("a join token: %d %s %v", r.status, r.body, r.err)
	}
	return made.Server, made.Token
}

// agent starts another node in its own process; the returned function kills it.
func (p *platform) agent(name string, args ...string) (kill func()) {
	p.t.Helper()
	c := exec.Command(os.Args[0], append(p.agentArgs(name), args...)...)
	c.Stderr = p.log
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() { c.Process.Kill(); c.Wait() })
	p.t.Cleanup(kill)
	return kill
}
