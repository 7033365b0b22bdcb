package activator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// panel is a Composition of these members with a coordinator named judge.
func panel(pattern functions.Pattern, members ...string) *functions.Composition {
	c := functions.NewComposition()
	c.Metadata.Name, c.Spec.Pattern, c.Spec.Coordinator = "panel", pattern, "judge"
	c.Spec.Members.List = members
	c.Spec.SetDefaults()
	return c
}

// members publishes functions whose engines answer by a script, and counts them.
type members struct {
	w  *testEnv
	mu sync.Mutex
	// answers has the text of a member's answer; "!" is a failure, "hang" none.
	answers map[string]string
	asked   []string // members in order
	left    map[string]time.Time
	took    time.Duration
}

func (e *testEnv) newMembers(answers map[string]string) *members {
	m := &members{w: e, answers: answers, left: map[string]time.Time{}}
	for name := range answers {
		e.engineAt(name+":1", m.answer(name))
		e.act.Publish(m.ready(name))
	}
	return m
}

func (m *members) ready(name string) snapshot.Snapshot {
	return readyAt(testFunction(name), 4, name+":1")
}

func (m *members) answer(name string) func(c net.Conn, r *http.Request, body string) bool {
	return func(c net.Conn, r *http.Request, body string) bool {
		m.mu.Lock()
		m.asked = append(m.asked, name)
		text, took := m.answers[name], m.took
		m.mu.Unlock()
		time.Sleep(took)
		switch text {
		case "!":
			return writeString(c, "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n"+`{"error":{"message":"no memory"}}`[:32])
		case "hang":
			c.Read(make([]byte, 1))
			m.mu.Lock()
			m.left[name] = time.Now()
			m.mu.Unlock()
			return false
		}
		quoted, _ := json.Marshal(text)
		const usage = `"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}`
		if !strings.Contains(body, `"stream":true`) {
			return replyComplete(c, `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":`+string(quoted)+`},"finish_reason":"stop"}],`+usage+`}`)
		}
		if !writeString(c, chunkHead) {
			return false
		}
		half := len(text) / 2
		for _, part := range []string{text[:half], text[half:]} {
			quoted, _ := json.Marshal(part)
			if !chunk(c, `data: {"id":"c","choices":[{"index":0,"delta":{"content":`+string(quoted)+`},"finish_reason":null}]}`+"\n\n") {
				return false
			}
		}
		return chunk(c, `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\n") &&
			chunk(c, `data: {"id":"c","choices":[],`+usage+"}\n\n") && chunk(c, eventDone) && writeString(c, "0\r\n\r\n")
	}
}

func (m *members) order() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.asked...)
}

// composed is an answer of a Composition, put together where it was streamed.
type composed struct {
	Content, Reasoning, Finish string
	Model                      string
	Usage                      struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	Thaw     functions.CompositionRecord
	Comments []string
	Done     bool
}

func readComposed(t *testing.T, body string) (c composed) {
	t.Helper()
	read := func(b []byte) {
		var x struct {
			Model   string `json:"model"`
			Choices []struct {
				Message struct {
					Content   string `json:"content"`
					Reasoning string `json:"reasoning_content"`
				} `json:"message"`
				Delta struct {
					Content   string `json:"content"`
					Reasoning string `json:"reasoning_content"`
				} `json:"delta"`
				Finish string `json:"finish_reason"`
			} `json:"choices"`
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			} `json:"usage"`
			Thaw *functions.CompositionRecord `json:"thaw"`
		}
		if err := json.Unmarshal(b, &x); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		c.Model = x.Model
		for _, o := range x.Choices {
			c.Content += o.Message.Content + o.Delta.Content
			c.Reasoning += o.Message.Reasoning + o.Delta.Reasoning
			c.Finish += o.Finish
		}
		if x.Usage != nil {
			c.Usage.Prompt, c.Usage.Completion = x.Usage.Prompt, x.Usage.Completion
		}
		if x.Thaw != nil {
			c.Thaw = *x.Thaw
		}
	}
	if strings.HasPrefix(body, "{") {
		read([]byte(body))
		return c
	}
	for line := range bytes.Lines([]byte(body)) {
		line = bytes.TrimSpace(line)
		switch data, isData := bytes.CutPrefix(line, []byte("data: ")); {
		case isData && string(data) == "[DONE]":
			c.Done = true
		case isData:
			read(data)
		case bytes.HasPrefix(line, []byte(":")):
			c.Comments = append(c.Comments, string(line))
		}
	}
	return c
}

const (
	askPanel       = `{"model":"panel","temperature":0.5,"messages":[{"role":"user","content":"why?"}]}`
	askPanelStream = `{"model":"panel","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"why?"}]}`
)

// TestComposition: it is called like a model, plain and streamed; only the synthesis is
// content, and usage is the sum of all calls, which are named.
func TestComposition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		m := w.newMembers(map[string]string{"a": "first long answer of a member", "b": "another long answer of a member", "judge": "the synthesis"})
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		for _, body := range []string{askPanel, askPanelStream} {
			r := w.post("/v1/chat/completions", body)
			if r.status != 200 || r.err != nil || r.head.Get("x-request-id") == "" {
				t.Fatalf("%+v", r)
			}
			c := readComposed(t, r.body)
			if c.Content != "the synthesis" || c.Model != "panel" || c.Finish != "stop" || c.Usage.Prompt != 30 || c.Usage.Completion != 6 ||
				c.Reasoning != "" || c.Done != (body == askPanelStream) {
				t.Errorf("%+v\n%s", c, r.body)
			}
			if len(c.Thaw.Calls) != 3 || c.Thaw.Composition != "default/panel" || c.Thaw.Agreement == nil || c.Thaw.Agreement.Answers != 2 {
				t.Errorf("%+v", c.Thaw)
			}
			for i, call := range c.Thaw.Calls {
				if call.ID == "" || call.Prompt != 10 || call.Completion != 2 || call.Error != "" || call.Final != (i == 2) ||
					(call.Member == "judge") != (i == 2) {
					t.Errorf("call %d: %+v", i, call)
				}
			}
			synctest.Wait() // for the line in the log
			rec, ok := w.act.Composed(functions.DefaultTeam, r.head.Get("x-request-id"))
			if !ok || rec.Code != 200 || len(rec.Calls) != 3 {
				t.Errorf("record %+v", rec)
			}
			if parent := "parent=" + r.head.Get("x-request-id"); strings.Count(w.logs.String(), parent) != 3 {
				t.Errorf("the log names the parent %d times", strings.Count(w.logs.String(), parent))
			}
		}
		if n := len(m.order()); n != 6 {
			t.Errorf("%d calls", n)
		}
		if text := w.metrics(); !strings.Contains(text, `thaw_composition_calls_total{model="panel",team="default"} 6`) || !strings.Contains(text, `thaw_requests_total{code="200",cold="false",model="panel",route="/v1/chat/completions",team="default"} 2`) {
			t.Error(text)
		}
		for path, want := range map[string]string{"/v1/models": `"owned_by":"composition"`, "/v1/models/panel": `"id":"panel"`} {
			if r := w.do(t.Context(), "GET", path, ""); r.status != 200 || !strings.Contains(r.body, want) {
				t.Errorf("%s: %s", path, r.body)
			}
		}
		if r := w.post("/v1/chat/completions", strings.Replace(askPanel, "panel", "pannel", 1)); r.status != 404 ||
			!strings.Contains(r.body, "Nearest: `panel`") {
			t.Errorf("%s", r.body)
		}
	})
}

// TestCompositionShows: progress as comments, or the members' answers as reasoning, or none
// of it.
func TestCompositionShows(t *testing.T) {
	for show, want := range map[functions.Show][2]bool{functions.ShowProgress: {true, false}, functions.ShowSteps: {false, true}, functions.ShowNone: {false, false}} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			w.newMembers(map[string]string{"a": "yes", "b": "no, because", "judge": "perhaps"})
			c := panel(functions.PatternEnsemble, "a", "b")
			c.Spec.Show = show
			w.act.SetCompositions([]*functions.Composition{c})
			for _, body := range []string{askPanel, askPanelStream} {
				r := w.post("/v1/chat/completions", body)
				got := readComposed(t, r.body)
				comments := strings.Join(got.Comments, "\n")
				if got.Content != "perhaps" ||
					strings.Contains(comments, ": thaw state=answered member=a role=member round=1") != (want[0] && body == askPanelStream) ||
					strings.Contains(got.Reasoning, "a (member):\nyes") != want[1] {
					t.Errorf("%s: %+v\n%s", show, got, r.body)
				}
			}
		})
	}
}

