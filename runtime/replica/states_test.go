package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// fakeNode is a small true body of everything a replica needs, in virtual time,
// with hooks for faults.
type fakeNode struct {
	stageTime time.Duration
	stageErr  error
	released  atomic.Int64
	staged    atomic.Int64 // that were to be released
	dialed    atomic.Int64
	replicas  int
	lastWords string // of a process that a signal ends
	asked     []StageRequest
	calledOff atomic.Bool

	log      string // path; "": there is none
	spawnErr error
	spawned  atomic.Int64
	closed   atomic.Int64 // clients of engines

	forgotten atomic.Int64 // processes
	killed    atomic.Int64
	termed    atomic.Int64
	ignored   map[syscall.Signal]bool // signals that do not end the process

	loadTime   time.Duration
	tokenErr   func(n int64) error // for the n-th request of a token
	hang       atomic.Bool         // no answer at all
	unhealthy  atomic.Bool         // /health says 503
	tokens     atomic.Int64        // asked for
	metrics    func() (engine.Metrics, error)
	traffic    func(string) functions.Traffic
	lastAnswer string

	// of engines that sleep, and load adapters
	sleepTime, wakeTime time.Duration
	wakeErr             error
	refuse, keep        error        // of the next adapter: to load it, to unload it
	path                string       // of the last one
	asleep              atomic.Int64 // level

	noParent bool // the parent cannot fork

	mu     sync.Mutex
	exit   func(supervisor.Exit)
	gone   bool
	spawns []supervisor.Process
	calls  []string // of sleep and adapters
}

func (n *fakeNode) Stage(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error) {
	n.mu.Lock()
	n.asked = append(n.asked, req)
	n.mu.Unlock()
	for i := range 10 {
		progress(functions.Bytes(i*10), 100)
		select {
		case <-time.After(n.stageTime / 10):
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), ErrStartCancelled) {
				n.calledOff.Store(true)
			}
			return Checkpoint{}, ctx.Err()
		}
	}
	if n.stageErr != nil {
		return Checkpoint{}, n.stageErr
	}
	n.staged.Add(1)
	return Checkpoint{Path: "/store/" + req.Source, Bytes: 100, Digest: "staged now", Release: func() { n.released.Add(1) }}, nil
}

func (n *fakeNode) Spawn(_ context.Context, p supervisor.Process) (*supervisor.Child, error) {
	if n.spawnErr != nil {
		return nil, n.spawnErr
	}
	n.mu.Lock()
	n.spawns = append(n.spawns, p)
	n.mu.Unlock()
	if p.ForkSocket != "" && n.noParent {
		return nil, fmt.Errorf("spawn r1: %w: it is dead", supervisor.ErrNoParent)
	}
	n.spawned.Add(1)
	c, exit := supervisor.NewChild(p.ID, 42, cmp.Or(n.log, "/log/"+p.ID))
	n.mu.Lock()
	n.exit, n.gone = exit, false
	n.mu.Unlock()
	return c, nil
}

func (n *fakeNode) die(e supervisor.Exit) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.gone {
		n.gone = true
		n.exit(e)
	}
}

func (n *fakeNode) Signal(_ context.Context, _ string, sig syscall.Signal) error {
	switch sig {
	case syscall.SIGKILL:
		n.killed.Add(1)
	case syscall.SIGTERM:
		n.termed.Add(1)
	}
	if !n.ignored[sig] {
		n.die(supervisor.Exit{Code: -1, Signal: sig, Tail: n.lastWords})
	}
	return nil
}

func (n *fakeNode) Forget(context.Context, string) error { n.forgotten.Add(1); return nil }

