package grafana_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// sample is one value of a series.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                    { return s.at }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.value }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// series is the samples under one set of labels.
type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// store is a storage of Prometheus in memory, for its engine.
type store struct {
	series map[string]*series
}

func (s *store) add(l labels.Labels, at time.Time, value float64) {
	if s.series == nil {
		s.series = map[string]*series{}
	}
	x := s.series[l.String()]
	if x == nil {
		x = &series{labels: l}
		s.series[l.String()] = x
	}
	x.samples = append(x.samples, sample{at.UnixMilli(), value})
}

// scrape adds what a program wrote at /metrics, with the labels that Prometheus adds.
func (s *store) scrape(t *testing.T, text []byte, contentType string, at time.Time) {
	t.Helper()
	p, err := textparse.New(text, contentType, nil, textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		kind, err := p.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if kind != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		p.Labels(&l)
		_, _, value := p.Series()
		b := labels.NewBuilder(l)
		b.Set("job", "thaw")
		b.Set("instance", "127.0.0.1:8080")
		s.add(b.Labels(), at, value)
	}
}

// load adds series in the notation of Prometheus' unit tests: "metric{label=\"x\"} 0+1x5",
// with a value for each step from the beginning.
func (s *store) load(t *testing.T, begin time.Time, step time.Duration, lines ...string) {
	t.Helper()
	for _, line := range lines {
		l, values, err := grammar.ParseSeriesDesc(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for i, v := range values {
			if !v.Omitted {
				s.add(l, begin.Add(time.Duration(i)*step), v.Value)
			}
		}
	}
}

func (s *store) Querier(from, to int64) (storage.Querier, error) {
	return querier{store: s, from: from, to: to}, nil
}

type querier struct {
	*store
	from, to int64
}

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, x := range q.series {
		if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(x.labels.Get(m.Name)) }) {
			continue
		}
		in := slices.DeleteFunc(slices.Clone(x.samples), func(c chunks.Sample) bool { return c.T() < q.from || c.T() > q.to })
		if len(in) > 0 {
			found = append(found, storage.NewListSeries(x.labels, in))
		}
	}
	slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &seriesSet{rest: found}
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.ErrUnsupported
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.ErrUnsupported
}

func (querier) Close() error { return nil }

type seriesSet struct {
	rest []storage.Series
	now  storage.Series
}

func (s *seriesSet) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.now, s.rest = s.rest[0], s.rest[1:]
	return true
}

func (s *seriesSet) At() storage.Series              { return s.now }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

var grammar = parser.NewParser(parser.Options{})

var engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
	Parser: grammar})

// query evaluates an expression at one time.
func (s *store) query(t *testing.T, expression string, at time.Time) promql.Vector {
	t.Helper()
	q, err := engine.NewInstantQuery(t.Context(), s, nil, expression, at)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	defer q.Close()
	r := q.Exec(t.Context())
	if r.Err != nil {
		t.Fatalf("%s: %v", expression, r.Err)
	}
	if len(r.Warnings) > 0 {
		t.Errorf("%s: %v", expression, r.Warnings.AsErrors())
	}
	v, err := r.Vector()
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return slices.Clone(v)
}
