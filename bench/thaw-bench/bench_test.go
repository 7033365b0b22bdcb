package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/bench/coldstart"
	"github.com/thaw-dev/thaw/bench/thaw-bench/gateway"
	"github.com/thaw-dev/thaw/functions"
)

// TestMain lets this test binary act as the programs that a benchmark starts: its own
// children (engine, proxy), and a minimal platform.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "serve" || verbs[os.Args[1]].Run != nil) {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if os.Args[1] == "serve" {
			os.Exit(serveSmall(ctx, os.Args[2:]))
		}
		os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// tinyBench is a platform with the functions fake and held: it starts the engine on the
// first request, queues requests until then and proxies them.
type tinyBench struct {
	functionsDir string
	self         string

	mu      sync.Mutex
	engines map[string]*fakeEngine
	held    int
	starts  int
}

type fakeEngine struct {
	url   string
	cmd   *exec.Cmd
	proxy *httputil.ReverseProxy
	ready chan struct{}
	id    string
	began time.Time
}

func serveSmall(ctx context.Context, args []string) int {
	flag := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		flag[args[i]] = args[i+1]
	}
	self, _ := os.Executable()
	s := &tinyBench{functionsDir: flag["--functions"], self: self, engines: map[string]*fakeEngine{}}
	if err := os.MkdirAll(flag["--data"], 0o700); err != nil {
		return 1
	}
	if err := os.WriteFile(filepath.Join(flag["--data"], "admin-token"), []byte("admin\n"), 0o600); err != nil {
		return 1
	}
	srv := &http.Server{Addr: flag["--addr"], Handler: s}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	_ = srv.ListenAndServe()
	for name := range s.engines {
		s.stop(name)
	}
	return 0
}

func (t *tinyBench) stop(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.engines[name]; e != nil {
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
		delete(t.engines, name)
	}
}

func (t *tinyBench) start(name string) *fakeEngine {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.engines[name]; e != nil {
		return e
	}
	var m functions.Model
	b, err := os.ReadFile(filepath.Join(t.functionsDir, name+".yaml"))
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		panic(err)
	}
	ln, _ := net.Listen("tcp", "127.0.0.1:0")
	addr := ln.Addr().String()
	ln.Close()
	argv := m.Spec.Args
	for i := range argv {
		_, port, _ := net.SplitHostPort(addr)
		argv[i] = strings.ReplaceAll(argv[i], "{port}", port)
	}
	t.starts++
	e := &fakeEngine{url: "http://" + addr, cmd: exec.Command(argv[0], argv[1:]...), ready: make(chan struct{}),
		id: fmt.Sprintf("cs-%d", t.starts), began: time.Now()}
	e.cmd.Stderr = os.Stderr
	u, _ := url.Parse(e.url)
	e.proxy = httputil.NewSingleHostReverseProxy(u)
	e.proxy.FlushInterval = -1
	if err := e.cmd.Start(); err != nil {
		panic(err)
	}
	t.engines[name] = e
	go func() {
		for {
			res, err := http.Get(e.url + "/health")
			if err == nil {
				res.Body.Close()
				if res.StatusCode == 200 {
					break
				}
			}
			<-time.After(5 * time.Millisecond)
		}
		if res, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(`{"max_tokens":1}`)); err == nil {
			res.Body.Close()
		}
		close(e.ready)
	}()
	return e
}

func (t *tinyBench) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/readyz":
	case r.URL.Path == "/v1/models":
	case r.URL.Path == "/metrics":
		t.mu.Lock()
		defer t.mu.Unlock()
		fmt.Fprintf(w, "# TYPE thaw_buffered_requests gauge\nthaw_buffered_requests{model=\"a b\"} %d\nthaw_buffered_requests_other 7\n", t.held)
	case r.URL.Path == "/v1/chat/completions":
		var b bytes.Buffer
		_, _ = b.ReadFrom(r.Body)
		r.Body = http.NoBody
		var q struct{ Model string }
		_ = json.Unmarshal(b.Bytes(), &q)
		_, name, ok := strings.Cut(q.Model, "/")
		if !ok {
			name = q.Model
		}
		e := t.start(name)
		t.add(1)
		select {
		case <-e.ready:
			t.add(-1)
		case <-r.Context().Done():
			t.add(-1)
			return
		}
		w.Header().Set("thaw-cold-start", e.id)
		req := r.Clone(r.Context())
		req.Body, req.ContentLength = newBody(b.Bytes()), int64(b.Len())
		e.proxy.ServeHTTP(w, req)
	case r.Header.Get("Authorization") != "Bearer admin":
		http.Error(w, "admin token wanted", http.StatusUnauthorized)
	case r.URL.Path == "/api/v1/keys":
		fmt.Fprint(w, `{"key":"sk-thaw-abc_DEF-1","id":"k1"}`)
	case strings.HasSuffix(r.URL.Path, "/stop"):
		t.stop(strings.Split(r.URL.Path, "/")[5])
		w.WriteHeader(http.StatusAccepted)
	case r.URL.Path == "/api/v1/replicas":
		t.mu.Lock()
		defer t.mu.Unlock()
		items := []any{}
		for name, e := range t.engines {
			items = append(items, map[string]any{"id": "r", "function": "default/" + name, "state": "READY", "endpoint": e.url})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
	case strings.HasPrefix(r.URL.Path, "/api/v1/coldstarts/"):
		_ = json.NewEncoder(w).Encode(functions.Timeline{ID: "x", Total: 0.01, Phases: []functions.Span{
			{Phase: functions.PhaseSpawn, Duration: 0.01}, {Phase: functions.PhaseFirstToken, Start: 0.01, Duration: 0.001}}})
	default:
		http.NotFound(w, r)
	}
}

