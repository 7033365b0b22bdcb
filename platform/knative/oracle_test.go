// KPA's code imports some 400 packages. The race detector would need a second build of
// them, for code that runs in one goroutine.
//go:build !race

package knative

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/autoscaler/aggregation"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"

	"github.com/thaw-dev/thaw/platform/autoscale"
)

// kpa is Knative's autoscaler of one revision, with its own windows.
type kpa struct {
	stable, short *aggregation.TimedFloat64Buckets
	ready         int
	scaler        scaling.UniScaler
}

func (k *kpa) ReadyCount() (int, error)    { return k.ready, nil }
func (k *kpa) NotReadyCount() (int, error) { return 0, nil }

func (k *kpa) record(at time.Time, x float64) {
	k.stable.Record(at, x)
	k.short.Record(at, x)
}

// StableAndPanicConcurrency returns the windows' means, as Knative's collector does.
func (k *kpa) StableAndPanicConcurrency(_ types.NamespacedName, now time.Time) (float64, float64, error) {
	if k.stable.IsEmpty(now) {
		return 0, 0, metrics.ErrNoData
	}
	return k.stable.WindowAverage(now), k.short.WindowAverage(now), nil
}

func (k *kpa) StableAndPanicRPS(types.NamespacedName, time.Time) (float64, float64, error) {
	return 0, 0, metrics.ErrNoData
}

func newKPA(a autoscale.Settings, target, ready int) *kpa {
	k := &kpa{
		stable: aggregation.NewTimedFloat64Buckets(a.Stable, time.Second),
		short:  aggregation.NewTimedFloat64Buckets(a.Panic, time.Second),
		ready:  ready,
	}
	k.scaler = scaling.New(*attribute.EmptySet(), noop.NewMeterProvider(), "team", "model", k, k, &scaling.DeciderSpec{
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, ScalingMetric: "concurrency",
		TargetValue: float64(target), TotalValue: float64(target), TargetBurstCapacity: 200,
		PanicThreshold: 2, StableWindow: a.Stable, Reachable: true,
	})
	return k
}

func settings(r *rand.Rand) autoscale.Settings {
	pick := func(xs ...float64) float64 { return xs[r.IntN(len(xs))] }
	a := autoscale.Settings{
		Stable: time.Duration(pick(6, 20, 60, 60, 60, 120)) * time.Second,
		Bucket: time.Second,
		Every:  2 * time.Second,
	}
	a.Panic = max(time.Duration(float64(a.Stable)*pick(0.1, 0.1, 0.01, 0.37, 1)), time.Second)
	return a
}

// load is a random walk of the number of active requests; times are in milliseconds.
type load struct {
	r     *rand.Rand
	shape int
	until int // end of the current shape, in ms
	base  int
	n     int
}

// next returns the load's next value and for how long it holds, in ms.
func (l *load) next(ms int) (stay, n int) {
	if ms >= l.until {
		l.shape, l.until, l.base = l.r.IntN(6), ms+1000*(5+l.r.IntN(200)), 1+l.r.IntN(100)
	}
	switch l.shape {
	case 0: // idle
		return 500 + l.r.IntN(30_000), 0
	case 1: // constant
		return 200 + l.r.IntN(5_000), l.base
	case 2: // rising
		return 100 + l.r.IntN(3_000), l.n + 1 + l.r.IntN(4)
	case 3: // falling
		return 100 + l.r.IntN(3_000), max(0, l.n-1-l.r.IntN(4))
	case 4: // bursts
		if l.n > 0 {
			return 3_000 + l.r.IntN(20_000), 0
		}
		return 1 + l.r.IntN(4_000), l.base * (1 + l.r.IntN(10))
	}
	return 1 + l.r.IntN(800), l.r.IntN(l.base + 1) // noise
}

// pods simulates pods that become ready late and end at once.
type pods struct {
	r   *rand.Rand
	lag int      // largest delay of readiness, in seconds
	at  []uint64 // when each becomes ready, in ms
}

func (p *pods) scale(ms, want int) {
	for len(p.at) < want {
		p.at = append(p.at, uint64(ms+p.r.IntN(p.lag*1000+1)))
	}
	p.at = p.at[:want]
}

func (p *pods) ready(ms int) (n int) {
	for _, at := range p.at {
		if at <= uint64(ms) {
			n++
		}
	}
	return n
}

// seen counts decisions by kind, so that a comparison without scaling fails.
type seen struct{ decisions, ups, downs, zeros, panics int }

func (s *seen) note(before, after, needed int) {
	s.decisions++
	switch {
	case after > before:
		s.ups++
	case after < before:
		s.downs++
	}
	if after == 0 && before > 0 {
		s.zeros++
	}
	if after > needed {
		s.panics++ // also kept by the rate: more than the load needs
	}
}

func (s *seen) enough(t *testing.T) {
	t.Helper()
	t.Logf("%d decisions the same: %d up, %d down, of them to zero %d, held above the load %d", s.decisions, s.ups, s.downs, s.zeros, s.panics)
	if s.decisions < 100_000 || s.ups < 3_000 || s.downs < 3_000 || s.zeros < 300 || s.panics < 10_000 {
		t.Error("too little happened")
	}
}

// TestDecidesAsKPA feeds a step function to our autoscaler as the orchestrator does, and
// to KPA the mean of each second, as scraped at its end.
func TestDecidesAsKPA(t *testing.T) {
	var s seen
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) { steps(t, seed, &s) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	s.enough(t)
}

func steps(t *testing.T, seed uint64, s *seen) {
	r := rand.New(rand.NewPCG(seed, 6))
	set := settings(r)
	target, most := 1+r.IntN(10), 1+r.IntN(40)
	run := &pods{r: r, lag: r.IntN(60)}
	run.scale(0, r.IntN(4))

	const begin = 1000 // ms; times are above 0
	base := time.Now() // of the synctest bubble: an even number of whole seconds
	time.Sleep(begin * time.Millisecond)
	instant := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	for i := range run.at {
		run.at[i] = 0
	}
	theirs := newKPA(set, target, len(run.at))
	ours := autoscale.NewLoad(set)
	ours.Adopt(instant(begin), len(run.at))

	walk := &load{r: r}
	phase := 1 + r.IntN(1999) // offset of the evaluations
	changes, area := begin, 0 // area: request-milliseconds of this second
	known, last := len(run.at), len(run.at)
	if known < 2 {
		known, last = 0, 0
	}
	ours.Observe(instant(begin), 0)
	for ms := begin; ms < 1_200_000; ms++ {
		if ms%1000 == 0 && ms > begin {
			theirs.record(base.Add(instant(ms)), float64(area)/1000)
			area = 0
		}
		if ms == changes {
			var stay int
			stay, walk.n = walk.next(ms)
			changes += stay
			ours.Observe(instant(ms), walk.n)
		}
		if ms%2000 == phase {
			theirs.ready = run.ready(ms)
			if res := theirs.scaler.Scale(zap.NewNop().Sugar(), base.Add(instant(ms))); res.ScaleValid {
				known = int(res.DesiredPodCount)
			}
			needed, desired := ours.Scale(instant(ms), theirs.ready, target)
			if desired != known {
				t.Fatalf("seed %d at %d ms, %d ready, %+v target %d: KPA wants %d, ours %d", seed, ms, theirs.ready, set, target, known, desired)
			}
			s.note(last, desired, needed)
			last = desired
			run.scale(ms, min(desired, most))
		}
		area += walk.n
	}
}
