package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/replica"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// Options of an Agent.
type Options struct {
	ID      string // of the node
	Version string
	Machine string          // identity of the host, see Machine
	Dir     string          // the agent's own folder: keeper's socket, engines' logs
	Exe     string          // the thaw program, for the keeper and the ember engine
	Orphan  time.Duration   // how long engines outlive the agent; 0 is the keeper's default
	Memory  functions.Bytes // host memory that replicas may reserve
	Sleep   functions.Bytes // of Memory, what may be held asleep; 0: all of it
	Stager  replica.Stager
	// RetainCheckpoint keeps the checkpoint at a path while an adopted engine lives on it:
	// the earlier agent's lease ended with that agent. nil retains nothing.
	RetainCheckpoint func(path string) (release func())
	// FilesLost reports that the files at a path went with an earlier agent: an
	// engine that was still reading them is ended. nil: none does.
	FilesLost   func(path string) bool
	Inventory   *InventoryPoller
	Environ     func() []string // of engines; nil is os.Environ
	KeepEngines bool            // engines stay when the agent ends
	Warm        WarmMode        // warm interpreters; "" is off
	Confine     ConfineMode     // of engines; "" is off
	// RefuseVulnerable refuses to start engines below the version that fixes a known
	// vulnerability.
	RefuseVulnerable bool

	PeerURL       string // where this node serves blocks to others; "" if it does not
	SharedFolders bool   // folders of other nodes can be staged

	// Push is handed every heartbeat, in order. It must not block.
	Push func(functions.Heartbeat)
	// FreeGPU is the free memory of a GPU now; nil: nothing is known.
	FreeGPU func(index int) (functions.Bytes, bool)
	// GPUHolders describes the processes that hold memory of a GPU and are not thaw's;
	// nil: nothing is known.
	GPUHolders func(index int) string
	// GPUMemoryOf is the memory that a replica holds of each GPU, at most, 0 unknown; nil:
	// nothing is known.
	GPUMemoryOf func(replica string) functions.Bytes
	Log         *slog.Logger
}

// Requests are thaw's own requests to the engines of a node.
type Requests interface {
	// InFlightOf is how many of them are on a replica, for the end of its drain.
	InFlightOf(name functions.Name, replica string) int
	// AbortThrough ends those to the engine at this URL, when its drain is over or it hangs.
	AbortThrough(url string)
	// Traffic is what those to the engine at this URL show of it.
	Traffic(url string) functions.Traffic
}

const (
	heartbeatEvery = 2 * time.Second
	endedRetention = time.Minute // how long an ended replica stays in the heartbeat
	// supervisorWait is how long a start waits for the next supervisor when its own has
	// ended.
	supervisorWait = 10 * time.Second
	endGrace       = 2 * time.Second // between SIGTERM and SIGKILL when the agent ends its engines
)

// ErrStarting refuses commands until the agent has adopted what runs.
var ErrStarting = errors.New("the agent is starting")

// Agent is the daemon of one node. Its methods may be called from any
// goroutine; Run must be running for loads to be taken.
type Agent struct {
	o   Options
	log *slog.Logger

	mu                sync.Mutex
	ctx               context.Context // of replicas, while Run runs; nil otherwise
	url               string          // where others reach us; "" in process
	loopback          bool            // the activator is on this machine: endpoints are loopback
	epoch             int64
	replicas          map[string]*managedReplica
	supervisor        *supervisor.Client
	supervisorChanged chan struct{} // closed and replaced when supervisor changes
	degradedReason    string        // why the node is DEGRADED
	adopted           bool          // running engines have been adopted; no heartbeat is sent before
	running           sync.WaitGroup

	instance   string // random id of this process, so that late heartbeats of an earlier one are recognised
	heartbeats uint64 // heartbeats made

	proxied     *proxiedRequests
	requests    Requests // proxied, unless Attach was called
	forkServers *forkServers
	confinement *confinement // nil: engines are not confined
}

// managedReplica is a replica and what the agent knows of it.
type managedReplica struct {
	*replica.Replica
	id       string
	reserved functions.Bytes // host memory it reserves
	ended    time.Time       // zero while it runs
	done     chan struct{}   // closed when Run has returned
}

// New returns an agent that has not begun.
func New(o Options) *Agent {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Push == nil {
		o.Push = func(functions.Heartbeat) {}
	}
	a := &Agent{o: o, log: o.Log, replicas: map[string]*managedReplica{}, loopback: true, supervisorChanged: make(chan struct{}),
		instance: rand.Text()[:12], proxied: &proxiedRequests{inFlight: map[string]int{}}}
	a.requests = a.proxied
	a.confinement = newConfinement(o.Confine, filepath.Dir(o.Dir), filepath.Join(o.Dir, "engines"), a.log)
	a.forkServers = newForkServers(forkServersOptions{
		Mode: o.Warm, Dir: filepath.Join(o.Dir, "warm"), Memory: o.Memory, Used: a.reservedMemory, Keeper: (*spawner)(a).client,
		Changed: a.pushHeartbeat, Log: a.log,
	})
	return a
}

