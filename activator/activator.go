package activator

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/adapteruse"
	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/coldstarts"
	"github.com/thaw-dev/thaw/activator/demand"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/metrics"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/refusals"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/activator/sharedrun"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/suspects"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/activator/usageoption"
	"github.com/thaw-dev/thaw/activator/waiters"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Waker is what the activator needs of the platform. Its methods do not block, may be
// called concurrently and more often than needed, and must not call back into the
// activator before they return.
type Waker interface {
	// Demand reports the demand for functions: whatever has changed before a Wake and a Nudge,
	// before Publish and Remove return, and soon after any other change, also to nothing. A later
	// report of a function replaces an earlier one.
	Demand(ds ...Demand)
	// Wake requests a first replica because a request waits, or was refused and will
	// be retried. It returns the id of the cold start under way or begun, "" where
	// there is none.
	Wake(name functions.Name) (coldStartID string)
	// Nudge reports a change of demand that may need a decision: the queue grew past
	// the slots of the replicas, or the last waiting request left.
	Nudge(name functions.Name)
	// ReportFailure reports a replica that failed a request, so that the platform
	// verifies it.
	ReportFailure(name functions.Name, replicaID, problem string)
}

// Adapters loads adapters into replicas, through the platform.
type Adapters interface {
	// LoadAdapter returns when the replica has the adapter, however many requests ask
	// at once, or when ctx ends. A *functions.AdapterError: it cannot be loaded.
	LoadAdapter(ctx context.Context, name functions.Name, replicaID string) error
	// UseAdapter reports the use of a loaded adapter, so that another is evicted where
	// memory is needed. It does not block.
	UseAdapter(name functions.Name, replicaID string)
}

// HoldMode is what a plain (not streamed) request gets while it waits.
type HoldMode string

const (
	HoldSilent HoldMode = "hold" // silence until the answer; the default
	HoldPad    HoldMode = "pad"  // 200 and newlines after PadAfter; a failure then aborts
	Hold503    HoldMode = "503"  // model_loading at once, and the model is woken
)

// Options of an activator. Waker, Keys and Engines must be set; each other field has
// the default named.
type Options struct {
	Waker   Waker
	Keys    *auth.KeyStore
	Engines *upstream.Client
	// Limits of the teams; nil: there are none.
	Limits *ratelimit.Limits
	// Adapters loads adapters on demand; nil: engines have theirs from the start.
	Adapters Adapters
	// Remotes sends requests to Remotes; nil: no snapshot is one of a Remote.
	Remotes *remote.Remotes
	// Cache holds answers; nil: none are kept.
	Cache *cache.Store
	// Open lets /v1 be used without a key until the first key exists. For
	// loopback only.
	Open bool
	// Hold is what a plain request gets while it waits; "hold".
	Hold   HoldMode
	Timing Timing
	// KeyRequests bounds the requests under way of each key, and so the connections that it
	// uses from whatever addresses; nil: unbounded.
	KeyRequests *httpserver.Budget
	// BufferBytes bounds the bodies held by all queues together; 1 GiB.
	BufferBytes int64
	// Metrics makes the series of counters and histograms; nil: nothing is counted.
	Metrics Metrics
	// Log gets one line per request; nil is silence.
	Log *slog.Logger
	// OnFirstByte, which may be nil, is called once per cold start with the time of its
	// first request from a READY replica to the engine's first byte.
	OnFirstByte func(name functions.Name, coldStartID string, took time.Duration)
	// Prewarm starts a function that a Router's policy "hedge" did not wait for, under a
	// lease on the team's budget; nil: none is started. It does not wait for the start.
	Prewarm func(name functions.Name, until time.Time, by string) error
	// Stage stages the bytes of a model that a Composition asks later; nil: none are. It does
	// not wait.
	Stage func(name functions.Name, by string) error
	// GPUHourPrice is what an hour of a GPU costs in Currency, of models without a price; 0:
	// unknown.
	GPUHourPrice float64
	Currency     string
	// Packing is that of [compositions.Options], for Compositions whose members take turns; nil:
	// all models fit together.
	Packing func() func(functions.Name) bool
	// Release is that of [compositions.Options].
	Release func(name functions.Name)
	// Random returns a number from 0 to below n, which chooses a function of an alias;
	// that of math/rand/v2.
	Random func(n int) int
	// Now is the clock; time.Now.
	Now func() time.Time
}

