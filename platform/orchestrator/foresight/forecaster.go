package foresight

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
)

const (
	byHistory       = "history"
	reforecastEvery = 15 * time.Second // shortest time between forecasts of an idle function
)

type Function interface {
	Planned() *placement.Function // as the planner reads it
	Usage() *Usage
	Model() *functions.Model // nil: its file was never read
	// Starts are the measured starts, and the hash of the settings that they were measured with.
	Starts() (measured *forecast.StartTimes, specHash uint64)
	// Ahead describes its replicas: whether it has any, whether one starts or serves and
	// neither stops nor sleeps, and whether one serves.
	Ahead() (any, started, ready bool)
}

// Loop is the control loop that a Forecaster is part of. Its lock is held in every call of
// the Forecaster but Save.
type Loop interface {
	sync.Locker
	Now() placement.Instant
	Instant(t time.Time) placement.Instant
	WallTime(t placement.Instant) time.Time
	Function(name functions.Name) Function // nil: there is none
	Functions(yield func(Function) bool)   // in an order that is the same for the same updates
	StartTime(f Function) time.Duration    // the usual time to READY; not above 0: unknown
	FunctionChanged(f Function)            // the planner evaluates it again
	Event(kind string, name functions.Name, reason, message string)
	Count(metric string, value float64, labels ...string)
	// Run runs f in the background, with a context that ends within limit.
	Run(ctx context.Context, limit time.Duration, f func(context.Context))
	NewID(prefix string) string
}

// Forecaster records the uses of functions and forecasts the next ones. It keeps its
// history in a file, and prewarms functions ahead of uses. A nil Forecaster counts uses
// and does nothing else.
type Forecaster struct {
	Options
	learned       bool // idle functions are kept by their forecasts
	prewarmer     prewarmer
	idleFunctions orderedset.Set[Function] // idle functions with replicas, whose forecasts are renewed
	nextAsk       time.Time                // next call of History.Ahead; zero: after the next use
	asked         bool                     // History.Ahead was called since the last use

	restored map[functions.Name]forecast.SavedStarts // starts of an earlier process, until their function is in the catalogue
	saved    placement.Instant
	saving   bool

	loop    Loop
	log     *slog.Logger
	running *sync.WaitGroup // of writes of the file
}

// Usage is the forecasting state of one function.
type Usage struct {
	inUse        bool
	lastUse      placement.Instant // the last use recorded in the history
	low          bool              // only requests of priority low when RecordUse was called last
	nextForecast placement.Instant // time of its next forecast
	prewarm      *prewarm          // its lease of tier gpu
}

// New returns the Forecaster of a loop, nil where o is nil. learned: idle functions are kept
// by their forecasts. Writes of the file are counted in running.
func New(o *Options, learned bool, loop Loop, running *sync.WaitGroup, log *slog.Logger) *Forecaster {
	if o == nil {
		return nil
	}
	return &Forecaster{
		Options: *o, restored: o.starts, learned: learned, loop: loop, log: log, running: running,
		prewarmer: prewarmer{
			budgets:  forecast.NewBudgets(cmp.Or(max(o.Budget, 0), time.Hour), cmp.Or(max(o.Teams, 0), 4)),
			prefetch: o.Prefetch, loop: loop, log: log,
		},
	}
}

// RecordUse records begins and ends of uses of a function in the history. It is called for every
// changed function, before planning. Without a Forecaster only its Uses counts them.
func (f *Forecaster) RecordUse(x Function, now placement.Instant) {
	u, function := x.Usage(), x.Planned()
	low := function.OnlyLow()
	in := function.Active+function.Queued > 0 && !low
	if low || u.low && !in { // requests of priority low are no use that comes again
		u.lastUse = max(u.lastUse, function.LastEnd)
	}
	u.low = low
	missed := !in && !u.inUse && function.LastEnd > u.lastUse // a use began and ended since the last call
	if in && !u.inUse || missed {
		at := now
		if in && function.Oldest > 0 {
			at = function.Oldest
		} else if missed {
			at = function.LastEnd
		}
		function.Uses, function.UsesAt = decayedUses(function, at)+1, at
		if f != nil {
			f.History.Begin(function.Name, f.loop.WallTime(at))
			function.Uses = max(function.Uses, f.History.Uses(function.Name, f.loop.WallTime(at))) // the history may include an earlier process
			f.prewarmer.onUse(x, now)
		}
		u.inUse = true
	}
	if !in && u.inUse {
		u.inUse = false
		u.lastUse = max(function.LastEnd, u.lastUse)
		if f != nil {
			f.History.End(function.Name, f.loop.WallTime(u.lastUse))
			f.asked = false
			f.updateForecast(x, now)
		}
	}
	if f == nil || u.inUse || function.Gone {
		return
	}
	if hasReplicas, _, _ := x.Ahead(); hasReplicas {
		f.idleFunctions.Add(x)
	}
}

// decayedUses is the count of f's uses in the form that package placement reads.
func decayedUses(f *placement.Function, now placement.Instant) float64 {
	if f.Uses == 0 || now <= f.UsesAt {
		return f.Uses
	}
	return f.Uses * math.Exp(-float64(now-f.UsesAt)/float64(eviction.UsesDecay))
}

