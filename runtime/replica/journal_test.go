package replica

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

var updateJournals = flag.Bool("update", false, "write testdata/journals.txt anew: read what changed in it")

// journal is a fakeNode that notes all that a replica does and reports, and when.
type journal struct {
	*fakeNode
	began time.Time

	jmu   sync.Mutex
	lines []string
	last  string // without its time
	times int    // that it came
}

func (j *journal) note(format string, args ...any) {
	j.jmu.Lock()
	defer j.jmu.Unlock()
	at, line := time.Since(j.began).Round(time.Millisecond), fmt.Sprintf(format, args...)
	if line == j.last { // a probe, again
		j.times++
		j.lines[len(j.lines)-1] = fmt.Sprintf("%v the %d. time: %s", at, j.times, line)
		return
	}
	j.last, j.times = line, 1
	j.lines = append(j.lines, fmt.Sprintf("%v %s", at, line))
}

func (j *journal) Stage(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error) {
	j.note("stage %+v", req)
	c, err := j.fakeNode.Stage(ctx, req, progress)
	j.note("staged: %v, cause %v", err, context.Cause(ctx))
	if release := c.Release; release != nil {
		c.Release = func() { j.note("released"); release() }
		c.Filled = func(context.Context) error {
			time.Sleep(300 * time.Millisecond) // beside what the replica does
			j.note("filled")
			return nil
		}
		c.Verify = func(context.Context) error { j.note("verify"); return nil }
		c.Cache = "/cache"
	}
	return c, err
}

func (j *journal) Spawn(ctx context.Context, p supervisor.Process) (*supervisor.Child, error) {
	j.note("spawn %s %q env %q dir %q meta %s", p.ID, p.Argv, p.Env, p.Dir, p.Meta)
	return j.fakeNode.Spawn(ctx, p)
}

func (j *journal) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	j.note("signal %s %v", id, sig)
	return j.fakeNode.Signal(ctx, id, sig)
}

func (j *journal) Forget(ctx context.Context, id string) error {
	j.note("forget %s", id)
	return j.fakeNode.Forget(ctx, id)
}

func (j *journal) Token(ctx context.Context) error {
	err := j.fakeNode.Token(ctx)
	j.note("token: %v", err)
	return err
}

func (j *journal) Close() { j.note("close"); j.fakeNode.Close() }

func (j *journal) Sleep(ctx context.Context, level int, mode engine.SleepMode) error {
	j.note("sleep %d %s", level, mode)
	return j.fakeNode.Sleep(ctx, level, mode)
}

func (j *journal) Wake(ctx context.Context, level int) error {
	j.note("wake %d", level)
	return j.fakeNode.Wake(ctx, level)
}

func (j *journal) LoadAdapter(ctx context.Context, name, path string) error {
	j.note("load adapter %s", name)
	return j.fakeNode.LoadAdapter(ctx, name, path)
}

func (j *journal) UnloadAdapter(ctx context.Context, name string) error {
	j.note("unload adapter %s", name)
	return j.fakeNode.UnloadAdapter(ctx, name)
}

