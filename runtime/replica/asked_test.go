package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// TestWhatIsAsked: what the stager, the engine and the supervisor are asked for is what the
// replica's options say, and a later agent finds it in the notes of the process.
func TestWhatIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{stageTime: time.Second, loadTime: 4 * time.Second}
		o := n.options()
		o.Dir, o.Digest, o.GPUs, o.GPUMemory, o.GPUName, o.Scratch, o.Cache = "/models", "sha", []int{3, 1, 2}, 80<<30, "H200", "/scratch", "key"
		o.Spec.Files, o.Spec.Exclude, o.Spec.Weights = []string{"*.py"}, []string{"logs"}, "*Q4*"
		o.Spec.Resources = functions.Resources{GPUs: 3, GPUMemory: 10 << 30}
		o.FreeGPU = func(index int) (functions.Bytes, bool) { return functions.Bytes(20+index) << 30, true }
		var asked engine.Request
		plan := &confine.Plan{}
		o.Confine = func(cmd *engine.Command, r engine.Request) (*confine.Plan, error) {
			asked = r
			cmd.Dir, cmd.ScratchFiles = "/work", map[string]string{"f": "x"}
			return plan, nil
		}
		o.ForkParent = func(cmd engine.Command) (string, string) { return "", "no parent of " + cmd.Dir }
		began := time.Now()
		l := startReplica(t, o, New)
		time.Sleep(time.Minute)
		expectState(t, l, functions.Ready)
		want := StageRequest{Source: "m", Dir: "/models", Digest: "sha", Files: o.Spec.StagedFiles(), Cache: "key", Engine: functions.EngineVLLM}
		if len(n.asked) == 1 && n.asked[0].Problem != nil {
			n.asked[0].Problem = nil // functions cannot be compared
		}
		if len(n.asked) != 1 || !reflect.DeepEqual(n.asked[0], want) {
			t.Errorf("staged %+v, want %+v", n.asked, want)
		}
		if asked.Name != "m" || asked.Path != "/store/m" || asked.Dir != "/models" || fmt.Sprint(asked.GPUs) != "[3 1 2]" ||
			asked.GPUMemory != 80<<30 || asked.GPUFree != 21<<30 ||
			asked.Port <= 0 || asked.Key == "" || !strings.HasPrefix(asked.Scratch, "/scratch/") || asked.Streamed ||
			!reflect.DeepEqual(asked.Spec, o.Spec) {
			t.Errorf("the engine is prepared by %+v", asked)
		}
		p := n.spawns[0]
		var m Meta
		if err := json.Unmarshal(p.Meta, &m); err != nil || p.ID != "r1" || p.Dir != "/work" || p.Confine != plan || p.Scratch == "" ||
			len(p.ScratchFiles) != 1 || len(p.Argv) == 0 || p.ForkSocket != "" {
			t.Errorf("%+v, %v", p, err)
		}
		if !m.Began.Equal(began) || !m.Started.Equal(began.Add(time.Second)) || len(m.Phases) != 1 || m.Key != asked.Key ||
			m.Port != asked.Port || m.Health != "/health" {
			t.Errorf("notes %+v", m)
		}
		m.Began, m.Started, m.Phases, m.Key, m.Port, m.Health = time.Time{}, time.Time{}, nil, "", 0, ""
		note := Meta{Assignment: Assignment{ID: "r1", Team: "default", Model: "m", Spec: o.Spec, Dir: "/models", Digest: "sha", GPUs: o.GPUs},
			Path: "/store/m", Bytes: 100, Weights: "staged now",
			Start: functions.StartPlain, Note: "no parent of /work"}
		if !reflect.DeepEqual(m, note) {
			t.Errorf("notes %+v, want %+v", m, note)
		}
		st := l.Status()
		if st.Weights != "staged now" || st.Tier != functions.TierGPU || st.Start != functions.StartPlain ||
			st.StartNote != "no parent of /work" || st.Key != asked.Key ||
			fmt.Sprint(st.GPUs) != "[3 1 2]" || !strings.HasSuffix(st.Endpoint, fmt.Sprint(":", asked.Port)) ||
			!reflect.DeepEqual(*st.Spec, o.Spec) {
			t.Errorf("status %+v", st)
		}
		for id, bad := range map[string]string{"r1": `{"id":"r2","port":1}`, "r2": `{"id":"r2","port":0}`, "r3": `{"id":"r3","port":65536}`, "r4": `{`} {
			if _, err := ParseMeta(supervisor.Running{ID: id, Meta: []byte(bad)}); err == nil || !strings.Contains(err.Error(), id) {
				t.Errorf("%s: %v", bad, err)
			}
		}
		for text, port := range map[string]int{string(p.Meta): asked.Port, `{"id":"r1","port":65535}`: 65535} {
			if m, err := ParseMeta(supervisor.Running{ID: "r1", Meta: []byte(text)}); err != nil || m.Port != port {
				t.Errorf("%+v, %v", m, err)
			}
		}
	})
}

