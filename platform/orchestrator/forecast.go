package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
)

// Foresight configures prewarming. The Orchestrator owns the value from New on.
type Foresight struct {
	History    *forecast.History // uses so far; never nil
	StartAhead bool              // start predicted uses ahead; hints are followed in any case

	// Budget is the GPU time that prewarms may take in an hour, for one team; all
	// teams together may take Teams times as much. A replica without GPUs counts as
	// one GPU. 0: Budget is an hour, and Teams 4.
	Budget time.Duration
	Teams  int

	// File is the path of the saved history and start times, see OpenForesight; empty:
	// they are not saved.
	File string

	// Next, if not nil, replaces History for the next use of a function after now;
	// zero means never. It is for simulators, which know the future.
	Next func(name functions.Name, now time.Time) time.Time

	starts map[functions.Name]forecast.SavedStarts

	// Prefetch stages the bytes of a model on a disk, or with memory also in host
	// memory. It is called in a goroutine and ends with ctx. nil: hints of these
	// tiers are refused.
	Prefetch func(ctx context.Context, m *functions.Model, memory bool) error
}

// saveEvery is the time between two writes of the history.
const saveEvery = 5 * time.Minute

// OpenForesight reads the history in DIR/history.json. A file that does not parse is
// renamed to history.json.bad and logged; only forecasts are lost.
func OpenForesight(dir string, now time.Time, log *slog.Logger) *Foresight {
	path := filepath.Join(dir, "history.json")
	o := &Foresight{History: forecast.New(forecast.Options{}), File: path}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o
	}
	if err == nil {
		o.starts, err = forecast.ReadFile(f, o.History, now)
		f.Close()
	}
	if err != nil {
		o.History, o.starts = forecast.New(forecast.Options{}), nil
		aside := path + ".bad"
		if moved := os.Rename(path, aside); moved != nil {
			aside = "nowhere: " + moved.Error()
		}
		log.Warn("what was learned of the functions does not read; it is set aside and learned anew", "file", path, "aside", aside, "error", err)
	}
	return o
}

const (
	byHistory       = "history"
	reforecastEvery = 15 * time.Second // shortest time between forecasts of an idle function
)

// forecaster records the uses of functions and forecasts the next ones. It keeps its
// history in a file, and prewarms functions ahead of uses.
type forecaster struct {
	Foresight
	learned       bool // idle functions are kept by their forecasts
	prewarmer     prewarmer
	idleFunctions orderedset.Set[*functionState] // idle functions with replicas, whose forecasts are renewed
	nextAsk       time.Time                      // next call of History.Ahead; zero: after the next use
	asked         bool                           // History.Ahead was called since the last use

	restored map[functions.Name]forecast.SavedStarts // starts of an earlier process, until their function is in the catalogue
	saved    placement.Instant
	saving   bool

	mu       *sync.Mutex // of the Orchestrator
	registry *registry
	clock    *clock
	log      *slog.Logger
	running  *sync.WaitGroup // of writes of the file
}

// usageHistory is the forecasting state of one function.
type usageHistory struct {
	inUse        bool
	lastUse      placement.Instant // the last use recorded in the history
	low          bool              // only requests of priority low when recordUse was called last
	nextForecast placement.Instant // time of its next forecast
	prewarm      *prewarm          // its lease of tier gpu
}

func newForecaster(o *Foresight, s *Orchestrator) *forecaster {
	if o == nil {
		return nil
	}
	return &forecaster{
		Foresight: *o, restored: o.starts, learned: s.policy.KeepAlive == placement.Learned,
		mu: &s.mu, registry: &s.registry, clock: &s.clock, log: s.log, running: &s.commands.running,
		prewarmer: prewarmer{
			budgets:  forecast.NewBudgets(cmp.Or(max(o.Budget, 0), time.Hour), cmp.Or(max(o.Teams, 0), 4)),
			prefetch: o.Prefetch, newID: s.newID,
			mu: &s.mu, registry: &s.registry, clock: &s.clock, events: &s.eventLog, counts: &s.counts, commands: &s.commands, log: s.log,
		},
	}
}

// recordUse records begins and ends of uses of a function in the history. It is called for every
// changed function, before planning. Without a forecaster only its Uses counts them.
func (f *forecaster) recordUse(function *functionState, now placement.Instant) {
	u := &function.usage
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
			f.History.Begin(function.Name, f.clock.wallTime(at))
			function.Uses = max(function.Uses, f.History.Uses(function.Name, f.clock.wallTime(at))) // the history may include an earlier process
			f.prewarmer.onUse(function, now)
		}
		u.inUse = true
	}
	if !in && u.inUse {
		u.inUse = false
		u.lastUse = max(function.LastEnd, u.lastUse)
		if f != nil {
			f.History.End(function.Name, f.clock.wallTime(u.lastUse))
			f.asked = false
			f.updateForecast(function, now)
		}
	}
	if f == nil {
		return
	}
	if !u.inUse && len(function.replicas) > 0 && !function.Gone {
		f.idleFunctions.Add(function)
	}
}

