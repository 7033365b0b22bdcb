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

// TestErrorsOfEndpoints: on /v1/messages and /v1/responses the clients find an error in the
// form that they know, whatever ended the request.
func TestErrorsOfEndpoints(t *testing.T) {
	const messageHead = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[]}}\n\n"
	const responseHead = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0}\n\nevent: " +
		"response.in_progress\ndata: {\"type\":\"response.in_progress\",\"sequence_number\":1}\n\n"
	anthropic := func(errType string) string { return `{"type":"error","error":{"type":"` + errType + `","message":"` }
	refused := rude.Plain(400, "application/json", `{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"x"}}`)
	for _, x := range []struct {
		name, path string
		stream     bool
		held       bool
		answer     rude.Answer
		status     int
		want       string
		absent     string
	}{
		{"a stream breaks", "/v1/messages", true, false, rude.Chunked(200, "text/event-stream", false, messageHead), 200, messageHead + "event: error\ndata: " + anthropic("api_error") + "The engine died", `"code"`},
		{"a stream breaks", "/v1/responses", true, false, rude.Chunked(200, "text/event-stream", false, responseHead), 200, responseHead + "event: error\ndata: {\"type\":\"error\",\"code\":\"engine_crashed\",\"message\":\"The engine died in the middle of the answer.\",\"param\":null,\"sequence_number\":2}\n\n", `{"error"`},
		{"a held stream is refused", "/v1/messages", true, true, refused, 200, "event: error\ndata: " + anthropic("invalid_request_error") + "too long\"}}\n\n", `"code"`},
		{"a held stream is refused", "/v1/responses", true, true, refused, 200, "event: error\ndata: {\"type\":\"error\",\"code\":\"x\",\"message\":\"too long\",\"param\":null,\"sequence_number\":0}\n\n", `{"error"`},
		{"an engine's frame of OpenAI's form", "/v1/messages", true, true, rude.Chunked(200, "text/event-stream", true, "data: {\"error\":{\"message\":\"slow down\",\"type\":\"rate_limit_error\"}}\n\n"), 200, "event: error\ndata: " + anthropic("rate_limit_error") + "slow down\"}}\n\n", `"code"`},
		{"an engine refuses", "/v1/messages", false, false, refused, 400, anthropic("invalid_request_error") + `too long"}}`, `"code"`},
		{"an engine refuses", "/v1/responses", false, false, refused, 400, `{"error":{"message":"too long"`, `"type":"error"`},
		{"an engine refuses in its form", "/v1/messages", true, false, rude.Plain(529, "application/json", `{"type":"error","error":{"type":"overloaded_error","message":"busy"},"request_id":"r"}`), 529, anthropic("overloaded_error") + `busy"},"request_id":"r"}`, `"code"`},
		{"an engine dies", "/v1/messages", false, false, rude.Answer{{Then: rude.Close}}, 502, anthropic("api_error"), `"code"`},
		{"an engine refuses to count", "/v1/messages/count_tokens", false, false, refused, 400, anthropic("invalid_request_error") + `too long"}}`, `"code"`},
	} {
		t.Run(x.name+" on "+x.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { return x.answer.Play(c) })
				ready := readyAt(testFunction("tiny"), 4, "e:1")
				body := plainRequest
				if x.stream {
					body = streamRequest
				}
				if x.held {
					w.act.Publish(testFunction("tiny"))
					w.onWake = func() { time.Sleep(5 * time.Second); w.act.Publish(ready) }
				} else {
					w.act.Publish(ready)
				}
				r := w.post(x.path, body)
				if events := plainEvents(r.body); r.status != x.status || !strings.HasPrefix(events, x.want) || strings.Contains(events, x.absent) {
					t.Errorf("%d %q\nwant %d %q", r.status, events, x.status, x.want)
				}
				if (r.err != nil) != (x.status == 200) { // a broken stream has no clean end
					t.Errorf("the body ended with %v", r.err)
				}
			})
		})
	}
}

// TestPlainErrorsOfMessages: Anthropic's form also where no engine is asked.
func TestPlainErrorsOfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		check := func(r result, status int, errType string) {
			t.Helper()
			if r.status != status || !strings.HasPrefix(r.body, `{"type":"error","error":{"type":"`+errType+`","message":"`) || r.head.Get("x-request-id") == "" || r.head.Get("x-should-retry") == "" {
				t.Errorf("want %d %s: %d %v %s", status, errType, r.status, r.head, r.body)
			}
		}
		check(w.post("/v1/messages", strings.Replace(plainRequest, "tiny", "huge", 1)), 404, "not_found_error")
		check(w.post("/v1/messages", `{"model":`), 400, "invalid_request_error")
		check(w.do(t.Context(), "GET", "/v1/messages", ""), 405, "invalid_request_error")
		check(w.post("/v1/messages", `{"model":"tiny","x":"`+strings.Repeat("x", 33<<20)+`"}`), 413, "request_too_large")
		w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{RequestsPerMinute: 1}}}})
		w.post("/v1/messages", plainRequest)
		r := w.post("/v1/messages", plainRequest)
		if check(r, 429, "rate_limit_error"); r.head.Get("Retry-After") == "" {
			t.Errorf("%v", r.head)
		}
		_, _, err := w.keys.Create("default", "", false)
		if err != nil {
			t.Fatal(err)
		}
		check(w.post("/v1/messages", plainRequest, "x-api-key", "wrong"), 401, "authentication_error")
		if r := w.post("/v1/responses", plainRequest, "x-api-key", "wrong"); r.status != 401 || r.code() != "invalid_api_key" {
			t.Errorf("%+v", r)
		}
	})
}