// TestCommandsOnce: a command of the owner is followed once, whatever comes after it.
func TestCommandsOnce(t *testing.T) {
	n := &fakeNode{}
	virtual(t, n, func(t *testing.T, l *replicaRun) {
		time.Sleep(time.Minute)
		expectState(t, l, functions.Ready)
		before := n.tokens.Load()
		l.Suspect("x")
		time.Sleep(time.Minute)
		once := n.tokens.Load() - before
		l.WakeUp("y") // nothing sleeps
		time.Sleep(time.Minute)
		if got := n.tokens.Load() - before; once == 0 || got != once {
			t.Errorf("%d probes for one suspicion, then %d", once, got)
		}
	})
}

// TestUnloadBeforeCancel: of an unload and a cancelled start that come together, the unload is
// what ends the start, with its reason.
func TestUnloadBeforeCancel(t *testing.T) {
	for want, c := range map[string]commands{
		"idle":                    {unload: true, reason: "idle", cancelStart: true},
		ErrStartCancelled.Error(): {cancelStart: true},
		"":                        {suspect: "x"},
	} {
		reason, cause := c.stop()
		if cancelled := errors.Is(cause, ErrStartCancelled); reason != want || (cause == nil) != (want == "") ||
			cancelled != (want == ErrStartCancelled.Error()) {
			t.Errorf("%+v: %q, %v", c, reason, cause)
		}
	}
}

// TestFreeGPUMemoryIsKnown: the engine is told of the least free memory, and of none where a
// GPU does not say; a start that waited says so until it goes on.
func TestFreeGPUMemoryIsKnown(t *testing.T) {
	for _, x := range []struct {
		free []functions.Bytes // of GPU 0, 1 and 2; 0 is not known
		want functions.Bytes
	}{{[]functions.Bytes{30, 20, 40}, 20}, {[]functions.Bytes{20, 30, 40}, 20}, {[]functions.Bytes{30, 0, 40}, 0}, {nil, 0}} {
		n := &fakeNode{}
		o := n.options()
		o.GPUs = []int{0, 1, 2}
		if x.free != nil {
			o.FreeGPU = func(index int) (functions.Bytes, bool) { return x.free[index], x.free[index] > 0 }
		}
		o.Spec.Resources.GPUMemory = 21
		r, missing := New(o), ""
		if slices.Contains(x.free, 20) {
			missing = fmt.Sprintf("GPU %d has 20 B free, the model needs 21 B", slices.Index(x.free, 20))
		}
		if got, problem := r.gpus.leastFree(), r.gpus.missing(); got != x.want || problem != missing {
			t.Errorf("%v: %d, want %d; %q, want %q", x.free, got, x.want, problem, missing)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{}
		o := n.options()
		o.GPUs, o.Spec.Resources = []int{1}, functions.Resources{GPUs: 1, GPUMemory: 10 << 30}
		began := time.Now()
		o.FreeGPU = func(int) (functions.Bytes, bool) {
			if time.Since(began) < time.Minute {
				return 9 << 30, true
			}
			return 10 << 30, true
		}
		ready := make(chan struct{})
		o.ParentReady = func(engine.Command) <-chan struct{} { return ready }
		l := startReplica(t, o, New)
		time.Sleep(30 * time.Second)
		if st := l.Status(); st.State != functions.Loading ||
			st.StartNote != "waits for GPU memory: GPU 1 has 9 GiB free, the model needs 10 GiB" || n.spawned.Load() != 0 {
			t.Errorf("%+v, %d processes", st, n.spawned.Load())
		}
		time.Sleep(30*time.Second + freeEvery)
		if st := l.Status(); st.State != functions.Loading || st.StartNote != "" || n.spawned.Load() != 0 {
			t.Errorf("the memory is free, the parent not ready: %+v, %d processes", st, n.spawned.Load())
		}
		close(ready)
		time.Sleep(time.Minute)
		if st := l.Status(); st.State != functions.Ready || st.StartNote != "" {
			t.Errorf("%+v", st)
		}
	})
}

