package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/supervisor"
	"github.com/thaw-dev/thaw/testkit"
)

// fastRaceExit: a program with the race detector otherwise takes a second to exit.
const fastRaceExit = "GORACE=atexit_sleep_ms=0"

// testSupervisor is one supervisor in a folder of its own, with what was started watched to
// be gone at the end.
type testSupervisor struct {
	t      *testing.T
	dir    string
	client *supervisor.Client
}

func newTestSupervisor(t *testing.T) *testSupervisor {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	sock := filepath.Join(dir, "supervisor.sock")
	c, err := supervisor.Ensure(ctx, supervisor.Start{Exe: exe, Args: []string{"test-supervisor", sock, dir, "5s"}, Socket: sock, Dir: dir, Env: []string{fastRaceExit}})
	if err != nil {
		t.Fatal(err)
	}
	b := &testSupervisor{t, dir, c}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := b.client.End(ctx, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
		testkit.Eventually(t, "the supervisor is gone", func() bool { return processGone(c.PID()) })
	})
	return b
}

func (s *testSupervisor) options(id string, modes ...string) Options {
	exe, _ := os.Executable()
	return Options{
		Assignment: Assignment{ID: id, Team: "default", Model: "m", Dir: s.dir, Spec: functions.ModelSpec{
			Engine: functions.EngineCommand,
			Env:    map[string]string{"GORACE": strings.TrimPrefix(fastRaceExit, "GORACE=")},
			Args:   append([]string{exe, "test-engine", "{port}", "{name}"}, modes...),
			Deadlines: functions.Deadlines{
				Stage: functions.Duration(testTimeout), Start: functions.Duration(testTimeout),
				FirstToken: functions.Duration(testTimeout), Hang: functions.Duration(testTimeout), Drain: functions.Duration(time.Second),
			},
		}},
		Spawner: s.client,
	}
}

// replicaRun runs a replica and keeps what it said.
type replicaRun struct {
	t *testing.T
	*Replica
	mu       sync.Mutex
	statuses []functions.ReplicaStatus
	done     chan error
	cancel   context.CancelFunc
}

func startReplica(t *testing.T, o Options, construct func(Options) *Replica) *replicaRun {
	l := &replicaRun{t: t, done: make(chan error, 1)}
	o.OnChange = func(s functions.ReplicaStatus) {
		l.mu.Lock()
		l.statuses = append(l.statuses, s)
		l.mu.Unlock()
	}
	l.Replica = construct(o)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	over := make(chan struct{})
	go func() {
		defer close(over)
		l.done <- l.Run(ctx)
	}()
	node, _ := o.Spawner.(*fakeNode)
	if node != nil {
		node.replicas++
	}
	t.Cleanup(func() {
		cancel()
		<-over
		l.check()
		if node != nil && node.replicas == 1 {
			node.check(t, l.Status().State.Over())
		}
	})
	return l
}

// follows are the states that may follow each.
var follows = map[functions.State][]functions.State{
	functions.Downloading: {functions.Loading, functions.Unloaded, functions.Failed},
	functions.Loading:     {functions.Downloading, functions.Ready, functions.Sleeping, functions.Draining, functions.Unloaded, functions.Failed},
	functions.Ready:       {functions.Sleeping, functions.Draining, functions.Failed},
	functions.Sleeping:    {functions.Loading, functions.Ready, functions.Draining, functions.Failed},
	functions.Draining:    {functions.Unloaded, functions.Failed},
}