func (n *fakeNode) Await(ctx context.Context, listening func()) error {
	select {
	case <-time.After(n.loadTime / 2):
	case <-ctx.Done():
		return ctx.Err()
	}
	listening()
	select {
	case <-time.After(n.loadTime - n.loadTime/2):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *fakeNode) Token(ctx context.Context) error {
	count := n.tokens.Add(1)
	if n.hang.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if n.tokenErr != nil {
		err := n.tokenErr(count)
		if err != nil {
			n.lastAnswer = fmt.Sprint("the probe answered ", err)
		}
		return err
	}
	return nil
}

func (n *fakeNode) LastAnswer() string { return n.lastAnswer }

func (n *fakeNode) Health(ctx context.Context) error {
	if n.hang.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if n.unhealthy.Load() {
		return &engine.StatusError{Status: 503}
	}
	return nil
}

// setMetrics replaces the metrics of an engine that runs.
func (n *fakeNode) setMetrics(f func() (engine.Metrics, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.metrics = f
}

func (n *fakeNode) Metrics(context.Context) (engine.Metrics, error) {
	n.mu.Lock()
	f := n.metrics
	n.mu.Unlock()
	if f != nil {
		return f()
	}
	return engine.Metrics{Load: true, Flow: true}, nil
}

func (n *fakeNode) Close() { n.closed.Add(1) }

// check checks what a run leaves: every lease is released, every client closed and, unless the
// process was left to the supervisor, every process forgotten.
func (n *fakeNode) check(t *testing.T, over bool) {
	t.Helper()
	if n.staged.Load() != n.released.Load() || n.dialed.Load() != n.closed.Load() || over && n.spawned.Load() != n.forgotten.Load() {
		t.Errorf("%d checkpoints and %d released, %d clients and %d closed, %d processes and %d forgotten", n.staged.Load(), n.released.Load(),
			n.dialed.Load(), n.closed.Load(), n.spawned.Load(), n.forgotten.Load())
	}
}

func (n *fakeNode) options() Options {
	d := functions.Duration(time.Second)
	return Options{
		Assignment: Assignment{ID: "r1", Team: "default", Model: "m",
			Spec: functions.ModelSpec{Source: "m", Engine: functions.EngineVLLM, Deadlines: functions.Deadlines{
				Stage: 3600 * d, Start: 600 * d, FirstToken: 120 * d, Hang: 10 * d, Drain: 30 * d}}},
		Stager: n, Spawner: n, Dial: func(engine.Command) Engine { n.dialed.Add(1); return n }, Traffic: n.traffic,
		Programs: engine.Programs{Look: func(name string) (string, error) { return "/bin/" + name, nil },
			Environ: func() []string { return nil }},
	}
}

// virtual runs one replica in a bubble of its own.
func virtual(t *testing.T, s *fakeNode, f func(t *testing.T, l *replicaRun)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := startReplica(t, s.options(), New)
		f(t, l)
	})
}

// endsWithin bounds the wait for an end on a bubble's clock. A replica that is READY by
// mistake would be probed for ever.
const endsWithin = 4 * time.Hour

func (r *replicaRun) ended(t *testing.T, want functions.State, reason string) {
	t.Helper()
	st := r.waitEnd(endsWithin)
	if st.State != want || !strings.Contains(st.Error, reason) {
		t.Fatalf("%s %q, want %s %q", st.State, st.Error, want, reason)
	}
	if st.Endpoint != "" {
		t.Errorf("endpoint %s of one that is over", st.Endpoint)
	}
}

func expectState(t *testing.T, l *replicaRun, want functions.State) {
	t.Helper()
	if st := l.Status(); st.State != want {
		t.Fatalf("%s (%s), want %s", st.State, st.Error, want)
	}
}

func TestPhases(t *testing.T) {
	s := &fakeNode{stageTime: 10 * time.Second, loadTime: 4 * time.Second}
	virtual(t, s, func(t *testing.T, l *replicaRun) {
		time.Sleep(5*time.Second + time.Millisecond)
		if st := l.Status(); st.State != functions.Downloading || st.Percent < 40 || st.Percent > 50 || st.TotalBytes != 100 {
			t.Errorf("half-way: %+v", st)
		}
		time.Sleep(10 * time.Second)
		st := l.Status()
		if st.State != functions.Ready || st.Bytes != 100 || st.Tier != functions.TierDRAM ||
			!strings.HasPrefix(st.Endpoint, "http://127.0.0.1:") {
			t.Fatalf("%+v", st)
		}
		var got []string
		for _, p := range st.Phases {
			got = append(got, fmt.Sprintf("%s %.0f+%.0f", p.Phase, p.Start, p.Duration))
		}
		if want := "stage 0+10, spawn 10+2, load 12+2, warmup 14+0"; strings.Join(got, ", ") != want {
			t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
		}
		if l.LogPath() != "/log/r1" {
			t.Error(l.LogPath())
		}
		l.Unload(30*time.Second, "idle")
		l.ended(t, functions.Unloaded, "")
		if s.released.Load() != 1 || s.termed.Load() != 1 || s.killed.Load() != 0 || s.forgotten.Load() != 1 {
			t.Errorf("released %d, terminated %d, killed %d, forgotten %d", s.released.Load(), s.termed.Load(), s.killed.Load(), s.forgotten.Load())
		}
	})
}

