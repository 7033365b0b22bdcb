package activator

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// testRouter is the Router auto of the default team, with one rule.
func testRouter(to ...string) *functions.Router {
	return &functions.Router{Kind: functions.KindRouter, Metadata: functions.Metadata{Name: "auto", Namespace: functions.DefaultTeam},
		Spec: functions.RouterSpec{Rules: []functions.Rule{{Name: "general", To: to}}, Data: functions.DataPublic}}
}

// testRemote is a Remote at an address, as the platform publishes it.
func testRemote(name, addr string, allow functions.DataClass) snapshot.Snapshot {
	f := readyAt(testFunction(name), 4, addr)
	f.Model = nil
	f.Remote = functions.NewRemote()
	f.Remote.Metadata.Name = f.Name.Name
	f.Remote.Metadata.Namespace = f.Name.Team
	f.Remote.Spec.Allow = allow
	return f
}

const autoRequest = `{"model":"auto","messages":[{"role":"user","content":"hello"}]}`

func (e *testEnv) decision(r result) functions.RouteRecord {
	e.t.Helper()
	rec, ok := e.act.Decisions().Find("", r.head.Get("x-request-id"))
	if !ok {
		e.t.Fatalf("no record of %+v", r)
	}
	return rec
}

// TestRouterChooses: the first rule that holds names the function, on every endpoint and
// in every spelling of the Router's name; header, record, log and metrics say which.
func TestRouterChooses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		yes := true
		r := testRouter("general")
		r.Spec.Rules = append([]functions.Rule{{Name: "code", When: functions.When{Code: &yes}, To: []string{"coder"}}}, r.Spec.Rules...)
		w.act.SetRouters([]*functions.Router{r}, nil)
		coder, general := w.engineAt("c:1", goodAnswer), w.engineAt("g:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("coder"), 4, "c:1"), readyAt(testFunction("general"), 4, "g:1"))
		code := "```go\\nfunc main() {}\\n```"
		for _, c := range []struct{ path, body, target string }{
			{"/v1/chat/completions", `{"model":"auto","messages":[{"role":"user","content":"` + code + `"}]}`, "coder"},
			{"/v1/chat/completions", `{"model":"default/auto","stream":true,"messages":[{"role":"user","content":"hello"}]}`, "general"},
			{"/v1/completions", `{"model":"auto","prompt":"` + code + `"}`, "coder"},
			{"/v1/embeddings", `{"model":"auto","input":"hello"}`, "general"},
			{"/v1/responses", `{"model":"auto","input":"hello"}`, "general"},
			{"/v1/messages", `{"model":"auto","messages":[{"role":"user","content":"` + code + `"}]}`, "coder"},
			{"/v1/rerank", `{"model":"auto","query":"a","documents":["b"]}`, "general"},
		} {
			e, rule := general, "general"
			if c.target == "coder" {
				e, rule = coder, "code"
			}
			n := len(e.requests())
			res := w.post(c.path, c.body, "X-Client-Request-Id", "mine-"+c.target)
			got := e.requests()
			if res.status != 200 || len(got) != n+1 || !strings.Contains(got[n].body, `"model":"`+c.target+`"`) {
				t.Fatalf("%+v: %+v", c, res)
			}
			if want := "router=auto; rule=" + rule + "; target=" + c.target +
				"; stage=rules; cache=off; state=ready"; res.head.Get("thaw-route") != want {
				t.Errorf("%+v: %q", c, res.head.Get("thaw-route"))
			}
			rec := w.decision(res)
			if rec.Router != "default/auto" || rec.Rule != rule || rec.Target != c.target || rec.Code != 200 || rec.Data != "public" ||
				len(rec.Candidates) != 1 || rec.Candidates[0].Kind != "Model" {
				t.Errorf("%+v", rec)
			}
			if again, ok := w.act.Decisions().Find("default", "mine-"+c.target); !ok || again.ID != rec.ID {
				t.Error("the client's own id finds nothing")
			}
		}
		synctest.Wait()
		for _, want := range []string{"router=default/auto rule=code stage=rules target=coder"} {
			if !strings.Contains(w.logs.String(), want) || strings.Contains(w.logs.String(), "main()") {
				t.Errorf("the log has no %q, or it has the prompt:\n%s", want, w.logs)
			}
		}
		if text := w.metrics(); !strings.Contains(text, `thaw_route_decisions_total{cache="off",router="default/auto",rule="code",stage="rules",state="ready",target="coder",team="default"} 3`) {
			t.Errorf("%s", text)
		}
		long := strings.Replace(autoRequest, "hello", strings.Repeat("hello ", 200), 1)
		w.post("/v1/chat/completions", long)
		if rec := w.decision(w.post("/v1/chat/completions", long)); rec.Candidates[0].ExpectedMS < 0 || !rec.Features.RepeatedPrefix {
			t.Errorf("what was measured is not known: %+v", rec)
		}
	})
}

