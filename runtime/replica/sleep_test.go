package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

func (n *fakeNode) call(format string, a ...any) {
	n.mu.Lock()
	n.calls = append(n.calls, fmt.Sprintf(format, a...))
	n.mu.Unlock()
}

func (n *fakeNode) called() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.calls, ", ")
}

func (n *fakeNode) Sleep(ctx context.Context, level int, mode engine.SleepMode) error {
	n.call("sleep %d %s", level, mode)
	select {
	case <-time.After(n.sleepTime):
		n.asleep.Store(int64(level))
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *fakeNode) Wake(ctx context.Context, level int) error {
	n.call("wake %d", level)
	select {
	case <-time.After(n.wakeTime):
		n.asleep.Store(0)
		return n.wakeErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *fakeNode) SleepLevel(ctx context.Context) (int, error) {
	if n.hang.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return int(n.asleep.Load()), nil
}

func (n *fakeNode) LoadAdapter(_ context.Context, name, path string) error {
	n.call("load %s", name)
	err := n.refuse
	n.refuse, n.path = nil, path
	return err
}

func (n *fakeNode) UnloadAdapter(_ context.Context, name string) error {
	n.call("unload %s", name)
	err := n.keep
	n.keep = nil
	return err
}

// newSleepingReplica is a replica of a model whose engine can sleep, READY.
func newSleepingReplica(t *testing.T, s *fakeNode) *replicaRun {
	t.Helper()
	o := s.options()
	o.Spec.Env = map[string]string{"VLLM_SERVER_DEV_MODE": "1"}
	l := startReplica(t, o, New)
	time.Sleep(time.Second)
	expectState(t, l, functions.Ready)
	return l
}

func TestSleep(t *testing.T) {
	second := time.Second
	// inflight is metrics of an engine that is busy until then.
	inflight := func(until time.Duration) func() (engine.Metrics, error) {
		began := time.Now()
		return func() (engine.Metrics, error) {
			m := engine.Metrics{Load: true, Flow: true, Tokens: time.Since(began).Seconds()}
			if time.Since(began) < until {
				m.Running = 1
			}
			return m, nil
		}
	}
	for _, c := range []struct {
		name     string
		s        func() *fakeNode
		do       func(t *testing.T, s *fakeNode, l *replicaRun)
		calls    string
		statuses string // states after the first READY
		began    bool   // it may have begun to sleep when the wake came
	}{
		{name: "sleeps and wakes", s: func() *fakeNode { return &fakeNode{sleepTime: second, wakeTime: 2 * second} },
			do: func(t *testing.T, s *fakeNode, l *replicaRun) {
				l.Sleep(1, "idle")
				synctest.Wait()
				if st := l.Status(); st.State != functions.Sleeping || st.SleepLevel != 0 {
					t.Errorf("falling asleep: %s %d", st.State, st.SleepLevel)
				}
				time.Sleep(3 * second)
				if st := l.Status(); st.State != functions.Sleeping || st.SleepLevel != 1 || st.Tier != functions.TierSleeping || st.Endpoint == "" {
					t.Errorf("asleep: %+v", st)
				}
				time.Sleep(time.Hour)
				expectState(t, l, functions.Sleeping)
				l.WakeUp("asked for")
				time.Sleep(3 * second)
				st := l.Status()
				if st.State != functions.Ready || st.SleepLevel != 0 || st.Tier != functions.TierDRAM {
					t.Errorf("awake: %+v", st)
				}
				var phases []string
				for _, p := range st.Phases {
					phases = append(phases, fmt.Sprintf("%s %.0f+%.0f", p.Phase, p.Start, p.Duration))
				}
				if got := strings.Join(phases, ", "); got != "load 0+2, warmup 2+0" {
					t.Error(got)
				}
			}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU READY"},
		{name: "in flight finish first", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			s.setMetrics(inflight(10 * second))
			l.Sleep(2, "evicted")
			time.Sleep(9 * second)
			if st := l.Status(); st.SleepLevel != 0 || s.called() != "" {
				t.Errorf("asleep with a request in flight: %s", s.called())
			}
			time.Sleep(2 * second)
			if st := l.Status(); st.SleepLevel != 2 {
				t.Errorf("%+v", st)
			}
		}, calls: "sleep 2 wait", statuses: "SLEEPING"},
		{name: "until the drain is over", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			s.setMetrics(inflight(time.Hour))
			l.Sleep(1, "evicted")
			time.Sleep(29 * second)
			if s.called() != "" {
				t.Error(s.called())
			}
			s.setMetrics(inflight(0))
			time.Sleep(3 * second)
		}, calls: "sleep 1 wait", statuses: "SLEEPING"},
		{name: "what does not finish is aborted", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			s.setMetrics(inflight(30*second + 50*time.Millisecond))
			l.Sleep(1, "evicted")
			time.Sleep(32 * second)
			if st := l.Status(); st.SleepLevel != 1 {
				t.Errorf("%+v", st)
			}
		}, calls: "sleep 1 abort", statuses: "SLEEPING"},
		{name: "woken while falling asleep", s: func() *fakeNode { return &fakeNode{sleepTime: 5 * second} },
			do: func(t *testing.T, s *fakeNode, l *replicaRun) {
				l.Sleep(1, "idle")
				time.Sleep(second)
				l.WakeUp("asked for")
				time.Sleep(second)
				expectState(t, l, functions.Sleeping)
				time.Sleep(5 * second)
				expectState(t, l, functions.Ready)
			}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU READY"},
		{name: "a request waits in the engine", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			l.Sleep(1, "idle")
			time.Sleep(second)
			s.setMetrics(inflight(10 * second))
			time.Sleep(3 * second)
			expectState(t, l, functions.Ready)
		}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU READY"},
		{name: "a request is queued in the engine", s: func() *fakeNode { return &fakeNode{} },
			do: func(t *testing.T, s *fakeNode, l *replicaRun) {
				l.Sleep(1, "idle")
				time.Sleep(second)
				s.setMetrics(func() (engine.Metrics, error) { return engine.Metrics{Load: true, Flow: true, Waiting: 1}, nil })
				time.Sleep(3 * second)
				expectState(t, l, functions.Ready)
			}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU READY"},
		{name: "taken back", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			l.Sleep(1, "idle")
			l.WakeUp("asked for") // the later command holds
			time.Sleep(second)
			expectState(t, l, functions.Ready)
		}, statuses: "", began: true},
		{name: "unloaded asleep", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			l.Sleep(1, "idle")
			time.Sleep(second)
			l.Unload(30*second, "stopped")
			l.ended(t, functions.Unloaded, "")
		}, calls: "sleep 1 wait", statuses: "SLEEPING DRAINING UNLOADED"},
		{name: "unloaded falling asleep", s: func() *fakeNode { return &fakeNode{sleepTime: time.Hour} },
			do: func(t *testing.T, s *fakeNode, l *replicaRun) {
				l.Sleep(1, "idle")
				time.Sleep(second)
				l.Unload(0, "stopped")
				l.ended(t, functions.Unloaded, "")
			}, calls: "sleep 1 wait", statuses: "SLEEPING DRAINING UNLOADED"},
		{name: "unloaded waking", s: func() *fakeNode { return &fakeNode{wakeTime: time.Hour} },
			do: func(t *testing.T, s *fakeNode, l *replicaRun) {
				l.Sleep(1, "idle")
				time.Sleep(second)
				l.WakeUp("asked for")
				time.Sleep(second)
				l.Unload(time.Minute, "stopped")
				l.ended(t, functions.Unloaded, "")
			}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU DRAINING UNLOADED"},
		{name: "never sleeps", s: func() *fakeNode { return &fakeNode{sleepTime: time.Hour} },
			do: func(t *testing.T, s *fakeNode, l *replicaRun) {
				l.Sleep(1, "idle")
				l.ended(t, functions.Failed, "vllm does not fall asleep: no answer to /sleep within 1m")
			}, calls: "sleep 1 wait", statuses: "SLEEPING FAILED"},
		{name: "wake hung", s: func() *fakeNode { return &fakeNode{wakeTime: time.Hour} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			l.Sleep(1, "idle")
			time.Sleep(second)
			began := time.Now()
			l.WakeUp("asked for")
			l.ended(t, functions.Failed, "vllm: wake hung: no answer to /wake_up within 30s")
			if d := time.Since(began); d > 31*second || s.killed.Load() != 1 {
				t.Errorf("after %v, killed %d times", d, s.killed.Load())
			}
		}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU FAILED"},
		{name: "awake without a token", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			l.Sleep(1, "idle")
			time.Sleep(second)
			s.hang.Store(true)
			l.WakeUp("asked for")
			l.ended(t, functions.Failed, "vllm: wake hung: no token within 15s of /wake_up")
		}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU FAILED"},
		{name: "wake refused", s: func() *fakeNode {
			return &fakeNode{wakeErr: &engine.StatusError{Status: 500, Body: "CUDA out of memory"}}
		}, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			l.Sleep(1, "idle")
			time.Sleep(second)
			l.WakeUp("asked for")
			l.ended(t, functions.Failed, "vllm: wake failed: HTTP 500: CUDA out of memory")
		}, calls: "sleep 1 wait, wake 1", statuses: "SLEEPING LOADING_TO_GPU FAILED"},
		{name: "dies asleep", s: func() *fakeNode { return &fakeNode{} }, do: func(t *testing.T, s *fakeNode, l *replicaRun) {
			l.Sleep(1, "idle")
			time.Sleep(second)
			s.die(supervisor.Exit{Code: -1, Signal: syscall.SIGKILL})
			l.ended(t, functions.Failed, "vllm ended while sleeping: ended by signal 9")
		}, calls: "sleep 1 wait", statuses: "SLEEPING FAILED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := c.s()
				l := newSleepingReplica(t, s)
				c.do(t, s, l)
				var statuses []string
				for _, st := range l.states() {
					statuses = append(statuses, string(st))
				}
				i := slices.Index(statuses, "READY")
				said, called := strings.Join(statuses[i+1:], " "), s.called()
				if c.began && called != "" {
					c.statuses, c.calls = "SLEEPING LOADING_TO_GPU READY", "sleep 1 wait, wake 1"
				}
				if said != c.statuses {
					t.Errorf("said %v", statuses)
				}
				if called != c.calls {
					t.Errorf("asked the engine: %s", called)
				}
				if !l.Status().State.Over() {
					l.Unload(0, "done")
					l.ended(t, functions.Unloaded, "")
				}
			})
		})
	}
	t.Run("an engine that cannot", func(t *testing.T) {
		virtual(t, &fakeNode{}, func(t *testing.T, l *replicaRun) {
			time.Sleep(second)
			l.Sleep(1, "idle")
			time.Sleep(second)
			expectState(t, l, functions.Ready)
			l.Unload(0, "done")
			l.ended(t, functions.Unloaded, "")
		})
	})
}