// Timing has the bounds and periods of a request's wait and answer; 0 is the default named.
type Timing struct {
	// Silent is how long a stream waits before its 200 goes out; 3 s. Until
	// then an error is a real HTTP error.
	Silent time.Duration
	// Comment is the period of comments on a held stream; 4 s, because
	// httpx gives up after 5 s without a byte. Each client's is jittered.
	Comment time.Duration
	// Noop is the period of no-op data chunks on a held stream; 45 s.
	Noop time.Duration
	// PlainWait bounds the wait of a plain request; 290 s, because Node gives
	// up after 300 s without a head.
	PlainWait time.Duration
	// PadAfter and PadEvery are those of HoldPad; 20 s and 15 s.
	PadAfter, PadEvery time.Duration
	// StreamIdle bounds the silence between two pieces of a stream; 5 min.
	// The runtime finds a hung engine much sooner; this is the last bound.
	StreamIdle time.Duration
	// PlainAnswer bounds the generation of a plain answer; 1 h.
	PlainAnswer time.Duration
}

func (o Options) withDefaults() Options {
	t := &o.Timing
	t.Silent = cmp.Or(t.Silent, 3*time.Second)
	t.Comment = cmp.Or(t.Comment, 4*time.Second)
	t.Noop = cmp.Or(t.Noop, 45*time.Second)
	t.PlainWait = cmp.Or(t.PlainWait, 290*time.Second)
	t.PadAfter = cmp.Or(t.PadAfter, 20*time.Second)
	t.PadEvery = cmp.Or(t.PadEvery, 15*time.Second)
	t.StreamIdle = cmp.Or(t.StreamIdle, 5*time.Minute)
	t.PlainAnswer = cmp.Or(t.PlainAnswer, time.Hour)
	o.Limits = cmp.Or(o.Limits, &ratelimit.Limits{})
	o.Hold = cmp.Or(o.Hold, HoldSilent)
	o.BufferBytes = cmp.Or(o.BufferBytes, 1<<30)
	o.Metrics = cmp.Or[Metrics](o.Metrics, metrics.Nothing{})
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Random == nil {
		o.Random = rand.IntN
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Activator is the data path. Its methods may be called concurrently.
type Activator struct {
	o          Options
	names      names
	prewarms   routes.Prewarms
	stagings   routes.Prewarms
	decisions  routes.Log
	changed    demand.Changes[*function]
	reporting  sync.Mutex // see reportDemand
	waiting    waiters.Index[*wait]
	coldStarts coldstarts.Records
	runs       *sharedrun.Table[runKey]
	suspects   suspects.Table[fingerprint]
	buffers    answer.Buffers
	usages     usageoption.Table
	removed    demand.Removed
	refusals   refusals.Log
	draining   atomic.Bool
	buffered   atomic.Int64 // bytes of bodies in all queues
}

// entry is a function in the table, with the data path's own state of it.
type entry = snapshot.Entry[function]

// function is the state of the data path per function. Idle, it is a few hundred
// bytes: there may be ten thousand.
type function struct {
	queue   admission.Queue
	self    *entry
	changed *demand.Changes[*function]
	metrics atomic.Pointer[metrics.Function] // resolved at the first request
	uses    adapteruse.Table
	pace    routes.Pace
}

// New makes an activator; it starts nothing.
func New(o Options) *Activator {
	a := &Activator{o: o.withDefaults()}
	a.names.o, a.names.families = &a.o, routes.NewFamilies()
	a.prewarms.Start = o.Prewarm
	if o.Stage != nil {
		a.stagings.Start = func(name functions.Name, _ time.Time, by string) error { return o.Stage(name, by) }
	}
	a.names.compositions = a.newCompositions()
	a.decisions.Scored = func(r functions.RouteRecord, team string, score float64) {
		a.o.Metrics.Series("thaw_route_outcomes", r.Router, team, r.Rule, r.Target)(score)
	}
	due := time.AfterFunc(reportEvery, a.reportDemand)
	due.Stop()
	a.changed.Notify = func() { due.Reset(reportEvery) }
	a.names.table = snapshot.NewTable(func(e *entry) {
		e.Data.self, e.Data.changed, e.Data.queue.Demand = e, &a.changed, &e.Data
	})
	a.runs = sharedrun.NewTable(func(k runKey) uint64 { return k.body.Sum() })
	return a
}

// Publish adds or replaces snapshots of functions. Waiting requests that a new READY
// replica has slots for are admitted, and those of a failed start rejected, before it
// returns, and the demand is reported: a replica that is in no snapshot any more gets no request that
// is not in the report.
func (a *Activator) Publish(fs ...snapshot.Snapshot) {
	a.names.table.Put(a.onPublish, fs...)
	a.reportDemand()
}

func (a *Activator) onPublish(e *entry, before *snapshot.Snapshot) {
	f, q := e.Snapshot(), &e.Data.queue
	q.Publish(before, f, a.o.Now())
	a.o.Cache.Publish(f)
	if before == nil {
		return
	}
	metrics.ObserveColdStart(a.o.Metrics, before, f)
	if before.State != f.State || len(before.Replicas) != len(f.Replicas) ||
		!slices.EqualFunc(before.EarlyReplicas, f.EarlyReplicas, sameEndpoint) {
		q.Broadcast()
	}
}

func sameEndpoint(a, b snapshot.Replica) bool { return a.ID == b.ID && a.Endpoint == b.Endpoint }

// Remove removes functions and rejects the requests that wait for them.
func (a *Activator) Remove(names ...functions.Name) {
	a.names.table.Remove(func(e *entry) {
		public := e.Snapshot().PublicName()
		e.Data.queue.Close(public)
		a.removed.Add(e.Name, &e.Data.queue, a.o.Now())
		a.o.Cache.Purge(e.Name)
		named := func(other *entry) bool { return other.Snapshot().PublicName() == public }
		if public == e.Name || !slices.ContainsFunc(a.names.table.Team(public.Team), named) { // else the series are another's, too
			e.Data.metrics.Store(metrics.New(metrics.Nothing{}, public)) // of requests that end later
			a.o.Metrics.Forget(public.Name, public.Team)
		}
	}, names...)
	a.reportDemand()
}

// DemandOf is the demand for a function, without that of its replicas; false where there is no such
// function.
func (a *Activator) DemandOf(name functions.Name) (Demand, bool) {
	e := a.names.table.Lookup(name)
	if e == nil {
		return Demand{}, false
	}
	l := e.Data.queue.Load(a.o.Now())
	return Demand{Name: e.Name, Active: l.Active, Queued: l.Queued, Oldest: l.Oldest, LastEnd: l.LastEnd}, true
}

// AbortThrough ends the requests in flight through the agent at this URL, which the platform
// has given up: it may be frozen, and a plain answer may take an hour. They fail as if
// their engine had died, so those without a byte go to another replica. Engines on
// this machine, which are reached without their agent, are not affected.
func (a *Activator) AbortThrough(agent string) { a.o.Engines.AbortThrough(agent) }

// Traffic is what the requests to an engine that is reached without its agent show of it.
func (a *Activator) Traffic(engine string) functions.Traffic { return a.o.Engines.Traffic(engine) }

// InFlightOf is how many requests a replica of a function has from this activator,
// also one that is in its snapshot no more, and one of a function that was removed.
func (a *Activator) InFlightOf(name functions.Name, replicaID string) int {
	if e := a.names.table.Lookup(name); e != nil {
		return e.Data.queue.InFlight(replicaID)
	}
	return a.removed.InFlight(name, replicaID)
}

// ColdStartOf is the cold start a recent request took part in. id is the
// request's, or the client's own from X-Client-Request-Id.
func (a *Activator) ColdStartOf(id string) (coldStartID string, ok bool) { return a.coldStarts.Of(id) }

// WithFirstTokenPhase adds what only the data path knows to a timeline of the platform's: the phase
// from READY to the engine's first byte, and the first request.
func (a *Activator) WithFirstTokenPhase(t functions.Timeline) functions.Timeline {
	return a.coldStarts.WithFirstTokenPhase(t)
}

// Position of a waiting request: 1 is the next; false where no such request waits. id
// is as in ColdStartOf.
func (a *Activator) Position(id string) (position int, name functions.Name, ok bool) {
	w, ok := a.waiting.Find(id)
	if !ok {
		return 0, functions.Name{}, false
	}
	position = w.req.fn.Data.queue.Position(&w.queued)
	return position, w.req.fn.Name, position > 0
}

// Drain answers waiting requests, and later ones that would have to wait, with 503
// shutting_down, and returns when all have been answered or ctx ends. Requests at an
// engine go on.
func (a *Activator) Drain(ctx context.Context) {
	a.draining.Store(true)
	for _, e := range a.names.table.All() {
		e.Data.queue.RejectAll(openai.New(openai.ShuttingDown, ""))
	}
	select {
	case <-a.waiting.Drained():
	case <-ctx.Done():
	}
}
