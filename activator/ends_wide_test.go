package activator

import (
	"context"
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

// chunked is an engine that streams pieces at once and ends by end; "" breaks the connection.
func chunked(end string, pieces ...string) answering {
	return func(c net.Conn, _ *http.Request, _ string) bool {
		writeString(c, chunkHead)
		chunk(c, strings.Join(pieces, ""))
		return end != "" && writeString(c, end)
	}
}

const (
	completionRequest = `{"model":"tiny","prompt":"hello"}`
	completionEvent   = `data: {"id":"c","object":"text_completion","choices":[{"index":0,"text":"h","finish_reason":"stop"}]}` + "\n\n"
	completionAnswer  = `{"id":"c","object":"text_completion","choices":[{"index":0,"text":"h","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
	messageAnswer     = `{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"h"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2}}`
	responseAnswer    = `{"id":"r","status":"completed","output":[{"id":"i","type":"message","content":[{"type":"output_text","text":"h"}]}],"usage":{"input_tokens":3,"output_tokens":2}}`
	embeddingsAnswer  = `{"object":"list","data":[{"index":0,"embedding":[0.5]}],"usage":{"prompt_tokens":3,"total_tokens":3}}`
)

// kinds are requests for each endpoint that engines answer in a form of its own, with a whole
// answer, the events of one, and an error among them.
var kinds = []struct {
	path, body, answer string
	events             []string
	failure            string
}{
	{"/v1/chat/completions", plainRequest, jsonAnswer, []string{event1, event3, eventUsage, eventDone}, badFrame},
	{"/v1/completions", completionRequest, completionAnswer, []string{completionEvent, eventUsage, eventDone}, badFrame},
	{"/v1/messages", strings.Replace(messagesRequest, `"stream":true,`, "", 1), messageAnswer, []string{messageStart, messageText, messageEnd, messageStop}, messageError},
	{"/v1/responses", strings.Replace(responsesRequest, `"stream":true,`, "", 1), responseAnswer, []string{responseBegin, responseText, responseEnd}, responseError},
	{"/v1/embeddings", responsesRequest, embeddingsAnswer, []string{event1, eventDone}, badFrame},
}

// eachKind has a request of each kind, plain and streamed, answered in each way that engines
// have. publish has the model at an address.
func (s *stage) eachKind(publish func(addr string)) {
	const refusal = `{"error":{"message":"no","type":"t","code":"c","param":"p"}}`
	for i, k := range kinds {
		for how, answers := range [][]answering{
			{says(200, k.answer), chunked("0\r\n\r\n", k.events...)},
			{says(422, refusal), says(503, refusal, "Retry-After: 7")},
			{says(200, refusal), chunked("0\r\n\r\n", k.failure)},
			{chunked("0\r\n\r\n", k.events...), says(200, k.answer)}, // what was not asked for
			{chunked("0\r\n\r\n", k.events[0]+k.failure), chunked("0\r\n\r\n", k.events[0]+k.failure)},
			{chunked("", k.events[0]), chunked("", k.events[0])},
			{says(200, ""), says(200, "{}")},
			{chunked("", k.events...), chunked("", k.events...)},
		} {
			for streams, answer := range answers {
				text := fmt.Sprintf("%d-%d-%d", i, how, streams)
				s.engineAt(text+":1", after(time.Second, answer))
				publish(text + ":1")
				body := saying(k.body, text)
				if streams == 1 && !strings.Contains(body, `"stream"`) {
					body = strings.Replace(body, "{", `{"stream":true,`, 1)
				}
				s.see(s.post(k.path, body, "thaw-max-wait", "3"))
				time.Sleep(3 * time.Minute) // until a Remote that fails is tried again
			}
		}
	}
}

// ending is a request of this program whose context ends after a time, by a cause.
func (s *stage) ending(after time.Duration, cause error, body string) {
	ctx, cancel := context.WithCancelCause(s.t.Context())
	defer cancel(nil)
	time.AfterFunc(after, func() { cancel(cause) })
	c := &call.Caller{Identity: auth.Identity{Team: functions.DefaultTeam}}
	a, err := call.Do(ctx, s.act.Serve, c, "/v1/chat/completions", nil, []byte(body))
	s.note("%v %d %q: %v", cause, a.Status, a.Body, err)
	time.Sleep(time.Minute)
}

// direct is a request of a client without the server: its body is the answer's, unless that is a stream.
func (s *stage) direct(change func(*httpserver.Request), head ...httpserver.Field) {
	var res httpserver.Response
	began := time.Now()
	ctx := &httpserver.Context{}
	req := httpserver.NewRequest(nil, "POST", "/v1/chat/completions", head, []byte(plainRequest), ctx, func() bool { return false })
	change(req)
	s.act.Serve(req, &res)
	if res.Stream != nil {
		res.Stream.Close()
	}
	ctx.End(httpserver.ErrGone)
	s.note("%v after %v: %d %s", head, time.Since(began), res.Status, res.Body)
}

// shimHolding is a shim that answers a copy after two seconds and reports to have held it for a time.
func shimHolding(held string) answering {
	return after(2*time.Second, says(200, jsonAnswer, snapshot.HeldHeader+": "+held))
}

// wideScenes are ends of many requests that differ in one thing each.
var wideScenes = []scene{
	{name: "each kind of answer of an engine", play: func(s *stage) {
		s.limit(functions.Limits{TokensPerMinute: 1000000}) // streams are asked for their usage
		s.eachKind(func(addr string) { s.act.Publish(readyAt(testFunction("tiny"), 4, addr)) })
	}},
	{name: "each kind of answer of a Remote", play: func(s *stage) {
		s.eachKind(func(addr string) { s.publish(testRemote("tiny", addr, functions.DataSecret)) })
	}},
	{name: "each name for each caller", beside: true, change: func(o *Options) {
		o.Open, o.Adapters, o.Currency, o.Random = false, &fakeAdapters{}, "EUR", func(n int) int { return n - 1 }
	}, play: func(s *stage) {
		s.engineAt("e:1", after(time.Second, goodAnswer))
		s.engineAt("cloud:1", after(time.Second, goodAnswer))
		hidden, failed := readyAt(testFunction("hidden"), 4, "e:1"), testFunction("blue/failed")
		hidden.Hidden, failed.State = true, functions.Failed
		s.publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1"), []string{"pirate"}), hidden, testFunction("cold"), testFunction("both"), failed,
			withAdapters(readyAt(testFunction("blue/other"), 4, "e:1")), testRemote("cloud", "cloud:1", functions.DataSecret))
		share := func(name string, percent int) Share {
			return Share{Function: testFunction(name).Name, Percent: percent}
		}
		s.act.SetAliases([]Alias{{Name: testFunction("main").Name, Shares: []Share{share("gone", 60), share("hidden", 0), share("tiny", 40)}},
			{Name: testFunction("soon").Name, Shares: []Share{share("gone", 100)}},
			{Name: testFunction("both").Name, Shares: []Share{share("cold", 100)}}, {Name: testFunction("blue/alias").Name, Shares: []Share{share("blue/other", 100)}}})
		smart, blue := *testRouter("tiny", "blue/other", "panel"), *testRouter("other", "cloud")
		far := *testRouter("blue/council", "blue/other", "cold")
		smart.Metadata.Name, far.Metadata.Name, blue.Metadata.Name, blue.Metadata.Namespace = "smart", "far", "clever", "blue"
		s.act.SetRouters([]*functions.Router{testRouter("tiny:pirate"), &smart, &far, &blue}, nil)
		mine, theirs := panel(functions.PatternEnsemble, "hidden"), panel(functions.PatternEnsemble, "other")
		theirs.Metadata.Name, theirs.Metadata.Namespace = "council", "blue"
		s.act.SetCompositions([]*functions.Composition{mine, theirs})
		for _, caller := range []struct {
			team  string
			admin bool
		}{{"default", false}, {"blue", false}, {"default", true}} {
			key, _, err := s.keys.Create(caller.team, "", caller.admin)
			if err != nil {
				s.t.Fatal(err)
			}
			head := []string{"Authorization", "Bearer " + key}
			id, _ := s.keys.Lookup(key)
			s.see(s.do(s.t.Context(), "GET", "/v1/models", "", head...))
			for _, path := range []string{"/v1/audio/transcriptions", "/v1/none", "/v1/embeddings"} {
				rec, e := s.act.DryRoute(id, "", path, func(string) string { return "" }, []byte(autoRequest))
				s.note("%s for %s: %s %v", path, caller.team, rec.Target, e)
			}
			s.see(s.do(s.t.Context(), "GET", "/v1/models", "", append(head, "anthropic-version", "x")...))
			for _, name := range []string{"tiny", "tiny:pirate", "tiny:none", "hidden", "cold", "both", "cloud", "main", "main:pirate", "soon", "soon:pirate", "auto",
				"smart", "far", "panel", "blue/other", "blue/other:poet", "blue/failed", "blue/alias", "blue/clever", "blue/council", "blue/auto", "blue/tiny", "default/tiny", "red/tiny",
				"other", "clever", "auto:x", "TINY", "a b"} {
				escaped := strings.NewReplacer("/", "%2F", ":", "%3a", " ", "%20").Replace(name)
				one := s.do(s.t.Context(), "GET", "/v1/models/"+escaped, "", head...)
				b, e := s.act.DescribeModel(id, name)
				if same := string(b) == one.body || e != nil && string(e.Body()) == one.body; !same {
					s.note("%s %v, %s", b, e, one.body)
				}
				rec, e := s.act.DryRoute(id, name, "/v1/chat/completions", func(string) string { return "" }, []byte(autoRequest))
				look := s.act.Foresee(id, &rec)
				r := s.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", name, 1), append(head, "thaw-max-wait", "1")...)
				s.note("%s for %s %v: %s; asked %d %s %s", name, caller.team, caller.admin, one.body, r.status, r.head.Get("thaw-route"),
					usual.Replace(aRecord.ReplaceAllString(r.body, "")))
				if e == nil {
					s.note("routed %s, outlook %v %s %v", rec.Target, look.Conditional, look.Function, look.Snapshot != nil)
				} else if !strings.HasPrefix(e.Message, "The Router `"+name+"` does not exist") {
					s.note("%v", e)
				}
			}
		}
	}},
	{name: "streams that are held for long", change: func(o *Options) {
		o.Timing.Comment = 30 * time.Minute // their number varies
		o.Adapters = &fakeAdapters{}
	}, play: func(s *stage) {
		for i, body := range []string{plainRequest, completionRequest, adapterRequest, messagesRequest, responsesRequest} {
			s.act.Publish(withAdapters(testFunction("tiny")))
			path := []string{"/v1/chat/completions", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"}[i]
			s.leavesAt(path, 100*time.Second, strings.Replace(strings.Replace(body, `"stream":true,`, "", 1), "{", `{"stream":true,`, 1))
		}
	}},
	{name: "padding that lasts", change: padded(0, 0), play: func(s *stage) {
		s.act.Publish(testFunction("tiny"))
		s.leaves(100*time.Second, plainRequest)
		s.leaves(70*time.Second, plainRequest, "thaw-max-wait", "21")
	}},
	{name: "bounds of waits", change: func(o *Options) { o.Timing.Comment = 30 * time.Minute }, play: func(s *stage) {
		s.act.Publish(testFunction("tiny"))
		s.chat(streamRequest)
		long := testFunction("tiny")
		long.Model.Spec.Queue.Wait = functions.Duration(time.Hour)
		s.act.Publish(long)
		field := func(name, value string) httpserver.Field { return httpserver.Field{Name: name, Value: value} }
		for _, head := range [][]httpserver.Field{nil, {field("Via", "1.1 x")}, {field("X-Forwarded-For", "x")}, {field("thaw-max-wait", "70")},
			{field("Via", "1.1 x"), field("X-Forwarded-For", "x"), field("thaw-max-wait", "70")}, {field("X-Stainless-Timeout", "20")}} {
			for _, http10 := range []bool{false, true} {
				s.direct(func(r *httpserver.Request) { r.HTTP10 = http10 }, head...)
			}
		}
		for _, host := range []string{"", "thaw"} { // a stream over HTTP/1.0
			s.direct(func(r *httpserver.Request) { r.HTTP10, r.Host, r.Body = true, host, []byte(streamRequest) })
		}
	}},
	{name: "requests that end with the drain, and with their clients", change: func(o *Options) {
		o.Adapters = adaptersAt(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	}, play: func(s *stage) {
		s.act.Publish(testFunction("cold"))
		silent := func(c net.Conn, _ *http.Request, _ string) bool { c.Read(make([]byte, 1)); return false }
		s.engineAt("e:1", silent)
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1")))
		s.engineAt("cloud:1", silent)
		s.cloudAt("cloud:1", nil)
		for _, cause := range []error{httpserver.ErrDraining, httpserver.ErrGone} {
			for _, model := range []string{"cold", "tiny", "tiny:pirate", "cloud"} {
				for _, body := range []string{plainRequest, streamRequest} {
					for _, at := range []time.Duration{1500 * time.Millisecond, 5 * time.Second}[:1+strings.Count(body, "stream")] {
						s.ending(at, cause, strings.Replace(body, "tiny", model, 1))
					}
				}
			}
			ctx, cancel := context.WithCancelCause(s.t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			_, e := s.act.Reserve(ctx, ReservationRequest{Name: testFunction("cold").Name, Team: "default"})
			s.note("a reservation: %v", e)
		}
	}},
	{name: "an adapter that is late at a second replica", change: func(o *Options) {
		o.Adapters = adaptersAt(func(ctx context.Context, replica string) error {
			if replica == "e:1" {
				return &functions.AdapterError{Code: "no_memory", Message: "it is full."}
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}, play: func(s *stage) {
		s.engineAt("e:1", goodAnswer)
		s.engineAt("e:2", goodAnswer)
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1")))
		waits := s.beside(func() { s.chat(adapterRequest, "thaw-max-wait", "9") })
		s.act.Publish(withAdapters(readyAt(testFunction("tiny"), 4, "e:1", "e:2")))
		waits()
	}},
	{name: "early copies that were held for a time", play: func(s *stage) {
		for _, held := range []string{"1500000", "2000000", "5000000", "0", "-1", "x"} {
			s.engineAt("e:"+held, shimHolding(held))
			s.act.Publish(testFunction("tiny"))
			waits := s.beside(func() { s.chat(saying(plainRequest, held)) })
			time.Sleep(3 * time.Second)
			s.act.Publish(startingAt(testFunction("tiny"), 4, "e:"+held))
			waits()
		}
	}},
	{name: "an engine that fails behind the bound of a wait", play: func(s *stage) {
		s.engineAt("e:1", after(2*time.Second, goodAnswer))
		s.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
		for _, wait := range []string{"3", "30"} {
			other := s.beside(func() { s.chat(saying(plainRequest, "other "+wait)) })
			s.engineAt("e:2", after(4*time.Second, dies))
			waits := s.beside(func() { s.chat(saying(plainRequest, wait), "thaw-max-wait", wait) })
			s.act.Publish(readyAt(testFunction("tiny"), 1, "e:1", "e:2"))
			waits()
			other()
			time.Sleep(time.Minute)
		}
	}},
	{name: "a retry of a request that fails", play: func(s *stage) {
		s.engineAt("e:1", after(2*time.Second, says(429, `{"error":{"message":"no"}}`, "Retry-After: 7")))
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		first := s.beside(func() { s.chat(plainRequest, "Idempotency-Key", "a") })
		s.chat(plainRequest, "Idempotency-Key", "a")
		first()
	}},
	{name: "events in one piece whose tokens are estimated", play: func(s *stage) {
		s.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			if strings.Contains(body, "stream_options") {
				return says(400, `{"error":{"message":"extra fields not permitted: stream_options"}}`)(c, r, body)
			}
			return writes("0\r\n\r\n", event1+event2+event2, event2+event3+eventDone)(c, r, body)
		})
		s.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		s.limit(functions.Limits{TokensPerMinute: 1000})
		s.chat(streamRequest)
	}},
}
