package orchestrator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/quota"
)

// Node sends commands to an agent. Both methods are idempotent by the replica's id,
// return functions.ErrStaleEpoch for a superseded epoch, and are called from any
// goroutine with a context that ends.
type Node interface {
	Load(ctx context.Context, req functions.LoadRequest) (functions.LoadReply, error)
	Unload(ctx context.Context, req functions.UnloadRequest) error
}

// Verifier is a Node that can check a replica that failed on the data path.
type Verifier interface {
	Verify(ctx context.Context, id, problem string) error
}

// Demand is the demand for one function.
type Demand = activator.Demand

// DataPath is the part of the activator that the loop uses. Publish releases waiters
// during the call. No method blocks, or calls back into the loop except for Wake, Nudge
// and ReportFailure.
type DataPath interface {
	Publish(fs ...snapshot.Snapshot)
	Remove(names ...functions.Name)
	// Demand yields the functions whose demand, or whose requests in flight at a
	// replica, may have changed since the last call, also to zero; with all, also
	// every other function that has requests.
	Demand(all bool, yield func(Demand) bool)
	InFlightOf(name functions.Name, replica string) int
	// AbortThrough ends the requests in flight through the lost agent at this URL.
	AbortThrough(agent string)
}

// Catalog lists the functions that exist. The loop reads it again after Changed.
type Catalog interface {
	Models() []*functions.Model
	Teams() []*functions.Team
}

// Hooks are called from the loop and must return at once. Any may be nil.
type Hooks struct {
	ColdStart func(functions.Timeline) // a cold start ended, READY or failed
	Event     func(functions.Event)
}

// Options configure an Orchestrator.
type Options struct {
	Epoch     int64    // epoch of this process, higher than that of every earlier one
	Path      DataPath // the activator; nil if Attach sets it
	Catalog   Catalog
	Machine   string           // identity of this host; local sources of the catalogue are its folders
	Here      string           // id of the agent in this process, if there is one
	Policy    placement.Policy // zero: placement.DefaultPolicy
	Hooks     Hooks
	Foresight *Foresight    // forecasts and prewarming; nil: none
	Ledger    *quota.Ledger // keeps the accounts of teams across restarts; nil: they end with the process
	Log       *slog.Logger
	Alone     func() bool // no further node may ever come; nil: some may

	// Now, NewID, RunCommand and OnUpdate replace time, chance and concurrency. With deterministic
	// ones, the same updates in the same order give the same commands in the same
	// order. Simulators rely on that.
	Now   func() time.Time           // nil: time.Now
	NewID func(prefix string) string // a new DNS label that begins with prefix; nil: random

	// Progress is how often the progress of a cold start is published. 0: 500 ms;
	// negative: only when its state changes.
	Progress time.Duration

	// RunCommand executes a command to a node: it returns at once and calls f later, with a
	// context that ends within limit. nil: a goroutine each, at most 64 at a time.
	RunCommand func(limit time.Duration, f func(context.Context))

	// OnUpdate reports a non-empty inbox. Its owner then calls Turn, but not from within
	// OnUpdate. nil: Run is woken.
	OnUpdate func()
}

// Orchestrator is the control loop. Its methods may be called from any goroutine. Each
// part owns its state; the parts with a mutex of their own are first.
type Orchestrator struct {
	inbox
	eventLog
	commands     commander
	changes      followers[struct{}]
	adapterLoads singleflight.Group

	path       DataPath
	catalog    Catalog
	machine    string
	here       string
	policy     placement.Policy
	started    func(functions.Timeline) // a cold start ended; nil: no hook
	alone      func() bool              // see Options.Alone
	log        *slog.Logger
	newID      func(prefix string) string
	progress   time.Duration
	signalled  newest.Signal // wakes Run, unless Options.OnUpdate is set
	lostAgents []string      // URLs of lost agents, to be cut after the loss is published
	counts     counts

	mu sync.Mutex // locked by the loop during a turn, and by readers
	clock
	registry
	teams          teamAccounts
	forecaster     *forecaster // nil: none
	coldStarts     coldStartLog
	busyFunctions  orderedset.Set[*functionState] // functions that had demand in the last turn
	orphans        map[string]placement.Instant   // unknown replicas, by the time of their first heartbeat
	draining       orderedset.Set[*replicaState]
	unloadRetries  orderedset.Set[*replicaState]  // replicas whose unload is repeated
	wantedAdapters orderedset.Set[functions.Name] // adapters to load before any request
	goingToSleep   orderedset.Set[*replicaState]  // draining before the sleep command
	wakingUp       orderedset.Set[*replicaState]  // the wake command was sent

	lastTick         placement.Instant // the last turn that evaluated all busy functions
	turns            uint64
	progressAt       placement.Instant // last publication of progress
	nextSilenceCheck placement.Instant // earliest time at which a node may be lost
	catalogShrunkAt  placement.Instant // when the catalogue became implausibly small; 0: it is not
	catalogRead      bool              // the catalogue was read once
	startGraceOver   bool              // earlier agents have had time for a heartbeat
	superseded       bool              // a newer server commands the agents
}

