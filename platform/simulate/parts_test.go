package simulate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

type recordingActor struct {
	got *[]int
	n   int
	gen uint32
}

func (a *recordingActor) act(uint8)          { *a.got = append(*a.got, a.n) }
func (a *recordingActor) generation() uint32 { return a.gen }

// TestClock: events fire in time order, and at the same time in the order they were
// scheduled.
func TestClock(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var c clock
	type due struct {
		at time.Duration
		n  int
	}
	var want []due
	var got []int
	for i := range 5000 {
		at := time.Duration(rng.IntN(300))
		want = append(want, due{at, i})
		c.set(at, &recordingActor{got: &got, n: i}, 0, 0)
		if i%3 == 2 { // some are removed in between
			e := c.pop()
			c.now = e.at
			e.actor.act(0)
			k := slices.IndexFunc(want, func(d due) bool { return d.n == got[len(got)-1] })
			for _, d := range want {
				if d.at < want[k].at || d.at == want[k].at && d.n < want[k].n {
					t.Fatalf("%v came before %v", want[k], d)
				}
			}
			want = slices.Delete(want, k, k+1)
			c.now = 0
		}
	}
	got = nil
	slices.SortStableFunc(want, func(a, b due) int { return int(a.at - b.at) })
	for i := range want {
		e := c.pop()
		e.actor.act(0)
		if got[i] != want[i].n {
			t.Fatalf("event %d is %d, want %d", i, got[i], want[i].n)
		}
	}
	if len(c.heap) > 0 {
		t.Error("something is left")
	}
}

// TestHistogram: quantiles are off by less than 1 %.
func TestHistogram(t *testing.T) {
	for i := range 40 * subBuckets {
		if m := bucketMiddle(i); bucket(m) != i {
			t.Fatalf("the middle of bucket %d is %v, which is in %d", i, m, bucket(m))
		}
	}
	rng := rand.New(rand.NewPCG(2, 2))
	var h histogram
	var all []time.Duration
	for range 20000 {
		d := time.Duration(math.Exp(rng.Float64()*20)) * time.Microsecond // 1 µs to 8 min
		h.add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all))))-1, 0)]
		got := h.quantile(q)
		if d := math.Abs(float64(got - want)); d > 0.01*float64(want) && d > 1000 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if h.max != all[len(all)-1] {
		t.Error("the largest is lost")
	}
	if (&histogram{}).quantile(0.5) != 0 {
		t.Error("nothing has a quantile")
	}
}

// TestTransfers: no pipe exceeds its rate, and all bytes arrive.
func TestTransfers(t *testing.T) {
	st := &State{}
	a, b, all := &pipe{rate: 100}, &pipe{rate: 100}, &pipe{rate: 150}
	ends := map[string]time.Duration{}
	put := func(name string, bytes float64, pipes ...*pipe) *transfer {
		return st.startTransfer(bytes, func() { ends[name] = st.clock.now }, pipes...)
	}
	put("a1", 100, a, all)
	put("a2", 50, a, all)
	put("b", 100, b, all)
	gone := put("gone", 1000, b, all)
	st.clock.set(time.Second, callback(func() {
		if left := gone.stop(); math.Abs(left-(1000-37.5)) > 1e-6 {
			t.Errorf("%v of 1000 are left", left)
		}
	}), 0, 0)
	st.clock.set(time.Second, callback(func() {
		b.rate = 10
		st.reflow([]*pipe{b})
	}), 0, 0)
	for st.step(time.Hour) {
	}
	// Four transfers share 150: 37.5 each. After 1 s three do: 50 each, but b's own pipe is
	// slower by then. a2 ends at 1.25 s; then a1 has 75 of 150 and ends at
	// 1.25+(100-37.5-12.5)/75.
	for name, want := range map[string]float64{"a2": 1.25, "a1": 1.25 + 50.0/75, "b": 1 + 62.5/10} {
		if got := ends[name].Seconds(); math.Abs(got-want) > 1e-3 {
			t.Errorf("%s ends at %v s, want %v", name, got, want)
		}
	}
	if len(a.transfers)+len(b.transfers)+len(all.transfers) != 0 {
		t.Error("transfers are left in pipes")
	}
}

func TestCheckpointStore(t *testing.T) {
	s := checkpointStore{budget: 100, checkpoints: map[string]*simCheckpoint{}}
	put := func(name string, n functions.Bytes) *simCheckpoint {
		b := s.reserve(name, n)
		if b != nil {
			b.bytes = b.total
		}
		return b
	}
	x, y := put("x", 40), put("y", 40)
	if z := put("z", 40); z != nil {
		t.Fatal("both are in use, and there was room for a third")
	}
	x.pins, y.pins = 0, 0
	s.use(x)
	if put("z", 40) == nil || s.checkpoints["y"] != nil || s.checkpoints["x"] == nil {
		t.Fatal("the least recently used does not make way")
	}
	if s.used != 80 || len(s.cached()) != 2 || put("w", 101) != nil || s.used > 100 {
		t.Fatalf("%d bytes used, %v", s.used, s.cached())
	}
	x = put("x", 40)
	x.memory = true
	if c := s.cached(); c[len(c)-1].Tier != functions.TierDRAM {
		t.Fatal(c)
	}
	s.trimMemory(39)
	if x.memory {
		t.Fatal("what does not fit into host memory is there")
	}
}
