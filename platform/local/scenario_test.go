//go:build linux

package local

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/autoscale"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/azuretest"
	"github.com/thaw-dev/thaw/testkit/scenario"
)

// stage implements the scenarios' world with real processes: two agents with their
// supervisors and engines, requests over HTTP, real time.
type stage struct {
	t      *testing.T
	c      serverConfig
	dir    string // gate and failure files, by model
	menu   *menu
	srv    *server
	stop   func()
	agents map[string]*process
	before map[string]int // starts in earlier runs of the server

	mu        sync.Mutex
	errors    map[string]string
	cancels   map[string][]context.CancelFunc
	ended     map[string]int // requests that have ended
	sentCount map[string]int
	turn      int
	all       sync.WaitGroup
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, dir: t.TempDir(), agents: map[string]*process{}, before: map[string]int{}, errors: map[string]string{},
		cancels: map[string][]context.CancelFunc{}, ended: map[string]int{}, sentCount: map[string]int{}}
	s.c = serverConfig{Addr: freeAddr(t), Data: t.TempDir(), Memory: 1 << 30, Orphan: 3 * time.Second, Policy: placement.DefaultPolicy}
	p := &s.c.Policy
	for _, d := range []*time.Duration{&p.TimeSlice, &p.Patience, &p.TimeSliceDrain, &p.Surplus} {
		*d = time.Duration(float64(*d) / float64(time.Minute) * float64(minute))
	}
	p.Autoscale = autoscale.Settings{Stable: minute, Panic: minute / 10, Bucket: minute / 60, Every: minute / 30}
	s.menu = &menu{}
	s.begin()
	for _, name := range []string{"a", "b"} {
		s.agents[name] = begin(t, "test-agent", agentConfig{Name: name, Data: t.TempDir(), Server: "http://" + s.c.Addr,
			GPUs: 1, Memory: 1 << 30, Orphan: 3 * time.Second})
	}
	testkit.Eventually(t, "both agents join", func() bool { return len(s.srv.Nodes()) == 3 })
	return s
}

func (s *stage) begin() {
	exe, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	if s.srv, err = newServer(s.c, exe, testLog(io.Discard), s.menu); err != nil {
		s.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", s.c.Addr)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	srv := s.srv
	go func() { done <- srv.run(ctx, ln) }()
	s.stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}

func (s *stage) end() {
	for _, model := range []string{"x", "y", "z"} {
		s.Leave(model)
	}
	s.all.Wait()
	for _, a := range s.agents {
		a.Process.Signal(syscall.SIGCONT)
		a.Process.Signal(syscall.SIGTERM)
	}
	for _, a := range s.agents {
		a.waitExit()
	}
	s.stop()
	if s.t.Failed() {
		for _, e := range s.srv.Events(0) {
			s.t.Logf("  %s %s %s %s %s %s %s", e.At.Format("05.000"), e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message)
		}
	}
}

func named(m string) functions.Name { return functions.Name{Team: functions.DefaultTeam, Name: m} }

func (s *stage) Deploy(ms ...*functions.Model) {
	s.menu.mu.Lock()
	s.menu.models = ms
	s.menu.mu.Unlock()
	s.srv.Changed()
	s.Pass(20 * time.Millisecond)
}

func (s *stage) Ask(m string, n int) {
	s.mu.Lock()
	delete(s.errors, m)
	s.sentCount[m] += n
	s.mu.Unlock()
	for range n {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		s.mu.Lock()
		s.cancels[m] = append(s.cancels[m], cancel)
		s.mu.Unlock()
		s.all.Go(func() {
			defer cancel()
			errors := s.one(ctx, m)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ended[m]++
			if errors != "" {
				s.errors[m] = errors
			}
		})
	}
	testkit.Eventually(s.t, "the requests have come", func() bool {
		s.mu.Lock()
		left := s.sentCount[m] - s.ended[m]
		s.mu.Unlock()
		return s.Waiting(m)+s.Running(m) >= left
	})
}

// one sends one request and returns the error, "" if it was answered.
func (s *stage) one(ctx context.Context, m string) string {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.c.Addr+"/v1/completions",
		strings.NewReader(`{"model":"`+m+`","prompt":"hold","max_tokens":1}`))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	if res.StatusCode == http.StatusOK {
		return ""
	}
	return string(b)
}

