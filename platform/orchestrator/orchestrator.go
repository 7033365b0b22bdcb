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

// Node is an agent as the loop commands it. Both methods are idempotent by the
// replica's id, return functions.ErrStaleEpoch for a superseded epoch, and are called
// from any goroutine with a context that ends.
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

// DataPath is the activator as the loop needs it. Publish releases waiters in
// the call; none of the methods blocks or calls back into the loop but for Wake,
// Nudge and Ask.
type DataPath interface {
	Publish(fs ...snapshot.Snapshot)
	Remove(names ...functions.Name)
	// Demand yields the functions whose demand, or the requests in flight at one
	// of their replicas, may have changed since the last call, also to
	// none; with all also every other function that has requests.
	Demand(all bool, yield func(Demand) bool)
	InFlightOf(name functions.Name, replica string) int
	// Cut ends what is in flight through the agent at this URL, which is lost.
	Cut(agent string)
}

// Catalog lists the functions that exist. The loop reads it again after Changed.
type Catalog interface {
	Models() []*functions.Model
	Teams() []*functions.Team
}

// Hooks are called from the loop and must return at once. Any may be nil.
type Hooks struct {
	ColdStart func(functions.Timeline) // one has ended, ready or failed
	Event     func(functions.Event)
}

// Options of an Orchestrator.
type Options struct {
	Epoch     int64    // of this life, see NextEpoch
	Path      DataPath // the activator; nil if it is told by Attach
	Catalog   Catalog
	Machine   string           // identity of this host: local sources of the catalogue are its folders
	Here      string           // id of the agent in this process, if there is one
	Token     string           // bearer for replicas behind remote agents
	Policy    placement.Policy // zero: placement.DefaultPolicy
	Hooks     Hooks
	Foresight *Foresight    // looks ahead; nil: nothing is learned of when functions are used
	Ledger    *quota.Ledger // where the accounts of teams outlive this life; nil: they do not
	Log       *slog.Logger

	// Time, chance and concurrency come from outside where they are given: with
	// the same of them, and the same news in the same order, the loop gives the
	// same commands in the same order. A simulator rests on that.
	Now   func() time.Time           // nil: time.Now
	NewID func(prefix string) string // a new DNS label that begins as prefix does; nil: random

	// Progress is how often the picture of a cold start under way is drawn anew.
	// 0: 500 ms; negative: only when its state changes.
	Progress time.Duration

	// Do carries out a command to a node: it returns at once, and f is called
	// later, with a context that ends within limit. nil: a goroutine each, at most
	// 64 at a time.
	Do func(limit time.Duration, f func(context.Context))

	// Ring reports news. Its owner then calls Turn, though not from within Ring.
	// nil: Run is woken.
	Ring func()
}

// Orchestrator is the loop. Its methods may be called from any goroutine.
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
	commandSlots chan struct{} // bounds commands under way
	lostAgents   []string      // URLs of agents given up, to be cut once that is published
	events       events
	counts       counts

	signalled chan struct{} // of Run, where it is the one to be woken

	adapterMu    sync.Mutex
	adapterLoads map[adapterKey]*adapterLoad

	inboxMu    sync.Mutex
	inbox      inbox
	spareInbox inbox                     // the loop's: what a turn goes through, empty in between
	startIDs   map[functions.Name]string // cold starts under way, by function: what Wake answers

	watchMu  sync.Mutex
	watchers map[chan struct{}]struct{}

	mu sync.Mutex // held by the loop for a turn, and by readers
	world
}

const (
	tick           = time.Second
	wakeLease      = time.Minute // a wake holds for its retry: Retry-After is at most 55 s
	commandTimeout = 10 * time.Second
	maxCommands    = 64
	drainPoll      = 20 * time.Millisecond
)

// inbox holds the news since the last turn, one entry per subject.
type inbox struct {
	wakes          coalesce.Map[functions.Name, wakeRequest]
	nudges         coalesce.Map[functions.Name, struct{}]
	heartbeats     coalesce.Map[string, heartbeat]
	healthReports  coalesce.Map[string, healthReport] // by replica
	loaded         coalesce.Map[string, commandResult]
	unloaded       coalesce.Map[string, commandResult]
	stops          coalesce.Map[functions.Name, struct{}]
	adapterUses    coalesce.Map[adapterKey, struct{}]
	wantedAdapters coalesce.Map[functions.Name, struct{}] // adapters, ahead of any request
	sleepRefusals  coalesce.Map[string, commandResult]    // sleeps and rises refused
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
	retry time.Duration // lasts while requests wait
	held  time.Duration // lasts
	once  bool          // lasts until READY or failed
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

// New returns a loop that has not begun.
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

// Attach sets the data path, which needs the loop to be made, and publishes the
// functions of the catalogue, so that no early request is answered with an unknown
// model. It is called once, before Run.
func (s *Orchestrator) Attach(path DataPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.path = path
	s.readCatalog(s.now())
	s.publishDirty()
}

// Run is the loop. It returns nil when ctx ends, after the commands under way have
// returned or been cancelled. Replicas go on running.
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

// instant converts a time that another package noted. Both carry monotonic readings.
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

// Wake asks for a replica of a function and returns the id of its cold start, one for
// all callers. It never blocks.
func (s *Orchestrator) Wake(name functions.Name, team string) string {
	return s.requestWake(name, wakeLease, 0)
}

// WakeFor is a wake with a lease that does not depend on waiters; 0: until the replica
// is READY, from when its idle time counts. If one is READY already, the cold start is
// the last one ("" if it was adopted). An adapter in name is loaded too.
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

// Nudge reports a change of demand that is worth a turn: a queue outgrew its replicas,
// or the last waiter left.
func (s *Orchestrator) Nudge(name functions.Name) {
	s.inboxMu.Lock()
	s.inbox.nudges.Put(name.WithoutAdapter(), struct{}{})
	s.inboxMu.Unlock()
	s.signal()
}

// ReportFailure reports that a replica failed on the data path: its agent is asked to
// verify it.
func (s *Orchestrator) ReportFailure(name functions.Name, replica, problem string) {
	s.inboxMu.Lock()
	s.inbox.healthReports.Put(replica, healthReport{name.WithoutAdapter(), problem})
	s.inboxMu.Unlock()
	s.signal()
}

// Heartbeat passes on the heartbeat of an agent, and how to command it.
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

// randomID is a DNS label that begins as prefix, which is one too.
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