func (a *Agent) ID() string { return a.o.ID }

// Attach sets what sends requests to the engines, where it is not the agent's own Handler. It
// is called before Run.
func (a *Agent) Attach(requests Requests) { a.requests = requests }

// Run connects to the keeper (or starts it), adopts what runs, and serves until
// ctx ends. Then it ends its engines, unless they are to be left.
func (a *Agent) Run(ctx context.Context) error {
	if err := os.MkdirAll(a.o.Dir, 0o700); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	// Replicas live in a context of their own: when it ends they leave their
	// processes to the keeper, which then ends them, or not.
	rctx, stopReplicas := context.WithCancel(context.WithoutCancel(ctx))
	defer a.running.Wait()
	defer stopReplicas()
	k, err := a.connectAndAdopt(ctx, rctx)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.running.Go(func() { a.forkServers.Run(rctx) })
	t := time.NewTicker(heartbeatEvery)
	defer t.Stop()
	supervisorGone := k.Done()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return a.shutDown(ctx, stopReplicas)
		case <-t.C:
			a.dropEnded()
			a.pushHeartbeat()
		case <-supervisorGone:
			supervisorGone = nil
			a.log.Error("the supervisor has ended, and its engines with it")
			a.setSupervisor(nil, "the supervisor has ended")
			again = time.After(0)
		case <-again:
			again = nil
			k, err := a.connectSupervisor(ctx)
			if err != nil {
				a.log.Error("no keeper", "error", err)
				again = time.After(heartbeatEvery)
				continue
			}
			supervisorGone = k.Done()
			a.setSupervisor(k, "")
		}
	}
}

// connectAndAdopt connects to the supervisor and adopts what it runs. A supervisor that ends
// before it has listed its processes is followed by another, once.
func (a *Agent) connectAndAdopt(ctx, rctx context.Context) (k *supervisor.Client, err error) {
	for range 2 {
		if k, err = a.connectSupervisor(ctx); err != nil {
			return nil, err
		}
		if err = a.adopt(ctx, rctx, k); err == nil {
			return k, nil
		}
		k.Close()
		if !errors.Is(err, supervisor.ErrLost) {
			break
		}
	}
	return nil, err
}

// adopt makes replicas of the engines that an earlier agent left running.
func (a *Agent) adopt(ctx, rctx context.Context, k *supervisor.Client) error {
	look, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := k.List(look)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.ctx, a.supervisor = rctx, k
	a.mu.Unlock()
	for _, p := range list {
		if p.Exit != nil {
			k.Forget(look, p.ID)
			continue
		}
		if strings.HasPrefix(p.ID, parentPrefix) {
			a.forkServers.adopt(rctx, k, p)
			continue
		}
		m, err := replica.ParseMeta(p)
		if err == nil && a.o.FilesLost != nil && a.o.FilesLost(m.Path) {
			err = errors.New("its files were still arriving through an earlier agent, which has ended")
		}
		if err != nil {
			a.log.Warn("a process that cannot be adopted is ended", "process", p.ID, "error", err)
			k.Kill(look, p.ID)
			continue
		}
		a.log.Info("adopted", "replica", p.ID, "pid", p.PID)
		release := func() {}
		if a.o.RetainCheckpoint != nil {
			release = a.o.RetainCheckpoint(m.Path)
		}
		adopted := replica.Adopt(a.options(m.Assignment), m, k.Follow(p))
		a.mu.Lock()
		r := a.addReplicaLocked(adopted, p.ID, m.Spec.Resources.Memory)
		a.mu.Unlock()
		go a.runReplica(rctx, r, release)
	}
	// Only now: a document without what runs would be believed.
	a.mu.Lock()
	a.adopted = true
	a.mu.Unlock()
	a.pushHeartbeat()
	return nil
}