// check checks what every run reports: states in an order that is allowed, and statuses whose
// fields fit their state.
func (r *replicaRun) check() {
	r.t.Helper()
	states := r.states()
	for i, s := range states[1:] {
		if !slices.Contains(follows[states[i]], s) {
			r.t.Errorf("%s follows %s: %v", s, states[i], states)
		}
	}
	r.mu.Lock()
	all := append(slices.Clone(r.statuses), r.Status())
	r.mu.Unlock()
	for _, s := range all {
		over := s.State.Over()
		bad := ""
		switch {
		case s.State == functions.Failed != (s.Error != ""):
			bad = "its error"
		case over && (s.Endpoint != "" || s.Key != "" || s.InFlight != 0 || s.QueueLength != 0 || s.KVCacheHitRate != 0 || s.SleepLevel != 0):
			bad = "what an end leaves"
		case (s.State == functions.Ready || s.State == functions.Sleeping || s.State == functions.Draining) && s.Endpoint == "":
			bad = "no endpoint"
		case s.State == functions.Downloading && s.Tier != functions.TierRemote && len(s.Phases) == 0:
			bad = "a start that is ahead"
		case s.SleepLevel != 0 && (s.State != functions.Sleeping && s.State != functions.Draining || s.Tier != functions.TierSleeping):
			bad = "its sleep"
		case s.State == functions.Ready && s.Tier != functions.TierDRAM && s.Tier != functions.TierGPU, s.State == functions.Failed &&
			s.Tier == functions.TierGPU:
			bad = "its tier"
		case s.Percent < -1 || s.Percent > 100 || s.TotalBytes > 0 && s.Bytes > s.TotalBytes || s.Since < 0:
			bad = "its progress"
		case s.ID != r.o.ID || s.Model != r.o.Model || s.Team != r.o.Team:
			bad = "its names"
		}
		if bad != "" {
			r.t.Errorf("%s of a status: %+v", bad, s)
		}
		for i, p := range s.Phases {
			if p.Duration < 0 || i > 0 && slices.Index(functions.Phases, s.Phases[i-1].Phase) > slices.Index(functions.Phases, p.Phase) {
				r.t.Errorf("phases of a status: %+v", s.Phases)
			}
		}
	}
	last := all[len(all)-2]
	if now := r.Status(); now.State != last.State || now.Error != last.Error || now.Endpoint != last.Endpoint {
		r.t.Errorf("the last report is %+v, and its status %+v", last, now)
	}
}

func (r *replicaRun) states() (out []functions.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.statuses {
		if len(out) == 0 || out[len(out)-1] != s.State {
			out = append(out, s.State)
		}
	}
	return out
}

func (r *replicaRun) wait(s functions.State, within time.Duration) functions.ReplicaStatus {
	r.t.Helper()
	var st functions.ReplicaStatus
	testkit.EventuallyWithin(r.t, within, "state "+string(s), func() (bool, string) {
		st = r.Status()
		saw := fmt.Sprintf("%s (%s); said %v", st.State, st.Error, r.states())
		if st.State != s && st.State.Over() {
			r.t.Fatalf("want state %s: %s", s, saw)
		}
		return st.State == s, saw
	})
	return st
}

// waitEnd waits for the end of Run.
func (r *replicaRun) waitEnd(within time.Duration) functions.ReplicaStatus {
	r.t.Helper()
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Fatalf("Run: %v", err)
		}
	case <-time.After(within):
		r.t.Fatalf("not over after %v: %s", within, r.Status().State)
	}
	return r.Status()
}

// testTimeout bounds the wait for what must happen, on whatever machine.
const testTimeout = time.Minute

// processGone reports whether a process does not exist or is a zombie.
func processGone(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) && runtime.GOOS == "linux"
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(after, "Z")
}

func TestProcessReadyAndUnload(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	l := startReplica(t, b.options("r1", "slow=50ms"), New)
	st := l.wait(functions.Ready, testTimeout)
	pid := b.pid("r1")
	res, err := http.Get(st.Endpoint + "/health")
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("health: %v %v", res, err)
	}
	res.Body.Close()
	var phases []string
	for _, p := range st.Phases {
		phases = append(phases, string(p.Phase))
		t.Logf("%s %.4f + %.4f", p.Phase, p.Start, p.Duration)
	}
	if want := []string{"spawn", "load", "warmup"}; !slices.Equal(phases, want) {
		t.Errorf("phases %v, want %v", phases, want)
	}
	testkit.Eventually(t, "its words are in its log", func() bool { // they come through a pipe
		b, err := os.ReadFile(l.LogPath())
		return err == nil && strings.Contains(string(b), "fake engine")
	})
	l.Unload(time.Second, "idle")
	if st := l.waitEnd(testTimeout); st.State != functions.Unloaded {
		t.Errorf("state %s", st.State)
	}
	if !processGone(pid) {
		t.Error("the engine lives on")
	}
	want := []functions.State{functions.Downloading, functions.Loading, functions.Ready, functions.Draining, functions.Unloaded}
	if got := l.states(); !slices.Equal(got, want) {
		t.Errorf("said %v, want %v", got, want)
	}
}