// TestCompositionAgrees: equal short answers are the answer, without a synthesis.
func TestCompositionAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		m := w.newMembers(map[string]string{"a": "Paris", "b": "paris.", "judge": "?"})
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		for _, body := range []string{askPanel, askPanelStream} {
			c := readComposed(t, w.post("/v1/chat/completions", body).body)
			if strings.ToLower(c.Content[:5]) != "paris" || !c.Thaw.Agreement.Exact || c.Finish != "stop" || len(c.Thaw.Calls) != 2 {
				t.Errorf("%+v", c)
			}
		}
		if n := len(m.order()); n != 4 {
			t.Errorf("%d calls", n)
		}
	})
}

// TestCompositionRefuses: what a Composition does not take is named.
func TestCompositionRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.newMembers(map[string]string{"a": "1", "b": "2", "judge": "3"})
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		with := func(more string) string { return strings.Replace(askPanel, `"messages"`, more+`,"messages"`, 1) }
		content := func(c string) string { return strings.Replace(askPanel, `"why?"`, c, 1) }
		for name, x := range map[string]struct {
			body, path, code, text string
			status                 int
			head                   []string
		}{
			"tools":             {body: with(`"tools":[{"type":"function","function":{"name":"f"}}]`), status: 400, code: "unsupported_parameter", text: "takes no `tools`"},
			"no tools":          {body: with(`"tools":[],"tool_choice":"none","n":1,"logprobs":false,"parallel_tool_calls":true`), status: 200},
			"choice":            {body: with(`"tool_choice":"auto"`), status: 400, code: "unsupported_parameter", text: "tool_choice"},
			"n":                 {body: with(`"n":2`), status: 400, code: "unsupported_parameter", text: "`n`"},
			"logprobs":          {body: with(`"logprobs":true`), status: 400, code: "unsupported_parameter", text: "logprobs"},
			"an image":          {body: content(`[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]`), status: 400, code: "unsupported_parameter", text: "text alone"},
			"parts of text":     {body: content(`[{"type":"text","text":"x"}]`), status: 200},
			"a tool's message":  {body: strings.Replace(askPanel, `"role":"user"`, `"role":"tool","tool_call_id":"x"`, 1), status: 400, code: "unsupported_parameter", text: "messages[0]"},
			"no message":        {body: `{"model":"panel","messages":[]}`, status: 400, code: "invalid_value", text: "messages"},
			"format":            {body: with(`"response_format":{"type":"xml"}`), status: 400, code: "invalid_value", text: "response_format"},
			"another endpoint":  {body: `{"model":"panel","prompt":"x"}`, path: "/v1/completions", status: 404, code: "unknown_endpoint", text: "answers /v1/chat/completions alone"},
			"depth":             {body: askPanel, head: []string{"thaw-depth", "3"}, status: 400, code: "composition_cycle", text: "went through 3"},
			"data":              {body: askPanel, head: []string{"thaw-data", "hidden"}, status: 400, code: "invalid_value"},
			"too large":         {body: content(`"` + strings.Repeat("x", 2<<20) + `"`), status: 413, code: "request_too_large", text: "at most 2 MiB"},
			"only from a cache": {body: askPanel, head: []string{"thaw-cache", "only"}, status: 404, code: "cache_miss"},
		} {
			path := "/v1/chat/completions"
			if x.path != "" {
				path = x.path
			}
			if r := w.post(path, x.body, x.head...); r.status != x.status || r.code() != x.code || !strings.Contains(r.body, x.text) {
				t.Errorf("%s: %d %s", name, r.status, r.body)
			}
		}
	})
}

