package ember

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

const sample = `The model sleeps at rest until somebody asks. A request comes in, the engine starts, and an answer is told word by word. Cold starts are short when the weights are near. One two three four five six seven eight nine ten. It is warm today and cold at night; don't worry, we'll see.`

var shape = checkpoint.Shape{Hidden: 64, Inter: 128, Layers: 2, Heads: 4, KVHeads: 2, Learned: 300, MaxPos: 512}

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// folder makes a small random checkpoint.
func folder(t testing.TB, s checkpoint.Shape) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := checkpoint.Folder(dir, s, sample, 7); err != nil {
		t.Fatal(err)
	}
	return dir
}

// process is a running engine.
type process struct {
	url   string
	stop  context.CancelFunc
	ended chan error // gets Run's result, once
}

// launch runs an engine; it need not be ready yet.
func launch(t testing.TB, o Options) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	addr := make(chan string, 1)
	p := &process{stop: cancel, ended: make(chan error, 1)}
	o.Listening = func(a string) { addr <- a }
	go func() { p.ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-p.ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testTimeout):
			t.Error("the engine did not end")
		}
	})
	p.url = "http://" + <-addr
	return p
}

// start runs an engine and returns its address when it is ready.
func start(t testing.TB, o Options) string {
	t.Helper()
	p := launch(t, o)
	p.waitReady(t)
	return p.url
}

func (p *process) waitReady(t testing.TB) {
	testkit.Eventually(t, "the engine is ready", func() bool { code, _ := getText(t, p.url+"/health"); return code == 200 })
}

// testTimeout bounds the wait for what must happen, on whatever machine.
const testTimeout = time.Minute