const (
	tick           = time.Second
	wakeLease      = time.Minute // longer than a client's Retry-After of at most 55 s
	commandTimeout = 10 * time.Second
	maxCommands    = 64
	drainPoll      = 20 * time.Millisecond
)

// New returns an Orchestrator that is not running.
func New(o Options) *Orchestrator {
	if o.Policy == (placement.Policy{}) {
		o.Policy = placement.DefaultPolicy
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = randomID
	}
	signalled := newest.NewSignal()
	if o.OnUpdate == nil {
		o.OnUpdate = signalled.Set
	}
	s := &Orchestrator{
		inbox:    inbox{wallClock: o.Now, newID: o.NewID, signal: o.OnUpdate, startIDs: map[functions.Name]string{}},
		eventLog: eventLog{wallClock: o.Now, log: o.Log, hook: o.Hooks.Event},
		commands: commander{epoch: o.Epoch, runCommand: o.RunCommand, slots: make(chan struct{}, maxCommands), log: o.Log},
		path:     o.Path, catalog: o.Catalog, machine: o.Machine, here: o.Here, policy: o.Policy,
		started: o.Hooks.ColdStart, alone: o.Alone, log: o.Log, newID: o.NewID,
		progress: cmp.Or(o.Progress, progressEvery), signalled: signalled, counts: newCounts(),
		clock:    clock{timeNow: o.Now, began: o.Now().Add(-time.Millisecond)}, // Instant 0 means never
		registry: newRegistry(o.Policy),
		orphans:  map[string]placement.Instant{},
	}
	s.commands.inbox = &s.inbox
	s.coldStarts = coldStartLog{byID: map[string]*coldStart{}, inbox: &s.inbox, clock: &s.clock}
	s.teams = teamAccounts{
		Accounts: quota.NewAccounts(o.Ledger), keepRestarted: o.Policy.AppliesMinResidency(),
		registry: &s.registry, clock: &s.clock, events: &s.eventLog, counts: &s.counts,
	}
	s.forecaster = newForecaster(o.Foresight, s)
	return s
}

// Attach sets the data path and publishes the functions of the catalogue, so that no
// early request is refused as an unknown model. It is called once, before Run, if the
// data path could only be made after the loop.
func (o *Orchestrator) Attach(path DataPath) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.path = path
	o.readCatalog(o.now())
	o.publishChanged()
}

// Run runs the loop. It returns nil when ctx ends, after all commands have returned or
// been cancelled. Replicas keep running.
func (o *Orchestrator) Run(ctx context.Context) error {
	commands, cancel := context.WithCancel(ctx)
	defer o.forecaster.save(true) // after the last background write
	defer o.saveLedger(true)
	defer o.commands.running.Wait()
	defer cancel()
	o.Changed()
	t := time.NewTicker(tick)
	defer t.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.signalled:
		case <-t.C:
		case <-timer.C:
		}
		if next := o.Turn(commands); next > 0 {
			timer.Reset(next)
		}
		o.forecaster.save(false)
		o.saveLedger(false)
	}
}

func setInMap[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// WakeFor is a Wake with a lease that does not depend on waiters; 0: until the replica
// is READY and its idle time begins. It ends the pause after failed starts. If a replica is READY already, WakeFor returns the
// last cold start ("" if it was adopted). An adapter in name is loaded too.
func (o *Orchestrator) WakeFor(name functions.Name, lease time.Duration) string {
	o.mu.Lock()
	f := o.functions[name.WithoutAdapter()]
	ready := f != nil && slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() })
	last := ""
	if ready && f.coldStart != nil {
		last = f.coldStart.ID
	}
	o.mu.Unlock()
	id := o.requestWake(name, 0, lease)
	if ready {
		return last
	}
	return id
}

// randomID returns a random DNS label that begins with prefix, itself a DNS label.
func randomID(prefix string) string {
	var b [6]byte
	rand.Read(b[:])
	if len(prefix) > 50 {
		prefix = strings.TrimRight(prefix[:50], "-")
	}
	return prefix + "-" + hex.EncodeToString(b[:])
}
