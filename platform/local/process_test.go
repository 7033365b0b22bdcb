//go:build linux

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// model returns a model whose engine is this test binary.
func model(t *testing.T, name string, edit func(*functions.ModelSpec), modes ...string) *functions.Model {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := functions.NewModel()
	m.Metadata.Name = name
	m.Dir = t.TempDir()
	m.Spec.Engine, m.Spec.Health = functions.EngineCommand, "/health"
	m.Spec.Args = append([]string{exe, "test-engine", "{port}", "{name}"}, modes...)
	m.Spec.Resources.Memory = 64 << 20
	m.Spec.Deadlines.Start = functions.Duration(testTimeout)
	if edit != nil {
		edit(&m.Spec)
	}
	return m
}

// freeAddr returns an unused address on which a server can be restarted. On Linux it is
// on a loopback address of its own, so the kernel gives its port to no other listener on
// 127.0.0.1 meanwhile.
func freeAddr(t *testing.T) string {
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		host = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(256), 1+rand.IntN(250))
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// testTimeout bounds waits for what must happen, on any machine.
const testTimeout = time.Minute

// processesSpeaking lists the other processes whose command line contains all texts.
func processesSpeaking(of ...string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, d := range dirs {
		b, err := os.ReadFile(d)
		if err != nil || slices.ContainsFunc(of, func(s string) bool { return !bytes.Contains(b, []byte(s)) }) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(d, "/proc/%d/cmdline", &pid); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// process is a started program that a test can kill.
type process struct {
	*exec.Cmd
	t    *testing.T
	out  *buffer
	done chan error
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func begin(t *testing.T, description string, config any) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(exe, description, string(b)), t: t, out: &buffer{}, done: make(chan error, 1)}
	p.Stdout, p.Stderr = p.out, p.out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.Wait() }()
	t.Cleanup(func() {
		p.Process.Kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", description, p.out)
		}
	})
	return p
}

func (p *process) kill() {
	p.t.Helper()
	p.Process.Kill()
	p.waitExit()
}

func (p *process) waitExit() error {
	p.t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(testTimeout):
		p.t.Fatal("it does not end")
		return nil
	}
}

// postChat sends one request without streaming and returns status and body.
func postChat(addr, model string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/v1/completions", strings.NewReader(`{"model":"`+model+`","prompt":"hello","max_tokens":1}`))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func replicas(addr string) (rs []functions.Replica) {
	res, err := http.Get("http://" + addr + "/test/replicas")
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	json.NewDecoder(res.Body).Decode(&rs)
	return rs
}

func waitReady(t *testing.T, addr string) {
	t.Helper()
	testkit.Eventually(t, "the server is up", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// TestShortestPath: a request for a cold model is held, the agent in this process starts an
// engine through its supervisor, and the request is answered. At the end no process is
// left.
func TestShortestPath(t *testing.T) {
	c := serverConfig{Addr: freeAddr(t), Data: t.TempDir(), Memory: 1 << 30, Models: []*functions.Model{model(t, "x", nil)}}
	ctx, stop := context.WithCancel(context.Background())
	exe, _ := os.Executable()
	s, err := newServer(c, exe, testLog(io.Discard), &menu{models: c.Models})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", c.Addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, ln) }()
	t.Cleanup(stop)
	select {
	case <-s.Ready():
	case <-time.After(testTimeout):
		t.Fatal("the agent is not ready")
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if status, body := postChat(c.Addr, "x"); status != 200 || !strings.Contains(body, "hi") {
				t.Errorf("answered %d %s", status, body)
			}
		})
	}
	all.Wait()
	lines := s.ColdStarts(0)
	if len(lines) != 1 || lines[0].State != functions.Ready || lines[0].Node != "here" {
		t.Fatalf("%d cold starts: %+v", len(lines), lines)
	}
	t.Logf("cold start: %.1f ms, %+v", 1000*lines[0].Total, lines[0].Phases)
	testkit.Eventually(t, "the engine's words have come through its pipe", func() bool {
		log, err := s.Logs(ctx, s.Replicas()[0].ID, 10, false)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		b, _ := io.ReadAll(log)
		return strings.Contains(string(b), "engine of x")
	})
	if len(processesSpeaking(c.Data)) == 0 {
		t.Error("there is no keeper: the test below proves nothing")
	}
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the server does not end")
	}
	testkit.Eventually(t, "nothing is left", func() bool { return len(processesSpeaking(c.Data)) == 0 })
}
