package activator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// fakeShim is a replica whose shim keeps requests until it is READY.
type fakeShim struct {
	*engine
	opened      chan struct{}
	waiting     atomic.Int64
	disconnects atomic.Int64 // that were called back
	refuses     atomic.Bool
}

const notReady = `{"error":{"message":"The model is loading.","type":"server_error","code":"model_loading"}}`

func (e *testEnv) shimAt(addr string) *fakeShim {
	p := &fakeShim{opened: make(chan struct{})}
	p.engine = e.engineAt(addr, func(c net.Conn, r *http.Request, body string) bool {
		if r.Header.Get(snapshot.EarlyHeader) == "" || p.wait(c) {
			return goodAnswer(c, r, body)
		}
		return p.refuses.Load() &&
			writeString(c, fmt.Sprintf("HTTP/1.1 503 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(notReady), notReady))
	})
	return p
}

// wait reports whether the request is to be answered.
func (s *fakeShim) wait(c net.Conn) bool {
	if s.refuses.Load() {
		return false
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.Read(make([]byte, 1))
	}()
	select {
	case <-s.opened:
		c.SetReadDeadline(time.Unix(1, 0))
		<-gone
		c.SetReadDeadline(time.Time{})
		return !s.refuses.Load()
	case <-gone:
		s.disconnects.Add(1)
		return false
	}
}

// startingAt is a starting function at an address that takes early copies.
func startingAt(f snapshot.Snapshot, slots int, addrs ...string) snapshot.Snapshot {
	f = readyAt(f, slots, addrs...)
	f.State, f.EarlyReplicas, f.Replicas = functions.Loading, f.Replicas, nil
	return f
}

// startRequests has n clients ask; what they got comes in any order.
func (e *testEnv) startRequests(ctx context.Context, n int, body string) chan result {
	out := make(chan result, n)
	for range n {
		go func() { out <- e.do(ctx, "POST", "/v1/chat/completions", body) }()
	}
	synctest.Wait()
	return out
}

func TestEarly(t *testing.T) {
	for kind, body := range map[string]string{"plain": plainRequest, "stream": streamRequest} {
		whole := jsonAnswer
		if kind == "stream" {
			whole = streamed
		}
		ahead := func(name string, do func(t *testing.T, w *testEnv, p *fakeShim, got chan result)) {
			t.Run(kind+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTestEnv(t, nil)
					p := w.shimAt("p:1")
					w.act.Publish(loadingAt(testFunction("tiny"), functions.Downloading, -1, -1))
					got := w.startRequests(t.Context(), 1, body)
					w.act.Publish(startingAt(testFunction("tiny"), 4, "p:1"))
					synctest.Wait()
					if n := p.waiting.Load(); n != 1 {
						t.Fatalf("%d requests are at the door", n)
					}
					// It waits in line all the same.
					if d, _ := w.act.DemandOf(testFunction("tiny").Name); d.Queued != 1 || d.Active != 0 ||
						w.act.InFlightOf(testFunction("tiny").Name, "p:1") != 0 {
						t.Fatalf("%+v", d)
					}
					do(t, w, p, got)
				})
			})
		}
		served := func(t *testing.T, w *testEnv, got chan result) {
			t.Helper()
			if r := <-got; r.err != nil || r.status != 200 || plainEvents(r.body) != whole {
				t.Errorf("%+v", r)
			}
			if a := w.engineRequests(); len(a) != 0 {
				t.Errorf("blamed: %q", a)
			}
		}

		ahead("READY at the door first", func(t *testing.T, w *testEnv, p *fakeShim, got chan result) {
			close(p.opened)
			served(t, w, got) // without a snapshot that says READY
			if d, _ := w.act.DemandOf(testFunction("tiny").Name); d.Queued != 0 || d.Active != 0 {
				t.Errorf("%+v", d)
			}
			w.act.Publish(readyAt(testFunction("tiny"), 4, "p:1"))
			synctest.Wait()
			if n := w.act.InFlightOf(testFunction("tiny").Name, "p:1"); n != 0 {
				t.Errorf("%d are in flight", n)
			}
			if n := len(p.requests()); n != 1 {
				t.Errorf("the replica has seen %d requests", n)
			}
		})
		ahead("READY in the picture first", func(t *testing.T, w *testEnv, p *fakeShim, got chan result) {
			w.act.Publish(readyAt(testFunction("tiny"), 4, "p:1"))
			synctest.Wait()
			if n := w.act.InFlightOf(testFunction("tiny").Name, "p:1"); n != 1 {
				t.Errorf("%d are in flight", n)
			}
			close(p.opened)
			served(t, w, got)
			if n := len(p.requests()); n != 1 {
				t.Errorf("the replica has seen %d requests", n)
			}
		})
		ahead("the start fails", func(t *testing.T, w *testEnv, p *fakeShim, got chan result) {
			f := testFunction("tiny")
			f.State, f.Failure = functions.Failed, &snapshot.Failure{Reason: "out of memory", At: time.Now()}
			w.act.Publish(f)
			if r := <-got; r.status != 503 || r.code() != "model_load_failed" {
				t.Errorf("%+v", r)
			}
			synctest.Wait()
			if p.disconnects.Load() != 1 || p.waiting.Load() != 0 {
				t.Error("the request is at the door still")
			}
		})
		ahead("its pod dies of it, maybe, and another comes", func(t *testing.T, w *testEnv, p *fakeShim, got chan result) {
			p.kill()
			synctest.Wait()
			q := w.shimAt("q:1")
			w.act.Publish(startingAt(testFunction("tiny"), 4, "q:1"))
			synctest.Wait()
			if n := len(q.requests()); n != 0 {
				t.Fatalf("%d requests are at the other's door", n)
			}
			w.act.Publish(readyAt(testFunction("tiny"), 4, "q:1"))
			served(t, w, got)
		})
		ahead("another is READY first", func(t *testing.T, w *testEnv, p *fakeShim, got chan result) {
			w.engineAt("e:1", goodAnswer)
			f := readyAt(testFunction("tiny"), 4, "e:1")
			f.EarlyReplicas = startingAt(testFunction("tiny"), 4, "p:1").EarlyReplicas
			w.act.Publish(f)
			served(t, w, got)
			synctest.Wait()
			if p.disconnects.Load() != 1 || p.waiting.Load() != 0 {
				t.Error("the copy was not called back")
			}
		})
		ahead("turned away when it was let through", func(t *testing.T, w *testEnv, p *fakeShim, got chan result) {
			w.act.Publish(readyAt(testFunction("tiny"), 4, "p:1"))
			synctest.Wait()
			p.refuses.Store(true)
			close(p.opened)
			served(t, w, got) // asked again, by then as one that is READY
			if n := len(p.requests()); n != 2 {
				t.Errorf("the replica has seen %d requests", n)
			}
		})
		ahead("dead when it was let through", func(t *testing.T, w *testEnv, p *fakeShim, got chan result) {
			w.engineAt("e:1", goodAnswer)
			w.act.Publish(readyAt(testFunction("tiny"), 4, "p:1"))
			synctest.Wait()
			w.act.Publish(readyAt(testFunction("tiny"), 4, "p:1", "e:1"))
			p.kill()
			if r := <-got; r.status != 200 || plainEvents(r.body) != whole {
				t.Errorf("%+v", r)
			}
			if a := w.engineRequests(); len(a) != 1 {
				t.Errorf("not looked at: %q", a)
			}
		})
		t.Run(kind+"/the door takes none", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				p := w.shimAt("p:1")
				p.refuses.Store(true)
				w.act.Publish(startingAt(testFunction("tiny"), 4, "p:1"))
				got := w.startRequests(t.Context(), 1, body)
				for range 3 { // news about it is no reason to try again
					w.act.Publish(loadingAt(testFunction("tiny"), functions.Loading, -1, -1))
					w.act.Publish(startingAt(testFunction("tiny"), 4, "p:1"))
					synctest.Wait()
				}
				if n := len(p.requests()); n != 1 {
					t.Errorf("the door was tried %d times", n)
				}
				w.act.Publish(readyAt(testFunction("tiny"), 4, "p:1"))
				served(t, w, got)
			})
		})
		t.Run(kind+"/its client leaves", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				p := w.shimAt("p:1")
				w.act.Publish(startingAt(testFunction("tiny"), 4, "p:1"))
				ctx, cancel := context.WithCancel(t.Context())
				got := w.startRequests(ctx, 1, body)
				cancel()
				if r := <-got; !errors.Is(r.err, context.Canceled) {
					t.Errorf("%+v", r)
				}
				time.Sleep(time.Second)
				if p.disconnects.Load() != 1 || p.waiting.Load() != 0 {
					t.Error("the copy is at the door still")
				}
			})
		})
	}
}