// TestOptionsWithoutDeadlines: a deadline that is not set is the default, and one that is stays.
func TestOptionsWithoutDeadlines(t *testing.T) {
	def := functions.Defaults().Deadlines
	r := New(Options{})
	if got := r.o.Spec.Deadlines; got.Stage != def.Stage || got.Start != def.Start || got.FirstToken != def.FirstToken ||
		got.Hang != def.Hang {
		t.Errorf("%+v, want %+v", got, def)
	}
	own := functions.Deadlines{Stage: 1, Start: 2, FirstToken: 3, Hang: 4, Drain: 5}
	if got := New(Options{Assignment: Assignment{Spec: functions.ModelSpec{Deadlines: own}}}).o.Spec.Deadlines; got != own {
		t.Errorf("%+v, want %+v", got, own)
	}
	r = New(Options{Assignment: Assignment{Spec: functions.ModelSpec{Engine: functions.EngineSGLang}}})
	if r.Engine() != functions.EngineSGLang || r.LogPath() != "" || r.o.Dial == nil || r.o.Began.IsZero() {
		t.Errorf("%+v", r.o)
	}
}

// TestEndOfAnEngine: an engine that ignores SIGTERM is killed after its grace, one that does not
// is not, and the memory that a start was short of is in its status.
func TestEndOfAnEngine(t *testing.T) {
	for stubborn, want := range map[bool]time.Duration{false: 0, true: termGrace} {
		n := &fakeNode{ignored: map[syscall.Signal]bool{syscall.SIGTERM: stubborn}}
		virtual(t, n, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Minute)
			began := time.Now()
			l.Unload(0, "idle")
			l.ended(t, functions.Unloaded, "")
			if took := time.Since(began); took != want || n.termed.Load() != 1 || n.killed.Load() != map[bool]int64{true: 1}[stubborn] {
				t.Errorf("stubborn %v: ended after %v, %d SIGTERM, %d SIGKILL", stubborn, took, n.termed.Load(), n.killed.Load())
			}
		})
	}
	for tail, want := range map[string]functions.Shortage{
		"torch.OutOfMemoryError: CUDA out of memory. Tried": functions.ShortOfGPUMemory, "ValueError: no such file": "",
	} {
		n := &fakeNode{loadTime: time.Hour}
		virtual(t, n, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Minute)
			n.die(supervisor.Exit{Code: 1, Tail: tail})
			l.ended(t, functions.Failed, "vllm ended while loading")
			if st := l.Status(); st.ShortOf != want || st.Tier != functions.TierNVMe {
				t.Errorf("%s: short of %q, tier %s", tail, st.ShortOf, st.Tier)
			}
		})
		ready := &fakeNode{}
		virtual(t, ready, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Minute)
			ready.die(supervisor.Exit{Code: 1, Tail: tail})
			l.ended(t, functions.Failed, "vllm ended while ready")
			if st := l.Status(); st.ShortOf != "" {
				t.Errorf("%s: a replica that was READY is short of %q", tail, st.ShortOf)
			}
		})
	}
}

// TestLinkFolder: a folder of links has every file below the other, also where that has links,
// replaces what was there, and stays where it belongs.
func TestLinkFolder(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "store")
	for name, text := range map[string]string{"blob": "weights", "store/a.json": "{}", "store/d/b.json": "[]", "out/a/old": "old"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"store/w.safetensors": "../blob", "short": "store"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []string{from, filepath.Join(dir, "short")} {
		got, err := linkFolder(at, filepath.Join(dir, "out", "a"))
		if err != nil || got != filepath.Join(dir, "out", "a") {
			t.Fatal(got, err)
		}
		all := map[string]string{}
		filepath.WalkDir(got, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, _ := os.ReadFile(path)
			rel, _ := filepath.Rel(got, path)
			st, err := os.Stat(path)
			other, ferr := os.Stat(filepath.Join(from, rel))
			if all[rel] = string(raw); !d.Type().IsRegular() || err != nil || ferr != nil || !os.SameFile(st, other) {
				t.Errorf("%s is %s, and no link to that of the store: %v, %v", rel, d.Type(), err, ferr)
			}
			return nil
		})
		if want := map[string]string{"a.json": "{}", "d/b.json": "[]", "w.safetensors": "weights"}; !maps.Equal(all, want) {
			t.Errorf("%v, want %v", all, want)
		}
	}
	for from, to := range map[string]string{from: dir + "/out/..", filepath.Join(dir, "none"): dir + "/out/b"} {
		if got, err := linkFolder(from, to); err == nil || got != "" {
			t.Errorf("%s to %s: %q, %v", from, to, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "blob")); err != nil {
		t.Error("a folder above was removed:", err)
	}
	to := filepath.Join(dir, "copy")
	if err := copyFile(filepath.Join(dir, "blob"), to); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(to); string(raw) != "weights" || err != nil {
		t.Errorf("%q, %v", raw, err)
	}
	for from, to := range map[string]string{filepath.Join(dir, "none"): filepath.Join(dir, "x"), filepath.Join(dir, "blob"): to, dir: filepath.Join(dir, "y")} {
		if err := copyFile(from, to); err == nil {
			t.Errorf("%s was copied to %s", from, to)
		}
	}
}