// TestSeriesOfRouters: the metrics have series of the Routers that there are, and of their rules
// and targets; those of other Routers and of the functions stay when some are removed.
func TestSeriesOfRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("m:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("m"), 4, "m:1"))
		other := testRouter("m")
		other.Metadata.Name = "other"
		routers := func(rule string, data functions.DataClass) []*functions.Router {
			r := testRouter("m")
			r.Spec.Rules[0].Name, r.Spec.Data = rule, data
			return []*functions.Router{r, other}
		}
		ask := func(model string) {
			r := w.post(chatPath, strings.Replace(autoRequest, "auto", model, 1))
			if _, ok := w.act.Decisions().SetOutcome("", r.head.Get("x-request-id"), 1); !ok || r.status != 200 {
				t.Fatalf("%+v", r)
			}
		}
		series := func(router string) int {
			n := 0
			for line := range strings.Lines(w.metrics()) {
				decision, outcome := strings.HasPrefix(line, "thaw_route_decisions_total{"), strings.HasPrefix(line, "thaw_route_outcomes_count{")
				if strings.Contains(line, router) && (decision || outcome) {
					n++
				}
			}
			return n
		}
		for i := range 5 {
			w.act.SetRouters(routers(fmt.Sprint("rule-", i), functions.DataPublic), nil)
			ask("auto")
			ask("other")
		}
		w.act.SetRouters(routers("rule-4", functions.DataInternal), nil)
		ask("auto")
		const auto, beside = `router="default/auto"`, `router="default/other"`
		if text := w.metrics(); series(auto) != 2 || series(beside) != 2 ||
			!strings.Contains(text, `rule="rule-4",stage="rules",state="ready",target="m",team="default"} 2`) {
			t.Errorf("%d series of auto, %d of the other\n%s", series(auto), series(beside), text)
		}
		w.act.SetRouters(routers("", "")[1:], nil)
		if text := w.metrics(); series(auto) != 0 || series(beside) != 2 ||
			!strings.Contains(text, `model="m",route="/v1/chat/completions",team="default"} 11`) {
			t.Errorf("%d series of auto, %d of the other\n%s", series(auto), series(beside), text)
		}
	})
}

func (e *testEnv) metrics() string {
	text, _, err := e.reg.Text("")
	if err != nil {
		e.t.Fatal(err)
	}
	return string(text)
}

