package activator

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// fragileEngine is an engine that a request with the word poison crashes after a second: all
// its connections close, and it is back half a second later. Other requests take 5 s.
type fragileEngine struct {
	*engine

	// Under engine.mu.

	restart func(crashes int) // tells the platform
	busy    map[net.Conn]bool // with a request in flight
	crashes int
	lost    int // requests other than the poison that were in flight at crashes
}

func (e *fragileEngine) crash() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.crashes++
	e.lost += len(e.busy) - 1
	clear(e.busy)
	e.dead = true
	restarted := e.crashes
	time.AfterFunc(time.Second/2, func() {
		e.mu.Lock()
		e.dead = false
		e.mu.Unlock()
		e.restart(restarted)
	})
	for c := range e.conns {
		c.Close()
	}
}

func (e *fragileEngine) count() (crashes, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.crashes, e.lost
}

func (e *testEnv) fragileEngineAt(addr string) *fragileEngine {
	eng := &fragileEngine{busy: map[net.Conn]bool{}}
	note := func(c net.Conn, busy bool) {
		eng.mu.Lock()
		defer eng.mu.Unlock()
		if delete(eng.busy, c); busy {
			eng.busy[c] = true
		}
	}
	eng.engine = e.engineAt(addr, func(c net.Conn, r *http.Request, body string) bool {
		note(c, true)
		defer note(c, false)
		if !strings.Contains(body, "poison") {
			time.Sleep(5 * time.Second)
			return goodAnswer(c, r, body)
		}
		if strings.Contains(body, `"stream":true`) {
			writeString(c, chunkHead)
			chunk(c, event1)
		}
		time.Sleep(time.Second)
		eng.crash()
		return false
	})
	return eng
}

// publishes lists the functions at the engine, each crash of which makes another replica.
func (e *fragileEngine) publishes(w *testEnv, names ...string) {
	e.restart = func(crashes int) {
		var all []snapshot.Snapshot
		for _, name := range names {
			f := readyAt(testFunction(name), 4, "e:1")
			f.Replicas[0].ID = fmt.Sprint("r", crashes)
			all = append(all, f)
		}
		w.act.Publish(all...)
	}
	e.restart(0)
}

func bodySaying(model, text string) string {
	return strings.Replace(strings.Replace(plainRequest, "hello", text, 1), "tiny", model, 1)
}

// A request that crashes engines is tried alone, and refused when the engine crashes again:
// no other is lost with the third crash, and none is refused.
func TestPoisonIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		defer time.Sleep(10 * time.Second) // answers of crashed engines end
		e := w.fragileEngineAt("e:1")
		e.publishes(w, "tiny", "other")
		ask := func(texts ...string) []result {
			got := make([]result, len(texts))
			var wg sync.WaitGroup
			for i, text := range texts {
				wg.Go(func() { got[i] = w.post("/v1/chat/completions", bodySaying("tiny", text)) })
			}
			wg.Wait()
			return got
		}
		for _, r := range ask("poison", "a", "b") { // crashes at the first try and at the retry
			if r.status != 502 || r.code() != "engine_crashed" {
				t.Errorf("%+v", r)
			}
		}
		if n, lost := e.count(); n != 2 || lost != 4 {
			t.Fatalf("%d crashes, %d lost", n, lost)
		}
		time.Sleep(2 * time.Second)
		// Each of the three has the engine for itself, and c waits meanwhile.
		for i, r := range ask("a", "poison", "b", "c") {
			if want := []int{200, 422, 200, 200}[i]; r.status != want {
				t.Errorf("%d: %+v", i, r)
			}
			if i == 1 && (r.code() != "request_quarantined" || r.head.Get("x-should-retry") != "false" || r.head.Get("Retry-After") != "" ||
				!strings.Contains(r.body, "for the next 10 min")) {
				t.Errorf("%+v %v", r, r.head)
			}
		}
		if n, lost := e.count(); n != 3 || lost != 4 {
			t.Fatalf("%d crashes, %d lost", n, lost)
		}
		if w.act.suspects.Empty() {
			t.Error("those that were answered are no suspects, the one that crashed is")
		}
		// It is refused at once, and costs no engine; nothing else is.
		time.Sleep(5 * time.Minute)
		for i, r := range ask("poison", "poisoned", "poison") {
			if want := []int{422, 502, 422}[i]; r.status != want || want == 422 && r.took != 0 {
				t.Errorf("%d: %+v", i, r)
			}
		}
		if r := w.post("/v1/chat/completions", bodySaying("other", "a")); r.status != 200 {
			t.Errorf("%+v", r)
		}
		// After its time it is tried anew.
		time.Sleep(5 * time.Minute)
		if r := ask("poison")[0]; r.status != 502 {
			t.Errorf("%+v", r)
		}
		time.Sleep(20 * time.Minute)
		if r := ask("a")[0]; r.status != 200 {
			t.Errorf("%+v", r)
		}
		if !w.act.suspects.Empty() {
			t.Error("suspects are kept for ever")
		}
	})
}

