package activator

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// otherLabel labels requests of no known function or team: labels come from the
// configuration, never from a request.
const otherLabel = "other"

// metrics are the metrics of the data path. A function's series are resolved at its
// first request and kept beside it, so that the hot path looks up no label.
type metrics struct {
	a         *Activator
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	ttft      *prometheus.HistogramVec
	queueWait *prometheus.HistogramVec
	phase     *prometheus.HistogramVec
	coldStart *prometheus.HistogramVec
	quota     *prometheus.CounterVec
	tokens    *prometheus.CounterVec
	failures  *prometheus.CounterVec
	retries   *prometheus.CounterVec

	buffered, bufferBytes, active *prometheus.Desc
}

func newMetrics(a *Activator) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	short := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	long := []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800}
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"model", "team"}, nil)
	}
	m := &metrics{
		a:           a,
		requests:    counter("thaw_requests_total", "Requests by how they ended; code 499 is a client that left, a stream that broke counts with the code of its error.", "model", "team", "route", "code", "cold"),
		duration:    histogram("thaw_request_seconds", "Time from the whole request to the end of its answer.", short, "model", "team", "cold"),
		ttft:        histogram("thaw_time_to_first_token_seconds", "Time from the whole request to the engine's first byte of body.", short, "model", "team", "cold"),
		queueWait:   histogram("thaw_queue_wait_seconds", "Time a request waited in its queue, of those that waited.", short, "model", "team"),
		phase:       histogram("thaw_cold_start_phase_seconds", "Phases of cold starts; source is the tier the bytes came from.", long, "model", "team", "phase", "source", "result"),
		coldStart:   histogram("thaw_cold_start_seconds", "Cold starts from the wake to READY.", long, "model", "team", "result"),
		quota:       counter("thaw_quota_rejections_total", "Requests refused by a limit of their team.", "team", "reason"),
		tokens:      counter("thaw_tokens_total", "Tokens that engines reported as used.", "model", "team", "kind"),
		failures:    counter("thaw_engine_errors_total", "Answers that an engine broke; kind is error_frame (an error of its own, also one followed by [DONE]), died, hung, refused, cut or protocol.", "model", "team", "kind"),
		retries:     counter("thaw_retries_total", "Requests tried on another replica because the first one failed before its first byte.", "model", "team"),
		buffered:    gauge("thaw_buffered_requests", "Requests that wait in the queue."),
		bufferBytes: gauge("thaw_buffer_bytes", "Bytes of the bodies that wait in the queue."),
		active:      gauge("thaw_active_requests", "Requests in flight at replicas."),
	}
	if r := a.o.Metrics; r != nil {
		r.MustRegister(m.requests, m.duration, m.ttft, m.queueWait, m.phase, m.coldStart, m.quota, m.tokens, m.failures, m.retries, m)
	}
	return m
}

// Describe and Collect make metrics the collector of the gauges, which are read from
// the queues at each scrape.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	c <- m.buffered
	c <- m.bufferBytes
	c <- m.active
}

// Collect yields the gauges of functions that have had a request.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	now := m.a.o.Now()
	loads := map[functions.Name]admission.Load{} // several functions may go by one name
	for _, e := range m.a.table.All() {
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
		for _, g := range [...]struct {
			d *prometheus.Desc
			v float64
		}{{m.buffered, float64(l.Queued)}, {m.bufferBytes, float64(l.Bytes)}, {m.active, float64(l.Active)}} {
			c <- prometheus.MustNewConstMetric(g.d, prometheus.GaugeValue, g.v, name.Name, name.Team)
		}
	}
}

// functionMetrics are the metrics of one function, under its public name.
type functionMetrics struct {
	m          *metrics
	name       functions.Name
	full       string                 // the name in logs
	duration   [2]prometheus.Observer // warm, cold
	ttft       [2]prometheus.Observer
	queueWait  prometheus.Observer
	prompt     prometheus.Counter
	completion prometheus.Counter
	retried    prometheus.Counter
	mu         sync.Mutex // serialises writers of ends
	ends       atomic.Pointer[[]outcome]
}