func getText(t testing.TB, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func postText(t testing.TB, url, body string) (int, string) {
	t.Helper()
	r, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// reply is any answer, as a client decodes it.
type reply struct {
	ID, Object, Model string
	Choices           []struct {
		Text    string
		Message struct{ Role, Content string }
		Delta   struct {
			Role    string
			Content *string
		}
		Logprobs *struct {
			Tokens        []string
			TokenLogprobs []float64            `json:"token_logprobs"`
			TextOffset    []int                `json:"text_offset"`
			TopLogprobs   []map[string]float64 `json:"top_logprobs"`
			Content       []struct {
				Token       string
				Logprob     float64
				Bytes       []int
				TopLogprobs []struct{ Logprob float64 } `json:"top_logprobs"`
			}
		}
		Finish *string `json:"finish_reason"`
		Stop   any     `json:"stop_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	Error *struct {
		Message, Type string
		Param, Code   *string
	}
}

func parseReply(t testing.TB, b string) (r reply) {
	t.Helper()
	if err := json.Unmarshal([]byte(b), &r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return r
}

func postJSON(t testing.TB, url, path, body string) reply {
	t.Helper()
	code, b := postText(t, url+path, body)
	if code != 200 {
		t.Fatalf("%s %s: %d %s", path, body, code, b)
	}
	return parseReply(t, b)
}

// events splits a stream; done says whether [DONE] came last.
func events(t testing.TB, b string) (rs []reply, done bool) {
	t.Helper()
	for _, e := range strings.Split(strings.TrimSuffix(b, "\n\n"), "\n\n") {
		d, ok := strings.CutPrefix(e, "data: ")
		if !ok || done {
			t.Fatalf("event %q", e)
		}
		if done = d == "[DONE]"; !done {
			rs = append(rs, parseReply(t, d))
		}
	}
	return rs, done
}

const (
	textPath = "/v1/completions"
	chatPath = "/v1/chat/completions"
)

func TestAnswersAndStreamsAgree(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape), Names: []string{"tiny", "other"}})
	text := `"prompt":"The model","max_tokens":12,"temperature":0`
	talk := `"messages":[{"role":"user","content":"The model"}],"max_completion_tokens":12,"temperature":0,"model":"other"`

	whole := postJSON(t, url, textPath, `{`+text+`}`)
	if whole.Object != "text_completion" || whole.Model != "tiny" || !strings.HasPrefix(whole.ID, "cmpl-") ||
		*whole.Choices[0].Finish != "length" {
		t.Errorf("completion: %+v", whole)
	}
	if u := whole.Usage; u.Completion != 12 || u.Total != u.Prompt+12 || u.Prompt == 0 {
		t.Errorf("usage: %+v", u)
	}
	_, b := postText(t, url+textPath, `{`+text+`,"stream":true,"stream_options":{"include_usage":true}}`)
	rs, done := events(t, b)
	if !done {
		t.Error("no [DONE]")
	}
	joined := ""
	for _, r := range rs[:len(rs)-1] {
		joined += r.Choices[0].Text
	}
	last := rs[len(rs)-1]
	if len(last.Choices) != 0 || *last.Usage != *whole.Usage {
		t.Errorf("last chunk: %+v", last)
	}
	if rs[len(rs)-2].Choices[0].Finish == nil {
		t.Error("no finish_reason")
	}
	if joined != whole.Choices[0].Text {
		t.Errorf("stream said %q, plain %q", joined, whole.Choices[0].Text)
	}

	req, _ := http.NewRequest("POST", url+chatPath, strings.NewReader(`{`+talk+`,"stream":true}`))
	req.Header.Set("X-Request-Id", "abc-1")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if ct := res.Header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
		t.Error(ct)
	}
	rs, done = events(t, string(raw))
	first := rs[0].Choices[0]
	if !done || first.Delta.Role != "assistant" || first.Delta.Content == nil || *first.Delta.Content != "" || first.Finish != nil {
		t.Errorf("first chunk: %s", raw)
	}
	joined = ""
	for _, r := range rs {
		if r.ID != "chatcmpl-abc-1" || r.Object != "chat.completion.chunk" || r.Usage != nil || r.Model != "other" {
			t.Errorf("chunk: %+v", r)
		}
		joined += *r.Choices[0].Delta.Content
	}
	w := postJSON(t, url, chatPath, `{`+talk+`}`)
	if m := w.Choices[0].Message; m.Role != "assistant" || m.Content != joined || w.Object != "chat.completion" {
		t.Errorf("plain %+v, stream %q", w, joined)
	}
}

func TestBadRequests(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape), Names: []string{"tiny"}})
	user := `"messages":[{"role":"user","content":"x"}]`
	for _, c := range []struct {
		path, body  string
		status      int
		code, param string
	}{
		{textPath, `{`, 400, "invalid_json", ""},
		{textPath, `[]`, 400, "invalid_type", ""},
		{textPath, `{"prompt":"x","temperature":"hot"}`, 400, "invalid_type", "temperature"},
		{textPath, `{}`, 400, "missing_required_parameter", "prompt"},
		{textPath, `{"prompt":""}`, 400, "invalid_value", "prompt"},
		{textPath, `{"prompt":[]}`, 400, "invalid_type", "prompt"},
		{textPath, `{"prompt":{}}`, 400, "invalid_type", "prompt"},
		{textPath, `{"prompt":["a","b"]}`, 400, "invalid_value", "prompt"},
		{textPath, `{"prompt":[1,-2]}`, 400, "invalid_value", "prompt"},
		{textPath, `{"prompt":[99999]}`, 400, "invalid_value", "prompt"},
		{textPath, `{"prompt":[1.5]}`, 400, "invalid_type", "prompt"},
		{textPath, `{"prompt":"x","model":"y"}`, 404, "model_not_found", "model"},
		{textPath, `{"prompt":"x","n":2}`, 400, "invalid_value", "n"},
		{textPath, `{"prompt":"x","best_of":2}`, 400, "invalid_value", "best_of"},
		{textPath, `{"prompt":"x","temperature":-1}`, 400, "invalid_value", "temperature"},
		{textPath, `{"prompt":"x","top_p":0}`, 400, "invalid_value", "top_p"},
		{textPath, `{"prompt":"x","top_p":1.1}`, 400, "invalid_value", "top_p"},
		{textPath, `{"prompt":"x","top_k":-2}`, 400, "invalid_value", "top_k"},
		{textPath, `{"prompt":"x","min_p":2}`, 400, "invalid_value", "min_p"},
		{textPath, `{"prompt":"x","presence_penalty":3}`, 400, "invalid_value", "presence_penalty"},
		{textPath, `{"prompt":"x","frequency_penalty":-3}`, 400, "invalid_value", "frequency_penalty"},
		{textPath, `{"prompt":"x","repetition_penalty":0}`, 400, "invalid_value", "repetition_penalty"},
		{textPath, `{"prompt":"x","max_tokens":0}`, 400, "invalid_value", "max_tokens"},
		{textPath, `{"prompt":"x","max_tokens":2,"min_tokens":3}`, 400, "invalid_value", "min_tokens"},
		{textPath, `{"prompt":"x","max_tokens":600}`, 400, "context_length_exceeded", "max_tokens"},
		{textPath, `{"prompt":"` + strings.Repeat("x y ", 400) + `"}`, 400, "context_length_exceeded", "input_tokens"},
		{textPath, `{"prompt":"` + strings.Repeat("x y ", 400000) + `"}`, 400, "context_length_exceeded", "input_tokens"},
		{chatPath, `{"messages":[{"role":"user","content":"` + strings.Repeat("x y ", 400000) + `"}]}`, 400, "context_length_exceeded", "input_tokens"},
		{"/v1/embeddings", `{"input":["a","` + strings.Repeat("x y ", 400) + `"]}`, 400, "context_length_exceeded", "input_tokens"},
		{textPath, `{"prompt":"x","stop":""}`, 400, "invalid_value", "stop"},
		{textPath, `{"prompt":"x","stop":5}`, 400, "invalid_type", "stop"},
		{textPath, `{"prompt":"x","stop":[1]}`, 400, "invalid_type", "stop"},
		{textPath, `{"prompt":"x","stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}`, 400, "invalid_type", "stop"},
		{textPath, `{"prompt":"x","logprobs":true}`, 400, "invalid_type", "logprobs"},
		{textPath, `{"prompt":"x","logprobs":21}`, 400, "invalid_value", "logprobs"},
		{textPath, `{"prompt":"x","logit_bias":{"a":1}}`, 400, "invalid_value", "logit_bias"},
		{textPath, `{"prompt":"x","logit_bias":{"1":101}}`, 400, "invalid_value", "logit_bias"},
		{textPath, `{"prompt":"x","suffix":"y"}`, 400, "unsupported_parameter", "suffix"},
		{textPath, `{"prompt":"x","echo":true,"logprobs":1}`, 400, "unsupported_parameter", "echo"},
		{textPath, `{"prompt":"x","stream_options":{"include_usage":true}}`, 400, "invalid_value", "stream_options"},
		{chatPath, `{}`, 400, "missing_required_parameter", "messages"},
		{chatPath, `{"messages":[{"content":"x"}]}`, 400, "missing_required_parameter", "messages[0].role"},
		{chatPath, `{"messages":[{"role":"king","content":"x"}]}`, 400, "invalid_value", "messages[0].role"},
		{chatPath, `{"messages":[{"role":"user","content":5}]}`, 400, "invalid_type", "messages[0].content"},
		{chatPath, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, 400, "unsupported_parameter", "messages[0].content"},
		{chatPath, `{` + user + `,"logprobs":1}`, 400, "invalid_type", "logprobs"},
		{chatPath, `{` + user + `,"top_logprobs":2}`, 400, "invalid_value", "top_logprobs"},
		{chatPath, `{` + user + `,"logprobs":true,"top_logprobs":21}`, 400, "invalid_value", "top_logprobs"},
		{chatPath, `{` + user + `,"tool_choice":"required"}`, 400, "unsupported_parameter", "tool_choice"},
		{chatPath, `{` + user + `,"functions":[{"name":"f"}],"function_call":{"name":"f"}}`, 400, "unsupported_parameter", "function_call"},
		{chatPath, `{` + user + `,"response_format":{"type":"json_object"}}`, 400, "unsupported_parameter", "response_format"},
		{"/v1/embeddings", `{}`, 400, "missing_required_parameter", "input"},
		{"/v1/embeddings", `{"input":"x","encoding_format":"hex"}`, 400, "invalid_value", "encoding_format"},
		{"/v1/embeddings", `{"input":"x","dimensions":3}`, 400, "unsupported_parameter", "dimensions"},
		{"/v1/embeddings", `{"input":["x",""]}`, 400, "invalid_value", "input"},
		{"/v1/nothing", `{}`, 404, "unknown_endpoint", ""},
		{"/health", `{}`, 405, "method_not_allowed", ""},
		{"/v1/models", `{}`, 405, "method_not_allowed", ""},
	} {
		status, b := postText(t, url+c.path, c.body)
		e := parseReply(t, b).Error
		if e == nil || status != c.status || *cmpOr(e.Code) != c.code || *cmpOr(e.Param) != c.param || e.Message == "" || e.Type == "" {
			t.Errorf("%s %.80s: %d %s", c.path, c.body, status, b)
		}
	}
	for _, c := range []struct{ path, body, want string }{
		{chatPath, `{` + user + `,"temperature":"0.7"}`, "`temperature` is a string, not a number"},
		{chatPath, `{` + user + `,"seed":true}`, "`seed` is true, not a whole number"},
		{chatPath, `{` + user + `,"logit_bias":[1]}`, "`logit_bias` is a list, not an object"},
		{chatPath, `{` + user + `,"ignore_eos":1}`, "`ignore_eos` is a number, not true or false"},
		{chatPath, `{"messages":"hi"}`, "`messages` is a string, not a list"},
		{chatPath, `{"messages":[["user","x"]]}`, "`messages/0` is a list, not an object"},
		{chatPath, `{"prompt":"x"}`, "a prompt belongs to /v1/completions"},
		{chatPath, `{"messages":[{"role":"user","content":[{"type":"text"}]}]}`, `a part of type \"text\" has no text`},
		{textPath, `{` + user + `}`, "messages belong to /v1/chat/completions"},
		{textPath, `{"prompt":"x","suffix":"y"}`, "suffix is not supported by the engine ember: leave it out"},
		{textPath, `{"prompt":"x","n":2}`, "n is 2, and the engine ember takes 1 alone"},
	} {
		if _, b := postText(t, url+c.path, c.body); !strings.Contains(b, c.want) {
			t.Errorf("%s %.80s: %s, without %q", c.path, c.body, b, c.want)
		}
	}
	if status, b := postText(t, url+textPath, `{"prompt":"`+strings.Repeat("x", maxBody)+`"}`); status != 413 || *parseReply(t, b).Error.Code != "request_too_large" {
		t.Errorf("too large: %d %s", status, b)
	}
	r, err := http.Post(url+textPath, "text/plain", strings.NewReader(`{"prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != 400 {
		t.Errorf("text/plain: %d", r.StatusCode)
	}
}

func cmpOr(s *string) *string {
	if s == nil {
		return new(string)
	}
	return s
}

// Bodies that real clients send and that must be taken.
func TestToleratedFields(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape)})
	for _, c := range [][2]string{
		{textPath, `{"prompt":"x","model":"","max_tokens":1,"user":"me","unheard_of":{"a":[1]}}`},
		{textPath, `{"prompt":"x","model":null,"max_tokens":1,"seed":null,"stop":null,"n":1,"logprobs":null}`},
		{textPath, `{"prompt":"a","prompt":"b","max_tokens":1}`},
		{textPath, `{"prompt":["x"],"max_tokens":1}`},
		{textPath, `{"prompt":[[1,2,3]],"max_tokens":1}`},
		{chatPath, `{"messages":[{"role":"developer","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"max_tokens":1}`},
		{chatPath, `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"7"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"tool_choice":"auto","max_tokens":1}`},
		{chatPath, `{"messages":[{"role":"user","content":"x"}],"logprobs":false,"response_format":{"type":"text"},"max_completion_tokens":1,"max_tokens":100000}`},
	} {
		if code, b := postText(t, url+c[0], c[1]); code != 200 {
			t.Errorf("%s: %d %s", c[1], code, b)
		}
	}
}

func TestSamplingOptions(t *testing.T) {
	dir := folder(t, shape)
	url := start(t, Options{Model: dir})
	request := func(more string) reply {
		return postJSON(t, url, textPath, `{"prompt":"The model","max_tokens":10,`+more+`}`)
	}
	hot := `"temperature":1.5,`
	if a, b := request(hot+`"seed":5`), request(hot+`"seed":5`); a.Choices[0].Text != b.Choices[0].Text {
		t.Errorf("the same seed said %q and %q", a.Choices[0].Text, b.Choices[0].Text)
	}
	if a, b := request(hot+`"seed":5`), request(hot+`"seed":6`); a.Choices[0].Text == b.Choices[0].Text {
		t.Error("two seeds said the same")
	}
	greedy := request(`"temperature":0`).Choices[0].Text
	for _, more := range []string{hot + `"top_k":1`, hot + `"top_p":0.000001`, hot + `"min_p":1`} {
		if a := request(more).Choices[0].Text; a != greedy {
			t.Errorf("%s said %q, want the most likely %q", more, a, greedy)
		}
	}
	// The first token, forced.
	if a := request(`"temperature":0,"logit_bias":{"33":100},"max_tokens":3`).Choices[0].Text; a != "BBB" {
		t.Errorf("bias: %q", a)
	}
	if a := request(`"temperature":0,"logit_bias":{"33":100},"stop_token_ids":[33]`); *a.Choices[0].Finish != "stop" || a.Choices[0].Stop != 33.0 || a.Usage.Completion != 1 || a.Choices[0].Text != "" {
		t.Errorf("stop_token_ids: %+v", a)
	}
	if a := request(`"temperature":0,"logit_bias":{"33":100},"stop":["BB"]`); a.Choices[0].Text != "" || a.Choices[0].Stop != "BB" || *a.Choices[0].Finish != "stop" || a.Usage.Completion != 2 {
		t.Errorf("stop: %+v", a)
	}
	if a := request(`"temperature":0,"logit_bias":{"33":100},"stop":"BB","include_stop_str_in_output":true`); a.Choices[0].Text != "BB" {
		t.Errorf("include_stop: %+v", a)
	}
	// The end mark (im_end is the third special token of the random checkpoint).
	tok, err := bpe.Load(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	id, _ := tok.Find("<|im_end|>")
	bias := `"temperature":0,"logit_bias":{"` + strconv.Itoa(id) + `":100}`
	if a := request(bias); *a.Choices[0].Finish != "stop" || a.Choices[0].Stop != nil || a.Choices[0].Text != "" || a.Usage.Completion != 1 {
		t.Errorf("end mark: %+v", a)
	}
	if a := request(bias + `,"ignore_eos":true`); *a.Choices[0].Finish != "length" || a.Usage.Completion != 10 {
		t.Errorf("ignore_eos: %+v", a)
	}
	if a := request(bias + `,"min_tokens":4`); *a.Choices[0].Finish != "stop" || a.Usage.Completion != 5 {
		t.Errorf("min_tokens: %+v", a)
	}
	if a := request(`"temperature":0,"echo":true`).Choices[0].Text; a != "The model"+greedy {
		t.Errorf("echo: %q", a)
	}
}

func TestLogprobs(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape)})
	a := postJSON(t, url, textPath, `{"prompt":"The","max_tokens":4,"temperature":0,"logprobs":3}`).Choices[0].Logprobs
	if len(a.Tokens) != 4 || len(a.TokenLogprobs) != 4 || len(a.TextOffset) != 4 || len(a.TopLogprobs) != 4 {
		t.Fatalf("%+v", a)
	}
	for i, p := range a.TokenLogprobs {
		for _, q := range a.TopLogprobs[i] {
			if q > p+1e-9 || p > 0 {
				t.Errorf("greedy token %d has %v, another %v", i, p, q)
			}
		}
	}
	_, raw := postText(t, url+chatPath, `{"messages":[{"role":"user","content":"x"}],"max_tokens":4,"temperature":0,"logprobs":true,"top_logprobs":2,"stream":true}`)
	rs, _ := events(t, raw)
	n := 0
	for _, r := range rs {
		if l := r.Choices[0].Logprobs; l != nil {
			for _, c := range l.Content {
				n++
				if len(c.TopLogprobs) != 2 || c.TopLogprobs[0].Logprob != c.Logprob || c.TopLogprobs[1].Logprob > c.Logprob || len(c.Bytes) == 0 {
					t.Errorf("%+v", c)
				}
			}
		}
	}
	if n != 4 {
		t.Errorf("%d scores for 4 tokens", n)
	}
	plain := postJSON(t, url, chatPath, `{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"logprobs":true}`)
	if c := plain.Choices[0].Logprobs.Content; len(c) != 2 || len(c[0].TopLogprobs) != 0 {
		t.Errorf("%+v", c)
	}
}

// What one client gets must not depend on who else is served, nor on how prompts
// are cut into pieces.
func TestBatchMatchesSingle(t *testing.T) {
	dir := folder(t, shape)
	url := start(t, Options{Model: dir, MaxSeqs: 5, MaxBatch: 7})
	alone := start(t, Options{Model: dir, MaxSeqs: 1, MaxBatch: 300, Threads: 1})
	body := func(i int) string {
		return fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"temperature":0.8,"seed":%d,"ignore_eos":true}`, strings.Repeat("word by word ", 1+i*3), 5+i*3, i)
	}
	var wg sync.WaitGroup
	got := make([]string, 12)
	for i := range got {
		wg.Go(func() {
			r, err := http.Post(url+textPath, "application/json", strings.NewReader(body(i)))
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			b, _ := io.ReadAll(r.Body)
			got[i] = string(b)
		})
	}
	wg.Wait()
	for i := range got {
		want := postJSON(t, alone, textPath, body(i))
		if a := parseReply(t, got[i]); len(a.Choices) != 1 || a.Choices[0].Text != want.Choices[0].Text {
			t.Errorf("%d: together %s, alone %q", i, got[i], want.Choices[0].Text)
		}
	}
}

func TestEmbeddings(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape)})
	type vectors struct {
		Data []struct {
			Index     int
			Embedding json.RawMessage
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	embed := func(body string) (out [][]float32, v vectors) {
		code, b := postText(t, url+"/v1/embeddings", body)
		if code != 200 {
			t.Fatal(code, b)
		}
		if err := json.Unmarshal([]byte(b), &v); err != nil {
			t.Fatal(err)
		}
		for i, d := range v.Data {
			var f []float32
			var s string
			if json.Unmarshal(d.Embedding, &s) == nil {
				raw, err := base64.StdEncoding.DecodeString(s)
				if err != nil {
					t.Fatal(err)
				}
				for ; len(raw) > 0; raw = raw[4:] {
					f = append(f, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
				}
			} else if err := json.Unmarshal(d.Embedding, &f); err != nil {
				t.Fatal(err)
			}
			if d.Index != i || len(f) != shape.Hidden {
				t.Errorf("index %d, %d numbers", d.Index, len(f))
			}
			out = append(out, f)
		}
		return out, v
	}
	a, v := embed(`{"input":["The model sleeps","cold"]}`)
	b, _ := embed(`{"input":"The model sleeps","encoding_format":"base64"}`)
	if len(a) != 2 || !slices.Equal(a[0], b[0]) || slices.Equal(a[0], a[1]) || v.Usage.Prompt < 2 {
		t.Errorf("%v %v", a, b)
	}
	var n float64
	for _, x := range a[0] {
		n += float64(x) * float64(x)
	}
	if math.Abs(n-1) > 1e-5 {
		t.Errorf("length %v", n)
	}
	c, _ := embed(`{"input":[[40,41],[42]]}`)
	if len(c) != 2 {
		t.Errorf("%d", len(c))
	}
}

// TestRender: a chat's messages become the template's text, with its special tokens.
func TestRender(t *testing.T) {
	m, err := loadModel(t.Context(), &Options{Model: folder(t, shape)}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer m.model.Close()
	ids, f := m.render([]message{{Role: "user", Content: []byte(`"x"`)}})
	if text := m.tok.Decode(ids); f != nil || text != "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n" {
		t.Errorf("%q, %v", text, f)
	}
}

func TestModelsVersionMetrics(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape), Names: []string{"a", "b"}})
	if code, b := getText(t, url+"/v1/models"); code != 200 || !strings.Contains(b, `"id":"a"`) || !strings.Contains(b, `"id":"b"`) || !strings.Contains(b, `"max_model_len":512`) {
		t.Error(code, b)
	}
	if code, b := getText(t, url+"/v1/models/b"); code != 200 || !strings.Contains(b, `"id":"b"`) {
		t.Error(code, b)
	}
	if code, _ := getText(t, url+"/v1/models/c"); code != 404 {
		t.Error(code)
	}
	if code, b := getText(t, url+"/version"); code != 200 || !strings.Contains(b, `"version":"ember `) {
		t.Error(code, b)
	}
	postJSON(t, url, textPath, `{"prompt":"x","max_tokens":3,"temperature":0,"ignore_eos":true}`)
	// What its cache held is counted once the step is over, and the answer does not wait.
	testkit.Eventually(t, "its cache is free", func() bool { return metric(t, url, "kv_cache_usage_perc") == "0" })
	_, b := getText(t, url+"/metrics")
	for _, want := range []string{
		`vllm:num_requests_running{model_name="a"} 0`, `vllm:num_requests_waiting{model_name="a"} 0`, `vllm:kv_cache_usage_perc{model_name="a"} 0`,
		`vllm:prompt_tokens_total{model_name="a"} 1`, `vllm:generation_tokens_total{model_name="a"} 3`,
		`vllm:request_success_total{finished_reason="length",model_name="a"} 1`, `vllm:request_success_total{finished_reason="stop",model_name="a"} 0`,
		`vllm:time_to_first_token_seconds_count{model_name="a"} 1`, `vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="a"} 1`, `vllm:e2e_request_latency_seconds_count{model_name="a"} 1`,
	} {
		if !strings.Contains(b, want+"\n") {
			t.Errorf("no %s in\n%s", want, b)
		}
	}
}

func metric(t *testing.T, url, name string) string {
	_, b := getText(t, url+"/metrics")
	m := regexp.MustCompile(`(?m)^vllm:` + name + `\{[^}]*\} (\S+)$`).FindStringSubmatch(b)
	if m == nil {
		return ""
	}
	return m[1]
}

// A client that leaves, waiting or streaming, frees its place.
func TestClientsDisconnect(t *testing.T) {
	// Slow enough that none is over before it leaves.
	url := start(t, Options{Model: folder(t, shape), MaxSeqs: 1, TokenDelay: 50 * time.Millisecond})
	body := `{"prompt":"x","max_tokens":500,"ignore_eos":true,"stream":true}`
	var cancels []context.CancelFunc
	var wg sync.WaitGroup
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		cancels = append(cancels, cancel)
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "POST", url+textPath, strings.NewReader(body))
			if r, err := http.DefaultClient.Do(req); err == nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
	testkit.Eventually(t, "one runs, two wait", func() bool {
		return metric(t, url, "num_requests_running") == "1" && metric(t, url, "num_requests_waiting") == "2"
	})
	testkit.Eventually(t, "the running sequence holds something", func() bool { return metric(t, url, "kv_cache_usage_perc") != "0" })
	for _, l := range cancels {
		l()
	}
	wg.Wait()
	testkit.Eventually(t, "all places are free", func() bool {
		return metric(t, url, "num_requests_running") == "0" && metric(t, url, "num_requests_waiting") == "0"
	})
	if n := metric(t, url, "generation_tokens_total"); len(n) > 3 {
		t.Errorf("%s tokens were made for nobody", n)
	}
}

func TestQueueIsBounded(t *testing.T) {
	url := start(t, Options{Model: folder(t, shape), MaxSeqs: 1, MaxQueued: 1, TokenDelay: 50 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	hold := func() {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "POST", url+textPath, strings.NewReader(`{"prompt":"x","max_tokens":500,"ignore_eos":true}`))
			if r, err := http.DefaultClient.Do(req); err == nil {
				r.Body.Close()
			}
		})
	}
	hold()
	testkit.Eventually(t, "one runs", func() bool { return metric(t, url, "num_requests_running") == "1" })
	hold()
	testkit.Eventually(t, "one waits", func() bool { return metric(t, url, "num_requests_waiting") == "1" })
	code, b := postText(t, url+textPath, `{"prompt":"x"}`)
	if e := parseReply(t, b).Error; code != 503 || *e.Code != "queue_full" {
		t.Error(code, b)
	}
}

func TestLoadingProgress(t *testing.T) {
	p := launch(t, Options{Model: folder(t, shape), ReadyDelay: time.Hour})
	for _, path := range []string{"/health", "/v1/models"} {
		if code, _ := getText(t, p.url+path); code != 503 {
			t.Errorf("%s while loading: %d", path, code)
		}
	}
	code, b := postText(t, p.url+textPath, `{"prompt":"x"}`)
	if e := parseReply(t, b).Error; code != 503 || *e.Code != "model_loading" {
		t.Error(code, b)
	}
	if code, _ := getText(t, p.url+"/metrics"); code != 200 {
		t.Errorf("metrics while loading: %d", code)
	}

	sock := filepath.Join(t.TempDir(), "n")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: sock, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p = launch(t, Options{Model: folder(t, shape), ReadyDelay: 100 * time.Millisecond, NotifySocket: sock})
	c.SetReadDeadline(time.Now().Add(testTimeout))
	var said []string
	buf := make([]byte, 256)
	for {
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err, said)
		}
		said = append(said, string(buf[:n]))
		if strings.HasPrefix(said[len(said)-1], "READY=1\n") {
			break
		}
	}
	if said[0] != "STATUS=loading percent=0\n" || said[len(said)-2] != "STATUS=loading percent=100\n" {
		t.Errorf("%q", said)
	}
	// Ready was pushed, so the next question must be answered.
	if code, _ := getText(t, p.url+"/health"); code != 200 {
		t.Errorf("health after READY: %d", code)
	}
}

// stream opens a long answer and returns its first line's reader.
func openStream(t *testing.T, url string, n int) (*http.Response, *bufio.Reader) {
	t.Helper()
	r, err := http.Post(url+textPath, "application/json", strings.NewReader(fmt.Sprintf(`{"prompt":"x","max_tokens":%d,"ignore_eos":true,"stream":true,"logit_bias":{"33":100}}`, n)))
	if err != nil {
		t.Fatal(err)
	}
	b := bufio.NewReader(r.Body)
	if l, err := b.ReadString('\n'); err != nil || !strings.HasPrefix(l, "data: ") {
		t.Fatal(l, err)
	}
	return r, b
}

func TestShutdownCuts(t *testing.T) {
	p := launch(t, Options{Model: folder(t, shape), TokenDelay: 50 * time.Millisecond})
	p.waitReady(t)
	r, body := openStream(t, p.url, 400)
	defer r.Body.Close()
	p.stop()
	remaining, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(remaining); strings.Contains(s, "[DONE]") || !strings.Contains(s, `data: {"error":{"message":"the engine is shutting down"`) {
		t.Errorf("%.300s", s[max(0, len(s)-300):])
	}
}

func TestShutdownDrains(t *testing.T) {
	p := launch(t, Options{Model: folder(t, shape), TokenDelay: 5 * time.Millisecond, ShutdownTimeout: testTimeout})
	p.waitReady(t)
	r, body := openStream(t, p.url, 40)
	defer r.Body.Close()
	p.stop()
	remaining, err := io.ReadAll(body)
	if err != nil || !strings.HasSuffix(string(remaining), "data: [DONE]\n\n") {
		t.Errorf("%v %s", err, remaining)
	}
}

func TestLoadErrors(t *testing.T) {
	edit := func(name string, change func([]byte) []byte) func(string) {
		return func(dir string) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), change(b), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	replaceText := func(name, old, new string) func(string) {
		return edit(name, func(b []byte) []byte {
			if !bytes.Contains(b, []byte(old)) {
				t.Fatalf("%s has no %s", name, old)
			}
			return bytes.Replace(b, []byte(old), []byte(new), 1)
		})
	}
	remove := func(name string) func(string) { return func(dir string) { os.Remove(filepath.Join(dir, name)) } }
	for _, c := range []struct {
		name    string
		corrupt func(dir string)
		want    string // in the last line
	}{
		{"no config", remove("config.json"), "config.json: no such file"},
		{"no weights", remove("model.safetensors"), "error: checkpoint: "},
		{"no tokenizer", remove("tokenizer.json"), "has no tokenizer.json: copy the model's own"},
		{"sentencepiece", func(dir string) {
			if err := os.Rename(filepath.Join(dir, "tokenizer.json"), filepath.Join(dir, "tokenizer.model")); err != nil {
				t.Fatal(err)
			}
		}, "has tokenizer.model and no tokenizer.json, which ember reads alone: AutoTokenizer"},
		{"truncated weights", edit("model.safetensors", func(b []byte) []byte { return b[:len(b)-100] }), "it was cut short"},
		{"truncated header", edit("model.safetensors", func(b []byte) []byte { return b[:50] }), "it was cut short"},
		{"empty weights", edit("model.safetensors", func(b []byte) []byte { return nil }), "0 bytes are too few"},
		{"bytes behind", edit("model.safetensors", func(b []byte) []byte { return append(b, 0) }), "follow the last tensor"},
		{"tensor missing", replaceText("model.safetensors", `"model.norm.weight"`, `"model.nose.weight"`), "tensor model.norm.weight is missing"},
		{"wrong shape", replaceText("config.json", `"intermediate_size": 128`, `"intermediate_size": 64`), "config.json asks for [64 64]"},
		{"wrong dtype", edit("model.safetensors", func(b []byte) []byte { return bytes.Replace(b, []byte(`"dtype":"BF16"`), []byte(`"dtype":"F16" `), 1) }), "dtype F16 is not supported"},
		{"architecture", replaceText("config.json", "LlamaForCausalLM", "MambaForCausalLM"), "architecture MambaForCausalLM is not supported"},
		{"config no JSON", edit("config.json", func(b []byte) []byte { return b[:10] }), "config.json: line 2, column 9: it ends in the middle"},
		{"untied without a head", replaceText("config.json", `"tie_word_embeddings": true`, `"tie_word_embeddings": false`), "tensor lm_head.weight is missing; where the embedding is the head too, config.json has tie_word_embeddings: true"},
		{"a text for a number", replaceText("config.json", `"hidden_size": 64`, `"hidden_size": "64"`), "config.json: `hidden_size` is a string, not a whole number"},
		{"a text for a list", replaceText("config.json", `"architectures": [`, `"architectures": "LlamaForCausalLM", "x": [`), "config.json: `architectures` is a string, not a list"},
		{"a list for rope", replaceText("config.json", `"rope_theta"`, `"rope_scaling": [1], "rope_theta"`), "`rope_scaling` is a list, not an object"},
		{"rope without a factor", replaceText("config.json", `"rope_theta"`, `"rope_scaling": {"type": "linear"}, "rope_theta"`), "rope_scaling linear: factor is 0, "},
		{"eos", replaceText("config.json", `"rope_theta"`, `"eos_token_id": "2", "rope_theta"`), "eos_token_id: it is a string, not a whole number"},
		{"generation config", func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte("{\"temperature\": 0.0,\n}"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "generation_config.json: line 1, column 20: invalid character ','"},
		{"templates", replaceText("tokenizer_config.json", `"chat_template": `, `"chat_template": {"a": 1}, "x": `), "chat_template: is neither a text nor a list of templates"},
		{"no default", replaceText("tokenizer_config.json", `"chat_template": `, `"chat_template": [{"name": "rag", "template": ""}], "x": `), "no template is named default (there are: rag)"},
		{"Unigram", replaceText("tokenizer.json", `"type": "BPE"`, `"type": "Unigram", "vocab": [["a", 0.5]], "x": 1`), `type "Unigram" is not supported`},
		{"rope", replaceText("config.json", `"rope_theta"`, `"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta"`), `rope_scaling "yarn" is not supported`},
		{"quantized", replaceText("config.json", `"rope_theta"`, `"quantization_config": {"bits": 4}, "rope_theta"`), "quantized weights are not supported"},
		{"tokenizer no JSON", edit("tokenizer.json", func(b []byte) []byte { return b[:len(b)/2] }), "vocab: jsontext: unexpected EOF"},
		{"tokenizer kind", replaceText("tokenizer.json", `"type": "BPE"`, `"type": "Unigram"`), `type "Unigram" is not supported`},
		{"tokenizer cut", replaceText("tokenizer.json", `"pre_tokenizer": {`, `"pre_tokenizer": {"type": "Metaspace"}, "x": {`), "pre_tokenizer Metaspace is not supported"},
		{"vocabulary too small", replaceText("config.json", `"vocab_size": `, `"vocab_size": 3, "x": `), "config.json asks for [3 64]"},
		{"template unknown", edit("tokenizer_config.json", func(b []byte) []byte {
			b = bytes.ReplaceAll(b, []byte(`\u003c|im_start|\u003e`), []byte("##"))
			return bytes.ReplaceAll(b, []byte(`<|im_start|>`), []byte("##"))
		}), "chat template of an unknown family"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t, shape)
			c.corrupt(dir)
			var log bytes.Buffer
			code := Main(t.Context(), []string{"--model", dir, "--port", "0"}, func(string) string { return "" }, io.Discard, &log)
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			last := lines[len(lines)-1]
			if code != 1 || !strings.HasPrefix(last, "error: ") || !strings.Contains(last, c.want) {
				t.Errorf("code %d: %s", code, log.String())
			}
		})
	}
}

