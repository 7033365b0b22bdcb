package orchestrator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Sleep makes host a Sleeper: falling asleep takes a second, waking half of one. A
// model in fail does not wake; sleepless refuses.
func (a *fakeAgent) Sleep(ctx context.Context, req functions.SleepRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		return a.refuse
	}
	r := a.reps[req.ID]
	if r == nil {
		return errors.New("no such replica")
	}
	a.unload = append(a.unload, r.Model+map[bool]string{true: " wake", false: " sleep"}[req.Level == 0])
	later := func(d time.Duration, f func()) {
		a.timers[req.ID] = time.AfterFunc(d, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.reps[req.ID] == r {
				f()
				a.push()
			}
		})
	}
	a.since[req.ID] = time.Now()
	if req.Level > 0 {
		r.State, r.SleepLevel = functions.Sleeping, 0
		later(time.Second, func() { r.SleepLevel, r.Tier = req.Level, functions.TierSleeping })
	} else {
		r.State, r.SleepLevel, r.Phases = functions.Loading, 0, nil
		later(500*time.Millisecond, func() {
			if cause := a.fail[r.Model]; cause != "" {
				r.State, r.Error = functions.Failed, cause
				return
			}
			r.State = functions.Ready
			r.Phases = []functions.Span{{Phase: functions.PhaseLoad, Duration: 0.5}}
		})
	}
	a.push()
	return nil
}

func sleepy(name string, edit ...func(*functions.ModelSpec)) *functions.Model {
	return model(name, append([]func(*functions.ModelSpec){func(s *functions.ModelSpec) {
		s.Engine, s.Args = functions.EngineVLLM, []string{"--enable-sleep-mode"}
		s.Scale.Idle = functions.Duration(time.Minute)
	}}, edit...)...)
}

// TestSleeplessNode: on a node whose replicas cannot sleep, as those of a cluster, no sleep
// is planned: an idle replica ends as any other.
func TestSleeplessNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, sleepy("x"))
		defer r.stop()
		h := newFakeAgent("here", 1)
		h.awake = true
		r.host(h)
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.d.done(fname("x"))
		r.pass(65 * time.Second)
		r.want("idle", r.states("x"), "[]")
		for _, e := range r.s.Events(0) {
			if e.Kind == "sleep" || e.Kind == "sleep_failed" || e.Kind == "stop" && e.Reason != "idle" {
				t.Errorf("%+v", e)
			}
		}
	})
}

func TestSleepLevels(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, sleepy("x"))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.want("served", r.states("x"), "[READY@here]")
		r.d.done(fname("x"))
		r.pass(59 * time.Second)
		r.want("not idle for long enough", r.states("x"), "[READY@here]")
		r.pass(4 * time.Second)
		r.want("idle", r.states("x"), "[SLEEPING@here]")
		p := r.d.snapshot(fname("x"))
		if len(p.Replicas) != 0 || p.State != functions.Sleeping || !p.Sleeping {
			t.Errorf("the data path sees %+v", p)
		}
		if p.Forecast.P50 >= 0 {
			t.Errorf("no wake-up was measured, and the forecast is %v", p.Forecast.P50)
		}

		// With demand it wakes up: no load, and a cold start of tier sleeping.
		id := r.d.ask(r.s, fname("x"), 3)
		r.pass(100 * time.Millisecond)
		if p := r.d.snapshot(fname("x")); p.State != functions.Loading || p.ColdStart == nil || p.ColdStart.ID != id || !p.Starting() {
			t.Errorf("while it rises: %+v", p)
		}
		r.pass(time.Second)
		r.want("risen", r.states("x"), "[READY@here]")
		loads, _ := h.did()
		if len(loads) != 1 || r.d.inFlightOf(r.s.Replicas()[0].ID) != 3 {
			t.Errorf("loads %v", loads)
		}
		tl, _ := r.s.ColdStart(id)
		if tl.Tier != functions.TierSleeping || tl.State != functions.Ready || tl.Total > 1 || tl.Total < 0.4 {
			t.Errorf("%+v", tl)
		}
		for _, p := range tl.Phases {
			if p.Phase == functions.PhaseStage || p.Phase == functions.PhaseSpawn {
				t.Errorf("a wake-up has no phase %s", p.Phase)
			}
		}
		if got := r.s.loop.functions[fname("x")].starts.Forecast(true).P50; got < 3*time.Second {
			t.Errorf("a wake-up has spoilt the forecast of starts: %v", got)
		}

		// After a second idle time it stops.
		r.d.done(fname("x"))
		r.pass(64 * time.Second)
		r.want("asleep again", r.states("x"), "[SLEEPING@here]")
		if got := r.d.snapshot(fname("x")).Forecast.P50; got < 400*time.Millisecond || got > time.Second {
			t.Errorf("the forecast of the next wake-up is %v", got)
		}
		r.pass(64 * time.Second)
		r.want("unloaded", r.states("x"), "[]")
	})
}

