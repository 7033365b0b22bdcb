package loader

import (
	"context"
	"errors"
	"strings"
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

func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(2)
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
		why := errors.New("left")
		cancel(why)
		if err := <-left; err != why {
			t.Errorf("error %v", err)
		}
		l.release()
		synctest.Wait()
		l.release()
		if got := strings.Join(order, ", "); got != "urgent, high, low 1, low 2" {
			t.Errorf("order %v", got)
		}
		if l.out != 0 {
			t.Errorf("%d lanes are out", l.out)
		}
	})
}

// A source that asks to be left alone is, by everybody, and by fewer after it.
func TestLinkThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(64)
		begun := time.Now()
		l.look(begun)
		for range 3 {
			l.throttle(time.Now(), 5*time.Second)
		}
		time.Sleep(time.Second)
		l.look(time.Now())
		if got := l.limit(); got != startStreams*2/3 {
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
		if d := time.Since(begun); d != 5*time.Second {
			t.Errorf("asked again after %v", d)
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
