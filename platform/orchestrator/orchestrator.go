package orchestrator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/coalesce"
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
	// Cut ends the requests in flight through the lost agent at this URL.
	Cut(agent string)
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
	Epoch     int64    // epoch of this process, see NextEpoch
	Path      DataPath // the activator; nil if Attach sets it
	Catalog   Catalog
	Machine   string           // identity of this host; local sources of the catalogue are its folders
	Here      string           // id of the agent in this process, if there is one
	Token     string           // bearer token for replicas behind remote agents
	Policy    placement.Policy // zero: placement.DefaultPolicy
	Hooks     Hooks
	Foresight *Foresight    // forecasts and prewarming; nil: none
	Ledger    *quota.Ledger // keeps the accounts of teams across restarts; nil: they end with the process
	Log       *slog.Logger

	// Now, NewID, Do and Ring replace time, chance and concurrency. With deterministic
	// ones, the same updates in the same order give the same commands in the same
	// order. Simulators rely on that.
	Now   func() time.Time           // nil: time.Now
	NewID func(prefix string) string // a new DNS label that begins with prefix; nil: random

	// Progress is how often the progress of a cold start is published. 0: 500 ms;
	// negative: only when its state changes.
	Progress time.Duration

	// Do executes a command to a node: it returns at once and calls f later, with a
	// context that ends within limit. nil: a goroutine each, at most 64 at a time.
	Do func(limit time.Duration, f func(context.Context))

	// Ring reports a non-empty inbox. Its owner then calls Turn, but not from within
	// Ring. nil: Run is woken.
	Ring func()
}

// Orchestrator is the control loop. Its methods may be called from any goroutine.
type Orchestrator struct {
	epoch      int64
	path       DataPath
	catalog    Catalog
	machine    string
	here       string
	token      string
	policy     placement.Policy
	hooks      Hooks
	forecaster *forecaster // nil: none
	log        *slog.Logger
	timeNow    func() time.Time
	newID      func(prefix string) string

	progress     time.Duration
	do           func(limit time.Duration, f func(context.Context)) // nil: goroutines
	signalFunc   func()
	began        time.Time // Instants count from here
	commands     sync.WaitGroup
	commandSlots chan struct{} // bounds concurrent commands
	lostAgents   []string      // URLs of lost agents, to be cut after the loss is published
	events       events
	counts       counts

	signalled chan struct{} // wakes Run, unless signalFunc is set

	adapterMu    sync.Mutex
	adapterLoads map[adapterKey]*adapterLoad

	inboxMu    sync.Mutex
	inbox      inbox
	spareInbox inbox                     // the inbox of the current turn; empty between turns
	startIDs   map[functions.Name]string // ids of current cold starts, which Wake returns

	watchMu  sync.Mutex
	watchers map[chan struct{}]struct{}

	mu sync.Mutex // locked by the loop during a turn, and by readers
	world
}

const (
	tick           = time.Second
	wakeLease      = time.Minute // longer than a client's Retry-After of at most 55 s
	commandTimeout = 10 * time.Second
	maxCommands    = 64
	drainPoll      = 20 * time.Millisecond
)

// inbox holds the updates since the last turn, one entry per subject.
type inbox struct {
	wakes          coalesce.Map[functions.Name, wakeRequest]
	nudges         coalesce.Map[functions.Name, struct{}]
	heartbeats     coalesce.Map[string, heartbeat]
	healthReports  coalesce.Map[string, healthReport] // by replica
	loaded         coalesce.Map[string, commandResult]
	unloaded       coalesce.Map[string, commandResult]
	stops          coalesce.Map[functions.Name, struct{}]
	adapterUses    coalesce.Map[adapterKey, struct{}]
	wantedAdapters coalesce.Map[functions.Name, struct{}] // adapters to load before any request
	sleepRefusals  coalesce.Map[string, commandResult]    // refused sleeps and wake-ups
	changed        bool
}

func (in *inbox) clear() {
	in.wakes.Clear()
	in.nudges.Clear()
	in.heartbeats.Clear()
	in.healthReports.Clear()
	in.loaded.Clear()
	in.unloaded.Clear()
	in.stops.Clear()
	in.adapterUses.Clear()
	in.wantedAdapters.Clear()
	in.sleepRefusals.Clear()
	in.changed = false
}

