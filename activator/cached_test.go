package activator

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

const (
	coolPlain  = `{"model":"tiny","temperature":0,"messages":[{"role":"user","content":"hello"}]}`
	coolStream = `{"stream":true,"temperature":0,"messages":[{"content":"hello","role":"user"}],"model":"tiny"}`
	coolUsage  = `{"stream":true,"stream_options":{"include_usage":true},"temperature":0,"messages":[{"content":"hello","role":"user"}],"model":"tiny"}`
	chatPath   = "/v1/chat/completions"
)

// newCacheEnv is a testEnv with a cache, and the model tiny with it on, READY at e:1.
func newCacheEnv(t *testing.T, answer func(net.Conn, *http.Request, string) bool, change func(*Options)) (*testEnv, *engine,
	snapshot.Snapshot) {
	var store *cache.Store
	w := newTestEnv(t, func(o *Options) {
		store = cache.NewStore(1<<20, o.Metrics)
		o.Cache = store
		if change != nil {
			change(o)
		}
	})
	w.reg.Add(store.Samples)
	f := testFunction("tiny")
	f.Model.Spec.Cache.Exact = &functions.ExactCache{TTL: functions.Duration(10 * time.Minute)}
	w.act.Publish(readyAt(f, 4, "e:1"))
	return w, w.engineAt("e:1", answer), f
}

// asked sends a request and checks thaw-cache and whether the engine was asked.
func (e *testEnv) asked(eng *engine, body, want string, engine bool, head ...string) result {
	e.t.Helper()
	n := len(eng.requests())
	r := e.post(chatPath, body, head...)
	if r.err != nil || r.status != 200 || r.head.Get("thaw-cache") != want || (len(eng.requests()) > n) != engine {
		e.t.Errorf("%s %v: %d, thaw-cache %q (want %q), the engine was asked: %v, error %v: %s", body, head, r.status, r.head.Get("thaw-cache"),
			want, len(eng.requests()) > n, r.err, r.body)
	}
	return r
}

// TestCacheReplays: an answer is given again in the form that is asked for, under the id of
// the request; it counts as a request, and costs no tokens, no place and no start.
func TestCacheReplays(t *testing.T) {
	for _, first := range []string{coolPlain, coolStream, coolUsage} {
		synctest.Test(t, func(t *testing.T) {
			w, e, f := newCacheEnv(t, goodAnswer, nil)
			w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{RequestsPerMinute: 100, TokensPerMinute: 1000}}}})
			w.asked(e, first, "miss", true)
			spent := w.limits.Usage("default", time.Now())
			w.act.Publish(f) // no replica is left
			time.Sleep(12 * time.Second)
			for _, c := range []struct{ body, suffix string }{
				{coolPlain, `"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`},
				{coolStream, `"finish_reason":"stop"}]}` + "\n\n" + eventDone},
				{coolUsage, `"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}` + "\n\n" + eventDone},
			} {
				r := w.asked(e, c.body, "exact; age=12", false, "Idempotency-Key", "same")
				id := r.head.Get("x-request-id")
				if !strings.HasSuffix(r.body, c.suffix) || !strings.Contains(r.body, id+`"`) || strings.Contains(r.body, `"c"`) {
					t.Errorf("asked as %s, then as %s: %s", first, c.body, r.body)
				}
				kind := "application/json"
				if c.body != coolPlain {
					kind = "text/event-stream"
				}
				if r.head.Get("content-type") != kind {
					t.Errorf("%s: %v", c.body, r.head)
				}
			}
			synctest.Wait()
			now := w.limits.Usage("default", time.Now())
			if now.Spent != spent.Spent || w.wakes != 0 || now.Active != 0 {
				t.Errorf("tokens: %+v, before %+v; %d wakes", now, spent, w.wakes)
			}
			text := w.metrics()
			for _, want := range []string{
				`thaw_answer_cache_requests_total{model="tiny",result="exact",team="default"} 3`,
				`thaw_answer_cache_requests_total{model="tiny",result="miss",team="default"} 1`,
				`thaw_requests_total{code="200",cold="false",model="tiny",route="/v1/chat/completions",team="default"} 4`,
				`thaw_answer_cache_answers 1`,
			} {
				if !strings.Contains(text, want) {
					t.Errorf("no %s in\n%s", want, text)
				}
			}
			if !strings.Contains(w.logs.String(), "cache=exact") || !strings.Contains(w.logs.String(), "cache=miss") {
				t.Errorf("%s", w.logs)
			}
		})
	}
}