func (t *tinyBench) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held += n
}

type body struct{ *bytes.Reader }

func (body) Close() error { return nil }

func newBody(b []byte) body { return body{bytes.NewReader(b)} }

func TestColdstart(t *testing.T) {
	out, functionsDir := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec := fmt.Sprintf(`{"spec":{"engine":"command","args":[%q,"engine","--addr","127.0.0.1:{port}"]}}`, self)
	if err := os.WriteFile(filepath.Join(functionsDir, "tiny.yaml"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	args := []string{"coldstart", "-n", "3", "--functions", functionsDir, "--out", out, "--server", ""}
	if code := bench.Main(t.Context(), args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if !strings.Contains(stdout.String(), "client_first_token") || !strings.Contains(stdout.String(), "spawn") {
		t.Errorf("table: %s", stdout.String())
	}
	r, err := coldstart.Read(filepath.Join(out, "coldstart.json"))
	if err != nil || len(r.Rounds) != 3 {
		t.Fatalf("%v %+v", err, r)
	}

	// Against a much faster baseline the same run fails and names the phase.
	for i := range r.Phases {
		r.Phases[i].Seconds.P50 = 0.000001
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	quicker := filepath.Join(out, "quicker.json")
	if err := os.WriteFile(quicker, b, 0o600); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	if code := bench.Main(t.Context(), append(args, "--baseline", quicker), &stdout, &stderr); code != 1 ||
		!strings.Contains(stderr.String(), "spawn got worse") {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}

func TestGatewayQuick(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processor time of other programs is read from /proc: Linux only")
	}
	out := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"gateway", "--quick", "--only", "cpu,release,waiters", "--thaw", self, "--out", out}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	b, err := os.ReadFile(filepath.Join(out, "gateway.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r gateway.Result
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range r.CPU {
		seen[c.Gateway] = true
		if c.Checked == 0 || len(c.Micros) == 0 {
			t.Errorf("%+v", c)
		}
	}
	if !seen[gateway.Thaw] || !seen[gateway.ReverseProxy] || r.Release == nil || r.Release.Waiters == 0 || r.ZeroToOne == nil ||
		len(r.Goals) == 0 {
		t.Errorf("parts are missing: %s", b)
	}
	if page, err := os.ReadFile(filepath.Join(out, "gateway.md")); err != nil || !strings.Contains(string(page), "| load | gateway |") {
		t.Errorf("%v: %s", err, page)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		program func(ctx context.Context, args []string, stdout, stderr io.Writer) int
		args    []string
		code    int
		want    string
	}{
		{bench.Main, nil, 2, "Examples:"},
		{bench.Main, []string{"--help"}, 0, "thaw bench coldstart --model tiny -n 20"},
		{bench.Main, []string{"coldstrat"}, 2, "did you mean coldstart?"},
		{bench.Main, []string{"coldstart", "--help"}, 0, "Examples:"},
		{bench.Main, []string{"coldstart", "--bogus"}, 2, "bogus"},
		{bench.Main, []string{"coldstart", "extra"}, 2, "takes no argument"},
		{bench.Main, []string{"coldstart", "--model", "No/Such/Name"}, 2, "--model"},
		{bench.Main, []string{"coldstart", "-n", "0"}, 2, "rounds"},
		{bench.Main, []string{"coldstart", "--baseline", "none.json"}, 1, "none.json"},
		{bench.Main, []string{"coldstart", "--server", "ftp://x"}, 1, "http://host:port"},
		{run, nil, 2, "Examples:"},
		{run, []string{"lode"}, 2, "there is no benchmark"},
		{run, []string{"gateway", "--help"}, 0, "Examples:"},
		{run, []string{"gateway", "--only", "speed"}, 2, "speed"},
		{run, []string{"gateway", "--nginx", "/no/such/nginx", "--only", "cpu", "--quick"}, 1, "nginx"},
	} {
		t.Setenv("TMPDIR", t.TempDir()) // a failed benchmark keeps its folder
		var stdout, stderr bytes.Buffer
		code := c.program(t.Context(), c.args, &stdout, &stderr)
		if got := stdout.String() + stderr.String(); code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("%v: exit %d, want %d with %q:\n%s", c.args, code, c.code, c.want, got)
		}
	}
}

func TestCommandLineHidesKeys(t *testing.T) {
	got := strings.Join(bench.CommandLine("coldstart", []string{"-n", "2", "--key", "secret", "--key=secret", "-key", "secret", "--out", "x"}), " ")
	if strings.Contains(got, "secret") || !strings.HasSuffix(got, "--out x") {
		t.Error(got)
	}
}
