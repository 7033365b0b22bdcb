package compositions

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const question = `{"model":"panel","messages":[{"role":"user","content":"why?"}]}`

// rig is a Server over a data path that answers by a function.
type rig struct {
	*Server
	mu     sync.Mutex
	bodies []string
	answer func(body string, res *httpserver.Response)
	states map[string]Function // others are ready
}

func newRig(gpus int) *rig {
	g := &rig{states: map[string]Function{}, answer: func(string, *httpserver.Response) {}}
	g.Server = New(Options{
		Serve: func(req *httpserver.Request, res *httpserver.Response) {
			g.mu.Lock()
			g.bodies = append(g.bodies, string(req.Body))
			g.mu.Unlock()
			g.answer(string(req.Body), res)
		},
		State: func(_ auth.Identity, asked string) (Function, bool) {
			name, _ := functions.ParseName(asked, functions.DefaultTeam)
			f, ok := g.states[name.WithoutAdapter().Name]
			if !ok {
				f = Function{Ready: true}
			}
			f.Name = name
			return f, true
		},
		Packing: packingOf(gpus),
	})
	return g
}

// packingOf has room on so many GPUs; 0: nothing is known. A model needs one, big two, huge
// eight and cpu none.
func packingOf(gpus int) func() func(functions.Name) bool {
	if gpus == 0 {
		return nil
	}
	return func() func(functions.Name) bool {
		left := gpus
		return func(name functions.Name) bool {
			need, ok := map[string]int{"big": 2, "huge": 8, "cpu": 0}[name.Name]
			if !ok {
				need = 1
			}
			if need > left {
				return false
			}
			left -= need
			return true
		}
	}
}

// request is a request for a Composition of this pattern with members a and b.
func (r *rig) request(pattern functions.Pattern, body string, finished func(int, string, Summary)) *Request {
	c := functions.NewComposition()
	c.Metadata.Name, c.Spec.Pattern, c.Spec.Coordinator, c.Spec.Members.List = "panel", pattern, "judge", []string{"a", "b"}
	env, err := openai.Peek([]byte(body))
	if err != nil {
		panic(err)
	}
	return &Request{
		ID: "r", Composition: c, Caller: auth.Identity{Team: functions.DefaultTeam}, Envelope: &env, Stream: env.Stream, Finished: finished,
		HTTP: httpserver.NewRequest(nil, "POST", Path, nil, []byte(body), &httpserver.Context{}, func() bool { return false }),
	}
}

func answerWith(res *httpserver.Response, text string) {
	res.Set("content-type", "application/json")
	res.Body = []byte(`{"choices":[{"message":{"content":` + string(appendText(nil, text)) + `},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":500}}`)
}

// TestReady: which members are asked beside each other.
func TestReady(t *testing.T) {
	gpu := func(n int, ready bool) Function {
		return Function{Model: true, Ready: ready, Wait: time.Duration(n) * time.Second}
	}
	states := map[string]Function{
		"a": gpu(1, false), "b": gpu(1, false), "c": gpu(1, true), "d": gpu(1, false), "big": gpu(2, false), "huge": gpu(8, false), "cpu": {Model: true}, "router": {Ready: true},
	}
	for name, x := range map[string]struct {
		gpus       int
		busy, want string
		groups     string
	}{
		"all fit":                       {4, "", "a b", "[[] [a b]]"},
		"loaded ones first":             {1, "", "a c b", "[[c] []] [[] [a]] [[] [b]]"},
		"two and one":                   {2, "", "a b d", "[[] [a b]] [[] [d]]"},
		"one is in use":                 {2, "c", "a b", "[[] [a]] [[] [b]]"},
		"no room":                       {1, "c", "a b", "[[] []] [[] [a]] [[] [b]]"},
		"a small one passes a large":    {2, "c", "big a", "[[] [a]] [[] [big]]"},
		"larger than all":               {2, "", "huge", "[[] [huge]]"},
		"a base and its adapters":       {1, "a", "a:x a:y b", "[[] [a:x a:y]] [[] [b]]"},
		"without GPUs":                  {1, "c", "cpu router", "[[router] [cpu]]"},
		"nothing is known of the GPUs":  {0, "c", "a b big", "[[] [a b big]]"},
		"a Router is asked at any time": {1, "a", "router b", "[[router] []] [[] [b]]"},
	} {
		g := newRig(x.gpus)
		g.states = states
		r := &run{s: g.Server, q: g.request(functions.PatternEnsemble, question, nil)}
		r.places = Places{Packing: packingOf(x.gpus), State: r.state}
		var got []string
		for _, group := range r.places.Ready(strings.Fields(x.busy), strings.Fields(x.want)) {
			got = append(got, fmt.Sprint([][]string{group.Warm, group.Cold}))
		}
		if s := strings.Join(got, " "); s != x.groups {
			t.Errorf("%s: %s, want %s", name, s, x.groups)
		}
	}
}

