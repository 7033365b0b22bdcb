package activator

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/sharedrun"
	"github.com/thaw-dev/thaw/functions"
)

// slowEnv has a READY engine that takes so long for an answer.
func slowEnv(t *testing.T, took time.Duration) (*testEnv, *engine) {
	w := newTestEnv(t, nil)
	e := w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
		time.Sleep(took)
		return goodAnswer(c, r, body)
	})
	w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
	return w, e
}

// try is one try of a client that gives up after patience; 0: never.
func (e *testEnv) try(patience time.Duration, body string, head ...string) result {
	ctx := context.Background()
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	return e.do(ctx, "POST", "/v1/chat/completions", body, head...)
}

// A client that gives up at its own timeout and tries again gets the answer that its first
// try began: the engine generates once.
func TestRetryJoins(t *testing.T) {
	const seconds, count, idempotency = "X-Stainless-Timeout", "X-Stainless-Retry-Count", "Idempotency-Key"
	for name, x := range map[string]struct {
		took        time.Duration
		first       []string
		patience    time.Duration
		pause       time.Duration
		second      []string
		answered    time.Duration // since the first try
		runs        int
		firstStays  bool
		limit       functions.Limits
		cold        bool
		differently string // body of the second try
		otherKey    bool   // the second try has another key of the team
	}{
		"the official client's retry":        {took: 30 * time.Second, first: []string{seconds, "10", count, "0"}, patience: 10 * time.Second, pause: time.Second, second: []string{seconds, "60", count, "1"}, answered: 30 * time.Second, runs: 1},
		"an idempotency key":                 {took: 30 * time.Second, first: []string{idempotency, "a"}, patience: 3 * time.Second, pause: 5 * time.Second, second: []string{idempotency, "a"}, answered: 30 * time.Second, runs: 1},
		"the first is still here":            {took: 30 * time.Second, first: []string{count, "0"}, firstStays: true, pause: 5 * time.Second, second: []string{count, "1"}, answered: 30 * time.Second, runs: 1},
		"the answer came in between":         {took: 12 * time.Second, first: []string{seconds, "10", count, "0"}, patience: 10 * time.Second, pause: 5 * time.Second, second: []string{seconds, "60", count, "1"}, answered: 15 * time.Second, runs: 1},
		"a team of one request at a time":    {took: 30 * time.Second, first: []string{idempotency, "a"}, firstStays: true, pause: 5 * time.Second, second: []string{idempotency, "a"}, answered: 30 * time.Second, runs: 1, limit: functions.Limits{Concurrent: 1}},
		"while it waits for a start":         {took: time.Second, first: []string{idempotency, "a"}, patience: 3 * time.Second, pause: 5 * time.Second, second: []string{idempotency, "a"}, answered: 21 * time.Second, runs: 1, cold: true},
		"longer than the queue's wait":       {took: 10 * time.Minute, first: []string{idempotency, "a"}, patience: 3 * time.Second, pause: 5 * time.Second, second: []string{idempotency, "a", "thaw-max-wait", "60"}, answered: 10 * time.Minute, runs: 1},
		"within its client's own timeout":    {took: 10 * time.Minute, first: []string{seconds, "10", count, "0"}, patience: 10 * time.Second, pause: time.Second, second: []string{seconds, "900", count, "1"}, answered: 10 * time.Minute, runs: 1},
		"later than the grace":               {took: 30 * time.Second, first: []string{idempotency, "a"}, patience: 3 * time.Second, pause: 11 * time.Second, second: []string{idempotency, "a"}, answered: 44 * time.Second, runs: 2},
		"a client that left before its time": {took: 30 * time.Second, first: []string{seconds, "10", count, "0"}, patience: 3 * time.Second, pause: time.Second, second: []string{seconds, "60", count, "1"}, answered: 34 * time.Second, runs: 2},
		"another body":                       {took: 30 * time.Second, first: []string{idempotency, "a"}, firstStays: true, pause: time.Second, second: []string{idempotency, "a"}, answered: 31 * time.Second, runs: 2, differently: strings.Replace(plainRequest, "hello", "hallo", 1)},
		"another idempotency key":            {took: 30 * time.Second, first: []string{idempotency, "a"}, firstStays: true, pause: time.Second, second: []string{idempotency, "b"}, answered: 31 * time.Second, runs: 2},
		"another key of the team":            {took: 30 * time.Second, first: []string{idempotency, "a"}, firstStays: true, pause: time.Second, second: []string{idempotency, "a"}, answered: 31 * time.Second, runs: 2, otherKey: true},
		"no retry, the same question":        {took: 30 * time.Second, first: []string{count, "0"}, firstStays: true, pause: time.Second, second: []string{count, "0"}, answered: 31 * time.Second, runs: 2},
		"a stream is not joined":             {took: 30 * time.Second, first: []string{idempotency, "a"}, firstStays: true, pause: time.Second, second: []string{idempotency, "a"}, answered: 31 * time.Second, runs: 2, differently: streamRequest},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, e := slowEnv(t, x.took)
				if x.cold {
					w.act.Publish(testFunction("tiny"))
					w.onWake = func() { time.Sleep(20 * time.Second); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }
				}
				w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: functions.DefaultTeam}, Spec: functions.TeamSpec{Limits: x.limit}}})
				if x.otherKey {
					for _, head := range []*[]string{&x.first, &x.second} {
						key, _, err := w.keys.Create(functions.DefaultTeam, "", false)
						if err != nil {
							t.Fatal(err)
						}
						*head = append(*head, "Authorization", "Bearer "+key)
					}
				}
				began := time.Now()
				var first result
				var wg sync.WaitGroup
				wg.Go(func() { first = w.try(x.patience, plainRequest, x.first...) })
				if time.Sleep(x.patience + x.pause); !x.firstStays {
					wg.Wait()
				}
				body := plainRequest
				if x.differently != "" {
					body = x.differently
				}
				r := w.try(0, body, x.second...)
				took := time.Since(began)
				wg.Wait()
				if r.status != 200 || r.err != nil || !strings.Contains(r.body, `"finish_reason":"stop"`) || took != x.answered {
					t.Errorf("after %v: %+v", took, r)
				}
				if x.firstStays && (first.status != 200 || first.body != jsonAnswer) {
					t.Errorf("the first try: %+v", first)
				}
				if n := len(e.requests()); n != x.runs || x.cold && w.count(&w.wakes) != 1 {
					t.Errorf("%d runs, %d wakes", n, w.count(&w.wakes))
				}
				if id := r.head.Get("thaw-joined"); (id != "") != (x.runs == 1) || id != "" && id == r.head.Get("x-request-id") {
					t.Errorf("%v", r.head)
				}
			})
		})
	}
}