// TestCacheHitsCountAsRequests: the limit of requests holds for hits too.
func TestCacheHitsCountAsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, _ := newCacheEnv(t, goodAnswer, nil)
		w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{RequestsPerMinute: 2}}}})
		w.asked(e, coolPlain, "miss", true)
		w.asked(e, coolPlain, "exact; age=0", false)
		if r := w.post(chatPath, coolPlain); r.status != 429 {
			t.Errorf("%+v", r)
		}
	})
}

// TestCacheHeader: what a request may say about the cache, with a cache and without.
func TestCacheHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, f := newCacheEnv(t, goodAnswer, nil)
		plain := testFunction("plain")
		w.act.Publish(readyAt(plain, 4, "e:1"))
		const hot = `{"model":"tiny","messages":[{"role":"user","content":"hello"}]}`
		w.asked(e, hot, "miss; reason=temperature", true)
		w.asked(e, hot, "miss; reason=temperature", true)
		w.asked(e, coolPlain, "miss", true, "thaw-cache", "read")
		w.asked(e, coolPlain, "off", true, "thaw-cache", "off")
		w.asked(e, coolPlain, "miss", true)
		w.asked(e, coolPlain, "off", true, "thaw-cache", "off")
		for _, mode := range []string{"read", "only", ""} {
			w.asked(e, coolPlain, "exact; age=0", false, "thaw-cache", mode)
		}
		other := strings.Replace(coolPlain, "hello", "bye", 1)
		n := len(e.requests())
		for _, c := range []struct {
			body, mode string
			status     int
			code       string
		}{
			{other, "only", 404, "cache_miss"},
			{hot, "only", 404, "cache_miss"},
			{strings.Replace(coolPlain, "tiny", "plain", 1), "only", 404, "cache_miss"},
			{coolPlain, "exact", 400, "invalid_value"},
			{strings.Replace(coolPlain, "tiny", "plain", 1), "no", 400, "invalid_value"},
			{strings.Replace(hot, "tiny", "plain", 1), "Off", 400, "invalid_value"},
		} {
			if r := w.post(chatPath, c.body, "thaw-cache", c.mode); r.status != c.status || r.code() != c.code {
				t.Errorf("%+v: %+v", c, r)
			}
		}
		if len(e.requests()) != n || w.wakes != 0 {
			t.Error("a request that takes an answer from the cache only went to the engine")
		}
		w.asked(e, strings.Replace(coolPlain, "tiny", "plain", 1), "", true)

		f.Model = cloneModel(f.Model)
		f.Model.Spec.Cache.Exact = nil
		w.act.Publish(readyAt(f, 4, "e:1"))
		w.asked(e, coolPlain, "", true)
	})
}

func cloneModel(m *functions.Model) *functions.Model {
	c := *m
	return &c
}

// TestCacheScope: answers are never shared between teams, nor between keys where the file
// says so, also not with an admin of another team who uses the same function.
func TestCacheScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, f := newCacheEnv(t, goodAnswer, nil)
		own, _, _ := w.keys.Create("default", "", false)
		second, _, _ := w.keys.Create("default", "", false)
		admin, _, _ := w.keys.Create("red", "", true)
		red, _, _ := w.keys.Create("red", "", false)
		g := testFunction("red/tiny")
		g.Model.Spec = f.Model.Spec
		w.act.Publish(readyAt(g, 4, "e:1"))
		body := strings.Replace(coolPlain, `"tiny"`, `"default/tiny"`, 1)
		w.asked(e, coolPlain, "miss", true, "Authorization", "Bearer "+own)
		w.asked(e, body, "exact; age=0", false, "Authorization", "Bearer "+second)
		w.asked(e, body, "miss", true, "Authorization", "Bearer "+admin)
		w.asked(e, body, "exact; age=0", false, "Authorization", "Bearer "+admin)
		w.asked(e, coolPlain, "miss", true, "Authorization", "Bearer "+red)
		w.asked(e, coolPlain, "exact; age=0", false, "Authorization", "Bearer "+red)
		if r := w.post(chatPath, body, "Authorization", "Bearer "+red, "thaw-cache", "only"); r.status != 404 || r.code() != "model_not_found" {
			t.Errorf("another team's model: %+v", r)
		}

		f.Model = cloneModel(f.Model)
		f.Model.Spec.Cache.Exact = &functions.ExactCache{TTL: functions.Duration(time.Minute), Scope: functions.CacheScopeKey}
		w.act.Publish(readyAt(f, 4, "e:1"))
		w.asked(e, coolPlain, "miss", true, "Authorization", "Bearer "+own)
		w.asked(e, coolPlain, "miss", true, "Authorization", "Bearer "+second)
		w.asked(e, coolPlain, "exact; age=0", false, "Authorization", "Bearer "+own)
		time.Sleep(time.Minute)
		w.asked(e, coolPlain, "miss", true, "Authorization", "Bearer "+own)
	})
}

