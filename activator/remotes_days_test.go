package activator

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/functions"
)

// cloudAt publishes the Remote cloud at an address in memory.
func (e *testEnv) cloudAt(addr string, change func(*functions.RemoteSpec)) {
	f := testRemote("cloud", addr, functions.DataSecret)
	if change != nil {
		change(&f.Remote.Spec)
	}
	e.publish(f)
}

func (e *testEnv) cloudState() (functions.State, string) {
	state, reason, _ := e.act.o.Remotes.State(functions.Name{Team: "default", Name: "cloud"})
	return state, reason
}

// TestRemoteCircuit: after three failures in a row no request is sent until one tries the
// Remote again; meanwhile clients are refused at once.
func TestRemoteCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		fail := true
		hold := make(chan struct{}, 10)
		e := w.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool {
			if fail {
				return false
			}
			<-hold
			return goodAnswer(c, r, body)
		})
		w.cloudAt("cloud:1", nil)
		ask := func() result { return w.post("/v1/chat/completions", cloudPlain) }
		for i := range 3 {
			if r := ask(); r.status != 502 || !strings.Contains(r.body, "The remote `cloud` failed") || len(e.requests()) != i+1 {
				t.Fatalf("%d: %+v, %d requests", i, r, len(e.requests()))
			}
		}
		if r := ask(); r.status != 503 || r.head.Get("Retry-After") != "1" || r.took != 0 || len(e.requests()) != 3 {
			t.Errorf("the circuit is open: %+v", r)
		}
		if s, reason := w.cloudState(); s != functions.Failed || reason == "" {
			t.Errorf("%s %q", s, reason)
		}
		time.Sleep(time.Second)
		if r := ask(); r.status != 502 || len(e.requests()) != 4 {
			t.Errorf("the probe: %+v", r)
		}
		time.Sleep(1500 * time.Millisecond)
		if r := ask(); r.status != 503 || len(e.requests()) != 4 {
			t.Errorf("the pause has grown: %+v", r)
		}
		time.Sleep(time.Second)
		fail = false
		probe := make(chan result, 1)
		go func() { probe <- ask() }()
		synctest.Wait()
		if r := ask(); r.status != 503 || len(e.requests()) != 5 {
			t.Errorf("beside the probe: %+v", r)
		}
		for range 2 {
			hold <- struct{}{}
		}
		if r := <-probe; r.status != 200 {
			t.Errorf("%+v", r)
		}
		if r := ask(); r.status != 200 {
			t.Errorf("%+v", r)
		}
		if s, _ := w.cloudState(); s != functions.Ready {
			t.Error(s)
		}
		if w.wakes+w.nudges != 0 || len(w.engineRequests()) != 0 {
			t.Error("the platform was asked about a Remote")
		}
	})
}

// TestRemotePause: after a 429 no request is sent before the time that the other side has
// named, and clients get the rest of it.
func TestRemotePause(t *testing.T) {
	for _, after := range []string{"30", time.Date(2000, 1, 1, 0, 0, 30, 0, time.UTC).Format(http.TimeFormat)} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			limited := true
			e := w.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool {
				if limited {
					return writeString(c, "HTTP/1.1 429 Too Many\r\nContent-Type: application/json\r\nRetry-After: "+after+"\r\nContent-Length: 36\r\n\r\n"+`{"error":{"message":"theirs: slow"}}`)
				}
				return goodAnswer(c, r, body)
			})
			w.cloudAt("cloud:1", nil)
			ask := func(body string) result { return w.post("/v1/chat/completions", body) }
			if r := ask(cloudPlain); r.status != 429 || r.head.Get("Retry-After") != "30" || !strings.Contains(r.body, "theirs: slow") {
				t.Fatalf("%+v", r)
			}
			limited = false
			time.Sleep(10 * time.Second)
			for _, body := range []string{cloudPlain, cloudStream} {
				if r := ask(body); r.status != 429 || r.code() != "rate_limit_exceeded" || r.head.Get("Retry-After") != "20" ||
					r.head.Get("x-should-retry") != "true" {
					t.Errorf("%+v", r)
				}
			}
			if n := len(e.requests()); n != 1 {
				t.Errorf("%d requests", n)
			}
			time.Sleep(20 * time.Second)
			if r := ask(cloudPlain); r.status != 200 {
				t.Errorf("%+v", r)
			}
			if s, _ := w.cloudState(); s != functions.Ready {
				t.Errorf("a 429 is no failure: %s", s)
			}
		})
	}
}