// TestEndpointThatEngineLacks: the words behind a path that the engine does not have name what the
// model answers, in the form of that path, also where a stream has begun.
func TestEndpointThatEngineLacks(t *testing.T) {
	const ember = `{"error":{"message":"Not Found: %s","type":"invalid_request_error","param":null,"code":"unknown_endpoint"}}`
	const lacks = "The engine of this model does not serve "
	for _, x := range []struct {
		path   string
		engine functions.Engine
		serves []functions.Endpoint
		words  string // of the engine's 404; %s is the path
		held   bool
		want   string
	}{
		{"/v1/responses", functions.EngineEmber, nil, ember, false, lacks + "/v1/responses: Not Found (it serves /v1/chat/completions, /v1/completions and /v1/embeddings)"},
		{"/v1/messages", functions.EngineEmber, nil, ember, false, lacks + "/v1/messages: Not Found (it serves /v1/chat/completions, /v1/completions and /v1/embeddings)"},
		{"/v1/messages/count_tokens", functions.EngineEmber, nil, ember, false, lacks + "/v1/messages/count_tokens: Not Found (it serves "},
		{"/v1/messages", functions.EngineEmber, nil, ember, true, lacks + "/v1/messages: Not Found (it serves "},
		{"/v1/chat/completions", functions.EngineCommand, []functions.Endpoint{functions.ServesRerank, functions.ServesScore}, `{"detail":"Not Found"}`, false,
			lacks + "/v1/chat/completions: Not Found (its model file says serves: [rerank, score])"},
		{"/v1/responses", functions.EngineCommand, nil, `{"detail":"Not Found"}`, false, lacks + "/v1/responses: Not Found (most engines serve /v1/chat/completions)"},
		{"/v1/chat/completions", functions.EngineCommand, nil, `{"detail":"Not Found"}`, false, lacks + `/v1/chat/completions: Not Found"`},
	} {
		t.Run(x.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				said := strings.Replace(x.words, "%s", x.path, 1)
				w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
					return rude.Plain(404, "application/json", said).Play(c)
				})
				f := testFunction("tiny")
				f.Model.Spec.Engine, f.Model.Spec.Serves = x.engine, x.serves
				body := plainRequest
				if x.held {
					body = streamRequest
					w.act.Publish(f)
					w.onWake = func() { time.Sleep(5 * time.Second); w.act.Publish(readyAt(f, 4, "e:1")) }
				} else {
					w.act.Publish(readyAt(f, 4, "e:1"))
				}
				r := w.post(x.path, body)
				if !strings.Contains(r.body, x.want) || !x.held && r.status != 404 {
					t.Errorf("%d %s\nwant %s", r.status, r.body, x.want)
				}
				if strings.HasPrefix(x.path, "/v1/messages") != strings.Contains(r.body, `{"type":"error","error":{"type":"not_found_error"`) {
					t.Errorf("form: %s", r.body)
				}
			})
		})
	}
}

// TestNumbersThatAreNoJSON: NaN and the infinities of an engine reach the client as null, in a plain
// answer, in a stream, and where the head went out before; a text that has the words stays.
func TestNumbersThatAreNoJSON(t *testing.T) {
	const choice = `{"choices":[{"index":0,"%s":{"role":"assistant","content":"NaN: -Infinity"},"logprobs":{"content":[{"token":"a","logprob":-Infinity},{"token":"b","logprob":NaN}]},"finish_reason":"stop"}]}`
	const text = `"content":"NaN: -Infinity"}`
	const want = `"logprobs":{"content":[{"token":"a","logprob":null},{"token":"b","logprob":null}]}`
	plain := rude.Plain(200, "application/json", strings.Replace(choice, "%s", "message", 1))
	stream := rude.Chunked(200, "text/event-stream", true, "data: "+strings.Replace(choice, "%s", "delta", 1)+"\n\ndata: [DONE]\n\n")
	for _, x := range []struct {
		body   string
		answer rude.Answer
		held   bool
	}{
		{plainRequest, plain, false}, {plainRequest, plain, true}, {plainRequest, stream, false},
		{streamRequest, stream, false}, {streamRequest, stream, true}, {streamRequest, plain, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			w.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { return x.answer.Play(c) })
			if x.held {
				w.act.Publish(testFunction("tiny"))
				w.onWake = func() { time.Sleep(5 * time.Second); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }
			} else {
				w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			}
			r := w.post("/v1/chat/completions", x.body)
			if r.status != 200 || r.err != nil || !strings.Contains(r.body, want) || !strings.Contains(r.body, text) {
				t.Errorf("%s\n%d %v %s", x.body, r.status, r.err, r.body)
			}
		})
	}
}