// An engine that an earlier agent sent to sleep is adopted asleep.
func TestAdoptAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeNode{}
		s.asleep.Store(2)
		o := s.options()
		o.Spec.Env = map[string]string{"VLLM_SERVER_DEV_MODE": "1"}
		meta, err := json.Marshal(Meta{Assignment: o.Assignment, Port: 7001, Path: "/store/m", Began: time.Now(),
			Started: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		child, err := s.Spawn(t.Context(), supervisor.Process{ID: "r1"})
		if err != nil {
			t.Fatal(err)
		}
		l := startReplica(t, Options{Stager: s, Spawner: s, Dial: o.Dial}, func(o Options) *Replica {
			m, err := ParseMeta(supervisor.Running{ID: "r1", PID: 42, Meta: meta})
			if err != nil {
				t.Fatal(err)
			}
			return Adopt(o, m, child)
		})
		time.Sleep(time.Minute)
		if st := l.Status(); st.State != functions.Sleeping || st.SleepLevel != 2 || s.tokens.Load() != 0 {
			t.Errorf("%+v", st)
		}
		l.WakeUp("asked for")
		time.Sleep(time.Second)
		expectState(t, l, functions.Ready)
		if s.called() != "wake 2" {
			t.Error(s.called())
		}
		l.Unload(0, "done")
		l.ended(t, functions.Unloaded, "")
	})
}

