package loader

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
		if got := pause(r, tc.n, tc.after, tc.draw); got != tc.want {
			t.Errorf("pause(%d, %v, %v) = %v, want %v", tc.n, tc.after, tc.draw, got, tc.want)
		}
	}
}

func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(2, 10)
		a, err := l.acquire(t.Context(), Low)
		if err != nil || len(a) != 10 {
			t.Fatal(err)
		}
		b, _ := l.acquire(t.Context(), Low)
		var mu sync.Mutex
		var order []string
		take := func(name string, p Priority) {
			go func() {
				buf, err := l.acquire(t.Context(), p)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				l.release(buf)
			}()
			synctest.Wait()
		}
		take("low 1", Low)
		take("low 2", Low)
		take("high", High)
		gone, cancel := context.WithCancelCause(t.Context())
		left := make(chan error)
		go func() { _, err := l.acquire(gone, High); left <- err }()
		synctest.Wait()
		why := errors.New("left")
		cancel(why)
		if err := <-left; err != why {
			t.Errorf("error %v", err)
		}
		l.release(a)
		synctest.Wait()
		l.release(b)
		if got := len(order); got != 3 || order[0] != "high" || order[1] != "low 1" {
			t.Errorf("order %v", order)
		}
		if len(l.free) != 2 {
			t.Errorf("%d buffers came back", len(l.free))
		}
	})
}

func TestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNews()
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
		late, _ := n.subscribe()
		if p := <-late; p.State != Ready {
			t.Errorf("late %+v", p)
		}
	})
}