// TestCacheKeepsWholeAnswersOnly: nothing of an answer that broke, failed or was left is
// given again.
func TestCacheKeepsWholeAnswersOnly(t *testing.T) {
	frame := `data: {"error":{"message":"it broke","type":"server_error","code":500}}` + "\n\n"
	for name, c := range map[string]struct {
		body   string
		answer func(c net.Conn, leave func()) bool
	}{
		"an engine that dies in a stream": {coolStream, func(c net.Conn, _ func()) bool {
			return writeString(c, chunkHead) && chunk(c, event1+event2+event3) && false
		}},
		"an error frame": {coolStream, func(c net.Conn, _ func()) bool {
			return writeString(c, chunkHead) && chunk(c, event1) && chunk(c, frame+eventDone) && writeString(c, "0\r\n\r\n")
		}},
		"a stream that ends without an end": {coolStream, func(c net.Conn, _ func()) bool {
			return writeString(c, chunkHead) && chunk(c, event1+event2) && writeString(c, "0\r\n\r\n")
		}},
		"a client that leaves a stream": {coolStream, func(c net.Conn, leave func()) bool {
			ok := writeString(c, chunkHead) && chunk(c, event1)
			leave()
			return ok && chunk(c, event2+event3+eventDone) && writeString(c, "0\r\n\r\n")
		}},
		"a client that leaves a plain request": {coolPlain, func(c net.Conn, leave func()) bool {
			leave()
			return replyComplete(c, jsonAnswer)
		}},
		"a refusal": {coolPlain, func(c net.Conn, _ func()) bool {
			return writeString(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n"+`{"error":{"message":"too long"}}`[:31])
		}},
		"a plain answer that is cut": {coolPlain, func(c net.Conn, _ func()) bool {
			return replyComplete(c, strings.Replace(jsonAnswer, `"stop"`, `"abort"`, 1))
		}},
		"a success that is an error": {coolPlain, func(c net.Conn, _ func()) bool {
			return replyComplete(c, `{"error":{"message":"no","code":500}}`)
		}},
		"too large": {coolPlain, func(c net.Conn, _ func()) bool {
			return replyComplete(c, strings.Replace(jsonAnswer, "hi", strings.Repeat("x", 2<<20), 1))
		}},
		"a stream without an end for a plain request": {coolPlain, func(c net.Conn, _ func()) bool {
			return writeString(c, chunkHead) && chunk(c, event1+event2) && writeString(c, "0\r\n\r\n")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				w, _, _ := newCacheEnv(t, func(conn net.Conn, _ *http.Request, _ string) bool {
					return c.answer(conn, func() { leave(); time.Sleep(20 * time.Second) })
				}, nil)
				if r := w.do(ctx, "POST", chatPath, c.body); errors.Is(r.err, context.Canceled) != strings.Contains(name, "leaves") {
					t.Errorf("%+v", r)
				}
				time.Sleep(time.Minute)
				if r := w.post(chatPath, c.body, "thaw-cache", "only"); r.status != 404 || r.code() != "cache_miss" {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// TestCacheOfHeldAnswers: an answer that was waited for is kept without the comments and
// empty chunks, or the line breaks, that its client got meanwhile.
func TestCacheOfHeldAnswers(t *testing.T) {
	for _, body := range []string{coolStream, coolPlain} {
		synctest.Test(t, func(t *testing.T) {
			w, e, f := newCacheEnv(t, goodAnswer, func(o *Options) { o.Hold = HoldPad })
			w.act.Publish(f)
			go func() {
				time.Sleep(100 * time.Second)
				w.act.Publish(readyAt(f, 4, "e:1"))
			}()
			r := w.asked(e, body, "miss", true)
			if body == coolStream && !strings.Contains(r.body, `"id":""`) || body == coolPlain && !strings.HasPrefix(r.body, "\n") {
				t.Fatalf("nothing was sent while it waited: %q", r.body)
			}
			r = w.asked(e, coolStream, "exact; age=100", false)
			if strings.Contains(r.body, "thaw") || strings.Contains(r.body, `"id":""`) {
				t.Errorf("%s", r.body)
			}
			if r = w.asked(e, coolPlain, "exact; age=100", false); !json.Valid([]byte(r.body)) || strings.HasPrefix(r.body, "\n") {
				t.Errorf("%s", r.body)
			}
		})
	}
}

// TestCachePurge: a change of the file and a removal drop what was kept, also of requests
// under way then.
func TestCachePurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{}, 1)
		w, e, f := newCacheEnv(t, func(c net.Conn, r *http.Request, body string) bool {
			select {
			case <-slow:
				time.Sleep(10 * time.Second)
			default:
			}
			return goodAnswer(c, r, body)
		}, nil)
		w.asked(e, coolPlain, "miss", true)
		f.Model = cloneModel(f.Model)
		w.act.Publish(readyAt(f, 4, "e:1")) // read again, the same
		w.asked(e, coolPlain, "exact; age=0", false)
		f.Model = cloneModel(f.Model)
		f.Model.Spec.Source = "hf://other/model"
		w.act.Publish(readyAt(f, 4, "e:1"))
		if !strings.Contains(w.metrics(), "thaw_answer_cache_answers 0") {
			t.Error("the answers of the former file take memory")
		}
		w.asked(e, coolPlain, "miss", true)
		w.act.Remove(f.Name)
		w.act.Publish(readyAt(f, 4, "e:1"))
		w.asked(e, coolPlain, "miss", true)

		slow <- struct{}{}
		other := strings.Replace(coolPlain, "hello", "slow", 1)
		go func() { time.Sleep(5 * time.Second); w.act.o.Cache.Purge(f.Name) }()
		w.asked(e, other, "miss", true)
		w.asked(e, other, "miss", true)
		w.asked(e, other, "exact; age=0", false)
	})
}

// TestCacheOfOtherWeights: answers of other weights than those of the READY replica, or than
// those that a start would load, are not given, though the file is the same.
func TestCacheOfOtherWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := ""
		w, e, f := newCacheEnv(t, goodAnswer, func(o *Options) {
			o.Cache.Changed = func(_ *functions.Model, weights string) bool { return weights == changed }
		})
		ready := func(weights ...string) snapshot.Snapshot {
			s := readyAt(f, 4, []string{"e:1", "e:2"}[:len(weights)]...)
			for i, name := range weights {
				s.Replicas[i].Weights = name
			}
			return s
		}
		w.engineAt("e:2", goodAnswer)
		w.act.Publish(f)
		go func() { time.Sleep(time.Second); w.act.Publish(ready("a")) }()
		w.asked(e, coolPlain, "miss", true) // it was cold
		w.asked(e, coolPlain, "exact; age=1", false)
		w.act.Publish(ready("")) // adopted
		w.asked(e, coolPlain, "exact; age=1", false)
		w.act.Publish(f)
		w.asked(e, coolPlain, "exact; age=1", false)
		w.act.Publish(ready("b"))
		w.asked(e, coolPlain, "miss", true)
		w.asked(e, coolPlain, "exact; age=0", false)
		w.act.Publish(ready("b", "c"))
		if !strings.Contains(w.metrics(), "thaw_answer_cache_answers 0") {
			t.Error("answers of one of two weights are left")
		}
		w.act.Publish(ready("c"))
		w.asked(e, coolPlain, "miss", true)

		w.act.Publish(f) // idle, and its folder is edited
		changed = "c"
		go func() { time.Sleep(time.Second); w.act.Publish(ready("d")) }()
		w.asked(e, coolPlain, "miss", true)
		w.asked(e, coolPlain, "exact; age=1", false)
	})
}