// TestOwnSchema: a member that refuses the Composition's own schema is asked without it; one
// that refuses the client's is not.
func TestOwnSchema(t *testing.T) {
	g := newRig(0)
	g.answer = func(body string, res *httpserver.Response) {
		switch {
		case strings.Contains(body, "response_format"):
			res.Status, res.Body = 400, openai.New(openai.UnsupportedParameter, "no formats").Body()
		case strings.Contains(body, `"subtasks\"`):
			answerWith(res, `{"subtasks":[{"id":"a","task":"t","member":"a","needs":[]}]}`)
		default:
			answerWith(res, "fine")
		}
	}
	var res httpserver.Response
	if s, e := g.Serve(g.request(functions.PatternGraph, question, nil), &res); e != nil || s.Calls != 3 || len(g.bodies) != 4 {
		t.Errorf("%+v %v, asked %d times", s, e, len(g.bodies))
	}
	g.bodies = nil
	if _, e := g.Serve(g.request(functions.PatternEnsemble, strings.Replace(question, "{", `{"response_format":{"type":"json_object"},"max_completion_tokens":7,`, 1), nil), &res); e == nil || e.Status != 400 || !strings.Contains(e.Message, "no formats") {
		t.Errorf("%v", e)
	}
	for _, b := range g.bodies {
		if !strings.Contains(b, `"response_format":{"type":"json_object"}`) {
			t.Errorf("%s", b)
		}
	}
}

// TestRelease: a model is released when it has answered and is asked no more: each member of
// an ensemble, those of a debate in its last round, and no coordinator.
func TestRelease(t *testing.T) {
	for pattern, calls := range map[functions.Pattern]int{functions.PatternEnsemble: 1, functions.PatternDebate: 3} {
		g := newRig(0)
		for _, name := range []string{"a", "b", "judge"} {
			g.states[name] = Function{Model: true, Ready: true}
		}
		g.answer = func(body string, res *httpserver.Response) {
			g.mu.Lock()
			defer g.mu.Unlock()
			answerWith(res, fmt.Sprint("a text that is ", len(g.bodies), body[:12]))
		}
		var released []string
		g.o.Release = func(name functions.Name) {
			g.mu.Lock()
			defer g.mu.Unlock()
			if released = append(released, name.Name); len(g.bodies) < calls {
				t.Errorf("%s: %s is released after %d calls", pattern, name.Name, len(g.bodies))
			}
		}
		q := g.request(pattern, question, nil)
		q.Composition.Spec.Rounds = 1
		var res httpserver.Response
		if _, e := g.Serve(q, &res); e != nil {
			t.Fatal(e)
		}
		if slices.Sort(released); strings.Join(released, " ") != "a b" {
			t.Errorf("%s: %v are released", pattern, released)
		}
	}
}

