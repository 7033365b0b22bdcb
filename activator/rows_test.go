package activator

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/refusals"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// What is wrong is answered at once, in OpenAI's shape, and wakes nothing.
func TestBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.Open = false })
		red, _, _ := w.keys.Create("red", "", false)
		f := testFunction("red/tiny")
		f.Model.Spec.Adapters = []functions.Adapter{{Name: "pirate"}}
		w.act.Publish(f, testFunction("red/tinny"), testFunction("blue/secret"))
		for _, c := range []struct {
			description, method, path, body, key string
			status                               int
			code, param, contains                string
		}{
			{"no key", "POST", "/v1/chat/completions", plainRequest, "", 401, "invalid_api_key", "", "Incorrect API key provided"},
			{"wrong key", "POST", "/v1/chat/completions", plainRequest, "sk-wrong", 401, "invalid_api_key", "", "Incorrect API key provided"},
			{"no key for the list", "GET", "/v1/models", "", "", 401, "invalid_api_key", "", "Incorrect API key provided"},
			{"unknown model", "POST", "/v1/chat/completions", `{"model":"tin"}`, red, 404, "model_not_found", "model", "Nearest: `tiny`, `tinny`."},
			{"auto without a Router", "POST", "/v1/chat/completions", `{"model":"auto"}`, red, 404, "model_not_found", "model", "deploy one, or name a model"},
			{"no name at all", "POST", "/v1/chat/completions", `{"model":"A B\u0000"}`, red, 404, "model_not_found", "model", ""},
			{"another team's", "POST", "/v1/chat/completions", `{"model":"blue/secret"}`, red, 404, "model_not_found", "model", "does not exist or you do not have access"},
			{"no such in another team", "POST", "/v1/chat/completions", `{"model":"blue/nothing"}`, red, 404, "model_not_found", "model", "does not exist or you do not have access"},
			{"undeclared adapter", "POST", "/v1/chat/completions", `{"model":"tiny:ninja"}`, red, 404, "model_not_found", "model", ""},
			{"no JSON", "POST", "/v1/chat/completions", `hello`, red, 400, "invalid_json", "", ""},
			{"duplicate model", "POST", "/v1/chat/completions", `{"model":"tiny","model":"blue/secret"}`, red, 400, "invalid_json", "/model", ""},
			{"mis-cased model", "POST", "/v1/chat/completions", `{"Model":"tiny"}`, red, 400, "missing_required_parameter", "model", "case-sensitive"},
			{"no model", "POST", "/v1/chat/completions", `{}`, red, 400, "missing_required_parameter", "model", ""},
			{"another team's, by the name of one's own", "POST", "/v1/chat/completions", `{"model":"blue/tiny"}`, red, 404, "model_not_found", "model", "Nearest: `tiny`"},
			{"organisation", "POST", "/v1/chat/completions", `{"model":"org/Tiny"}`, red, 404, "model_not_found", "model", "Nearest: `tiny`"},
			{"a path misspelt", "POST", "/v1/chat/completion", plainRequest, red, 404, "unknown_endpoint", "", "Nearest: `/v1/chat/completions`."},
			{"denied path", "POST", "/v1/load_lora_adapter", plainRequest, red, 404, "unknown_endpoint", "", ""},
			{"denied path", "POST", "/pause", plainRequest, red, 404, "unknown_endpoint", "", ""},
			{"path games", "POST", "/v1//chat/completions", plainRequest, red, 404, "unknown_endpoint", "", ""},
			{"path games", "POST", "/v1/chat/completions/", plainRequest, red, 404, "unknown_endpoint", "", ""},
			{"method", "GET", "/v1/chat/completions", "", red, 405, "method_not_allowed", "", ""},
			{"method", "DELETE", "/v1/models/tiny", "", red, 405, "method_not_allowed", "", ""},
			{"no such model to show", "GET", "/v1/models/secret", "", red, 404, "model_not_found", "model", ""},
			{"form expected", "POST", "/v1/audio/transcriptions", plainRequest, red, 400, "invalid_request", "", ""},
		} {
			var head []string
			if c.key != "" {
				head = []string{"Authorization", "Bearer " + c.key}
			}
			r := w.do(t.Context(), c.method, c.path, c.body, head...)
			if r.status != c.status || r.code() != c.code || !strings.Contains(r.body, c.contains) || r.took != 0 {
				t.Errorf("%s: %+v", c.description, r)
			}
			if c.param != "" && !strings.Contains(r.body, `"param":"`+c.param+`"`) {
				t.Errorf("%s: param in %s", c.description, r.body)
			}
			if r.head.Get("x-request-id") == "" || r.head.Get("x-should-retry") != "false" || r.head.Get("Retry-After") != "" ||
				r.head.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %v", c.description, r.head)
			}
			if c.status == 405 && r.head.Get("Allow") == "" || c.status == 401 && r.head.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s: %v", c.description, r.head)
			}
			if strings.Contains(r.body, "sk-wrong") {
				t.Error("the key is echoed")
			}
		}
		if w.count(&w.wakes) != 0 {
			t.Error("something was woken")
		}
		// An adapter that is declared, and the team's own full spelling.
		e := w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(f, 4, "e:1"))
		for model, want := range map[string]string{"tiny:pirate": "pirate", "red/tiny": "tiny", "tiny": "tiny"} {
			if r := w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", model, 1), "Authorization",
				"Bearer "+red); r.status != 200 {
				t.Errorf("%s: %+v", model, r)
			}
			s := e.requests()
			if got := s[len(s)-1].body; got != strings.Replace(plainRequest, "tiny", want, 1) {
				t.Errorf("%s: the engine saw %s", model, got)
			}
		}
		// The clients of Anthropic and Azure send their key so, some beside an empty bearer.
		for _, field := range []string{"X-Api-Key", "api-key", "API-KEY"} {
			if r := w.post("/v1/messages", plainRequest, field, red); r.status != 200 {
				t.Errorf("%s: %+v", field, r)
			}
			if r := w.post("/v1/messages", plainRequest, field, red, "Authorization", "Bearer "); r.status != 200 {
				t.Errorf("%s: %+v", field, r)
			}
			if r := w.post("/v1/messages", plainRequest, field, "sk-wrong"); r.status != 401 {
				t.Errorf("%s: %+v", field, r)
			}
			s := e.requests()
			if head := s[len(s)-1].head; head.Get(field) != "" {
				t.Errorf("%s: the engine got the key", field)
			}
		}
		// A form goes on as it came.
		form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b--\r\n"
		if r := w.post("/v1/audio/transcriptions", form, "Authorization", "Bearer "+red, "Content-Type",
			"multipart/form-data; boundary=b"); r.status != 200 {
			t.Errorf("%+v", r)
		}
	})
}

func TestOpenUntilTheFirstKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"), readyAt(testFunction("blue/tiny"), 4, "e:1"))
		for _, key := range []string{"", "Bearer sk-dummy"} {
			if r := w.post("/v1/chat/completions", plainRequest, "Authorization", key); r.status != 200 {
				t.Fatalf("%+v", r)
			}
		}
		if r := w.do(t.Context(), "GET", "/v1/models", ""); !strings.Contains(r.body, `"blue/tiny"`) || !strings.Contains(r.body, `"tiny"`) {
			t.Fatal(r.body)
		}
		for model, nearest := range map[string]string{
			"openai/tiny": "`tiny`", "org/tiny": "`tiny`", "org/Tiny": "`tiny`", " tiny ": "`tiny`", "Org/sub/tiny:latest": "`tiny`", "ollama/tin": "`tiny`",
			"blue/tin": "`blue/tiny`", "openai/unlike-any": "",
		} {
			r := w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", model, 1))
			if _, got, _ := strings.Cut(r.body, " Nearest: "); r.status != 404 || !strings.HasPrefix(got, nearest) ||
				(got == "") != (nearest == "") {
				t.Errorf("%q: %+v", model, r)
			}
		}
		w.keys.Trust("admin-token-of-forty-characters-or-so....")
		blue, _, _ := w.keys.Create("blue", "", false)
		if r := w.post("/v1/chat/completions", plainRequest); r.status != 401 {
			t.Fatalf("%+v", r)
		}
		if r := w.do(t.Context(), "GET", "/v1/models", "", "Authorization", "Bearer "+blue); strings.Count(r.body, `"id"`) != 1 || !strings.Contains(r.body, `"owned_by":"blue"`) {
			t.Fatal(r.body)
		}
		if r := w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", "blue/tiny", 1), "Authorization",
			"Bearer admin-token-of-forty-characters-or-so...."); r.status != 200 {
			t.Fatalf("%+v", r)
		}
		for _, name := range []string{"X-Api-Key", "Api-Key"} {
			if r := w.post("/v1/messages", plainRequest, "Authorization", "Bearer old", name, blue); r.status != 401 ||
				!strings.Contains(r.body, "the one in Authorization counts") {
				t.Errorf("two keys: %+v", r)
			}
			if r := w.post("/v1/messages", plainRequest, "Authorization", "Bearer old", name, "old"); strings.Contains(r.body, "two were sent") {
				t.Errorf("one key twice: %+v", r)
			}
		}
	})
}

func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		failed := testFunction("broken")
		failed.State = functions.Failed
		failed.Failure = &snapshot.Failure{Reason: "no such file", Until: time.Now().Add(time.Hour)}
		lora := readyAt(testFunction("warm"), 4, "e:1")
		lora.Model.Spec.Adapters = []functions.Adapter{{Name: "pirate"}}
		w.act.Publish(testFunction("cold"), lora, loadingAt(testFunction("coming"), functions.Downloading, 41, 12*time.Second), failed)
		r := w.do(t.Context(), "GET", "/v1/models", "")
		for _, want := range []string{
			`{"object":"list","data":[`,
			`{"id":"cold","object":"model","created":1767225600,"owned_by":"default","status":{"value":"unloaded","state":"cold"}}`,
			`{"id":"warm","object":"model","created":1767225600,"owned_by":"default","status":{"value":"loaded","state":"ready"}}`,
			`{"id":"warm:pirate","object":"model","created":1767225600,"owned_by":"default","parent":"warm","status":{"value":"loaded","state":"ready"}}`,
			`"status":{"value":"loading","state":"staging","percent":41,"eta_s":12}`,
			`"status":{"value":"unloaded","state":"failed","failed":true,"reason":"no such file"}`,
		} {
			if !strings.Contains(r.body, want) {
				t.Errorf("no %s in %s", want, r.body)
			}
		}
		for _, one := range []string{"cold", "default/cold", "default%2Fcold", "warm:pirate", "warm%3Apirate"} {
			if r := w.do(t.Context(), "GET", "/v1/models/"+one, ""); r.status != 200 || !strings.Contains(r.body, `"object":"model"`) {
				t.Errorf("%s: %+v", one, r)
			}
		}
		if w.count(&w.wakes) != 0 {
			t.Error("a list wakes nothing")
		}
	})
}