// TestEarlyIsBounded: only the first requests of the queue are sent early, no more
// than the replica has slots, and over several replicas in turn.
func TestEarlyIsBounded(t *testing.T) {
	large := strings.Replace(plainRequest, `"messages"`, `"user":"`+strings.Repeat("x", maxEarlyBody)+`","messages"`, 1)
	for _, c := range []struct {
		slots, clients int
		earlyEndpoints []string
		want           []int64
		ask            string
	}{
		{3, 20, []string{"p:1"}, []int64{3}, plainRequest},
		{100, 20, []string{"p:1"}, []int64{maxEarlyPerReplica}, plainRequest},
		{2, 20, []string{"p:1", "p:2"}, []int64{2, 2}, plainRequest},
		{100, 3, []string{"p:1", "p:2"}, []int64{2, 1}, plainRequest},
		{100, 3, []string{"p:1"}, []int64{0}, large},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			var at1 []*fakeShim
			for _, addr := range c.earlyEndpoints {
				at1 = append(at1, w.shimAt(addr))
			}
			w.act.Publish(startingAt(testFunction("tiny"), c.slots, c.earlyEndpoints...))
			got := w.startRequests(t.Context(), c.clients, c.ask)
			for i, p := range at1 {
				if n := p.waiting.Load(); n != c.want[i] {
					t.Errorf("%d slots, %d clients: %d at the door of %s", c.slots, c.clients, n, c.earlyEndpoints[i])
				}
				close(p.opened)
			}
			w.act.Publish(readyAt(testFunction("tiny"), c.slots, c.earlyEndpoints...))
			for range c.clients {
				if r := <-got; r.status != 200 || !strings.Contains(r.body, "chatcmpl-1") {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// TestEarlyInFlight: an answer that begins before the platform has said READY is in
// flight at its replica from then on, and when READY is said it is still that one.
func TestEarlyInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		goOn := make(chan struct{})
		w.engineAt("p:1", func(c net.Conn, _ *http.Request, _ string) bool {
			if !writeString(c, chunkHead) || !chunk(c, event1) {
				return false
			}
			<-goOn
			return chunk(c, event2) && chunk(c, event3) && chunk(c, eventDone) && writeString(c, "0\r\n\r\n")
		})
		f := startingAt(testFunction("tiny"), 1, "p:1")
		w.act.Publish(f)
		got := w.startRequests(t.Context(), 2, streamRequest)
		counts := func(when string, active, queued int) {
			t.Helper()
			d, _ := w.act.DemandOf(f.Name)
			if n := w.act.InFlightOf(f.Name, "p:1"); n != active || d.Active != active || d.Queued != queued {
				t.Errorf("%s: %d in flight, %+v", when, n, d)
			}
		}
		counts("before READY", 1, 1)
		w.act.Publish(readyAt(testFunction("tiny"), 1, "p:1"))
		synctest.Wait()
		counts("after READY", 1, 1) // its one slot is taken
		close(goOn)
		for range 2 {
			if r := <-got; r.err != nil || r.status != 200 || plainEvents(r.body) != streamed {
				t.Errorf("%+v", r)
			}
		}
		counts("after all", 0, 0)
	})
}

// TestEarlyFails: the failure of an early copy is not an answer, and the request is
// not sent early to the next replica.
func TestEarlyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		p := w.engineAt("p:1", func(c net.Conn, _ *http.Request, _ string) bool {
			return writeString(c, "HTTP/1.1 500 X\r\nContent-Length: 16\r\n\r\nEngineCore: died")
		})
		w.act.Publish(startingAt(testFunction("tiny"), 4, "p:1"))
		got := w.startRequests(t.Context(), 1, plainRequest)
		q := w.shimAt("q:1")
		w.act.Publish(startingAt(testFunction("tiny"), 4, "q:1"))
		synctest.Wait()
		if len(got) != 0 || len(p.requests()) != 1 || len(q.requests()) != 0 {
			t.Errorf("%d answers, %d and %d requests", len(got), len(p.requests()), len(q.requests()))
		}
		w.act.Publish(readyAt(testFunction("tiny"), 4, "q:1"))
		if r := <-got; r.status != 200 || r.body != jsonAnswer {
			t.Errorf("%+v", r)
		}
	})
}

