package activator

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Waker is what the activator asks of the platform. None of it blocks, all of
// it may be called concurrently and more often than needed, and none of it may
// call back into the activator before it returns.
type Waker interface {
	// Wake asks for a first replica because a request waits, or was refused
	// because it would not wait long enough and will come again. It returns
	// the id of the cold start under way or begun, "" where there is none.
	Wake(name functions.Name, team string) (coldStartID string)
	// Nudge says that demand changed in a way worth a look: the queue grew
	// past what the replicas take, or nobody waits any more.
	Nudge(name functions.Name)
	// ReportFailure says that a replica broke on us, so that the platform verifies it.
	ReportFailure(name functions.Name, replicaID, problem string)
}

// Adapters has the platform load a model's adapter into one of its replicas.
type Adapters interface {
	// LoadAdapter returns when the replica has it, however many ask at once, or
	// with ctx. A *functions.AdapterError says that it cannot be had.
	LoadAdapter(ctx context.Context, name functions.Name, replicaID string) error
	// UseAdapter says that a loaded one is in use, so that another makes way
	// where room is needed. It does not block.
	UseAdapter(name functions.Name, replicaID string)
}

// HoldMode is what a plain (not streamed) request gets while it waits.
type HoldMode string

// The hold modes.
const (
	HoldSilent HoldMode = "hold" // silence until the answer; the default
	HoldPad    HoldMode = "pad"  // 200 and newlines after PadAfter; a failure then aborts
	Hold503    HoldMode = "503"  // model_loading at once, and the model is woken
)

