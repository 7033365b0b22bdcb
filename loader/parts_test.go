package loader

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

func TestPause(t *testing.T) {
	r := Retry{Base: 100 * time.Millisecond, Max: time.Second}
	for _, tc := range []struct {
		n     int
		after time.Duration
		draw  float64
		want  time.Duration
	}{
		{1, 0, 0, 0},
		{1, 0, 0.5, 50 * time.Millisecond},
		{3, 0, 0.5, 200 * time.Millisecond},
		{9, 0, 0.5, 500 * time.Millisecond},
		{200, 0, 0.5, 500 * time.Millisecond},
		{1, 7 * time.Second, 0, 7 * time.Second},
		{1, 7 * time.Second, 0.5, 7*time.Second + 50*time.Millisecond},
		{1, 24 * time.Hour, 0, time.Minute},
	} {
		if got := retryDelay(r, tc.n, tc.after, tc.draw); got != tc.want {
			t.Errorf("pause(%d, %v, %v) = %v, want %v", tc.n, tc.after, tc.draw, got, tc.want)
		}
	}
}

func TestSourceLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSourceLimiter(2, linkStats{})
		for range 2 {
			if err := l.acquire(t.Context(), Low, false); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var order []string
		take := func(name string, p Priority, urgent bool) {
			go func() {
				if err := l.acquire(t.Context(), p, urgent); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				l.release()
			}()
			synctest.Wait()
		}
		take("low 1", Low, false)
		take("low 2", Low, false)
		take("high", High, false)
		take("urgent", Low, true)
		gone, cancel := context.WithCancelCause(t.Context())
		left := make(chan error)
		go func() { left <- l.acquire(gone, High, false) }()
		synctest.Wait()
		reason := errors.New("left")
		cancel(reason)
		if err := <-left; err != reason {
			t.Errorf("error %v", err)
		}
		l.release()
		synctest.Wait()
		l.release()
		if got := strings.Join(order, ", "); got != "urgent, high, low 1, low 2" {
			t.Errorf("order %v", got)
		}
		if l.inFlight != 0 {
			t.Errorf("%d lanes are out", l.inFlight)
		}
	})
}

// A source that asks for a pause gets one from all stagings, and fewer ranges after it.
func TestSourceThrottles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSourceLimiter(64, linkStats{})
		began := time.Now()
		l.measure(began)
		for range 3 {
			l.throttle(time.Now(), 5*time.Second)
		}
		for range 3 {
			if got := l.limit(); got != startRanges {
				t.Errorf("limit %d", got)
			}
			time.Sleep(measureEvery)
			l.throttle(time.Now(), time.Second)
			l.measure(time.Now())
		}
		if got := l.limit(); got != startRanges*2/3 {
			t.Errorf("limit %d", got)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := l.acquire(t.Context(), High, true); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("asked again after %v", d)
		}
	})
}

func TestProgressFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newProgressFeed()
		slow, stop := n.subscribe()
		n.update(func(p *Progress) { *p = Progress{State: Fetching, Total: 1000} })
		for range 10 {
			time.Sleep(500 * time.Millisecond)
			n.update(func(p *Progress) { p.Done += 50 })
		}
		// Who was away sees the latest only.
		p := <-slow
		if p.Done != 500 || p.Percent() != 50 || p.Rate < 99 || p.Rate > 101 {
			t.Errorf("progress %+v", p)
		}
		if eta, ok := p.ETA(); !ok || eta.Round(time.Second) != 5*time.Second {
			t.Errorf("ETA %v %v", eta, ok)
		}
		// A rate that nothing keeps up falls.
		time.Sleep(time.Minute)
		if p := n.now(); p.Rate > 10 {
			t.Errorf("rate %v after a minute of nothing", p.Rate)
		}
		stop()
		if _, open := <-slow; open {
			t.Error("told after stop")
		}
		last, stop := n.subscribe()
		defer stop()
		n.update(func(p *Progress) { p.State = Ready })
		if p := <-last; p.State != Ready || p.Percent() != 100 {
			t.Errorf("progress %+v", p)
		}
		if _, open := <-last; open {
			t.Error("open after the end")
		}
		lateReader, _ := n.subscribe()
		if p := <-lateReader; p.State != Ready {
			t.Errorf("late %+v", p)
		}
	})
}