// pid of a process of the supervisor.
func (s *testSupervisor) pid(id string) int {
	s.t.Helper()
	ps, err := s.client.List(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range ps {
		if p.ID == id {
			return p.PID
		}
	}
	s.t.Fatalf("no process %s", id)
	return 0
}

// children of the engine, as its log tells.
func (s *testSupervisor) children(l *replicaRun) (out []int) {
	s.t.Helper()
	testkit.Eventually(s.t, "the engine's children", func() bool {
		log, _ := os.ReadFile(l.LogPath())
		for line := range strings.SplitSeq(string(log), "\n") {
			if v, ok := strings.CutPrefix(line, "child "); ok {
				p, err := strconv.Atoi(v)
				if err == nil {
					out = append(out, p)
				}
			}
		}
		return len(out) > 0
	})
	return out
}

// stream keeps a request running on the engine until the test ends or it breaks.
func (r *replicaRun) stream(t *testing.T) (broken chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "POST", r.Status().Endpoint+"/v1/completions", strings.NewReader(`{"model":"m","stream":true,"max_tokens":100000}`))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	broken = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		broken <- err
	}()
	t.Cleanup(func() { cancel(); <-done })
	return broken
}

func TestProcessDies(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	for _, c := range []struct {
		name, modes string
		ready       bool // let it become READY first
		busy        bool
		killedBy    syscall.Signal
		why         string
	}{
		{name: "exits at once", modes: "exit=error: config.json: no such file", why: "command ended while loading: config.json: no such file"},
		{name: "crashes while loading", modes: "slow=30ms crash=ValueError:too_long", why: "command ended while loading: ValueError: too_long"},
		{name: "killed while loading", modes: "slow=1h", killedBy: syscall.SIGKILL, why: "command ended while loading: ended by signal 9 (killed)"},
		{name: "killed idle", ready: true, killedBy: syscall.SIGKILL, why: "command ended while ready: ended by signal 9 (killed)"},
		{name: "killed while it streams", ready: true, busy: true, killedBy: syscall.SIGKILL, why: "command ended while ready: ended by signal 9 (killed)"},
		{name: "leaves without being asked", ready: true, killedBy: syscall.SIGTERM, why: "command ended while ready: by itself, exit code 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			modes := append(strings.Fields(c.modes), "fork")
			if strings.HasPrefix(c.modes, "exit=") {
				modes = []string{c.modes, "fork"}
			}
			l := startReplica(t, b.options("dies", modes...), New)
			if c.ready {
				l.wait(functions.Ready, testTimeout)
			} else if c.killedBy != 0 {
				l.wait(functions.Loading, testTimeout)
			}
			var broken chan error
			if c.busy {
				broken = l.stream(t)
			}
			began := time.Now()
			var kids []int
			if c.killedBy != 0 {
				kids = b.children(l)
				began = time.Now()
				syscall.Kill(b.pid("dies"), c.killedBy)
			}
			st := l.waitEnd(testTimeout)
			if c.killedBy != 0 {
				t.Logf("noticed after %v", time.Since(began))
			}
			if st.State != functions.Failed || !strings.HasPrefix(st.Error, c.why) {
				t.Errorf("%s %q, want %q", st.State, st.Error, c.why)
			}
			if c.busy && <-broken == nil {
				t.Error("the stream ended well")
			}
			if len(kids) == 0 {
				kids = b.children(l)
			}
			for _, p := range kids {
				testkit.Eventually(t, "no process of the group is left", func() bool { return processGone(p) })
			}
			os.Remove(l.LogPath())
		})
	}
}

// TestListensElsewhere: an engine that listens, but not at the address it was given, is told while it
// starts; the note is gone when it listens there.
func TestListensElsewhere(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("other systems do not show which process has a socket")
	}
	l := startReplica(t, newTestSupervisor(t).options("elsewhere", "first=127.0.0.2"), New)
	var at string
	testkit.Eventually(t, "the other address is told", func() bool {
		at, _, _ = strings.Cut(strings.TrimPrefix(l.Status().StartNote, "so far it listens on "), ", and not on 127.0.0.1:")
		return strings.HasPrefix(at, "127.0.0.2:")
	})
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if st := l.wait(functions.Ready, testTimeout); st.StartNote != "" {
		t.Errorf("the note of a ready engine: %s", st.StartNote)
	}
}

// TestAnswersErrors: the error that an engine answers in place of its first token is told while it starts.
func TestAnswersErrors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "model")
	l := startReplica(t, newTestSupervisor(t).options("errors", "until="+file), New)
	testkit.Eventually(t, "the error is told", func() bool {
		return l.Status().StartNote == "so far /v1/completions answered HTTP 500: rpc error: EOF"
	})
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if st := l.wait(functions.Ready, testTimeout); st.StartNote != "" {
		t.Errorf("the note of a ready engine: %s", st.StartNote)
	}
}