// TestRouterNames: whose Router "auto" is, which function a target means, and what a
// caller may use.
func TestRouterNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.Open = false })
		key := func(team string, admin bool) string {
			k, _, err := w.keys.Create(team, "", admin)
			if err != nil {
				t.Fatal(err)
			}
			return "Bearer " + k
		}
		red, blue, admin := key("red", false), key("blue", false), key("default", true)
		ours := testRouter("m")
		ours.Metadata.Namespace = "red"
		shared := testRouter("m", "default/m")
		w.act.SetRouters([]*functions.Router{shared, ours}, nil)
		e := w.engineAt("e:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("red/m"), 4, "e:1"), readyAt(testFunction("default/m"), 4, "e:1"),
			readyAt(testFunction("green/auto"), 4, "e:1"))
		_ = e
		ask := func(key, model string) result {
			return w.post("/v1/chat/completions", strings.Replace(autoRequest, "auto", model, 1), "Authorization", key)
		}
		for _, c := range []struct {
			key, model string
			status     int
			route      string
		}{
			{red, "auto", 200, "router=auto; rule=general; target=m;"},
			{red, "red/auto", 200, "router=auto; rule=general; target=m;"},
			{red, "default/auto", 404, ""},
			{admin, "auto", 200, "router=auto; rule=general; target=m;"},
			{admin, "red/auto", 200, "router=red/auto; rule=general; target=m;"},
			{key("green", false), "auto", 200, ""}, // a model of that name is the team's own
			{blue, "auto", 404, "router=default/auto; rule=general; stage=rules; cache=off"},
			{blue, "auto:x", 404, ""},
			{red, "auto2", 404, ""},
		} {
			res := ask(c.key, c.model)
			if res.status != c.status || !strings.HasPrefix(res.head.Get("thaw-route"), c.route) ||
				c.route == "" && res.head.Get("thaw-route") != "" {
				t.Errorf("%s: %d %q %s", c.model, res.status, res.head.Get("thaw-route"), res.body)
			}
		}
		if res := ask(blue, "auto"); !strings.Contains(res.body,
			"the caller may not use it. The team `blue` needs a function of one of these names, or a Router `auto` of its own.") {
			t.Errorf("%s", res.body)
		}
		if rec := w.decision(ask(admin, "auto")); rec.Candidates[0].WhyNot != "" {
			t.Errorf("%+v", rec)
		}
		list := func(key string) (ids []string) {
			var l struct {
				Data []struct {
					ID      string
					OwnedBy string `json:"owned_by"`
				}
			}
			res := w.do(t.Context(), "GET", "/v1/models", "", "Authorization", key)
			if err := json.Unmarshal([]byte(res.body), &l); err != nil {
				t.Fatal(err)
			}
			for _, m := range l.Data {
				ids = append(ids, m.ID+"="+m.OwnedBy)
			}
			return ids
		}
		if got := list(red); !slices.Equal(got, []string{"m=red", "auto=router"}) {
			t.Errorf("red sees %v", got)
		}
		if got := list(blue); !slices.Equal(got, []string{"auto=router"}) {
			t.Errorf("blue sees %v", got)
		}
		if got := list(admin); !slices.Contains(got, "red/auto=router") || !slices.Contains(got, "auto=router") {
			t.Errorf("an admin sees %v", got)
		}
		if res := w.do(t.Context(), "GET", "/v1/models/auto", "", "Authorization", blue); res.status != 200 || !strings.Contains(res.body, `"owned_by":"router"`) {
			t.Errorf("%+v", res)
		}
		if res := w.do(t.Context(), "GET", "/v1/models/default%2Fauto", "", "Authorization", blue); res.status != 404 {
			t.Errorf("%+v", res)
		}
	})
}

// TestDataClass: a Remote gets only what it is allowed, by name and behind a Router, and
// the refusal names both settings.
func TestDataClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		e := w.engineAt("cloud:1", goodAnswer)
		w.publish(testRemote("cloud", "cloud:1", functions.DataPublic), testRemote("inner", "cloud:1", functions.DataInternal))
		w.act.SetRouters([]*functions.Router{testRouter("cloud")}, nil)
		by := func(model string, head ...string) result {
			return w.post("/v1/chat/completions", strings.Replace(autoRequest, "auto", model, 1), head...)
		}
		for _, c := range []struct {
			name   string
			r      result
			status int
		}{
			{"by name, the class is internal", by("cloud"), 403},
			{"by name, allowed", by("inner"), 200},
			{"by name, raised", by("inner", "thaw-data", "secret"), 403},
			{"a Router of public data", by("auto"), 200},
			{"raised", by("auto", "thaw-data", "internal"), 403},
			{"raised, and lowered before", by("auto", "Thaw-Data", "public", "thaw-data", "secret"), 400},
			{"lowering does nothing", by("inner", "thaw-data", "public"), 200},
			{"no class", by("inner", "thaw-data", "top"), 400},
			{"no class, with a Router", by("auto", "thaw-data", "top"), 400},
			{"no policy", by("auto", "thaw-cold", "never"), 400},
		} {
			if c.r.status != c.status {
				t.Errorf("%s: %d %s", c.name, c.r.status, c.r.body)
			}
			if c.status == 403 &&
				(c.r.code() != "data_class_refused" || c.r.head.Get("x-should-retry") != "false" ||
					!strings.Contains(c.r.body, "invalid_request_error") || !strings.Contains(c.r.body, "on the Router or the team") ||
					!strings.Contains(c.r.body, "allow: ")) {
				t.Errorf("%s: %s %v", c.name, c.r.body, c.r.head)
			}
		}
		if n := len(e.requests()); n != 3 {
			t.Errorf("%d requests left, want 3", n)
		}
		w.act.SetRouters(nil, map[string]functions.DataClass{"default": functions.DataPublic})
		if r := by("cloud"); r.status != 200 {
			t.Errorf("the team's class is public: %+v", r)
		}
		if _, err := w.act.Reserve(t.Context(),
			ReservationRequest{Name: functions.Name{Team: "default", Name: "cloud"}, Team: "default"}); err == nil {
			t.Error("a request that nothing has checked got a slot of a Remote")
		}
	})
}