// TestCompositionFails: a member's failure is a missing answer; below its quorum, or without
// its coordinator, the Composition fails and tells which.
func TestCompositionFails(t *testing.T) {
	for name, x := range map[string]struct {
		answers map[string]string
		status  int
		text    string
	}{
		"one of three":   {map[string]string{"a": "one thing and another", "b": "!", "c": "something else altogether", "judge": "all"}, 200, `"content":"all"`},
		"two of three":   {map[string]string{"a": "one", "b": "!", "c": "!", "judge": "all"}, 500, "The Composition `panel` has no answer: too few answers: 1 of 2 needed (b: "},
		"no coordinator": {map[string]string{"a": "one thing and another", "b": "two", "c": "something else altogether", "judge": "!"}, 500, "coordinator judge failed"},
	} {
		for _, body := range []string{askPanel, askPanelStream} {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.newMembers(x.answers)
				w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b", "c")})
				r := w.post("/v1/chat/completions", body)
				if body == askPanelStream && x.status == 200 {
					if c := readComposed(t, r.body); c.Content != "all" {
						t.Errorf("%s: %s", name, r.body)
					}
				} else if r.status != x.status || !strings.Contains(r.body, x.text) {
					t.Errorf("%s: %d %s", name, r.status, r.body)
				}
			})
		}
	}
}

