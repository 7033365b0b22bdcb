package engine

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestProbeRudeEngines: one request of each endpoint finds what an engine serves, whatever
// it answers at the others; no answer is READY that is not well-formed.
func TestProbeRudeEngines(t *testing.T) {
	const (
		chat = "/v1/chat/completions"
		sse  = "Content-Type: text/event-stream\r\n"
		js   = "Content-Type: application/json\r\n"
	)
	type answer func(c net.Conn, r *http.Request)
	reply := func(status, fields, body string) answer {
		return func(c net.Conn, _ *http.Request) { say(c, status, fields, body) }
	}
	ok := func(body string) answer { return reply("200 OK", js, body) }
	reset := func(c net.Conn, _ *http.Request) { c.Close() }
	wantBody := func(part, body string) answer {
		return func(c net.Conn, r *http.Request) {
			if b, _ := io.ReadAll(r.Body); !strings.Contains(string(b), part) {
				say(c, "422 Unprocessable Entity", js, `{"detail":"`+part+` is missing"}`)
				return
			}
			say(c, "200 OK", js, body)
		}
	}
	vector := `{"data":[{"embedding":[0.5]}]}`
	for _, c := range []struct {
		name    string
		command Command
		routes  map[string]answer
		others  answer // nil: 404
		asked   string // the path that answered; "" none
		err     string
	}{
		{name: "rerank", routes: map[string]answer{"/v1/rerank": wantBody(`"documents":["Hello"]`, `{"results":[{"index":0,"relevance_score":0}]}`)}, asked: "/v1/rerank"},
		{name: "rerank by a bare list", routes: map[string]answer{"/rerank": ok(`[{"index":0,"score":0.9}]`)}, asked: "/rerank"},
		{name: "score", routes: map[string]answer{"/v1/score": wantBody("text_2", `{"data":[{"score":0.1}]}`)}, asked: "/v1/score"},
		{name: "transcriptions of silence", routes: map[string]answer{"/v1/audio/transcriptions": wantBody("WAVEfmt", `{"text":""}`)}, asked: "/v1/audio/transcriptions"},
		{name: "speech", routes: map[string]answer{"/v1/audio/speech": reply("200 OK", "Content-Type: audio/mpeg\r\n", "\xff\xfb")}, asked: "/v1/audio/speech"},
		{name: "responses", routes: map[string]answer{"/v1/responses": wantBody("max_output_tokens", `{"object":"response","status":"incomplete","error":null,"output":[]}`)}, asked: "/v1/responses"},
		{name: "responses, streamed", routes: map[string]answer{"/v1/responses": reply("200 OK", sse, "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"error\":null}}\n\n")}, asked: "/v1/responses"},
		{name: "embeds only, 403", others: reply("403 Forbidden", "", ""), routes: map[string]answer{"/v1/embeddings": ok(vector)}, asked: "/v1/embeddings"},
		{name: "embeds only, 415", others: reply("415 Unsupported Media Type", "", ""), routes: map[string]answer{"/v1/embeddings": ok(vector)}, asked: "/v1/embeddings"},
		{name: "embeds only, 500", others: reply("500 Internal Server Error", "", "KeyError"), routes: map[string]answer{"/v1/embeddings": ok(vector)}, asked: "/v1/embeddings"},
		{name: "embeds only, resets", others: reset, routes: map[string]answer{"/v1/embeddings": ok(vector)}, asked: "/v1/embeddings"},
		{name: "an error with status 200", others: ok(`{"error":{"message":"not a chat model"}}`), routes: map[string]answer{"/v1/embeddings": ok(vector)}, asked: "/v1/embeddings"},
		{name: "an error with status 200 everywhere", others: ok(`{"error":"loading"}`), err: "no token in the answer: loading"},
		{name: "a page", others: reply("200 OK", "Content-Type: text/html\r\n", "<html>"), err: "no token in the answer: <html>"},
		{name: "always streams, and goes on", routes: map[string]answer{chat: func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n"+sse+
				"\r\n: ping\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n")
			for {
				time.Sleep(time.Second)
				if _, err := io.WriteString(c, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"); err != nil {
					return
				}
			}
		}}, asked: chat},
		{name: "streams nothing but an end", routes: map[string]answer{chat: reply("200 OK", sse, "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\ndata: [DONE]\n\n")}, asked: chat},
		{name: "streams as JSON", routes: map[string]answer{chat: reply("200 OK", js, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")}, asked: chat},
		{name: "streams an error", routes: map[string]answer{chat: reply("200 OK", sse, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: {\"error\":{\"message\":\"no memory\"}}\n\n")}, err: "an error in the stream: no memory"},
		{name: "an empty first token", routes: map[string]answer{chat: ok(`{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"length"}]}`)}, asked: chat},
		{name: "the key is refused", others: reply("401 Unauthorized", js, `{"error":"Unauthorized"}`), err: "HTTP 401: Unauthorized"},
		{name: "refuses others, fails where it serves", others: reply("403 Forbidden", "", ""), routes: map[string]answer{"/v1/embeddings": reply("500 Internal Server Error", "", "loading")}, err: "HTTP 500: loading"},
		{name: "busy", routes: map[string]answer{chat: reply("503 Service Unavailable", "", "loading"), "/v1/embeddings": ok(vector)}, err: "HTTP 503: loading"},
		{name: "serves", command: Command{Serves: []functions.Endpoint{functions.ServesEmbeddings, functions.ServesChat}}, routes: map[string]answer{chat: ok(`{"choices":[{"message":{}}]}`), "/v1/embeddings": ok(vector)}, asked: "/v1/embeddings"},
		{name: "serves another", command: Command{Serves: []functions.Endpoint{functions.ServesSpeech}}, routes: map[string]answer{chat: ok(`{"choices":[{"message":{}}]}`)}, err: "HTTP 404"},
		{name: "a probe of its own", command: Command{Probe: functions.Probe{Path: "/v1/ocr", Body: map[string]any{"image": "x", "pages": []any{int64(1)}}}}, routes: map[string]answer{"/v1/ocr": wantBody(`{"image":"x","pages":[1]}`, `{}`)}, asked: "/v1/ocr"},
		{name: "a probe of its own answers an error", command: Command{Probe: functions.Probe{Path: "/v1/ocr", Body: map[string]any{"image": "x"}}}, routes: map[string]answer{"/v1/ocr": ok(`{"error":"no"}`)}, err: "no token in the answer: no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := rudeClient(t, c.command, func(conn net.Conn, r *http.Request) {
					switch route := c.routes[r.URL.Path]; {
					case route != nil:
						route(conn, r)
					case c.others != nil:
						c.others(conn, r)
					default:
						say(conn, "404 Not Found", "", "")
					}
				})
				defer time.Sleep(time.Minute)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := e.Token(ctx)
				if c.err != "" {
					if err == nil || !strings.Contains(err.Error(), c.err) ||
						!strings.Contains(e.LastAnswer(), strings.TrimPrefix(c.err, "no token in the answer: ")) {
						t.Errorf("%v, want %s; last answer %q", err, c.err, e.LastAnswer())
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := e.probe.Load().path; got != c.asked {
					t.Errorf("answered at %s, want %s", got, c.asked)
				}
			})
		})
	}
}

