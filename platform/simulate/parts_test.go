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
	a, b := &pipe{rate: 100}, &pipe{rate: 150}
	ends := map[string]time.Duration{}
	put := func(name string, bytes float64, through *pipe) *transfer {
		return st.startTransfer(bytes, func() { ends[name] = st.clock.now }, through)
	}
	put("a", 100, a)
	put("b1", 100, b)
	put("b2", 75, b)
	gone := put("gone", 1000, b)
	st.clock.set(time.Second, callback(func() {
		if left := gone.stop(); math.Abs(left-950) > 1e-6 {
			t.Errorf("%v of 1000 are left", left)
		}
	}), 0, 0)
	st.clock.set(1200*time.Millisecond, callback(func() {
		b.rate = 20
		st.reflow(b)
	}), 0, 0)
	for st.step(time.Hour) {
	}
	// Three transfers share b's 150: 50 each. After 1 s two do: 75 each, and 0.2 s later 10
	// each. b2 ends at 1.2+(75-50-15)/10; then b1 has 20 of the 25 that are left.
	for name, want := range map[string]float64{"a": 1, "b2": 2.2, "b1": 2.2 + 25.0/20} {
		if got := ends[name].Seconds(); math.Abs(got-want) > 1e-3 {
			t.Errorf("%s ends at %v s, want %v", name, got, want)
		}
	}
	if len(a.transfers)+len(b.transfers) != 0 {
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
