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

// recordUse records begins and ends of uses of f in the history. It is called for every
// changed function, before planning. Without a forecaster only f.Uses counts them.
func (a *forecaster) recordUse(f *functionState, now placement.Instant) {
	u := &f.usage
	low := f.OnlyLow()
	in := f.Active+f.Queued > 0 && !low
	if low || u.low && !in { // requests of priority low are no use that comes again
		u.lastUse = max(u.lastUse, f.LastEnd)
	}
	u.low = low
	missed := !in && !u.inUse && f.LastEnd > u.lastUse // a use began and ended since the last call
	if in && !u.inUse || missed {
		at := now
		if in && f.Oldest > 0 {
			at = f.Oldest
		} else if missed {
			at = f.LastEnd
		}
		f.Uses, f.UsesAt = decayedUses(f, at)+1, at
		if a != nil {
			a.History.Begin(f.Name, a.clock.wallTime(at))
			f.Uses = max(f.Uses, a.History.Uses(f.Name, a.clock.wallTime(at))) // the history may include an earlier process
			a.prewarmer.onUse(f, now)
		}
		u.inUse = true
	}
	if !in && u.inUse {
		u.inUse = false
		u.lastUse = max(f.LastEnd, u.lastUse)
		if a != nil {
			a.History.End(f.Name, a.clock.wallTime(u.lastUse))
			a.asked = false
			a.updateForecast(f, now)
		}
	}
	if a == nil {
		return
	}
	if !u.inUse && len(f.replicas) > 0 && !f.Gone {
		a.idleFunctions.Add(f)
	}
}

// decayedUses is the count of f's uses in the form that package placement reads.
func decayedUses(f *functionState, now placement.Instant) float64 {
	if f.Uses == 0 || now <= f.UsesAt {
		return f.Uses
	}
	return f.Uses * math.Exp(-float64(now-f.UsesAt)/float64(placement.UsesDecay))
}

// updateForecast sets the forecast of f, which is idle.
func (a *forecaster) updateForecast(f *functionState, now placement.Instant) {
	h := a.History
	f.NextUse = 0
	at, _ := h.NextUse(f.Name, a.clock.wallTime(now))
	if a.Next != nil {
		at = a.Next(f.Name, a.clock.wallTime(now))
	}
	if !at.IsZero() {
		f.NextUse = max(a.clock.instant(at), 1)
	}
	f.KeepFor = 0
	if w, ok := a.worthHolding(f); ok && a.learned {
		w.Ahead = a.StartAhead
		if keep, ok := h.KeepFor(f.Name, w); ok {
			f.KeepFor = max(keep, time.Second)
		}
	}
	// The price grows with the idle time: renew it when that has grown by an eighth.
	f.usage.nextForecast = now + max(reforecastEvery, (now-f.usage.lastUse)/8)
}

// worthHolding returns the Worth of keeping f idle; false if f is never kept idle or
// never stops.
func (a *forecaster) worthHolding(f *functionState) (forecast.Worth, bool) {
	idle := f.Scale.Idle.Std()
	if f.Gone || idle <= 0 || f.Scale.Min > 0 {
		return forecast.Worth{}, false
	}
	start := f.forecastStart(a.registry.bytesAtHand(f)).P50
	if start <= 0 {
		start = time.Minute
	}
	return forecast.WorthOf(idle, start, true), true
}

// run runs once a tick: it renews the forecasts of idle functions, grants the
// prewarms that the history predicts, and checks the leases.
func (a *forecaster) run(ctx context.Context, now placement.Instant) {
	if a == nil {
		return
	}
	a.idleFunctions.Each(func(f *functionState) {
		switch {
		case f.usage.inUse || len(f.replicas) == 0 || f.Gone:
			a.idleFunctions.Drop(f)
		case f.usage.nextForecast <= now:
			a.updateForecast(f, now)
			a.registry.enqueue(f)
		}
	})
	wall := a.clock.wallTime(now)
	if a.StartAhead && (!a.asked || !a.nextAsk.IsZero() && !a.nextAsk.After(wall)) {
		a.asked = true
		a.nextAsk = a.History.Ahead(wall, func(name functions.Name) (forecast.Worth, bool) {
			f := a.registry.functions[name]
			if f == nil {
				return forecast.Worth{}, false
			}
			return a.worthHolding(f)
		}, func(x forecast.Foreseen) {
			if f := a.registry.functions[x.Name]; f != nil && !f.Gone && f.usage.prewarm == nil && !f.usage.inUse {
				// A prewarm beyond the budget is dropped and counted.
				if _, err := a.prewarmer.grant(f, functions.Prewarm{Until: x.Until, Tier: functions.PrewarmGPU, By: byHistory, Why: x.Why}, now); err != nil {
					a.prewarmer.counts.add("thaw_prewarms_total", 1, "over_budget")
				}
			}
		})
	}
	a.prewarmer.leases.Each(func(p *prewarm) { a.prewarmer.check(ctx, p, now) })
}

// restoreStarts adds starts measured by an earlier process to a new function.
func (a *forecaster) restoreStarts(f *functionState) {
	if a == nil {
		return
	}
	x, ok := a.restored[f.Name]
	if !ok {
		return
	}
	delete(a.restored, f.Name)
	if x.Recipe == f.recipe && f.starts.Len() == 0 {
		x.Restore(&f.starts)
	}
}

// save writes the history: every saveEvery in the background; with last at once, after
// which it is not called again.
func (a *forecaster) save(last bool) {
	if a == nil || a.File == "" {
		return
	}
	a.mu.Lock()
	now := a.clock.now()
	if !last && (now-a.saved < saveEvery || a.saving) {
		a.mu.Unlock()
		return
	}
	a.saved, a.saving = now, true
	m := a.file(now)
	a.mu.Unlock()
	write := func() {
		if err := m.Write(a.File); err != nil {
			a.log.Warn("what was learned of the functions is not written down", "file", a.File, "error", err)
		}
		a.mu.Lock()
		a.saving = false
		a.mu.Unlock()
	}
	if last {
		write()
		return
	}
	a.running.Go(write)
}

// file returns a copy of the history and start times for saving.
func (a *forecaster) file(now placement.Instant) *forecast.File {
	w := forecast.NewFile(a.History, a.clock.wallTime(now))
	for _, f := range a.registry.functionList {
		if !f.Gone && f.starts.Len() > 0 {
			w.Starts[f.Name.String()] = f.starts.Save(f.recipe)
		}
	}
	return w
}

// forget drops the history of a deleted function.
func (a *forecaster) forget(f *functionState) {
	if a != nil {
		a.History.Forget(f.Name)
		a.idleFunctions.Drop(f)
	}
}