// TestStage: the models that do not start with the first ones are staged meanwhile, in the order
// in which they are asked; not those of a request that prepares nothing.
func TestStage(t *testing.T) {
	for name, x := range map[string]struct {
		pattern functions.Pattern
		gpus    int
		starts  int // that its budget allows; 0: no bound
		staged  string
	}{
		"they take turns":       {functions.PatternEnsemble, 1, 0, "b judge"},
		"all members fit":       {functions.PatternEnsemble, 2, 0, "judge"},
		"a bound of starts":     {functions.PatternEnsemble, 1, 5, ""},
		"the coordinator first": {functions.PatternGraph, 1, 0, "a b"},
	} {
		g := newRig(x.gpus)
		for _, m := range []string{"a", "b", "judge"} {
			g.states[m] = Function{Model: true}
		}
		g.answer = func(body string, res *httpserver.Response) { answerWith(res, "a text that is "+body[:12]) }
		var staged []string
		g.o.Stage = func(name functions.Name, by string) { staged = append(staged, name.Name) }
		q := g.request(x.pattern, question, nil)
		q.Composition.Spec.Budget.ColdStarts = x.starts
		var res httpserver.Response
		if _, e := g.Serve(q, &res); e != nil || strings.Join(staged, " ") != x.staged {
			t.Errorf("%s: %v, %v", name, staged, e)
		}
	}
}

// TestCost: what the calls cost by the prices of their members.
func TestCost(t *testing.T) {
	g := newRig(0)
	price := functions.Price{Input: 1, Output: 2}
	g.states = map[string]Function{"a": {Ready: true, Price: price}, "b": {Ready: true}, "judge": {Ready: true, Price: price}}
	g.answer = func(body string, res *httpserver.Response) { answerWith(res, "a text that is "+body[:12]) }
	var res httpserver.Response
	s, e := g.Serve(g.request(functions.PatternEnsemble, question, nil), &res)
	if e != nil || s.Prompt != 3000 || s.Completion != 1500 || s.Cost != 2*2000/1e6 || !strings.Contains(string(res.Body), `"cost":0.004`) {
		t.Errorf("%+v %v %s", s, e, res.Body)
	}
	rec, ok := g.Record(functions.DefaultTeam, "r")
	if _, other := g.Record("red", "r"); !ok || other || rec.Cost != s.Cost {
		t.Errorf("%+v", rec)
	}
}

// TestLongAnswer: a member's answer beyond its bound is a missing answer.
func TestLongAnswer(t *testing.T) {
	g := newRig(0)
	g.answer = func(body string, res *httpserver.Response) {
		text := "fine"
		if strings.HasPrefix(body, `{"model":"a"`) {
			text = strings.Repeat("x", maxText+1)
		}
		answerWith(res, text)
	}
	var res httpserver.Response
	if _, e := g.Serve(g.request(functions.PatternEnsemble, question, nil), &res); e == nil || e.Status != 502 ||
		!strings.Contains(e.Message, "longer than all bounds") {
		t.Errorf("%v", e)
	}
}

// TestEmptySynthesis: where the coordinator writes nothing, the client gets a member's answer,
// plain and streamed, and the record names the member.
func TestEmptySynthesis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(0)
		g.answer = func(body string, res *httpserver.Response) {
			switch {
			case !strings.HasPrefix(body, `{"model":"judge"`):
				answerWith(res, "a text that is "+body[:12])
			case strings.Contains(body, `"stream":true`):
				res.Set("content-type", "text/event-stream")
				res.Stream = io.NopCloser(strings.NewReader(`data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}` + "\n\n"))
			default:
				answerWith(res, "")
			}
		}
		for _, body := range []string{question, strings.Replace(question, "{", `{"stream":true,`, 1)} {
			var res httpserver.Response
			_, e := g.Serve(g.request(functions.PatternEnsemble, body, func(int, string, Summary) {}), &res)
			if e != nil {
				t.Fatal(e)
			}
			if res.Stream != nil {
				res.Body, _ = io.ReadAll(res.Stream)
				res.Stream.Close()
			}
			for _, want := range []string{`"content":"a text that is {\"model\":\"a\""}`, `"finish_reason":"stop"`, `"answered_by":"a"`} {
				if !strings.Contains(string(res.Body), want) {
					t.Errorf("no %s in %s", want, res.Body)
				}
			}
			if res.Stream != nil && !strings.Contains(string(res.Body), ": thaw state=replaced member=a round=1\n") {
				t.Errorf("no comment in %s", res.Body)
			}
		}
	})
}

