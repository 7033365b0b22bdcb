package activator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// large is an answer that is not buffered.
var large = `{"x":"` + strings.Repeat("x", 2<<20) + `","usage":{"prompt_tokens":3,"completion_tokens":2}}`

// seeLarge notes an answer without its bytes.
func (s *stage) seeLarge(r result) {
	r.body = fmt.Sprintf("%d bytes", len(strings.TrimLeft(r.body, "\n")))
	s.see(r)
}

// note notes a line of the scene's own.
func (s *stage) note(format string, args ...any) {
	s.see(result{body: fmt.Sprintf(format, args...), took: time.Since(s.began)})
}

var moreScenes = []scene{
	{name: "an agent that is given up", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { c.Read(make([]byte, 1)); return false })
		s.engineAt("e:2", after(time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		other := s.beside(func() { s.chat(plainRequest) })
		t := s.act.Traffic("http://e:1/replicas/r")
		s.note("in flight %d since %v, of another %+v", t.InFlight, time.Since(t.Waiting), s.act.Traffic("http://e:2"))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1", "e:2"))
		s.act.AbortThrough("http://e:1")
		other()
	}},
	{name: "states of a start", play: func(s *stage) {
		s.engineAt("e:1", goodAnswer)
		f := testFunction("tiny")
		s.act.Publish(f)
		s.onWake = func() {
			s.act.Publish(loadingAt(f, functions.Downloading, 50, 10*time.Second))
			time.Sleep(4 * time.Second)
			s.act.Publish(loadingAt(f, functions.Downloading, 90, time.Second)) // no comment of its own
			time.Sleep(time.Second)
			s.act.Publish(loadingAt(f, functions.Loading, -1, -1))
			time.Sleep(time.Second)
			s.act.Publish(readyAt(f, 1, "e:1"))
		}
		s.chat(streamRequest)
	}},
	{name: "a client that waits briefly between bytes", play: func(s *stage) {
		s.engineAt("e:1", after(2*time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		r := s.post("/v1/chat/completions", streamRequest, "X-Stainless-Read-Timeout", "3")
		s.note("%d comments", strings.Count(r.body, ": thaw"))
		r.body = plainEvents(r.body)
		s.see(r)
	}},
	{name: "an engine that compresses", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(body, "bad") {
				return says(400, "compressed", "Content-Encoding: br")(c, r, body)
			}
			return says(200, "compressed", "Content-Encoding: br")(c, r, body)
		})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for _, text := range []string{"good", "bad"} {
			s.chat(strings.Replace(plainRequest, "hello", text, 1), "Accept-Encoding", "br")
		}
	}},
	{name: "a large answer", play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, says(200, large)))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.seeLarge(s.post("/v1/chat/completions", plainRequest))
	}},
	{name: "a client that leaves a large answer", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
			writeString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"+large)
			c.Read(make([]byte, 1))
			return false
		})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		defer cancel()
		s.seeLarge(s.do(ctx, "POST", "/v1/chat/completions", plainRequest))
		time.Sleep(time.Second)
	}},
	{name: "a large answer behind padding", change: padded(time.Second, 0), play: func(s *stage) {
		s.engineAt("e:1", after(3*time.Second, says(200, large)))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.seeLarge(s.post("/v1/chat/completions", plainRequest))
	}},
	{name: "an engine that refuses behind padding", change: padded(time.Second, 0),
		play: func(s *stage) {
			s.engineAt("e:1", after(3*time.Second, says(400, `{"error":{"message":"no"}}`)))
			s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			s.chat(plainRequest)
		}},
	{name: "an engine that refuses behind a stream's head", play: func(s *stage) {
		s.engineAt("e:1", after(5*time.Second, says(400, `{"error":{"message":"no"}}`)))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(streamRequest)
	}},
	{name: "a server that shuts down in a stream", play: func(s *stage) {
		s.engineAt("e:1", writes("0\r\n\r\n", event1, event2, event3, eventDone))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for _, cause := range []error{httpserver.ErrDraining, httpserver.ErrGone} {
			ctx, cancel := context.WithCancelCause(s.t.Context())
			time.AfterFunc(1500*time.Millisecond, func() { cancel(cause) })
			c := call.Open(ctx, s.act.Serve, &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}, "/v1/chat/completions",
				nil, []byte(streamRequest))
			var err error
			for err == nil {
				_, err = c.Next()
			}
			c.Close()
			s.note("%v", err)
			time.Sleep(time.Second)
		}
	}},
	{name: "a retry that waits longer than the queue", play: func(s *stage) {
		s.engineAt("e:1", after(20*time.Minute, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		first := s.beside(func() { s.chat(plainRequest, "Idempotency-Key", "a") })
		s.chat(plainRequest, "Idempotency-Key", "a", "X-Stainless-Timeout", "600")
		first()
	}},
	{name: "a retry of what waits", play: func(s *stage) {
		coldStart(s, 1)
		first := s.beside(func() { s.chat(plainRequest, "Idempotency-Key", "a") })
		s.chat(plainRequest, "Idempotency-Key", "a", "thaw-max-wait", "2")
		s.chat(plainRequest, "Idempotency-Key", "a", "thaw-max-wait", "30")
		first()
	}},
	{name: "revisions of a name", play: func(s *stage) {
		var names []functions.Name
		for i := range 2 {
			s.engineAt(fmt.Sprint("e:", i), goodAnswer)
			f := readyAt(testFunction(fmt.Sprint("tiny-", i)), 4, fmt.Sprint("e:", i))
			f.ServedModelName, f.Hidden = "tiny", true
			s.act.Publish(f)
			names = append(names, f.Name)
			s.chat(strings.Replace(plainRequest, "tiny", f.Name.Name, 1))
		}
		for _, name := range names {
			s.act.Remove(name)
			s.note("without %s %q", name.Name, metric(s.t, s.testEnv, "thaw_requests_total"))
		}
	}},
	{name: "a reservation that starts a function", change: func(o *Options) { o.BufferBytes = 1000 }, play: func(s *stage) {
		f := testFunction("tiny")
		f.External = true
		s.act.Publish(f)
		s.onWake = func() {
			time.Sleep(time.Second)
			ready := readyAt(f, 1, "e:1")
			ready.Replicas[0].Key = "secret"
			s.act.Publish(ready)
		}
		want := ReservationRequest{Name: f.Name, Team: "default", Bytes: 600}
		r, e := s.act.Reserve(s.t.Context(), want)
		time.Sleep(time.Millisecond) // what Publish reports has no end in it
		s.note("%v %s %s %v %s %v", e, r.Endpoint, r.Key, r.External, r.ColdStart(), r.ID == r.proxied.req.id)
		if external, ok := s.act.External(f.Name); !external || !ok {
			s.t.Error(external, ok)
		}
		_, e = s.act.Reserve(s.t.Context(), ReservationRequest{Name: f.Name, Team: "default", Bytes: 1001})
		s.note("a large one: %v", e)
		r.Finish(200)
		r, e = s.act.Reserve(s.t.Context(), want)
		s.note("%v, cold start %q", e, r.ColdStart())
		if e := r.FailedForGood(errors.New("EOF")); e != nil {
			s.note("%v, again %v", e, e.ShouldRetry())
		}
		r.Finish(502)
		_, e = s.act.Reserve(s.t.Context(), ReservationRequest{Name: testFunction("none").Name, Team: "default"})
		s.note("%v", e)
	}},
	{name: "a name that is too long", play: func(s *stage) {
		s.chat(strings.Replace(plainRequest, "tiny", strings.Repeat("x", 80), 1))
		s.chat(strings.Replace(plainRequest, "tiny", strings.Repeat("x", 81), 1))
		s.chat(strings.Replace(plainRequest, "tiny", "ORG/Tiny:latest", 1))
		s.chat(strings.Replace(plainRequest, "tiny", "auto", 1))
	}},
	{name: "a function that starts asleep", play: func(s *stage) {
		f := testFunction("tiny")
		f.Sleeping, f.Forecast = true, functions.NoForecast
		s.act.Publish(f)
		s.chat(plainRequest, "thaw-max-wait", "1")
		s.chat(plainRequest, "thaw-warm", "never")
		f.Failure = &snapshot.Failure{Reason: "no_memory", At: time.Now(), Until: time.Now().Add(30 * time.Second)}
		s.act.Publish(f)
		s.chat(plainRequest)
		time.Sleep(31 * time.Second)
		s.chat(plainRequest, "thaw-max-wait", "1")
	}},
}
