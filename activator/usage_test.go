package activator

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/rude"
)

// limitTokens lets the default team use n tokens a minute.
func (e *testEnv) limitTokens(n int) {
	e.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{TokensPerMinute: n}}}})
}

// TestUsageOfPlainAnswers: a plain answer is charged wherever its usage stands, however
// large it is and whatever it is called.
func TestUsageOfPlainAnswers(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":3,"completion_tokens":2}`
	large := `"x":"` + strings.Repeat("y", 2<<20) + `"`
	for name, answer := range map[string]rude.Answer{
		"before the choices":        rude.Plain(200, "application/json", `{`+usage+`,"choices":[`+strings.Repeat("0,", 3<<10)+`0]}`),
		"before a large field":      rude.Plain(200, "application/json", `{`+usage+`,`+large+`}`),
		"behind a large field":      rude.Chunked(200, "application/json", true, `{`+large, `,`+usage+`}`),
		"without a type":            rude.Plain(200, "", `{`+usage+`,"choices":[]}`),
		"without a type, in chunks": rude.Chunked(200, "", true, `{"usage":{"prompt_to`, `kens":3,"completion_tokens":2}}`),
		"called text":               rude.Chunked(200, "text/plain", true, `{`+usage, `}`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { return answer.Play(c) })
				w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
				w.limitTokens(12)
				for _, want := range []string{"12", "7"} {
					if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 || r.err != nil ||
						r.head.Get("x-ratelimit-remaining-tokens") != want {
						t.Fatalf("%d %v, want %s left: %v", r.status, r.err, want, r.head)
					}
				}
			})
		})
	}
}

// TestStreamOptionsRefused: an engine that refuses the option which thaw adds serves the
// streams of a limited team all the same; it is asked once with it and from then on without.
func TestStreamOptionsRefused(t *testing.T) {
	for name, refusal := range map[string]rude.Answer{
		"400":           rude.Plain(400, "application/json", `{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error"}}`),
		"FastAPI's 422": rude.Plain(422, "application/json", `{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}`),
		"a text":        rude.Plain(400, "text/plain", "unknown field\n"),
		"Mistral's":     rude.Plain(422, "application/json", `{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]},"type":"invalid_request_error"}`),
	} {
		for _, held := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTestEnv(t, nil)
					e := w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
						if strings.Contains(body, "stream_options") {
							return refusal.Play(c)
						}
						return goodAnswer(c, r, body)
					})
					w.limitTokens(100)
					ready := readyAt(testFunction("tiny"), 4, "e:1")
					if held {
						w.act.Publish(testFunction("tiny"))
						w.onWake = func() { time.Sleep(5 * time.Second); w.act.Publish(ready) }
					} else {
						w.act.Publish(ready)
					}
					for i := range 2 {
						if r := w.post("/v1/chat/completions", streamRequest); r.status != 200 || r.err != nil || plainEvents(r.body) != streamed {
							t.Fatalf("%+v", r)
						}
						if got := e.requests(); len(got) != 2+i || got[len(got)-1].body != streamRequest {
							t.Fatalf("%+v", got)
						}
					}
					if logs := w.logs.String(); strings.Count(logs, "refuses stream_options") != 1 || strings.Count(logs, "estimated=true") != 2 ||
						!strings.Contains(logs, "replica=e:1") {
						t.Error(logs)
					}
					// Both are charged: a token for each of four events, and nine for the prompt.
					if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 || r.head.Get("x-ratelimit-remaining-tokens") != "74" {
						t.Errorf("%+v", r)
					}
					if len(w.engineRequests()) != 0 {
						t.Errorf("the platform was asked to look: %v", w.engineRequests())
					}
				})
			})
		}
	}
}

// TestClientErrorIsNoRefusal: an error that is about the request reaches the client, and the
// option is kept. A replica that has taken the option is not asked again.
func TestClientErrorIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		bad := true
		e := w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			if bad {
				return rude.Plain(400, "text/plain", "too long").Play(c)
			}
			return goodAnswer(c, r, body)
		})
		w.limitTokens(100)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for i, x := range []struct {
			bad      bool
			status   int
			requests int
		}{{true, 400, 2}, {false, 200, 3}, {true, 400, 4}, {false, 200, 5}} {
			bad = x.bad
			if r := w.post("/v1/chat/completions", streamRequest); r.status != x.status || bad && !strings.Contains(r.body, "too long") {
				t.Errorf("%d: %+v", i, r)
			}
			if got := e.requests(); len(got) != x.requests || !bad && !strings.Contains(got[len(got)-1].body, "include_usage") {
				t.Errorf("%d: %+v", i, got)
			}
		}
		if strings.Contains(w.logs.String(), "estimated") {
			t.Error(w.logs)
		}
	})
}