// TestRemoteBreaksInTheMiddle: a stream that stalls or breaks off ends with an error frame
// and without an end mark, is not sent again, and is charged by what came of it.
func TestRemoteBreaksInTheMiddle(t *testing.T) {
	for name, code := range map[string]string{"stall": "engine_hung", "die": "engine_crashed", "end": "engine_crashed"} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			e := w.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool {
				if !writeString(c, chunkHead) || !chunk(c, event1) || !chunk(c, event2) {
					return false
				}
				switch name {
				case "stall":
					c.Read(make([]byte, 1))
				case "end":
					writeString(c, "0\r\n\r\n")
				}
				return false
			})
			w.cloudAt("cloud:1", func(r *functions.RemoteSpec) {
				r.Timeouts.Idle = functions.Duration(20 * time.Second)
				r.Price = functions.Price{Input: 1e6, Output: 1e6}
			})
			r := w.post("/v1/chat/completions", cloudStream)
			if r.status != 200 || r.code() != code || strings.Contains(r.body, "[DONE]") || !strings.Contains(r.body, "The remote `cloud` ") ||
				len(e.requests()) != 1 || r.took > 25*time.Second {
				t.Errorf("%s: %+v", name, r)
			}
			if strings.Contains(r.body, "It was silent for longer than timeouts.idle (20s).") != (name == "stall") {
				t.Errorf("%s: %s", name, r.body)
			}
			synctest.Wait()
			if log := w.logs.String(); !strings.Contains(log, "estimated=true") || !strings.Contains(log, "cost=2") {
				t.Errorf("%s: %s", name, log)
			}
			for range 2 {
				w.post("/v1/chat/completions", cloudStream)
			}
			if s, _ := w.cloudState(); s != functions.Failed {
				t.Errorf("%s: after three it is %s", name, s)
			}
		})
	}
}

// TestRemoteComments: comments end the silence of a stream, but not for ever.
func TestRemoteComments(t *testing.T) {
	for _, wait := range []time.Duration{9 * time.Minute, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			w.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool {
				ok := writeString(c, chunkHead) && chunk(c, event1)
				for until := time.Now().Add(wait); ok && time.Now().Before(until); time.Sleep(15 * time.Second) {
					ok = chunk(c, ": loading\n\n")
				}
				return ok && chunk(c, event2) && chunk(c, event3) && chunk(c, eventDone) && writeString(c, "0\r\n\r\n")
			})
			w.cloudAt("cloud:1", func(r *functions.RemoteSpec) { r.Timeouts.Idle = functions.Duration(20 * time.Second) })
			r := w.post("/v1/chat/completions", cloudStream)
			if whole := strings.Contains(r.body, "[DONE]"); whole != (wait < leastOfComments) ||
				!whole && (r.code() != "engine_hung" || r.took > 11*time.Minute) {
				t.Errorf("%s of comments: after %s %s", wait, r.took, r.body[max(0, len(r.body)-300):])
			}
			time.Sleep(time.Minute) // the other side notes that its connection is closed
			synctest.Wait()
		})
	}
}

// leastOfComments is how long comments alone are borne with a short idle timeout.
const leastOfComments = 10 * time.Minute

// TestRemoteClientLeaves: a client that leaves closes the connection to the Remote, before
// the answer and within it.
func TestRemoteClientLeaves(t *testing.T) {
	for _, body := range []string{cloudPlain, cloudStream} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			left := make(chan struct{}, 1)
			w.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool {
				if strings.Contains(body, `"stream":true`) {
					writeString(c, chunkHead)
					chunk(c, event1)
				}
				c.Read(make([]byte, 1))
				left <- struct{}{}
				return false
			})
			w.cloudAt("cloud:1", nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			w.do(ctx, "POST", "/v1/chat/completions", body)
			select {
			case <-left:
			case <-time.After(30 * time.Second):
				t.Error("the Remote generates for no client")
			}
			synctest.Wait()
			if s, _ := w.cloudState(); s != functions.Ready {
				t.Error(s)
			}
		})
	}
}