// TestDataClassWhileWaiting: a Remote that is allowed less while a request waits for it
// does not get the request.
func TestDataClassWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		hold := make(chan struct{})
		e := w.engineAt("cloud:1", func(c net.Conn, r *http.Request, body string) bool { <-hold; return goodAnswer(c, r, body) })
		f := testRemote("cloud", "cloud:1", functions.DataInternal)
		f.Replicas[0].Slots = 1
		w.publish(f)
		body := strings.Replace(autoRequest, "auto", "cloud", 1)
		first, second := make(chan result, 1), make(chan result, 1)
		go func() { first <- w.post("/v1/chat/completions", body) }()
		synctest.Wait()
		go func() { second <- w.post("/v1/chat/completions", strings.Replace(body, "hello", "more", 1)) }()
		synctest.Wait()
		less := f
		less.Remote = testRemote("cloud", "cloud:1", functions.DataPublic).Remote
		w.publish(less)
		close(hold)
		if r := <-first; r.status != 200 {
			t.Errorf("%+v", r)
		}
		if r := <-second; r.status != 403 || len(e.requests()) != 1 {
			t.Errorf("%+v, %d requests left", r, len(e.requests()))
		}
	})
}

// TestModelBecomesRemote: a request that waits for a model whose name a Remote takes goes
// there as all requests to Remotes do, or nowhere.
func TestModelBecomesRemote(t *testing.T) {
	for _, allow := range []functions.DataClass{functions.DataPublic, functions.DataInternal} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			e := w.engineAt("cloud:1", goodAnswer)
			w.publish(testFunction("cloud"))
			name := functions.Name{Team: "default", Name: "cloud"}
			asked, reserved := make(chan result, 1), make(chan error, 1)
			go func() { asked <- w.post("/v1/chat/completions", strings.Replace(autoRequest, "auto", "cloud", 1)) }()
			go func() {
				if s, err := w.act.Reserve(t.Context(), ReservationRequest{Name: name, Team: "default"}); err != nil {
					reserved <- err
				} else {
					s.Finish(200)
					reserved <- nil
				}
			}()
			synctest.Wait()
			w.publish(testRemote("cloud", "cloud:1", allow))
			r, seen := <-asked, e.requests()
			if allow == functions.DataPublic && (r.status != 403 || len(seen) != 0) {
				t.Errorf("%s: %d %s, %d requests left", allow, r.status, r.body, len(seen))
			}
			if allow == functions.DataInternal &&
				(r.status != 200 || len(seen) != 1 || seen[0].path != "/v1/chat/completions" || seen[0].head.Get("thaw-depth") != "1") {
				t.Errorf("%s: %d %s, %+v", allow, r.status, r.body, seen)
			}
			if err := <-reserved; err == nil {
				t.Errorf("%s: a request that nothing has checked got a slot of a Remote", allow)
			}
		})
	}
}

// TestRemoteReplacedAtArrival: the class of data is checked for the Remote that gets the
// request, also where the data path does not know that one yet.
func TestRemoteReplacedAtArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.engineAt("cloud:1", goodAnswer)
		e := w.engineAt("cloud:2", goodAnswer)
		w.publish(testRemote("cloud", "cloud:1", functions.DataInternal))
		w.act.o.Remotes.Attach(unpublished{})
		w.publish(testRemote("cloud", "cloud:2", functions.DataPublic))
		if r := w.post("/v1/chat/completions", strings.Replace(autoRequest, "auto", "cloud", 1)); r.status != 403 || len(e.requests()) != 0 {
			t.Errorf("%+v, %d requests left", r, len(e.requests()))
		}
	})
}

// unpublished is a data path that has not got the newest snapshots yet.
type unpublished struct{}

func (unpublished) Publish(...snapshot.Snapshot) {}
func (unpublished) Remove(...functions.Name)     {}

