package telemetry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Source yields the present values of counters and gauges, with the values of their
// labels as declared. It is called at each scrape, concurrently too.
type Source func(yield func(metric string, value float64, labels ...string))

// Describe declares nothing: each value is checked against the declarations.
func (s Source) Describe(chan<- *prometheus.Desc) {}

func (s Source) Collect(out chan<- prometheus.Metric) {
	s(func(name string, value float64, labels ...string) {
		d, ok := byName[name]
		if !ok {
			out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(errUndeclared(name)), errUndeclared(name))
			return
		}
		m, err := prometheus.NewConstMetric(d.desc, d.kind, value, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(d.desc, err)
		}
		out <- m
	})
}

func errUndeclared(name string) error {
	return fmt.Errorf("telemetry: metric %q is not declared", name)
}

// BuildInfo is the version of the program and of Go.
func BuildInfo(version string) Source {
	return func(yield func(string, float64, ...string)) {
		yield("thaw_build_info", 1, version, runtime.Version())
	}
}

// Gauge is a metric without labels whose present value f returns.
func Gauge(metric string, f func() float64) Source {
	return func(yield func(string, float64, ...string)) { yield(metric, f()) }
}

// Registry has the metrics of one process. Its methods may be called concurrently.
type Registry struct {
	own *prometheus.Registry
	all prometheus.Gatherers // own, after those of the registry that this one extends

	mu      sync.Mutex
	vectors map[string]vector // counters and histograms in use
}

// vector is a [prometheus.CounterVec] or a [prometheus.HistogramVec].
type vector interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

// New returns a registry with the metrics of these sources.
func New(sources ...Source) *Registry {
	return new(Registry).Extend(sources...)
}

// NewProcess returns a registry that has the metrics of the Go runtime and of the
// process too.
func NewProcess(sources ...Source) *Registry {
	r := New(sources...)
	r.own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Extend returns a registry with the metrics of r and of these sources; r stays as it
// is.
func (r *Registry) Extend(sources ...Source) *Registry {
	x := &Registry{own: prometheus.NewRegistry(), vectors: map[string]vector{}}
	x.all = append(slices.Clone(r.all), x.own)
	x.Add(sources...)
	return x
}

// Add adds the metrics of these sources.
func (r *Registry) Add(sources ...Source) {
	for _, s := range sources {
		r.own.MustRegister(s)
	}
}

// vector returns the series of a declared counter or histogram.
func (r *Registry) vector(name string) vector {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.vectors[name]
	if ok {
		return v
	}
	d, ok := byName[name]
	switch {
	case !ok || d.kind == prometheus.GaugeValue:
		panic(errUndeclared(name))
	case d.buckets != nil:
		v = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: d.help, Buckets: d.buckets}, d.labels)
	default:
		v = prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: d.help}, d.labels)
	}
	r.own.MustRegister(v)
	r.vectors[name] = v
	return v
}

// Series returns the function that adds to one series of a counter, or observes a value
// in one of a histogram. It panics where the declaration does not fit.
func (r *Registry) Series(metric string, labels ...string) func(float64) {
	if v, ok := r.vector(metric).(*prometheus.HistogramVec); ok {
		return v.WithLabelValues(labels...).Observe
	}
	return r.vector(metric).(*prometheus.CounterVec).WithLabelValues(labels...).Add
}

// Counter returns the function that adds one to the series of a counter with these
// values of its labels.
func (r *Registry) Counter(metric string) func(labels ...string) {
	v := r.vector(metric).(*prometheus.CounterVec)
	return func(labels ...string) { v.WithLabelValues(labels...).Inc() }
}

// Forget removes the series of a function, which may be a Router: its label is router, team/name.
func (r *Registry) Forget(model, team string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.vectors {
		v.DeletePartialMatch(prometheus.Labels{"model": model, "team": team})
		v.DeletePartialMatch(prometheus.Labels{"router": team + "/" + model})
	}
}

// WithToken answers by h the requests that show the token (Authorization: Bearer): metrics
// name teams, their models and what they use. "" is no token yet; it opens nothing.
func WithToken(h http.Handler, token func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known := token()
		want, got := sha256.Sum256([]byte("Bearer "+known)), sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if known == "" || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "metrics want Authorization: Bearer, with the metrics-token of the Secret thaw-control-tls", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (r *Registry) Gather() ([]*dto.MetricFamily, error) { return r.all.Gather() }

// Handler serves the metrics to Prometheus.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Serve answers probes and Prometheus until ctx ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	err := srv.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	log.Error("serving probes has failed", "error", err)
	return err
}

// Text returns the metrics in Prometheus' text format. With a team it leaves out those
// of other teams and of their functions.
func (r *Registry) Text(team string) (text []byte, contentType string, err error) {
	families, err := r.Gather()
	if err != nil && len(families) == 0 {
		return nil, "", err
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	var b bytes.Buffer
	encoder := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if team != "" {
			f.Metric = slices.DeleteFunc(f.Metric, func(m *dto.Metric) bool { return !isVisible(m, team) })
			if len(f.Metric) == 0 {
				continue
			}
		}
		if err := encoder.Encode(f); err != nil {
			return nil, "", err
		}
	}
	return b.Bytes(), string(format), nil
}

// isVisible reports whether a key of this team may read m: it names no other team and no
// function of one.
func isVisible(m *dto.Metric, team string) bool {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "team":
			if l.GetValue() != team {
				return false
			}
		case "model", "function":
			if t, _, full := strings.Cut(l.GetValue(), "/"); full && t != team {
				return false
			}
		}
	}
	return true
}
