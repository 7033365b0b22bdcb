package activator

import (
	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/metrics"
	"github.com/thaw-dev/thaw/functions"
)

// Metrics makes the series of metrics.
type Metrics = metrics.Sink

// Samples yields the gauges of functions that have had a request, read from the queues.
func (a *Activator) Samples(yield func(metric string, value float64, labels ...string)) {
	now := a.o.Now()
	loads := map[functions.Name]admission.Load{} // several functions may go by one name
	for _, e := range a.names.table.All() {
		s := e.Data.metrics.Load()
		if s == nil {
			continue
		}
		l, sum := e.Data.queue.Load(now), loads[s.Name]
		sum.Queued += l.Queued
		sum.Bytes += l.Bytes
		sum.Active += l.Active
		loads[s.Name] = sum
	}
	for name, l := range loads {
		yield("thaw_buffered_requests", float64(l.Queued), name.Name, name.Team)
		yield("thaw_buffer_bytes", float64(l.Bytes), name.Name, name.Team)
		yield("thaw_active_requests", float64(l.Active), name.Name, name.Team)
	}
	if a.o.Remotes == nil {
		return
	}
	for team, limit := range a.o.Limits.SpendLimits() {
		yield("thaw_team_spent_today", a.o.Remotes.TeamSpentToday(team), team)
		yield("thaw_team_spend_limit", limit, team)
	}
}

// metricsOf returns the metrics of e, which it resolves at its first request.
func (a *Activator) metricsOf(e *entry) *metrics.Function {
	if s := e.Data.metrics.Load(); s != nil {
		return s
	}
	e.Data.metrics.CompareAndSwap(nil, metrics.New(a.o.Metrics, e.Snapshot().PublicName()))
	return e.Data.metrics.Load()
}
