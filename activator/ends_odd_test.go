package activator

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
)

// silent is an engine that never answers.
func silent(c net.Conn, _ *http.Request, _ string) bool { c.Read(make([]byte, 1)); return false }

// warnings is a handler of warnings alone.
type warnings struct{ slog.Handler }

func (warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// oddScenes are ends that few requests have.
var oddScenes = []scene{
	{name: "endpoints behind padding", change: padded(time.Second, time.Second), play: func(s *stage) {
		s.engineAt("e:1", after(3*time.Second, says(200, "sound")))
		s.engineAt("e:2", after(3*time.Second, says(200, "")))
		s.engineAt("e:3", after(3*time.Second, says(200, "compressed", "Content-Encoding: br")))
		for _, addr := range []string{"e:1", "e:2", "e:3"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			for _, path := range []string{"/v1/audio/speech", "/v1/embeddings", "/tokenize"} {
				if addr == "e:1" || path != "/v1/audio/speech" { // net/http's client may lose an answer of length 0
					s.see(s.post(path, responsesRequest))
				}
			}
		}
	}},
	{name: "a large answer in chunks that breaks", play: func(s *stage) {
		for i, end := range []string{"", "0\r\n\r\n"} {
			s.engineAt(fmt.Sprint("e:", i), func(c net.Conn, _ *http.Request, _ string) bool {
				writeString(c, strings.Replace(chunkHead, "text/event-stream; charset=utf-8", "application/json", 1))
				chunk(c, large)
				return end != "" && writeString(c, end)
			})
			s.act.Publish(readyAt(testFunction("tiny"), 4, fmt.Sprint("e:", i)))
			s.seeLarge(s.post("/v1/chat/completions", plainRequest))
		}
	}},
	{name: "one request whose engines write that they die", play: func(s *stage) {
		for i := range 4 {
			addr := fmt.Sprint("e:", i)
			s.engineAt(addr, writes("0\r\n\r\n", []string{event1, deadFrame, badFrame}[:2+i%2]...))
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(streamRequest)
			time.Sleep(time.Second)
		}
	}},
	{name: "one request whose Remote writes that it dies", play: func(s *stage) {
		s.engineAt("cloud:1", writes("0\r\n\r\n", event1, deadFrame))
		s.cloudAt("cloud:1", nil)
		for range 5 {
			s.chat(cloudStream)
			time.Sleep(time.Hour)
		}
	}},
	{name: "one request that its engines refuse with an error in their stream", play: func(s *stage) {
		for i := range 4 {
			addr := fmt.Sprint("e:", i)
			s.engineAt(addr, chunked("0\r\n\r\n", badFrame))
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(streamRequest)
		}
	}},
	{name: "a Remote whose usage cannot be true", play: func(s *stage) {
		s.limit(functions.Limits{TokensPerMinute: 100000})
		s.engineAt("cloud:1", after(time.Second, says(200, strings.Replace(jsonAnswer, `"prompt_tokens":3`, `"prompt_tokens":999999999`, 1))))
		s.cloudAt("cloud:1", func(r *functions.RemoteSpec) { r.Price = functions.Price{Input: 1000, Output: 2000} })
		s.chat(cloudPlain)
		s.engineAt("cloud:2", after(time.Second, says(200, jsonAnswer)))
		s.cloudAt("cloud:2", nil)
		s.chat(strings.Replace(cloudStream, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
	}},
	{name: "requests that are not copied early", change: func(o *Options) { o.Adapters = &fakeAdapters{} }, play: func(s *stage) {
		s.engineAt("e:1", after(700*time.Millisecond, dies))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(saying(plainRequest, "crash"), "thaw-max-wait", "2")
		time.Sleep(time.Minute)
		s.act.Publish(readyAt(testFunction("tiny"), 4, "nobody:1"))
		refused := s.beside(func() { s.chat(saying(plainRequest, "refused"), "thaw-max-wait", "8") })
		shim := s.shimAt("s:9")
		s.act.Publish(startingAt(testFunction("tiny"), 4, "s:9"))
		time.Sleep(2 * time.Second)
		s.note("%d copies of one that a replica failed", shim.waiting.Load())
		refused()
		size := maxEarlyBody - len(saying(plainRequest, ""))
		for i, body := range []string{saying(plainRequest, "crash"), adapterRequest, saying(plainRequest, strings.Repeat("x", size)),
			saying(plainRequest, strings.Repeat("x", size+1)), saying(plainRequest, "copied")} {
			shim := s.shimAt(fmt.Sprint("s:", i))
			f := withAdapters(testFunction("tiny"))
			s.act.Publish(startingAt(f, 4, fmt.Sprint("s:", i)))
			waits := s.beside(func() { s.chat(body) })
			time.Sleep(2 * time.Second)
			s.note("%d copies of %.80s", shim.waiting.Load(), body)
			close(shim.opened)
			s.act.Publish(readyAt(f, 4, fmt.Sprint("s:", i)))
			waits()
		}
	}},
	{name: "requests under way without a key", beside: true, change: func(o *Options) {
		o.KeyRequests = httpserver.NewBudget(100, 1)
	}, play: func(s *stage) {
		s.ready(4, "e:1")
		other := s.beside(func() { s.chat(saying(plainRequest, "other")) })
		s.chat(plainRequest)
		other()
		c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam, KeyID: "k"}}
		for range 2 {
			defer s.beside(func() {
				a, err := call.Do(s.t.Context(), s.act.Serve, c, "/v1/chat/completions", nil, []byte(plainRequest))
				s.note("%d %v", a.Status, err)
			})()
		}
	}},
	{name: "retries behind padding", change: padded(time.Second, 0), play: func(s *stage) {
		s.ready(4, "e:1")
		first := s.beside(func() { s.chat(plainRequest, "Idempotency-Key", "a") })
		s.chat(plainRequest, "Idempotency-Key", "a")
		first()
	}},
	{name: "a log of warnings", change: func(o *Options) { o.Log = slog.New(warnings{o.Log.Handler()}) }, play: func(s *stage) {
		s.ready(4, "e:1")
		s.chat(plainRequest)
	}},
	{name: "a buffer that is just full", change: func(o *Options) { o.BufferBytes = 1000 }, play: func(s *stage) {
		s.act.Publish(testFunction("tiny"), startingAt(testFunction("starts"), 4, "e:1"))
		s.engineAt("e:1", silent)
		for _, name := range []string{"tiny", "starts"} {
			for _, priority := range []string{"", "low"} {
				for _, size := range []int64{500, 501, 1000, 1001} {
					ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
					header := func(field string) string { return map[string]string{"thaw-priority": priority}[field] }
					want := ReservationRequest{Name: testFunction(name).Name, Team: "default", Bytes: size, Header: header}
					_, e := s.act.Reserve(ctx, want)
					s.note("%s %s %d: %v", name, priority, size, e)
					cancel()
				}
			}
		}
	}},
	{name: "a server that must drain", play: func(s *stage) {
		s.ready(4, "e:1")
		s.act.Publish(testFunction("cold"))
		for _, model := range []string{"tiny", "cold"} {
			c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}, Draining: func() bool { return true }}
			a, err := call.Do(s.t.Context(), s.act.Serve, c, "/v1/chat/completions", nil, []byte(strings.Replace(plainRequest, "tiny", model, 1)))
			s.note("%s: %d %s %v", model, a.Status, usual.Replace(string(a.Body)), err)
		}
	}},
	{name: "errors that come first in streams that stay open", play: func(s *stage) {
		for i, events := range []string{badFrame, deadFrame, messageError, "data: one\n\n", strings.Replace(badFrame, "500", "400", 1)} {
			path, body := "/v1/chat/completions", streamRequest
			if events == messageError {
				path, body = "/v1/messages", messagesRequest
			}
			addr := fmt.Sprint("e:", i)
			s.engineAt(addr, open(events))
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.see(s.post(path, saying(body, addr), "thaw-max-wait", "5"))
			s.see(s.post(path, strings.Replace(saying(body, addr), `"stream":true,`, "", 1), "thaw-max-wait", "5"))
		}
	}},
	{name: "an engine that refuses to count tokens and then dies", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(body, "stream_options") {
				return says(400, `{"error":{"message":"extra fields not permitted: stream_options"}}`)(c, r, body)
			}
			return after(time.Second, dies)(c, r, body)
		})
		s.engineAt("e:2", after(time.Second, goodAnswer))
		s.limit(functions.Limits{TokensPerMinute: 1000})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		waits := s.beside(func() { s.chat(streamRequest) })
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1", "e:2"))
		waits()
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:2"))
		s.chat(streamRequest)
	}},
	{name: "a text that looks like the end mark", play: func(s *stage) {
		text := strings.Replace(event2, `"i"`, `"[DONE]"`, 1)
		s.engineAt("e:1", chunked("0\r\n\r\n", event1, text, event3, eventDone))
		s.engineAt("e:2", writes("0\r\n\r\n", event1, text+event3+eventDone+text))
		s.engineAt("e:3", chunked("0\r\n\r\n", event1+event3+eventDone+event1[:20]))
		s.engineAt("e:4", writes("0\r\n\r\n", event1, text, event3, eventDone))
		for _, addr := range []string{"e:1", "e:2", "e:3", "e:4"} {
			s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
			s.chat(saying(streamRequest, addr))
		}
	}},
	{name: "streams without no-ops that are held for long", change: func(o *Options) {
		o.Timing.Comment = 46 * time.Second // three in 100 s, whatever the jitter
	}, play: func(s *stage) {
		s.act.Publish(testFunction("tiny"))
		s.leavesAt("/v1/messages", 100*time.Second, messagesRequest)
		s.leavesAt("/v1/responses", 100*time.Second, responsesRequest)
	}},
	{name: "engines that die behind the head of an answer", play: func(s *stage) {
		for i, head := range []string{"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{", chunkHead + "3\r\n:\n\n\r\n"} {
			for _, count := range []string{"", "0", "1"} {
				addr := fmt.Sprint("e:", i, count)
				s.engineAt(addr, after(time.Second, func(c net.Conn, _ *http.Request, _ string) bool { return writeString(c, head) && false }))
				s.act.Publish(readyAt(testFunction("tiny"), 4, addr))
				s.chat(saying([]string{plainRequest, streamRequest}[i], addr), "X-Stainless-Retry-Count", count, "thaw-max-wait", "5")
			}
		}
	}},
	{name: "a Router whose second target has a second try", play: func(s *stage) {
		s.engineAt("f:1", after(time.Second, dies))
		s.engineAt("s:1", after(time.Second, dies))
		s.engineAt("s:2", after(time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("first"), 4, "f:1"), readyAt(testFunction("second"), 4, "s:1"))
		r := testRouter("first", "second")
		r.Spec.Retry.Escalate = true
		s.act.SetRouters([]*functions.Router{r}, nil)
		waits := s.beside(func() { s.chat(autoRequest) })
		time.Sleep(1500 * time.Millisecond) // it is at s:1
		s.act.Publish(readyAt(testFunction("second"), 4, "s:1", "s:2"))
		waits()
	}},
	{name: "a silent engine of a model without deadlines", change: func(o *Options) { o.Timing.Comment = time.Hour }, play: func(s *stage) {
		s.engineAt("e:1", silent)
		without, none := testFunction("tiny"), testFunction("tiny")
		without.Model.Spec.Deadlines.FirstToken, none.Model = 0, nil
		s.act.Publish(readyAt(without, 4, "e:1"))
		s.chat(streamRequest)
		time.Sleep(time.Minute)
		s.act.Publish(readyAt(none, 4, "e:1"))
		s.chat(saying(streamRequest, "none"))
	}},
	{name: "a function that is removed while its engines fail", play: func(s *stage) {
		for _, engine := range []answering{dies, goodAnswer} {
			s.engineAt("e:1", after(2*time.Second, engine))
			s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
			for _, body := range []string{plainRequest, streamRequest} {
				defer s.beside(func() { s.chat(body) })()
			}
			s.act.Remove(testFunction("tiny").Name)
			time.Sleep(5 * time.Second)
		}
	}},
	{name: "cold starts whose ids are in snapshots", play: func(s *stage) {
		s.silentWake = true
		s.engineAt("e:1", after(time.Second, goodAnswer))
		for i, took := range []float64{-1, 1, 5, 30} {
			f := testFunction("tiny")
			began := time.Now().Add(-3 * time.Second)
			f.ColdStart = &functions.Timeline{ID: fmt.Sprint("old-", i), Began: began, State: functions.Ready, Total: took}
			if took < 0 {
				f.ColdStart.State = functions.Loading
			}
			s.act.Publish(f)
			waits := s.beside(func() { s.chat(saying(plainRequest, f.ColdStart.ID), "X-Client-Request-Id", f.ColdStart.ID) })
			time.Sleep(time.Second)
			s.act.Publish(readyAt(f, 4, "e:1"))
			waits()
			id, ok := s.act.ColdStartOf(f.ColdStart.ID)
			s.note("%s took part in %s %v", f.ColdStart.ID, id, ok)
		}
	}},
	{name: "tools that an engine would compile", play: func(s *stage) {
		f := readyAt(testFunction("llama"), 4, "e:1")
		f.Model.Spec.Engine = functions.EngineLlamaCpp
		s.engineAt("e:1", after(time.Second, goodAnswer))
		s.act.Publish(f, readyAt(testFunction("tiny"), 4, "e:1"))
		for _, targets := range [][]string{{"llama"}, {"tiny"}, {"llama", "tiny"}} {
			s.act.SetRouters([]*functions.Router{testRouter(targets...)}, nil)
			s.chat(strings.Replace(autoRequest, "{", `{"tools":[{"name":"f","maxLength":70000}],`, 1))
		}
		s.chat(strings.Replace(plainRequest, `{"model":"tiny"`, `{"tools":[{"name":"f","maxLength":70000}],"model":"llama"`, 1))
	}},
	{name: "a function that the host names", change: func(o *Options) { o.Adapters = &fakeAdapters{} }, play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, goodAnswer))
		s.engineAt("cloud:1", after(time.Second, goodAnswer))
		s.publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1"), []string{"pirate"}), readyAt(testFunction("blue/other"), 4, "e:1"),
			testRemote("cloud", "cloud:1", functions.DataPublic))
		s.act.SetAliases([]Alias{{Name: testFunction("soon").Name, Shares: []Share{{Function: testFunction("gone").Name, Percent: 100}}}})
		s.act.SetRouters([]*functions.Router{testRouter("tiny")}, nil)
		for _, name := range []string{"tiny", "cloud", "soon", "none", "blue/other", "auto"} {
			for _, model := range []string{"x", "x:pirate", "x:none", "x:a b"} {
				for _, data := range []string{"", "hot", "secret"} {
					if data != "" && model != "x" {
						continue
					}
					c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}
					a, err := call.Do(s.t.Context(), func(req *httpserver.Request, res *httpserver.Response) {
						s.act.ServeAs(testFunction(name).Name, req, res)
					}, c, "/v1/chat/completions", []httpserver.Field{{Name: "thaw-data", Value: data}},
						[]byte(strings.Replace(plainRequest, "tiny", model, 1)))
					s.note("%s for %s %s: %d %s %v", name, model, data, a.Status, usual.Replace(string(a.Body)), err)
				}
			}
		}
		for _, name := range []string{"tiny", "blue/other"} { // of this program, without the host
			c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}
			a, err := call.Do(s.t.Context(), s.act.Serve, c, "/v1/chat/completions", nil, []byte(strings.Replace(plainRequest, "tiny", name, 1)))
			s.note("%s: %d %s %v", name, a.Status, usual.Replace(string(a.Body)), err)
		}
	}},
}