func TestPace(t *testing.T) {
	const mb = 1e6
	at := time.Unix(1000, 0)
	// line is what so many streams bring.
	for _, tc := range []struct {
		name     string
		start    int
		line     func(streams int) float64
		bounds   [2]int // between these, after a minute
		mostEver int
	}{
		{"every stream adds", 16, func(n int) float64 { return float64(n) * 60 * mb }, [2]int{64, 64}, 64},
		{"a line that 25 fill", 16, func(n int) float64 { return min(float64(n)*60*mb, 1500*mb) }, [2]int{24, 32}, 64},
		{"one fills it", 16, func(n int) float64 { return 500 * mb }, [2]int{2, 8}, 32},
		{"more bring less", 16, func(n int) float64 { return 800*mb - float64(n)*10*mb }, [2]int{2, 8}, 32},
		{"begins low", 4, func(n int) float64 { return min(float64(n)*60*mb, 1500*mb) }, [2]int{24, 48}, 64},
	} {
		p := newController(tc.start, 2, 64)
		maximum := 0
		for i := range 1200 {
			p.step(linkSample{at: at.Add(time.Duration(i) * measureEvery), rate: tc.line(p.limit), busy: true})
			maximum = max(maximum, p.limit)
			if p.limit < 2 || p.limit > 64 {
				t.Fatalf("%s: limit %d", tc.name, p.limit)
			}
		}
		if base := p.base.ranges; base < tc.bounds[0] || base > tc.bounds[1] || maximum > tc.mostEver {
			t.Errorf("%s: settles at %d, %d at most", tc.name, base, maximum)
		}
	}
	p := newController(16, 2, 64)
	for i := range 4 {
		p.step(linkSample{at: at.Add(time.Duration(i) * time.Second), rate: 100 * mb, busy: false})
	}
	if p.limit != 16 {
		t.Errorf("learnt from an idle link: %d", p.limit)
	}
	for i := range 60 {
		p.step(linkSample{at: at.Add(time.Duration(i) * time.Second), rate: 100 * mb, busy: true, throttled: true})
	}
	if p.limit != 2 {
		t.Errorf("asked for less all the time: %d", p.limit)
	}
	// And up again when that has been a while.
	for i := range 400 {
		p.step(linkSample{at: at.Add(time.Minute + time.Duration(i)*measureEvery), rate: float64(p.limit) * mb, busy: true})
	}
	if p.limit < 32 {
		t.Errorf("a minute after that: %d", p.limit)
	}
}

func TestStretch(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		first time.Duration
		rate  float64
		want  int64
	}{
		{0, 1e9, 8 * mib},
		{30 * time.Millisecond, 57 * mib, 32 * mib},
		{5 * time.Millisecond, 57 * mib, 8 * mib},
		{time.Second, 1e9, 64 * mib},
	} {
		if got := rangeBytes(tc.first, tc.rate, 8*mib, maxRange); got != tc.want {
			t.Errorf("stretch(%v, %v) = %d MiB", tc.first, tc.rate, got/mib)
		}
	}
}

func TestTooSlow(t *testing.T) {
	const mib = 1 << 20
	typical := rangeStats{first: 30 * time.Millisecond, rate: 57 * mib, spreadFactor: 1.2}
	for _, tc := range []struct {
		name  string
		age   time.Duration
		speed float64
		got   int64
		left  int64
		known bool
		want  bool
	}{
		{"as usual", 100 * time.Millisecond, 57 * mib, 4 * mib, 4 * mib, true, false},
		{"a tenth as fast", 400 * time.Millisecond, 5.7 * mib, 2 * mib, 6 * mib, true, true},
		{"a tenth, but hardly begun", 100 * time.Millisecond, 5.7 * mib, 1 * mib, 7 * mib, true, false},
		{"a tenth, but nearly done", 1400 * time.Millisecond, 5.7 * mib, 8*mib - 1000, 1000, true, false},
		{"half as fast", 300 * time.Millisecond, 28 * mib, 4 * mib, 4 * mib, true, false},
		{"dead", 400 * time.Millisecond, 0, 4 * mib, 4 * mib, true, true},
		{"nothing is known yet", time.Second, 1 * mib, 4 * mib, 4 * mib, false, false},
		{"dead, and nothing is known", 3 * time.Second, 0, 0, 8 * mib, false, true},
	} {
		if got := worthHedging(tc.age, tc.speed, tc.got, tc.left, typical, tc.known); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// TestArrivalOfDroppedPlan: the file of a plan that was dropped is not opened as that of the
// next one, which the staging published in its place.
func TestArrivalOfDroppedPlan(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.gguf"), []byte("the next version"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	close(ended)
	plan := &stagingPlan{stale: ended, parts: map[string]*store.Part{"a.gguf": {}}}
	a := &Arrival{job: &stagingJob{done: ended, result: Checkpoint{Path: dir}}, plan: plan, files: map[string]*os.File{}}
	defer a.Close()
	if f, err := a.open(t.Context(), "a.gguf"); source.KindOf(err) != source.Changed {
		t.Errorf("opened %v, %v", f, err)
	}
}
