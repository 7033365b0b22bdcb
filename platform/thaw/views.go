package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/local"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// The rooms speak of the same things in words of their own; here one is said in
// the other's. Fields are equal, so the compiler checks the translation.

// world and history are the backend as the control API needs it.
type world struct{ *local.Local }

func (w world) Replicas() []api.Replica {
	return each(w.Local.Replicas(), func(r orchestrator.Replica) api.Replica { return api.Replica(r) })
}

func (w world) Nodes() []api.NodeReport {
	return each(w.Local.Nodes(), func(n orchestrator.NodeView) api.NodeReport { return api.NodeReport(n) })
}

type history struct {
	*local.Local
	data *activator.Activator // sees the first token, which ends a timeline
}

func (h history) Events(after uint64) []api.Event {
	return each(h.Local.Events(after), func(e orchestrator.Event) api.Event { return api.Event(e) })
}

func (h history) ColdStart(id string) (functions.Timeline, bool) {
	t, ok := h.Local.ColdStart(id)
	return h.data.Complete(t), ok
}

func (h history) ColdStarts(limit int) []functions.Timeline {
	return each(h.Local.ColdStarts(limit), h.data.Complete)
}

// ahead is the look ahead as the control API needs it.
type ahead struct{ *local.Local }

func (a ahead) Prewarm(name functions.Name, until time.Time, tier, by string) (api.Prewarm, error) {
	p, _, err := a.Local.Prewarm(orchestrator.Hint{Name: name, Until: until, Tier: tier, By: by})
	if over, ok := errors.AsType[*orchestrator.BudgetError](err); ok {
		err = &api.OverBudget{Message: over.Error(), In: over.In}
	}
	switch {
	case errors.Is(err, orchestrator.ErrNoFunction):
		err = api.ErrNotFound
	case errors.Is(err, orchestrator.ErrNoPrefetch):
		err = api.ErrTier
	case errors.Is(err, orchestrator.ErrHints):
		err = api.ErrHints
	}
	return prewarm(p), err
}

func (a ahead) Prewarms() []api.Prewarm { return each(a.Local.Prewarms(), prewarm) }

func prewarm(p orchestrator.Prewarm) api.Prewarm {
	return api.Prewarm{ID: p.ID, Function: p.Function.String(), Tier: p.Tier, State: p.State, By: p.By, Why: p.Why, Until: p.Until, Held: p.Held.Seconds()}
}

func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i := range in {
		out[i] = f(in[i])
	}
	return out
}

func logs(l *local.Local) func(context.Context, string, int, bool) (io.ReadCloser, error) {
	return func(ctx context.Context, replica string, tail int, follow bool) (io.ReadCloser, error) {
		r, err := l.Logs(ctx, replica, tail, follow)
		if errors.Is(err, agent.ErrNoLog) {
			return nil, fmt.Errorf("%w: %w", api.ErrNotFound, err)
		}
		return r, err
	}
}