func TestFailures(t *testing.T) {
	second := time.Second
	for _, c := range []struct {
		name   string
		s      *fakeNode
		change func(*Options)
		during func(s *fakeNode)
		why    string
		after  time.Duration // at most
		kills  int64
	}{
		{name: "weights missing", s: &fakeNode{stageErr: errors.New("no such blob")}, why: "stage: no such blob"},
		{name: "staging too slow", s: &fakeNode{stageTime: 2 * time.Hour}, why: "stage: not staged within 1h", after: time.Hour},
		{name: "engine missing", s: &fakeNode{}, change: func(o *Options) {
			o.Programs.Look = func(string) (string, error) { return "", errors.New("no") }
		}, why: `engine vllm: program "vllm" not found on PATH; install it or set THAW_ENGINE_VLLM`},
		{name: "cannot spawn", s: &fakeNode{spawnErr: errors.New("exec format error")}, why: "vllm: exec format error"},
		{name: "exits while loading", s: &fakeNode{loadTime: 20 * second}, during: func(s *fakeNode) {
			time.Sleep(5 * second)
			s.die(supervisor.Exit{Code: 1,
				Tail: "torch.OutOfMemoryError: CUDA out of memory. Tried\nRuntimeError: Engine core initialization failed."})
		}, why: "vllm ended while loading: out of GPU memory: CUDA out of memory. Tried", after: 5 * second},
		{name: "another process holds the memory", s: &fakeNode{loadTime: 20 * second}, change: func(o *Options) {
			o.GPUs, o.GPUHolders = []int{2}, func(index int) string { return fmt.Sprint("process 4711 (python3) holds 60 GiB of ", index) }
		}, during: func(s *fakeNode) {
			time.Sleep(5 * second)
			s.die(supervisor.Exit{Code: 1, Tail: "torch.OutOfMemoryError: CUDA out of memory. Tried"})
		}, why: "what the model needs); of GPU 2 process 4711 (python3) holds 60 GiB of 2", after: 5 * second},
		{name: "killed while loading", s: &fakeNode{loadTime: 20 * second}, during: func(s *fakeNode) {
			time.Sleep(5 * second)
			s.die(supervisor.Exit{Code: -1, Signal: syscall.SIGKILL, Tail: "INFO all is well"})
		}, why: "vllm ended while loading: ended by signal 9 (killed)", after: 5 * second},
		{name: "never ready", s: &fakeNode{loadTime: time.Hour}, why: "vllm: not ready within 10m", after: 10 * time.Minute, kills: 1},
		{name: "never ready, and its log says why", s: &fakeNode{loadTime: time.Hour, lastWords: "ValueError: a bad value"}, why: "vllm: not ready within 10m (deadlines.start): no answer; ValueError: a bad value", after: 10 * time.Minute, kills: 1},
		{name: "never ready, cannot be killed", s: &fakeNode{loadTime: time.Hour, ignored: map[syscall.Signal]bool{syscall.SIGKILL: true}}, why: "vllm: not ready within 10m", after: 10*time.Minute + 2*second, kills: 1},
		{name: "no first token", s: func() *fakeNode { s := &fakeNode{}; s.hang.Store(true); return s }(), why: "vllm: no first token within 10m (deadlines.start): no answer; it wrote nothing", after: 10*time.Minute + second, kills: 1},
		{name: "first token is an error", s: &fakeNode{tokenErr: func(int64) error { return &engine.StatusError{Status: 500, Body: "CUDA error"} }}, why: "vllm: no first token within 10m (deadlines.start): the probe answered HTTP 500: CUDA error", after: 10*time.Minute + second, kills: 1},
		{name: "the key is refused", s: &fakeNode{tokenErr: func(int64) error { return &engine.StatusError{Status: 401, Body: "Unauthorized"} }}, why: "vllm: first token: the probe answered HTTP 401: Unauthorized", after: 11 * second, kills: 1},
		{name: "it goes on writing that it failed", s: &fakeNode{loadTime: time.Hour}, change: func(o *Options) {
			o.Spawner.(*fakeNode).log = filepath.Join(t.TempDir(), "log")
			write(t, o.Spawner.(*fakeNode).log, func(io.Writer) error { return nil })
		}, during: func(s *fakeNode) {
			for i := range 50 {
				time.AfterFunc(time.Duration(i)*100*time.Millisecond, func() {
					f, err := os.OpenFile(s.log, os.O_WRONLY|os.O_APPEND, 0)
					if err != nil {
						t.Error(err)
						return
					}
					defer f.Close()
					fmt.Fprintln(f, "RuntimeError: Engine core initialization failed. See root cause above.")
				})
			}
		}, why: "vllm ended while loading: ", after: 2 * second, kills: 1},
		{name: "the key is refused at times", s: &fakeNode{tokenErr: func(n int64) error {
			if n%2 == 0 {
				return &engine.StatusError{Status: 401, Body: "Unauthorized"}
			}
			return &engine.StatusError{Status: 500, Body: "loading"}
		}}, why: "vllm: no first token within 10m (deadlines.start): the probe answered HTTP ", after: 10*time.Minute + second, kills: 1},
		{name: "dies at its first token", s: &fakeNode{loadTime: second}, change: func(o *Options) {
			s := o.Spawner.(*fakeNode)
			s.tokenErr = func(int64) error {
				s.die(supervisor.Exit{Code: 1, Tail: "ValueError: bad kernel"})
				return errors.New("EOF")
			}
		}, why: "vllm ended while loading: ValueError: bad kernel", after: second},
		{name: "port taken for ever", s: &fakeNode{}, change: func(o *Options) {
			s := o.Spawner.(*fakeNode)
			s.tokenErr = func(int64) error {
				s.die(supervisor.Exit{Code: 1, Tail: "OSError: [Errno 98] Address already in use"})
				return errors.New("EOF")
			}
		}, why: "vllm ended while loading: port taken", after: second},
		{name: "dies when ready", s: &fakeNode{}, during: func(s *fakeNode) {
			time.Sleep(time.Minute)
			s.die(supervisor.Exit{Code: 0})
		}, why: "vllm ended while ready: by itself, exit code 0; it wrote nothing", after: time.Minute},
		{name: "supervisor lost", s: &fakeNode{}, during: func(s *fakeNode) {
			time.Sleep(time.Minute)
			s.die(supervisor.Exit{Code: -1, Lost: true})
		}, why: "vllm ended while ready: its supervisor is gone", after: time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := c.s.options()
				if c.change != nil {
					c.change(&o)
				}
				began := time.Now()
				l := startReplica(t, o, New)
				if c.during != nil {
					go c.during(c.s)
				}
				l.ended(t, functions.Failed, c.why)
				if d := time.Since(began); d > c.after {
					t.Errorf("after %v, want %v at most", d, c.after)
				}
				if st := l.Status(); strings.HasPrefix(c.why, "stage: ") &&
					(len(st.Phases) != 1 || functions.EngineTime(time.Since(began), st.Phases) != 0) {
					t.Errorf("a failed staging is no time of the engine: %v", st.Phases)
				}
				if c.s.killed.Load() != c.kills {
					t.Errorf("killed %d times", c.s.killed.Load())
				}
				want := c.s.released.Load()
				if c.s.spawned.Load() > 0 && want != 1 {
					t.Errorf("lease released %d times", want)
				}
				if n := c.s.spawned.Load(); n != c.s.closed.Load() {
					t.Errorf("%d engines started, the clients of %d closed", n, c.s.closed.Load())
				}
				if c.name == "port taken for ever" && c.s.spawned.Load() != portTries {
					t.Errorf("%d tries", c.s.spawned.Load())
				}
			})
		})
	}
}