// TestShorterDrains: of several drains the one that is over first counts, in whatever order they
// are asked for.
func TestShorterDrains(t *testing.T) {
	for _, drains := range [][]time.Duration{{60, 10, 30}, {60, 30, 10}, {10, 60}, {30, 10, 10, 60}} {
		n := &fakeNode{metrics: func() (engine.Metrics, error) { return engine.Metrics{Running: 1, Load: true, Flow: true}, nil }}
		virtual(t, n, func(t *testing.T, l *replicaRun) {
			time.Sleep(time.Minute)
			began, first := time.Now(), 24*time.Hour
			for i, d := range drains {
				l.Unload(d*time.Second, "idle")
				synctest.Wait()
				first = min(first, time.Duration(i)*time.Second+d*time.Second)
				time.Sleep(time.Second)
			}
			l.ended(t, functions.Unloaded, "")
			if took := time.Since(began); took < first || took > first+abortWait {
				t.Errorf("%v: ended after %v, want %v", drains, took, first)
			}
		})
	}
}

// TestWaitForParent: a start waits for a warm interpreter until that is ready, for a quarter of
// its deadline, and for two minutes at most; an unload ends the wait.
func TestWaitForParent(t *testing.T) {
	for name, x := range map[string]struct {
		start, ready, unload time.Duration
		want                 time.Duration // of the spawn; 0: there is none
	}{
		"it is ready":            {start: 10 * time.Minute, ready: 30 * time.Second, want: 30 * time.Second},
		"a quarter":              {start: 4 * time.Minute, ready: time.Hour, want: time.Minute},
		"two minutes":            {start: time.Hour, ready: time.Hour, want: 2 * time.Minute},
		"unloaded":               {start: time.Hour, ready: time.Hour, unload: time.Minute},
		"a parent that is there": {start: time.Hour, want: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{}
				o := n.options()
				o.Cache, o.Spec.Deadlines.Start = "", functions.Duration(x.start)
				parent := make(chan struct{})
				if x.ready > 0 {
					time.AfterFunc(x.ready, func() { close(parent) })
				}
				o.ParentReady = func(engine.Command) <-chan struct{} {
					if x.ready == 0 {
						return nil
					}
					return parent
				}
				l := startReplica(t, o, New)
				if x.unload > 0 {
					time.Sleep(x.unload)
					l.Unload(0, "idle")
					l.ended(t, functions.Unloaded, "")
					if n.spawned.Load() != 0 {
						t.Error("it was spawned")
					}
					time.Sleep(x.ready)
					return
				}
				time.Sleep(x.want - time.Millisecond)
				synctest.Wait()
				if before := n.spawned.Load(); x.want > time.Millisecond && before != 0 {
					t.Errorf("%d processes before %v", before, x.want)
				}
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if n.spawned.Load() != 1 {
					t.Errorf("%d processes after %v", n.spawned.Load(), x.want)
				}
				if key := o.Programs.CacheKey(o.Spec, "", 0); n.asked[0].Cache != key {
					t.Errorf("cache %q, want %q", n.asked[0].Cache, key)
				}
				time.Sleep(x.ready)
			})
		})
	}
}