// options are those of a model with all that a journal shows.
func (j *journal) options(change func(*Options)) Options {
	o := j.fakeNode.options()
	o.Stager, o.Spawner, o.Cache, o.GPUs, o.GPUMemory, o.Dir = j, j, "key", []int{1}, 80<<30, "/models"
	o.Dial = func(engine.Command) Engine { j.note("dial"); j.dialed.Add(1); return j }
	o.AbortRequests = func(_, reason string) { j.note("abort requests: %s", reason) }
	o.Log = slog.New(slog.NewTextHandler(journalWriter{j}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if change != nil {
		change(&o)
	}
	return o
}

type journalWriter struct{ *journal }

func (w journalWriter) Write(p []byte) (int, error) {
	_, line, _ := strings.Cut(strings.TrimSpace(string(p)), " ")
	w.note("log %s", strings.Replace(line, " replica=r1 model=default/m", "", 1))
	return len(p), nil
}

// report is a status without what every one of the replica has; progress is left out.
func (j *journal) report(s functions.ReplicaStatus) {
	var phases []string
	for _, p := range s.Phases {
		phases = append(phases, fmt.Sprintf("%s %.3g+%.3g", p.Phase, p.Start, p.Duration))
	}
	j.note("status %s %s bytes %d of %d percent %d endpoint %q in flight %d queue %d hits %v phases %v error %q short %q weights %q "+
		"start %q %q sleep %d adapters %v since %d",
		s.State, s.Tier, s.Bytes, s.TotalBytes, s.Percent, s.Endpoint, s.InFlight, s.QueueLength, s.KVCacheHitRate, phases, s.Error, s.ShortOf,
		s.Weights, s.Start, s.StartNote, s.SleepLevel, s.Adapters, s.Since)
}

var journals = map[string]struct {
	node   func() *fakeNode
	change func(*Options)
	play   func(j *journal, r *Replica)
}{
	"start and end": {node: func() *fakeNode {
		return &fakeNode{stageTime: 10 * time.Second, loadTime: 4 * time.Second}
	}, play: func(j *journal, r *Replica) {
		time.Sleep(20 * time.Second)
		r.Unload(30*time.Second, "idle")
	}},
	"wrong bytes": {node: func() *fakeNode { return &fakeNode{stageTime: time.Second, stageErr: errors.New("digest mismatch")} }},
	"too slow":    {node: func() *fakeNode { return &fakeNode{stageTime: 3 * time.Hour} }},
	"cancelled": {node: func() *fakeNode {
		return &fakeNode{stageTime: time.Minute}
	}, play: func(j *journal, r *Replica) { time.Sleep(3 * time.Second); r.CancelStart() }},
	"cancelled too late": {node: func() *fakeNode { return &fakeNode{loadTime: 4 * time.Second} }, play: func(j *journal, r *Replica) {
		time.Sleep(time.Second)
		r.CancelStart()
		time.Sleep(10 * time.Second)
		r.Unload(0, "stopped")
	}},
	"unloaded while it loads": {node: func() *fakeNode {
		return &fakeNode{loadTime: time.Minute}
	}, play: func(j *journal, r *Replica) { time.Sleep(time.Second); r.Unload(time.Minute, "stopped") }},
	"cannot be started": {node: func() *fakeNode { return &fakeNode{spawnErr: errors.New("no such program")} }},
	"never ready":       {node: func() *fakeNode { return &fakeNode{loadTime: time.Hour} }},
	"dies while it loads": {node: func() *fakeNode { return &fakeNode{loadTime: time.Minute} }, play: func(j *journal, r *Replica) {
		time.Sleep(10 * time.Second)
		j.die(supervisor.Exit{Code: 1, Tail: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."})
	}},
	"no first token": {node: func() *fakeNode {
		return &fakeNode{tokenErr: func(int64) error { return &engine.StatusError{Status: 500, Body: "no"} }}
	}},
	"dies": {play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		j.die(supervisor.Exit{Code: -1, Signal: syscall.SIGSEGV, Tail: "Segmentation fault"})
	}},
	"hangs": {play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		j.hang.Store(true)
		r.Suspect("a request failed")
	}},
	"suspected, and works": {play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		r.Suspect("a request failed")
		time.Sleep(10 * time.Second)
		r.Unload(0, "stopped")
	}},
	"drains": {node: func() *fakeNode {
		return &fakeNode{metrics: func() (engine.Metrics, error) {
			return engine.Metrics{Load: true, Running: 2, Waiting: 1, HitRate: 0.5}, nil
		}}
	}, play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		r.Unload(10*time.Second, "evicted")
	}},
	"ignores SIGTERM": {node: func() *fakeNode {
		return &fakeNode{ignored: map[syscall.Signal]bool{syscall.SIGTERM: true}}
	}, play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		r.Unload(0, "evicted")
	}},
	"sleeps and wakes": {node: func() *fakeNode {
		return &fakeNode{sleepTime: 2 * time.Second, wakeTime: time.Second}
	}, change: sleeps, play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		r.Sleep(1, "idle")
		time.Sleep(10 * time.Second)
		r.WakeUp("a request waits")
		time.Sleep(10 * time.Second)
		r.Sleep(2, "idle")
		time.Sleep(10 * time.Second)
		r.Unload(0, "stopped")
	}},
	"does not wake": {node: func() *fakeNode {
		return &fakeNode{wakeErr: errors.New("no memory")}
	}, change: sleeps, play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		r.Sleep(1, "idle")
		time.Sleep(10 * time.Second)
		r.WakeUp("a request waits")
	}},
	"dies asleep": {change: sleeps, play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		r.Sleep(1, "idle")
		time.Sleep(10 * time.Second)
		j.die(supervisor.Exit{Code: 1})
	}},
	"cannot sleep": {play: func(j *journal, r *Replica) {
		time.Sleep(5 * time.Second)
		r.Sleep(1, "idle")
		time.Sleep(5 * time.Second)
		r.Unload(0, "stopped")
	}},
	"no free memory": {change: func(o *Options) {
		o.Spec.Resources.GPUMemory = 40 << 30
		o.FreeGPU = func(int) (functions.Bytes, bool) { return 10 << 30, true }
		o.GPUHolders = func(int) string { return "python (pid 7)" }
	}},
}