// Options of an activator. Waker, Who and Engines must be set; the zero value
// of everything else is the default named.
type Options struct {
	Waker   Waker
	Who     *auth.KeyStore
	Engines *upstream.Client
	// Adapters loads what a request for an adapter finds not loaded; nil: engines
	// have theirs from the start.
	Adapters Adapters
	// Open lets /v1 be used without a key until the first key exists. For
	// loopback only.
	Open bool
	// Hold is what a plain request gets while it waits; "hold".
	Hold HoldMode
	// Silent is how long a stream waits before its 200 goes out; 3 s. Until
	// then an error is a real HTTP error.
	Silent time.Duration
	// Comment is the period of comments on a held stream; 10 s. Each client's
	// is jittered.
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
	// BufferBytes bounds the bodies held by all gates together; 1 GiB.
	BufferBytes int64
	// Metrics is where the metrics are registered; nil is nowhere.
	Metrics prometheus.Registerer
	// Log gets one line per request; nil is silence.
	Log *slog.Logger
	// LogLevel is the level of that line; slog.LevelInfo.
	LogLevel slog.Level
	// FirstToken, which may be nil, is told once per cold start how long its
	// first request took from a READY replica to the engine's first byte.
	FirstToken func(name functions.Name, coldStartID string, took time.Duration)
	// DemandChanged, which may be nil, is told that Demand has something to yield: once,
	// and again only after Demand was called. It may be told with locks held; it
	// notes it and returns.
	DemandChanged func()
	// Random is a number from 0 to below n, by which a request for an alias goes to
	// one of its functions; that of math/rand/v2.
	Random func(n int) int
	// Now is the clock; time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Silent, 3*time.Second)
	def(&o.Comment, 10*time.Second)
	def(&o.Noop, 45*time.Second)
	def(&o.PlainWait, 290*time.Second)
	def(&o.PadAfter, 20*time.Second)
	def(&o.PadEvery, 15*time.Second)
	def(&o.StreamIdle, 5*time.Minute)
	def(&o.PlainAnswer, time.Hour)
	if o.Hold == "" {
		o.Hold = HoldSilent
	}
	if o.BufferBytes <= 0 {
		o.BufferBytes = 1 << 30
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
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
	o        Options
	table    *snapshot.Table[function]
	aliases  atomic.Pointer[aliases] // nil: there are none
	changed  changedFunctions
	metrics  *metrics
	requests requestIndex
	buffers  buffers
	homes    sync.Map // replica id to its *entry, also of one that ends with requests in flight
	draining atomic.Bool
	buffered atomic.Int64 // bytes of bodies in all gates
}

// entry is a function and what the data path keeps of it.
type entry = snapshot.Entry[function]

// function is what the data path keeps per function. Idle, it is a few hundred
// bytes: there may be ten thousand.
type function struct {
	Lobby
	self    *entry
	changed *changedFunctions
	metrics atomic.Pointer[functionMetrics] // metrics, resolved at the first request
	uses    adapterUses
}

// New makes an activator; it starts nothing.
func New(o Options) *Activator {
	a := &Activator{o: o.withDefaults()}
	a.changed.notify = a.o.DemandChanged
	a.table = snapshot.NewTable(func(e *entry) {
		e.Data.self, e.Data.changed, e.Data.News = e, &a.changed, &e.Data
	})
	a.requests.init()
	a.metrics = newMetrics(a)
	return a
}

// Publish adds or replaces pictures of functions. Waiters that a new READY
// replica has slots for are let through, and waiters of a failed start told,
// before it returns.
func (a *Activator) Publish(fs ...snapshot.Snapshot) {
	a.table.Put(a.onPublish, fs...)
}

func (a *Activator) onPublish(e *entry, before *snapshot.Snapshot) {
	f, own := e.Snapshot(), &e.Data
	if before != nil || len(f.Replicas) > 0 {
		a.rehome(e, before, f)
	}
	own.Lobby.Publish(before, f, a.o.Now())
	if before == nil {
		return
	}
	a.metrics.observeColdStart(e, before, f)
	if before.State != f.State || len(before.Replicas) != len(f.Replicas) || !slices.EqualFunc(before.NotReadyEndpoints, f.NotReadyEndpoints, sameEndpoint) {
		own.gate.Tell()
	}
}

func sameEndpoint(a, b snapshot.Replica) bool { return a.ID == b.ID && a.Endpoint == b.Endpoint }

// recap tells the gate what the replicas take, some of them broken maybe.
func (a *Activator) recap(e *entry) {
	e.Data.Recap(a.o.Now())
}

// Remove takes functions out. Who waits for one is told that it is gone.
func (a *Activator) Remove(names ...functions.Name) {
	a.table.Remove(func(e *entry) {
		e.Data.Close(e.Snapshot().PublicName())
		a.rehome(e, e.Snapshot(), &snapshot.Snapshot{})
		a.metrics.forget(e)
	}, names...)
}

// DemandOf is Demand of one function; false where there is no such function.
func (a *Activator) DemandOf(name functions.Name) (Demand, bool) {
	e := a.table.Lookup(name)
	if e == nil {
		return Demand{}, false
	}
	l := e.Data.gate.Load()
	return Demand{Name: e.Name, Active: l.Active, Queued: l.Queued, Oldest: l.Oldest, LastEnd: l.LastEnd}, true
}

// Cut ends what is in flight through the agent at this URL, which the platform
// has given up: it may be frozen, or cut off without a word, and a plain answer
// is waited for up to an hour. Requests fail as if their engine had died, so
// those without a byte go to another replica. Engines on this machine, which
// are reached without their agent, go on.
func (a *Activator) Cut(agent string) {
	if addr, _ := splitEndpoint(agent); addr != "" {
		a.o.Engines.Cut(addr)
	}
}

// InFlightOf is InFlight where the caller knows whose replica it is.
func (a *Activator) InFlightOf(name functions.Name, replicaID string) int {
	e := a.table.Lookup(name)
	if e == nil {
		return a.InFlight(replicaID) // taken out, with requests still under way
	}
	return e.Data.set.InFlight(replicaID)
}

// EachInFlight yields each replica of a function that has requests from us, and how many:
// also those that are in its picture no more, or not yet. Nothing is yielded for a
// function that was taken out; see InFlight.
func (a *Activator) EachInFlight(name functions.Name, yield func(replicaID string, n int)) {
	if e := a.table.Lookup(name); e != nil {
		e.Data.set.Flights(yield)
	}
}

// rehome keeps account of whose a replica is.
func (a *Activator) rehome(e *entry, before, f *snapshot.Snapshot) {
	for i := range f.Replicas {
		if id := f.Replicas[i].ID; before == nil || !before.HasReplica(id) {
			a.homes.Store(id, e)
		}
	}
	if before == nil {
		return
	}
	for i := range before.Replicas {
		if id := before.Replicas[i].ID; !f.HasReplica(id) && e.Data.set.InFlight(id) == 0 {
			a.homes.Delete(id)
		}
	}
}

// InFlight is how many requests a replica has from us now.
func (a *Activator) InFlight(replicaID string) int {
	v, ok := a.homes.Load(replicaID)
	if !ok {
		return 0
	}
	e := v.(*entry)
	n := e.Data.set.InFlight(replicaID)
	if n == 0 && (e.Removed() || !e.Snapshot().HasReplica(replicaID)) {
		a.homes.CompareAndDelete(replicaID, v)
	}
	return n
}

// ColdStartOf is the cold start a recent request took part in. id is the
// request's, or the client's own from X-Client-Request-Id.
func (a *Activator) ColdStartOf(id string) (coldStartID string, ok bool) {
	return a.requests.coldStart(id)
}

// Complete adds the phase that only the data path sees, the time from READY to
// the engine's first byte, to a timeline of the platform's.
func (a *Activator) Complete(t functions.Timeline) functions.Timeline {
	took, ok := a.requests.firstToken(t.ID)
	if !ok || t.State != functions.Ready {
		return t
	}
	for _, p := range t.Phases {
		if p.Phase == functions.PhaseFirstToken {
			return t
		}
	}
	t.Phases = append(slices.Clone(t.Phases), functions.Span{Phase: functions.PhaseFirstToken, Start: t.Total, Duration: took.Seconds()})
	return t
}

// Position of a request that waits: one for the next to be let through; false
// where no such request waits. id is as in ColdStartOf.
func (a *Activator) Position(id string) (position int, name functions.Name, ok bool) {
	x := a.requests.waiter(id)
	if x == nil {
		return 0, functions.Name{}, false
	}
	p := x.fn.Data.gate.Position(&x.place)
	return p, x.fn.Name, p > 0
}

// Drain answers the requests that wait, and those that would have to from now
// on, with 503 shutting_down, and returns when all have been told or ctx ends.
// Requests that an engine has are left alone.
func (a *Activator) Drain(ctx context.Context) {
	a.draining.Store(true)
	for _, e := range a.table.All() {
		e.Data.Turn(openai.New(openai.ShuttingDown, ""))
	}
	select {
	case <-a.requests.drained():
	case <-ctx.Done():
	}
}