// TestColdPolicies: with wait a cold target is woken; with hedge another answers and the
// platform prewarms it, without the request waiting for that.
func TestColdPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var prewarmed []string
		var refuse error
		w := newTestEnv(t, func(o *Options) {
			o.Prewarm = func(n functions.Name, until time.Time, by string) error {
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				prewarmed = append(prewarmed, n.String()+" "+by)
				return refuse
			}
		})
		r := testRouter("big", "small")
		r.Spec.Cold = functions.ColdHedge
		w.act.SetRouters([]*functions.Router{r}, nil)
		w.engineAt("s:1", goodAnswer)
		w.engineAt("b:1", goodAnswer)
		w.act.Publish(testFunction("big"), readyAt(testFunction("small"), 4, "s:1"))
		res := w.post("/v1/chat/completions", autoRequest)
		if rec := w.decision(res); res.status != 200 || res.took != 0 || rec.Target != "small" || rec.Prewarm != "big" ||
			!strings.HasSuffix(res.head.Get("thaw-route"), "state=ready; prewarm=big") {
			t.Fatalf("%+v %+v", res, rec)
		}
		time.Sleep(2 * time.Second)
		mu.Lock()
		if got := fmt.Sprint(prewarmed); got != "[default/big router default/auto]" {
			t.Errorf("prewarmed: %s", got)
		}
		refuse = errors.New("the budget of the team is used up")
		mu.Unlock()
		if w.count(&w.wakes) != 0 {
			t.Error("a hedge is no demand: the model was woken")
		}
		if res := w.post("/v1/chat/completions", autoRequest, "thaw-cold", "other"); w.decision(res).Prewarm != "" ||
			w.decision(res).Target != "small" {
			t.Errorf("%+v", w.decision(res))
		}
		time.Sleep(time.Minute)
		w.post("/v1/chat/completions", autoRequest)
		time.Sleep(2 * time.Second)
		res = w.post("/v1/chat/completions", autoRequest)
		if rec := w.decision(res); rec.Prewarm != "" || !strings.HasPrefix(rec.Reason, "Rule ") ||
			!strings.HasSuffix(rec.Reason, ". `big` is not prewarmed: the budget of the team is used up.") {
			t.Errorf("%+v", rec)
		}
		w.mu.Lock()
		w.onWake = func() { w.act.Publish(readyAt(testFunction("big"), 4, "b:1")) }
		w.mu.Unlock()
		res = w.post("/v1/chat/completions", autoRequest, "thaw-cold", "wait")
		if rec := w.decision(res); res.status != 200 || rec.Target != "big" || rec.Cold != "wait" || w.count(&w.wakes) != 1 {
			t.Errorf("%+v %+v", res, rec)
		}
		if res := w.post("/v1/chat/completions", autoRequest); w.decision(res).Target != "big" {
			t.Errorf("the next request finds it ready: %+v", w.decision(res))
		}
	})
}

