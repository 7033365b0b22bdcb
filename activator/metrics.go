package activator

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// otherLabel labels requests of no known function or team: labels come from the
// configuration, never from a request.
const otherLabel = "other"

// Metrics makes the series of metrics, which are declared elsewhere. Its methods may be
// called concurrently.
type Metrics interface {
	// Series returns the function that adds to one series of a counter, or observes a
	// value in one of a histogram.
	Series(metric string, labels ...string) func(float64)
	// Forget removes the series of a function.
	Forget(model, team string)
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) Series(string, ...string) func(float64) { return func(float64) {} }
func (noMetrics) Forget(string, string)                  {}

// Samples yields the gauges of functions that have had a request, read from the queues.
func (a *Activator) Samples(yield func(metric string, value float64, labels ...string)) {
	now := a.o.Now()
	loads := map[functions.Name]admission.Load{} // several functions may go by one name
	for _, e := range a.table.All() {
		s := e.Data.metrics.Load()
		if s == nil {
			continue
		}
		l, sum := e.Data.queue.Load(now), loads[s.name]
		sum.Queued += l.Queued
		sum.Bytes += l.Bytes
		sum.Active += l.Active
		loads[s.name] = sum
	}
	for name, l := range loads {
		yield("thaw_buffered_requests", float64(l.Queued), name.Name, name.Team)
		yield("thaw_buffer_bytes", float64(l.Bytes), name.Name, name.Team)
		yield("thaw_active_requests", float64(l.Active), name.Name, name.Team)
	}
}

// functionMetrics are the metrics of one function, under its public name. Its series are
// resolved at its first request, so that the hot path looks up no label.
type functionMetrics struct {
	m           Metrics
	name        functions.Name
	full        string           // the name in logs
	duration    [2]func(float64) // warm, cold
	firstToken  [2]func(float64)
	tokenTime   [2]func(float64)
	plainAnswer [2]func(float64)
	queueWait   func(float64)
	prompt      func(float64)
	completion  func(float64)
	retried     func(float64)
	mu          sync.Mutex // serialises writers of ends
	ends        atomic.Pointer[[]outcome]
}

// outcome counts requests that ended in one way.
type outcome struct {
	route string
	code  int
	cold  bool
	count func(float64)
}

func coldLabel(cold bool) (int, string) {
	if cold {
		return 1, "true"
	}
	return 0, "false"
}

// metricsOf returns the metrics of e, which it resolves at its first request.
func (a *Activator) metricsOf(e *entry) *functionMetrics {
	if s := e.Data.metrics.Load(); s != nil {
		return s
	}
	known := e.Snapshot().PublicName()
	series := func(metric string, label ...string) func(float64) {
		return a.o.Metrics.Series(metric, append([]string{known.Name, known.Team}, label...)...)
	}
	byCold := func(metric string) [2]func(float64) {
		return [2]func(float64){series(metric, "false"), series(metric, "true")}
	}
	s := &functionMetrics{
		m:           a.o.Metrics,
		name:        known,
		full:        known.String(),
		duration:    byCold("thaw_request_seconds"),
		firstToken:  byCold("thaw_time_to_first_token_seconds"),
		tokenTime:   byCold("thaw_time_per_output_token_seconds"),
		plainAnswer: byCold("thaw_plain_answer_seconds"),
		queueWait:   series("thaw_queue_wait_seconds"),
		prompt:      series("thaw_tokens_total", "prompt"),
		completion:  series("thaw_tokens_total", "completion"),
		retried:     series("thaw_retries_total"),
	}
	s.ends.Store(&[]outcome{})
	if !e.Data.metrics.CompareAndSwap(nil, s) {
		return e.Data.metrics.Load()
	}
	return s
}

// countEnd counts one request.
func (m *functionMetrics) countEnd(route string, code int, cold bool, took time.Duration) {
	i, label := coldLabel(cold)
	m.duration[i](took.Seconds())
	for _, e := range *m.ends.Load() {
		if e.code == code && e.cold == cold && e.route == route {
			e.count(1)
			return
		}
	}
	count := m.m.Series("thaw_requests_total", m.name.Name, m.name.Team, route, strconv.Itoa(code), label)
	count(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	ends := append((*m.ends.Load())[:len(*m.ends.Load()):len(*m.ends.Load())], outcome{route, code, cold, count})
	m.ends.Store(&ends)
}

// observeTokenTime observes the mean time per token of a stream that is over, of two
// tokens or more.
func (m *functionMetrics) observeTokenTime(p *proxyRequest, took time.Duration) {
	if n := p.usage.Completion; n > 1 && p.firstToken > 0 {
		i, _ := coldLabel(p.queued.Cold)
		m.tokenTime[i]((took - p.firstToken).Seconds() / float64(n-1))
	}
}

// countFailure counts an answer that an engine broke. It is rare, so the label is
// looked up.
func (m *functionMetrics) countFailure(kind string) {
	m.m.Series("thaw_engine_errors_total", m.name.Name, m.name.Team, kind)(1)
}

// countRefused counts a request that never reached a function.
func (a *Activator) countRefused(team, route string, code int) {
	a.o.Metrics.Series("thaw_requests_total", otherLabel, team, route, strconv.Itoa(code), "false")(1)
}

func (a *Activator) countLimited(team, reason string) {
	a.o.Metrics.Series("thaw_quota_rejections_total", team, reason)(1)
}

// observeColdStart observes a cold start that has just ended.
func (a *Activator) observeColdStart(before, f *snapshot.Snapshot) {
	t := f.ColdStart
	if t == nil || t.State != functions.Ready && t.State != functions.Failed {
		return
	}
	if b := before.ColdStart; b != nil && b.ID == t.ID && b.State == t.State {
		return
	}
	result := "ready"
	if t.State == functions.Failed {
		result = "failed"
	}
	source := string(t.Tier)
	if source == "" {
		source = "unknown"
	}
	name := f.PublicName()
	a.o.Metrics.Series("thaw_cold_start_seconds", name.Name, name.Team, result)(t.Total)
	for _, p := range t.Phases {
		a.o.Metrics.Series("thaw_cold_start_phase_seconds", name.Name, name.Team, string(p.Phase), source, result)(p.Duration)
	}
}

func (a *Activator) observeFirstToken(e *entry, took time.Duration) {
	source := "unknown"
	name := e.Snapshot().PublicName()
	if t := e.Snapshot().ColdStart; t != nil && t.Tier != "" {
		source = string(t.Tier)
	}
	a.o.Metrics.Series("thaw_cold_start_phase_seconds", name.Name, name.Team, string(functions.PhaseFirstToken), source, "ready")(took.Seconds())
}

// forgetMetrics removes a function's series, unless another function has the same public
// name.
func (a *Activator) forgetMetrics(e *entry) {
	name := e.Snapshot().PublicName()
	if name != e.Name {
		for _, other := range a.table.Team(name.Team) {
			if other != e && other.Snapshot().PublicName() == name {
				return
			}
		}
	}
	a.o.Metrics.Forget(name.Name, name.Team)
}
