package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// thinker is an OpenAI-compatible API of another party whose model plans: it answers what
// the coordinator of a maestro or a graph is asked, in JSON.
type thinker struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	hangs  string        // a request whose body has this text is not answered
	left   chan struct{} // has an element when the client of such a one has left
}

func newThinker(t *testing.T) *thinker {
	c := &thinker{left: make(chan struct{}, 8)}
	c.Server = testkit.Serve(t, http.HandlerFunc(c.answer))
	return c
}

func (t *thinker) answer(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	body := string(b)
	t.mu.Lock()
	t.bodies = append(t.bodies, body)
	hangs := t.hangs != "" && strings.Contains(body, t.hangs)
	t.mu.Unlock()
	if hangs {
		<-r.Context().Done()
		t.left <- struct{}{}
		return
	}
	var q struct{ Model string }
	json.Unmarshal(b, &q)
	text := "A long answer of the model " + q.Model + ", which differs from all others."
	switch {
	case strings.Contains(body, `"agents"`):
		text = `{"agents":[{"role":"reasoning","task":"think"},{"role":"code","task":"write it"}]}`
	case strings.Contains(body, `"subtasks"`):
		text = `{"subtasks":[{"id":"a","task":"say hello","member":"small-a","needs":[]},{"id":"b","task":"say thaw","member":"cloud","needs":["a"]}]}`
	case strings.Contains(body, "small-a"), strings.Contains(body, "<<<begin"):
		text = "The cloud's synthesis."
	}
	quoted, _ := json.Marshal(text)
	const usage = `"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}`
	if !strings.Contains(body, `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","model":"vendor","choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}],%s}`, quoted, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"id\":\"c\",\"model\":\"vendor\","+
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":%s},\"finish_reason\":null}]}\n\n", quoted)
	fmt.Fprintf(w, "data: {\"id\":\"c\",\"model\":\"vendor\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n")
	fmt.Fprintf(w, "data: {\"id\":\"c\",\"model\":\"vendor\",\"choices\":[],%s}\n\ndata: [DONE]\n\n", usage)
}

func (t *thinker) hang(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hangs = text
}

func (t *thinker) file(name, url, more string) string {
	return "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: " + name + "}\nspec: {url: " + url +
		"/v1, price: {input: 1, output: 2}, allow: internal" + more + "}\n"
}

func compositionFile(name, spec string) string {
	return "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n"
}

// composedAnswer is the answer to a request for a Composition.
type composedAnswer struct {
	text, finish string
	usage        struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	thaw functions.CompositionRecord
}

// readComposedAnswer reads an answer, plain or streamed.
func readComposedAnswer(t *testing.T, r reply) (a composedAnswer) {
	t.Helper()
	read := func(data string) {
		var x struct {
			Choices []struct {
				Message, Delta struct{ Content string }
				Finish         string `json:"finish_reason"`
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
			Thaw *functions.CompositionRecord
		}
		if err := json.Unmarshal([]byte(data), &x); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		for _, c := range x.Choices {
			a.text += c.Message.Content + c.Delta.Content
			a.finish += c.Finish
		}
		if x.Usage != nil {
			a.usage = *x.Usage
		}
		if x.Thaw != nil {
			a.thaw = *x.Thaw
		}
	}
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if strings.HasPrefix(r.body, "{") {
		read(r.body)
		return a
	}
	for line := range strings.Lines(r.body) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && data != "[DONE]" {
			read(data)
		}
	}
	if !strings.HasSuffix(r.body, "data: [DONE]\n\n") {
		t.Fatalf("the stream has no end: %s", r.body)
	}
	return a
}

