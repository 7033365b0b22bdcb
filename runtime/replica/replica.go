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
	"sync"
	"sync/atomic"
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
	Stage(ctx context.Context, w StageRequest, progress func(have, total functions.Bytes)) (Checkpoint, error)
}

// EarlyStager is a Stager that can provide a checkpoint while it is still arriving.
// StageEarly replaces Stage for engines that read their files once, in order.
type EarlyStager interface {
	// StageEarly returns when files can be opened under the path (reads wait for
	// their bytes). It is called once per start, from a goroutine of the replica;
	// ctx is that of the whole staging, Rest included.
	StageEarly(ctx context.Context, w StageRequest, progress func(have, total functions.Bytes)) (PartialCheckpoint, error)
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
	// AbortRequests, if not nil, fails the requests on this replica that outlast a
	// drain, or that an engine holds which is ended because it hangs.
	AbortRequests func(reason string)
	// Traffic, if not nil, is what the owner's requests to the engine show of it.
	Traffic func() functions.Traffic
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
	o     Options
	adopt *adoption
	log   *slog.Logger

	status atomic.Pointer[functions.ReplicaStatus]
	since  atomic.Int64 // unix nanoseconds of the present state
	logAt  atomic.Pointer[string]

	mu           sync.Mutex
	pending      commands
	commandReady newest.Signal // set while pending has commands

	stagedBytes, stageTotal atomic.Int64 // staging's progress

	adapters adapterSet

	// The fields below are owned by Run's goroutine.
	now         functions.ReplicaStatus // the next value of status
	phases      []functions.Span
	ckpt        Checkpoint
	early       *earlyStaging // staging that continues after the engine's start; nil otherwise
	filled      bool          // Checkpoint.Filled was called
	verified    bool          // Checkpoint.Verify was called
	background  sync.WaitGroup
	child       *supervisor.Child
	eng         Engine
	port        int
	notifyAfter time.Time // progress is not reported before
	// logFrom is the offset of this start in the log.
	logFrom int64
}

type adoption struct {
	meta  Meta
	child *supervisor.Child
}

// commands are those of the owner, merged until Run takes them.
type commands struct {
	unload      bool
	drain       time.Duration
	reason      string
	cancelStart bool
	suspect     string
	sleep       *sleepRequest
	changed     bool // an adapter was loaded or failed
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
	r := &Replica{o: o, log: o.Log.With("replica", o.ID, "model", o.Team+"/"+o.Model), commandReady: newest.NewSignal()}
	// A deadline that is not set is the default, never unlimited.
	d, def := &r.o.Spec.Deadlines, functions.Defaults().Deadlines
	for _, v := range []struct{ have, def *functions.Duration }{
		{&d.Stage, &def.Stage}, {&d.Start, &def.Start}, {&d.FirstToken, &def.FirstToken}, {&d.Hang, &def.Hang},
	} {
		if *v.have <= 0 {
			*v.have = *v.def
		}
	}
	spec := o.Spec
	r.now = functions.ReplicaStatus{
		ID: o.ID, Team: o.Team, Model: o.Model, State: functions.Downloading, Tier: functions.TierRemote,
		Percent: -1, Spec: &spec, GPUs: slices.Clone(o.GPUs),
	}
	r.since.Store(time.Now().UnixNano())
	r.publish()
	return r
}

// Adopt makes a replica of a running process that an earlier agent started. The
// Assignment is taken from the process's Meta. Run asks the engine for a
// token and makes it READY, or ends it.
func Adopt(o Options, p supervisor.Running, child *supervisor.Child) (*Replica, error) {
	m, err := ParseMeta(p)
	if err != nil {
		return nil, err
	}
	o.Assignment, o.Began = m.Assignment, m.Began
	r := New(o)
	r.adopt = &adoption{m, child}
	r.now.State = functions.Loading
	r.publish()
	return r, nil
}

func (r *Replica) Status() functions.ReplicaStatus {
	s := *r.status.Load()
	s.Since = time.Since(time.Unix(0, r.since.Load())).Milliseconds()
	s.Adapters, s.AdapterNotes = r.adapters.names(), r.adapters.noteMap()
	return s
}

// Engine is the program that serves its model.
func (r *Replica) Engine() functions.Engine { return r.o.Spec.Engine }

// LogPath is the file of the engine's output; "" before its start.
func (r *Replica) LogPath() string {
	if p := r.logAt.Load(); p != nil {
		return *p
	}
	return ""
}

// Unload ends the replica: requests in flight may finish within drain, then the
// process is ended. Of several calls the shortest drain counts.
func (r *Replica) Unload(drain time.Duration, reason string) {
	r.command(func(c *commands) {
		if !c.unload || drain < c.drain {
			c.drain, c.reason = drain, reason
		}
		c.unload = true
	})
}

// CancelStart ends the replica if its process was not spawned yet.
func (r *Replica) CancelStart() { r.command(func(c *commands) { c.cancelStart = true }) }