// A busy engine is asked again for its first token.
func TestEngineBusyAtStart(t *testing.T) {
	s := &fakeNode{tokenErr: func(n int64) error {
		if n < 5 {
			return &engine.StatusError{Status: 503}
		}
		return nil
	}}
	virtual(t, s, func(t *testing.T, l *replicaRun) {
		time.Sleep(time.Second)
		expectState(t, l, functions.Ready)
		l.Unload(0, "done")
		l.ended(t, functions.Unloaded, "")
	})
}

func TestCancelStart(t *testing.T) {
	t.Run("while staging", func(t *testing.T) {
		s := &fakeNode{stageTime: time.Minute}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Second)
			l.CancelStart()
			l.ended(t, functions.Unloaded, "")
			if !s.calledOff.Load() || s.spawned.Load() != 0 {
				t.Error("the stager was not told, or an engine was spawned")
			}
		})
	})
	t.Run("after staging", func(t *testing.T) {
		s := &fakeNode{stageTime: time.Second, loadTime: time.Second}
		synctest.Test(t, func(t *testing.T) {
			l := startReplica(t, s.options(), func(o Options) (r *Replica) {
				report := o.OnChange
				o.OnChange = func(st functions.ReplicaStatus) {
					report(st)
					if st.State == functions.Loading {
						r.CancelStart()
					}
				}
				r = New(o)
				return r
			})
			time.Sleep(time.Minute)
			expectState(t, l, functions.Unloaded)
			if s.spawned.Load() != 0 || s.released.Load() != 1 {
				t.Errorf("%d engines started that no request needs, lease released %d times", s.spawned.Load(), s.released.Load())
			}
		})
	})
	t.Run("once spawned it lives", func(t *testing.T) {
		s := &fakeNode{loadTime: time.Minute}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Second)
			l.CancelStart()
			time.Sleep(time.Minute)
			expectState(t, l, functions.Ready)
			l.CancelStart()
			synctest.Wait()
			expectState(t, l, functions.Ready)
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
		})
	})
}