// TestUnloadWhileLoading: an engine that loads is ended through DRAINING, at once.
func TestUnloadWhileLoading(t *testing.T) {
	n := &fakeNode{loadTime: time.Minute}
	virtual(t, n, func(t *testing.T, l *replicaRun) {
		time.Sleep(30 * time.Second)
		expectState(t, l, functions.Loading)
		l.CancelStart() // too late
		time.Sleep(time.Second)
		expectState(t, l, functions.Loading)
		began := time.Now()
		l.Unload(time.Minute, "stopped")
		l.ended(t, functions.Unloaded, "")
		if got := fmt.Sprint(l.states()); got != fmt.Sprint([]functions.State{functions.Downloading, functions.Loading, functions.Draining, functions.Unloaded}) || time.Since(began) != 0 {
			t.Errorf("%s after %v", got, time.Since(began))
		}
	})
}

// TestNotifySocket: an engine that notifies is told where, and a start that cannot be prepared
// has failed.
func TestNotifySocket(t *testing.T) {
	for e, notifies := range map[functions.Engine]bool{functions.EngineEmber: true, functions.EngineVLLM: false} {
		n := &fakeNode{}
		o := n.options()
		o.Spec.Engine, o.Programs.Thaw = e, "/bin/thaw"
		var asked engine.Request
		o.Confine = func(_ *engine.Command, r engine.Request) (*confine.Plan, error) {
			asked = r
			return nil, errors.New("no room")
		}
		l := startReplica(t, o, New)
		l.ended(t, functions.Failed, "no room")
		if (asked.Notify != "") != notifies || n.spawned.Load() != 0 {
			t.Errorf("%s: notify socket %q, %d processes", e, asked.Notify, n.spawned.Load())
		}
	}
}

// endingEngine ends the agent as a call of it fails.
type endingEngine struct {
	*fakeNode
	end func() // cancels the agent
	in  string // the call that fails
}

func (e *endingEngine) fail(call string) error {
	if call != e.in {
		return nil
	}
	e.end()
	return errors.New("connection reset")
}

func (e *endingEngine) Await(ctx context.Context, listening func()) error {
	return cmp.Or(e.fail("await"), e.fakeNode.Await(ctx, listening))
}

func (e *endingEngine) Token(ctx context.Context) error {
	if e.tokens.Load() > 0 {
		return cmp.Or(e.fail("probe"), e.fakeNode.Token(ctx))
	}
	return e.fakeNode.Token(ctx)
}

func (e *endingEngine) Sleep(ctx context.Context, level int, mode engine.SleepMode) error {
	return cmp.Or(e.fail("sleep"), e.fakeNode.Sleep(ctx, level, mode))
}

func (e *endingEngine) Wake(ctx context.Context, level int) error {
	return cmp.Or(e.fail("wake"), e.fakeNode.Wake(ctx, level))
}

// TestAgentEndsAsACallFails: what fails as the agent ends is no failure of the engine, which is
// left to the supervisor, whichever of the two is seen first.
func TestAgentEndsAsACallFails(t *testing.T) {
	for in, play := range map[string]func(l *replicaRun){
		"await": func(*replicaRun) {},
		"probe": func(l *replicaRun) { l.Suspect("x") },
		"sleep": func(l *replicaRun) { l.Sleep(1, "idle") },
		"wake": func(l *replicaRun) {
			l.Sleep(1, "idle")
			time.Sleep(time.Second)
			l.WakeUp("asked for")
		},
	} {
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{loadTime: time.Second}
				o := n.options()
				sleeps(&o)
				var l *replicaRun
				runs := make(chan struct{})
				o.Dial = func(engine.Command) Engine {
					n.dialed.Add(1)
					return &endingEngine{n, func() { <-runs; l.cancel() }, in}
				}
				l = startReplica(t, o, New)
				close(runs)
				time.Sleep(2 * time.Second)
				play(l)
				time.Sleep(time.Minute)
				if st := l.Status(); st.State.Over() || n.killed.Load() != 0 || n.forgotten.Load() != 0 || len(l.done) != 1 {
					t.Fatalf("%s: %+v", in, st)
				}
			})
		}
	}
}