// A wrong value of a header of thaw is refused, for a model by name and behind a Router, and the
// answer names header, value and what it may be.
func TestOwnHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("tiny:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 8, "tiny:1"))
		w.act.SetRouters([]*functions.Router{testRouter("tiny")}, nil)
		for _, request := range []string{plainRequest, streamRequest, autoRequest} {
			for _, c := range []struct{ name, value, want string }{
				{"thaw-max-wait", "soon", "seconds above 0"},
				{"thaw-max-wait", "-1", "seconds above 0"},
				{"thaw-max-wait", "0", "30s"},
				{"Thaw-Max-Wait", "30 s", "30s"},
				{"thaw-max-wait", "1e99", "30s"},
				{"thaw-cold", "never", "wait, other or hedge"},
				{"thaw-cold", "Wait", "wait, other or hedge"},
				{"thaw-warm", "no", "never"},
				{"thaw-session", strings.Repeat("s", 257), "256 bytes"},
			} {
				r := w.post("/v1/chat/completions", request, c.name, c.value)
				for _, part := range []string{strings.ToLower(c.name), c.value[:min(len(c.value), 40)], c.want} {
					if r.status != 400 || r.code() != "invalid_value" || !strings.Contains(r.body, part) {
						t.Errorf("%s: %.20s: %+v, without %q", c.name, c.value, r, part)
					}
				}
			}
			for _, c := range [][2]string{{"thaw-max-wait", "1m30s"}, {"thaw-max-wait", "0.5"}, {"thaw-cold", "hedge"}, {"thaw-warm", "Never"},
				{"thaw-session", strings.Repeat("s", 256)}} {
				if r := w.post("/v1/chat/completions", request, c[0], c[1]); r.status != 200 {
					t.Errorf("%s: %s: %+v", c[0], c[1], r)
				}
			}
		}
	})
}

func TestPatience(t *testing.T) {
	for name, c := range map[string]struct {
		request   string
		p90       time.Duration
		head      []string
		status    int
		code      string
		took      time.Duration // at most; at least half of it
		wakes     int
		retryFrom int
	}{
		"refused at once, and woken": {plainRequest, time.Minute, []string{"X-Stainless-Timeout", "20"}, 503, "model_loading", 0, 1, 27},
		"python spells it so":        {plainRequest, time.Minute, []string{"X-Stainless-Read-Timeout", "20.0"}, 503, "model_loading", 0, 1, 27},
		"not for the retry":          {streamRequest, time.Minute, []string{"thaw-max-wait", "20s", "thaw-warm", "never"}, 503, "model_loading", 0, 0, 27},
		"nothing known: it waits":    {plainRequest, -1, []string{"Request-Timeout", "20"}, 503, "model_loading", 20 * time.Second, 1, 1},
		"the 290 seconds":            {plainRequest, -1, nil, 503, "model_loading", 290 * time.Second, 1, 1},
		"a stream's gap is no bound": {streamRequest, time.Minute, []string{"X-Stainless-Read-Timeout", "20"}, 200, "model_loading", 300 * time.Second, 1, 0},
		"nonsense says nothing":      {plainRequest, -1, []string{"X-Stainless-Timeout", "not-given"}, 503, "model_loading", 290 * time.Second, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				f := testFunction("tiny")
				if c.p90 > 0 {
					f.Forecast = functions.Forecast{P50: c.p90 / 2, P90: c.p90}
				}
				w.act.Publish(f)
				r := w.post("/v1/chat/completions", c.request, c.head...)
				if r.status != c.status || r.code() != c.code || r.took > c.took || r.took < c.took/2 || w.count(&w.wakes) != c.wakes {
					t.Fatalf("%+v, %d wakes", r, w.count(&w.wakes))
				}
				if after, _ := strconv.Atoi(r.head.Get("Retry-After")); after < c.retryFrom || after > 55 {
					t.Errorf("Retry-After %d", after)
				}
				if c.status == 503 && r.head.Get("x-should-retry") != "true" {
					t.Error(r.head)
				}
				time.Sleep(time.Second)
			})
		})
	}
}

// Python's read timeout bounds the gap between bytes: head and comments come in thirds of it.
func TestGapOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.act.Publish(testFunction("tiny"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://127.0.0.1/v1/chat/completions", strings.NewReader(streamRequest))
		r.Header.Set("X-Stainless-Read-Timeout", "3")
		began := time.Now()
		res, err := w.client.Do(r)
		if err != nil || time.Since(began) > time.Second {
			t.Fatal(err, time.Since(began))
		}
		buf := make([]byte, 1024)
		for last := time.Now(); time.Since(began) < 30*time.Second; last = time.Now() {
			if _, err := res.Body.Read(buf); err != nil {
				t.Fatal(err)
			}
			if gap := time.Since(last); gap > time.Second {
				t.Fatal("a gap of", gap)
			}
		}
		cancel()
		res.Body.Close()
		time.Sleep(2 * time.Second)
	})
}

func TestQueueTimeoutWhenReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", func(c net.Conn, r *http.Request, body string) bool {
			time.Sleep(10 * time.Minute)
			return goodAnswer(c, r, body)
		})
		w.act.Publish(readyAt(testFunction("tiny"), 1, "e:1"))
		go w.post("/v1/chat/completions", plainRequest)
		time.Sleep(time.Second)
		r := w.post("/v1/chat/completions", plainRequest, "thaw-max-wait", "30")
		if r.status != 504 || r.code() != "queue_timeout" || r.head.Get("Retry-After") != "5" || r.took != 30*time.Second {
			t.Fatalf("%+v", r)
		}
		if w.count(&w.nudges) == 0 || w.count(&w.wakes) != 0 {
			t.Error("more than it takes: a nudge, no wake")
		}
		if _, ok := w.act.DemandOf(testFunction("tiny").Name); !ok {
			t.Error("demand")
		}
		time.Sleep(10 * time.Minute)
	})
}

func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		f := testFunction("tiny")
		f.Model.Spec.Queue.Requests = 3
		f.Model.Spec.Queue.Wait = functions.Duration(time.Minute)
		w.act.Publish(f)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if r := w.post("/v1/chat/completions", plainRequest); r.code() != "model_loading" || r.took != time.Minute {
					t.Errorf("another request was disturbed: %+v", r)
				}
			})
		}
		time.Sleep(time.Second)
		for range 5 {
			r := w.post("/v1/chat/completions", streamRequest)
			after, _ := strconv.Atoi(r.head.Get("Retry-After"))
			if r.status != 503 || r.code() != "queue_full" || r.took != 0 || after < 1 || after > 10 {
				t.Fatalf("%+v", r)
			}
		}
		d := w.takeDemand()["tiny"]
		if d.Queued != 3 || d.Oldest.IsZero() {
			t.Errorf("%+v", d)
		}
		if m := metric(t, w, "thaw_buffered_requests"); !strings.Contains(m, "3") {
			t.Error(m)
		}
		wg.Wait()
	})
	synctest.Test(t, func(t *testing.T) { // all functions together
		w := newTestEnv(t, func(o *Options) { o.BufferBytes = 100 })
		w.act.Publish(testFunction("tiny"), testFunction("tiny2"))
		go w.post("/v1/chat/completions", plainRequest, "thaw-max-wait", "10")
		time.Sleep(time.Second)
		if r := w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", "tiny2", 1)); r.code() != "queue_full" {
			t.Fatalf("%+v", r)
		}
		time.Sleep(time.Minute)
	})
}

func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		f := testFunction("tiny")
		w.act.Publish(f)
		w.onWake = func() {
			time.Sleep(time.Second)
			f.Blocked = &snapshot.Blocked{Code: snapshot.QuotaExceeded, Message: "Team default holds 2 of 2 GPUs", ETA: -1}
			w.act.Publish(f)
		}
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 429 || r.code() != "gpu_quota_exceeded" || r.took != time.Second {
			t.Fatalf("%+v", r)
		}
		w.onWake = nil
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 429 || r.took != 0 || w.count(&w.wakes) != 2 {
			t.Fatalf("%+v", r)
		}
		f.Forecast = functions.Forecast{P50: 3 * time.Second, P90: 5 * time.Second}
		f.Blocked = &snapshot.Blocked{Code: "no_capacity", Message: "all GPUs are busy", ETA: 40 * time.Second, At: time.Now()}
		w.act.Publish(f)
		refused := func(minimum, maximum int, wantText string) {
			t.Helper()
			r := w.post("/v1/chat/completions", plainRequest, "thaw-max-wait", "4")
			after, _ := strconv.Atoi(r.head.Get("Retry-After"))
			if r.code() != "model_loading" || r.took != 0 || !strings.Contains(r.body, "all GPUs are busy") || !strings.Contains(r.body, wantText) ||
				after < minimum || after > maximum {
				t.Fatalf("Retry-After %d: %+v", after, r)
			}
		}
		// The time that it takes for room to come, which runs; never that of a start
		// alone, which cannot begin.
		refused(36, 44, "in about 40 s")
		time.Sleep(30 * time.Second)
		refused(9, 11, "in about 10 s")
		time.Sleep(70 * time.Second) // overdue: it is not about to happen
		refused(9, 11, "in about 10 s")
		// A waiting request gets the same, and unknown values are left out.
		f.Blocked = &snapshot.Blocked{Code: "no_capacity", Message: "all GPUs are busy", ETA: 40 * time.Second, At: time.Now()}
		w.act.Publish(f)
		if r := w.post("/v1/chat/completions", streamRequest, "thaw-max-wait", "15"); r.status != 503 || r.took != 0 {
			t.Fatalf("%+v", r)
		}
		if r := w.post("/v1/chat/completions", streamRequest, "thaw-max-wait", "45"); !strings.Contains(r.body, "eta_s=") ||
			strings.Contains(r.body, "eta_s=3 ") {
			t.Fatalf("%+v", r)
		}
		f.Blocked = &snapshot.Blocked{Code: "no_capacity", Message: "all GPUs are busy", ETA: -1, At: time.Now()}
		w.act.Publish(f)
		if r := w.post("/v1/chat/completions", streamRequest, "thaw-max-wait", "20"); strings.Contains(r.body, "eta_s=") {
			t.Fatalf("%+v", r)
		}
	})
}