// A stream that crashes engines in the middle of its answer is known as well.
func TestPoisonStreamIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		defer time.Sleep(10 * time.Second) // answers of crashed engines end
		e := w.fragileEngineAt("e:1")
		e.publishes(w, "tiny")
		poison := strings.Replace(streamRequest, "hello", "poison", 1)
		for i, want := range []string{"engine_crashed", "engine_crashed", "request_quarantined", "request_quarantined"} {
			var wg sync.WaitGroup
			wg.Go(func() { // takes longer than the poison, unless it has the engine first
				w.post("/v1/chat/completions", bodySaying("tiny", fmt.Sprint("other ", i)))
			})
			time.Sleep(time.Millisecond)
			r := w.post("/v1/chat/completions", poison)
			if r.code() != want || (r.status == 200) != (i < 3) || i < 3 && r.err != io.ErrUnexpectedEOF {
				t.Errorf("try %d: %+v", i, r)
			}
			if i == 2 && r.took < 5*time.Second {
				t.Errorf("it did not wait for the engine: %v", r.took)
			}
			wg.Wait()
			time.Sleep(2 * time.Second)
		}
		if n, lost := e.count(); n != 3 || lost != 2 {
			t.Errorf("%d crashes, %d lost", n, lost)
		}
	})
}

// The retry of a request that was in a crash before runs alone at once, and one that waits
// to run alone is refused where an equal one was found to blame.
func TestOwnRetryRunsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		defer time.Sleep(10 * time.Second) // answers of crashed engines end
		e := w.fragileEngineAt("e:1")
		e.publishes(w, "tiny")
		if r := w.post("/v1/chat/completions", strings.Replace(streamRequest, "hello", "poison", 1)); r.code() != "engine_crashed" {
			t.Errorf("%+v", r)
		}
		time.Sleep(2 * time.Second)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				r := w.post("/v1/chat/completions", strings.Replace(streamRequest, "hello", "poison", 1))
				if c := r.code(); c != "engine_crashed" && c != "request_quarantined" {
					t.Errorf("%+v", r)
				}
			})
		}
		wg.Wait()
		time.Sleep(2 * time.Second)
		for range 3 {
			wg.Go(func() {
				if r := w.post("/v1/chat/completions", strings.Replace(streamRequest, "hello", "poison", 1)); r.code() != "request_quarantined" {
					t.Errorf("%+v", r)
				}
			})
		}
		wg.Wait()
		if n, _ := e.count(); n > 5 {
			t.Errorf("%d crashes", n)
		}
	})
}

// Refused connections and silence are no crashes, and neither are errors of the engine's own.
func TestSuspectsOfCrashesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("silent:1", func(c net.Conn, _ *http.Request, _ string) bool { io.Copy(io.Discard, c); return false })
		w.engineAt("frame:1", func(c net.Conn, _ *http.Request, _ string) bool {
			writeString(c, chunkHead)
			chunk(c, "data: {\"error\": {\"message\": \"boom\", \"code\": 500}}\n\n")
			return writeString(c, "0\r\n\r\n")
		})
		for _, addr := range []string{"silent:1", "frame:1", "nothing:1"} {
			f := readyAt(testFunction("tiny"), 4, addr)
			f.Model.Spec.Queue.Wait = 1
			w.act.Publish(f)
			for range 3 {
				w.post("/v1/chat/completions", streamRequest)
				time.Sleep(2 * time.Second)
			}
			if !w.act.suspects.Empty() {
				t.Errorf("%s: there are suspects", addr)
			}
		}
	})
}