// arriving is a stager whose checkpoints can be opened before they are whole.
type arriving struct {
	*fakeNode
	after       time.Duration // Rest
	err         error
	present     bool
	idleBacklog atomic.Int64
	filled      atomic.Int64
	whole       atomic.Int64
}

func (a *arriving) StageEarly(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (PartialCheckpoint,
	error) {
	progress(1, 100)
	return PartialCheckpoint{
		Path: "/mnt/m", Complete: a.present, Cache: "/cache/" + req.Cache,
		Rest: func(ctx context.Context) (Checkpoint, error) {
			select {
			case <-time.After(a.after):
			case <-ctx.Done():
				return Checkpoint{}, ctx.Err()
			}
			if a.err != nil {
				return Checkpoint{}, a.err
			}
			a.whole.Add(1)
			a.staged.Add(1)
			return Checkpoint{Path: "/store/m", Bytes: 100, Release: func() { a.released.Add(1) }}, nil
		},
		EngineReady: func() { a.idleBacklog.Add(1) },
		Filled:      func(context.Context) error { a.filled.Add(1); return nil },
	}, nil
}

func TestEarly(t *testing.T) {
	second := time.Second
	for _, c := range []struct {
		name    string
		load    time.Duration // the engine
		rest    time.Duration // the bytes
		err     error
		present bool
		during  func(t *testing.T, a *arriving, l *replicaRun)
		state   functions.State
		why     string
		phases  string
	}{
		{name: "bytes first", load: 20 * second, rest: 10 * second, state: functions.Ready, phases: "stage 0+10, spawn 0+10, load 10+10, warmup 20+0"},
		{name: "engine first", load: 10 * second, rest: 20 * second, state: functions.Ready,
			phases: "stage 0+20, spawn 0+5, load 5+5, warmup 10+0",
			during: func(t *testing.T, a *arriving, l *replicaRun) {
				time.Sleep(15 * second)
				expectState(t, l, functions.Loading) // it answers, and no request is sent
			}},
		{name: "the engine's time counts from the last byte", load: 20 * time.Minute, rest: 15 * time.Minute, state: functions.Ready, phases: "stage 0+900, spawn 0+600, load 600+600, warmup 1200+0"},
		{name: "never ready after the last byte", load: 3 * time.Hour, rest: 15 * time.Minute, state: functions.Failed,
			why: "not ready within 10m (deadlines.start)",
			during: func(t *testing.T, a *arriving, l *replicaRun) {
				time.Sleep(25*time.Minute - second)
				expectState(t, l, functions.Loading)
				time.Sleep(time.Minute)
				expectState(t, l, functions.Failed)
			}},
		{name: "all is here", load: 10 * second, present: true, state: functions.Ready, phases: "stage 0+0, spawn 0+5, load 5+5, warmup 10+0"},
		{name: "wrong bytes", load: 20 * second, rest: 10 * second, err: errors.New("digest mismatch"), state: functions.Failed, why: "stage: digest mismatch"},
		{name: "wrong bytes, engine first", load: second, rest: 10 * second, err: errors.New("digest mismatch"), state: functions.Failed, why: "stage: digest mismatch"},
		{name: "too slow", load: second, rest: 3 * time.Hour, state: functions.Failed, why: "stage: not staged within 1h"},
		{name: "called off too late", load: 20 * second, rest: 10 * second, state: functions.Ready,
			phases: "stage 0+10, spawn 0+10, load 10+10, warmup 20+0",
			during: func(t *testing.T, a *arriving, l *replicaRun) { time.Sleep(second); l.CancelStart() }},
		{name: "unloaded meanwhile", load: 20 * second, rest: 10 * second, state: functions.Unloaded,
			during: func(t *testing.T, a *arriving, l *replicaRun) { time.Sleep(second); l.Unload(0, "stopped") }},
		{name: "the engine dies of it", load: 20 * second, rest: 10 * second, err: errors.New("no such blob"), state: functions.Failed,
			why: "stage: no such blob",
			during: func(t *testing.T, a *arriving, l *replicaRun) {
				time.Sleep(10*second - time.Millisecond)
				a.die(supervisor.Exit{Code: 1, Tail: "OSError: read"})
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &arriving{fakeNode: &fakeNode{loadTime: c.load}, after: c.rest, err: c.err, present: c.present}
				o := a.options()
				o.Stager, o.Cache = a, "k1"
				l := startReplica(t, o, New)
				if c.during != nil {
					c.during(t, a, l)
				}
				switch c.state {
				case functions.Ready:
					synctest.Wait() // until it has begun
					for l.Status().State == functions.Loading || l.Status().State == functions.Downloading {
						time.Sleep(second)
					}
					synctest.Wait()
					expectState(t, l, functions.Ready)
					var phases []string
					for _, p := range l.Status().Phases {
						phases = append(phases, fmt.Sprintf("%s %.0f+%.0f", p.Phase, p.Start, p.Duration))
					}
					if got := strings.Join(phases, ", "); got != c.phases {
						t.Errorf("%s\nwant %s", got, c.phases)
					}
					p := a.spawns[0]
					if !c.present && (!slices.Contains(p.Argv, "/mnt/m") || !slices.Contains(p.Env, "VLLM_CACHE_ROOT=/cache/k1")) {
						t.Errorf("%q", p.Argv)
					}
					if c.present && !slices.Contains(p.Argv, "/store/m") {
						t.Errorf("%q", p.Argv)
					}
					if a.idleBacklog.Load() != 1 || !c.present && a.filled.Load() != 1 || l.Status().Bytes != 100 {
						t.Errorf("settled %d, filled %d", a.idleBacklog.Load(), a.filled.Load())
					}
					l.Unload(0, "done")
					l.ended(t, functions.Unloaded, "")
				default:
					l.ended(t, c.state, c.why)
				}
				if a.idleBacklog.Load() != 1 || a.released.Load() != a.whole.Load() {
					t.Errorf("settled %d times, released %d of %d", a.idleBacklog.Load(), a.released.Load(), a.whole.Load())
				}
			})
		})
	}
}

