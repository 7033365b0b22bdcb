package orchestrator

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
)

// seeing returns a rig with a Foresight.
func seeing(t *testing.T, o *foresight.Options, p placement.Policy, ms ...*functions.Model) *testRig {
	r := &testRig{t: t, d: newFakePath(), c: &fakeCatalog{models: ms}}
	r.s = New(Options{Epoch: 1, Path: r.d, Catalog: r.c, Machine: "m-here", Here: "here", Foresight: o, Policy: p})
	r.d.setLoop(r.s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.s.Run(ctx) }()
	r.ctx = ctx
	r.stop = func() { cancel(); <-done }
	return r
}

func short(m *functions.ModelSpec) { m.Scale.Idle = functions.Duration(time.Minute) }

// use sends one request and lets it end.
func (r *testRig) use(name string) {
	r.d.ask(r.s, fname(name), 1)
	r.pass(15 * time.Second)
	r.d.done(fname(name))
	r.s.Nudge(fname(name))
	r.pass(2 * time.Second)
}

func prewarms(s *Orchestrator, result string) float64 {
	return counted(s, "thaw_prewarms_total", result)
}

func counted(s *Orchestrator, metric string, labels ...string) (n float64) {
	s.loop.counts.Each(func(m string, v float64, l ...string) {
		if m == metric && slices.Equal(l, labels) {
			n = v
		}
	})
	return n
}

func TestPeriodicUseIsPrewarmed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := seeing(t, &foresight.Options{History: forecast.New(forecast.Options{}), StartAhead: true}, placement.Policy{}, model("x", short))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		for range 6 { // every half hour; it ends after a minute
			r.use("x")
			r.pass(30*time.Minute - 17*time.Second)
		}
		for _, c := range []string{"one", "another"} {
			r.want("before "+c+" use", r.states("x"), "[READY@here]")
			starts := r.coldStarts()
			r.use("x")
			if r.coldStarts() != starts {
				t.Fatalf("%s use was a cold start", c)
			}
			r.pass(30*time.Minute - 17*time.Second)
		}
		if n := prewarms(r.s, "hit"); n < 2 {
			t.Errorf("%v hits, want 2 at least", n)
		}
		r.pass(3 * time.Hour) // no more requests
		r.want("long after", r.states("x"), "[]")
		if n := prewarms(r.s, "unused"); n < 1 {
			t.Errorf("%v unused, want 1 at least", n)
		}
		if w := counted(r.s, "thaw_prewarm_wasted_gpu_seconds_total", "default", "history"); w < 10 || w > 3*3600 {
			t.Errorf("%v GPU-seconds wasted", w)
		}
		if len(r.s.Prewarms()) != 0 {
			t.Errorf("%v still hold", r.s.Prewarms())
		}
	})
}

func TestHintIsALease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := seeing(t, &foresight.Options{History: forecast.New(forecast.Options{}), Budget: 20 * time.Minute}, placement.Policy{},
			model("x", short), model("y", short))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		hint := func(name string, d time.Duration) (functions.Prewarm, time.Duration, error) {
			p, err := r.s.Prewarm(fname(name), time.Now().Add(d), functions.PrewarmGPU, "k1")
			left := r.s.PrewarmLeft("default")
			r.pass(time.Second)
			return p, left, err
		}
		p, left, err := hint("x", 10*time.Minute)
		if err != nil || p.ID == "" || p.State != "planned" || left > 10*time.Minute+time.Second || left < 9*time.Minute {
			t.Fatalf("a hint: %+v, %v left, %v", p, left, err)
		}
		r.pass(9 * time.Minute)
		r.want("within the lease, longer than its idle time", r.states("x"), "[READY@here]")
		// Demand for another function takes its place at once.
		r.use("y")
		r.want("x, evicted for demand", r.states("x"), "[]")
		if n := prewarms(r.s, "evicted"); n != 1 {
			t.Errorf("%v evicted, want 1", n)
		}
		r.pass(2 * time.Minute)
		// An ended lease does not come back by itself.
		r.want("after all", r.states("x")+r.states("y"), "[][]")

		if _, _, err := hint("x", time.Hour); err == nil {
			t.Error("more than the budget was granted")
		} else if b := (*functions.PrewarmBudgetError)(nil); !errors.As(err, &b) || b.Team != "default" || b.In != 0 || b.Left > 20*time.Minute {
			t.Errorf("over the budget: %v", err)
		}
		p, _, err = hint("x", 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := hint("x", 8*time.Minute)
		if err != nil || again.ID != p.ID {
			t.Errorf("renewed it is another lease: %v, %+v", err, again)
		}
		r.pass(10 * time.Minute)
		r.want("after the lease", r.states("x"), "[]")
		if n := prewarms(r.s, "unused"); n != 1 {
			t.Errorf("%v unused, want 1", n)
		}
		if w := counted(r.s, "thaw_prewarm_wasted_gpu_seconds_total", "default", "k1"); w < 900 || w > 1100 {
			t.Errorf("%v GPU-seconds wasted by the caller, want nine and eight minutes", w)
		}
		if _, err := r.s.Prewarm(fname("none"), time.Now().Add(time.Minute), functions.PrewarmGPU, ""); !errors.Is(err, functions.ErrNotFound) {
			t.Errorf("of no function: %v", err)
		}
		if _, err := r.s.Prewarm(fname("x"), time.Now().Add(time.Minute), functions.PrewarmDisk, ""); !errors.Is(err, functions.ErrPrewarmTier) {
			t.Errorf("of an unavailable tier: %v", err)
		}
	})
}

func TestHintEvictsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := seeing(t, &foresight.Options{History: forecast.New(forecast.Options{})}, placement.Policy{}, model("x", short), model("y", short))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		r.use("y")
		if _, err := r.s.Prewarm(fname("x"), time.Now().Add(10*time.Minute), functions.PrewarmGPU, "k1"); err != nil {
			t.Fatal(err)
		}
		r.pass(30 * time.Second)
		// LRU values a function never used less than one used just now.
		r.want("y, used last", r.states("y")+r.states("x"), "[READY@here][]")
		r.pass(2 * time.Minute)
		r.want("once y has ended by itself", r.states("y")+r.states("x"), "[][READY@here]")
	})
}

func TestBytesAhead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		o := &foresight.Options{History: forecast.New(forecast.Options{}),
			Prefetch: func(_ context.Context, m *functions.Model, memory bool) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, m.Metadata.Name)
				if memory {
					return errors.New("no memory to spare")
				}
				return nil
			}}
		r := seeing(t, o, placement.Policy{}, model("x", short))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		for _, tier := range []string{functions.PrewarmDisk, functions.PrewarmMemory} {
			if _, err := r.s.Prewarm(fname("x"), time.Now().Add(time.Hour), tier, "k1"); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.s.StageAhead(fname("x"), "k1"); err != nil { // it has a lease
			t.Fatal(err)
		}
		r.pass(5 * time.Second)
		var states []string
		for _, p := range r.s.Prewarms() {
			states = append(states, p.Tier+" "+p.State)
		}
		slices.Sort(states)
		if !slices.Equal(states, []string{"memory failed", "nvme fetched"}) {
			t.Errorf("%v", states)
		}
		r.want("no replica", r.states("x"), "[]")
		if n := prewarms(r.s, "fetched") + prewarms(r.s, "fetch_failed"); n != 2 || len(got) != 2 {
			t.Errorf("%v counted, %v brought, want each once", n, got)
		}
	})
}

func TestLearnedKeepAlive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := placement.DefaultPolicy
		p.KeepAlive = placement.Learned
		r := seeing(t, &foresight.Options{History: forecast.New(forecast.Options{})}, p, model("x", short), model("z", short))
		defer r.stop()
		r.host(newFakeAgent("here", 2))
		for range 6 { // every two minutes, longer than its standard keep-alive
			r.use("x")
			r.pass(103 * time.Second)
		}
		cold := r.coldStarts()
		for range 3 {
			r.use("x")
			r.pass(103 * time.Second)
		}
		if r.coldStarts() != cold {
			t.Errorf("%d more cold starts though its habit is known", r.coldStarts()-cold)
		}
		r.use("z")
		r.pass(70 * time.Second)
		r.want("one that is not known", r.states("z"), "[]")
		r.pass(7 * time.Minute) // the bound is six idle times
		r.want("x in the end", r.states("x"), "[]")
	})
}

func TestHistorySurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	open := func() *foresight.Options {
		return foresight.Open(dir, time.Now(), slog.New(slog.NewTextHandler(&log, nil)))
	}
	var p50 time.Duration
	synctest.Test(t, func(t *testing.T) {
		r := seeing(t, open(), placement.Policy{}, model("x", short))
		r.host(newFakeAgent("here", 1))
		for range 3 {
			r.use("x")
			r.pass(30 * time.Minute)
		}
		f, _ := r.s.Function(fname("x"))
		if p50 = f.Forecast.P50; p50 <= 0 {
			t.Fatalf("no forecast after three starts: %+v", f.Forecast)
		}
		r.stop()

		r = seeing(t, open(), placement.Policy{}, model("x", short))
		r.pass(time.Second)
		if f, _ = r.s.Function(fname("x")); f.Forecast.P50 != p50 {
			t.Errorf("after the restart the forecast is %v, want %v", f.Forecast.P50, p50)
		}
		r.stop()
		if n := r.s.loop.forecaster.History.Len(); n != 1 {
			t.Errorf("%d functions are known after the restart", n)
		}
		// Starts measured with other settings are not restored.
		r = seeing(t, open(), placement.Policy{}, model("x", short, func(m *functions.ModelSpec) { m.Source = "az://a/c/other" }))
		r.pass(time.Second)
		if f, _ = r.s.Function(fname("x")); f.Forecast.P50 > 0 {
			t.Errorf("the forecast of other settings: %v", f.Forecast.P50)
		}
		r.stop()
	})
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
}

