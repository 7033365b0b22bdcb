package activator

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// coldStart has tiny start in five seconds at e:1, once it is woken.
func coldStart(s *stage, slots int) {
	s.engineAt("e:1", after(time.Second, goodAnswer))
	f := testFunction("tiny")
	s.act.Publish(f)
	var began atomic.Bool
	start := func() {
		f.ColdStart = &functions.Timeline{ID: "cs-1", Began: time.Now(), State: functions.Loading}
		s.act.Publish(loadingAt(f, functions.Loading, 10, 40*time.Second))
		time.Sleep(5 * time.Second)
		f.ColdStart = &functions.Timeline{ID: "cs-1", Began: f.ColdStart.Began, State: functions.Ready, Total: 5, Tier: functions.TierRemote,
			Phases: []functions.Span{{Phase: functions.PhaseStage, Duration: 2}, {Phase: functions.PhaseLoad, Start: 2, Duration: 3}}}
		f.Progress = functions.NoProgress
		s.act.Publish(readyAt(f, slots, "e:1"))
	}
	s.onWake = func() {
		if !began.Swap(true) {
			start()
		}
	}
}

// limit sets the limits of the default team.
func (s *stage) limit(l functions.Limits) {
	s.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: l}}})
}

const badFrame = `data: {"error":{"message":"CUDA out of memory","type":"server_error","code":500}}` + "\n\n"

var refusedDial = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}

