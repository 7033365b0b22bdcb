package orchestrator

import (
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/metrics"
)

// Samples yields the counters and the current state.
func (o *Orchestrator) Samples(yield func(metric string, value float64, labels ...string)) {
	o.counts.Each(yield)
	type state struct {
		name functions.Name
		word string
	}
	o.mu.Lock() // yielded without it: the reader may be slow
	states := make([]state, 0, len(o.functions))
	for name, f := range o.functions {
		if !f.Gone {
			states = append(states, state{name, f.state().Word()})
		}
	}
	o.mu.Unlock()
	for _, x := range states {
		yield("thaw_model_state", 1, x.name.Name, x.name.Team, x.word)
	}
	o.sampleTeams(yield)
	for _, n := range o.Nodes() {
		metrics.SampleNode(n, yield)
	}
}