// The cause of a failure is looked for in the log of its own try.
func TestLogOfTheTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	before, now := "OSError: [Errno 98] Address already in use\n", "ValueError: bad kernel\n"
	write(t, path, func(w io.Writer) error { _, err := io.WriteString(w, before+now); return err })
	r := New((&fakeNode{}).options())
	r.process.output.Store(&path)
	r.process.logFrom = int64(len(before))
	if got := r.process.tail(supervisor.Exit{}); got != now {
		t.Errorf("%q", got)
	}
}

func TestUnloadAnywhere(t *testing.T) {
	t.Run("staging", func(t *testing.T) {
		s := &fakeNode{stageTime: time.Minute}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Second)
			l.Unload(time.Minute, "stopped")
			l.ended(t, functions.Unloaded, "")
			if s.spawned.Load() != 0 {
				t.Error("spawned")
			}
		})
	})
	t.Run("before Run", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{stageTime: time.Minute}
			r := New(s.options())
			r.Unload(0, "stopped")
			if err := r.Run(t.Context()); err != nil || r.Status().State != functions.Unloaded {
				t.Error(err, r.Status().State)
			}
			r.Unload(0, "again") // after the end; it must not block
			r.CancelStart()
			r.Suspect("x")
		})
	})
	// vLLM swallows SIGTERM while it waits for its core.
	t.Run("loading, deaf to SIGTERM", func(t *testing.T) {
		s := &fakeNode{loadTime: time.Minute, ignored: map[syscall.Signal]bool{syscall.SIGTERM: true}}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Second)
			began := time.Now()
			l.Unload(time.Minute, "stopped")
			l.ended(t, functions.Unloaded, "")
			if d := time.Since(began); d > 2*time.Second || s.killed.Load() != 1 {
				t.Errorf("after %v, killed %d times", d, s.killed.Load())
			}
		})
	})
}

// Of several Unloads the shortest drain counts, in whatever order they come.
func TestUnloadsAreMerged(t *testing.T) {
	for _, drains := range [][]time.Duration{{time.Hour, time.Second}, {time.Second, time.Hour}} {
		r := New((&fakeNode{}).options())
		for _, d := range drains {
			r.Unload(d, d.String())
		}
		if c := r.commands.take(); !c.unload || c.drain != time.Second || c.reason != "1s" {
			t.Errorf("%v: %+v", drains, c)
		}
	}
}

