package activator

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		r := w.post("/v1/chat/completions", plainRequest, "X-Client-Request-Id", "mine-1", "Authorization", "Bearer dummy", "Cookie", "secret=1",
			"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		if r.err != nil || r.status != 200 || r.body != jsonAnswer {
			t.Fatalf("%+v", r)
		}
		if id := r.head.Get("x-request-id"); len(id) != 32 || r.head.Get("thaw-client-request-id") != "mine-1" ||
			r.head.Get("thaw-cold-start") != "" || !strings.Contains(r.head.Get("Server-Timing"), "queue;dur=0.0") ||
			r.head.Get("openai-processing-ms") == "" {
			t.Errorf("head %v", r.head)
		}
		s := e.requests()[0]
		if s.body != plainRequest || s.path != "/v1/chat/completions" {
			t.Errorf("the engine saw %+v", s)
		}
		for name := range s.head {
			switch name {
			case "Content-Type", "Accept", "Traceparent", "X-Request-Id", "Content-Length", "Host", "Accept-Encoding":
			default:
				t.Errorf("the engine saw the field %s", name)
			}
		}
		if s.head.Get("X-Request-Id") != r.head.Get("x-request-id") {
			t.Error("the engine's request id must be ours")
		}
		for id, kept := range map[string]bool{strings.Repeat("a", 128): true, strings.Repeat("a", 129): false, "a b": false} {
			r = w.post("/v1/chat/completions", streamRequest, "X-Client-Request-Id", id)
			if r.err != nil || r.status != 200 || r.body != streamed || r.head.Get("Content-Type") != "text/event-stream; charset=utf-8" ||
				r.head.Get("X-Accel-Buffering") != "no" || (r.head.Get("thaw-client-request-id") == id) != kept {
				t.Fatalf("%+v", r)
			}
		}
		if w.count(&w.wakes) != 0 || len(w.engineRequests()) != 0 {
			t.Fatal("nothing to wake or ask")
		}
	})
}

func TestColdStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", goodAnswer)
		f := testFunction("tiny")
		w.act.Publish(f)
		w.onWake = func() {
			f.ColdStart = &functions.Timeline{ID: "cs-1", Began: time.Now(), State: functions.Downloading}
			w.act.Publish(loadingAt(f, functions.Downloading, 10, time.Minute))
			time.Sleep(30 * time.Second)
			w.act.Publish(loadingAt(f, functions.Downloading, 80, 30*time.Second))
			time.Sleep(30 * time.Second)
			w.act.Publish(loadingAt(f, functions.Loading, 20, 60*time.Second))
			time.Sleep(9 * time.Minute)
			f.ColdStart = &functions.Timeline{ID: "cs-1", State: functions.Ready, Total: 600, Tier: functions.TierRemote, Phases: []functions.Span{{Phase: functions.PhaseStage, Duration: 60}, {Phase: functions.PhaseLoad, Start: 60, Duration: 540}}}
			w.act.Publish(readyAt(f, 4, "e:1"))
		}
		f.Model.Spec.Queue.Wait = functions.Duration(time.Hour)
		r := w.post("/v1/chat/completions", streamRequest)
		if r.err != nil || r.status != 200 {
			t.Fatalf("%+v", r)
		}
		if r.took != 10*time.Minute {
			t.Errorf("took %v: the waiter is let through at once", r.took)
		}
		got := plainEvents(r.body)
		noop := 0
		for strings.HasPrefix(got, `data: {"id":"",`) {
			_, rest, _ := strings.Cut(got, "\n\n")
			got = rest
			noop++
		}
		if got != streamed {
			t.Errorf("body %q", got)
		}
		if noop != 13 { // every 45 s of 597 s
			t.Errorf("%d no-op chunks", noop)
		}
		for _, want := range []string{": thaw state=staging percent=10 eta_s=60 position=1\n", ": thaw state=staging percent=80 eta_s=30 position=1\n", ": thaw state=loading percent=20 eta_s=60 position=1\n", ": thaw timeline stage=60000 load=540000 first_token=0 wait=600000\ndata: [DONE]\n\n"} {
			if !strings.Contains(r.body, want) {
				t.Errorf("no %q in %q", want, r.body)
			}
		}
		wireRules(t, r.body)
		if n := strings.Count(r.body, ": thaw state"); n < 149 || n > 190 { // each 3.2 to 4 s of 597 s, and changes
			t.Errorf("%d comments in ten minutes", n)
		}
		if r.head.Get("thaw-cold-start") != "cs-1" || w.count(&w.wakes) != 1 || w.count(&w.firstTokens) != 1 {
			t.Errorf("cold start %q, %d wakes, %d first tokens", r.head.Get("thaw-cold-start"), w.count(&w.wakes), w.count(&w.firstTokens))
		}
		if id, ok := w.act.ColdStartOf(r.head.Get("x-request-id")); !ok || id != "cs-1" {
			t.Error("the request's cold start is remembered", id)
		}
		if got := w.act.WithFirstTokenPhase(functions.Timeline{ID: "cs-1"}).Request; got != r.head.Get("x-request-id") {
			t.Errorf("the cold start's first request is %q", got)
		}
		synctest.Wait() // the waiter is let through before Publish returns
		for name, want := range map[string]string{
			"thaw_cold_start_seconds":          `model="tiny" result="ready" team="default" 1`,
			"thaw_cold_start_phase_seconds":    `model="tiny" phase="load" result="ready" source="REMOTE" team="default" 1`,
			"thaw_time_to_first_token_seconds": `cold="true" model="tiny" team="default" 1`,
			"thaw_queue_wait_seconds":          `model="tiny" team="default" 1`,
			"thaw_requests_total":              `code="200" cold="true" model="tiny" route="/v1/chat/completions" team="default" 1`,
		} {
			if m := metric(t, w, name); !strings.Contains(m, want) {
				t.Errorf("%s: %s", name, m)
			}
		}
		if tl := w.act.WithFirstTokenPhase(functions.Timeline{ID: "cs-1", State: functions.Ready, Total: 600}); len(tl.Phases) != 1 ||
			tl.Phases[0].Phase != functions.PhaseFirstToken || tl.Phases[0].Start != 600 {
			t.Errorf("%+v", tl)
		}
	})
}

func TestColdPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() {
			time.Sleep(100 * time.Second)
			w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		}
		r := w.post("/v1/chat/completions", plainRequest)
		if r.err != nil || r.status != 200 || r.body != jsonAnswer || r.took != 100*time.Second {
			t.Fatalf("%+v", r)
		}
		if r.head.Get("thaw-cold-start") == "" {
			t.Error(r.head)
		}
	})
}

// TestTokenTimes: the first token and the time per token are those of streams; a plain
// answer has a series of its own, and an error of the engine is in none.
func TestTokenTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			time.Sleep(time.Second)
			switch {
			case strings.Contains(body, "refuse"):
				return writeString(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 26\r\n\r\n"+`{"error":{"message":"no"}}`)
			case !strings.Contains(body, `"stream":true`):
				return replyComplete(c, jsonAnswer)
			}
			writeString(c, chunkHead)
			chunk(c, strings.Replace(event1, `"h"`, `""`, 1)) // the role comes before the prompt is read
			time.Sleep(2 * time.Second)
			for range 3 {
				chunk(c, event2)
				time.Sleep(time.Second)
			}
			for _, e := range []string{event3, strings.Replace(eventUsage, `"completion_tokens":2`, `"completion_tokens":4`, 1), eventDone} {
				chunk(c, e)
			}
			return writeString(c, "0\r\n\r\n")
		})
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		w.post("/v1/chat/completions", strings.Replace(streamRequest, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
		w.post("/v1/chat/completions", plainRequest)
		w.post("/v1/chat/completions", strings.Replace(plainRequest, "hello", "refuse", 1))
		families, err := w.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]float64{"thaw_time_to_first_token_seconds": 3, "thaw_time_per_output_token_seconds": 1, "thaw_plain_answer_seconds": 1}
		for _, f := range families {
			seconds, ok := want[f.GetName()]
			if !ok {
				continue
			}
			delete(want, f.GetName())
			n, sum := uint64(0), 0.0
			for _, m := range f.GetMetric() {
				n += m.GetHistogram().GetSampleCount()
				sum += m.GetHistogram().GetSampleSum()
			}
			if n != 1 || sum != seconds {
				t.Errorf("%s: %d of %v s together, want one of %v s", f.GetName(), n, sum, seconds)
			}
		}
		if len(want) > 0 {
			t.Errorf("missing: %v", want)
		}
	})
}
