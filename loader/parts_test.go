package loader

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/loader/rangelimit"
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
		// A problem does not wait for the next progress, which may be minutes away.
		if !n.update(func(p *Progress) { p.Problem = "429" }) || n.update(func(p *Progress) { p.Done++ }) {
			t.Error("a problem waits, or progress does not")
		}
		if p := <-slow; p.Problem != "429" {
			t.Errorf("problem %+v", p)
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
	typical := rangelimit.RangeStats{First: 30 * time.Millisecond, Rate: 57 * mib, SpreadFactor: 1.2}
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
