package replica

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

var updateJournals = flag.Bool("update", false, "write testdata/journals.txt anew: read what changed in it")

// scene is one way of a replica, from its start to its end.
type scene struct {
	node   func() *fakeNode
	change func(*Options)
	early  *arrival                           // files that can be opened before all are here; nil: Stage
	adopt  func(o Options) Meta               // of a process that runs already; nil: none runs
	begin  func(j *journal, r *Replica) state // the first state, instead of that of New
	play   func(j *journal, r *Replica)       // what is done to it
}

// arrival is a staging whose engine may start before it has ended.
type arrival struct {
	after    time.Duration // the last byte
	err      error
	refused  error // no file can be opened
	complete bool
	whole    bool // although it was stopped
}

// journal is a fakeNode that notes all that a replica does and reports, and when.
type journal struct {
	*fakeNode
	began        time.Time
	dir          string             // of adapters, and of the engine's log
	cancel       context.CancelFunc // ends the agent
	damaged      atomic.Bool        // a file of the checkpoint
	full         atomic.Bool        // the disk for caches
	verifyTime   time.Duration
	unloadTime   time.Duration // of an adapter
	metricsAsked atomic.Int64
	healthAsked  atomic.Int64
	silent       atomic.Bool  // /metrics are not answered
	calls        atomic.Int64 // of the engine that are under way

	jmu   sync.Mutex
	lines []string
	last  string            // without its time
	times int               // that it came
	said  map[string]string // fields of the last status
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

// describeRequest is a request without its function.
func describeRequest(req StageRequest) string {
	return fmt.Sprintf("{Source:%s Dir:%s Digest:%s Files:%v Cache:%s Engine:%s}", req.Source, req.Dir, req.Digest, req.Files, req.Cache,
		req.Engine)
}

func (j *journal) Stage(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error) {
	j.note("stage %s", describeRequest(req))
	if req.Source != "m" { // an adapter
		if !backoff.Sleep(ctx, time.Second) {
			j.note("not staged: %v", context.Cause(ctx))
			return Checkpoint{}, ctx.Err()
		}
		c := Checkpoint{Path: filepath.Join(j.dir, req.Source), Release: func() { j.note("released %s", req.Source) }}
		if req.Source == "a/" {
			c.Release = nil // there is no lease
		}
		return c, nil
	}
	c, err := j.fakeNode.Stage(ctx, req, progress)
	j.note("staged: %v, cause %v", err, context.Cause(ctx))
	return j.noted(c), err
}

// noted is a checkpoint of which the journal says what is done with it.
func (j *journal) noted(c Checkpoint) Checkpoint {
	release := c.Release
	if release == nil {
		return c
	}
	c.Release = func() { j.note("released"); release() }
	c.Filled = j.fill
	c.Verify = func(ctx context.Context) error {
		j.note("verify")
		if !backoff.Sleep(ctx, j.verifyTime) {
			j.note("not verified: %v", context.Cause(ctx))
			return ctx.Err()
		}
		if j.damaged.Swap(false) {
			return fmt.Errorf("%w: model.safetensors", ErrDamaged)
		}
		return nil
	}
	c.Cache = "/cache"
	return c
}

func (j *journal) fill(ctx context.Context) error {
	if !backoff.Sleep(ctx, 300*time.Millisecond) { // beside what the replica does
		j.note("not filled: %v", context.Cause(ctx))
		return ctx.Err()
	}
	j.note("filled")
	if j.full.Load() {
		return errors.New("the disk is full")
	}
	return nil
}

// earlyJournal is a journal whose engines start before the last byte.
type earlyJournal struct {
	*journal
	arrival
}

func (j earlyJournal) StageEarly(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (PartialCheckpoint,
	error) {
	j.note("stage early %s", describeRequest(req))
	if j.refused != nil {
		return PartialCheckpoint{}, j.refused
	}
	progress(10, 100)
	return PartialCheckpoint{
		Path: "/mnt/m", Complete: j.complete, Cache: "/early", CacheShared: []string{"/shared"},
		Filled:      func(ctx context.Context) error { j.note("of the early files"); return j.fill(ctx) },
		EngineReady: func() { j.note("nothing is read any more") },
		Rest: func(ctx context.Context) (Checkpoint, error) {
			time.Sleep(500 * time.Microsecond) // beside the engine's start
			j.note("the rest is staged")
			if !backoff.Sleep(ctx, j.after/2+17*time.Millisecond) {
				j.note("rest: %v", context.Cause(ctx))
				return Checkpoint{}, ctx.Err()
			}
			progress(60, 100)
			if !backoff.Sleep(ctx, j.after/2) && !j.whole {
				j.note("rest: %v", context.Cause(ctx))
				return Checkpoint{}, ctx.Err()
			}
			j.note("rest: %v", j.err)
			if j.err != nil {
				return Checkpoint{}, j.err
			}
			j.staged.Add(1)
			return j.noted(Checkpoint{Path: "/store/m", Bytes: 110, Digest: "arrived", Release: func() { j.released.Add(1) }}), nil
		},
	}, nil
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

// call counts a call of the engine; it takes a while after its caller has left.
func (j *journal) call(ctx context.Context) (done func()) {
	j.calls.Add(1)
	return func() {
		if ctx.Err() != nil {
			time.Sleep(10 * time.Millisecond)
		}
		j.calls.Add(-1)
	}
}

func (j *journal) Token(ctx context.Context) error {
	defer j.call(ctx)()
	time.Sleep(besideReport)
	err := j.fakeNode.Token(ctx)
	j.note("token: %v", err)
	return err
}

func (j *journal) Metrics(ctx context.Context) (engine.Metrics, error) {
	j.metricsAsked.Add(1)
	defer j.call(ctx)()
	if j.silent.Load() {
		<-ctx.Done()
		return engine.Metrics{}, ctx.Err()
	}
	return j.fakeNode.Metrics(ctx)
}

func (j *journal) Health(ctx context.Context) error {
	j.healthAsked.Add(1)
	defer j.call(ctx)()
	return j.fakeNode.Health(ctx)
}

func (j *journal) Close() { j.note("close"); j.fakeNode.Close() }

func (j *journal) Sleep(ctx context.Context, level int, mode engine.SleepMode) error {
	defer j.call(ctx)()
	j.note("sleep %d %s", level, mode)
	return j.fakeNode.Sleep(ctx, level, mode)
}

func (j *journal) Wake(ctx context.Context, level int) error {
	defer j.call(ctx)()
	j.note("wake %d", level)
	return j.fakeNode.Wake(ctx, level)
}

func (j *journal) LoadAdapter(ctx context.Context, name, path string) error {
	defer j.call(ctx)()
	j.note("load adapter %s from %s", name, filepath.Base(path))
	return j.fakeNode.LoadAdapter(ctx, name, path)
}

func (j *journal) UnloadAdapter(ctx context.Context, name string) error {
	defer j.call(ctx)()
	j.note("unload adapter %s", name)
	time.Sleep(j.unloadTime)
	return j.fakeNode.UnloadAdapter(ctx, name)
}

// besideReport is how long after a change it is noted, so that the replica's report of the same
// change comes first.
const besideReport = 300 * time.Microsecond

// load has the replica load an adapter, and notes its answer.
func (j *journal) load(ctx context.Context, r *Replica, name string) {
	err := r.LoadAdapter(ctx, name)
	time.Sleep(besideReport)
	code := ""
	if e, ok := errors.AsType[*functions.AdapterError](err); ok {
		code = e.Code + " "
	}
	j.note("load %s: %s%v", name, code, err)
}

// options are those of a model with all that a journal shows.
func (j *journal) options(change func(*Options)) Options {
	o := j.fakeNode.options()
	o.Stager, o.Spawner, o.Cache, o.GPUs, o.GPUMemory, o.Dir = j, j, "key", []int{1}, 80<<30, "/models"
	o.Spec.Deadlines.Drain = functions.Duration(30050 * time.Millisecond)
	o.Dial = func(cmd engine.Command) Engine {
		j.note("dial %s of %s", cmd.Health, cmd.URL)
		j.dialed.Add(1)
		return j
	}
	o.AbortRequests = func(endpoint, reason string) { j.note("abort requests of %s: %s", endpoint, reason) }
	o.Log = slog.New(slog.NewTextHandler(journalWriter{j}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if change != nil {
		change(&o)
	}
	if bounds := o.Confine; bounds != nil {
		o.Confine = func(cmd *engine.Command, r engine.Request) (*confine.Plan, error) {
			j.note("prepare from %s, weights %q, streamed %v, cache %s %v", r.Path, r.Weights, r.Streamed, r.Cache, r.CacheShared)
			return bounds(cmd, r)
		}
	}
	return o
}

type journalWriter struct{ *journal }

func (w journalWriter) Write(p []byte) (int, error) {
	_, line, _ := strings.Cut(strings.TrimSpace(string(p)), " ")
	if strings.Contains(line, "msg=replica ") {
		return len(p), nil // a status
	}
	w.note("log %s", strings.Replace(line, " replica=r1 model=default/m", "", 1))
	return len(p), nil
}

// fields are those of a status, as JSON, but for its Spec.
func fields(s functions.ReplicaStatus) map[string]string {
	s.Spec = nil
	b, err := json.Marshal(s)
	all, texts := map[string]any{}, map[string]string{}
	if err = errors.Join(err, json.Unmarshal(b, &all)); err != nil {
		panic(err)
	}
	for name, value := range all {
		v, _ := json.Marshal(value)
		texts[name] = string(v)
	}
	return texts
}

// report notes what is other in a status than in the one before, and how often the engine was
// asked since.
func (j *journal) report(s functions.ReplicaStatus) {
	now, other := fields(s), []string{}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] != j.said[name] {
			other = append(other, name+"="+now[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.said)) {
		if now[name] == "" {
			other = append(other, "no "+name)
		}
	}
	j.said = now
	j.note("status %s; asked for metrics %d, health %d times", strings.Join(other, " "), j.metricsAsked.Swap(0), j.healthAsked.Swap(0))
}

var (
	aPort = regexp.MustCompile(`127\.0\.0\.1:\d+|"--port" "\d+"|"port":\d+|\bport=\d+`)
	aKey  = regexp.MustCompile(`(VLLM_API_KEY=|"key":"|engine_key=")[^"]*`)
	aLong = regexp.MustCompile(`(\d\.\d{3})\d+`) // a number of seconds
)

// run plays a scene.
func (j *journal) run(t *testing.T, x scene) {
	if x.node != nil {
		j.fakeNode = x.node()
	}
	j.fakeNode.log = filepath.Join(j.dir, "log")
	write(t, j.fakeNode.log, func(io.Writer) error { return nil })
	o := j.options(x.change)
	if x.early != nil {
		o.Stager = earlyJournal{j, *x.early}
	}
	o.OnChange = j.report
	var r *Replica
	if x.adopt != nil {
		child, err := j.fakeNode.Spawn(t.Context(), supervisor.Process{ID: "r1"})
		if err != nil {
			t.Fatal(err)
		}
		r = Adopt(o, x.adopt(o), child)
	} else {
		r = New(o)
	}
	if x.begin != nil {
		r.begin = x.begin(j, r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	j.cancel = cancel
	over := make(chan error, 1)
	go func() { over <- r.Run(ctx) }()
	time.Sleep(7 * time.Millisecond) // what is done comes between the readings
	if x.play != nil {
		x.play(j, r)
	}
	select {
	case err := <-over:
		j.note("over: %v", err)
	case <-time.After(endsWithin):
		t.Fatal("it does not end")
	}
	if n := j.calls.Load(); n != 0 {
		t.Errorf("%d calls of the engine outlive the replica", n)
	}
	j.report(r.Status())
	j.check(t, r.Status().State.Over())
}

// write appends to the engine's log.
func (j *journal) write(text string) {
	f, err := os.OpenFile(j.fakeNode.log, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic(err)
	}
}

// TestJournals: what a replica does and reports, and when, on each of its ways.
// testdata/journals.txt has all of it.
func TestJournals(t *testing.T) {
	var all strings.Builder
	spawns := map[string]string{}
	scenes := maps.Clone(journals)
	maps.Copy(scenes, rareJournals)
	for _, name := range slices.Sorted(maps.Keys(scenes)) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeLora(t, filepath.Join(dir, "a"), 8, "q_proj")
			writeLora(t, filepath.Join(dir, "kv"), 8, "k_proj")
			synctest.Test(t, func(t *testing.T) {
				j := &journal{fakeNode: &fakeNode{}, began: time.Now(), dir: dir}
				j.said = fields(functions.ReplicaStatus{})
				fmt.Fprintf(&all, "=== %s\n", name)
				j.run(t, scenes[name])
				for _, l := range j.lines {
					l = strings.ReplaceAll(strings.ReplaceAll(l, "\n", `\n`), dir, "DIR")
					l = aLong.ReplaceAllString(aKey.ReplaceAllString(aPort.ReplaceAllString(l, "PORT"), "${1}KEY"), "$1")
					if at, what, ok := strings.Cut(l, " spawn "); ok { // long, and mostly the same
						if n := spawns[what]; n != "" {
							what = "as in " + n
						} else {
							spawns[what] = name
						}
						l = at + " spawn " + what
					}
					fmt.Fprintln(&all, l)
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
