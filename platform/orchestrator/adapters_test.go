package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// LoadAdapter makes host an AdapterLoader. A load takes two seconds.
func (a *fakeAgent) LoadAdapter(ctx context.Context, req functions.AdapterRequest) error {
	a.mu.Lock()
	a.unload = append(a.unload, "adapter "+req.Name)
	cause := a.fail[req.Name]
	a.mu.Unlock()
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if cause != "" {
		return &functions.AdapterError{Code: "adapter_invalid", Message: cause}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.reps[req.ID]; r != nil && !slices.Contains(r.Adapters, req.Name) {
		r.Adapters = append(slices.Clone(r.Adapters), req.Name)
		a.push()
	}
	return nil
}

func has(r *testRig, adapter string) bool {
	p := r.d.snapshot(fname("x"))
	return p.AdapterLoaded(adapter)
}

func (a *fakeAgent) asked(what string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, u := range a.unload {
		if u == what {
			n++
		}
	}
	return n
}

func TestAdapters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x", func(s *functions.ModelSpec) {
			s.Adapters = []functions.Adapter{{Name: "pirate", Source: "./p"}, {Name: "poet", Source: "./q"}, {Name: "wide", Source: "./r"}}
		}))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.want("served", r.states("x"), "[READY@here]")
		id := r.s.Replicas()[0].ID
		pirate := functions.Name{Team: "default", Name: "x", Adapter: "pirate"}

		// Concurrent loads share one request to the node, and a cancelled caller cancels no other.
		var wg sync.WaitGroup
		hurried, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		errs := make(chan error, 20)
		for i := range 20 {
			wg.Go(func() {
				ctx := t.Context()
				if i%2 == 0 {
					ctx = hurried
				}
				errs <- r.s.LoadAdapter(ctx, pirate, id)
			})
		}
		wg.Wait()
		left := 0
		for range 20 {
			if err := <-errs; errors.Is(err, context.DeadlineExceeded) {
				left++
			} else if err != nil {
				t.Error(err)
			}
		}
		if n := h.asked("adapter pirate"); left != 10 || n > 2 {
			t.Errorf("%d left, the node was asked %d times", left, n)
		}
		synctest.Wait()
		if p := r.d.snapshot(fname("x")); fmt.Sprint(p.Replicas[0].Adapters) != "[pirate]" || !p.AdapterLoaded("pirate") ||
			p.AdapterLoaded("poet") {
			t.Errorf("%+v", p.Replicas)
		}

		// UseAdapter reports the use to the node without waiting.
		before := h.asked("adapter pirate")
		r.s.UseAdapter(pirate, id)
		r.s.UseAdapter(pirate, "gone")
		r.pass(time.Second)
		if n := h.asked("adapter pirate"); n != before+1 {
			t.Errorf("asked %d times more", n-before)
		}

		h.mu.Lock()
		h.fail["wide"] = "its rank is 64"
		h.mu.Unlock()
		wide := functions.Name{Team: "default", Name: "x", Adapter: "wide"}
		var ae *functions.AdapterError
		if err := r.s.LoadAdapter(t.Context(), wide, id); !errors.As(err, &ae) || ae.Code != "adapter_invalid" {
			t.Error(err)
		}
		if err := r.s.LoadAdapter(t.Context(), pirate, "gone"); err == nil ||
			errors.As(err, &ae) && ae.Code == "adapter_invalid" && ae.Message == "" {
			t.Error(err)
		}

		// Ahead of requests: at once if the function is READY, else when it becomes READY.
		poet := functions.Name{Team: "default", Name: "x", Adapter: "poet"}
		r.s.WakeFor(poet, time.Minute)
		r.pass(3 * time.Second)
		if !has(r, "poet") {
			t.Error("not loaded ahead")
		}
		r.d.done(fname("x"))
		r.s.Stop(fname("x"))
		r.pass(time.Second)
		r.want("at rest", r.states("x"), "[]")
		r.s.WakeFor(poet, time.Minute)
		r.pass(10 * time.Second)
		r.want("woken", r.states("x"), "[READY@here]")
		if !has(r, "poet") {
			t.Error("not loaded when it was READY")
		}
	})
}