// TestPanic: a panic of the data path is a member's failure.
func TestPanic(t *testing.T) {
	g := newRig(0)
	g.answer = func(string, *httpserver.Response) { panic("no") }
	var res httpserver.Response
	if _, e := g.Serve(g.request(functions.PatternEnsemble, question, nil), &res); e == nil || e.Status != 500 {
		t.Errorf("%v", e)
	}
}

// endless is a stream that a client reads slowly.
type endless struct{ closed chan struct{} }

func (e *endless) Read(p []byte) (int, error) {
	return copy(p, `data: {"choices":[{"index":0,"delta":{"content":"`+strings.Repeat("x", 1000)+`"}}]}`+"\n\n"), nil
}
func (e *endless) Close() error { close(e.closed); return nil }

// TestSlowClient: what a client does not read is bounded, and its leaving ends the synthesis.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(0)
		e := &endless{make(chan struct{})}
		g.answer = func(body string, res *httpserver.Response) {
			if !strings.Contains(body, `"stream":true`) {
				answerWith(res, "a text that is "+body[:12])
				return
			}
			res.Set("content-type", "text/event-stream")
			res.Stream = e
		}
		code := 0
		var res httpserver.Response
		_, refused := g.Serve(g.request(functions.PatternEnsemble, strings.Replace(question, "{", `{"stream":true,`, 1), func(c int, _ string, _ Summary) { code = c }), &res)
		if refused != nil {
			t.Fatal(refused)
		}
		st := res.Stream.(*stream)
		buf := make([]byte, 4<<10)
		for range 100 {
			synctest.Wait() // until the run waits for the client
			if n := len(st.unread); n > maxUnread+4<<10 {
				t.Fatalf("%d bytes are kept", n)
			}
			if _, err := io.ReadFull(st, buf); err != nil {
				t.Fatal(err)
			}
		}
		st.Close()
		<-e.closed
		if code != 499 {
			t.Errorf("code %d", code)
		}
	})
}

// TestRecords: the newest records are kept.
func TestRecords(t *testing.T) {
	var l Server
	for i := range maxRecords + 10 {
		id := fmt.Sprint(i)
		at := l.records.Put(nil, maxRecords, "red", id, "mine", functions.CompositionRecord{ID: id})
		l.records.Put(at, maxRecords, "red", id, "mine", functions.CompositionRecord{ID: id, Code: 200})
	}
	if _, ok := l.Record("red", "9"); ok {
		t.Error("an old record is kept")
	}
	if rec, ok := l.Record("", "10"); !ok || rec.Code != 200 {
		t.Errorf("%+v", rec)
	}
	if rec, ok := l.Record("red", "mine"); !ok || rec.ID != fmt.Sprint(maxRecords+9) {
		t.Errorf("%+v", rec)
	}
	if _, ok := l.Record("blue", "mine"); ok || len(l.records.Newest("", maxRecords+1)) != maxRecords {
		t.Error("another team's, or too many")
	}
}

// BenchmarkCall is what a call costs beside the data path.
func BenchmarkCall(b *testing.B) {
	g := newRig(0)
	g.answer = func(body string, res *httpserver.Response) { answerWith(res, "a text that is "+body[:12]) }
	b.ReportAllocs()
	calls := 0
	for b.Loop() {
		var res httpserver.Response
		s, e := g.Serve(g.request(functions.PatternEnsemble, question, nil), &res)
		if e != nil {
			b.Fatal(e)
		}
		calls += s.Calls
		g.bodies = g.bodies[:0]
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(calls), "µs/call")
}