func (s *stage) Leave(m string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.cancels[m] {
		c()
	}
	s.cancels[m] = nil
}

func (s *stage) Finish(m string) {
	testkit.Eventually(s.t, "its requests end", func() bool {
		s.turn++
		os.WriteFile(s.file("gate", m), []byte(strconv.Itoa(s.turn)), 0o600)
		s.Pass(20 * time.Millisecond)
		return s.Running(m) == 0
	})
}

func (s *stage) Waiting(m string) int {
	d, _ := s.srv.act.DemandOf(named(m))
	return d.Queued
}

func (s *stage) Running(m string) int {
	d, _ := s.srv.act.DemandOf(named(m))
	return d.Active
}

func (s *stage) Refusal(m string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errors[m]
}

func (s *stage) Replicas(m string) (out []string) {
	for _, r := range s.srv.Replicas() {
		if r.Function == named(m).String() && r.State != functions.Draining && !r.State.Over() {
			out = append(out, string(r.State)+"@"+r.Node)
		}
	}
	slices.Sort(out)
	return out
}

func (s *stage) Starts(m string) int {
	n := s.before[m]
	for _, e := range s.srv.Events(0) {
		if e.Kind == "start" && e.Function == named(m).String() {
			n++
		}
	}
	return n
}

func (s *stage) file(description, m string) string { return filepath.Join(s.dir, description+"-"+m) }

func (s *stage) Break(m, cause string) {
	if cause == "" {
		os.Remove(s.file("break", m))
		return
	}
	os.WriteFile(s.file("break", m), []byte(cause), 0o600)
}

// Vanish stops an agent with a signal: it is silent, and its engines continue.
func (s *stage) Vanish(n string) { s.agents[n].Process.Signal(syscall.SIGSTOP) }
func (s *stage) Return(n string) { s.agents[n].Process.Signal(syscall.SIGCONT) }

// Restart restarts the server in this process. Its agents are separate processes and are
// not informed. TestKillServer covers kill -9.
func (s *stage) Restart() {
	for _, m := range []string{"x", "y", "z"} {
		s.before[m] = s.Starts(m)
		s.Leave(m)
	}
	s.stop()
	s.begin()
}

func (s *stage) Pass(d time.Duration) { <-time.After(d) }

func (s *stage) Model(name string, edit func(*functions.ModelSpec)) *functions.Model {
	return model(s.t, name, func(spec *functions.ModelSpec) {
		spec.Resources.GPUs = 1
		if edit != nil {
			edit(spec)
		}
		if strings.HasPrefix(spec.Source, "az://") {
			spec.Source = azuretest.Location("x")
		}
	}, "failif="+s.file("break", name), "gate="+s.file("gate", name))
}

// minute is how long a minute of the scenarios lasts: their policy is as much quicker.
const minute = 2 * time.Second

// TestScenarios runs the scenarios on real processes.
func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("real processes in real time")
	}
	blobs := azuretest.New(t)
	blobs.Put("x/data.onnx", bytes.Repeat([]byte("data"), 1<<10))
	// The bytes come once a download was called off.
	var calledOff atomic.Bool
	blobs.Fault(func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		if strings.HasSuffix(r.URL.Path, ".onnx") && !calledOff.Load() {
			<-r.Context().Done()
			calledOff.Store(true)
		}
		return false
	})
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", blobs.Getenv("AZURE_STORAGE_CONNECTION_STRING"))
	scenario.Run(t, scenario.Options{Minute: minute, Boot: testkit.Timeout, Least: testkit.Timeout}, func(t *testing.T, story func(*testing.T, scenario.World)) {
		t.Parallel()
		s := newStage(t)
		defer s.end()
		story(t, s)
	})
}