func TestWarm(t *testing.T) {
	for _, c := range []struct {
		name             string
		forkSocket, note string
		noParent         bool
		start            string
		statuses         string
		forkSockets      []string
	}{
		{"none", "", "", false, functions.StartPlain, "", []string{""}},
		{"forked", "/run/p.sock", "", false, functions.StartWarm, "", []string{"/run/p.sock"}},
		{"not yet", "", "its parent is still importing", false, functions.StartPlain, "its parent is still importing", []string{""}},
		{"parent dead", "/run/p.sock", "", true, functions.StartPlain, "spawn r1: no warm interpreter: it is dead", []string{"/run/p.sock", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeNode{noParent: c.noParent}
				o := s.options()
				o.ForkParent = func(cmd engine.Command) (string, string) {
					if cmd.Engine != functions.EngineVLLM || len(cmd.Argv) == 0 {
						t.Errorf("%+v", cmd)
					}
					return c.forkSocket, c.note
				}
				l := startReplica(t, o, New)
				time.Sleep(time.Second)
				st := l.Status()
				if st.State != functions.Ready || st.Start != c.start || st.StartNote != c.statuses {
					t.Errorf("%s %s %q", st.State, st.Start, st.StartNote)
				}
				var forkSockets []string
				for _, p := range s.spawns {
					forkSockets = append(forkSockets, p.ForkSocket)
				}
				m, err := ParseMeta(supervisor.Running{ID: "r1", Meta: s.spawns[len(s.spawns)-1].Meta})
				if err != nil || m.Start != c.start || !slices.Equal(forkSockets, c.forkSockets) {
					t.Errorf("%q, notes %+v %v", forkSockets, m, err)
				}
				l.Unload(0, "done")
				l.ended(t, functions.Unloaded, "")
			})
		})
	}
}

