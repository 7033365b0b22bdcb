//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/testkit"
)

// TestMain lets the test binary be the supervisor, engine, agent and server of these
// tests, so that each can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "keep":
			err = runSupervisor(os.Args[2:])
		case "test-engine":
			err = serveEngine(os.Args[2], os.Args[3], os.Args[4:])
		case "test-agent":
			err = serveAgent(os.Args[2])
		case "test-server":
			err = serveServer(os.Args[2])
		default:
			os.Exit(runTests(m))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(runTests(m))
}

// runTests runs more tests at once than there are cores, since they mostly wait for other
// processes.
func runTests(m *testing.M) int {
	flag.Parse()
	flag.Set("test.parallel", "8")
	testkit.ShortenExits()
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	// A stopped supervisor is waited for in the background, and takes a second to exit with
	// the race detector.
	waits := goleak.IgnoreAnyFunction("github.com/thaw-dev/thaw/runtime/supervisor.reapProcess.func1")
	if err := goleak.Find(waits); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func signalled() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
}

// runSupervisor runs `thaw keep --socket S --dir D --orphan-timeout O`.
func runSupervisor(args []string) error {
	flags := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		flags[strings.TrimPrefix(args[i], "--")] = args[i+1]
	}
	orphan, err := time.ParseDuration(flags["orphan-timeout"])
	if err != nil {
		return err
	}
	ctx, stop := signalled()
	defer stop()
	return supervisor.Run(ctx, supervisor.Options{Socket: flags["socket"], Dir: flags["dir"], Orphan: orphan})
}

// serveEngine is a small HTTP engine. Modes: slow=DUR loads that long, fail=TEXT fails
// with the text, failif=FILE fails with the file's text while the file exists, gate=FILE
// holds requests that contain "hold" until the file changes, takes=DUR answers after that.
func serveEngine(port, name string, modes []string) error {
	ctx, stop := signalled()
	defer stop()
	mode := map[string]string{}
	for _, m := range modes {
		k, v, _ := strings.Cut(m, "=")
		mode[k] = v
	}
	fmt.Println("engine of", name, "on", port)
	if text, ok := mode["fail"]; ok {
		return errors.New(text)
	}
	if file, ok := mode["failif"]; ok {
		if b, err := os.ReadFile(file); err == nil {
			return errors.New(string(b))
		}
	}
	slow, _ := time.ParseDuration(mode["slow"])
	began := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if time.Since(began) < slow {
			w.WriteHeader(503)
		}
	})
	gate := func() string {
		b, _ := os.ReadFile(mode["gate"])
		return string(b)
	}
	takes, _ := time.ParseDuration(mode["takes"])
	answer := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		select {
		case <-r.Context().Done():
		case <-time.After(takes):
		}
		for was := gate(); strings.Contains(string(b), `"hold"`) && gate() == was; {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"x","object":"text_completion","model":"`+name+`","choices":[{"index":0,"text":"hi","finish_reason":"length","message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	}
	mux.HandleFunc("POST /v1/completions", answer)
	mux.HandleFunc("POST /v1/chat/completions", answer)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"`+name+`","object":"model"}]}`)
	})
	ln, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { srv.Close() })
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// agentConfig configures an agent in its own process.
type agentConfig struct {
	Name, Data, Server string
	GPUs               int
	Memory             functions.Bytes
	Orphan             time.Duration
	Blobs              string // AZURE_STORAGE_CONNECTION_STRING
}

func serveAgent(config string) error {
	var c agentConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	os.Setenv("AZURE_STORAGE_CONNECTION_STRING", c.Blobs)
	ctx, stop := signalled()
	defer stop()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	log := testLog(os.Stderr)
	join := agent.NewJoin(c.Server, nil, nil, log)
	n, err := agent.Open(agent.Config{
		Options: agent.Options{ID: c.Name, Exe: exe, Orphan: c.Orphan, Memory: c.Memory, Push: join.Push, Log: log},
		Data:    c.Data, GPUs: c.GPUs,
	})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	return n.Serve(ctx, agent.ServeOptions{
		Listener: ln, URL: "http://127.0.0.1:" + strconv.Itoa(ln.Addr().(*net.TCPAddr).Port), Join: join,
	})
}

// serveServer runs a server on a test's address and folder: backend, activator, and the
// API paths that agents and tests need.
func serveServer(config string) error {
	var c serverConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	ctx, stop := signalled()
	defer stop()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	b, err := newServer(c, exe, testLog(os.Stderr), &menu{models: c.Models})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return err
	}
	return b.run(ctx, ln)
}

// serverConfig configures a server.
type serverConfig struct {
	Addr, Data  string
	Models      []*functions.Model
	GPUs        int
	Memory      functions.Bytes
	Orphan      time.Duration
	KeepEngines bool
	Policy      placement.Policy
}

// server is a minimal form of the wiring in platform/thaw.
type server struct {
	*Local
	act *activator.Activator
	up  *upstream.Client
}

type menu struct {
	mu     sync.Mutex
	models []*functions.Model
}

func (m *menu) Models() []*functions.Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.models
}
func (m *menu) Teams() []*functions.Team { return nil }

func newServer(c serverConfig, exe string, log *slog.Logger, models *menu) (*server, error) {
	l, err := New(Options{
		Config: agent.Config{
			Options: agent.Options{ID: "here", Exe: exe, Orphan: c.Orphan, Memory: c.Memory, KeepEngines: c.KeepEngines, Log: log},
			Data:    c.Data, GPUs: c.GPUs,
		},
		Catalog: models, Policy: c.Policy,
	})
	if err != nil {
		return nil, err
	}
	keys, err := auth.Open(filepath.Join(c.Data, "keys.json"))
	if err != nil {
		return nil, err
	}
	s := &server{Local: l, up: upstream.New(upstream.Options{})}
	s.act = activator.New(activator.Options{Waker: l, Keys: keys, Engines: s.up, Open: true, Log: log})
	l.Attach(s.act)
	return s, nil
}

func (s *server) serve(req *httpserver.Request, res *httpserver.Response) {
	switch {
	case req.Path == "/api/v1/heartbeat":
		var hb functions.Heartbeat
		if json.Unmarshal(req.Body, &hb) != nil || s.OnHeartbeat(hb, true) != nil {
			res.Status = 400
			return
		}
		res.Status = 204
	case req.Path == "/test/replicas":
		res.Body, _ = json.Marshal(s.Replicas())
	case req.Path == "/test/events":
		res.Body, _ = json.Marshal(s.Events(0))
	default:
		s.act.Serve(req, res)
	}
}

func (s *server) run(ctx context.Context, ln net.Listener) error {
	web := httpserver.NewFiberServer(httpserver.Options{Handler: s.serve})
	served := make(chan error, 1)
	go func() { served <- web.Serve(ln) }()
	err := s.Local.Run(ctx)
	done, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	s.act.Drain(done)
	web.Shutdown(done)
	s.up.Close()
	return errors.Join(err, <-served)
}

func testLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}
