package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// ErrStartCancelled is the cause of the end of a staging's context when the start was
// cancelled: the stager may continue the staging at low priority.
var ErrStartCancelled = errors.New("start cancelled: no request needs it any more")

// StageRequest is what a replica asks its stager for.
type StageRequest struct {
	Source string // as in the model file
	Dir    string // folder of the model file, for relative sources
	Digest string // expected, or ""
	// Files are patterns of files to stage in addition to the usual ones.
	Files []string
	// Cache is the key of the engine's compile caches, opaque; "" for none.
	Cache  string
	Engine functions.Engine
	// Problem, if not nil, is called with why the source is asked again, or why files of it
	// that were staged before are used; with "" when that is over. It may be called from any
	// goroutine until Stage returns.
	Problem func(string)
}

// Checkpoint is a staged source. Release is called once, when the replica has
// ended; it may be nil.
type Checkpoint struct {
	Path    string // of the folder or file
	Bytes   functions.Bytes
	Digest  string // identifies its bytes; "" unknown
	Release func()
	// Cache is a folder the engine may use as its cache; "" for none.
	Cache string
	// CacheShared are the folders that caches have in common, to which links in Cache lead.
	CacheShared []string
	// Verify, if not nil, reads the files again. It returns ErrDamaged if one is not what
	// was staged; the next Stage fetches that one again.
	Verify func(ctx context.Context) error
	// Filled, if not nil, is called once after READY, in a goroutine of its own:
	// the engine has written its Cache. ctx ends with the replica.
	Filled func(ctx context.Context) error
}

// ErrDamaged means that a file of a checkpoint is not what was staged.
var ErrDamaged = errors.New("a file of the checkpoint is damaged")

// Stager stages sources on this machine. Stage is called once per start, from a
// goroutine of the replica, and blocks until every byte is local and verified, or
// ctx has ended. It may call progress from any goroutine until it returns; whole is
// 0 while unknown.
type Stager interface {
	Stage(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error)
}

// EarlyStager is a Stager that can provide a checkpoint while it is still arriving.
// StageEarly replaces Stage for engines that read their files once, in order.
type EarlyStager interface {
	// StageEarly returns when files can be opened under the path (reads wait for
	// their bytes). It is called once per start, from a goroutine of the replica;
	// ctx is that of the whole staging, Rest included.
	StageEarly(ctx context.Context, req StageRequest, progress func(have, total functions.Bytes)) (PartialCheckpoint, error)
}

// PartialCheckpoint is a checkpoint whose files can be opened while they arrive.
type PartialCheckpoint struct {
	Path string
	// Weights, if not "", is the server of the weight files, which the folder
	// lacks; see engine.Request. Only for engines that support it.
	Weights string
	// Cache, CacheShared and Filled are those of a Checkpoint.
	Cache       string
	CacheShared []string
	Filled      func(ctx context.Context) error
	// Complete reports that every byte is local: Rest returns at once.
	Complete bool
	// Rest is called once and blocks until every byte is local and verified, or
	// ctx has ended. Its Checkpoint has the path of the final files. No token is
	// served before. After an error there is nothing to release.
	Rest func(ctx context.Context) (Checkpoint, error)
	// EngineReady, if not nil, is called once: when the engine is READY and reads
	// nothing under Path any more, or else before Release.
	EngineReady func()
}

// Spawner starts processes; supervisor.Client is one. Signal signals the whole group
// of a process and is no error if it has ended.
type Spawner interface {
	Spawn(ctx context.Context, p supervisor.Process) (*supervisor.Child, error)
	Signal(ctx context.Context, id string, sig syscall.Signal) error
	Forget(ctx context.Context, id string) error
}

// Engine is a started engine as a client sees it; *engine.Client is one.
type Engine interface {
	Await(ctx context.Context, listening func()) error
	Token(ctx context.Context) error
	Health(ctx context.Context) error
	// LastAnswer describes the last answer to one of the calls above; "" for none.
	LastAnswer() string
	Metrics(ctx context.Context) (engine.Metrics, error)
	Close()
}

// Assignment is what a replica runs, and on which GPUs.
type Assignment struct {
	ID     string              `json:"id"`
	Team   string              `json:"team"`
	Model  string              `json:"model"`
	Spec   functions.ModelSpec `json:"spec"`
	Dir    string              `json:"dir,omitempty"` // folder of the model file
	Digest string              `json:"digest,omitempty"`
	GPUs   []int               `json:"gpus,omitempty"`
}

