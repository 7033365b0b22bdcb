// Package metrics counts and times each function's requests (ends, first token, queue wait,
// tokens, retries, cold starts) in series that a given Sink makes; it declares and exports no
// metrics. The series of a function are resolved once.
package metrics

import (
	"cmp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// Other labels requests of no known function or team: labels come from the
// configuration, never from a request.
const Other = "other"

// Sink makes the series of metrics, which are declared elsewhere. Its methods may be
// called concurrently.
type Sink interface {
	// Series returns the function that adds to one series of a counter, or observes a
	// value in one of a histogram.
	Series(metric string, labels ...string) func(float64)
	// Forget removes the series of a function, which may be a Router.
	Forget(model, team string)
}

// Nothing is a Sink that counts nothing.
type Nothing struct{}

// Series returns a function that does nothing.
func (Nothing) Series(string, ...string) func(float64) { return func(float64) {} }

func (Nothing) Forget(string, string) {}

// Function has the series of one function, under its public name. They are
// resolved at its first request, so that the hot path looks up no label.
type Function struct {
	sink        Sink
	Name        functions.Name
	FullName    string           // the name in logs
	duration    [2]func(float64) // warm, cold
	FirstToken  [2]func(float64)
	tokenTime   [2]func(float64)
	PlainAnswer [2]func(float64)
	QueueWait   func(float64)
	Prompt      func(float64)
	Completion  func(float64)
	Retried     func(float64)
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

// Cold is the index and the label of a request that met a cold start, or did not.
func Cold(cold bool) (int, string) {
	if cold {
		return 1, "true"
	}
	return 0, "false"
}

// New resolves the series of the function with this public name.
func New(sink Sink, name functions.Name) *Function {
	series := func(metric string, label ...string) func(float64) {
		return sink.Series(metric, append([]string{name.Name, name.Team}, label...)...)
	}
	byCold := func(metric string) [2]func(float64) {
		return [2]func(float64){series(metric, "false"), series(metric, "true")}
	}
	f := &Function{
		sink:        sink,
		Name:        name,
		FullName:    name.String(),
		duration:    byCold("thaw_request_seconds"),
		FirstToken:  byCold("thaw_time_to_first_token_seconds"),
		tokenTime:   byCold("thaw_time_per_output_token_seconds"),
		PlainAnswer: byCold("thaw_plain_answer_seconds"),
		QueueWait:   series("thaw_queue_wait_seconds"),
		Prompt:      series("thaw_tokens_total", "prompt"),
		Completion:  series("thaw_tokens_total", "completion"),
		Retried:     series("thaw_retries_total"),
	}
	f.ends.Store(&[]outcome{})
	return f
}

func (f *Function) CountEnd(route string, code int, cold bool, took time.Duration) {
	i, label := Cold(cold)
	f.duration[i](took.Seconds())
	for _, e := range *f.ends.Load() {
		if e.code == code && e.cold == cold && e.route == route {
			e.count(1)
			return
		}
	}
	count := f.sink.Series("thaw_requests_total", f.Name.Name, f.Name.Team, route, strconv.Itoa(code), label)
	count(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	ends := append((*f.ends.Load())[:len(*f.ends.Load()):len(*f.ends.Load())], outcome{route, code, cold, count})
	f.ends.Store(&ends)
}

// ObserveTokenTime observes the mean time per token of a stream that is over, of two
// tokens or more; its tokens came within took.
func (f *Function) ObserveTokenTime(cold bool, tokens int64, took time.Duration) {
	if tokens > 1 {
		i, _ := Cold(cold)
		f.tokenTime[i](took.Seconds() / float64(tokens-1))
	}
}

// CountFailure counts answers that an engine broke, or bytes that it wrote unasked. It is
// rare, so the label is looked up.
func (f *Function) CountFailure(kind string, n float64) {
	f.sink.Series("thaw_engine_errors_total", f.Name.Name, f.Name.Team, kind)(n)
}

// ObserveColdStart observes a cold start that has just ended.
func ObserveColdStart(sink Sink, before, f *snapshot.Snapshot) {
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
	source := cmp.Or(string(t.Tier), "unknown")
	name := f.PublicName()
	sink.Series("thaw_cold_start_seconds", name.Name, name.Team, result)(t.Total)
	for _, p := range t.Phases {
		sink.Series("thaw_cold_start_phase_seconds", name.Name, name.Team, string(p.Phase), source, result)(p.Duration)
	}
}

// ObserveFirstByte observes the last phase of a cold start, up to the first byte; t may be nil.
func (f *Function) ObserveFirstByte(t *functions.Timeline, took time.Duration) {
	source := "unknown"
	if t != nil {
		source = cmp.Or(string(t.Tier), source)
	}
	phase := string(functions.PhaseFirstToken)
	f.sink.Series("thaw_cold_start_phase_seconds", f.Name.Name, f.Name.Team, phase, source, "ready")(took.Seconds())
}
