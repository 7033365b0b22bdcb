package rangelimit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(2, Link{})
		for range 2 {
			if err := l.Acquire(t.Context(), Low, false); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var order []string
		take := func(name string, p Priority, urgent bool) {
			go func() {
				if err := l.Acquire(t.Context(), p, urgent); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				l.Release()
			}()
			synctest.Wait()
		}
		take("low 1", Low, false)
		take("low 2", Low, false)
		take("high", High, false)
		take("urgent", Low, true)
		gone, cancel := context.WithCancelCause(t.Context())
		left := make(chan error)
		go func() { left <- l.Acquire(gone, High, false) }()
		synctest.Wait()
		reason := errors.New("left")
		cancel(reason)
		if err := <-left; err != reason {
			t.Errorf("error %v", err)
		}
		l.Release()
		synctest.Wait()
		l.Release()
		if got := strings.Join(order, ", "); got != "urgent, high, low 1, low 2" {
			t.Errorf("order %v", got)
		}
		if l.inFlight != 0 {
			t.Errorf("%d ranges are in flight", l.inFlight)
		}
	})
}

// A source that asks for a pause gets one from all stagings, and fewer ranges after it.
func TestSourceThrottles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(64, Link{})
		began := time.Now()
		l.Measure(began)
		for range 3 {
			l.Throttle(time.Now(), 5*time.Second)
		}
		for range 3 {
			if got := l.Limit(); got != startRanges {
				t.Errorf("limit %d", got)
			}
			time.Sleep(measureEvery)
			l.Throttle(time.Now(), time.Second)
			l.Measure(time.Now())
		}
		if got := l.Limit(); got != startRanges*2/3 {
			t.Errorf("limit %d", got)
		}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := l.Acquire(t.Context(), High, true); err != nil {
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

func TestController(t *testing.T) {
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
			p.step(sample{at: at.Add(time.Duration(i) * measureEvery), rate: tc.line(p.limit), busy: true})
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
		p.step(sample{at: at.Add(time.Duration(i) * time.Second), rate: 100 * mb, busy: false})
	}
	if p.limit != 16 {
		t.Errorf("learnt from an idle link: %d", p.limit)
	}
	for i := range 60 {
		p.step(sample{at: at.Add(time.Duration(i) * time.Second), rate: 100 * mb, busy: true, throttled: true})
	}
	if p.limit != 2 {
		t.Errorf("asked for less all the time: %d", p.limit)
	}
	// And up again when that has been a while.
	for i := range 400 {
		p.step(sample{at: at.Add(time.Minute + time.Duration(i)*measureEvery), rate: float64(p.limit) * mb, busy: true})
	}
	if p.limit < 32 {
		t.Errorf("a minute after that: %d", p.limit)
	}
}