// sleeps gives an engine the mode in which it sleeps.
func sleeps(o *Options) { o.Spec.Env = map[string]string{"VLLM_SERVER_DEV_MODE": "1"} }

var (
	aPort = regexp.MustCompile(`127\.0\.0\.1:\d+|"--port" "\d+"|"port":\d+`)
	aKey  = regexp.MustCompile(`(VLLM_API_KEY=|"key":")[^"]*`)
)

// TestJournals: what a replica does and reports, and when, on each of its ways.
// testdata/journals.txt has all of it.
func TestJournals(t *testing.T) {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(journals)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := journals[name]
				j := &journal{fakeNode: &fakeNode{}, began: time.Now()}
				if x.node != nil {
					j.fakeNode = x.node()
				}
				o := j.options(x.change)
				var last functions.ReplicaStatus
				o.OnChange = func(s functions.ReplicaStatus) {
					if s.State != last.State || s.SleepLevel != last.SleepLevel || s.Error != last.Error {
						j.report(s)
					}
					last = s
				}
				r := New(o)
				over := make(chan error, 1)
				go func() { over <- r.Run(t.Context()) }()
				if x.play != nil {
					x.play(j, r)
				}
				select {
				case err := <-over:
					j.note("over: %v", err)
				case <-time.After(endsWithin):
					t.Fatal("it does not end")
				}
				j.report(r.Status())
				j.check(t, true)
				fmt.Fprintf(&all, "=== %s\n", name)
				for _, l := range j.lines {
					fmt.Fprintln(&all, aKey.ReplaceAllString(aPort.ReplaceAllString(strings.ReplaceAll(l, "\n", `\n`), "PORT"), "${1}KEY"))
				}
			})
		})
	}
	file := filepath.Join("testdata", "journals.txt")
	if *updateJournals {
		if err := errors.Join(os.MkdirAll("testdata", 0o777), os.WriteFile(file, []byte(all.String()), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, want := strings.Split(all.String(), "\n"), strings.Split(string(b), "\n")
	for i := range max(len(got), len(want)) {
		g, w := strings.Join(got[min(i, len(got)):min(i+1, len(got))], ""), strings.Join(want[min(i, len(want)):min(i+1, len(want))], "")
		if g != w {
			t.Fatalf("line %d:\n%s\nwant\n%s", i+1, g, w)
		}
	}
}