// TestCompositionLeaves: the client's leaving ends every call at once.
func TestCompositionLeaves(t *testing.T) {
	for _, body := range []string{askPanel, askPanelStream} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			m := w.newMembers(map[string]string{"a": "hang", "b": "hang", "judge": "all"})
			w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Minute, cancel)
			w.do(ctx, "POST", "/v1/chat/completions", body)
			left := time.Now()
			time.Sleep(time.Second)
			synctest.Wait()
			m.mu.Lock()
			for _, name := range []string{"a", "b"} {
				if at, ok := m.left[name]; !ok || at.Sub(left) > time.Second {
					t.Errorf("%s was left at %v of %v", name, at, left)
				}
			}
			m.mu.Unlock()
			synctest.Wait()
			if !strings.Contains(w.logs.String(), "code=499") {
				t.Error(w.logs.String())
			}
		})
	}
}

// TestCompositionOneAtOnce: the client's request covers its calls, so that a team that may
// run one request at once has no deadlock; tokens are charged once.
func TestCompositionOneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.newMembers(map[string]string{"a": "one thing and another", "b": "something else altogether", "judge": "all"})
		w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: functions.DefaultTeam}, Spec: functions.TeamSpec{Limits: functions.Limits{Concurrent: 1, RequestsPerMinute: 2, HeldRequests: 1, TokensPerMinute: 1000}}}})
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		for _, body := range []string{askPanel, askPanelStream} {
			if r := w.post("/v1/chat/completions", body); r.status != 200 || readComposed(t, r.body).Content != "all" {
				t.Fatalf("%+v", r)
			}
		}
		if u := w.limits.Usage(functions.DefaultTeam, time.Now()); u.Active != 0 || u.Spent != 72 {
			t.Errorf("%+v", u)
		}
		if r := w.post("/v1/chat/completions", askPanel); r.status != 429 {
			t.Errorf("the third request: %+v", r)
		}
	})
}

// TestCompositionResidency: with one GPU each model is loaded once, those that are loaded
// are asked first, and the coordinator is prewarmed once there is room.
func TestCompositionResidency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := &gpuFleet{room: 1, loads: map[string]int{}}
		w := newTestEnv(t, func(o *Options) {
			o.Waker, o.Packing = fleet, oneGPU
			o.Prewarm = func(n functions.Name, _ time.Time, _ string) error { fleet.Wake(n); return nil }
		})
		m := w.newMembers(map[string]string{"a": "one thing and another", "b": "something else altogether", "c": "a third thing that is said", "judge": "all"})
		m.took = time.Second
		fleet.m = m
		for _, name := range []string{"a", "b", "c", "judge"} {
			fleet.publish(name, name == "b")
		}
		fleet.loaded = []string{"b"}
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b", "c")})
		r := w.post("/v1/chat/completions", askPanelStream)
		c := readComposed(t, r.body)
		if c.Content != "all" || len(c.Thaw.Calls) != 4 || c.Thaw.Calls[0].Member != "b" || c.Thaw.Calls[0].Cold || !c.Thaw.Calls[1].Cold ||
			c.Thaw.Calls[1].ColdStart == "" {
			t.Errorf("%+v\n%s", c.Thaw, r.body)
		}
		if fmt.Sprint(fleet.loads) != "map[a:1 c:1 judge:1]" {
			t.Errorf("loads %v, asked %v", fleet.loads, m.order())
		}
		if !strings.Contains(strings.Join(c.Comments, "\n"), "member=a") {
			t.Errorf("comments %q", c.Comments)
		}
	})
}