type wakeRequest struct {
	id    string
	at    time.Time
	retry time.Duration // lease that lasts only while requests wait
	held  time.Duration // lease independent of requests
	once  bool          // lease until READY or failed
}

type heartbeat struct {
	message functions.Heartbeat
	node    Node
	at      time.Time
}

type healthReport struct {
	name    functions.Name
	problem string
}

type commandResult struct {
	node string
	at   time.Time
	err  error
}

// New returns an Orchestrator that is not running.
func New(o Options) *Orchestrator {
	s := &Orchestrator{
		epoch: o.Epoch, path: o.Path, catalog: o.Catalog, machine: o.Machine, here: o.Here, token: o.Token,
		policy: o.Policy, hooks: o.Hooks, forecaster: newForecaster(o.Foresight), log: o.Log, timeNow: o.Now, newID: o.NewID, do: o.Do, signalFunc: o.Ring,
		signalled:    make(chan struct{}, 1),
		startIDs:     map[functions.Name]string{},
		commandSlots: make(chan struct{}, maxCommands),
		counts:       newCounts(),
	}
	if s.policy == (placement.Policy{}) {
		s.policy = placement.DefaultPolicy
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.timeNow == nil {
		s.timeNow = time.Now
	}
	if s.newID == nil {
		s.newID = randomID
	}
	if s.progress = o.Progress; s.progress == 0 {
		s.progress = progressEvery
	}
	if s.signalFunc == nil {
		s.signalFunc = s.signalRun
	}
	s.began = s.timeNow().Add(-time.Millisecond) // Instant 0 means never
	s.world = newWorld(s.policy)
	s.accounts = quota.NewAccounts(o.Ledger)
	return s
}

// Attach sets the data path and publishes the functions of the catalogue, so that no
// early request is refused as an unknown model. It is called once, before Run, if the
// data path could only be made after the loop.
func (s *Orchestrator) Attach(path DataPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.path = path
	s.readCatalog(s.now())
	s.publishDirty()
}

// Run runs the loop. It returns nil when ctx ends, after all commands have returned or
// been cancelled. Replicas keep running.
func (s *Orchestrator) Run(ctx context.Context) error {
	commands, cancel := context.WithCancel(ctx)
	defer s.commands.Wait()
	defer cancel()
	s.Changed()
	t := time.NewTicker(tick)
	defer t.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer s.saveHistory(true)
	defer s.saveLedger(true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.signalled:
		case <-t.C:
		case <-timer.C:
		}
		if next := s.Turn(commands); next > 0 {
			timer.Reset(next)
		}
		s.saveHistory(false)
		s.saveLedger(false)
	}
}

func (s *Orchestrator) now() placement.Instant { return s.timeNow().Sub(s.began) }

// instant converts a time of another package. Both carry monotonic readings.
func (s *Orchestrator) instant(t time.Time) placement.Instant {
	if t.IsZero() {
		return 0
	}
	return max(t.Sub(s.began), 1)
}

func (s *Orchestrator) signal() { s.signalFunc() }

func (s *Orchestrator) signalRun() {
	select {
	case s.signalled <- struct{}{}:
	default:
	}
}

func setInMap[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// Wake requests a replica of a function and returns the id of its cold start, the same
// for all callers. It never blocks.
func (s *Orchestrator) Wake(name functions.Name, team string) string {
	return s.requestWake(name, wakeLease, 0)
}

// WakeFor is a Wake with a lease that does not depend on waiters; 0: until the replica
// is READY and its idle time begins. If a replica is READY already, WakeFor returns the
// last cold start ("" if it was adopted). An adapter in name is loaded too.
func (s *Orchestrator) WakeFor(name functions.Name, lease time.Duration) string {
	s.mu.Lock()
	f := s.functions[name.WithoutAdapter()]
	ready := f != nil && slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() })
	last := ""
	if ready && f.coldStart != nil {
		last = f.coldStart.ID
	}
	s.mu.Unlock()
	if name.Adapter != "" {
		s.inboxMu.Lock()
		s.inbox.wantedAdapters.Put(name, struct{}{})
		s.inboxMu.Unlock()
	}
	id := s.requestWake(name, 0, lease)
	if ready {
		return last
	}
	return id
}