type Options struct {
	Assignment
	GPUMemory functions.Bytes // of each of its GPUs, 0 unknown
	GPUName   string          // of the first; compile caches are for it

	Stager   Stager
	Spawner  Spawner
	Programs engine.Programs

	// Began is when the replica was requested: phases count from here. Zero is the
	// time of New.
	Began time.Time
	// OnChange is called for every change of state and, at most five times a
	// second, for progress. It is called from Run's goroutine and must not block
	// or call the replica.
	OnChange func(functions.ReplicaStatus)
	// InFlight, if not nil, is the number of requests that the owner has sent to
	// this replica. A drain waits for it and for the engine's own count.
	InFlight func() int
	Log      *slog.Logger

	// ForkParent, if not nil, returns the socket of a warm interpreter that can
	// fork this command, or "" and the reason ("" too for engines without fork
	// server). It must not block.
	ForkParent func(cmd engine.Command) (forkSocket, note string)
	// ParentReady returns a channel that is closed when a starting parent for this
	// command is ready or has failed; nil if there is none to wait for.
	ParentReady func(cmd engine.Command) <-chan struct{}
	// Cache is the key of the engine's compile caches, for the Stager; "" for none.
	Cache string
	// Scratch is the parent of the engines' scratch folders, see
	// supervisor.ScratchRoot; "" for none.
	Scratch string
	// AbortRequests, if not nil, fails the requests to the engine at this URL that outlast a
	// drain, or that an engine holds which is ended because it hangs.
	AbortRequests func(endpoint, reason string)
	// Traffic, if not nil, is what the owner's requests to the engine at this URL show of it.
	Traffic func(endpoint string) functions.Traffic
	// Confine, if not nil, returns what the engine may do, and points its caches where it
	// may write.
	Confine func(*engine.Command, engine.Request) (*confine.Plan, error)
	// AdapterDir is the folder from which a confined engine reads adapters; "" lets it
	// read them where they were staged. It is removed with the replica.
	AdapterDir string
	// FreeGPU, if not nil, returns the free memory of a GPU. A start waits until the
	// model's memory is free, and fails at its deadline.
	FreeGPU func(index int) (free functions.Bytes, ok bool)
	// GPUHolders, if not nil, describes the processes that hold memory of a GPU and are
	// not thaw's; "" for none.
	GPUHolders func(index int) string

	// Dial makes the client of an engine; nil is engine.New.
	Dial func(engine.Command) Engine
}

// Meta is stored with the process by the supervisor; Adopt makes a replica of it.
type Meta struct {
	Assignment
	Port    int              `json:"port"`
	Path    string           `json:"path"`
	Bytes   functions.Bytes  `json:"bytes"`
	Weights string           `json:"weights,omitempty"` // Digest of the checkpoint, where that was known
	Began   time.Time        `json:"began"`
	Started time.Time        `json:"started"`
	Phases  []functions.Span `json:"phases"`
	Start   string           `json:"start,omitempty"` // functions.StartWarm or StartPlain
	Note    string           `json:"start_note,omitempty"`
	Key     string           `json:"key,omitempty"` // the API key that the engine requires
	Health  string           `json:"health,omitempty"`
}

func ParseMeta(r supervisor.Running) (Meta, error) {
	var m Meta
	if err := json.Unmarshal(r.Meta, &m); err != nil {
		return m, fmt.Errorf("process %s: notes: %w", r.ID, err)
	}
	if m.ID != r.ID || m.Port <= 0 || m.Port > 65535 {
		return m, fmt.Errorf("process %s: its notes are not those of a replica", r.ID)
	}
	return m, nil
}

// Replica is one engine instance serving one model on this machine.
type Replica struct {
	o        Options
	log      *slog.Logger
	gpus     gpuMemory
	commands commandQueue
	adapters adapterSet

	// The fields below are owned by Run's goroutine.
	begin   state // the first
	report  report
	files   stagedFiles
	process process
	eng     Engine // nil before the start
}

// New makes a replica; Run starts it.
func New(o Options) *Replica {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Began.IsZero() {
		o.Began = time.Now()
	}
	if o.Dial == nil {
		o.Dial = func(c engine.Command) Engine { return engine.New(c) }
	}
	if o.Traffic == nil {
		o.Traffic = func(string) functions.Traffic { return functions.Traffic{} }
	}
	r := &Replica{o: o, log: o.Log.With("replica", o.ID, "model", o.Team+"/"+o.Model)}
	// A deadline that is not set is the default, never unlimited.
	d, def := &r.o.Spec.Deadlines, functions.Defaults().Deadlines
	d.Stage, d.Start = cmp.Or(max(d.Stage, 0), def.Stage), cmp.Or(max(d.Start, 0), def.Start)
	d.FirstToken, d.Hang = cmp.Or(max(d.FirstToken, 0), def.FirstToken), cmp.Or(max(d.Hang, 0), def.Hang)
	spec := o.Spec
	r.begin, r.commands.ready = r.staging, newest.NewSignal()
	r.adapters = adapterSet{assigned: &r.o.Assignment, stager: o.Stager, linkDir: o.AdapterDir, log: r.log,
		changed: func() { r.commands.add(func(c *commands) { c.changed = true }) }}
	r.files = stagedFiles{stager: o.Stager, log: r.log}
	r.process = process{id: o.ID, spawner: o.Spawner, forkParent: o.ForkParent, log: r.log}
	r.gpus = gpuMemory{indices: o.GPUs, size: o.GPUMemory, needed: o.Spec.Resources.GPUMemory, free: o.FreeGPU, holders: o.GPUHolders}
	r.report = report{began: o.Began, onChange: o.OnChange, adapters: &r.adapters, log: r.log, now: functions.ReplicaStatus{
		ID: o.ID, Team: o.Team, Model: o.Model, State: functions.Downloading, Tier: functions.TierRemote,
		Percent: -1, Spec: &spec, GPUs: slices.Clone(o.GPUs),
	}}
	r.report.since.Store(time.Now().UnixNano())
	r.report.publish()
	return r
}