// Nothing of a request stays that has no client any more: it ends with the grace, and the
// grace begins anew when a retry leaves too.
func TestRetryGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		var left atomic.Pointer[time.Time]
		w.engineAt("e:1", func(c net.Conn, r *http.Request, _ string) bool {
			c.Read(make([]byte, 1))
			now := time.Now()
			left.Store(&now)
			return false
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for tries := range 3 {
			began := time.Now()
			for range tries + 1 {
				if r := w.try(5*time.Second, plainRequest, "Idempotency-Key", "a"); r.err == nil {
					t.Fatalf("%+v", r)
				}
			}
			time.Sleep(time.Minute)
			if d := left.Load().Sub(began); d != time.Duration(tries+1)*5*time.Second+sharedrun.Grace {
				t.Errorf("%d tries: the engine was left after %v", tries+1, d)
			}
			if n := w.act.InFlightOf(testFunction("tiny").Name, "e:1"); n != 0 {
				t.Errorf("%d in flight", n)
			}
		}
		if n := w.act.runs.Len(); n != 0 {
			t.Errorf("%d runs are kept", n)
		}
	})
}

// The answer is kept for the rest of the grace also where a retry had joined and left.
func TestAnswerIsKeptAfterARetryLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := slowEnv(t, 12*time.Second)
		for range 2 { // the second joins the first; the answer comes 6 s after it has left
			if r := w.try(3*time.Second, plainRequest, "Idempotency-Key", "a"); r.err == nil {
				t.Fatalf("%+v", r)
			}
		}
		time.Sleep(8 * time.Second)
		if r := w.try(0, plainRequest, "Idempotency-Key", "a"); r.status != 200 || r.took != 0 {
			t.Errorf("%+v", r)
		}
		if n := len(e.requests()); n != 1 {
			t.Errorf("%d runs", n)
		}
	})
}