func (s *Orchestrator) requestWake(name functions.Name, retry, held time.Duration) string {
	name = name.WithoutAdapter()
	s.inboxMu.Lock()
	id, ok := s.startIDs[name]
	if !ok {
		id = s.newID("cs")
		s.startIDs[name] = id
	}
	w, asked := s.inbox.wakes.Get(name)
	if !asked {
		w = wakeRequest{id: id, at: s.timeNow()}
	}
	w.retry, w.held = max(w.retry, retry), max(w.held, held)
	w.once = w.once || retry == 0
	s.inbox.wakes.Put(name, w)
	s.inboxMu.Unlock()
	s.signal()
	return id
}

// Nudge reports a change of demand that needs a turn now: a queue outgrew its replicas,
// or the last waiter left.
func (s *Orchestrator) Nudge(name functions.Name) {
	s.inboxMu.Lock()
	s.inbox.nudges.Put(name.WithoutAdapter(), struct{}{})
	s.inboxMu.Unlock()
	s.signal()
}

// ReportFailure reports that a replica failed on the data path. Its agent then verifies
// it.
func (s *Orchestrator) ReportFailure(name functions.Name, replica, problem string) {
	s.inboxMu.Lock()
	s.inbox.healthReports.Put(replica, healthReport{name.WithoutAdapter(), problem})
	s.inboxMu.Unlock()
	s.signal()
}

// Heartbeat puts an agent's heartbeat into the inbox, with the Node for commands to it.
func (s *Orchestrator) Heartbeat(hb functions.Heartbeat, node Node) {
	s.inboxMu.Lock()
	s.inbox.heartbeats.Put(hb.AgentID, heartbeat{hb, node, s.timeNow()})
	s.inboxMu.Unlock()
	s.signal()
}

// Changed reports that the catalogue has changed.
func (s *Orchestrator) Changed() {
	s.inboxMu.Lock()
	s.inbox.changed = true
	s.inboxMu.Unlock()
	s.signal()
}

// Stop drains the replicas of a function. Demand or its minimum starts it again.
func (s *Orchestrator) Stop(name functions.Name) {
	s.inboxMu.Lock()
	s.inbox.stops.Put(name.WithoutAdapter(), struct{}{})
	s.inboxMu.Unlock()
	s.signal()
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

// command runs f in a goroutine of its own, bounded in number and time.
func (s *Orchestrator) command(ctx context.Context, f func(ctx context.Context)) {
	s.commandWithin(ctx, commandTimeout, f)
}

func (s *Orchestrator) commandWithin(ctx context.Context, limit time.Duration, f func(ctx context.Context)) {
	if s.do != nil {
		s.do(limit, f)
		return
	}
	s.commands.Go(func() {
		select {
		case s.commandSlots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-s.commandSlots }()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		f(ctx)
	})
}

func (s *Orchestrator) sendLoad(ctx context.Context, id string, n *nodeState, req functions.LoadRequest) {
	to, node := n.commands, n.id
	s.command(ctx, func(ctx context.Context) {
		_, err := to.Load(ctx, req)
		s.inboxMu.Lock()
		s.inbox.loaded.Put(id, commandResult{node, s.timeNow(), err})
		s.inboxMu.Unlock()
		s.signal()
	})
}

func (s *Orchestrator) sendUnload(ctx context.Context, n *nodeState, req functions.UnloadRequest) {
	to, node := n.commands, n.id
	req.Epoch = s.epoch
	s.command(ctx, func(ctx context.Context) {
		err := to.Unload(ctx, req)
		if err != nil && !errors.Is(err, context.Canceled) {
			s.log.Warn("unload refused", "replica", req.ID, "node", node, "error", err)
		}
		s.inboxMu.Lock()
		s.inbox.unloaded.Put(req.ID, commandResult{node, s.timeNow(), err})
		s.inboxMu.Unlock()
		s.signal()
	})
}