// TestEarlyIsTimed: the first token of a cold start counts from when the shim gave the
// request to its engine, by its header, and not from its arrival there. An invalid
// header is ignored.
func TestEarlyIsTimed(t *testing.T) {
	for header, want := range map[string]time.Duration{"4000000": time.Second, "": 1, "-1": 1, "6000000": 1, "9223372036854775807": 1, "x": 1} {
		synctest.Test(t, func(t *testing.T) {
			var took []time.Duration
			w := newTestEnv(t, func(o *Options) {
				o.OnFirstByte = func(_ functions.Name, _ string, d time.Duration) { took = append(took, d) }
			})
			w.engineAt("p:1", func(c net.Conn, _ *http.Request, _ string) bool {
				time.Sleep(5 * time.Second)
				return writeString(c,
					fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nThaw-Held-Us: %s\r\nContent-Length: %d\r\n\r\n%s", header,
						len(jsonAnswer), jsonAnswer))
			})
			w.act.Publish(testFunction("tiny"))
			got := w.startRequests(t.Context(), 1, plainRequest)
			w.act.Publish(startingAt(testFunction("tiny"), 4, "p:1"))
			if r := <-got; r.status != 200 || r.body != jsonAnswer || r.head.Get(snapshot.HeldHeader) != "" {
				t.Errorf("%+v", r)
			}
			if len(took) != 1 || took[0] != want {
				t.Errorf("%q: the first token took %v, want %v", header, took, want)
			}
		})
	}
}
