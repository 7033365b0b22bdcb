package activator

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	frame500 = `data: {"error": {"message": "CUDA error: an illegal memory access", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"
	frameEnd = `data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "code": 500}}` + "\n\n"
	frame400 = `data: {"error": {"message": "prompt is too long", "type": "BadRequestError", "code": 400}}` + "\n\n"
)

// streams is an engine whose streams are these events.
func streams(events ...string) func(net.Conn, *http.Request, string) bool {
	return func(c net.Conn, _ *http.Request, _ string) bool {
		if !writeString(c, chunkHead) {
			return false
		}
		for _, e := range events {
			if !chunk(c, e) {
				return false
			}
		}
		return writeString(c, "0\r\n\r\n")
	}
}

// TestErrorFrame: an engine's own error is a failed request, whatever follows it
// and however cleanly it ends; before the first byte it is tried elsewhere.
func TestErrorFrame(t *testing.T) {
	for _, x := range []struct {
		name   string
		first  func(net.Conn, *http.Request, string) bool
		second func(net.Conn, *http.Request, string) bool
		stream bool
		status int
		code   string // of the error; "" a whole answer
		engine string // series of thaw_engine_errors_total, "" none
		asks   int
	}{
		{"before any token, then another replica", streams(frame500, eventDone), goodAnswer, true, 200, "", `kind="error_frame"`, 1},
		{"its core died, then another replica", streams(frameEnd, eventDone), goodAnswer, true, 200, "", `kind="error_frame"`, 1},
		{"both", streams(frame500, eventDone), streams(": hello\n", frame500), true, 500, "internal_error", `kind="error_frame"`, 2},
		{"the caller's fault", streams(frame400, eventDone), goodAnswer, true, 400, "invalid_request", "", 0},
		{"plain, its core died", func(c net.Conn, _ *http.Request, _ string) bool {
			b := `{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}`
			return writeString(c,
				fmt.Sprintf("HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(b), b))
		}, goodAnswer, false, 200, "", `kind="error_frame"`, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				var n int
				turn := func(c net.Conn, r *http.Request, body string) bool {
					if n++; n == 1 {
						return x.first(c, r, body)
					}
					return x.second(c, r, body)
				}
				w.engineAt("10.0.0.1:1", turn)
				w.engineAt("10.0.0.2:1", turn)
				w.act.Publish(readyAt(testFunction("tiny"), 8, "10.0.0.1:1", "10.0.0.2:1"))
				body := plainRequest
				if x.stream {
					body = streamRequest
				}
				r := w.post("/v1/chat/completions", body)
				if r.status != x.status || r.code() != x.code || r.err != nil {
					t.Errorf("%d %v %s", r.status, r.err, r.body)
				}
				if x.code == "" && x.stream && r.body != streamed {
					t.Errorf("%q", r.body)
				}
				if m := metric(t, w, "thaw_engine_errors_total"); (m != "") != (x.engine != "") || !strings.Contains(m, x.engine) {
					t.Errorf("metrics: %s", m)
				}
				if got := w.engineRequests(); len(got) != x.asks {
					t.Errorf("the platform was asked to look: %v", got)
				}
				if m := metric(t, w, "thaw_requests_total"); !strings.Contains(m, fmt.Sprintf(`code="%d"`, x.status)) {
					t.Errorf("%s", m)
				}
			})
		})
	}
}

// After the first byte it is reported, counted and never retried.
func TestErrorFrameInTheMiddle(t *testing.T) {
	for _, end := range [][]string{{frame500, eventDone}, {frame500}} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			e := w.engineAt("10.0.0.1:1", streams(append([]string{event1, event2}, end...)...))
			w.act.Publish(readyAt(testFunction("tiny"), 8, "10.0.0.1:1"))
			r := w.post("/v1/chat/completions", streamRequest)
			if r.status != 200 || !strings.Contains(r.body, "illegal memory access") || strings.Contains(r.body, "[DONE]") || r.err == nil ||
				len(e.requests()) != 1 {
				t.Errorf("%d %s", r.status, r.body)
			}
			synctest.Wait()
			if m := metric(t, w, "thaw_requests_total"); !strings.Contains(m, `code="502"`) {
				t.Errorf("%s", m)
			}
			if m := metric(t, w, "thaw_engine_errors_total"); !strings.Contains(m, `kind="error_frame"`) {
				t.Errorf("%s", m)
			}
			if !strings.Contains(w.logs.String(), "error=engine_error") || len(w.engineRequests()) != 1 ||
				strings.Contains(w.engineRequests()[0], "illegal") {
				t.Errorf("%s %v", w.logs, w.engineRequests())
			}
		})
	}
}

// Bounds hold before any engine is asked, cold or not.
func TestBoundsBeforeTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("10.0.0.1:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 8, "10.0.0.1:1"), testFunction("cold"))
		for _, model := range []string{"tiny", "cold"} {
			r := w.post("/v1/completions", `{"model":"`+model+`","prompt":"a","n":1000000}`)
			if r.status != 400 || r.code() != "invalid_value" || !strings.Contains(r.body, `"param":"/n"`) || r.head.Get("x-should-retry") != "false" {
				t.Errorf("%d %s", r.status, r.body)
			}
		}
		if len(e.requests()) != 0 || w.count(&w.wakes) != 0 {
			t.Errorf("%d requests, %d wakes", len(e.requests()), w.wakes)
		}
	})
}

// The engine gets its key, our id, and nothing of the client's.
func TestEngineKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("10.0.0.1:1", goodAnswer)
		f := readyAt(testFunction("tiny"), 8, "10.0.0.1:1")
		f.Replicas[0].Key = "sk-engine"
		w.act.Publish(f)
		r := w.post("/v1/chat/completions", plainRequest, "Authorization", "Bearer client", "X-Request-Id", "http://169.254.169.254/",
			"X-Api-Key", "client", "Cookie", "a=b")
		head := e.requests()[0].head
		if r.status != 200 || head.Get("Authorization") != "Bearer sk-engine" || head.Get("X-Api-Key")+head.Get("Cookie") != "" {
			t.Errorf("%d %v", r.status, head)
		}
		if id := head.Get("X-Request-Id"); id == "" || id != r.head.Get("x-request-id") || strings.Contains(id, ":") {
			t.Errorf("id %q", id)
		}
		if strings.Contains(r.body+fmt.Sprint(r.head)+w.logs.String(), "sk-engine") {
			t.Error("the engine's key is shown")
		}
	})
}

// A request that the engine fails, and fails alone, takes the only replica from no other.
func TestErrorFrameKeepsTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("10.0.0.1:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(body, "poison") {
				return streams(frame500, eventDone)(c, r, body)
			}
			return goodAnswer(c, r, body)
		})
		w.act.Publish(readyAt(testFunction("tiny"), 8, "10.0.0.1:1"))
		if r := w.post("/v1/chat/completions", strings.Replace(streamRequest, "hello", "poison", 1)); r.status != 500 ||
			r.code() != "internal_error" || !strings.Contains(r.body, "illegal memory access") {
			t.Errorf("%+v", r)
		}
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 200 || r.body != streamed || r.took > 100*time.Millisecond {
			t.Errorf("held for %v: %+v", r.took, r)
		}
	})
}
