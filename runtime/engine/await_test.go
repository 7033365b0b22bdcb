package engine

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Health is any 2xx, behind at most one redirect on the same host and port, however late;
// what was answered last is known.
func TestAwaitRudeEngines(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(c net.Conn, r *http.Request, n int64, elapsed time.Duration)
		within time.Duration // of the end of the wait
		ready  bool
		last   string
	}{
		{"204", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) { say(c, "204 No Content", "", "") }, time.Second, true, "/health answered 2xx"},
		{"a slash is missing", func(c net.Conn, r *http.Request, _ int64, _ time.Duration) {
			if r.URL.Path == "/health/" {
				say(c, "200 OK", "", "ok")
				return
			}
			say(c, "301 Moved Permanently", "Location: /health/\r\n", "")
		}, time.Second, true, "/health/ answered 2xx"},
		{"a redirect by its address", func(c net.Conn, r *http.Request, _ int64, _ time.Duration) {
			if r.URL.Path == "/ok" {
				say(c, "200 OK", "", "")
				return
			}
			say(c, "302 Found", "Location: http://127.0.0.1:1/ok?x=1\r\n", "")
		}, time.Second, true, "/ok?x=1 answered 2xx"},
		{"a redirect elsewhere", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			say(c, "302 Found", "Location: http://127.0.0.2:1/health\r\n", "")
		}, 30 * time.Second, false, "/health answered HTTP 302 to http://127.0.0.2:1/health"},
		{"redirects for ever", func(c net.Conn, r *http.Request, _ int64, _ time.Duration) {
			say(c, "308 Permanent Redirect", "Location: "+r.URL.Path+"/\r\n", "")
		}, 30 * time.Second, false, "/health/ answered HTTP 308 to /health//"},
		{"each takes 9 s", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			time.Sleep(9 * time.Second)
			say(c, "200 OK", "", "")
		}, 10 * time.Second, true, "/health answered 2xx"},
		{"the first is never answered", func(c net.Conn, _ *http.Request, n int64, _ time.Duration) {
			if n > 1 {
				say(c, "200 OK", "", "")
			}
		}, 3 * time.Second, true, "/health answered 2xx"},
		{"nothing for 10 s, then at once", func(c net.Conn, _ *http.Request, _ int64, elapsed time.Duration) {
			if elapsed >= 10*time.Second {
				say(c, "200 OK", "", "")
			}
		}, 15 * time.Second, true, "/health answered 2xx"},
		{"a wrong path", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			say(c, "404 Not Found", "Content-Type: text/html\r\n", "<h1>Not Found</h1>")
		}, 30 * time.Second, false, "/health answered HTTP 404: <h1>Not Found</h1>"},
		{"no health path", func(c net.Conn, r *http.Request, _ int64, _ time.Duration) {
			if r.URL.Path == "/v1/models" {
				say(c, "200 OK", "Content-Type: application/json\r\n", `{"object":"list","data":[]}`)
				return
			}
			say(c, "405 Method Not Allowed", "", "")
		}, time.Second, true, "/v1/models answered 2xx"},
		{"no HTTP", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) {
			c.Write([]byte("SSH-2.0\r\n"))
			c.Close()
		}, 30 * time.Second, false, "no answer: what listens on 127.0.0.1:1 does not speak HTTP"},
		{"nothing is ever answered", func(net.Conn, *http.Request, int64, time.Duration) {}, 30 * time.Second, false,
			"no answer: it accepts connections on 127.0.0.1:1, and does not answer GET /health"},
		{"connections are closed", func(c net.Conn, _ *http.Request, _ int64, _ time.Duration) { c.Close() }, 30 * time.Second, false,
			"no answer: what listens on 127.0.0.1:1 closes connections without an answer (thaw asks by HTTP, without TLS)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, n := time.Now(), atomic.Int64{}
				defer time.Sleep(time.Minute) // slow answers end
				e, _ := rudeClient(t, Command{}, func(conn net.Conn, r *http.Request) {
					c.answer(conn, r, n.Add(1), time.Since(start))
				})
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				listening := 0
				err := e.Await(ctx, func() { listening++ })
				if (err == nil) != c.ready || time.Since(start) > c.within || listening != 1 {
					t.Errorf("%v after %s, listening told %d times", err, time.Since(start), listening)
				}
				if got := e.LastAnswer(); !strings.HasPrefix(got, c.last) {
					t.Errorf("last answer %q, want %q", got, c.last)
				}
			})
		})
	}
}

// TestHintsOfCommands: of an engine command that answers with errors, the last answer says what the
// model file can have for it.
func TestHintsOfCommands(t *testing.T) {
	for status, want := range map[string][2]string{
		"404 Not Found":             {"(health: PATH in the model file names what it answers with 2xx)", "probe: none asks for nothing)"},
		"401 Unauthorized":          {"(thaw sends no key: start the engine without one, or put {key} into env as the variable that it reads its key from)", "(thaw sends no key: start the engine without one, or put {key} into env as the variable that it reads its key from)"},
		"503 Service Unavailable":   {"/health answered HTTP 503", "/v1/chat/completions answered HTTP 503"},
		"500 Internal Server Error": {"/health answered HTTP 500", "answered HTTP 500"},
	} {
		t.Run(status, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := rudeClient(t, Command{Engine: functions.EngineCommand}, func(c net.Conn, _ *http.Request) { say(c, status, "", "") })
				e.Health(t.Context())
				health := e.LastAnswer()
				e.Token(t.Context())
				if probe := e.LastAnswer(); !strings.HasSuffix(health, want[0]) || !strings.HasSuffix(probe, want[1]) {
					t.Errorf("%s; %s", health, probe)
				}
			})
		})
	}
	tls := &StatusError{Status: 400, Body: "Client sent an HTTP request to an HTTPS server."}
	want := " (thaw asks by HTTP: start the engine without its certificate)"
	if got := New(Command{Engine: functions.EngineCommand}).healthHint(tls); got != want {
		t.Error(got)
	}
	e := New(Command{Engine: functions.EngineCommand, URL: "http://127.0.0.1:1", Health: "/health"})
	defer e.Close()
	const refused = "no answer: nothing listens on 127.0.0.1:1, which it was given as its address ({port} in args; localhost may be ::1 alone)"
	if err := e.Health(t.Context()); !ConnectionRefused(err) || e.LastAnswer() != refused {
		t.Errorf("%v; %s", err, e.LastAnswer())
	}
}

// TestHealthOfModelsList: the list of models stands in for the health path of a command engine alone,
// where the model file names none and the probe of a token follows, and for no other answer.
func TestHealthOfModelsList(t *testing.T) {
	for _, x := range []struct {
		command Command
		status  string
		healthy bool
	}{
		{Command{}, "404 Not Found", true},
		{Command{}, "503 Service Unavailable", false},
		{Command{}, "401 Unauthorized", false},
		{Command{Health: "/ready"}, "404 Not Found", false},
		{Command{Engine: functions.EngineVLLM}, "404 Not Found", false},
		{Command{Probe: functions.Probe{None: true}}, "404 Not Found", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, _ := rudeClient(t, x.command, func(c net.Conn, r *http.Request) {
				if r.URL.Path == "/v1/models" {
					say(c, "200 OK", "", `{"data":[]}`)
					return
				}
				say(c, x.status, "", "")
			})
			if err := e.Health(t.Context()); (err == nil) != x.healthy {
				t.Errorf("%+v behind %s: %v", x.command, x.status, err)
			}
		})
	}
}