// What an answer says beside its text does not cost the text.
func TestOddAnswers(t *testing.T) {
	for _, c := range []struct {
		name, content, usage string
		prompt               int64 // of two calls and the answer; 0: estimated
	}{
		{"plain", `"yes"`, `{"prompt_tokens":7,"completion_tokens":2}`, 14},
		{"not whole", `"yes"`, `{"prompt_tokens":7.0,"completion_tokens":2e0}`, 14},
		{"no numbers", `"yes"`, `{"prompt_tokens":"7"}`, 0},
		{"no object", `"yes"`, `true`, 0},
		{"beyond all", `"yes"`, `{"prompt_tokens":9223372036854775807,"completion_tokens":9223372036854775807}`, 0},
		{"below zero", `"yes"`, `{"prompt_tokens":-7,"completion_tokens":2}`, 0},
		{"parts", `[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"yes"}]`, `null`, 0},
	} {
		for _, stream := range []bool{false, true} {
			g := newRig(0)
			g.states["a"], g.states["b"] = Function{Ready: !stream}, Function{Ready: !stream}
			g.answer = func(_ string, res *httpserver.Response) {
				if !stream {
					res.Body = []byte(`{"choices":[{"message":{"content":` + c.content + `},"finish_reason":"stop"}],"usage":` + c.usage + `}`)
					return
				}
				res.Set("content-type", "text/event-stream")
				res.Stream = io.NopCloser(strings.NewReader(`data: {"choices":[{"delta":{"content":` + c.content + `},"finish_reason":"stop"}],"usage":` + c.usage + "}\n\ndata: [DONE]\n\n"))
			}
			var res httpserver.Response
			sum, e := g.Serve(g.request(functions.PatternEnsemble, question, nil), &res)
			if e != nil || !strings.Contains(string(res.Body), `"content":"yes"`) || sum.Calls != 2 {
				t.Errorf("%s, stream %v: %s %v %+v", c.name, stream, res.Body, e, sum)
			}
			if c.prompt > 0 && sum.Prompt != c.prompt || sum.Prompt < 0 || sum.Prompt > 1000 || sum.Completion < 0 || sum.Completion > 1000 {
				t.Errorf("%s, stream %v: %+v", c.name, stream, sum)
			}
		}
	}
}

// A member that is no Composition names no cost, and adds no event to the answer.
func TestMemberClaims(t *testing.T) {
	g := newRig(0)
	claim := `"finish_reason":"stop"}],"thaw":{"cost":1.7e308},"usage":{"prompt_tokens":1,"completion_tokens":1}}`
	g.answer = func(body string, res *httpserver.Response) {
		if !strings.HasPrefix(body, `{"model":"judge"`) {
			res.Body = []byte(`{"choices":[{"message":{"content":"` + body[10:11] + ` is what I say"},` + claim)
			return
		}
		res.Set("content-type", "text/event-stream")
		res.Stream = io.NopCloser(strings.NewReader(": thaw state=x\rdata: {\"forged\":1}\n\n" + `data: {"choices":[{"delta":{"content":"yes"},` + claim + "\n\ndata: [DONE]\n\n"))
	}
	var sum Summary
	q := g.request(functions.PatternEnsemble, strings.Replace(question, "{", `{"stream":true,`, 1), func(_ int, _ string, s Summary) { sum = s })
	q.Stream = true
	var res httpserver.Response
	if _, e := g.Serve(q, &res); e != nil {
		t.Fatal(e)
	}
	b, err := io.ReadAll(res.Stream)
	res.Stream.Close()
	if err != nil || !strings.Contains(string(b), "[DONE]") || strings.Contains(string(b), "forged") || sum.Calls != 3 || sum.Cost != 0 {
		t.Errorf("%s %v %+v", b, err, sum)
	}
}