// TestCompositions: the four patterns over two models and a Remote, plain and streamed;
// every call is named and explained.
func TestCompositions(t *testing.T) {
	t.Parallel()
	cloud := newThinker(t)
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	const gpu = "resources: {gpus: 1}\n"
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "small-a", gpu), "b.yaml": tiny(t, "small-b", gpu),
		"cloud.yaml": cloud.file("cloud", cloud.URL, ""), "dead.yaml": cloud.file("dead", dead.URL, ""),
		"panel.yaml":   compositionFile("panel", "pattern: ensemble, members: [small-a, small-b, cloud], coordinator: cloud"),
		"debate.yaml":  compositionFile("debate", "pattern: debate, members: [small-a, cloud], coordinator: small-a, rounds: 1, show: none"),
		"maestro.yaml": compositionFile("maestro", "pattern: maestro, members: {reasoning: small-a, code: cloud, critic: small-b}, coordinator: cloud, show: steps"),
		"graph.yaml":   compositionFile("graph", "pattern: graph, members: [small-a, cloud], coordinator: cloud"),
		"quorum.yaml":  compositionFile("quorum", "pattern: ensemble, members: [dead, cloud], coordinator: cloud, quorum: 1"),
		"broken.yaml":  compositionFile("broken", "pattern: ensemble, members: [dead, cloud], coordinator: dead"),
		"nested.yaml":  compositionFile("nested", "pattern: ensemble, members: [quorum, cloud], coordinator: cloud"),
	}, "--gpus", "2")
	ask := func(model string, stream bool) (reply, composedAnswer) {
		t.Helper()
		r := p.do("POST", "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"stream":%v,"stream_options":{"include_usage":true},"temperature":0,"messages":[{"role":"user","content":"Hello"}]}`, model, stream))
		return r, readComposedAnswer(t, r)
	}
	verb := func(args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if code := run(t.Context(), append(args, "--server", p.url, "--data", p.data), strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("thaw %v: %d %s", args, code, &errs)
		}
		return out.String()
	}
	for _, x := range []struct {
		model string
		calls int
		final string
	}{
		{"panel", 3, ""}, {"debate", 5, "small-a"}, {"maestro", 5, "cloud"}, {"graph", 4, "cloud"}, {"quorum", 3, "cloud"}, {"nested", 3, "cloud"},
	} {
		for _, stream := range []bool{false, true} {
			r, a := ask(x.model, stream)
			calls := a.thaw.Calls
			if len(calls) != x.calls || a.text == "" || a.finish != "stop" {
				t.Fatalf("%s: %+v\n%s", x.model, a, r.body)
			}
			prompt, completion := 0, 0
			for _, c := range calls {
				prompt, completion = prompt+int(c.Prompt), completion+int(c.Completion)
				if (c.Error != "") != (c.Member == "dead") || c.Final != (x.final != "" && c == calls[len(calls)-1]) || c.Final && c.Member != x.final {
					t.Errorf("%s: %+v", x.model, c)
				}
			}
			if a.usage.Prompt != prompt || a.usage.Completion != completion || prompt == 0 ||
				x.final == "cloud" && a.text != "The cloud's synthesis." {
				t.Errorf("%s: %+v", x.model, a)
			}
			if agree := a.thaw.Agreement; x.model == "panel" && (!agree.Exact || agree.Agree != 2 || agree.Answers != 3) {
				t.Errorf("the models are one, and do not agree: %+v", agree)
			}
			if want := map[string]string{"panel": ": thaw state=answered", "maestro": "reasoning_content"}[x.model]; stream && want != "" && !strings.Contains(r.body, want) {
				t.Errorf("%s shows nothing: %s", x.model, r.body)
			}
			text := verb("explain", r.header.Get("x-request-id"))
			if !strings.HasPrefix(text, x.model+": ") || strings.Count(text, "|")/2 != x.calls || strings.Contains(text, "Hello") {
				t.Errorf("%s", text)
			}
		}
	}
	if r := p.do("POST", "/v1/chat/completions", chatBody("broken", "")); r.status != 503 && r.status != 502 ||
		!strings.Contains(r.body, "The Composition `broken` has no answer: ") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if list := p.do("GET", "/v1/models", "").body; strings.Count(list, `"owned_by":"composition"`) != 7 {
		t.Errorf("%s", list)
	}
	if text := verb("run", "graph", "Hello"); !strings.Contains(text, "The cloud's synthesis.") {
		t.Errorf("%s", text)
	}
	if log := p.log.String(); !strings.Contains(log, "parent=") && !strings.Contains(log, `"parent":`) || strings.Contains(log, "Hello") {
		t.Error("the log lacks the parent, or it has the prompt")
	}
}

// TestCompositionClients: every client calls a Composition like a model, plain and streamed,
// whether its answer is that of the members or the coordinator's.
func TestCompositionClients(t *testing.T) {
	t.Parallel()
	cloud := newThinker(t)
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "a", ""), "cloud.yaml": cloud.file("cloud", cloud.URL, ""), "other.yaml": cloud.file("other", cloud.URL, ""),
		"agreed.yaml":  compositionFile("agreed", "pattern: ensemble, members: [cloud, other], coordinator: a"),
		"written.yaml": compositionFile("written", "pattern: ensemble, members: [a, cloud], coordinator: a"),
	})
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			for _, model := range []string{"agreed", "written"} {
				do := k.open(t, p.url+"/v1", "none", model, model)
				for _, name := range []string{"cold_stream", "cold_plain"} {
					s, err := do(t.Context(), name)
					if err != nil || s.Failed != "" || s.Error != nil || s.Text == "" || s.Usage == 0 || s.Finish != "stop" && s.Finish != "length" {
						t.Errorf("%s, %s: %+v, %v", model, name, s, err)
					}
				}
			}
		})
	}
}