// A replica that breaks each connection and is listed still, as on a node that was lost, is
// one crash: no request is refused for it, and another replica answers.
func TestLostNodeIsOneCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("lost:1", func(net.Conn, *http.Request, string) bool { return false })
		w.act.Publish(readyAt(testFunction("tiny"), 4, "lost:1"))
		for range 5 {
			if r := w.post("/v1/chat/completions", plainRequest); r.code() != "engine_crashed" {
				t.Errorf("%+v", r)
			}
			time.Sleep(2 * time.Second)
		}
		w.engineAt("e:2", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:2"))
		if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 {
			t.Errorf("%+v", r)
		}
	})
}

// Requests whose engine thaw ends, because it hangs, are not suspected of a crash: equal
// ones are served later.
func TestEndedEngineIsNoCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		works := false
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			if works {
				return goodAnswer(c, r, body)
			}
			if strings.Contains(body, `"stream":true`) {
				writeString(c, chunkHead)
				chunk(c, event1)
			}
			time.AfterFunc(time.Second, func() { w.act.AbortThrough("http://e:1") })
			c.Read(make([]byte, 1))
			return false
		})
		for i := range 4 {
			f := readyAt(testFunction("tiny"), 4, "e:1")
			f.Replicas[0].ID = fmt.Sprint("r", i)
			w.act.Publish(f)
			if r := w.post("/v1/chat/completions", plainRequest); r.code() == "request_quarantined" {
				t.Fatalf("plain, after %d: %+v", i, r)
			}
			w.post("/v1/chat/completions", streamRequest)
			time.Sleep(time.Minute)
		}
		works = true
		for _, body := range []string{plainRequest, streamRequest} {
			if r := w.post("/v1/chat/completions", body); r.status != 200 || strings.Contains(r.body, "quarantined") {
				t.Errorf("%+v", r)
			}
		}
	})
}

// A suspect whose client leaves in the middle of the answer stays one: the engine might have
// crashed later.
func TestSuspectWhoseClientLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		var tries atomic.Int32
		w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
			if tries.Add(1) == 1 {
				return false
			}
			writeString(c, chunkHead)
			chunk(c, event1)
			time.Sleep(time.Minute)
			return false
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Second, leave)
		r := w.do(ctx, "POST", "/v1/chat/completions", streamRequest)
		time.Sleep(2 * time.Minute)
		if tries.Load() != 2 || w.act.suspects.Empty() {
			t.Errorf("%d tries, no suspect is left: %v; %+v", tries.Load(), w.act.suspects.Empty(), r)
		}
	})
}

// A request that was in flight at two crashes is not given to the next target of its Router,
// which may crash as well; after one crash it is.
func TestSuspectIsNotEscalated(t *testing.T) {
	for crashes, status := range map[int]int{1: 200, 2: 502} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			addrs := []string{"f:1", "f:2"}[:crashes]
			for _, addr := range addrs {
				w.engineAt(addr, func(net.Conn, *http.Request, string) bool { return false })
			}
			second := w.engineAt("s:1", goodAnswer)
			w.act.Publish(readyAt(testFunction("first"), 4, addrs...), readyAt(testFunction("second"), 4, "s:1"))
			r := testRouter("first", "second")
			r.Spec.Retry.Escalate = true
			w.act.SetRouters([]*functions.Router{r}, nil)
			res := w.post("/v1/chat/completions", autoRequest)
			if res.status != status || status == 502 && res.code() != "engine_crashed" || len(second.requests()) != 2-crashes {
				t.Errorf("%d crashes: %+v, %d requests at the second target", crashes, res, len(second.requests()))
			}
		})
	}
}