func TestProcessStopped(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	o := b.options("stopped", "fork")
	o.Spec.Deadlines.Hang, o.Spec.Deadlines.FirstToken = functions.Duration(500*time.Millisecond), functions.Duration(5*time.Second)
	l := startReplica(t, o, New)
	l.wait(functions.Ready, testTimeout)
	l.stream(t)
	testkit.Eventually(t, "it is busy", func() bool { return l.Status().InFlight > 0 })
	kids, pid := b.children(l), b.pid("stopped")
	syscall.Kill(pid, syscall.SIGSTOP)
	st := l.waitEnd(testTimeout)
	if st.State != functions.Failed || !strings.Contains(st.Error, "no answer to a one-token request within 5s") {
		t.Errorf("%s %q", st.State, st.Error)
	}
	for _, p := range append(kids, pid) {
		testkit.Eventually(t, "nothing is left", func() bool { return processGone(p) })
	}
}

func TestProcessEnds(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	t.Run("deaf while loading", func(t *testing.T) {
		l := startReplica(t, b.options("e", "slow=1h", "stubborn", "fork"), New)
		kids := b.children(l)
		l.Unload(time.Hour, "stopped") // no request is in flight
		if st := l.waitEnd(testTimeout); st.State != functions.Unloaded {
			t.Error(st.State)
		}
		testkit.Eventually(t, "no child", func() bool { return processGone(kids[0]) })
	})
	t.Run("stream outlasts the drain", func(t *testing.T) {
		l := startReplica(t, b.options("e"), New)
		l.wait(functions.Ready, testTimeout)
		broken := l.stream(t)
		testkit.Eventually(t, "it is busy", func() bool { return l.Status().InFlight > 0 })
		pid := b.pid("e")
		began := time.Now()
		l.Unload(300*time.Millisecond, "stopped")
		if st := l.waitEnd(testTimeout); st.State != functions.Unloaded {
			t.Error(st.State)
		}
		if d := time.Since(began); d < 300*time.Millisecond || !processGone(pid) {
			t.Errorf("after %v, gone %v", d, processGone(pid))
		}
		if <-broken == nil {
			t.Error("the stream ended well")
		}
	})
	t.Run("chat only, no metrics", func(t *testing.T) {
		l := startReplica(t, b.options("e", "chat", "plain"), New)
		l.wait(functions.Ready, testTimeout)
		l.Unload(0, "stopped")
		if st := l.waitEnd(testTimeout); st.State != functions.Unloaded {
			t.Error(st.State)
		}
	})
	t.Run("never healthy", func(t *testing.T) {
		o := b.options("e", "nohealth")
		o.Spec.Deadlines.Start = functions.Duration(8 * time.Second) // within which it has said its line, on any machine
		l := startReplica(t, o, New)
		if st := l.waitEnd(testTimeout); st.State != functions.Failed ||
			!strings.Contains(st.Error, "not ready within 8s (deadlines.start): /health answered HTTP 503; last line: fake engine") {
			t.Errorf("%s %q", st.State, st.Error)
		}
	})
}

// The agent is gone and another comes: nothing is loaded again.
func TestProcessAdopted(t *testing.T) {
	t.Parallel()
	b := newTestSupervisor(t)
	first := startReplica(t, b.options("keep", "slow=50ms"), New)
	first.wait(functions.Ready, testTimeout)
	late := startReplica(t, b.options("late", "slow=300ms"), New)
	late.wait(functions.Loading, testTimeout)
	testkit.Eventually(t, "both run", func() bool { ps, err := b.client.List(t.Context()); return err == nil && len(ps) == 2 })
	pid := b.pid("keep")
	first.cancel()
	late.cancel()
	if err := <-first.done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-late.done
	b.client.Close()

	c, err := supervisor.Connect(t.Context(), filepath.Join(b.dir, "supervisor.sock"))
	if err != nil {
		t.Fatal(err)
	}
	b.client = c
	ps, err := c.List(t.Context())
	if err != nil || len(ps) != 2 {
		t.Fatalf("%v %v", ps, err)
	}
	for _, p := range ps {
		l := startReplica(t, Options{Spawner: c}, func(o Options) *Replica {
			m, err := ParseMeta(p)
			if err != nil {
				t.Fatal(err)
			}
			return Adopt(o, m, c.Follow(p))
		})
		st := l.wait(functions.Ready, testTimeout)
		if p.ID == "keep" && p.PID != pid {
			t.Error("another process")
		}
		res, err := http.Get(st.Endpoint + "/health")
		if err != nil || res.StatusCode != 200 {
			t.Error(res, err)
		}
		res.Body.Close()
		l.Unload(0, "done")
		if st := l.waitEnd(testTimeout); st.State != functions.Unloaded || !processGone(p.PID) {
			t.Errorf("%s, gone %v", st.State, processGone(p.PID))
		}
	}
}