// TestCompositionTakesTurns: of two models on one GPU each is loaded once, the second when
// the first has answered. Its bytes are staged before.
func TestCompositionTakesTurns(t *testing.T) {
	t.Parallel()
	const gpu = "resources: {gpus: 1}\n"
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "small-a", gpu), "b.yaml": tiny(t, "small-b", gpu),
		"panel.yaml": compositionFile("panel", "pattern: ensemble, members: [small-a, small-b], coordinator: small-b"),
	}, "--gpus", "1")
	a := readComposedAnswer(t, p.do("POST", "/v1/chat/completions", `{"model":"panel","stream":true,"temperature":0,"messages":[{"role":"user","content":"Hello"}]}`))
	calls := a.thaw.Calls
	if len(calls) != 2 || !calls[0].Cold || !calls[1].Cold || calls[1].Start < calls[0].Start+calls[0].Duration ||
		calls[0].ColdStart == calls[1].ColdStart || a.text == "" {
		t.Errorf("%+v", a)
	}
	if n := len(p.items("/api/v1/coldstarts")); n != 2 {
		t.Errorf("%d cold starts, want one of each model", n)
	}
	p.eventually("the second model is staged, for the time in which the first one works", func() bool {
		return strings.Contains(p.do("GET", "/metrics", "").body, `thaw_prewarms_total{result="fetched"} 1`) &&
			slices.ContainsFunc(p.items("/api/v1/events"), func(e map[string]any) bool {
				return e["kind"] == "prewarm" && e["function"] == "default/small-b" && e["message"] == functions.PrewarmDisk
			})
	})
}

// TestCompositionOnAgents: members are on the machines of agents, as many at once as fit there,
// and each is loaded once. When an agent is killed under a batch each line has one entry.
func TestCompositionOnAgents(t *testing.T) {
	t.Parallel()
	files := map[string]string{"panel.yaml": compositionFile("panel", "pattern: ensemble, members: [a, b, c, d], coordinator: a, quorum: 4, patience: 5m")}
	for _, name := range []string{"a", "b", "c", "d"} {
		// The batch waits for as long as a model that others have used may be idle.
		files[name+".yaml"] = tiny(t, name, "args: [--token-delay, 20ms]\nresources: {memory: 2Gi}\nscale: {idle: 3s}")
	}
	p := spawn(t, files, "--memory", "1Gi")
	kill := p.agent("second", "--memory", "3Gi")
	p.agent("third", "--memory", "5Gi")
	p.eventually("three nodes", func() bool { return len(p.items("/api/v1/nodes")) == 3 })
	a := readComposedAnswer(t, p.do("POST", "/v1/chat/completions", `{"model":"panel","stream":true,"temperature":0,"messages":[{"role":"user","content":"Hello"}]}`))
	calls := a.thaw.Calls
	if len(calls) != 4 || a.text == "" {
		t.Fatalf("%+v", a)
	}
	first := min(calls[0].Start+calls[0].Duration, calls[1].Start+calls[1].Duration, calls[2].Start+calls[2].Duration)
	if calls[2].Start >= first || calls[3].Start < first {
		t.Errorf("three fit at once, and the fourth when one has answered: %+v", calls)
	}
	if n := len(p.items("/api/v1/coldstarts")); n != 4 {
		t.Errorf("%d cold starts, want one of each model", n)
	}
	made := p.createBatch(p.upload(batchLines("line", 80, "a", "b")))
	p.eventually("lines have ended", func() bool { return p.batch("GET", "/v1/batches/"+made.ID, "").Counts.Completed >= 10 })
	kill()
	b := p.ended(made.ID)
	if out := p.entries(b.OutputFileID); b.Status != "completed" || b.Counts.Completed != 80 || len(out) != 80 {
		t.Errorf("%+v, %d lines in the output", b, len(out))
	}
}

// TestCompositionIsLeft: the client leaves a debate in its second round, and every call has
// ended a moment later.
func TestCompositionIsLeft(t *testing.T) {
	t.Parallel()
	cloud := newThinker(t)
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "small-a", ""), "cloud.yaml": cloud.file("cloud", cloud.URL, ""), "again.yaml": cloud.file("again", cloud.URL, ""),
		"debate.yaml": compositionFile("debate", "pattern: debate, members: [cloud, again], coordinator: small-a, rounds: 2"),
	})
	for _, stream := range []string{"false", "true"} {
		cloud.hang("of another model")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			res, err := newRequest(ctx, p.url+"/v1/chat/completions", strings.NewReader(`{"model":"debate","stream":`+stream+`,"messages":[{"role":"user","content":"Which is `+stream+`?"}]}`))
			if err == nil {
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		}()
		p.eventually("the second round has begun", func() bool {
			cloud.mu.Lock()
			defer cloud.mu.Unlock()
			n := 0
			for _, b := range cloud.bodies {
				if strings.Contains(b, "of another model") && strings.Contains(b, "Which is "+stream) {
					n++
				}
			}
			return n == 2
		})
		cancel()
		left := time.Now()
		for range 2 {
			select {
			case <-cloud.left:
			case <-time.After(patience):
				t.Fatal("a call goes on")
			}
		}
		t.Logf("both calls ended after %v", time.Since(left))
		<-done
	}
}