// A start waits for the memory of the GPU until its deadline. It does not go on without.
func TestWaitForFreeGPUMemory(t *testing.T) {
	for _, c := range []struct {
		name  string
		free  func(since time.Duration) (functions.Bytes, bool)
		after time.Duration
		off   bool
		fails bool
		want  functions.Bytes // of the model; 0: 40 GiB
	}{
		{name: "free", free: func(time.Duration) (functions.Bytes, bool) { return 40 << 30, true }},
		{name: "unknown", free: func(time.Duration) (functions.Bytes, bool) { return 0, false }},
		{name: "soon", after: 3 * time.Second, free: func(d time.Duration) (functions.Bytes, bool) {
			if d < 3*time.Second {
				return 1 << 30, true
			}
			return 40 << 30, true
		}},
		{name: "all that the driver leaves", free: func(time.Duration) (functions.Bytes, bool) { return 79 << 30, true }, want: 80 << 30},
		{name: "never", fails: true, after: 10 * time.Minute, free: func(time.Duration) (functions.Bytes, bool) { return 1 << 30, true }},
		{name: "called off", off: true, free: func(time.Duration) (functions.Bytes, bool) { return 1 << 30, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, began := &fakeNode{}, time.Now()
				o := s.options()
				o.GPUs, o.GPUMemory = []int{0}, 80<<30
				o.Spec.Resources = functions.Resources{GPUs: 1, GPUMemory: 40 << 30}
				if c.want > 0 {
					o.Spec.Resources.GPUMemory = c.want
				}
				o.FreeGPU = func(int) (functions.Bytes, bool) { return c.free(time.Since(began)) }
				o.GPUHolders = func(int) string { return "process 4711 (python3) holds 60 GiB" }
				l := startReplica(t, o, New)
				if c.fails {
					time.Sleep(c.after - time.Second)
					if st := l.Status(); st.State != functions.Loading ||
						st.StartNote != "waits for GPU memory: GPU 0 has 1 GiB free, the model needs 40 GiB" {
						t.Errorf("%s %q", st.State, st.StartNote)
					}
					l.ended(t, functions.Failed,
						"insufficient_gpu_memory: GPU 0 has 1 GiB free, the model needs 40 GiB; of GPU 0 process 4711 (python3) holds 60 GiB")
					if d := time.Since(began); d != c.after || s.spawned.Load() != 0 {
						t.Errorf("after %v, %d engines started", d, s.spawned.Load())
					}
					return
				}
				if c.off {
					time.Sleep(time.Second)
					l.CancelStart()
					l.ended(t, functions.Unloaded, "")
					if s.spawned.Load() != 0 {
						t.Error("spawned")
					}
					return
				}
				for s.spawned.Load() == 0 && time.Since(began) < 10*time.Minute {
					time.Sleep(10 * time.Millisecond)
				}
				if d := time.Since(began); d < c.after || d > c.after+100*time.Millisecond {
					t.Errorf("started after %v", d)
				}
				l.wait(functions.Ready, time.Minute)
				l.Unload(0, "done")
				l.ended(t, functions.Unloaded, "")
			})
		})
	}
}