// TestCacheOfUnknownWeights: answers of a replica whose weights were not known are not given
// for one whose weights are.
func TestCacheOfUnknownWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e, f := newCacheEnv(t, goodAnswer, nil)
		s := readyAt(f, 4, "e:1")
		w.act.Publish(s)
		w.asked(e, coolPlain, "miss", true)
		w.asked(e, coolPlain, "exact; age=0", false)
		s.Replicas[0].Weights = "a"
		w.act.Publish(s)
		w.asked(e, coolPlain, "miss", true)
		w.asked(e, coolPlain, "exact; age=0", false)
	})
}

// TestCacheOfRouters: the answer belongs to the function that the Router chose; header,
// record and metrics say what came of the cache, and a hit prewarms nothing.
func TestCacheOfRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var prewarmed []string
		w, e, _ := newCacheEnv(t, goodAnswer, func(o *Options) {
			o.Prewarm = func(name functions.Name, _ time.Time, _ string) error {
				prewarmed = append(prewarmed, name.Name)
				return nil
			}
		})
		small, large := testFunction("small"), testFunction("large")
		w.act.Publish(readyAt(small, 4, "e:1"), large)
		r := testRouter("large", "small")
		r.Spec.Cold = functions.ColdHedge
		r.Spec.Cache.Exact = &functions.ExactCache{TTL: functions.Duration(time.Minute)}
		w.act.SetRouters([]*functions.Router{r}, nil)
		body := strings.Replace(strings.Replace(coolPlain, "tiny", "auto", 1), "hello", strings.Repeat("What is the weather like? ", 30), 1)
		var first functions.RouteFeatures
		for i, want := range []string{"miss", "exact", "exact", "exact"} {
			field := want
			if i > 0 {
				field += "; age=0"
			}
			res := w.asked(e, body, field, i == 0)
			rec := w.decision(res)
			if i == 0 {
				first = rec.Features
				first.RepeatedPrefix = true
			} else if rec.Features != first || first.Language != "en" || first.PromptFamily == "" {
				t.Errorf("hit %d: %+v, want %+v", i, rec.Features, first)
			}
			if h := res.head.Get("thaw-route"); !strings.Contains(h, "target=small; stage=rules; cache="+want+"; ") || rec.Cache != want ||
				rec.Code != 200 || (rec.Prewarm != "") != (i == 0) {
				t.Errorf("%s, %+v", h, rec)
			}
		}
		synctest.Wait()
		if len(prewarmed) != 1 {
			t.Errorf("prewarmed: %v", prewarmed)
		}
		if text := w.metrics(); !strings.Contains(text, `thaw_route_decisions_total{cache="exact",`) || !strings.Contains(text, `thaw_route_decisions_total{cache="miss",`) {
			t.Errorf("%s", text)
		}
		w.asked(e, strings.Replace(coolPlain, "tiny", "small", 1), "", true) // it has no cache of its own
		res := w.post(chatPath, strings.Replace(body, "weather", "air", 1), "thaw-cache", "only")
		if res.status != 404 || res.code() != "cache_miss" || len(prewarmed) != 1 || !strings.Contains(res.head.Get("thaw-route"), "cache=miss") {
			t.Errorf("%+v, prewarmed %v", res, prewarmed)
		}
		if res := w.post(chatPath, body, "thaw-cache", "yes"); res.status != 400 || res.code() != "invalid_value" {
			t.Errorf("%+v", res)
		}
	})
}

// TestCacheOfEscalations: the answer of the next target is not kept for the first one.
func TestCacheOfEscalations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		w, e, f := newCacheEnv(t, func(c net.Conn, r *http.Request, body string) bool {
			if broken {
				return writeString(c, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
			}
			return goodAnswer(c, r, body)
		}, nil)
		other := w.engineAt("o:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("other"), 4, "o:1"))
		r := testRouter("tiny", "other")
		r.Spec.Retry.Escalate = true
		w.act.SetRouters([]*functions.Router{r}, nil)
		body := strings.Replace(coolPlain, "tiny", "auto", 1)
		if res := w.asked(e, body, "miss", true); len(other.requests()) != 1 || !strings.Contains(res.head.Get("thaw-route"), "after=tiny") {
			t.Fatalf("%+v", res)
		}
		broken = false
		w.act.Publish(readyAt(f, 4, "e:1"))
		time.Sleep(time.Minute)
		w.asked(e, coolPlain, "miss", true)
		w.asked(e, body, "exact; age=0", false)
	})
}