// TestEscalate: a failure before the first byte goes to the next target, whichever it is,
// and the client learns of it from the header alone.
func TestEscalate(t *testing.T) {
	answers := map[string]func(w *testEnv) snapshot.Snapshot{
		"refuses connections": func(w *testEnv) snapshot.Snapshot { return readyAt(testFunction("first"), 4, "nobody:1") },
		"dies": func(w *testEnv) snapshot.Snapshot {
			w.engineAt("f:1", func(net.Conn, *http.Request, string) bool { return false })
			return readyAt(testFunction("first"), 4, "f:1")
		},
		"answers 500": func(w *testEnv) snapshot.Snapshot {
			w.engineAt("f:1", func(c net.Conn, _ *http.Request, _ string) bool {
				return writeString(c, "HTTP/1.1 500 Oops\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"error\":\"no\"}")
			})
			return readyAt(testFunction("first"), 4, "f:1")
		},
		"answers 429": func(w *testEnv) snapshot.Snapshot {
			w.engineAt("f:1", func(c net.Conn, _ *http.Request, _ string) bool {
				return writeString(c, "HTTP/1.1 429 Slow\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"error\":\"no\"}")
			})
			return readyAt(testFunction("first"), 4, "f:1")
		},
		"sends an error frame": func(w *testEnv) snapshot.Snapshot {
			w.engineAt("f:1", func(c net.Conn, _ *http.Request, body string) bool {
				if !strings.Contains(body, `"stream":true`) {
					return false
				}
				writeString(c, chunkHead)
				chunk(c, "data: {\"error\": {\"message\": \"boom\", \"code\": 500}}\n\n")
				return writeString(c, "0\r\n\r\n")
			})
			return readyAt(testFunction("first"), 4, "f:1")
		},
		"fails to start": func(w *testEnv) snapshot.Snapshot {
			w.onWake = func() {
				time.Sleep(10 * time.Second)
				f := testFunction("first")
				f.State = functions.Failed
				f.Failure = &snapshot.Failure{Reason: "weights_missing", Until: time.Now().Add(time.Hour)}
				w.act.Publish(f)
			}
			return testFunction("first")
		},
		"is not ready in time": func(w *testEnv) snapshot.Snapshot {
			f := testFunction("first")
			f.Model.Spec.Queue.Wait = functions.Duration(20 * time.Second)
			return f
		},
	}
	for name, first := range answers {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTestEnv(t, nil)
					f := first(w)
					second := w.engineAt("s:1", goodAnswer)
					w.act.Publish(f, readyAt(testFunction("second"), 4, "s:1"))
					r := testRouter("first", "second")
					body := autoRequest
					if stream {
						body = strings.Replace(body, "{", `{"stream":true,`, 1)
					}
					w.act.SetRouters([]*functions.Router{r}, nil)
					if res := w.post("/v1/chat/completions", body); len(second.requests()) != 0 || res.head.Get("thaw-route") == "" {
						t.Errorf("without escalate it was given to the second: %+v", res)
					}
					time.Sleep(2 * time.Hour)
					escalating := *r
					escalating.Spec.Retry.Escalate = true
					w.act.Publish(f)
					w.act.SetRouters([]*functions.Router{&escalating}, nil)
					res := w.post("/v1/chat/completions", body)
					rec := w.decision(res)
					if res.status != 200 || res.err != nil || rec.Target != "second" || rec.After != "first" || rec.Code != 200 ||
						len(second.requests()) != 1 {
						t.Fatalf("%+v %+v", res, rec)
					}
					if !strings.Contains(rec.Candidates[0].WhyNot, "it failed this request") {
						t.Errorf("%+v", rec.Candidates)
					}
					if held := stream && strings.Contains(res.body, ": thaw"); !held && !strings.HasSuffix(res.head.Get("thaw-route"), "; after=first") {
						t.Errorf("%v", res.head)
					}
					if text := w.metrics(); !strings.Contains(text, `thaw_route_escalations_total{router="default/auto",target="first",team="default"} 1`) {
						t.Error("it is not counted")
					}
				})
			})
		}
	}
}

// TestEscalateEnds: when every target has failed, the last failure is the answer; what is
// the request's own fault, and what has begun, is given to no other.
func TestEscalateEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		r := testRouter("first", "second")
		r.Spec.Retry.Escalate = true
		w.act.SetRouters([]*functions.Router{r}, nil)
		answer := func(string) bool { return false }
		dies := func(c net.Conn, r *http.Request, body string) bool { return answer(body) }
		first := w.engineAt("f:1", dies)
		second := w.engineAt("s:1", dies)
		w.act.Publish(readyAt(testFunction("first"), 4, "f:1"), readyAt(testFunction("second"), 4, "s:1"))
		res := w.post("/v1/chat/completions", autoRequest)
		if res.status != 502 || res.code() != "engine_crashed" || len(first.requests()) == 0 || len(second.requests()) == 0 {
			t.Errorf("%+v", res)
		}
		time.Sleep(time.Hour)
		before := len(second.requests())
		w.engineAt("f:2", func(c net.Conn, r *http.Request, body string) bool {
			return writeString(c, "HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"error\":\"no\"}")
		})
		w.act.Publish(readyAt(testFunction("first"), 4, "f:2"))
		if res := w.post("/v1/chat/completions", autoRequest); res.status != 400 || len(second.requests()) != before {
			t.Errorf("%+v", res)
		}
		w.engineAt("f:3", func(c net.Conn, r *http.Request, body string) bool {
			writeString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"half\":")
			return false
		})
		w.act.Publish(readyAt(testFunction("first"), 4, "f:3"))
		if res := w.post("/v1/chat/completions", autoRequest); res.status != 502 || len(second.requests()) != before {
			t.Errorf("an answer that had begun was asked for again: %+v", res)
		}
		w.act.Remove(functions.Name{Team: "default", Name: "first"}, functions.Name{Team: "default", Name: "second"})
		if res := w.post("/v1/chat/completions", autoRequest); res.status != 404 ||
			!strings.Contains(res.body, "has no target for this request (rule `general`): `first`: it does not exist") {
			t.Errorf("%+v", res)
		}
	})
}