// TestRemoteBudget: the budget of the day refuses the next request with which it is and
// when it renews, also of a team, and nothing is sent.
func TestRemoteBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("cloud:1", goodAnswer) // 3 tokens, then 2
		w.cloudAt("cloud:1", func(r *functions.RemoteSpec) {
			r.Price = functions.Price{Input: 1e5, Output: 1e5}
			r.Limits.SpendPerDay = 0.6
		})
		w.reg.Add(w.act.o.Remotes.Samples)
		for i, body := range []string{cloudPlain, cloudStream} {
			if r := w.post("/v1/chat/completions", body); r.status != 200 || strings.Contains(r.body, "usage") != (i == 0) {
				t.Fatalf("%+v", r)
			}
		}
		if limit, team := metric(t, w, "thaw_remote_spend_limit"),
			metric(t, w, "thaw_team_spend_limit"); limit != "model=\"cloud\" team=\"default\" 0.6\n" || team != "" {
			t.Errorf("limits %q, of a team %q", limit, team)
		}
		r := w.post("/v1/chat/completions", cloudStream)
		if r.status != 429 || r.code() != "insufficient_quota" || r.head.Get("x-should-retry") != "false" ||
			!strings.Contains(r.body, "the remote default/cloud, 0.6 a day, is used up. It renews at 2000-01-02T00:00:00Z") {
			t.Errorf("%+v", r)
		}
		w.act.SetRouters([]*functions.Router{testRouter("cloud")}, nil)
		if r := w.post("/v1/chat/completions", autoRequest); r.status != 429 || r.code() != "insufficient_quota" ||
			!strings.Contains(r.body, "0.6 a day, is used up. It renews at 2000-01-02T00:00:00Z.") {
			t.Errorf("by a Router: %+v", r)
		}
		w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{SpendPerDay: 0.5}}}})
		w.cloudAt("cloud:1", func(r *functions.RemoteSpec) { r.Price = functions.Price{Input: 1e5, Output: 1e5} })
		if r := w.post("/v1/chat/completions", cloudPlain); r.code() != "insufficient_quota" ||
			!strings.Contains(r.body, "the team default, 0.5 a day") {
			t.Errorf("%+v", r)
		}
		if n := len(e.requests()); n != 2 {
			t.Errorf("%d requests", n)
		}
		for name, want := range map[string]string{"thaw_remote_spend_limit": "", "thaw_team_spend_limit": "team=\"default\" 0.5\n", "thaw_team_spent_today": "team=\"default\" 1\n"} {
			if got := metric(t, w, name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		time.Sleep(24 * time.Hour)
		if r := w.post("/v1/chat/completions", cloudPlain); r.status != 200 {
			t.Errorf("the next day: %+v", r)
		}
	})
}

// TestRemoteIsThaw: another thaw is a Remote. The comments of a held stream pass, as do its
// 503 and the time to try again; servers that are each other's Remotes end a request.
func TestRemoteIsThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := newTestEnv(t, func(o *Options) { o.Hold = Hold503 })
		w := newTestEnv(t, func(o *Options) {
			o.Remotes = remote.New(remote.Options{Getenv: func(string) string { return "*" },
				Dial: func(ctx context.Context, _ string) (net.Conn, error) { return other.ln.dial(ctx) }})
		})
		other.engineAt("e:1", goodAnswer)
		f := testFunction("tiny")
		other.act.Publish(loadingAt(f, functions.Loading, 40, 10*time.Second))
		w.cloudAt("other:80", func(r *functions.RemoteSpec) {
			r.Model = "tiny"
			r.Timeouts.FirstToken = functions.Duration(15 * time.Second)
		})
		if r := w.post("/v1/chat/completions", cloudPlain); r.status != 503 || r.code() != "model_loading" || r.head.Get("Retry-After") == "" ||
			r.head.Get("Retry-After") == "1" {
			t.Errorf("%+v", r)
		}
		go func() {
			time.Sleep(time.Minute)
			other.act.Publish(readyAt(f, 2, "e:1"))
		}()
		r := w.post("/v1/chat/completions", cloudStream)
		if r.status != 200 || r.err != nil || !strings.HasSuffix(r.body, "[DONE]\n\n") ||
			strings.Count(r.body, ": thaw state=loading percent=40") < 10 {
			t.Errorf("%+v", r)
		}
		wireRules(t, r.body)
		if s, reason := w.cloudState(); s != functions.Ready {
			t.Error(s, reason)
		}
	})
}