// TestBlockedForGood: a request for what no node can ever hold is refused at once with the
// reason, also one that waits when that is found out; what may come is waited for, and the
// comment and the list say why.
func TestBlockedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		f := testFunction("tiny")
		w.act.Publish(f)
		w.onWake = func() {
			time.Sleep(time.Second)
			f.Blocked = &snapshot.Blocked{Code: "no_capacity", Message: "it needs 1 GPU, and no node has one", ETA: -1, Final: true}
			w.act.Publish(f)
		}
		const why = "cannot be loaded here: it needs 1 GPU, and no node has one."
		for _, body := range []string{streamRequest, plainRequest} {
			want := []time.Duration{time.Second, 0}
			for _, d := range want {
				if r := w.post("/v1/chat/completions", body); r.status != 503 || r.code() != "model_load_failed" || !strings.Contains(r.body, why) ||
					r.took != d || r.head.Get("Retry-After") != "" || r.head.Get("x-should-retry") != "false" {
					t.Fatalf("%+v", r)
				}
			}
			f.Blocked = nil
			w.act.Publish(f)
		}
		if n := w.count(&w.wakes); n != 2 {
			t.Errorf("%d wakes", n)
		}
		w.onWake = nil
		f.Blocked = &snapshot.Blocked{Code: "no_capacity", Message: "no\nagent\ris connected", ETA: -1}
		w.act.Publish(f)
		if r := w.post("/v1/chat/completions", streamRequest, "thaw-max-wait", "20"); !strings.Contains(r.body,
			": thaw state=blocked position=1 why=no agent is connected\n") {
			t.Errorf("%+v", r)
		}
		if r := w.do(t.Context(), "GET", "/v1/models", ""); !strings.Contains(r.body, `"state":"blocked"`) || !strings.Contains(r.body, `is connected"`) {
			t.Errorf("%+v", r)
		}
	})
}

// TestAnsweredBeforeTimeout: a client whose own clock runs gets its answer before it gives
// up (P4); thaw-max-wait is ours to keep, to the instant.
func TestAnsweredBeforeTimeout(t *testing.T) {
	for _, row := range []struct {
		header, value string
		want          time.Duration
	}{
		{"X-Stainless-Timeout", "4", 3750 * time.Millisecond},
		{"X-Stainless-Timeout", "8", 7600 * time.Millisecond},
		{"X-Stainless-Read-Timeout", "100", 98 * time.Second},
		{"Request-Timeout", "30", 28500 * time.Millisecond},
		{"Request-Timeout", "0.2", 100 * time.Millisecond},
		{"thaw-max-wait", "8", 8 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			w.act.Publish(testFunction("tiny"))
			r := w.post("/v1/chat/completions", plainRequest, row.header, row.value)
			if r.code() != "model_loading" || r.took != row.want {
				t.Errorf("%s %s: %s after %v, wanted %v", row.header, row.value, r.code(), r.took, row.want)
			}
		})
	}
}

// TestPlainBehindProxy: a plain request behind a proxy of unknown timeout is answered
// before nginx gives up (P6).
func TestPlainBehindProxy(t *testing.T) {
	for _, row := range []struct {
		body    string
		headers []string
		want    time.Duration
	}{
		{plainRequest, nil, 290 * time.Second},
		{plainRequest, []string{"Via", "1.1 a"}, 55 * time.Second},
		{plainRequest, []string{"X-Forwarded-For", "192.0.2.1"}, 55 * time.Second},
		{plainRequest, []string{"Via", "1.1 a", "thaw-max-wait", "100"}, 100 * time.Second},
		{plainRequest, []string{"Via", "1.1 a", "X-Stainless-Timeout", "20"}, 19 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			w.act.Publish(testFunction("tiny"))
			if r := w.post("/v1/chat/completions", row.body, row.headers...); r.code() != "model_loading" || r.took != row.want {
				t.Errorf("%v: %s after %v, wanted %v", row.headers, r.code(), r.took, row.want)
			}
		})
	}
}

func TestHoldModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.Hold = Hold503 })
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() { time.Sleep(10 * time.Second); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }
		r := w.post("/v1/chat/completions", plainRequest)
		if r.code() != "model_loading" || r.took != 0 || w.count(&w.wakes) != 1 || w.count(&w.nudges) != 0 { // a nudge would end the lease
			t.Fatalf("%+v", r)
		}
		if r := w.post("/v1/chat/completions", streamRequest); r.status != 200 || r.took != 10*time.Second {
			t.Fatalf("streams are held all the same: %+v", r)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.Hold = HoldPad })
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() { time.Sleep(60 * time.Second); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }
		r := w.post("/v1/chat/completions", plainRequest)
		if r.err != nil || r.body != "\n\n\n"+jsonAnswer || r.took != time.Minute {
			t.Fatalf("%+v", r)
		}
		w.engineAt("e:2", func(c net.Conn, _ *http.Request, _ string) bool {
			return replyComplete(c, strings.Repeat(" ", 2<<20)+"{}")
		})
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() { time.Sleep(60 * time.Second); w.act.Publish(readyAt(testFunction("tiny"), 4, "e:2")) }
		if r := w.post("/v1/embeddings", plainRequest); r.err != nil || len(r.body) != 3+2<<20+2 {
			t.Fatalf("%d bytes, %v", len(r.body), r.err)
		}
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() {
			time.Sleep(60 * time.Second)
			f := testFunction("tiny")
			f.Failure = &snapshot.Failure{Reason: "no"}
			w.act.Publish(f)
		}
		if r := w.post("/v1/chat/completions", plainRequest); r.err == nil {
			t.Fatalf("a failure after padding cuts the connection: %+v", r)
		}
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		if r := w.post("/v1/chat/completions", plainRequest); r.body != jsonAnswer {
			t.Fatalf("%+v", r)
		}
	})
}

func TestTeamLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"), testFunction("cold"), testFunction("cold2"))
		limits := functions.Limits{RequestsPerMinute: 3, TokensPerMinute: 12, ColdStartsPerHour: 1}
		set := func() {
			w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: limits}}})
		}
		set()
		r := w.post("/v1/chat/completions", streamRequest) // five tokens
		if r.body != streamed {
			t.Fatalf("the usage chunk that the client did not ask for is taken out: %q", r.body)
		}
		if !strings.Contains(e.requests()[0].body, `"include_usage":true`) {
			t.Fatal("the engine was not asked for usage")
		}
		r = w.post("/v1/chat/completions", strings.Replace(streamRequest, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))
		if !strings.Contains(r.body, eventUsage) {
			t.Fatalf("who asks for usage gets it: %q", r.body)
		}
		if got := r.head.Get("x-ratelimit-remaining-tokens"); got != "7" || r.head.Get("x-ratelimit-limit-requests") != "3" ||
			r.head.Get("x-ratelimit-remaining-requests") != "1" || r.head.Get("x-ratelimit-reset-requests") != "40s" {
			t.Errorf("%v", r.head)
		}
		w.post("/v1/chat/completions", plainRequest)
		r = w.post("/v1/chat/completions", plainRequest) // 15 of 12 tokens are used
		if r.status != 429 || r.code() != "rate_limit_exceeded" || !strings.Contains(r.body, "tokens a minute") ||
			r.head.Get("Retry-After") != "20" {
			t.Fatalf("%+v", r)
		}
		limits.TokensPerMinute = 0
		set()
		r = w.post("/v1/chat/completions", plainRequest)
		if r.status != 429 || !strings.Contains(r.body, "requests a minute") || r.head.Get("Retry-After") != "20" ||
			r.head.Get("x-should-retry") != "true" {
			t.Fatalf("%+v", r)
		}
		limits = functions.Limits{ColdStartsPerHour: 1, Concurrent: 2}
		set()
		var wg sync.WaitGroup
		for range 2 { // one cold start, however many wait
			wg.Go(func() {
				w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", "cold", 1), "thaw-max-wait", "10")
			})
		}
		time.Sleep(time.Second)
		if r := w.post("/v1/chat/completions", plainRequest); r.status != 429 || !strings.Contains(r.body, "at once") {
			t.Fatalf("%+v", r)
		}
		wg.Wait()
		wakes := w.count(&w.wakes)
		if r := w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", "cold2", 1)); r.status != 429 ||
			!strings.Contains(r.body, "cold starts") || w.count(&w.wakes) != wakes {
			t.Fatalf("%+v", r)
		}
		// Held requests: one waits, the next is refused, and one that need not wait passes.
		limits = functions.Limits{HeldRequests: 1}
		set()
		wg.Go(func() {
			w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", "cold", 1), "thaw-max-wait", "10")
		})
		time.Sleep(time.Second)
		if u := w.limits.Usage("default", time.Now()); u.Held != 1 {
			t.Fatalf("%d are held", u.Held)
		}
		if r := w.post("/v1/chat/completions", strings.Replace(plainRequest, "tiny", "cold2", 1)); r.status != 429 ||
			r.code() != "rate_limit_exceeded" || !strings.Contains(r.body, "may have 1 requests held") || r.head.Get("Retry-After") != "5" {
			t.Fatalf("%+v", r)
		}
		if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 {
			t.Fatalf("%+v", r)
		}
		wg.Wait()
		if u := w.limits.Usage("default", time.Now()); u.Held != 0 {
			t.Fatalf("%d are held, and none waits", u.Held)
		}
		for reason, n := range map[string]string{"tokens": "1", "requests": "1", "concurrent": "1", "cold_starts": "1", "held": "1"} {
			if m := metric(t, w, "thaw_quota_rejections_total"); !strings.Contains(m, `reason="`+reason+`" team="default" `+n) {
				t.Errorf("%s: %s", reason, m)
			}
		}
	})
}

// Requests for unknown models add no series, and nothing that a client sent is in
// logs or metrics.
func TestClientHeadersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1"))
		canary := "CANARY-7f3a"
		w.post("/v1/chat/completions", strings.Replace(plainRequest, "hello", canary, 1), "Authorization", "Bearer "+canary)
		w.post("/v1/chat/completions", `{"model":"x"}`)
		series := func() int {
			n := 0
			fs, _ := w.reg.Gather()
			for _, f := range fs {
				n += len(f.GetMetric())
				if strings.Contains(f.String(), canary) {
					t.Error("in metrics:", f)
				}
			}
			return n
		}
		before := series()
		for i := range 10000 {
			w.post("/v1/chat/completions", fmt.Sprintf(`{"model":"%s-%d"}`, strings.ToLower(canary), i))
		}
		if after := series(); after != before {
			t.Errorf("%d series became %d", before, after)
		}
		if strings.Contains(w.logs.String(), canary) || strings.Contains(strings.ToLower(w.logs.String()), strings.ToLower(canary)) {
			t.Error("in the log")
		}
		time.Sleep(time.Second)
		w.post("/v1/chat/completions", plainRequest)
		if n := strings.Count(w.logs.String(), "msg=request"); n != 2+refusals.PerSecond ||
			!strings.Contains(w.logs.String(), fmt.Sprintf("requests=%d\n", 10001-refusals.PerSecond)) {
			t.Errorf("%d lines for 10001 refused requests and 2 answered ones", n)
		}
	})
}