func TestDrain(t *testing.T) {
	for _, c := range []struct {
		name           string
		until          time.Duration // requests run until then
		known          bool          // the engine has metrics
		owner          bool          // the owner knows too
		queued         bool          // they wait in the engine's queue
		again          time.Duration // a second Unload, with this drain
		ignoresSignals bool
		min            time.Duration
		max            time.Duration
		drained        bool
	}{
		{name: "idle", known: true, max: 200 * time.Millisecond},
		{name: "requests finish", known: true, until: 10 * time.Second, min: 10 * time.Second, max: 10*time.Second + 200*time.Millisecond},
		{name: "requests leave the engine's queue", known: true, queued: true, until: 10 * time.Second, min: 10 * time.Second, max: 10*time.Second + 200*time.Millisecond},
		{name: "requests do not", known: true, until: time.Hour, min: 30 * time.Second, max: 30 * time.Second},
		{name: "nor does it heed SIGTERM", known: true, until: time.Hour, ignoresSignals: true, min: 30 * time.Second, max: 32 * time.Second},
		{name: "no metrics", min: 30 * time.Second, max: 30 * time.Second},
		{name: "only the owner knows", owner: true, until: 5 * time.Second, min: 5 * time.Second, max: 5*time.Second + 200*time.Millisecond},
		{name: "more haste", known: true, until: time.Hour, again: 3 * time.Second, min: 4 * time.Second, max: 4 * time.Second},
		{name: "less haste changes nothing", known: true, until: time.Hour, again: time.Minute, min: 30 * time.Second, max: 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var end atomic.Pointer[time.Time]
				running := func() int {
					if e := end.Load(); e != nil && time.Now().Before(*e) {
						return 1
					}
					return 0
				}
				s := &fakeNode{metrics: func() (engine.Metrics, error) {
					if !c.known {
						return engine.Metrics{}, engine.ErrNoMetrics
					}
					if c.queued {
						return engine.Metrics{Waiting: running(), Load: true}, nil
					}
					return engine.Metrics{Running: running(), Load: true}, nil
				}}
				if c.ignoresSignals {
					s.ignored = map[syscall.Signal]bool{syscall.SIGTERM: true}
				}
				o := s.options()
				if c.owner {
					o.InFlight = running
				}
				l := startReplica(t, o, New)
				time.Sleep(time.Second)
				expectState(t, l, functions.Ready)
				began := time.Now()
				e := began.Add(c.until)
				end.Store(&e)
				l.Unload(30*time.Second, "idle")
				synctest.Wait()
				if c.again > 0 {
					time.Sleep(time.Second)
					l.Unload(c.again, "now")
				}
				l.ended(t, functions.Unloaded, "")
				if d := time.Since(began); d < c.min || d > c.max {
					t.Errorf("took %v, want %v to %v", d, c.min, c.max)
				}
			})
		})
	}
}

