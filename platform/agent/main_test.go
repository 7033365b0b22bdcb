//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/replica"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/testkit"
)

// TestMain lets the test binary be the supervisor and the engine of these tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		var err error
		switch os.Args[1] {
		case "keep":
			flags := map[string]string{}
			for i := 2; i+1 < len(os.Args); i += 2 {
				flags[strings.TrimPrefix(os.Args[i], "--")] = os.Args[i+1]
			}
			err = supervisor.Run(ctx, supervisor.Options{Socket: flags["socket"], Dir: flags["dir"], Orphan: testTimeout})
		case "test-engine":
			err = toyEngine(ctx, os.Args[2], os.Args[3])
		default:
			stop()
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

// runTests runs the tests, which must leave no goroutine.
func runTests(m *testing.M) int {
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

// toyEngine is a small HTTP engine; /v1/responses streams a byte and then waits, and
// /v1/embeddings closes the connection without an answer.
func toyEngine(ctx context.Context, port, name string) error {
	fmt.Println("engine of", name)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	answer := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"object":"text_completion","choices":[{"index":0,"text":%q,"message":{"content":"hi"},"finish_reason":"length"}],"usage":{"completion_tokens":1},"auth":%q}`, string(b), r.Header.Get("Authorization"))
	}
	mux.HandleFunc("POST /v1/completions", answer)
	mux.HandleFunc("POST /v1/chat/completions", answer)
	mux.HandleFunc("POST /v1/responses", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /v1/embeddings", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
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

// noStage is a stager for models without a source; a staging never ends.
type noStage struct{}

func (noStage) Stage(ctx context.Context, req replica.StageRequest, progress func(have, total functions.Bytes)) (replica.Checkpoint,
	error) {
	progress(1, 100)
	<-ctx.Done()
	return replica.Checkpoint{}, context.Cause(ctx)
}

// lab is a running agent.
type lab struct {
	*Agent
	t          *testing.T
	dir        string
	stop       func() error
	mu         sync.Mutex
	heartbeats []functions.Heartbeat
}

func newLab(t *testing.T, dir string, edit func(*Options)) *lab {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, dir: dir}
	o := Options{ID: "n", Machine: "m", Dir: dir, Exe: exe, Memory: 1 << 30, Stager: noStage{}, Log: slog.New(slog.DiscardHandler),
		Push: func(hb functions.Heartbeat) {
			l.mu.Lock()
			l.heartbeats = append(l.heartbeats, hb)
			l.mu.Unlock()
		}}
	if edit != nil {
		edit(&o)
	}
	l.Agent = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	var once sync.Once
	var ended error
	l.stop = func() error {
		once.Do(func() {
			cancel()
			select {
			case ended = <-done:
			case <-time.After(testTimeout):
				ended = errors.New("it does not end")
			}
		})
		return ended
	}
	t.Cleanup(func() {
		if err := l.stop(); err != nil {
			t.Error(err)
		}
	})
	l.until("it knows what runs", func() bool { _, err := l.Heartbeat(); return err == nil })
	return l
}

// testTimeout bounds waits for what must happen, on any machine.
const testTimeout = time.Minute

func (l *lab) until(description string, ok func() bool) {
	l.t.Helper()
	testkit.Eventually(l.t, description, func() (bool, string) {
		is := ok()
		d, _ := l.Heartbeat()
		return is, fmt.Sprintf("%+v", d.Models)
	})
}

func (l *lab) keeper() *supervisor.Client {
	l.Agent.mu.Lock()
	defer l.Agent.mu.Unlock()
	return l.supervisor
}

func (l *lab) state(id string) functions.State {
	d, _ := l.Heartbeat()
	for _, m := range d.Models {
		if m.ID == id {
			return m.State
		}
	}
	return ""
}

func request(id string, epoch int64) functions.LoadRequest {
	exe, _ := os.Executable()
	m := functions.NewModel()
	m.Spec.Engine, m.Spec.Health = functions.EngineCommand, "/health"
	m.Spec.Args = []string{exe, "test-engine", "{port}", "{name}"}
	m.Spec.Resources.Memory = 64 << 20
	return functions.LoadRequest{ID: id, Team: "default", Model: "x", Spec: m.Spec, Dir: filepath.Dir(exe), Epoch: epoch}
}

func (l *lab) load(id string) {
	l.t.Helper()
	if _, err := l.Load(l.t.Context(), request(id, 1)); err != nil {
		l.t.Fatal(err)
	}
	l.until(id+" is READY", func() bool { return l.state(id) == functions.Ready })
}

// statesOf lists the states in a replica's pushed heartbeats, in order.
func (l *lab) statesOf(id string) (out []functions.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, hb := range l.heartbeats {
		for _, m := range hb.Models {
			if m.ID == id && !slices.Contains(out, m.State) {
				out = append(out, m.State)
			}
		}
	}
	return out
}