func (f *Forecaster) updateForecast(x Function, now placement.Instant) {
	h, u, function := f.History, x.Usage(), x.Planned()
	function.NextUse = 0
	at, _ := h.NextUse(function.Name, f.loop.WallTime(now))
	if f.Next != nil {
		at = f.Next(function.Name, f.loop.WallTime(now))
	}
	if !at.IsZero() {
		function.NextUse = max(f.loop.Instant(at), 1)
	}
	function.KeepFor = 0
	if w, ok := f.worthHolding(x); ok && f.learned {
		w.Ahead = f.StartAhead
		if keep, ok := h.KeepFor(function.Name, w); ok {
			function.KeepFor = max(keep, time.Second)
		}
	}
	// The price grows with the idle time: renew it when that has grown by an eighth.
	u.nextForecast = now + max(reforecastEvery, (now-u.lastUse)/8)
}

// worthHolding returns the Worth of keeping a function idle; false if it is never kept idle or
// never stops.
func (f *Forecaster) worthHolding(x Function) (forecast.Worth, bool) {
	function := x.Planned()
	idle := function.Scale.Idle.Std()
	if function.Gone || idle <= 0 || function.Scale.Min > 0 {
		return forecast.Worth{}, false
	}
	start := f.loop.StartTime(x)
	if start <= 0 {
		start = time.Minute
	}
	return forecast.WorthOf(idle, start, true), true
}

// Run runs once a tick: it renews the forecasts of idle functions, grants the
// prewarms that the history predicts, and settles the leases.
func (f *Forecaster) Run(ctx context.Context, now placement.Instant) {
	if f == nil {
		return
	}
	f.idleFunctions.Each(func(x Function) {
		hasReplicas, _, _ := x.Ahead()
		switch u := x.Usage(); {
		case u.inUse || !hasReplicas || x.Planned().Gone:
			f.idleFunctions.Drop(x)
		case u.nextForecast <= now:
			f.updateForecast(x, now)
			f.loop.FunctionChanged(x)
		}
	})
	wall := f.loop.WallTime(now)
	if f.StartAhead && (!f.asked || !f.nextAsk.IsZero() && !f.nextAsk.After(wall)) {
		f.asked = true
		f.nextAsk = f.History.Ahead(wall, func(name functions.Name) (forecast.Worth, bool) {
			function := f.loop.Function(name)
			if function == nil {
				return forecast.Worth{}, false
			}
			return f.worthHolding(function)
		}, func(x forecast.Foreseen) {
			if function := f.loop.Function(x.Name); function != nil && !function.Planned().Gone && function.Usage().prewarm == nil &&
				!function.Usage().inUse {
				// A prewarm beyond the budget is dropped and counted.
				if _, err := f.prewarmer.grant(function, functions.Prewarm{Until: x.Until, Tier: functions.PrewarmGPU, By: byHistory, Why: x.Why},
					now); err != nil {
					f.loop.Count("thaw_prewarms_total", 1, "over_budget")
				}
			}
		})
	}
	f.prewarmer.leases.Each(func(p *prewarm) { f.prewarmer.settle(ctx, p, now) })
}

// RestoreStarts adds starts measured by an earlier process to a new function.
func (f *Forecaster) RestoreStarts(x Function) {
	if f == nil {
		return
	}
	name := x.Planned().Name
	saved, ok := f.restored[name]
	if !ok {
		return
	}
	delete(f.restored, name)
	if measured, specHash := x.Starts(); saved.Recipe == specHash && measured.Len() == 0 {
		saved.Restore(measured)
	}
}

// Save writes the history: every saveEvery in the background; with last at once, after
// which it is not called again.
func (f *Forecaster) Save(last bool) {
	if f == nil || f.File == "" {
		return
	}
	f.loop.Lock()
	now := f.loop.Now()
	if !last && (now-f.saved < saveEvery || f.saving) {
		f.loop.Unlock()
		return
	}
	f.saved, f.saving = now, true
	m := f.file(now)
	f.loop.Unlock()
	write := func() {
		if err := m.Write(f.File); err != nil {
			f.log.Warn("what was learned of the functions is not written down", "file", f.File, "error", err)
		}
		f.loop.Lock()
		f.saving = false
		f.loop.Unlock()
	}
	if last {
		write()
		return
	}
	f.running.Go(write)
}

// file returns a copy of the history and start times for saving.
func (f *Forecaster) file(now placement.Instant) *forecast.File {
	w := forecast.NewFile(f.History, f.loop.WallTime(now))
	for x := range f.loop.Functions {
		if measured, specHash := x.Starts(); !x.Planned().Gone && measured.Len() > 0 {
			w.Starts[x.Planned().Name.String()] = measured.Save(specHash)
		}
	}
	return w
}

// Forget drops the history of a deleted function.
func (f *Forecaster) Forget(x Function) {
	if f != nil {
		f.History.Forget(x.Planned().Name)
		f.idleFunctions.Drop(x)
	}
}