func TestHang(t *testing.T) {
	// running with tokens flowing, then stopped
	busy := func(s *fakeNode) func() (engine.Metrics, error) {
		began := time.Now()
		return func() (engine.Metrics, error) {
			if s.hang.Load() {
				return engine.Metrics{Running: 1, Tokens: 1000, Load: true, Flow: true}, nil
			}
			return engine.Metrics{Running: 1, Tokens: time.Since(began).Seconds(), Load: true, Flow: true}, nil
		}
	}
	t.Run("tokens stop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{}
			s.metrics = busy(s)
			l := startReplica(t, s.options(), New)
			time.Sleep(time.Minute)
			expectState(t, l, functions.Ready)
			if st := l.Status(); st.InFlight != 1 {
				t.Errorf("%+v", st)
			}
			s.hang.Store(true)
			began := time.Now()
			l.ended(t, functions.Failed, "s with 1 requests running (deadlines.hang: 10s); then no answer to a one-token request within 5s")
			if d := time.Since(began); d < 15*time.Second || d > 16*time.Second || s.killed.Load() != 1 {
				t.Errorf("after %v, killed %d times", d, s.killed.Load())
			}
		})
	})
	t.Run("false alarm", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{metrics: func() (engine.Metrics, error) {
				return engine.Metrics{Running: 1, Tokens: 7, Load: true, Flow: true}, nil
			}}
			l := startReplica(t, s.options(), New)
			time.Sleep(10 * time.Minute)
			expectState(t, l, functions.Ready)
			if n := s.tokens.Load(); n < 3 || n > 10 {
				t.Errorf("%d probes in 10 minutes", n)
			}
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
		})
	})
	t.Run("probe stands behind others", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{}
			began := time.Now()
			s.metrics = func() (engine.Metrics, error) {
				return engine.Metrics{Running: 1, Tokens: time.Since(began).Seconds(), Load: true, Flow: true}, nil
			}
			l := startReplica(t, s.options(), New)
			time.Sleep(time.Second)
			s.hang.Store(true)
			l.Suspect("stream broke")
			time.Sleep(time.Minute)
			expectState(t, l, functions.Ready)
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
		})
	})
	t.Run("no metrics, suspected by the owner", func(t *testing.T) {
		s := &fakeNode{metrics: func() (engine.Metrics, error) { return engine.Metrics{}, engine.ErrNoMetrics }}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Minute)
			l.Suspect("no byte for 10s")
			time.Sleep(10 * time.Second)
			expectState(t, l, functions.Ready) // it answered
			s.hang.Store(true)
			time.Sleep(time.Minute)
			expectState(t, l, functions.Ready) // no probe failed
			began := time.Now()
			l.Suspect("no byte for 10s")
			l.ended(t, functions.Failed, "vllm hung: no byte for 10s; then no answer to a one-token request within 5s")
			if d := time.Since(began); d > 6*time.Second {
				t.Errorf("after %v", d)
			}
		})
	})
	t.Run("metrics silent while idle", func(t *testing.T) {
		s := &fakeNode{}
		s.metrics = func() (engine.Metrics, error) {
			if s.hang.Load() {
				return engine.Metrics{}, errors.New("timeout")
			}
			return engine.Metrics{Load: true, Flow: true}, nil
		}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Minute)
			s.hang.Store(true)
			l.ended(t, functions.Failed, "vllm hung: /metrics not answered for ")
		})
	})
	t.Run("bad health", func(t *testing.T) {
		s := &fakeNode{}
		s.tokenErr = func(int64) error {
			if s.unhealthy.Load() {
				return &engine.StatusError{Status: 500, Body: "EngineCore died"}
			}
			return nil
		}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Minute)
			s.unhealthy.Store(true)
			began := time.Now()
			l.ended(t, functions.Failed, "vllm is broken: /health: HTTP 503; then the probe: HTTP 500: EngineCore died, /health: HTTP 503")
			if d := time.Since(began); d > 2*time.Second {
				t.Errorf("after %v", d)
			}
		})
	})
	t.Run("errors only", func(t *testing.T) {
		s := &fakeNode{tokenErr: func(n int64) error {
			if n > 1 {
				return &engine.StatusError{Status: 500, Body: "EngineDeadError"}
			}
			return nil
		}}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Second)
			for range probeTries {
				expectState(t, l, functions.Ready)
				l.Suspect("HTTP 500")
				time.Sleep(time.Second)
			}
			l.ended(t, functions.Failed, "vllm answers with errors alone: HTTP 500: EngineDeadError")
		})
	})
	// One suspicion is enough: the probe is repeated while it is answered with errors.
	for broken, want := range map[int64]string{
		probeTries - 1: "",
		probeTries:     "vllm answers with errors alone: HTTP 500: CUDA error: an illegal memory access was encountered",
	} {
		t.Run(fmt.Sprint("suspected once, errors: ", broken), func(t *testing.T) {
			s := &fakeNode{tokenErr: func(n int64) error {
				if n > 1 && n <= 1+broken {
					return &engine.StatusError{Status: 500, Body: "CUDA error: an illegal memory access was encountered"}
				}
				return nil
			}}
			virtual(t, s, func(t *testing.T, l *replicaRun) {
				time.Sleep(time.Minute)
				began, asked := time.Now(), s.tokens.Load()
				l.Suspect("HTTP 500")
				if want == "" {
					time.Sleep(time.Minute)
					expectState(t, l, functions.Ready)
					if n := s.tokens.Load() - asked; n != broken+1 {
						t.Errorf("%d probes", n)
					}
					l.Unload(0, "done")
					l.ended(t, functions.Unloaded, "")
					return
				}
				l.ended(t, functions.Failed, want)
				if d := time.Since(began); d < (probeTries-1)*probePause || d > probeTries*probePause {
					t.Errorf("after %v", d)
				}
			})
		})
	}
	// Only consecutive errors count: an engine that fails a probe now and then serves on.
	t.Run("errors now and then", func(t *testing.T) {
		s := &fakeNode{tokenErr: func(n int64) error {
			if n > 1 && n%probeTries != 1 {
				return &engine.StatusError{Status: 500, Body: "ValueError: no such token"}
			}
			return nil
		}}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Second)
			for range 4 * probeTries {
				l.Suspect("HTTP 500")
				time.Sleep(time.Second)
				expectState(t, l, functions.Ready)
			}
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
		})
	})
	t.Run("gone", func(t *testing.T) {
		s := &fakeNode{tokenErr: func(n int64) error {
			if n > 1 {
				return fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
			}
			return nil
		}}
		virtual(t, s, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Second)
			l.Suspect("refused")
			l.ended(t, functions.Failed, "vllm is broken: refused; it refuses connections")
		})
	})
}