// decayedUses is the count of f's uses in the form that package placement reads.
func decayedUses(f *functionState, now placement.Instant) float64 {
	if f.Uses == 0 || now <= f.UsesAt {
		return f.Uses
	}
	return f.Uses * math.Exp(-float64(now-f.UsesAt)/float64(eviction.UsesDecay))
}

// updateForecast sets the forecast of an idle function.
func (f *forecaster) updateForecast(function *functionState, now placement.Instant) {
	h := f.History
	function.NextUse = 0
	at, _ := h.NextUse(function.Name, f.clock.wallTime(now))
	if f.Next != nil {
		at = f.Next(function.Name, f.clock.wallTime(now))
	}
	if !at.IsZero() {
		function.NextUse = max(f.clock.instant(at), 1)
	}
	function.KeepFor = 0
	if w, ok := f.worthHolding(function); ok && f.learned {
		w.Ahead = f.StartAhead
		if keep, ok := h.KeepFor(function.Name, w); ok {
			function.KeepFor = max(keep, time.Second)
		}
	}
	// The price grows with the idle time: renew it when that has grown by an eighth.
	function.usage.nextForecast = now + max(reforecastEvery, (now-function.usage.lastUse)/8)
}

// worthHolding returns the Worth of keeping a function idle; false if it is never kept idle or
// never stops.
func (f *forecaster) worthHolding(function *functionState) (forecast.Worth, bool) {
	idle := function.Scale.Idle.Std()
	if function.Gone || idle <= 0 || function.Scale.Min > 0 {
		return forecast.Worth{}, false
	}
	start := function.forecastStart(f.registry.bytesAtHand(function)).P50
	if start <= 0 {
		start = time.Minute
	}
	return forecast.WorthOf(idle, start, true), true
}

// run runs once a tick: it renews the forecasts of idle functions, grants the
// prewarms that the history predicts, and settles the leases.
func (f *forecaster) run(ctx context.Context, now placement.Instant) {
	if f == nil {
		return
	}
	f.idleFunctions.Each(func(function *functionState) {
		switch {
		case function.usage.inUse || len(function.replicas) == 0 || function.Gone:
			f.idleFunctions.Drop(function)
		case function.usage.nextForecast <= now:
			f.updateForecast(function, now)
			f.registry.enqueue(function)
		}
	})
	wall := f.clock.wallTime(now)
	if f.StartAhead && (!f.asked || !f.nextAsk.IsZero() && !f.nextAsk.After(wall)) {
		f.asked = true
		f.nextAsk = f.History.Ahead(wall, func(name functions.Name) (forecast.Worth, bool) {
			function := f.registry.functions[name]
			if function == nil {
				return forecast.Worth{}, false
			}
			return f.worthHolding(function)
		}, func(x forecast.Foreseen) {
			if function := f.registry.functions[x.Name]; function != nil && !function.Gone && function.usage.prewarm == nil && !function.usage.inUse {
				// A prewarm beyond the budget is dropped and counted.
				if _, err := f.prewarmer.grant(function, functions.Prewarm{Until: x.Until, Tier: functions.PrewarmGPU, By: byHistory, Why: x.Why}, now); err != nil {
					f.prewarmer.counts.add("thaw_prewarms_total", 1, "over_budget")
				}
			}
		})
	}
	f.prewarmer.leases.Each(func(p *prewarm) { f.prewarmer.settle(ctx, p, now) })
}

// restoreStarts adds starts measured by an earlier process to a new function.
func (f *forecaster) restoreStarts(function *functionState) {
	if f == nil {
		return
	}
	x, ok := f.restored[function.Name]
	if !ok {
		return
	}
	delete(f.restored, function.Name)
	if x.Recipe == function.specHash && function.starts.Len() == 0 {
		x.Restore(&function.starts)
	}
}

// save writes the history: every saveEvery in the background; with last at once, after
// which it is not called again.
func (f *forecaster) save(last bool) {
	if f == nil || f.File == "" {
		return
	}
	f.mu.Lock()
	now := f.clock.now()
	if !last && (now-f.saved < saveEvery || f.saving) {
		f.mu.Unlock()
		return
	}
	f.saved, f.saving = now, true
	m := f.file(now)
	f.mu.Unlock()
	write := func() {
		if err := m.Write(f.File); err != nil {
			f.log.Warn("what was learned of the functions is not written down", "file", f.File, "error", err)
		}
		f.mu.Lock()
		f.saving = false
		f.mu.Unlock()
	}
	if last {
		write()
		return
	}
	f.running.Go(write)
}

// file returns a copy of the history and start times for saving.
func (f *forecaster) file(now placement.Instant) *forecast.File {
	w := forecast.NewFile(f.History, f.clock.wallTime(now))
	for _, function := range f.registry.functionList {
		if !function.Gone && function.starts.Len() > 0 {
			w.Starts[function.Name.String()] = function.starts.Save(function.specHash)
		}
	}
	return w
}

// forget drops the history of a deleted function.
func (f *forecaster) forget(function *functionState) {
	if f != nil {
		f.History.Forget(function.Name)
		f.idleFunctions.Drop(function)
	}
}