// Suspect probes a READY replica now; problem is the reason, for the log.
func (r *Replica) Suspect(problem string) { r.command(func(c *commands) { c.suspect = problem }) }

func (r *Replica) command(f func(*commands)) {
	r.mu.Lock()
	f(&r.pending)
	r.mu.Unlock()
	r.commandReady.Set()
}

func (r *Replica) takeCommands() commands {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.pending
	r.pending = commands{}
	return c
}

// state is the function of one state; it returns the next, nil at the end.
type state func(context.Context) state

// Sleep puts a READY replica to sleep. It is SLEEPING from then on: no new requests,
// those in flight finish within the drain deadline, then the engine frees its GPU
// memory and SleepLevel is set. Level 1 keeps the weights in host memory, 2 drops
// them. An engine that cannot sleep stays READY.
func (r *Replica) Sleep(level int, reason string) {
	r.command(func(c *commands) { c.sleep = &sleepRequest{level: max(level, 1), why: reason} })
}

// WakeUp wakes a SLEEPING replica: LOADING_TO_GPU, then READY with a token, or FAILED
// if it hangs. In other states it cancels a Sleep that has not begun.
func (r *Replica) WakeUp(reason string) {
	r.command(func(c *commands) { c.sleep = &sleepRequest{why: reason} })
}

// Run runs the replica. It returns nil when the replica is UNLOADED or FAILED (see
// Status), and ctx's cause when the process was left to the supervisor. It is called
// once.
func (r *Replica) Run(ctx context.Context) error {
	replicaCtx, stop := context.WithCancel(ctx)
	r.adapters.start(replicaCtx)
	defer func() {
		r.endEarlyStaging()
		stop()
		r.background.Wait()
		r.adapters.releaseAll()
		if r.eng != nil {
			r.eng.Close()
		}
		if r.ckpt.Release != nil {
			r.ckpt.Release()
		}
	}()
	begin := r.staging
	if r.adopt != nil {
		begin = r.adopting
	}
	r.notify()
	for next := state(begin); next != nil; {
		next = next(replicaCtx)
	}
	if r.now.State.Over() {
		if r.o.AdapterDir != "" {
			os.RemoveAll(r.o.AdapterDir)
		}
		return nil
	}
	return context.Cause(ctx)
}

// enter changes the state; nothing else does.
func (r *Replica) enter(s functions.State) {
	if r.now.State == s {
		return
	}
	was := r.now.State
	r.now.State, r.now.Percent = s, -1
	switch s {
	case functions.Loading:
		r.now.Tier = functions.TierNVMe
	case functions.Ready:
		r.now.Tier = functions.TierDRAM
		if len(r.o.GPUs) > 0 {
			r.now.Tier = functions.TierGPU
		}
	case functions.Unloaded, functions.Failed:
		r.now.Tier, r.now.Endpoint = functions.TierRemote, ""
		if r.ckpt.Path != "" {
			r.now.Tier = functions.TierNVMe
		}
		r.now.EngineLoad, r.now.SleepLevel, r.now.Key = functions.EngineLoad{}, 0, ""
	}
	r.since.Store(time.Now().UnixNano())
	r.notify() // before it is logged: requests wait for READY
	r.log.Info("replica", "state", s, "was", was, "error", r.now.Error)
}

func (r *Replica) notify() {
	r.publish()
	r.notifyAfter = time.Now().Add(200 * time.Millisecond)
	if r.o.OnChange != nil {
		r.o.OnChange(r.Status())
	}
}

func (r *Replica) publish() {
	s := r.now
	s.Phases = slices.Clone(r.phases)
	r.status.Store(&s)
}

// progress publishes a percentage and reports it at most five times a second.
func (r *Replica) progress(percent int) {
	if percent == r.now.Percent {
		return
	}
	r.now.Percent = percent
	if time.Now().Before(r.notifyAfter) {
		r.publish()
		return
	}
	r.notify()
}

// addPhase records a phase. An adopted engine keeps the phases of its earlier agent.
func (r *Replica) addPhase(p functions.Phase, from, to time.Time) {
	if r.adopt != nil {
		return
	}
	r.phases = append(r.phases, functions.Span{Phase: p, Start: from.Sub(r.o.Began).Seconds(), Duration: to.Sub(from).Seconds()})
	r.phases = sortPhases(r.phases)
}

// sortPhases sorts spans by the order of their phases.
func sortPhases(s []functions.Span) []functions.Span {
	slices.SortStableFunc(s, func(a, b functions.Span) int {
		return slices.Index(functions.Phases, a.Phase) - slices.Index(functions.Phases, b.Phase)
	})
	return s
}

func (r *Replica) unloaded(reason string) state {
	r.log.Info("replica ended", "why", reason)
	r.enter(functions.Unloaded)
	return nil
}

func (r *Replica) failed(cause string) state {
	r.now.Error = cause
	if r.now.State == functions.Loading {
		r.now.ShortOf = engine.ShortOf(cause)
	}
	r.enter(functions.Failed)
	return nil
}