// The agent goes: the process stays, unless it was told to end.
func TestEnginesKept(t *testing.T) {
	for name, s := range map[string]*fakeNode{
		"staging": {stageTime: time.Hour}, "loading": {loadTime: 9 * time.Minute}, "ready": {},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, s, func(t *testing.T, l *replicaRun) {
				time.Sleep(time.Minute)
				l.cancel()
				if err := <-l.done; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if s.killed.Load()+s.termed.Load() != 0 {
					t.Error("the engine was ended")
				}
				if l.Status().State.Over() {
					t.Error(l.Status().State)
				}
			})
		})
	}
}

func TestAdoptStates(t *testing.T) {
	meta := func(o Options, began time.Time) json.RawMessage {
		b, err := json.Marshal(Meta{Assignment: o.Assignment, Port: 7001, Path: "/store/m", Bytes: 100,
			Weights: "loaded then", Began: began, Started: began.Add(time.Second),
			Phases: []functions.Span{{Phase: functions.PhaseStage, Duration: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	adopt := func(t *testing.T, s *fakeNode) *replicaRun {
		o := s.options()
		p := supervisor.Running{ID: "r1", PID: 42, Log: "/log/r1", Meta: meta(o, time.Now())}
		child, err := s.Spawn(t.Context(), supervisor.Process{ID: "r1"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		return startReplica(t, Options{Stager: s, Spawner: s, Dial: o.Dial}, func(o Options) *Replica {
			m, err := ParseMeta(p)
			if err != nil {
				t.Fatal(err)
			}
			r := Adopt(o, m, child)
			if st := r.Status(); st.State != functions.Loading || st.Model != "m" {
				t.Errorf("before it runs: %+v", st)
			}
			return r
		})
	}
	t.Run("alive", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{}
			l := adopt(t, s)
			time.Sleep(time.Second)
			st := l.Status()
			if st.State != functions.Ready || st.Endpoint != "http://127.0.0.1:7001" || st.Model != "m" || st.Bytes != 100 ||
				st.Spec.Source != "m" || st.Weights != "loaded then" {
				t.Fatalf("%+v", st)
			}
			if s.spawned.Load() != 1 || slices.Contains(l.states(), functions.Downloading) {
				t.Errorf("%d processes, said %v", s.spawned.Load(), l.states())
			}
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
			if s.released.Load() != 1 {
				t.Error("no lease")
			}
		})
	})
	t.Run("checkpoint not to be had", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{stageTime: time.Hour}
			l := adopt(t, s)
			time.Sleep(time.Minute)
			expectState(t, l, functions.Ready)
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
		})
	})
	t.Run("does not answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{}
			s.hang.Store(true)
			l := adopt(t, s)
			l.ended(t, functions.Failed, "vllm: no first token within 10m (deadlines.start): no answer")
			if s.killed.Load() != 1 {
				t.Error("it lives on")
			}
		})
	})
	t.Run("ready for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{loadTime: time.Minute} // it is busy
			o := s.options()
			p := supervisor.Running{ID: "r1", PID: 42, Log: "/log/r1", Meta: meta(o, time.Now().Add(-24*time.Hour))}
			child, err := s.Spawn(t.Context(), supervisor.Process{ID: "r1"})
			if err != nil {
				t.Fatal(err)
			}
			l := startReplica(t, Options{Stager: s, Spawner: s, Dial: o.Dial}, func(o Options) *Replica {
				m, err := ParseMeta(p)
				if err != nil {
					t.Fatal(err)
				}
				return Adopt(o, m, child)
			})
			time.Sleep(61 * time.Second)
			expectState(t, l, functions.Ready)
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
		})
	})
	t.Run("died meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeNode{loadTime: time.Hour}
			go func() { time.Sleep(time.Second); s.die(supervisor.Exit{Code: 1, Tail: "error: no memory"}) }()
			adopt(t, s).ended(t, functions.Failed, "no memory")
		})
	})
	t.Run("not ours", func(t *testing.T) {
		for _, m := range []string{"", "{}", `{"id":"r2","port":1}`, `{"id":"r1","port":0}`, "]"} {
			if _, err := ParseMeta(supervisor.Running{ID: "r1", Meta: json.RawMessage(m)}); err == nil {
				t.Errorf("%q adopted", m)
			}
		}
	})
}