// An engine that is not to be probed is asked for its health alone.
func TestUnprobed(t *testing.T) {
	e, _ := rudeClient(t, Command{Probe: functions.Probe{None: true}}, func(c net.Conn, r *http.Request) {
		if r.Method != "GET" || r.URL.Path != "/health" {
			t.Errorf("asked %s %s", r.Method, r.URL.Path)
		}
		say(c, "204 No Content", "", "")
	})
	if err := e.Token(t.Context()); err != nil {
		t.Error(err)
	}
}

// An engine that is busy for long at an endpoint is asked at the others.
func TestProbeBusyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := rudeClient(t, Command{}, func(c net.Conn, r *http.Request) {
			if r.URL.Path == "/v1/embeddings" {
				say(c, "200 OK", "", `{"data":[{"embedding":[0.5]}]}`)
				return
			}
			say(c, "503 Service Unavailable", "", "")
		})
		began := time.Now()
		for e.Token(t.Context()) != nil && time.Since(began) < time.Minute {
			time.Sleep(time.Second)
		}
		if d := time.Since(began); d != busyWait {
			t.Errorf("READY after %s", d)
		}
	})
}

// TestProbeOfUnknownName: of an engine that refuses the model's name the last answer tells how it gets
// that name, whatever it answers on the paths that it lacks.
func TestProbeOfUnknownName(t *testing.T) {
	const hint = " (the engine knows no model of the name `m`, which requests have: give it that name by a flag of its own in args, such as " +
		"--served-model-name {name} or --alias {name}, or name this model as the engine does)"
	for _, x := range []struct {
		status, body string
		unknown      bool
	}{
		{"404 Not Found", `{"error":"Repository Not Found for url: https://hub/api/models/m."}`, true},
		{"404 Not Found", `{"error":{"message":"model 'm' not found"}}`, true},
		{"400 Bad Request", "{\"error\":{\"message\":\"The model `m` does not exist.\"}}", true},
		{"404 Not Found", `{"error":{"message":"model 'm-large' not found"}}`, false},
		{"404 Not Found", `{"detail":"Not Found"}`, false},
		{"422 Unprocessable Entity", `{"detail":"m: no template"}`, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, _ := rudeClient(t, Command{}, func(c net.Conn, r *http.Request) {
				if r.URL.Path == "/v1/completions" {
					say(c, x.status, "", x.body)
					return
				}
				say(c, "404 Not Found", "", "nothing here")
			})
			err := e.Token(t.Context())
			last := e.LastAnswer()
			named := strings.HasPrefix(last, "/v1/completions answered HTTP ") && strings.HasSuffix(last, hint)
			if err == nil || named != x.unknown || !x.unknown && strings.Contains(last, "knows no model") {
				t.Errorf("%s %s: %s", x.status, x.body, last)
			}
		})
	}
}