// scenes are the ways in which a request ends.
var scenes = []scene{
	{name: "a plain answer", play: func(s *stage) {
		s.ready(4, "e:1")
		s.chat(plainRequest, "X-Client-Request-Id", "mine-1", "X-Request-Id", "not-mine", "traceparent",
			"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Cookie", "a=b")
	}},
	{name: "a stream", play: func(s *stage) { s.ready(4, "e:1"); s.chat(streamRequest, "X-Request-Id", "mine-2") }},
	{name: "a stream with usage", play: func(s *stage) {
		s.ready(4, "e:1")
		s.chat(strings.Replace(streamRequest, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
	}},
	{name: "a stream whose tokens thaw counts", play: func(s *stage) {
		s.ready(4, "e:1")
		s.limit(functions.Limits{TokensPerMinute: 1000, RequestsPerMinute: 60, Concurrent: 9})
		s.chat(streamRequest)
		s.chat(strings.Replace(streamRequest, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
		s.chat(plainRequest)
	}},
	{name: "a stream whose engine refuses to count tokens", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(body, "stream_options") {
				return says(400, `{"error":{"message":"extra fields not permitted: stream_options"}}`)(c, r, body)
			}
			return after(time.Second, goodAnswer)(c, r, body)
		})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.limit(functions.Limits{TokensPerMinute: 1000})
		s.chat(streamRequest)
		s.chat(streamRequest)
	}},
	{name: "a cold start, plain", play: func(s *stage) { coldStart(s, 4); s.chat(plainRequest, "X-Client-Request-Id", "mine") }},
	{name: "a cold start, streamed", play: func(s *stage) { coldStart(s, 4); s.chat(streamRequest) }},
	{name: "a cold start, padded", change: padded(2*time.Second, 2*time.Second),
		play: func(s *stage) { coldStart(s, 4); s.chat(plainRequest) }},
	{name: "a cold start, padded for an impatient client", change: padded(time.Second, 0),
		play: func(s *stage) { coldStart(s, 4); s.chat(plainRequest, "thaw-max-wait", "8") }},
	{name: "a cold start, refused at once", change: func(o *Options) { o.Hold = Hold503 }, play: func(s *stage) {
		coldStart(s, 4)
		s.chat(plainRequest)
		time.Sleep(2 * time.Second)
		s.chat(plainRequest)
		time.Sleep(4 * time.Second)
		s.chat(plainRequest)
		s.act.Publish(testFunction("other"))
		s.leaves(5*time.Second, strings.Replace(streamRequest, "tiny", "other", 1)) // which can wait
	}},
	{name: "a slot that another had", play: func(s *stage) {
		s.ready(1, "e:1")
		other := s.beside(func() { s.chat(plainRequest) })
		s.chat(streamRequest)
		other()
	}},
	{name: "a slot that comes too late", play: func(s *stage) {
		s.engineAt("e:1", after(time.Minute, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
		other := s.beside(func() { s.chat(plainRequest) })
		s.chat(plainRequest, "thaw-max-wait", "6")
		s.chat(strings.Replace(streamRequest, "hello", "bye", 1), "thaw-max-wait", "6")
		other()
	}},
	{name: "a start that takes too long", play: func(s *stage) {
		coldStart(s, 4)
		s.chat(plainRequest, "thaw-max-wait", "2")
		s.chat(streamRequest, "thaw-max-wait", "2")
	}},
	{name: "a start that fails", play: func(s *stage) {
		f := testFunction("tiny")
		s.act.Publish(f)
		s.onWake = func() {
			time.Sleep(4 * time.Second)
			f.State, f.ColdStart = functions.Failed, &functions.Timeline{ID: "cs-1", State: functions.Failed, Total: 4, Error: "no weights"}
			f.Failure = &snapshot.Failure{Reason: "weights_missing", At: time.Now(), Until: time.Now().Add(time.Minute)}
			s.act.Publish(f)
		}
		s.chat(plainRequest)
		s.chat(streamRequest)
	}},
	{name: "a start that fails behind a stream's head", play: func(s *stage) {
		f := testFunction("tiny")
		s.act.Publish(f)
		s.onWake = func() {
			time.Sleep(4 * time.Second)
			f.State = functions.Failed
			f.Failure = &snapshot.Failure{Reason: "weights_missing", At: time.Now(), Until: time.Now().Add(time.Minute)}
			s.act.Publish(f)
		}
		s.chat(streamRequest)
	}},
	{name: "a start that fails behind padding", change: padded(time.Second, 0), play: func(s *stage) {
		f := testFunction("tiny")
		s.act.Publish(f)
		s.onWake = func() {
			time.Sleep(4 * time.Second)
			f.State, f.Failure = functions.Failed, &snapshot.Failure{Reason: "weights_missing", At: time.Now(), Until: time.Now().Add(time.Minute)}
			s.act.Publish(f)
		}
		s.chat(plainRequest)
	}},
	{name: "a place that no node has", play: func(s *stage) {
		f := testFunction("tiny")
		f.Blocked = &snapshot.Blocked{Code: snapshot.QuotaExceeded, Message: "The team has its 2 GPUs.", ETA: 90 * time.Second, At: time.Now()}
		s.act.Publish(f)
		s.chat(plainRequest, "thaw-max-wait", "1")
		f.Blocked = &snapshot.Blocked{Message: "No node has 80 GB", ETA: -1, At: time.Now(), Final: true}
		s.act.Publish(f)
		s.chat(plainRequest)
	}},
	{name: "requests that are wrong", change: func(o *Options) { o.Open = false }, play: func(s *stage) {
		s.ready(4, "e:1")
		key, _, err := s.keys.Create("default", "test", false)
		if err != nil {
			s.t.Fatal(err)
		}
		k := []string{"Authorization", "Bearer " + key}
		s.chat(plainRequest)
		s.chat(plainRequest, "Authorization", "Bearer sk-other")
		s.chat(`{"model":"tiny"`, k...)
		s.chat(`{"model":"tinny","messages":[]}`, k...)
		s.chat(`{"model":"blue/tiny","messages":[]}`, k...)
		s.chat(`{"messages":[]}`, k...)
		s.chat(plainRequest, append(k, "thaw-priority", "huge")...)
		s.chat(plainRequest, append(k, "thaw-data", "hot")...)
		s.see(s.do(context.Background(), "GET", "/v1/chat/completions", "", k...))
		s.see(s.post("/v1/chat/completion", plainRequest, k...))
		s.see(s.post("/v1/models", "", k...))
		s.see(s.post("/v1/messages", `{"model":"tinny","max_tokens":1}`, k...))
		s.see(s.do(context.Background(), "GET", "/v1/models/tiny", "", k...))
		s.see(s.do(context.Background(), "GET", "/v1/models/default%2ftiny", "", append(k, "anthropic-version", "2023-06-01")...))
		s.see(s.do(context.Background(), "GET", "/v1/models/none", "", append(k, "anthropic-version", "2023-06-01")...))
	}},
	{name: "limits of a team", play: func(s *stage) {
		s.ready(1, "e:1")
		s.act.Publish(testFunction("cold"), testFunction("colder"))
		cold := func(name string) string { return strings.Replace(plainRequest, "tiny", name, 1) }
		s.limit(functions.Limits{Concurrent: 1})
		other := s.beside(func() { s.chat(plainRequest) })
		s.chat(plainRequest)
		other()
		s.limit(functions.Limits{HeldRequests: 1})
		other = s.beside(func() { s.chat(cold("cold"), "thaw-max-wait", "3") })
		s.chat(cold("cold"))
		other()
		s.limit(functions.Limits{ColdStartsPerHour: 1})
		s.chat(cold("colder"), "thaw-max-wait", "1")
		s.chat(cold("cold"), "thaw-max-wait", "1")
		time.Sleep(100 * time.Millisecond) // its idle connection has ended
		s.limit(functions.Limits{TokensPerMinute: 4})
		s.chat(plainRequest)
		s.chat(plainRequest)
	}},
	{name: "a full queue", play: func(s *stage) {
		s.ready(1, "e:1")
		f := readyAt(testFunction("tiny"), 1, "e:1")
		f.Model.Spec.Queue.Requests = 1
		s.act.Publish(f)
		first := s.beside(func() { s.chat(plainRequest) })
		second := s.beside(func() { s.chat(strings.Replace(plainRequest, "hello", "hi", 1)) })
		s.chat(strings.Replace(plainRequest, "hello", "hey", 1))
		first()
		second()
	}},
	{name: "a full buffer", change: func(o *Options) { o.BufferBytes = 2000 }, play: func(s *stage) {
		coldStart(s, 4)
		s.chat(strings.Replace(plainRequest, "hello", strings.Repeat("x", 4000), 1))
	}},
	{name: "a client that leaves", play: func(s *stage) {
		coldStart(s, 4)
		s.leaves(2*time.Second, plainRequest)
		s.leaves(2*time.Second, strings.Replace(streamRequest, "hello", "bye", 1))
		s.leaves(1500*time.Millisecond, plainRequest) // at the engine
		s.leaves(500*time.Millisecond, plainRequest)
		s.leaves(500*time.Millisecond, streamRequest)
	}},
	{name: "a client that leaves in mid-stream", play: func(s *stage) {
		s.engineAt("e:1", writes("0\r\n\r\n", event1, event2, event3, eventDone))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.leaves(2500*time.Millisecond, streamRequest)
		s.leaves(4500*time.Millisecond, streamRequest) // behind the end mark
	}},
	{name: "a client that leaves its padding", change: padded(time.Second, 0),
		play: func(s *stage) { coldStart(s, 4); s.leaves(3*time.Second, plainRequest) }},
	{name: "an engine that refuses", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			switch {
			case strings.Contains(body, "long"):
				return says(400, `{"object":"error","message":"This model's maximum context length is 10 tokens.","type":"BadRequestError","code":400}`)(c, r, body)
			case strings.Contains(body, "busy"):
				return says(503, `{"error":"try later"}`, "Retry-After: 7")(c, r, body)
			case strings.Contains(body, "strange"):
				return says(418, `teapot`)(c, r, body)
			}
			return says(429, `{"error":{"message":"slow down","type":"rate","code":"slow"}}`, "retry-after-ms: 2500")(c, r, body)
		})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		for _, text := range []string{"long", "busy", "strange", "other"} {
			s.chat(strings.Replace(plainRequest, "hello", text, 1))
			s.chat(strings.Replace(streamRequest, "hello", text, 1))
		}
	}},
	{name: "an engine that dies, and another", play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, dies))
		s.engineAt("e:2", after(time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		other := s.beside(func() { s.chat(plainRequest) })
		f := readyAt(testFunction("tiny"), 4, "e:1", "e:2")
		s.act.Publish(f)
		other()
	}},
	{name: "engines that die", play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, dies))
		s.engineAt("e:2", after(2100*time.Millisecond, dies)) // not as a held stream's head goes out
		s.act.Publish(readyAt(testFunction("tiny"), 1, "e:1", "e:2"))
		s.chat(plainRequest)
		time.Sleep(10 * time.Minute)
		s.chat(streamRequest)
	}},
	{name: "an engine that refuses connections", play: func(s *stage) {
		s.act.Publish(readyAt(testFunction("tiny"), 1, "nobody:1"))
		s.chat(plainRequest, "thaw-max-wait", "4")
	}},
	{name: "an engine that dies in a stream", play: func(s *stage) {
		s.engineAt("e:1", writes("", event1, event2))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(streamRequest)
	}},
	{name: "an engine that dies in a large answer", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool {
			writeString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n")
			for range 2 {
				writeString(c, strings.Repeat("x", 1<<20))
			}
			return false
		})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		r := s.post("/v1/chat/completions", plainRequest)
		r.body = ""
		s.see(r)
	}},
	{name: "an engine that is silent in a stream", change: func(o *Options) { o.Timing.StreamIdle = 20 * time.Second }, play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			writes("", event1)(c, r, body)
			c.Read(make([]byte, 1))
			return false
		})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(streamRequest)
	}},
	{name: "an engine that is silent", change: func(o *Options) { o.Timing.PlainAnswer = 30 * time.Second }, play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, _ *http.Request, _ string) bool { c.Read(make([]byte, 1)); return false })
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(plainRequest)
	}},
	{name: "an engine whose error comes first in a stream", play: func(s *stage) {
		s.engineAt("e:1", writes("0\r\n\r\n", badFrame, eventDone))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(streamRequest)
	}},
	{name: "an engine whose error comes in a stream", play: func(s *stage) {
		s.engineAt("e:1", writes("0\r\n\r\n", event1, badFrame, eventDone))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(streamRequest)
	}},
	{name: "an engine that ends a stream without its mark", play: func(s *stage) {
		s.engineAt("e:1", writes("0\r\n\r\n", event1, event2, event3))
		s.engineAt("e:2", writes("0\r\n\r\n", event1, event2))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(streamRequest)
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:2"))
		s.chat(streamRequest)
	}},
	{name: "an engine that does not stream", play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, says(200, jsonAnswer)))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(streamRequest)
	}},
	{name: "an engine that streams always", play: func(s *stage) {
		s.engineAt("e:1", writes("0\r\n\r\n", event1, event2, event3, eventUsage, eventDone))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.chat(plainRequest)
	}},
	{name: "an agent without the replica", play: func(s *stage) {
		s.engineAt("e:1", says(404, `{"error":{"message":"no such replica","type":"invalid_request_error","code":"replica_not_found"}}`))
		s.engineAt("e:2", after(time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
		s.chat(plainRequest, "thaw-max-wait", "3")
	}},
	{name: "a server that shuts down", play: func(s *stage) {
		coldStart(s, 4)
		waits := s.beside(func() { s.chat(plainRequest) })
		s.act.Drain(s.t.Context())
		waits()
		s.chat(streamRequest)
	}},
	{name: "a function that is removed", play: func(s *stage) {
		coldStart(s, 4)
		waits := s.beside(func() { s.chat(plainRequest) })
		s.act.Remove(testFunction("tiny").Name)
		waits()
	}},
	{name: "a request that killed engines", play: func(s *stage) {
		e := s.fragileEngineAt("e:1")
		e.publishes(s.testEnv, "tiny")
		for _, wait := range []time.Duration{10 * time.Second, 10 * time.Second, 5 * time.Minute, 6 * time.Minute, time.Second} {
			s.chat(bodySaying("tiny", "poison"))
			time.Sleep(wait)
		}
		r, err := s.act.Reserve(s.t.Context(), ReservationRequest{Name: testFunction("tiny").Name, Team: "default"}) // which no suspicion is of
		s.note("a reservation: %v", err)
		r.Finish(200)
	}},
	{name: "a retry of a client", play: func(s *stage) {
		s.ready(4, "e:1")
		other := s.beside(func() { s.chat(plainRequest, "Idempotency-Key", "a") })
		s.chat(plainRequest, "Idempotency-Key", "a", "X-Client-Request-Id", "second")
		other()
	}},
	{name: "an alias", play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, goodAnswer))
		f := readyAt(testFunction("tiny-00001"), 4, "e:1")
		f.ServedModelName, f.Hidden = "tiny", true
		s.act.Publish(f)
		s.act.SetAliases([]Alias{{Name: testFunction("tiny").Name, Shares: []Share{{Function: f.Name, Percent: 100}}}, {Name: testFunction("soon").Name,
			Shares: []Share{{Function: testFunction("soon-00001").Name, Percent: 100}}}})
		s.chat(plainRequest)
		s.chat(strings.Replace(plainRequest, "tiny", "soon", 1))
		s.see(s.do(context.Background(), "GET", "/v1/models", ""))
		s.act.Publish(readyAt(testFunction("plain"), 4, "e:1")) // whose engine knows no served name
		s.act.SetAliases([]Alias{{Name: testFunction("other").Name, Shares: []Share{{Function: testFunction("plain").Name, Percent: 100}}}})
		s.chat(strings.Replace(plainRequest, "tiny", "other", 1))
	}},
	{name: "a Router", change: func(o *Options) {
		o.Prewarm = func(functions.Name, time.Time, string) error { return nil }
	}, play: func(s *stage) {
		s.engineAt("f:1", after(time.Second, says(500, `{"error":"no"}`)))
		s.engineAt("s:1", after(time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("first"), 4, "f:1"), readyAt(testFunction("second"), 4, "s:1"))
		r := testRouter("first", "second")
		s.act.SetRouters([]*functions.Router{r}, nil)
		s.chat(autoRequest)
		escalating := *r
		escalating.Spec.Retry.Escalate = true
		s.act.SetRouters([]*functions.Router{&escalating}, nil)
		s.chat(autoRequest)
		other := escalating
		other.Spec.Rules = []functions.Rule{{Name: "general", To: []string{"second", "first"}}} // the first answers
		s.act.SetRouters([]*functions.Router{&other}, nil)
		s.chat(autoRequest)
		hedging := *r
		hedging.Metadata.Name = "hedging"
		hedging.Spec.Rules = []functions.Rule{{Name: "general", To: []string{"big", "second"}}}
		hedging.Spec.Cold = functions.ColdHedge
		s.act.Publish(testFunction("big"))
		s.act.SetRouters([]*functions.Router{&escalating, &hedging}, nil)
		s.chat(strings.Replace(autoRequest, "auto", "hedging", 1))
	}},
	{name: "a Router from an adapter to a model without it", change: func(o *Options) {
		o.Adapters = &fakeAdapters{takes: 2 * time.Second}
	}, play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, says(500, `{"error":"no"}`)))
		s.engineAt("s:1", after(time.Second, says(200, strings.Replace(jsonAnswer, "{", `{"model":"mine",`, 1))))
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1")), readyAt(testFunction("second"), 4, "s:1"))
		r := testRouter("tiny:pirate", "second")
		r.Spec.Retry.Escalate = true
		s.act.SetRouters([]*functions.Router{r}, nil)
		s.chat(autoRequest)
	}},
	{name: "a cold start after that of the request", play: func(s *stage) {
		coldStart(s, 4)
		s.engineAt("e:1", func(conn net.Conn, r *http.Request, body string) bool {
			f := readyAt(testFunction("tiny"), 4, "e:1")
			f.ColdStart = &functions.Timeline{ID: "cs-2", State: functions.Ready, Phases: []functions.Span{{Phase: functions.PhaseLoad, Duration: 9}}}
			s.act.Publish(f)
			return goodAnswer(conn, r, body)
		})
		s.chat(plainRequest)
	}},
	{name: "a cache", change: func(o *Options) { o.Cache = cache.NewStore(1<<20, o.Metrics) }, play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, goodAnswer))
		f := testFunction("tiny")
		f.Model.Spec.Cache.Exact = &functions.ExactCache{TTL: functions.Duration(10 * time.Minute)}
		s.act.Publish(readyAt(f, 4, "e:1"))
		s.chat(coolStream)
		time.Sleep(3 * time.Second)
		s.chat(coolPlain)
		s.chat(coolStream)
		s.chat(strings.Replace(coolPlain, "hello", "bye", 1), "thaw-cache", "only")
	}},
	{name: "an adapter", change: func(o *Options) { o.Adapters = &fakeAdapters{takes: 2 * time.Second} }, play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, goodAnswer))
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1")))
		s.chat(adapterRequest)
		s.chat(strings.Replace(adapterRequest, `{"model"`, `{"stream":true,"model"`, 1), "thaw-max-wait", "1")
		s.chat(strings.Replace(adapterRequest, "pirate", "nothing", 1))
	}},
	{name: "an adapter that cannot be loaded", change: func(o *Options) {
		o.Adapters = &fakeAdapters{takes: time.Second, fails: &functions.AdapterError{
			Code: string(openai.AdapterInvalid), Message: "its rank is 64."}}
	}, play: func(s *stage) {
		s.engineAt("e:1", goodAnswer)
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1")))
		s.chat(adapterRequest)
	}},
	{name: "a Remote", play: func(s *stage) {
		s.engineAt("cloud:1", after(time.Second, goodAnswer))
		s.cloudAt("cloud:1", func(r *functions.RemoteSpec) { r.Price = functions.Price{Input: 1000, Output: 2000} })
		s.chat(cloudPlain)
		s.chat(cloudStream)
		s.chat(cloudPlain, "thaw-data", "secret")
	}},
	{name: "a team's class of data", play: func(s *stage) {
		s.engineAt("cloud:1", goodAnswer)
		s.publish(testRemote("cloud", "cloud:1", functions.DataPublic))
		for _, class := range []functions.DataClass{functions.DataPublic, functions.DataSecret} {
			s.act.SetRouters(nil, map[string]functions.DataClass{functions.DefaultTeam: class})
			s.chat(cloudPlain)
			s.chat(cloudPlain, "thaw-data", "public")
			time.Sleep(time.Second)
		}
	}},
	{name: "a Remote that fails", play: func(s *stage) {
		s.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(body, "slow") {
				return says(429, `{"error":{"message":"slow"}}`, "Retry-After: 9")(c, r, body)
			}
			return after(time.Second, says(500, `{"error":{"message":"no"}}`))(c, r, body)
		})
		s.cloudAt("cloud:1", nil)
		s.chat(cloudPlain)
		s.chat(strings.Replace(cloudPlain, "hello", "slow", 1))
		s.chat(cloudPlain)
	}},
	{name: "a Remote that breaks", play: func(s *stage) {
		s.engineAt("cloud:1", writes("", event1))
		s.cloudAt("cloud:1", nil)
		s.chat(cloudStream)
	}},
	{name: "other endpoints", play: func(s *stage) {
		s.ready(4, "e:1")
		for _, path := range []string{"/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/audio/speech", "/v1/rerank",
			"/tokenize"} {
			s.see(s.post(path, `{"model":"tiny","input":"x","prompt":"x","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`))
		}
		s.see(s.post("/v1/audio/transcriptions", tinyForm, "Content-Type", "multipart/form-data; boundary=b"))
		s.see(s.post("/v1/audio/transcriptions", strings.Replace(tinyForm, `"model"`, `"other"`, 1), "Content-Type", "multipart/form-data; boundary=b"))
	}},
	{name: "early copies", play: func(s *stage) {
		shim := s.shimAt("e:1")
		s.act.Publish(testFunction("tiny"))
		s.onWake = func() {
			s.act.Publish(startingAt(testFunction("tiny"), 4, "e:1"))
			time.Sleep(2 * time.Second)
			close(shim.opened)
			time.Sleep(time.Second)
			s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		}
		s.chat(plainRequest)
	}},
	{name: "reservations", play: func(s *stage) {
		s.act.Publish(testFunction("tiny"))
		s.onWake = func() {
			time.Sleep(time.Second)
			s.act.Publish(readyAt(testFunction("tiny"), 1, "e:1", "e:2"))
		}
		head := http.Header{"X-Request-Id": {"mine"}}
		waits := func() { s.note("a reservation waits") }
		want := ReservationRequest{Name: testFunction("tiny").Name, Team: "default", Bytes: 100, Header: head.Get, OnWait: waits}
		take := func(ctx context.Context) *Reservation {
			r, e := s.act.Reserve(ctx, want)
			if e != nil {
				s.t.Error(e)
			}
			time.Sleep(time.Second)
			return r
		}
		r := take(s.t.Context())
		r.FirstByte()
		time.Sleep(time.Second)
		r.Finish(200)
		r = take(s.t.Context())
		r.BrokeMidAnswer()
		r.Finish(502)
		r = take(s.t.Context())
		if e := r.Failed(refusedDial); e != nil {
			s.t.Error(e)
		}
		time.Sleep(time.Second)
		if e := r.Failed(errors.New("EOF")); e == nil {
			s.t.Error("a third replica")
		}
		r.Finish(502)
		time.Sleep(time.Minute)
		ctx, cancel := context.WithCancelCause(s.t.Context())
		r = take(ctx)
		cancel(httpserver.ErrGone)
		r.Finish(499)
	}},
}