// TestFullTargets: a Router whose targets are all full answers so that a client retries.
func TestFullTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.act.SetRouters([]*functions.Router{testRouter("first", "gone", "second")}, nil)
		for _, name := range []string{"first", "second"} {
			f := testFunction(name)
			f.Model.Spec.Queue.Requests = 0
			w.act.Publish(f)
		}
		res := w.post("/v1/chat/completions", autoRequest)
		if res.status != 503 || res.code() != "queue_full" || res.head.Get("retry-after") == "" ||
			!strings.Contains(res.body, "`first`: its queue is full; `gone`: it does not exist") {
			t.Errorf("%+v", res)
		}
	})
}

// TestCostOfModels: a model without a price costs a Router the GPU seconds that a request
// was measured to take, by the requests that it had beside it. The budget of a team is for
// Remotes: a model of one's own that costs something answers though it is used up.
func TestCostOfModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, func(o *Options) { o.GPUHourPrice, o.Currency = 3600, "EUR" })
		w.engineAt("c:1", goodAnswer) // 3 tokens, then 2
		w.engineAt("g:1", func(c net.Conn, r *http.Request, body string) bool {
			time.Sleep(10 * time.Second)
			return goodAnswer(c, r, body)
		})
		w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: "default"}, Spec: functions.TeamSpec{Limits: functions.Limits{SpendPerDay: 0.5}}}})
		w.cloudAt("c:1", func(r *functions.RemoteSpec) { r.Price = functions.Price{Input: 1e5, Output: 1e5} })
		own := testFunction("own")
		own.Model.Spec.Resources.GPUs = 2
		w.act.Publish(readyAt(own, 4, "g:1"))
		w.act.SetRouters([]*functions.Router{testRouter("cloud", "own")}, nil)
		if rec := w.decision(w.post(chatPath, autoRequest)); rec.Target != "cloud" || rec.Candidates[1].Cost != -1 || rec.Currency != "EUR" {
			t.Errorf("%+v", rec)
		}
		for i := range 8 { // the average of the times moves
			var both sync.WaitGroup
			for range 1 + i%2 {
				both.Go(func() {
					if res := w.post(chatPath, autoRequest); res.status != 200 || w.decision(res).Target != "own" {
						t.Errorf("%+v", res)
					}
				})
			}
			both.Wait()
			rec, _ := w.act.DryRoute(auth.Identity{Team: "default"}, "", chatPath, func(string) string { return "" }, []byte(autoRequest))
			if cost := rec.Candidates[1].Cost; i == 0 && cost != 20 || i > 0 && (cost >= 20 || cost <= 10) || rec.Currency != "EUR" ||
				!strings.Contains(rec.Candidates[0].WhyNot, "used up") {
				t.Errorf("%+v", rec)
			}
		}
	})
}

// TestDryRoute: a dry run decides as a request would be, and leaves no trace.
func TestDryRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.act.SetRouters([]*functions.Router{testRouter("first")}, nil)
		e := w.engineAt("f:1", goodAnswer)
		w.act.Publish(readyAt(testFunction("first"), 4, "f:1"))
		id := auth.Identity{Team: "default"}
		dry := func(router, path, body string) (functions.RouteRecord, int) {
			rec, err := w.act.DryRoute(id, router, path, func(string) string { return "" }, []byte(body))
			if err != nil {
				return rec, err.Status
			}
			return rec, 200
		}
		for _, c := range []struct {
			router, path, body string
			status             int
		}{
			{"", "/v1/chat/completions", `{"messages":[]}`, 200},
			{"", "/v1/chat/completions", autoRequest, 200},
			{"auto", "/v1/completions", `{"model":"first","prompt":"x"}`, 200},
			{"", "/v1/completions", `{"model":"first","prompt":"x"}`, 404},
			{"red/auto", "/v1/completions", `{"prompt":"x"}`, 404},
			{"", "/v1/models", `{}`, 400},
			{"", "/v1/completions", `{`, 400},
		} {
			rec, status := dry(c.router, c.path, c.body)
			if status != c.status || status == 200 && (rec.Target != "first" || rec.ID != "" || rec.Features.RepeatedPrefix) {
				t.Errorf("%+v: %d %+v", c, status, rec)
			}
		}
		for asked, want := range map[string]string{"autoo": "Nearest: `auto`.", "xyzzyxyzzy": "may not use it."} {
			if _, err := w.act.DryRoute(id, asked, "/v1/completions", func(string) string { return "" }, []byte("{}")); err == nil ||
				!strings.HasSuffix(err.Message, want) {
				t.Errorf("%s: %v", asked, err)
			}
		}
		if len(e.requests()) != 0 || len(w.act.Decisions().Newest("", 10)) != 0 {
			t.Error("a dry run left a trace")
		}
	})
}

