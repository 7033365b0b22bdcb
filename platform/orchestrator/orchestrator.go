package orchestrator

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/orchestrator/events"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/orchestrator/metrics"
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

type Demand = activator.Demand

// DataPath is the part of the activator that the loop calls; the demand comes by the loop's
// Demand. Publish releases waiters during the call. Publish and Remove report the demand that
// they changed before they return: a replica that is published no more has at most the requests
// that the last report counts. No method blocks, or calls back into the loop except for Demand,
// Wake, Nudge and ReportFailure.
type DataPath interface {
	Publish(fs ...snapshot.Snapshot)
	Remove(names ...functions.Name)
	// AbortThrough ends the requests in flight through the lost agent at this URL.
	AbortThrough(agent string)
}

// Catalog lists the functions that exist. The loop reads it again after Changed.
type Catalog interface {
	Models() []*functions.Model
	Teams() []*functions.Team
}

// Options configure an Orchestrator.
type Options struct {
	Epoch     int64    // epoch of this process, higher than that of every earlier one
	Path      DataPath // the activator; nil if Attach sets it
	Catalog   Catalog
	Machine   string                // identity of this host; local sources of the catalogue are its folders
	Here      string                // id of the agent in this process, if there is one
	Alone     func() bool           // no further node may ever come; nil: some may
	Policy    placement.Policy      // zero: placement.DefaultPolicy
	Event     func(functions.Event) // called from the loop, must return at once; may be nil
	Foresight *foresight.Options    // forecasts and prewarming; nil: none
	Ledger    *quota.Ledger         // keeps the accounts of teams across restarts; nil: they end with the process
	Log       *slog.Logger

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

// Orchestrator is the control loop. Its methods may be called from any goroutine.
type Orchestrator struct {
	inbox     inbox
	commands  commander
	signalled newest.Signal // wakes Run, unless Options.OnUpdate is set
	loop      loop
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
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
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
		inbox:     inbox{wallClock: o.Now, newID: o.NewID, signal: o.OnUpdate, startIDs: map[functions.Name]string{}},
		commands:  commander{epoch: o.Epoch, runCommand: o.RunCommand, slots: make(chan struct{}, maxCommands), log: o.Log},
		signalled: signalled,
	}
	w := &world{
		clock:    clock{timeNow: o.Now, began: o.Now().Add(-time.Millisecond)}, // Instant 0 means never
		registry: newRegistry(o.Policy),
		events:   events.New(o.Now, o.Log, o.Event),
		counts:   metrics.New(),
		log:      o.Log,
	}
	s.commands.inbox = &s.inbox
	l := &s.loop
	l.world, l.inbox, l.commands, l.policy, l.alone = w, &s.inbox, &s.commands, o.Policy, o.Alone
	l.adapters = adapters{world: w, commands: l.commands}
	l.publisher = publisher{world: w, path: o.Path, progress: cmp.Or(o.Progress, progressEvery)}
	l.coldStarts = coldStartLog{world: w, inbox: l.inbox}
	l.leadership = leadership{world: w, epoch: o.Epoch, lease: o.Policy.Lease, refuse: l.lifecycle.refuseStart}
	l.sleeping = sleeping{
		world: w, commands: l.commands, leadership: &l.leadership, coldStarts: &l.coldStarts, stop: l.lifecycle.stopReplica,
	}
	l.lifecycle = lifecycle{
		world: w, commands: l.commands, publisher: &l.publisher, leadership: &l.leadership, sleeping: &l.sleeping, coldStarts: &l.coldStarts,
		autoscale: o.Policy.Autoscale, machine: o.Machine, here: o.Here, newID: o.NewID, orphans: map[string]placement.Instant{},
	}
	l.teams = teamAccounts{Accounts: quota.NewAccounts(o.Ledger), keepRestarted: o.Policy.AppliesMinResidency(), world: w}
	l.forecaster = foresight.New(o.Foresight, o.Policy.KeepAlive == placement.Learned, foresightLoop{l}, &s.commands.running, o.Log)
	l.catalog = catalogReader{
		world: w, catalog: o.Catalog, machine: o.Machine, publisher: &l.publisher, teams: &l.teams, forecaster: l.forecaster,
		coldStarts: &l.coldStarts,
	}
	return s
}

// Attach sets the data path and publishes the functions of the catalogue, so that no
// early request is refused as an unknown model. It is called once, before Run, if the
// data path could only be made after the loop.
func (o *Orchestrator) Attach(path DataPath) {
	o.loop.Lock()
	defer o.loop.Unlock()
	o.loop.publisher.path = path
	o.loop.catalog.read(o.loop.now())
	o.loop.publisher.publishChanged()
}

// Run runs the loop. It returns nil when ctx ends, after all commands have returned or
// been cancelled. Replicas keep running.
func (o *Orchestrator) Run(ctx context.Context) error {
	commands, cancel := context.WithCancel(ctx)
	defer o.loop.forecaster.Save(true) // after the last background write
	defer o.loop.teams.save(true)
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
		o.loop.forecaster.Save(false)
		o.loop.teams.save(false)
	}
}

// WakeFor is a Wake with a lease that does not depend on waiters; 0: until the replica
// is READY and its idle time begins. It ends the pause after failed starts. If a replica is READY already, WakeFor returns the
// last cold start ("" if it was adopted). An adapter in name is loaded too.
func (o *Orchestrator) WakeFor(name functions.Name, lease time.Duration) string {
	o.loop.Lock()
	f := o.loop.functions[name.WithoutAdapter()]
	ready, last := f != nil && f.serving() > 0, ""
	if ready && f.coldStart != nil {
		last = f.coldStart.ID
	}
	o.loop.Unlock()
	if id := o.inbox.requestWake(name, 0, lease); !ready {
		return id
	}
	return last
}

// randomID returns a random DNS label that begins with prefix, itself a DNS label.
func randomID(prefix string) string {
	if len(prefix) > 50 {
		prefix = strings.TrimRight(prefix[:50], "-")
	}
	return prefix + "-" + strings.ToLower(rand.Text()[:12])
}