// shutDown leaves the replicas' processes to the supervisor, and has it end them unless
// Options.KeepEngines is set.
func (a *Agent) shutDown(ctx context.Context, stopReplicas context.CancelFunc) error {
	a.mu.Lock()
	k := a.supervisor
	a.ctx = nil
	a.mu.Unlock()
	stopReplicas()
	a.running.Wait()
	if k == nil {
		return nil
	}
	if a.o.KeepEngines {
		return k.Close()
	}
	// Ours has ended; the keeper gets the time it needs.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endGrace+5*time.Second)
	defer cancel()
	if err := k.End(ctx, endGrace); err != nil && !errors.Is(err, supervisor.ErrLost) {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

func (a *Agent) options(as replica.Assignment) replica.Options {
	name := functions.Name{Team: as.Team, Name: as.Model}
	o := replica.Options{
		Assignment: as, Stager: a.o.Stager, Spawner: (*spawner)(a),
		Programs: engine.Programs{Thaw: a.o.Exe, Environ: a.o.Environ, RefuseVulnerable: a.o.RefuseVulnerable},
		Began:    time.Now(), OnChange: func(functions.ReplicaStatus) { a.pushHeartbeat() },
		InFlight: func() int { return a.requests.InFlightOf(name, as.ID) }, Traffic: a.requests.Traffic, Log: a.log,
		AbortRequests: func(url, _ string) { a.requests.AbortThrough(url) },
		Scratch:       supervisor.ScratchRoot(filepath.Join(a.o.Dir, "supervisor")), FreeGPU: a.o.FreeGPU, GPUHolders: a.o.GPUHolders,
	}
	if c := a.confinement; c != nil {
		o.AdapterDir = c.adapterDir(name, as.ID)
		o.Confine = func(cmd *engine.Command, r engine.Request) (*confine.Plan, error) {
			return c.plan(name, as.ID, cmd, r)
		}
	}
	o.ForkParent, o.ParentReady = a.forkServers.ForkSocket, a.forkServers.StartParent
	if a.o.Inventory != nil {
		for _, g := range a.o.Inventory.GPUs() {
			if slices.Contains(as.GPUs, g.Index) && (o.GPUMemory == 0 || g.MemoryTotal < o.GPUMemory) {
				o.GPUMemory, o.GPUName = g.MemoryTotal, g.Name
			}
		}
	}
	return o
}

// addReplicaLocked lists a replica under its id. mu must be held.
func (a *Agent) addReplicaLocked(inner *replica.Replica, id string, reserved functions.Bytes) *managedReplica {
	r := &managedReplica{Replica: inner, id: id, reserved: reserved, done: make(chan struct{})}
	a.replicas[id] = r
	a.running.Add(1)
	return r
}

// runReplica is the life of a replica that is listed; release is called after it.
func (a *Agent) runReplica(ctx context.Context, r *managedReplica, release func()) {
	defer a.running.Done()
	defer release()
	err := r.Run(ctx)
	close(r.done)
	a.mu.Lock()
	r.ended = time.Now()
	a.mu.Unlock()
	if err == nil {
		a.pushHeartbeat()
	}
}

// checkEpochLocked checks an epoch; the lock is held. The first since the agent's start may be
// any: that of its server may be high.
func (a *Agent) checkEpochLocked(epoch int64) error {
	if epoch < a.epoch {
		return fmt.Errorf("epoch %d: %w (%d)", epoch, functions.ErrStaleEpoch, a.epoch)
	}
	if a.epoch != 0 && epoch-a.epoch > functions.MaxEpochStep {
		return fmt.Errorf("%w: epoch %d is not one of a server whose last was %d: no later command would be obeyed", ErrBadRequest, epoch,
			a.epoch)
	}
	a.epoch = epoch
	return nil
}

// Load starts a replica and returns at once. A replica of this id that is there already is
// returned as it is.
func (a *Agent) Load(ctx context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	if !functions.IsLabel(req.ID) || !functions.IsLabel(req.Team) || !functions.IsLabel(req.Model) {
		return functions.LoadReply{}, fmt.Errorf("load: %w: id, team and model must be DNS labels", ErrBadRequest)
	}
	a.mu.Lock()
	if err := a.checkEpochLocked(req.Epoch); err != nil {
		a.mu.Unlock()
		return functions.LoadReply{}, err
	}
	if r := a.replicas[req.ID]; r != nil {
		a.mu.Unlock()
		return functions.LoadReply{ID: req.ID, State: r.Status().State}, nil
	}
	if !a.adopted || a.ctx == nil || a.supervisor == nil {
		a.mu.Unlock()
		return functions.LoadReply{}, ErrStarting
	}
	// Listed under the same lock: the same id is not started twice.
	rctx := a.ctx
	as := replica.Assignment{ID: req.ID, Team: req.Team, Model: req.Model, Spec: req.Spec, Dir: req.Dir, Digest: req.Digest, GPUs: req.GPUs}
	r := a.addReplicaLocked(replica.New(a.options(as)), req.ID, req.Spec.Resources.Memory)
	a.mu.Unlock()
	a.PrepareForkServer(req.Spec) // while it is staged
	go a.runReplica(rctx, r, func() {})
	return functions.LoadReply{ID: req.ID, State: r.Status().State}, nil
}

// PrepareForkServer starts a warm interpreter for a model that is known and may be
// requested, if its engine has one.
func (a *Agent) PrepareForkServer(spec functions.ModelSpec) {
	if forkserver.ImportList(string(spec.Engine)) == "" {
		return
	}
	// Arguments and adapters do not change what a parent imports.
	spec.Args, spec.Adapters = nil, nil
	cmd, err := engine.Programs{Thaw: a.o.Exe, Environ: a.o.Environ}.Prepare(engine.Request{
		Spec: spec, Name: "any", Path: "/", Port: 1, Key: "any", Scratch: a.o.Dir,
	})
	if err == nil {
		a.forkServers.Prepare(cmd)
	}
}

// ErrBadRequest refuses a command with invalid fields.
var ErrBadRequest = errors.New("bad request")

// Unload ends a replica, or removes one that has ended. An unknown id is no error: that
// replica has ended already.
func (a *Agent) Unload(ctx context.Context, req functions.UnloadRequest) error {
	a.mu.Lock()
	if err := a.checkEpochLocked(req.Epoch); err != nil {
		a.mu.Unlock()
		return err
	}
	r := a.replicas[req.ID]
	done := r != nil && r.Status().State.Over()
	if done {
		delete(a.replicas, req.ID)
	}
	a.mu.Unlock()
	switch {
	case r == nil:
		return nil
	case done:
		a.pushHeartbeat()
	case req.Reason == functions.ReasonCalledOff:
		r.CancelStart()
	default:
		r.Unload(time.Duration(max(0, min(req.DrainSeconds, 86400))*float64(time.Second)), req.Reason)
	}
	return nil
}

// Sleep puts a replica to sleep, or with level 0 wakes it. It returns at once; the
// heartbeat has the outcome.
func (a *Agent) Sleep(ctx context.Context, req functions.SleepRequest) error {
	if req.Level < 0 || req.Level > 2 {
		return fmt.Errorf("sleep: %w: level is 0, 1 or 2", ErrBadRequest)
	}
	r, err := a.commandedReplica(req.ID, req.Epoch)
	switch {
	case err != nil:
		return fmt.Errorf("sleep: %w", err)
	case req.Level == 0:
		r.WakeUp(req.Reason)
	default:
		r.Sleep(req.Level, req.Reason)
	}
	return nil
}

// LoadAdapter has a READY replica load one of its model's adapters, and returns when that
// is done. Errors of the adapter itself are *functions.AdapterError.
func (a *Agent) LoadAdapter(ctx context.Context, req functions.AdapterRequest) error {
	r, err := a.commandedReplica(req.ID, req.Epoch)
	if err != nil {
		return fmt.Errorf("adapter: %w", err)
	}
	return r.Replica.LoadAdapter(ctx, req.Name)
}

func (a *Agent) commandedReplica(id string, epoch int64) (*managedReplica, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.checkEpochLocked(epoch); err != nil {
		return nil, err
	}
	if r := a.replicas[id]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("%w %s here", ErrNoReplica, functions.Clip(id))
}

var ErrNoReplica = errors.New("no replica")

// Verify has a replica check its engine, after a request to it has failed.
func (a *Agent) Verify(ctx context.Context, id, problem string) error {
	if r := a.replicaByID(id); r != nil {
		r.Suspect(problem)
	}
	return nil
}

func (a *Agent) dropEnded() {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.replicas, func(_ string, r *managedReplica) bool {
		return !r.ended.IsZero() && time.Since(r.ended) > endedRetention
	})
}

// pushHeartbeat makes a heartbeat and passes it to Options.Push, one at a time and in
// order.
func (a *Agent) pushHeartbeat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.adopted {
		a.o.Push(a.heartbeatLocked())
	}
}

// Heartbeat is the heartbeat document as it is now; ErrStarting until running engines have
// been adopted.
func (a *Agent) Heartbeat() (functions.Heartbeat, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.adopted {
		return functions.Heartbeat{}, ErrStarting
	}
	return a.heartbeatLocked(), nil
}

// SetURL sets the URL under which others reach the agent, and whether the activator is on
// this machine, so that it can reach engines on loopback.
func (a *Agent) SetURL(url string, shares bool) {
	a.mu.Lock()
	a.url, a.loopback = url, shares
	a.mu.Unlock()
	a.pushHeartbeat()
}

func (a *Agent) reservedMemory() (sum functions.Bytes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.replicas {
		if !r.Status().State.Over() {
			sum += r.reserved
		}
	}
	return sum
}

func (a *Agent) replicaByID(id string) *managedReplica {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replicas[id]
}