// TestPrewarmUsedAtOnce: a start ahead that is used while it goes on was late, and had room.
func TestPrewarmUsedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := seeing(t, &foresight.Options{History: forecast.New(forecast.Options{})}, placement.Policy{}, model("x", short))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		if _, err := r.s.Prewarm(fname("x"), time.Now().Add(5*time.Minute), functions.PrewarmGPU, "router default/auto"); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Millisecond) // the start began, and no tick has passed
		r.use("x")
		if late, none := prewarms(r.s, "late"), prewarms(r.s, "no_room"); late != 1 || none != 0 {
			t.Errorf("%v late and %v without room, want 1 and 0", late, none)
		}
	})
}

// TestRelease: a replica that is READY for less than Policy.Residency is evicted for demand
// once it was released, and not before.
func TestRelease(t *testing.T) {
	for _, released := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, 1, model("x"), model("y"))
			defer r.stop()
			r.host(newFakeAgent("here", 1))
			r.d.ask(r.s, fname("x"), 1)
			for r.states("x") != "[READY@here]" {
				r.pass(10 * time.Millisecond)
			}
			r.d.done(fname("x"))
			r.d.ask(r.s, fname("y"), 1)
			r.pass(100 * time.Millisecond)
			r.want("in its residency", r.states("x"), "[READY@here]")
			if released {
				r.s.Release(fname("x"))
			}
			r.pass(100 * time.Millisecond)
			if ready := r.states("x") == "[READY@here]"; ready == released {
				t.Errorf("released: %v, READY: %v", released, ready)
			}
		})
	}
}

// TestBriefPrewarm: a lease that is given up stops the unused replica, and touches no lease
// of another.
func TestBriefPrewarm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := seeing(t, &foresight.Options{History: forecast.New(forecast.Options{})}, placement.Policy{}, model("x", short))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		brief := func() {
			t.Helper()
			if err := r.s.PrewarmBriefly(fname("x"), time.Now().Add(5*time.Minute), "socket"); err != nil {
				t.Fatal(err)
			}
			r.pass(20 * time.Second)
			r.want("started", r.states("x"), "[READY@here]")
		}
		brief()
		r.s.EndPrewarm(fname("x"), "another")
		r.pass(5 * time.Second)
		r.want("by another", r.states("x"), "[READY@here]")
		r.s.EndPrewarm(fname("x"), "socket")
		r.s.EndPrewarm(fname("x"), "socket")
		r.s.EndPrewarm(fname("none"), "socket")
		r.pass(20 * time.Second)
		r.want("given up", r.states("x"), "[]")
		if n := prewarms(r.s, "unused"); n != 1 {
			t.Errorf("%v unused, want 1", n)
		}
		if _, err := r.s.Prewarm(fname("x"), time.Now().Add(20*time.Minute), functions.PrewarmGPU, "k1"); err != nil {
			t.Fatal(err)
		}
		brief()
		r.s.EndPrewarm(fname("x"), "socket")
		r.pass(20 * time.Second)
		r.want("the longer lease", r.states("x"), "[READY@here]")
		if p := r.s.Prewarms(); len(p) != 1 || p[0].By != "k1" {
			t.Errorf("%+v", p)
		}
	})
}

// TestStopEndsPrewarm: what a user stops is not started again by a lease.
func TestStopEndsPrewarm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := seeing(t, &foresight.Options{History: forecast.New(forecast.Options{})}, placement.Policy{}, model("x"))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		if _, err := r.s.Prewarm(fname("x"), time.Now().Add(time.Hour), functions.PrewarmGPU, "a user"); err != nil {
			t.Fatal(err)
		}
		r.pass(15 * time.Second)
		r.want("with the lease", r.states("x"), "[READY@here]")
		r.s.Stop(fname("x"))
		r.pass(time.Minute)
		r.want("stopped", r.states("x"), "[]")
		if ps := r.s.Prewarms(); len(ps) > 0 {
			t.Errorf("leases %+v", ps)
		}
	})
}