// Exactly one terminal event per request under random faults, and nothing is
// left afterwards (newTestEnv checks the queues).
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				var mu sync.Mutex
				r := rand.New(rand.NewPCG(seed, 99))
				randomInt := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
				randomSleep := func(maximum time.Duration) { time.Sleep(time.Duration(randomInt(int(maximum)))) }
				behave := func(c net.Conn, q *http.Request, body string) bool {
					randomSleep(2 * time.Second)
					fault := randomInt(8)
					if !strings.Contains(body, `"stream":true`) {
						fault *= 3 // die, or answer
					}
					switch fault {
					case 0:
						return false
					case 1:
						writeString(c, chunkHead)
						chunk(c, streamed[:1+randomInt(len(streamed)-1)])
						return false
					case 2:
						writeString(c, chunkHead)
						chunk(c, event1)
						randomSleep(20 * time.Second)
						chunk(c, event2)
						return writeString(c, "0\r\n\r\n")
					default:
						return goodAnswer(c, q, body)
					}
				}
				addrs := []string{"e:1", "e:2", "e:3"}
				for _, a := range addrs {
					w.engineAt(a, behave)
				}
				f := testFunction("tiny")
				f.Model.Spec.Queue.Requests = 60
				w.act.Publish(f)
				stop := make(chan struct{})
				var platform sync.WaitGroup
				platform.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(1 + randomInt(int(4*time.Second)))):
						}
						switch randomInt(6) {
						case 0:
							w.act.Publish(f)
						case 1:
							b := f
							b.Failure = &snapshot.Failure{Reason: "it broke", Until: time.Now().Add(time.Second)}
							w.act.Publish(b)
						case 2:
							w.act.Publish(loadingAt(f, functions.Loading, randomInt(100), time.Second))
						default:
							w.act.Publish(readyAt(f, 1+randomInt(4), addrs[:1+randomInt(3)]...))
						}
					}
				})
				var wg sync.WaitGroup
				const n = 300
				for i := range n {
					wg.Go(func() {
						randomSleep(time.Minute)
						ask := streamRequest
						if i%3 == 0 {
							ask = plainRequest
						}
						ctx, cancel := t.Context(), context.CancelFunc(func() {})
						if i%5 == 0 {
							ctx, cancel = context.WithTimeout(ctx, time.Duration(1+randomInt(int(30*time.Second))))
						}
						defer cancel()
						r := w.do(ctx, "POST", "/v1/chat/completions", ask)
						body := plainEvents(r.body)
						good, failed := r.err == nil && (strings.HasSuffix(body, eventDone) || r.body == jsonAnswer), r.code() != ""
						broke := ask == streamRequest && r.status == 200 && failed && r.err == io.ErrUnexpectedEOF
						if ask == streamRequest && r.status == 200 && (r.err == nil || broke) {
							wireRules(t, r.body)
						}
						switch {
						case r.err != nil && ctx.Err() != nil: // it left
						case r.err != nil && !broke:
							t.Errorf("an abort without need: %+v", r)
						case ask == streamRequest && r.status == 200 && failed && !broke:
							t.Errorf("a broken stream is complete: %+v", r)
						case good == failed:
							t.Errorf("not exactly one end: %+v", r)
						case failed && strings.Count(r.body, `{"error":`) != 1:
							t.Errorf("more than one error: %+v", r)
						}
					})
				}
				wg.Wait()
				close(stop)
				platform.Wait()
				time.Sleep(2 * time.Minute)
				total := 0.0
				for _, l := range strings.Split(strings.TrimSpace(metric(t, w, "thaw_requests_total")), "\n") {
					v, _ := strconv.ParseFloat(l[strings.LastIndex(l, " ")+1:], 64)
					total += v
				}
				if total != n {
					t.Errorf("%v requests ended, %d were sent", total, n)
				}
			})
		})
	}
}