func TestMainFlags(t *testing.T) {
	none := func(string) string { return "" }
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--nope"}, 2, "error: flag provided but not defined"},
		{[]string{"extra"}, 2, "error: unexpected argument"},
		{[]string{"--port", "x"}, 2, "error: invalid value"},
		{[]string{"--shutdown-timeout", "-1"}, 2, "error: --shutdown-timeout"},
		{[]string{"--enable-lora", "--max-loras", "0"}, 2, "error: --max-loras 0"},
		{nil, 1, "error: no model"},
		{[]string{"--model", "/nowhere", "--port", "0"}, 1, "error: stat /nowhere: no such file"},
		{[]string{"--model", "x", "--max-num-seqs", "-1"}, 1, "error: --max-num-seqs"},
		{[]string{"--model", folder(t, shape), "--max-model-len", "513", "--port", "0"}, 1, "error: --max-model-len 513 is more than the model's 512"},
		{[]string{"--model", folder(t, shape), "--chat-template", "x", "--port", "0"}, 1, `error: chat template "x" is not known`},
		{[]string{"-h"}, 0, "max-num-seqs"},
	} {
		var log bytes.Buffer
		if code := Main(t.Context(), c.args, none, io.Discard, &log); code != c.code || !strings.Contains(log.String(), c.want) {
			t.Errorf("%v: code %d: %s", c.args, code, log.String())
		}
	}
	// A port that is taken.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var log bytes.Buffer
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	if code := Main(t.Context(), []string{"--model", folder(t, shape), "--port", port}, none, io.Discard, &log); code != 1 || !strings.Contains(log.String(), "address already in use") {
		t.Errorf("%d %s", code, log.String())
	}
}