// TestRemoteCircle: a request that comes back to a server again and again ends.
func TestRemoteCircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 0
		var w *testEnv
		w = newTestEnv(t, func(o *Options) {
			o.Remotes = remote.New(remote.Options{Getenv: func(string) string { return "*" },
				Dial: func(ctx context.Context, _ string) (net.Conn, error) {
					rounds++
					return w.ln.dial(ctx)
				}})
		})
		w.cloudAt("self:80", func(r *functions.RemoteSpec) { r.Model = "cloud" })
		if r := w.post("/v1/chat/completions", cloudPlain); r.status != 400 || r.code() != "composition_cycle" || rounds != 3 {
			t.Errorf("after %d rounds: %+v", rounds, r)
		}
	})
}

// TestRemoteRepeatsItsKey: no answer of a Remote has its key, whatever the pieces that it
// comes in, and the rest of the answer is unchanged.
func TestRemoteRepeatsItsKey(t *testing.T) {
	v := newVendor(t, func(c net.Conn, _ *http.Request, body string) bool {
		if !strings.Contains(body, `"stream":true`) {
			return replyComplete(c, vendorPlain[:len(vendorPlain)-1]+`,"echo":"Bearer `+testKey+`"}`)
		}
		if !writeString(c, chunkHead) || !chunk(c, event1) {
			return false
		}
		for _, b := range []byte(`data: {"error":{"message":"wrong key sk-secret-of-` + testKey + `!"}}` + "\n\n") {
			if !chunk(c, string(b)) {
				return false
			}
		}
		return writeString(c, "0\r\n\r\n")
	})
	w, _ := newRemoteEnv(t, v, nil, nil)
	if r := w.post("/v1/chat/completions", cloudPlain); r.status != 200 || !strings.HasSuffix(r.body, `,"echo":"Bearer ***"}`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := w.post("/v1/chat/completions", cloudStream); r.status != 200 || !strings.Contains(r.body, `wrong key sk-secret-of-***!"`) || strings.Contains(r.body, testKey) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestRemoteWithoutUsage: an answer that names no usage counts against the team's tokens by
// its estimate, as it does against the budgets.
func TestRemoteWithoutUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{TokensPerMinute: 10}}}})
		w.engineAt("cloud:1", func(c net.Conn, _ *http.Request, _ string) bool {
			return replyComplete(c, `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"`+strings.Repeat("word ", 40)+`"},"finish_reason":"stop"}]}`)
		})
		w.cloudAt("cloud:1", nil)
		if r := w.post("/v1/chat/completions", cloudPlain); r.status != 200 {
			t.Fatalf("%+v", r)
		}
		if r := w.post("/v1/chat/completions", cloudPlain); r.status != 429 || r.code() != "rate_limit_exceeded" {
			t.Errorf("%+v", r)
		}
	})
}

// TestRemoteDoesNotStream: the whole answer of a Remote that does not stream comes as a
// stream to a client that asked for one.
func TestRemoteDoesNotStream(t *testing.T) {
	v := newVendor(t, func(c net.Conn, _ *http.Request, _ string) bool { return replyComplete(c, vendorPlain) })
	w, _ := newRemoteEnv(t, v, nil, nil)
	r := w.post("/v1/chat/completions", cloudStream)
	if r.status != 200 || r.head.Get("Content-Type") != "text/event-stream" || !strings.Contains(r.body, `"model":"cloud"`) || !strings.HasSuffix(r.body, "[DONE]\n\n") {
		t.Fatalf("%d %v %s", r.status, r.head, r.body)
	}
	wireRules(t, r.body)
	if log := w.logs.String(); !strings.Contains(log, "completion_tokens=500") || strings.Contains(log, "estimated") ||
		strings.Contains(r.body, "usage") {
		t.Errorf("%s\n%s", log, r.body)
	}
}
