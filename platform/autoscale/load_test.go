package autoscale

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestMeans compares the windows with the definition: the mean of a step function over
// the whole seconds before now.
func TestMeans(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		set := Settings{
			Stable: time.Duration(1+rnd.IntN(90)) * time.Second, Panic: time.Duration(1+rnd.IntN(90)) * time.Second,
			Bucket: []time.Duration{time.Second, 250 * time.Millisecond, 2 * time.Second}[rnd.IntN(3)],
		}.withDefaults()
		type step struct {
			at time.Duration
			n  int
		}
		var steps []step
		l := NewLoad(set)
		now := time.Second
		for range 300 {
			now += time.Duration(rnd.Int64N(int64([]time.Duration{20 * time.Millisecond, 2 * time.Second, 3 * set.Stable}[rnd.IntN(8)/3%3])))
			s := step{now, rnd.IntN(6) * rnd.IntN(20)}
			steps = append(steps, s)
			l.Observe(s.at, s.n)
			l.closeBuckets(now)
			l.since = now

			mean := func(window time.Duration) float64 {
				end := now / set.Bucket * set.Bucket
				from := end - (window+set.Bucket-1)/set.Bucket*set.Bucket
				from = max(from, steps[0].at/set.Bucket*set.Bucket)
				if end <= from {
					return 0
				}
				area := 0.0
				for i, s := range steps {
					until := end
					if i+1 < len(steps) {
						until = min(end, steps[i+1].at)
					}
					if d := until - max(s.at, from); d > 0 {
						area += float64(s.n) * d.Seconds()
					}
				}
				return area / (end - from).Seconds()
			}
			stable, short, ok := l.Means(now)
			if !ok && now/set.Bucket > steps[0].at/set.Bucket {
				t.Fatalf("seed %d at %v: nothing known", seed, now)
			}
			for _, x := range []struct{ got, want float64 }{{stable, mean(set.Stable)}, {short, mean(set.Panic)}} {
				if math.Abs(x.got-x.want) > 2e-6 {
					t.Fatalf("seed %d at %v, %+v: mean %v, by definition %v", seed, now, set, x.got, x.want)
				}
			}
		}
	}
}

func TestScale(t *testing.T) {
	type at struct {
		after         time.Duration // time since the previous step
		n, ready      int
		need, desired int
	}
	for _, c := range []struct {
		what  string
		first func(*Load)
		steps []at
	}{
		{what: "a steady load", steps: []at{{0, 10, 1, 0, 0}, {4 * time.Second, 10, 1, 2, 2}, {time.Minute, 10, 2, 2, 2}}},
		{what: "between two evaluations nothing changes", steps: []at{
			{0, 8, 1, 0, 0}, {4 * time.Second, 8, 1, 1, 1}, {time.Second, 80, 1, 1, 1}}},
		{what: "a burst on a long calm is seen by the short window, and held", steps: []at{
			{0, 8, 1, 0, 0}, {time.Minute, 160, 1, 1, 1}, {4 * time.Second, 8, 1, 14, 14},
			{10 * time.Second, 8, 14, 3, 14}, {30 * time.Second, 8, 14, 3, 14}, {30 * time.Second, 8, 14, 1, 7}}},
		{what: "up by a rate", steps: []at{{0, 40000, 1, 0, 0}, {4 * time.Second, 40000, 1, 1000, 1000}, {4 * time.Second, 40000, 2, 2000, 2000}}},
		{what: "down by a rate", steps: []at{
			{0, 80, 10, 0, 0}, {time.Minute, 0, 10, 10, 10}, {2 * time.Minute, 0, 10, 0, 5}, {2 * time.Second, 0, 5, 0, 2}}},
		{what: "found running", first: func(l *Load) { l.Adopt(time.Second, 4) }, steps: []at{
			{0, 1, 4, 0, 4}, {50 * time.Second, 1, 4, 1, 4}, {20 * time.Second, 1, 4, 1, 2}}},
	} {
		l := NewLoad(Settings{})
		if c.first != nil {
			c.first(l)
		}
		now := time.Second
		for i, s := range c.steps {
			now += s.after
			l.Observe(now, s.n)
			if need, desired := l.Scale(now, s.ready, 8); need != s.need || desired != s.desired {
				t.Errorf("%s, step %d: %d needed and %d desired, want %d and %d", c.what, i, need, desired, s.need, s.desired)
			}
		}
	}
}

// TestLoadIsOver: a Load without requests is over, and desires no replicas, once the
// windows have passed and maxDown no longer applies.
func TestLoadIsOver(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		set := Settings{}.withDefaults()
		l, now := NewLoad(set), time.Second
		for range 100 {
			now += time.Duration(rnd.Int64N(int64(3 * time.Second)))
			l.Observe(now, rnd.IntN(100))
			l.Scale(now, rnd.IntN(20), 1+rnd.IntN(8))
		}
		l.Observe(now, 0)
		end, ready := now, 100
		for ; !l.Over(now); now += time.Second {
			_, desired := l.Scale(now, ready, 8)
			ready = min(ready, desired)
			if now-end > 2*set.Stable+8*set.Every { // halved eight times at most
				t.Fatalf("seed %d: after %v %d are desired", seed, now-end, desired)
			}
		}
		if now-end < set.Panic {
			t.Errorf("seed %d: forgotten after %v", seed, now-end)
		}
	}
}

func TestFewMeans(t *testing.T) {
	l := NewLoad(Settings{Stable: 10 * time.Second, Panic: 2 * time.Second})
	if _, _, ok := l.Means(time.Second); ok {
		t.Error("something is known of nothing")
	}
	l.Observe(19*time.Second, 4)
	l.Observe(20*time.Second, 3)
	l.Observe(21*time.Second, 2)
	l.Observe(22*time.Second, 2)
	if s, p, ok := l.Means(22 * time.Second); !ok || s != 3 || p != 2.5 {
		t.Errorf("means are %v and %v", s, p)
	}
	if s, p, _ := l.Means(25 * time.Second); s != 3 || p != 0 {
		t.Errorf("after a silence the means are %v and %v", s, p)
	}
	if s, _, ok := l.Means(33 * time.Second); s != 0 || ok {
		t.Errorf("after a long silence the mean is %v", s)
	}
}

// BenchmarkLoad measures a busy function: one evaluation a tick, ten changes in
// between.
func BenchmarkLoad(b *testing.B) {
	l, now := NewLoad(Settings{}), time.Second
	b.Run("observe", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			now += 100 * time.Millisecond
			l.Observe(now, i%50)
		}
	})
	b.Run("scale", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			now += 2 * time.Second
			l.Scale(now, 3, 8)
		}
	})
}