func TestDecide(t *testing.T) {
	now := time.Unix(1000, 0)
	f := testFunction("tiny")
	ready := readyAt(f, 4, "e:1")
	coming := loadingAt(f, functions.Downloading, 10, 30*time.Second)
	brokenOne := f
	brokenOne.Failure = &snapshot.Failure{Reason: "x", Until: now.Add(time.Second)}
	repaired := f
	repaired.Failure = &snapshot.Failure{Reason: "x", Until: now.Add(-time.Second)}
	slow := f
	slow.Forecast = functions.Forecast{P50: 50 * time.Second, P90: 90 * time.Second}
	under := slow
	under.State = functions.Loading
	under.Progress = functions.Progress{State: functions.Loading, Percent: 5, ETA: -1}
	under.ColdStart = &functions.Timeline{Began: now.Add(-80 * time.Second)}
	for name, c := range map[string]struct {
		f    snapshot.Snapshot
		l    admission.Load
		p    admission.ClientTimeouts
		want admission.Verdict
		code openai.Code
		warm bool
	}{
		"ready":                        {ready, admission.Load{FreeSlots: 4}, admission.ClientTimeouts{}, admission.Serve, "", false},
		"ready and full":               {ready, admission.Load{Active: 4}, admission.ClientTimeouts{}, admission.Wait, "", false},
		"ready, others wait":           {ready, admission.Load{FreeSlots: 4, Queued: 1}, admission.ClientTimeouts{}, admission.Wait, "", false},
		"at rest":                      {f, admission.Load{}, admission.ClientTimeouts{}, admission.Wait, "", true},
		"at rest, some patience":       {f, admission.Load{}, admission.ClientTimeouts{Wait: time.Second}, admission.Wait, "", true},
		"coming":                       {coming, admission.Load{}, admission.ClientTimeouts{Wait: time.Minute}, admission.Wait, "", false},
		"coming too late":              {coming, admission.Load{}, admission.ClientTimeouts{Wait: 20 * time.Second}, admission.Refuse, openai.ModelLoading, true},
		"broken":                       {brokenOne, admission.Load{}, admission.ClientTimeouts{}, admission.Refuse, openai.ModelLoadFailed, false},
		"mended":                       {repaired, admission.Load{}, admission.ClientTimeouts{}, admission.Wait, "", true},
		"slow":                         {slow, admission.Load{}, admission.ClientTimeouts{Wait: time.Minute}, admission.Refuse, openai.ModelLoading, true},
		"slow, never":                  {slow, admission.Load{}, admission.ClientTimeouts{Wait: time.Minute, NoWake: true}, admission.Refuse, openai.ModelLoading, false},
		"slow, but most of it is over": {under, admission.Load{}, admission.ClientTimeouts{Wait: time.Minute}, admission.Wait, "", false},
	} {
		d := admission.Decide(&c.f, c.l, c.p, now)
		if d.Verdict != c.want || (d.Wake == admission.Replica) != c.warm || (d.Error != nil) != (c.code != "") ||
			d.Error != nil && d.Error.Code != c.code {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Ten thousand functions at rest: what one of them costs the activator, its
// picture included.
func TestIdleFunctionIsSmall(t *testing.T) {
	const n = 10000
	a := New(Options{Waker: &testEnv{}})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fs := make([]snapshot.Snapshot, 0, n)
	for i := range n {
		fs = append(fs, testFunction(fmt.Sprintf("model-%d", i)))
	}
	a.Publish(fs...)
	fs = nil
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
	t.Logf("%d bytes a function, model file included", each)
	if each > 4096 {
		t.Errorf("%d bytes, 4096 at most", each)
	}
	runtime.KeepAlive(a)
}

func FuzzParseSpan(f *testing.F) {
	for _, s := range []string{"600", "60.0", "30s", "not-given", "-1", "1e9", "NaN", "0x10p4", "1h1m", "+Inf", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, ok := admission.ParseSpan(s); ok && (d <= 0 || d > 290*365*24*time.Hour) {
			t.Errorf("%q: %v", s, d)
		}
	})
}

// TestTeamsDoNotSeeEachOther: a model of another team and an unknown name get the
// same answer on every endpoint.
func TestTeamsDoNotSeeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.Open = false })
		e := w.engineAt("e:1", goodAnswer)
		red, _, _ := w.keys.Create("red", "", false)
		w.keys.Create("blue", "", false)
		w.act.Publish(readyAt(testFunction("red/mine"), 4, "e:1"), readyAt(testFunction("blue/theirs"), 4, "e:1"))
		paths := functions.ConvertAll(openai.Endpoints[:], func(e openai.Endpoint) string { return e.Path })
		send := func(path, model string) result {
			body, kind := fmt.Sprintf(`{"model":%q,"input":"x"}`, model), "application/json"
			if ep := openai.FindEndpoint(path); ep.Form {
				body, kind = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n"+model+"\r\n--b--\r\n", "multipart/form-data; boundary=b"
			}
			return w.post(path, body, "Authorization", "Bearer "+red, "Content-Type", kind)
		}
		for _, path := range paths {
			a, b := send(path, "blue/theirs"), send(path, "blue/unknown")
			unknown := a.code() == "model_not_found" || strings.HasPrefix(path, "/v1/messages") && strings.Contains(a.body, `"type":"not_found_error"`)
			if a.status != 404 || !unknown || strings.Replace(a.body, "theirs", "unknown", 1) != b.body {
				t.Errorf("%s: %q and %q", path, a.body, b.body)
			}
			if r := send(path, "mine"); r.status != 200 {
				t.Errorf("%s: %+v", path, r)
			}
		}
		a := w.do(t.Context(), "GET", "/v1/models/blue%2Ftheirs", "", "Authorization", "Bearer "+red)
		b := w.do(t.Context(), "GET", "/v1/models/blue%2Funknown", "", "Authorization", "Bearer "+red)
		if a.status != 404 || strings.Replace(a.body, "theirs", "unknown", 1) != b.body {
			t.Errorf("%q and %q", a.body, b.body)
		}
		if n := len(e.requests()); n != len(paths) {
			t.Errorf("the engine saw %d requests, want %d", n, len(paths))
		}
	})
}