// TestNoCallOutlives: whenever its agent ends, and whatever the engine does not answer then, no
// call of the engine is under way when Run has ended.
func TestNoCallOutlives(t *testing.T) {
	dir := t.TempDir()
	for name, stops := range map[string]func(*journal, *Replica){
		"tokens and health": func(j *journal, r *Replica) { j.hang.Store(true); r.Suspect("x") },
		"metrics":           func(j *journal, r *Replica) { j.silent.Store(true); r.Suspect("x") },
		"metrics, asleep": func(j *journal, r *Replica) {
			r.Sleep(1, "idle")
			pause(time.Second)
			j.silent.Store(true)
			pause(700 * time.Millisecond)
		},
		"to sleep": func(j *journal, r *Replica) { j.sleepTime = time.Minute; r.Sleep(1, "idle") },
		"to wake": func(j *journal, r *Replica) {
			r.Sleep(1, "idle")
			pause(time.Second)
			j.wakeTime = time.Minute
			r.WakeUp("asked for")
		},
	} {
		for after := time.Duration(0); after < 600*time.Millisecond; after += 15 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{fakeNode: &fakeNode{}, began: time.Now(), dir: dir}
				j.run(t, scene{change: sleeps, play: func(j *journal, r *Replica) {
					pause(time.Second)
					stops(j, r)
					time.Sleep(after)
					j.cancel()
				}})
				if t.Failed() {
					t.Fatalf("%s, %v", name, after)
				}
			})
		}
	}
}

// countingEngine answers a probe with err, and its metrics one after the other.
type countingEngine struct {
	*fakeNode
	err      error
	readings []reading
}

func (e *countingEngine) Token(context.Context) error { return e.err }

func (e *countingEngine) Metrics(context.Context) (engine.Metrics, error) {
	m := e.readings[0]
	e.readings = e.readings[1:]
	return m.Metrics, m.err
}

// TestProbeBesideRequests: a probe that is not answered finds an engine that works if, and only
// if, its tokens are known before and after, and other ones.
func TestProbeBesideRequests(t *testing.T) {
	m := func(flow bool, tokens float64) reading {
		return reading{Metrics: engine.Metrics{Flow: flow, Tokens: tokens}}
	}
	bad := reading{err: errors.New("no metrics")}
	for _, x := range []struct {
		before, after reading
		works         bool
	}{
		{m(true, 5), m(true, 9), true}, {m(true, 9), m(true, 5), true}, {m(true, 5), m(true, 5), false}, {m(false, 5), m(false, 9), false},
		{bad, m(true, 9), false}, {m(true, 5), bad, false}, {bad, bad, false},
	} {
		e := &countingEngine{err: io.ErrUnexpectedEOF, readings: []reading{x.before, x.after}}
		if err := probeEngine(t.Context(), e, "x"); (err == nil) != x.works {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// TestStagingProgress: a size that is not known any more has no percentage, and what is as
// before is not reported again.
func TestStagingProgress(t *testing.T) {
	o := (&fakeNode{}).options()
	var said []string
	o.OnChange = func(s functions.ReplicaStatus) {
		said = append(said, fmt.Sprint(s.Bytes, s.TotalBytes, s.Percent, s.StartNote))
	}
	r := New(o)
	for _, have := range []functions.Bytes{50, 50, 51} {
		r.report.stagingProgress(have, 200, "")
	}
	r.report.stagingProgress(51, 0, "")
	r.report.stagingProgress(51, 0, "x")
	if got, want := fmt.Sprint(said), "[50 200 25 51 200 25 51 0 -1 51 0 -1x]"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestPhasesInAnyOrder: steps of a start that are handled in another order than they came in have
// phases one after the other, none of which is negative.
func TestPhasesInAnyOrder(t *testing.T) {
	o := (&fakeNode{}).options()
	o.Began = time.Now()
	at := func(seconds int) time.Time { return o.Began.Add(time.Duration(seconds) * time.Second) }
	for _, x := range []struct {
		listening, healthy, token int
		want                      string
	}{
		{1, 2, 3, "[{spawn 0 1 []} {load 1 1 []} {warmup 2 1 []}]"}, {2, 1, 3, "[{spawn 0 2 []} {load 2 0 []} {warmup 2 1 []}]"},
		{3, 1, 2, "[{spawn 0 3 []} {load 3 0 []} {warmup 3 0 []}]"}, {1, 3, 2, "[{spawn 0 1 []} {load 1 2 []} {warmup 3 0 []}]"},
	} {
		b := &boot{r: New(o), began: o.Began}
		for _, e := range []bootEvent{{listening: true, at: at(x.listening)}, {healthy: true, at: at(x.healthy)}, {at: at(x.token)}} {
			b.onEvent(t.Context(), e)
		}
		if got := fmt.Sprint(b.r.report.now.Phases); got != x.want {
			t.Errorf("%+v: %s", x, got)
		}
	}
}