// TestDataNeverLeaves: whatever Routers, targets, states and failures there are, a request
// of a class reaches no Remote that does not allow the class.
func TestDataNeverLeaves(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			pick := func(of ...string) string { return of[random.IntN(len(of))] }
			w := newTestEnv(t, func(o *Options) { o.Prewarm = func(functions.Name, time.Time, string) error { return nil } })
			remotes := map[string]functions.DataClass{}
			engines := map[string]*engine{}
			names := []string{"a", "b", "c", "d", "e"}
			for _, n := range names {
				addr := n + ":1"
				mode := random.IntN(4)
				engines[n] = w.engineAt(addr, func(c net.Conn, r *http.Request, body string) bool {
					switch mode {
					case 0:
						return false
					case 1:
						return writeString(c, "HTTP/1.1 503 No\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"error\":\"no\"}")
					}
					return goodAnswer(c, r, body)
				})
				f := readyAt(testFunction(n), 1+random.IntN(4), addr)
				if random.IntN(2) == 0 {
					remotes[n] = functions.DataClass(pick("public", "internal", "secret", ""))
					f = testRemote(n, addr, remotes[n])
				} else if random.IntN(3) == 0 {
					f.Replicas = nil
					f.Model.Spec.Queue.Wait = functions.Duration(time.Second)
				}
				w.publish(f)
			}
			yes := true
			r := testRouter()
			r.Spec.Data = functions.DataClass(pick("public", "internal", "secret", ""))
			r.Spec.Cold = functions.ColdPolicy(pick("wait", "other", "hedge", ""))
			r.Spec.Retry.Escalate = random.IntN(3) > 0
			targets := func() (to []string) {
				for _, i := range random.Perm(len(names))[:1+random.IntN(len(names))] {
					to = append(to, names[i])
				}
				return to
			}
			r.Spec.Rules = []functions.Rule{{Name: "code", When: functions.When{Code: &yes}, To: targets()}, {Name: "rest", To: targets()}}
			team := functions.DataClass(pick("public", "internal", "secret", ""))
			w.act.SetRouters([]*functions.Router{r}, map[string]functions.DataClass{"default": team})
			for i := range 30 {
				model := pick("auto", "auto", "auto", "a", "b", "c", "d", "e")
				header := functions.DataClass(pick("", "", "public", "internal", "secret"))
				class := team
				if model == "auto" && r.Spec.Data != "" {
					class = r.Spec.Data
				}
				if class == "" {
					class = functions.DataInternal
				}
				if header != "" && header.Rank() > class.Rank() {
					class = header
				}
				mark := fmt.Sprintf("mark-%d-end", i)
				body := fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"%s %s"}]}`, model, random.IntN(2) == 0, mark, pick("", "```code```"))
				w.post("/v1/chat/completions", body, "thaw-data", string(header), "thaw-cold", pick("wait", "other", "hedge"))
				if random.IntN(5) == 0 {
					time.Sleep(time.Minute)
				}
				for n, allow := range remotes {
					if allow == "" {
						allow = functions.DataPublic
					}
					for _, got := range engines[n].requests() {
						if strings.Contains(got.body, mark) && class.Rank() > allow.Rank() {
							t.Fatalf("seed %d: data of class %s reached %s, which allows %s", seed, class, n, allow)
						}
					}
				}
			}
		})
	}
}