// outcome counts requests that ended in one way.
type outcome struct {
	route string
	code  int
	cold  bool
	n     prometheus.Counter
}

func coldLabel(cold bool) (int, string) {
	if cold {
		return 1, "true"
	}
	return 0, "false"
}

func (m *metrics) of(e *entry) *functionMetrics {
	if s := e.Data.metrics.Load(); s != nil {
		return s
	}
	known := e.Snapshot().PublicName()
	n, t := known.Name, known.Team
	s := &functionMetrics{
		m:          m,
		name:       known,
		full:       known.String(),
		duration:   [2]prometheus.Observer{m.duration.WithLabelValues(n, t, "false"), m.duration.WithLabelValues(n, t, "true")},
		ttft:       [2]prometheus.Observer{m.ttft.WithLabelValues(n, t, "false"), m.ttft.WithLabelValues(n, t, "true")},
		queueWait:  m.queueWait.WithLabelValues(n, t),
		prompt:     m.tokens.WithLabelValues(n, t, "prompt"),
		completion: m.tokens.WithLabelValues(n, t, "completion"),
		retried:    m.retries.WithLabelValues(n, t),
	}
	s.ends.Store(&[]outcome{})
	if !e.Data.metrics.CompareAndSwap(nil, s) {
		return e.Data.metrics.Load()
	}
	return s
}

// countEnd counts one request.
func (s *functionMetrics) countEnd(route string, code int, cold bool, took time.Duration) {
	i, word := coldLabel(cold)
	s.duration[i].Observe(took.Seconds())
	for _, e := range *s.ends.Load() {
		if e.code == code && e.cold == cold && e.route == route {
			e.n.Inc()
			return
		}
	}
	n := s.m.requests.WithLabelValues(s.name.Name, s.name.Team, route, strconv.Itoa(code), word)
	n.Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := append((*s.ends.Load())[:len(*s.ends.Load()):len(*s.ends.Load())], outcome{route, code, cold, n})
	s.ends.Store(&ends)
}

// countFailure counts an answer that an engine broke. It is rare, so the label is
// looked up.
func (s *functionMetrics) countFailure(kind string) {
	s.m.failures.WithLabelValues(s.name.Name, s.name.Team, kind).Inc()
}

// countRefused counts a request that never reached a function.
func (m *metrics) countRefused(team, route string, code int) {
	m.requests.WithLabelValues(otherLabel, team, route, strconv.Itoa(code), "false").Inc()
}

func (m *metrics) countLimited(team, reason string) { m.quota.WithLabelValues(team, reason).Inc() }

// observeColdStart observes a cold start that has just ended.
func (m *metrics) observeColdStart(e *entry, before, f *snapshot.Snapshot) {
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
	m.coldStart.WithLabelValues(name.Name, name.Team, result).Observe(t.Total)
	for _, p := range t.Phases {
		m.phase.WithLabelValues(name.Name, name.Team, string(p.Phase), source, result).Observe(p.Duration)
	}
}

func (m *metrics) observeFirstToken(e *entry, took time.Duration) {
	source := "unknown"
	name := e.Snapshot().PublicName()
	if t := e.Snapshot().ColdStart; t != nil && t.Tier != "" {
		source = string(t.Tier)
	}
	m.phase.WithLabelValues(name.Name, name.Team, string(functions.PhaseFirstToken), source, "ready").Observe(took.Seconds())
}

// forget removes a function's series, unless another function has the same public
// name.
func (m *metrics) forget(e *entry) {
	name := e.Snapshot().PublicName()
	if name != e.Name {
		for _, other := range m.a.table.Team(name.Team) {
			if other != e && other.Snapshot().PublicName() == name {
				return
			}
		}
	}
	by := prometheus.Labels{"model": name.Name, "team": name.Team}
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.requests, m.duration, m.ttft, m.queueWait, m.phase, m.coldStart, m.tokens, m.failures, m.retries} {
		v.DeletePartialMatch(by)
	}
}
