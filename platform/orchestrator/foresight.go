package orchestrator

import (
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Planned, Usage, Model, Starts and Ahead make a functionState a foresight.Function.
func (f *functionState) Planned() *placement.Function { return &f.Function }

func (f *functionState) Usage() *foresight.Usage { return &f.usage }

func (f *functionState) Model() *functions.Model { return f.model }

func (f *functionState) Starts() (*forecast.StartTimes, uint64) { return &f.starts, f.specHash }

func (f *functionState) Ahead() (any, started, ready bool) {
	return len(f.replicas) > 0,
		slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return !r.Stopping && !r.Cancelled && !r.asleep() }),
		slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() })
}

// foresightLoop is the loop as its forecaster sees it.
type foresightLoop struct{ *loop }

func (l foresightLoop) Now() placement.Instant                 { return l.now() }
func (l foresightLoop) Instant(t time.Time) placement.Instant  { return l.instant(t) }
func (l foresightLoop) WallTime(t placement.Instant) time.Time { return l.wallTime(t) }
func (l foresightLoop) NewID(prefix string) string             { return l.inbox.newID(prefix) }

func (l foresightLoop) Function(name functions.Name) foresight.Function {
	if f := l.functions[name]; f != nil {
		return f
	}
	return nil
}

func (l foresightLoop) Functions(yield func(foresight.Function) bool) {
	for _, f := range l.functionList {
		if !yield(f) {
			return
		}
	}
}

func (l foresightLoop) StartTime(f foresight.Function) time.Duration {
	of := f.(*functionState)
	return of.forecastStart(l.bytesAtHand(of)).P50
}

func (l foresightLoop) FunctionChanged(f foresight.Function) { l.enqueue(f.(*functionState)) }

func (l foresightLoop) Event(kind string, name functions.Name, reason, message string) {
	l.event(kind, name, "", "", reason, message)
}

func (l foresightLoop) Count(metric string, value float64, labels ...string) {
	l.counts.Add(metric, value, labels...)
}

func (l foresightLoop) Run(ctx context.Context, limit time.Duration, f func(context.Context)) {
	l.commands.runWithin(ctx, limit, f)
}

// Prewarm starts a function ahead of demand, or stages its bytes in a tier, and keeps
// that until a time. by names the caller; it is a label of metrics.
func (o *Orchestrator) Prewarm(name functions.Name, until time.Time, tier, by string) (functions.Prewarm, error) {
	o.loop.Lock()
	defer o.loop.Unlock()
	return o.loop.prewarm(o.loop.functions[name.WithoutAdapter()], until, tier, by)
}

func (l *loop) prewarm(f *functionState, until time.Time, tier, by string) (functions.Prewarm, error) {
	if f == nil || f.Gone {
		return functions.Prewarm{}, functions.ErrNotFound
	}
	p, err := l.forecaster.Prewarm(f, until, tier, by)
	if err == nil {
		l.inbox.signal()
	}
	return p, err
}

// PrewarmBriefly starts a function ahead of demand, unless another lease holds it as long
// already. EndPrewarm ends the lease.
func (o *Orchestrator) PrewarmBriefly(name functions.Name, until time.Time, by string) error {
	o.loop.Lock()
	defer o.loop.Unlock()
	f := o.loop.functions[name.WithoutAdapter()]
	if f != nil && f.usage.HeldByOther(until, by) {
		return nil
	}
	_, err := o.loop.prewarm(f, until, functions.PrewarmGPU, by)
	return err
}

// stageAheadFor bounds a staging ahead of demand.
const stageAheadFor = time.Hour

// StageAhead stages the bytes of a function on a disk, behind what requests wait for.
func (o *Orchestrator) StageAhead(name functions.Name, by string) error {
	_, err := o.Prewarm(name, o.inbox.wallClock().Add(stageAheadFor), functions.PrewarmDisk, by)
	return err
}

// EndPrewarm ends the lease that by holds on the start of a function, where it holds one: a
// replica that no request has used stops.
func (o *Orchestrator) EndPrewarm(name functions.Name, by string) {
	o.loop.Lock()
	defer o.loop.Unlock()
	if f := o.loop.functions[name.WithoutAdapter()]; f != nil && o.loop.forecaster.End(f, by) {
		o.inbox.signal()
	}
}

// PrewarmLeft is the GPU time that a team may still use for prewarms.
func (o *Orchestrator) PrewarmLeft(team string) time.Duration {
	o.loop.Lock()
	defer o.loop.Unlock()
	return o.loop.forecaster.Left(team)
}

// Prewarms lists the leases in the order of their ends.
func (o *Orchestrator) Prewarms() []functions.Prewarm {
	o.loop.Lock()
	defer o.loop.Unlock()
	return o.loop.forecaster.Leases()
}