// Adopt makes a replica of a running process that an earlier agent started. m replaces the
// Assignment. Run asks the engine for a token and makes it READY, or ends it.
func Adopt(o Options, m Meta, child *supervisor.Child) *Replica {
	o.Assignment, o.Began = m.Assignment, m.Began
	r := New(o)
	r.begin = func(ctx context.Context) state { return r.adopting(ctx, m, child) }
	r.report.adopted, r.report.now.State = true, functions.Loading
	r.report.publish()
	return r
}

func (r *Replica) Status() functions.ReplicaStatus { return r.report.status() }

// Engine is the program that serves its model.
func (r *Replica) Engine() functions.Engine { return r.o.Spec.Engine }

// LogPath is the file of the engine's output; "" before its start.
func (r *Replica) LogPath() string { return r.process.logPath() }

// Unload ends the replica: requests in flight may finish within drain, then the
// process is ended. Of several calls the shortest drain counts.
func (r *Replica) Unload(drain time.Duration, reason string) {
	r.commands.add(func(c *commands) {
		if !c.unload || drain < c.drain {
			c.drain, c.reason = drain, reason
		}
		c.unload = true
	})
}

// CancelStart ends the replica if its process was not spawned yet.
func (r *Replica) CancelStart() { r.commands.add(func(c *commands) { c.cancelStart = true }) }

// Suspect probes a READY replica now; problem is the reason, for the log.
func (r *Replica) Suspect(problem string) { r.commands.add(func(c *commands) { c.suspect = problem }) }

// state is the function of one state; it returns the next, nil at the end.
type state func(context.Context) state

// endRun follows the last state, where nil means that the present one goes on.
func endRun(context.Context) state { return nil }

// Sleep puts a READY replica to sleep. It is SLEEPING from then on: no new requests,
// those in flight finish within the drain deadline, then the engine frees its GPU
// memory and SleepLevel is set. Level 1 keeps the weights in host memory, 2 drops
// them. An engine that cannot sleep stays READY.
func (r *Replica) Sleep(level int, reason string) {
	r.commands.add(func(c *commands) { c.sleep = &sleepRequest{level: max(level, 1), why: reason} })
}

// WakeUp wakes a SLEEPING replica: LOADING_TO_GPU, then READY with a token, or FAILED
// if it hangs. In other states it cancels a Sleep that has not begun.
func (r *Replica) WakeUp(reason string) {
	r.commands.add(func(c *commands) { c.sleep = &sleepRequest{why: reason} })
}

// LoadAdapter stages, validates and loads one of the model's adapters. For a loaded
// one it only records the use: the least recently used adapter is unloaded when all
// slots are taken. The replica must be READY. Errors are *functions.AdapterError or ctx's cause.
func (r *Replica) LoadAdapter(ctx context.Context, name string) error {
	return r.adapters.load(ctx, name)
}

// Run runs the replica. It returns nil when the replica is UNLOADED or FAILED (see
// Status), and ctx's cause when the process was left to the supervisor. It is called
// once.
func (r *Replica) Run(ctx context.Context) error {
	replicaCtx, stop := context.WithCancel(ctx)
	r.adapters.start(replicaCtx)
	defer func() {
		r.files.endEarly()
		stop()
		r.files.background.Wait()
		r.adapters.releaseAll()
		if r.eng != nil {
			r.eng.Close()
		}
		r.files.release()
	}()
	r.report.notify()
	for next := r.begin; next != nil; {
		next = next(replicaCtx)
	}
	if r.report.now.State.Over() {
		if r.o.AdapterDir != "" {
			os.RemoveAll(r.o.AdapterDir)
		}
		return nil
	}
	return context.Cause(ctx)
}

func (r *Replica) unloaded(reason string) state {
	r.log.Info("replica ended", "why", reason)
	r.report.end(functions.Unloaded, r.files.ckpt.Path != "")
	return endRun
}

func (r *Replica) failed(cause string) state {
	r.report.now.Error = cause
	if r.report.now.State == functions.Loading {
		r.report.now.ShortOf = engine.ShortOf(cause)
	}
	r.report.end(functions.Failed, r.files.ckpt.Path != "")
	return endRun
}