// TestCompositionPatience: a quorum of loaded members answers when a cold one would miss the
// patience; it is left out, and said, and its call has ended.
func TestCompositionPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		m := w.newMembers(map[string]string{"a": "one thing and another", "b": "something else altogether", "c": "a third thing that is said", "judge": "all"})
		w.act.Publish(testFunction("c")) // cold, and nothing starts it
		c := panel(functions.PatternEnsemble, "a", "b", "c")
		c.Spec.Quorum, c.Spec.Patience = 2, functions.Duration(20*time.Second)
		w.act.SetCompositions([]*functions.Composition{c})
		r := w.post("/v1/chat/completions", askPanel)
		got := readComposed(t, r.body)
		if r.status != 200 || got.Content != "all" || r.took != 20*time.Second || len(got.Thaw.LeftOut) != 1 ||
			got.Thaw.LeftOut[0].Member != "c" || got.Thaw.LeftOut[0].Reason != "cold beyond patience" {
			t.Errorf("%v %+v", r.took, got)
		}
		if w.count(&w.wakes) != 1 || strings.Contains(strings.Join(m.order(), ""), "c") {
			t.Errorf("%d wakes, asked %v", w.count(&w.wakes), m.order())
		}
		if d, _ := w.act.DemandOf(testFunction("c").Name); d.Queued != 0 {
			t.Errorf("%+v", d)
		}
	})
}

// TestCompositionHolds: a held stream gets its 200 and comments while a member starts, and
// an error behind them is a frame.
func TestCompositionHolds(t *testing.T) {
	for _, answer := range []string{"all", "!"} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestEnv(t, nil)
			m := w.newMembers(map[string]string{"a": "one thing and another", "b": "something else altogether", "judge": answer})
			w.act.Publish(loadingAt(testFunction("a"), functions.Downloading, 40, 30*time.Second))
			c := panel(functions.PatternEnsemble, "a", "b")
			w.act.SetCompositions([]*functions.Composition{c})
			time.AfterFunc(time.Minute, func() { w.act.Publish(m.ready("a")) })
			r := w.post("/v1/chat/completions", askPanelStream)
			comments := strings.Join(readComposed(t, strings.Split(r.body, `data: {"error"`)[0]).Comments, "\n")
			if r.status != 200 || !strings.Contains(comments, ": thaw state=staging percent=40") || !strings.Contains(comments, "member=a") || strings.Count(comments, "\n") < 12 || !strings.Contains(r.body, `"id":"",`) {
				t.Errorf("%+v", r)
			}
			if failed := strings.Contains(r.body, `data: {"error"`); failed != (answer == "!") || failed == strings.Contains(r.body, "[DONE]") || failed != (r.err != nil) {
				t.Errorf("%v %s", r.err, r.body)
			}
		})
	}
}