func TestEvictedToSleep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, sleepy("x"), sleepy("y"))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		for turn := range 4 {
			name := []string{"x", "y"}[turn%2]
			other := []string{"y", "x"}[turn%2]
			r.d.ask(r.s, fname(name), 1)
			r.pass(10 * time.Second)
			r.want(name+" is served", r.states(name), "[READY@here]")
			if turn > 0 {
				r.want(other+" sleeps meanwhile", r.states(other), "[SLEEPING@here]")
			}
			r.d.done(fname(name))
			r.pass(2 * time.Second)
		}
		if loads, did := h.did(); len(loads) != 2 {
			t.Errorf("loads %v, then %v", loads, did)
		}
	})
}

// TestWakeHung: a replica that does not wake is not published as a failure: a cold
// start replaces it.
func TestWakeHung(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, sleepy("x"))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.d.done(fname("x"))
		r.pass(64 * time.Second)
		r.want("asleep", r.states("x"), "[SLEEPING@here]")
		h.mu.Lock()
		h.fail["x"] = "vllm: wake hung: no answer to /wake_up within 30s"
		h.mu.Unlock()
		id := r.d.ask(r.s, fname("x"), 1)
		r.pass(600 * time.Millisecond)
		h.mu.Lock()
		delete(h.fail, "x")
		h.mu.Unlock()
		r.pass(6 * time.Second)
		r.want("started anew", r.states("x"), "[READY@here]")
		if r.d.failed[fname("x")] != "" {
			t.Errorf("the waiter got %q", r.d.failed[fname("x")])
		}
		loads, _ := h.did()
		if tl, _ := r.s.ColdStart(id); len(loads) != 2 || tl.State != functions.Ready || tl.Tier == functions.TierSleeping {
			t.Errorf("loads %v, %+v", loads, tl)
		}
	})
}

func TestSleepRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, sleepy("x"))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.d.done(fname("x"))
		h.mu.Lock()
		h.refuse = errors.New("no")
		h.mu.Unlock()
		r.pass(62 * time.Second)
		h.mu.Lock()
		h.refuse = nil
		h.mu.Unlock()
		r.pass(12 * time.Second)
		r.want("ended instead", r.states("x"), "[]")
	})
}

func TestSleeperAdopted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, sleepy("x"))
		h := r.host(newFakeAgent("here", 1))
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.d.done(fname("x"))
		r.pass(80 * time.Second)
		r.want("asleep", r.states("x"), "[SLEEPING@here]")
		r.stop()
		r.boot(2)
		defer func() { r.stop() }()
		r.host(h)
		r.pass(time.Second)
		r.want("adopted asleep", r.states("x"), "[SLEEPING@here]")
		r.d.ask(r.s, fname("x"), 1)
		r.pass(2 * time.Second)
		r.want("risen", r.states("x"), "[READY@here]")
		if loads, _ := h.did(); len(loads) != 1 {
			t.Errorf("loads %v", loads)
		}
		// A sleeper whose settings changed is stopped.
		r.d.done(fname("x"))
		r.pass(64 * time.Second)
		r.want("asleep", r.states("x"), "[SLEEPING@here]")
		r.c.set(sleepy("x", func(s *functions.ModelSpec) { s.Args = append(s.Args, "--max-model-len", "64") }))
		r.s.Changed()
		r.pass(2 * time.Second)
		r.want("ended", r.states("x"), "[]")
	})
}

func TestStoppedAsleep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, sleepy("x"))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.d.done(fname("x"))
		r.pass(64 * time.Second)
		r.s.Stop(fname("x"))
		r.pass(time.Second)
		r.want("ended", r.states("x"), "[]")
		if _, did := h.did(); !strings.Contains(strings.Join(did, ","), "x asked") {
			t.Error(did)
		}
	})
}
