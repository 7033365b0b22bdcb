package replica

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// seen is what our requests show: how many are in flight, and since when one waits for
// its first byte and when the last byte came, in seconds; 0 is never.
type seen struct{ inFlight, waiting, lastByte int }

func (s seen) traffic(zero time.Time) functions.Traffic {
	at := func(seconds int) time.Time {
		if seconds == 0 {
			return time.Time{}
		}
		return zero.Add(time.Duration(seconds) * time.Second)
	}
	return functions.Traffic{InFlight: s.inFlight, Waiting: at(s.waiting), LastByte: at(s.lastByte)}
}

func TestWatch(t *testing.T) {
	type step struct {
		at      int // seconds
		m       engine.Metrics
		err     error
		suspect bool
		t       seen
	}
	m := func(running int, tokens float64) engine.Metrics {
		return engine.Metrics{Running: running, Tokens: tokens, Flow: true, Load: true}
	}
	// counted: how many had their first token, how many are over
	c := func(running int, tokens float64, first, done int) engine.Metrics {
		x := m(running, tokens)
		x.FirstTokens, x.Finished, x.Counted = first, done, true
		return x
	}
	waits := func(m engine.Metrics) engine.Metrics { m.Waiting = 3; return m }
	silent := errors.New("timeout")
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"idle for ever", []step{{at: 1, m: m(0, 5)}, {at: 1000, m: m(0, 5)}, {at: 2000, m: m(0, 5)}}},
		{"a request that is not counted", []step{{at: 1, m: m(0, 5)}, {at: 123, m: m(0, 5), t: seen{1, 4, 0}}, {at: 124, m: m(0, 5), t: seen{1, 4, 0}, suspect: true}}},
		{"tokens come", []step{{at: 1, m: m(1, 0)}, {at: 9, m: m(1, 1)}, {at: 18, m: m(1, 2)}, {at: 27, m: m(1, 3)}}},
		{"tokens stop", []step{{at: 1, m: m(1, 0)}, {at: 2, m: m(1, 9)}, {at: 11, m: m(1, 9)}, {at: 12, m: m(1, 9), suspect: true}}},
		{"first token is late", []step{{at: 1, m: m(1, 0)}, {at: 100, m: m(1, 0)}, {at: 121, m: m(1, 0), suspect: true}}},
		{"idle between", []step{{at: 1, m: m(1, 0)}, {at: 2, m: m(1, 9)}, {at: 3, m: m(0, 9)}, {at: 4, m: m(1, 9)}, {at: 60, m: m(1, 9)}, {at: 124, m: m(1, 9), suspect: true}}},
		{"only waiting", []step{{at: 1, m: engine.Metrics{Waiting: 3, Flow: true, Load: true}}, {at: 122, m: engine.Metrics{Waiting: 3, Flow: true, Load: true}, suspect: true}}},
		{"a long prompt after short answers", []step{
			{at: 1, m: c(0, 0, 4, 4)}, {at: 2, m: c(1, 0, 4, 4)}, {at: 3, m: c(1, 9, 5, 4)}, // one answers
			{at: 4, m: c(1, 20, 5, 5)},  // it is over, the next has no token yet
			{at: 30, m: c(1, 20, 5, 5)}, // its prompt is long
			{at: 124, m: c(1, 20, 5, 5), suspect: true}}},
		{"a long prompt after requests that were aborted", []step{
			{at: 1, m: c(0, 0, 6, 4)}, {at: 2, m: c(1, 0, 6, 4)}, {at: 30, m: c(1, 0, 6, 4)}, {at: 124, m: c(1, 0, 6, 4), suspect: true}}},
		{"counted, and standing still", []step{{at: 1, m: c(0, 0, 4, 3)}, {at: 2, m: c(1, 0, 4, 3)}, {at: 3, m: c(1, 9, 5, 3)}, {at: 13, m: c(1, 9, 5, 3), suspect: true}}},
		{"began and stopped between two looks", []step{{at: 1, m: m(0, 5)}, {at: 2, m: m(1, 9)}, {at: 12, m: m(1, 9), suspect: true}}},
		{"the same, counted", []step{{at: 1, m: c(0, 5, 4, 4)}, {at: 2, m: c(1, 9, 5, 4)}, {at: 12, m: c(1, 9, 5, 4), suspect: true}}},
		{"short ones between two looks, then a long prompt", []step{{at: 1, m: c(0, 5, 4, 4)}, {at: 2, m: c(1, 9, 6, 6)}, {at: 30, m: c(1, 9, 6, 6)}, {at: 122, m: c(1, 9, 6, 6), suspect: true}}},
		{"found busy, tokens unknown", []step{{at: 1, m: c(1, 900, 70, 60)}, {at: 30, m: c(1, 900, 70, 60)}, {at: 121, m: c(1, 900, 70, 60), suspect: true}}},
		{"no tokens counted", []step{{at: 1, m: engine.Metrics{Running: 1, Load: true}}, {at: 500, m: engine.Metrics{Running: 1, Load: true}}}},
		{"no metrics", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 500, err: engine.ErrNoMetrics}}},
		{"a stream of no counted tokens", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 100, err: engine.ErrNoMetrics, t: seen{1, 0, 60}}, {at: 179, err: engine.ErrNoMetrics, t: seen{1, 0, 60}}, {at: 180, err: engine.ErrNoMetrics, t: seen{1, 0, 60}, suspect: true}}},
		{"no tokens counted, then silent", []step{{at: 1, m: engine.Metrics{Load: true}}, {at: 30, err: silent, t: seen{1, 2, 0}}, {at: 119, err: silent, t: seen{1, 2, 0}}, {at: 121, err: silent, t: seen{1, 2, 0}, suspect: true}}},
		{"only waiting, counted", []step{{at: 1, m: c(0, 5, 4, 4)}, {at: 2, m: waits(c(0, 5, 4, 4))}, {at: 13, m: waits(c(0, 5, 4, 4))}, {at: 123, m: waits(c(0, 5, 4, 4)), suspect: true}}},
		{"tokens without a load", []step{{at: 1, m: m(0, 5), err: engine.ErrNoMetrics}, {at: 2, m: m(1, 9), err: engine.ErrNoMetrics}, {at: 30, m: m(1, 9), err: engine.ErrNoMetrics}}},
		{"idle, and busy with no token since", []step{{at: 1, m: m(0, 5)}, {at: 2, m: m(1, 6)}, {at: 3, m: m(0, 9)}, {at: 4, m: m(1, 9)}, {at: 60, m: m(1, 9)}, {at: 124, m: m(1, 9), suspect: true}}},
		{"metrics silent", []step{{at: 1, m: m(0, 0)}, {at: 5, err: silent}, {at: 10, err: silent}, {at: 11, err: silent, suspect: true}}},
		{"metrics late, then there", []step{{at: 1, m: m(0, 0)}, {at: 9, err: silent}, {at: 10, m: m(0, 0)}, {at: 19, err: silent}}},
		{"counter restarted", []step{{at: 1, m: m(1, 50)}, {at: 2, m: m(1, 60)}, {at: 11, m: m(1, 2)}, {at: 20, m: m(1, 2)}, {at: 21, m: m(1, 2), suspect: true}}},
		{"one plain request, and nothing else is answered", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 30, err: silent, t: seen{1, 2, 0}}, {at: 119, err: silent, t: seen{1, 2, 0}}, {at: 121, err: silent, t: seen{1, 2, 0}, suspect: true}}},
		{"requests in turn", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 110, err: silent, t: seen{30, 2, 108}}, {at: 220, err: silent, t: seen{20, 2, 217}}, {at: 337, err: silent, t: seen{20, 2, 217}, suspect: true}}},
		{"a stream flows", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 300, err: silent, t: seen{1, 0, 299}}, {at: 308, err: silent, t: seen{1, 0, 299}}, {at: 309, err: silent, t: seen{1, 0, 299}, suspect: true}}},
		{"clients that leave and come again", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 60, err: silent, t: seen{1, 55, 0}}, {at: 119, err: silent, t: seen{1, 118, 0}}, {at: 121, err: silent, t: seen{1, 118, 0}, suspect: true}}},
		{"the client has left", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 20, err: silent, t: seen{1, 2, 0}}, {at: 29, err: silent}, {at: 30, err: silent, suspect: true}}},
		{"only /metrics are answered", []step{{at: 1, err: engine.ErrNoMetrics}, {at: 121, err: engine.ErrNoMetrics, t: seen{1, 2, 0}}, {at: 122, err: engine.ErrNoMetrics, t: seen{1, 2, 0}, suspect: true}}},
		{"tokens at the ends of requests only", []step{{at: 1, m: m(2, 0)}, {at: 2, m: m(1, 9)}, {at: 30, m: m(1, 9), t: seen{1, 0, 29}}, {at: 39, m: m(1, 9), t: seen{1, 0, 29}, suspect: true}}},
		{"tokens are counted, /metrics silent beside a new request", []step{{at: 1, m: m(0, 0)}, {at: 11, err: silent, t: seen{1, 2, 0}, suspect: true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			zero := time.Unix(0, 0)
			w := newHangDetector(10*time.Second, 2*time.Minute, zero)
			for _, s := range test.steps {
				now := zero.Add(time.Duration(s.at) * time.Second)
				got := w.observe(now, now, s.m, s.err, s.t.traffic(zero))
				if (got != "") != s.suspect {
					t.Errorf("at %ds: %q", s.at, got)
				}
				// The next reading comes before the engine becomes suspected.
				next, least := w.next(now), 20*time.Millisecond
				due := w.suspectAt.Sub(now)
				switch {
				case next < least, next > pollEvery, s.err == nil && s.m.Running+s.m.Waiting > 0 && s.m.Flow && next > busyEvery:
					t.Errorf("at %ds: the next reading comes after %v", s.at, next)
				case !w.suspectAt.IsZero() && due > 0 && next > max(due, least), w.suspectAt.IsZero() && !w.busy && next != pollEvery:
					t.Errorf("at %ds: the next reading comes after %v, and it is suspected after %v", s.at, next, due)
				}
				if got != "" && (!strings.Contains(got, "(deadlines.hang: 10s)") && !strings.Contains(got, "(deadlines.firstToken: 2m0s)") ||
					strings.Contains(got, "/metrics") != (s.err != nil && s.t.inFlight == 0 || s.err != nil && w.hasFlow)) {
					t.Errorf("at %ds: %q", s.at, got)
				}
				if got != "" {
					w.cleared(now)
					for _, traffic := range []functions.Traffic{s.t.traffic(zero), {}} { // the same requests, or none
						if again := w.observe(now.Add(time.Second), now.Add(time.Second), s.m, s.err, traffic); again != "" {
							t.Errorf("suspected again at once with %+v: %s", traffic, again)
						}
					}
				}
			}
		})
	}
}

// A replica that we started ourselves had nothing open when it became READY,
// so the first look may find it busy and still know who waits for what.
func TestWatchOfAFreshEngine(t *testing.T) {
	zero := time.Unix(0, 0)
	for _, c := range []struct {
		name    string
		first   int // requests that had their first token; the warm-up is one, and over
		suspect bool
	}{{"answering", 2, true}, {"reading a long prompt", 1, false}} {
		w := newHangDetector(10*time.Second, 2*time.Minute, zero)
		w.idleSeen = true
		m := engine.Metrics{Running: 1, Tokens: 70, Flow: true, Load: true, FirstTokens: c.first, Finished: 1, Counted: true}
		w.observe(zero.Add(time.Second), zero.Add(time.Second), m, nil, functions.Traffic{})
		if got := w.observe(zero.Add(12*time.Second), zero.Add(12*time.Second), m, nil, functions.Traffic{}); (got != "") != c.suspect {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