// A retry that is not answered by its first try runs by itself, and one that the other
// waits for in vain is answered within its own timeout.
func TestRetryWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := slowEnv(t, 30*time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { w.try(0, plainRequest, "X-Stainless-Retry-Count", "0") })
		time.Sleep(time.Second)
		r := w.try(0, plainRequest, "X-Stainless-Retry-Count", "1", "X-Stainless-Timeout", "8")
		if r.status != 504 || r.code() != "queue_timeout" || r.took > 8*time.Second || r.took < 7*time.Second {
			t.Errorf("%+v", r)
		}
		wg.Wait()
		if n := len(e.requests()); n != 1 {
			t.Errorf("%d runs", n)
		}
	})
	synctest.Test(t, func(t *testing.T) { // while the first waits, the second waits as long as any
		w := newTestEnv(t, nil)
		w.act.Publish(testFunction("tiny"))
		var wg sync.WaitGroup
		wg.Go(func() { w.try(0, plainRequest, "Idempotency-Key", "a") })
		time.Sleep(time.Second)
		if r := w.try(0, plainRequest, "Idempotency-Key", "a", "thaw-max-wait", "5"); r.status != 503 || r.took != 5*time.Second {
			t.Errorf("%+v", r)
		}
		wg.Wait()
	})
	synctest.Test(t, func(t *testing.T) { // the first gives up waiting, the second waits longer
		w := newTestEnv(t, nil)
		e := w.engineAt("e:1", goodAnswer)
		w.act.Publish(testFunction("tiny"))
		go func() { time.Sleep(20 * time.Second); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }()
		var wg sync.WaitGroup
		wg.Go(func() {
			if r := w.try(0, plainRequest, "Idempotency-Key", "a", "thaw-max-wait", "5"); r.status != 503 {
				t.Errorf("%+v", r)
			}
		})
		time.Sleep(time.Second)
		if r := w.try(0, plainRequest, "Idempotency-Key", "a"); r.status != 200 || r.took != 19*time.Second {
			t.Errorf("%+v", r)
		}
		wg.Wait()
		if n := len(e.requests()); n != 1 {
			t.Errorf("%d runs", n)
		}
	})
}

// slowNudge is a Waker whose Nudge takes so long.
type slowNudge struct {
	Waker
	took time.Duration
}

func (s slowNudge) Nudge(n functions.Name) {
	time.Sleep(s.took)
	s.Waker.Nudge(n)
}

// The bound of a joined retry holds while the request that it repeats is in the queue again, after
// its engine failed: before the bound or behind it, also during the call of the Waker.
func TestJoinedRetryIsBoundedInTheQueue(t *testing.T) {
	for fails, answered := range map[time.Duration]time.Duration{3 * time.Second: 5 * time.Second, 7500 * time.Millisecond: 7 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, func(o *Options) { o.Waker = slowNudge{o.Waker, 10 * time.Second} })
			w.engineAt("e:1", func(net.Conn, *http.Request, string) bool {
				time.Sleep(fails)
				return false
			})
			w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			var wg sync.WaitGroup
			wg.Go(func() { w.try(0, plainRequest, "Idempotency-Key", "a", "thaw-max-wait", "30") })
			time.Sleep(time.Second)
			if r := w.try(0, plainRequest, "Idempotency-Key", "a", "thaw-max-wait", "5"); r.status != 504 || r.took != answered {
				t.Errorf("an engine that fails after %v: %+v", fails, r)
			}
			wg.Wait()
		})
	}
}

// The requests that retries may join are bounded; beyond, each runs by itself.
func TestRunsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := slowEnv(t, 30*time.Second)
		w.act.Publish(readyAt(testFunction("tiny"), 10000, "e:1"))
		var wg sync.WaitGroup
		const n = sharedrun.MaxRuns + 50 // of one body, so in one shard
		for i := range n {
			wg.Go(func() {
				if r := w.try(0, plainRequest, "Idempotency-Key", fmt.Sprint(i)); r.status != 200 {
					t.Errorf("%+v", r)
				}
			})
		}
		time.Sleep(time.Second)
		if n := w.act.runs.Len(); n != sharedrun.MaxRuns {
			t.Errorf("%d runs are kept", n)
		}
		wg.Wait()
		if len(e.requests()) != n {
			t.Errorf("%d of %d", len(e.requests()), n)
		}
	})
}