// So does a wake.
func TestWakeSeesGPUFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeNode{}
		var free atomic.Int64
		free.Store(80 << 30)
		o := s.options()
		o.Spec.Env = map[string]string{"VLLM_SERVER_DEV_MODE": "1"}
		o.GPUs, o.GPUMemory, o.Spec.Resources = []int{0}, 80<<30, functions.Resources{GPUs: 1, GPUMemory: 40 << 30}
		o.FreeGPU = func(int) (functions.Bytes, bool) { return functions.Bytes(free.Load()), true }
		l := startReplica(t, o, New)
		time.Sleep(time.Second)
		l.Sleep(1, "evicted")
		time.Sleep(time.Second)
		free.Store(1 << 30)
		l.WakeUp("asked for")
		time.Sleep(3 * time.Second)
		if s.called() != "sleep 1 wait" {
			t.Errorf("woken on a full GPU: %s", s.called())
		}
		free.Store(80 << 30)
		time.Sleep(time.Second)
		expectState(t, l, functions.Ready)
		l.Unload(0, "done")
		l.ended(t, functions.Unloaded, "")
	})
}

// What outlasts a drain is ended by us before the engine is told to end.
func TestAbortRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeNode{}
		var cut atomic.Bool
		s.metrics = func() (engine.Metrics, error) {
			if cut.Load() {
				return engine.Metrics{Load: true}, nil
			}
			return engine.Metrics{Running: 2, Load: true}, nil
		}
		o := s.options()
		o.AbortRequests = func(_, reason string) {
			if s.termed.Load() != 0 || reason != "stopped" {
				t.Errorf("cut for %q after SIGTERM", reason)
			}
			cut.Store(true)
		}
		l := startReplica(t, o, New)
		time.Sleep(time.Second)
		began := time.Now()
		l.Unload(3*time.Second, "stopped")
		l.ended(t, functions.Unloaded, "")
		if d := time.Since(began); !cut.Load() || d < 3*time.Second || d > 3*time.Second+abortWait || s.killed.Load() != 0 {
			t.Errorf("cut %v, after %v", cut.Load(), d)
		}
	})
}

// TestWakeTakesItsTime: a wake from level 1 has 30 s, and one that reads the weights again as
// long as a start.
func TestWakeTakesItsTime(t *testing.T) {
	start := functions.Defaults().Deadlines.Start.Std()
	for _, x := range []struct {
		level int
		takes time.Duration
		fails time.Duration // 0: it wakes
	}{
		{1, wakeWait - time.Second, 0}, {1, wakeWait + time.Second, wakeWait},
		{2, wakeWait + time.Second, 0}, {2, start - time.Second, 0}, {2, start + time.Second, start},
	} {
		t.Run(fmt.Sprint(x.takes, " from level ", x.level), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeNode{wakeTime: x.takes}
				l := newSleepingReplica(t, s)
				l.Sleep(x.level, "idle")
				time.Sleep(time.Second)
				began := time.Now()
				l.WakeUp("asked for")
				if x.fails > 0 {
					l.ended(t, functions.Failed, fmt.Sprint("vllm: wake hung: no answer to /wake_up within ", x.fails))
					return
				}
				l.wait(functions.Ready, start)
				expectState(t, l, functions.Ready)
				if d := time.Since(began); d < x.takes {
					t.Errorf("READY %s after a wake of %s", d, x.takes)
				}
				l.Unload(0, "done")
				l.ended(t, functions.Unloaded, "")
			})
		})
	}
}