// TestCompositionDrains: a call that would wait is refused while the server ends, and the
// client is told; a member that does not exist is the server's fault, not the client's.
func TestCompositionDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.newMembers(map[string]string{"a": "one thing and another", "judge": "all"})
		w.act.SetCompositions([]*functions.Composition{panel(functions.PatternEnsemble, "a", "b")})
		if r := w.post("/v1/chat/completions", askPanel); r.status != 503 || r.code() != "service_unavailable" ||
			!strings.Contains(r.body, "b: model_not_found") {
			t.Errorf("%+v", r)
		}
		w.act.Publish(testFunction("b"))
		for _, body := range []string{askPanel, askPanelStream} {
			time.AfterFunc(time.Minute, func() { w.act.Drain(t.Context()) })
			r := w.post("/v1/chat/completions", body)
			if !strings.Contains(r.body, `"code":"shutting_down"`) || body == askPanel && r.status != 503 {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestCompositionNested: a Composition may be a member; circles end at the depth, also those
// that only the run shows, and Remotes are told how deep they are.
func TestCompositionNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.newMembers(map[string]string{"a": "one thing and another", "b": "something else altogether", "judge": "all"})
		named := func(name string, members ...string) *functions.Composition {
			c := panel(functions.PatternEnsemble, members...)
			c.Metadata.Name, c.Spec.Quorum = name, 1
			return c
		}
		w.act.SetCompositions([]*functions.Composition{named("panel", "a", "inner"), named("inner", "a", "b"), named("one", "a", "two"), named("two", "b", "one")})
		r := w.post("/v1/chat/completions", askPanel)
		if c := readComposed(t, r.body); c.Content != "all" || len(c.Thaw.Calls) != 3 || c.Thaw.Calls[1].Error != "" || c.Usage.Prompt != 50 {
			t.Errorf("%s", r.body)
		}
		r = w.post("/v1/chat/completions", strings.Replace(askPanel, "panel", "one", 1))
		if c := readComposed(t, r.body); c.Content != "all" {
			t.Errorf("%s", r.body)
		}
		synctest.Wait()
		if !strings.Contains(w.logs.String(), "error=composition_cycle") {
			t.Error("the circle was not refused")
		}
	})
}

// TestCompositionData: the class of the parent's data holds for its calls.
func TestCompositionData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestEnv(t, nil)
		w.newMembers(map[string]string{"a": "one thing and another", "judge": "all"})
		cloud := w.engineAt("cloud:1", goodAnswer)
		w.publish(testRemote("cloud", "cloud:1", functions.DataInternal))
		c := panel(functions.PatternEnsemble, "a", "cloud")
		c.Spec.Quorum = 1
		w.act.SetCompositions([]*functions.Composition{c})
		for _, class := range []string{"internal", "secret"} {
			r := w.post("/v1/chat/completions", askPanel, "thaw-data", class)
			if got := readComposed(t, r.body); got.Content != "all" {
				t.Errorf("%s", r.body)
			}
			if n := len(cloud.requests()); n != 1 {
				t.Errorf("%s: %d requests left", class, n)
			}
		}
		if h := cloud.requests()[0].head; h.Get("thaw-depth") != "2" {
			t.Errorf("%v", h)
		}
	})
}

// gpuFleet is a platform with room for some models, each of which loads for 10 s and evicts
// the one that is idle.
type gpuFleet struct {
	m      *members
	room   int
	mu     sync.Mutex
	loaded []string
	loads  map[string]int
	starts map[string]bool
}

// oneGPU has room for one model.
func oneGPU() func(functions.Name) bool {
	left := 1
	return func(functions.Name) bool { left--; return left >= 0 }
}

func (g *gpuFleet) publish(name string, ready bool) {
	f := testFunction(name)
	f.Model.Spec.Resources.GPUs = 1
	if ready {
		f = readyAt(f, 4, name+":1")
	}
	g.m.w.act.Publish(f)
}

func (g *gpuFleet) Wake(name functions.Name) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starts == nil {
		g.starts = map[string]bool{}
	}
	if !g.starts[name.Name] {
		g.starts[name.Name] = true
		go g.start(name)
	}
	return "cs-" + name.Name
}

func (g *gpuFleet) start(name functions.Name) {
	for {
		g.mu.Lock()
		if len(g.loaded) == g.room {
			idle := g.loaded[0]
			if d, _ := g.m.w.act.DemandOf(functions.Name{Team: functions.DefaultTeam, Name: idle}); d.Active == 0 {
				g.loaded = g.loaded[1:]
				g.publish(idle, false)
			}
		}
		if len(g.loaded) < g.room {
			g.loaded = append(g.loaded, name.Name)
			g.loads[name.Name]++
			g.mu.Unlock()
			break
		}
		g.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(10 * time.Second)
	g.publish(name.Name, true)
	g.mu.Lock()
	delete(g.starts, name.Name)
	g.mu.Unlock()
}

func (g *gpuFleet) Demand(...Demand)                             {}
func (g *gpuFleet) Nudge(functions.Name)                         {}
func (g *gpuFleet) ReportFailure(functions.Name, string, string) {}
