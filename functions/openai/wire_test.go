package openai

import (
	"bytes"
	"encoding/json/v2"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCatalogue(t *testing.T) {
	no := false
	for _, x := range []struct {
		e      *Error
		status int
		typ    string
		after  string // Retry-After
		retry  string
		param  any
	}{
		{New(InvalidAPIKey, ""), 401, "invalid_request_error", "", "false", nil},
		{New(ModelNotFound, ""), 404, "invalid_request_error", "", "false", "model"},
		{New(InvalidJSON, "").With("/model"), 400, "invalid_request_error", "", "false", "/model"},
		{New(UnsupportedParameter, "").With("/logit_bias"), 400, "invalid_request_error", "", "false", "/logit_bias"},
		{New(MissingRequiredParameter, ""), 400, "invalid_request_error", "", "false", "model"},
		{New(UnknownEndpoint, ""), 404, "invalid_request_error", "", "false", nil},
		{New(MethodNotAllowed, ""), 405, "invalid_request_error", "", "false", nil},
		{New(RequestTooLarge, "").After(time.Minute), 413, "invalid_request_error", "", "false", nil},
		{New(ContextLengthExceeded, ""), 400, "invalid_request_error", "", "false", nil},
		{New(RateLimitExceeded, "").After(90 * time.Second), 429, "rate_limit_error", "55", "true", nil},
		{New(RateLimitExceeded, "").After(12 * time.Millisecond), 429, "rate_limit_error", "1", "true", nil},
		{New(InsufficientQuota, "").After(5 * time.Second), 429, "insufficient_quota", "", "false", nil},
		{New(GPUQuotaExceeded, ""), 429, "rate_limit_error", "30", "true", nil},
		{New(QueueFull, "").After(7 * time.Second), 503, "server_error", "7", "true", nil},
		{New(ModelLoading, "").After(41500 * time.Millisecond), 503, "server_error", "42", "true", nil},
		{New(ModelLoadFailed, "").After(time.Second), 503, "server_error", "", "false", nil},
		{New(EngineCrashed, ""), 502, "server_error", "1", "true", nil},
		{New(EngineCrashed, "").Final(), 502, "server_error", "", "false", nil},
		{New(QueueTimeout, ""), 504, "server_error", "5", "true", nil},
		{New(ShuttingDown, ""), 503, "server_error", "1", "true", nil},
		{New(RequestQuarantined, ""), 422, "invalid_request_error", "", "false", nil},
		{New(HeadTooLarge, ""), 431, "invalid_request_error", "", "false", nil},
		{New(UnsupportedEncoding, ""), 415, "invalid_request_error", "", "false", nil},
		{New(RequestTimeout, ""), 408, "invalid_request_error", "", "false", nil},
		{New(Conflict, ""), 409, "invalid_request_error", "", "false", nil},
		{New(InternalError, ""), 500, "server_error", "", "false", nil},
		{New("no such code", ""), 500, "server_error", "", "false", nil},
		{&Error{Status: 400, Code: QueueFull, Retry: &no}, 400, "", "", "false", nil},
	} {
		h := map[string]string{}
		for k, v := range x.e.Header {
			h[k] = v
		}
		if x.e.Status != x.status || x.e.Type != x.typ || h["retry-after"] != x.after || h["x-should-retry"] != x.retry ||
			h["content-type"] != "application/json" || (h["www-authenticate"] == "Bearer") != (x.status == 401) {
			t.Errorf("%s: %d %s %v", x.e.Code, x.e.Status, x.e.Type, h)
		}
		var body struct {
			Error map[string]any `json:"error"`
		}
		if err := json.Unmarshal(x.e.Body(), &body); err != nil {
			t.Fatal(err)
		}
		b := body.Error
		if b["code"] != string(x.e.Code) || b["type"] != x.typ || b["param"] != x.param || b["message"] != x.e.Message || len(b) != 4 {
			t.Errorf("%s", x.e.Body())
		}
	}
	if !strings.HasPrefix(New(InvalidAPIKey, "").Message, "Incorrect API key provided") {
		t.Error("LiteLLM tells 401 from 400 by the words")
	}
	e := New(MethodNotAllowed, "")
	e.Allow = "POST"
	for k, v := range e.Header {
		if k == "allow" && v == "POST" {
			e = nil
			break
		}
	}
	if e != nil {
		t.Error("no Allow")
	}
	e = New(ModelLoading, "x")
	e.Thaw = &Detail{Phase: "stage", Progress: 41, ETA: 11500 * time.Millisecond}
	if s := string(e.Body()); s != `{"error":{"message":"x","type":"server_error","param":null,"code":"model_loading","thaw":{"phase":"stage","progress":41,"eta_s":12}}}` {
		t.Error(s)
	}
	e.Thaw = &Detail{Phase: "stage"}
	if s := string(e.Body()); !strings.HasSuffix(s, `,"thaw":{"phase":"stage","progress":0}}}`) {
		t.Error(s)
	}
	e.Thaw = &Detail{Progress: -1}
	if s := string(e.Body()); !strings.HasSuffix(s, `,"thaw":{}}}`) {
		t.Error(s)
	}
}

// oneEvent fails unless s is exactly one data line and one empty line.
func oneEvent(t *testing.T, s string) {
	t.Helper()
	if !strings.HasPrefix(s, "data: ") || !strings.HasSuffix(s, "\n\n") || strings.ContainsAny(s[:len(s)-2], "\r\n") {
		t.Fatalf("not one event: %q", s)
	}
	var v any
	if err := json.Unmarshal([]byte(s[6:]), &v); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
}

func oneComment(t *testing.T, s string) {
	t.Helper()
	if !strings.HasPrefix(s, ": thaw") || strings.Count(s, "\n") != 1 || !strings.HasSuffix(s, "\n") || strings.ContainsAny(s, "\r\x00\x1b") {
		t.Fatalf("not one comment: %q", s)
	}
}

func TestLines(t *testing.T) {
	for got, want := range map[string]string{
		string(Comment(nil, "staging", 41, 11500*time.Millisecond, 13)):                                   ": thaw state=staging percent=41 eta_s=12 position=13\n",
		string(Comment(nil, "loading", -1, 0, -1)):                                                        ": thaw state=loading\n",
		string(Comment(nil, "", 0, 0, 0)):                                                                 ": thaw percent=0 position=0\n",
		string(Timeline(nil, []Span{{"queue", 12 * time.Millisecond}, {"first_token", 3 * time.Second}})): ": thaw timeline queue=12 first_token=3000\n",
		string(NoopChat(nil, "tiny", time.Unix(7, 0))):                                                    `data: {"id":"","object":"chat.completion.chunk","created":7,"model":"tiny","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}` + "\n\n",
		string(NoopCompletion(nil, "tiny", time.Unix(7, 0))):                                              `data: {"id":"","object":"text_completion","created":7,"model":"tiny","choices":[{"index":0,"text":"","finish_reason":null}]}` + "\n\n",
		string(New(EngineCrashed, "gone").Frame()):                                                        `data: {"error":{"message":"gone","type":"server_error","param":null,"code":"engine_crashed"}}` + "\n\n",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// FuzzLines: no text, however hostile, makes a second line, an empty line or
// an id:, retry: or event: field.
func FuzzLines(f *testing.F) {
	f.Add("a\n\nid: 1", "x\r\rretry: 3\x1b[31m", -5)
	f.Add("\u2028", "\xff\x00", 1<<40)
	f.Fuzz(func(t *testing.T, a, b string, n int) {
		d := time.Duration(n)
		oneComment(t, string(Comment(nil, a, n, d, n)))
		oneComment(t, string(Timeline(nil, []Span{{a, d}, {b, -d}})))
		oneEvent(t, string(NoopChat(nil, a, time.Unix(int64(n), 0))))
		oneEvent(t, string(NoopCompletion(nil, b, time.Unix(int64(n), 0))))
		e := New(Code(a), b).With(a)
		e.Thaw = &Detail{Phase: b, Progress: n, ETA: d}
		oneEvent(t, string(e.Frame()))
		for k, v := range e.Header {
			if strings.ContainsAny(k+v, "\r\n") {
				t.Fatalf("%q: %q", k, v)
			}
		}
	})
}

const (
	chunkA = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"say \"usage\":{\"prompt_tokens\":9} and [DONE]"},"finish_reason":null}]}` + "\n\n"
	chunkB = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	chunkU = `data: {"id":"x","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":17,"completion_tokens":62,"total_tokens":79,"prompt_tokens_details":{"cached_tokens":5}}}` + "\n\n"
	chunkS = `data: {"id":"x", "choices": [ ], "usage": {"completion_tokens": 62, "prompt_tokens": 17}}` + "\r\n\r\n"
)

func TestStreamAtEverySplit(t *testing.T) {
	usage := Usage{17, 62, true}
	for _, x := range []struct {
		name, in, taken string // taken: what goes on with TakeUsage; "" is all
		want            Stream
	}{
		{"plain", chunkA + chunkB + Done, "", Stream{Finished: true, Done: true}},
		{"usage", chunkA + chunkB + chunkU + Done, chunkA + chunkB + Done, Stream{Finished: true, Done: true, Usage: usage}},
		{"usage, spaces and CR LF", chunkA + chunkS + Done, chunkA + Done, Stream{Done: true, Usage: usage}},
		{"usage in a chunk with choices", strings.Replace(chunkB, `}]}`, `}],"usage":{"prompt_tokens":17,"completion_tokens":62}}`, 1), "", Stream{Finished: true, Usage: usage}},
		{"no choices, no usage", `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n" + chunkA, "", Stream{}},
		{"no choices, usage null", `data: {"choices":[],"usage":null}` + "\n\n", "", Stream{}},
		{"comments", ": ping\n: ping\n\n" + chunkA + ": x\n", "", Stream{}},
		{"nothing", ": ping\n", "", Stream{}},
		{"vLLM's failure", chunkA + "data: {\"error\": {\"message\": \"x\", \"code\": 500}}\n\ndata: [DONE]\n\n", "", Stream{Failed: true, Done: true}},
		{"named error", "event: error\ndata: {}\n\n", "", Stream{Failed: true}},
		{"unfinished line", chunkA + "data: {\"choi", "", Stream{}},
		{"responses", "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":17,\"output_tokens\":62}}}\n\n", "", Stream{Done: true, Usage: usage}},
		{"messages", "event: message_start\ndata: {\"message\":{\"usage\":{\"cache_read_input_tokens\":3,\"input_tokens\":17}}}\n\nevent: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":62}}\n\nevent: message_stop\ndata: {}\n\n", "", Stream{Finished: true, Done: true, Usage: usage}},
		{"no space", "data:" + chunkB[6:], "", Stream{Finished: true}},
		{"JSON in lines", "data: {\ndata:  \"choices\": [{\"finish_reason\": \"stop\"}],\r\ndata:  \"usage\": {\ndata: \"prompt_tokens\": 17, \"completion_tokens\": 62}\ndata: }\r\n\r\n" + chunkA, "", Stream{Finished: true, Usage: usage}},
		{"an error in lines", chunkA + "data: {\ndata:  \"error\": \"x\"\ndata: }\n\n" + Done, "", Stream{Failed: true, Done: true}},
		{"JSON in lines that does not end", "data: {\ndata: \"usage\": {\"prompt_tokens\": 17}", "", Stream{}},
		{"usage twice", chunkU + chunkA + chunkU, chunkA, Stream{Usage: usage}},
	} {
		for _, take := range []bool{false, true} {
			want := x.in
			if take && x.taken != "" {
				want = x.taken
			}
			check := func(how string, pieces ...string) {
				t.Helper()
				s := Stream{TakeUsage: take}
				var out bytes.Buffer
				for _, p := range pieces {
					out.Write(s.Pass([]byte(p)))
				}
				got := Stream{Finished: s.Finished, Failed: s.Failed, Done: s.Done, Usage: s.Usage}
				if take {
					out.Write(s.line) // held back at the end of the stream
				}
				if out.String() != want || fmt.Sprint(got) != fmt.Sprint(x.want) {
					t.Fatalf("%s, take=%v, %s:\n%q\n%+v", x.name, take, how, out.String(), got)
				}
			}
			check("whole", x.in)
			check("bytes", strings.Split(x.in, "")...)
			for i := range len(x.in) {
				check(fmt.Sprint("split at ", i), x.in[:i], x.in[i:])
			}
		}
	}
}

// TestFirstToken: chunks before generation, and those without text, hold no token.
func TestFirstToken(t *testing.T) {
	for chunk, want := range map[string]bool{
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`:             false,
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}`:                                false,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`:                                                          false,
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}`:                                                     false,
		`{"type":"response.created","response":{"output":[],"reasoning":{"effort":null},"text":{"format":{"type":"text"}}}}`:   false,
		`{"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":3}}}`:                      false,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`:                                   false,
		`{"choices":[{"delta":{"tool_calls":[`:                                                                                 false,
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":"h"},"finish_reason":null}]}`:                            true,
		`{"choices": [{"index": 0, "delta": {"content": "h"}}]}`:                                                               true,
		`{"choices":[{"index":0,"delta":{"content":null,"reasoning_content":"I"}}]}`:                                           true,
		`{"choices":[{"index":0,"delta":{"content":null,"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}]}`: true,
		`{"choices":[{"index":0,"text":"h","finish_reason":null}]}`:                                                            true,
		`{"type":"response.output_text.delta","delta":"h"}`:                                                                    true,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"h"}}`:                                    true,
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}`:                      true,
	} {
		var s Stream
		if s.Pass([]byte("data: " + chunk + "\n\n")); s.Token != want {
			t.Errorf("token %v in %s", s.Token, chunk)
		}
	}
}

func TestLongLinesPass(t *testing.T) {
	for _, take := range []bool{false, true} {
		s := Stream{TakeUsage: take}
		var out, in bytes.Buffer
		in.WriteString(chunkA + "data: {\"x\":\"")
		for range 40 {
			in.WriteString(strings.Repeat("y", 64<<10))
		}
		in.WriteString("\"}\n\n" + chunkB)
		for p := range bytes.Lines(in.Bytes()) {
			for len(p) > 0 {
				n := min(len(p), 50_000)
				out.Write(s.Pass(p[:n]))
				p = p[n:]
			}
			if len(s.line) > maxLine+50_000 {
				t.Fatal("it keeps everything")
			}
		}
		out.Write(s.line) // held back at the end of the stream
		if !bytes.Equal(in.Bytes(), out.Bytes()) || !s.Finished {
			t.Errorf("take=%v: %d bytes of %d, finished=%v", take, out.Len(), in.Len(), s.Finished)
		}
	}
}

// TestLongLineIsOne: what a line holds behind the part that is looked at is no line of its own;
// one at the bound is looked at.
func TestLongLineIsOne(t *testing.T) {
	for _, take := range []bool{false, true} {
		s := Stream{TakeUsage: take}
		for _, p := range []string{"data: " + strings.Repeat("y", maxLine), "z", "data: [DONE]\n", "\n"} {
			s.Pass([]byte(p))
		}
		if s.Done {
			t.Errorf("take %v: a part of a line ends the stream", take)
		}
		if s.Pass([]byte(Done)); !s.Done {
			t.Errorf("take %v: the line after a long one is not read", take)
		}
		for size, want := range map[int]bool{maxLine: true, maxLine + 1: false} {
			s := Stream{TakeUsage: take}
			line := `data: {"delta":"` + strings.Repeat("y", size-len(`data: {"delta":"`))
			s.Pass([]byte(line))
			if s.Pass([]byte("\"}\n")); s.Token != want {
				t.Errorf("take %v: a line of %d bytes and its end: token %v", take, size, s.Token)
			}
		}
	}
}

// TestLinesOfOneEvent: one event's lines are kept up to a bound, and the events after it count.
func TestLinesOfOneEvent(t *testing.T) {
	var s Stream
	s.Pass([]byte("data: {\n"))
	line := []byte("data: " + strings.Repeat("y", 64<<10) + "\n")
	for range 40 {
		if s.Pass(line); len(s.data) > maxLine {
			t.Fatal("it keeps everything")
		}
	}
	if s.Pass([]byte("\n" + chunkB)); !s.Finished || !s.InLines {
		t.Errorf("finished %v, in lines %v", s.Finished, s.InLines)
	}
}

func TestJoinData(t *testing.T) {
	for in, want := range map[string]string{
		chunkA + chunkS + Done:                                  chunkA + chunkS + Done,
		"data: {\r\ndata: \"a\":\ndata:1\ndata: }\n\n" + chunkA: "data: { \"a\":1 }\n\n" + chunkA,
		"event: x\ndata: {\n: c\ndata: }\n\n":                   "event: x\ndata: {\n: c\ndata: }\n\n",
		"data: {\n\ndata: {}\n\n":                               "data: {\n\ndata: {}\n\n",
	} {
		if got := string(JoinData([]byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestEndsLinesByCR(t *testing.T) {
	for in, want := range map[string]bool{
		"data: x\r\r": true, ": c\rdata: x": true, "data: x\r": false, "data: x\r\n\r\n": false, "data: x\n\r\r": false, "": false, "data: x": false,
	} {
		if got := EndsLinesByCR([]byte(in)); got != want {
			t.Errorf("%q: %v", in, got)
		}
	}
}

// textChunks are events that differ in their text alone.
func textChunks(texts ...string) string {
	var out strings.Builder
	for _, text := range texts {
		out.WriteString(`data: {"id":"x","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}]}` + "\n\n")
	}
	return out.String()
}

// TestSample: a line like a sample is not searched, and each that differs from it in more than
// plain text is.
func TestSample(t *testing.T) {
	begin := textChunks("a", "b", "c")
	for _, x := range []struct {
		line    string
		matches bool
	}{
		{textChunks("d"), true},
		{textChunks(""), true},
		{textChunks("error"), true},
		{textChunks(strings.Repeat("long ", 2000)), true},
		{textChunks(`a\nb`), false},
		{textChunks(`x"},"error":{"message":"no"},"y":{"z":"`), false},
		{strings.Replace(textChunks("d"), "null", `"stop"`, 1), false},
		{strings.Replace(textChunks("d"), `"id"`, `"error":"no","id"`, 1), false},
		{strings.Replace(textChunks("d"), "}\n", `,"usage":{"prompt_tokens":1}}`+"\n", 1), false},
		{"data: [DONE]\n\n", false},
		{": comment\n\n", false},
	} {
		var s, searched Stream
		s.Pass([]byte(begin))
		searched.known.unused = maxUnused
		searched.Pass([]byte(begin + x.line))
		line, _, _ := strings.Cut(x.line, "\n")
		if s.known.matches([]byte(line+"\n")) != x.matches {
			t.Errorf("%.80s: matches is not %v", line, x.matches)
		}
		if s.Pass([]byte(x.line)); s.Findings != searched.Findings {
			t.Errorf("%.80s: %+v, want %+v", line, s.Findings, searched.Findings)
		}
	}

	// Lines that are like one before, and must be searched all the same.
	for _, x := range []struct{ before, line string }{
		{`{"text":"abc":"stop"}`, `{"text":"finish_reason":"stop"}`},
		{"{\"a\":{\"text\":\"\x01\"},\"error\":{\"message\":\"no\"}}", `{"a":{"text":"ok"},"error":{"message":"no"}}`},
		{`{"usage":{"x":0},"text":"` + strings.Repeat("long ", 500) + `","prompt_tokens":5}`, `{"usage":{"x":0},"text":"short","prompt_tokens":5}`},
	} {
		before, line := "data: "+x.before+"\n\n", "data: "+x.line+"\n\n"
		var s, searched Stream
		s.Pass([]byte(begin + before + before + line))
		searched.known.unused = maxUnused
		if searched.Pass([]byte(begin + before + before)); searched.Findings != (Findings{Token: true}) {
			t.Errorf("%s: %+v", x.before, searched.Findings)
		}
		if searched.Pass([]byte(line)); s.Findings != searched.Findings || s.Findings == (Findings{Token: true}) {
			t.Errorf("%s: %+v, want %+v", x.line, s.Findings, searched.Findings)
		}
	}
	var long Stream
	if long.Pass([]byte(strings.Repeat(textChunks(strings.Repeat("long ", 1000)), 2))); len(long.known.line) != 0 {
		t.Error("a long line is a sample")
	}

	var s Stream
	s.Pass([]byte(begin + strings.Replace(textChunks("d"), "null", `"stop"`, 1)))
	if len(s.known.line) != 0 {
		t.Error("a sample outlives a change of the findings")
	}
	s = Stream{}
	for i := range 2 * maxUnused {
		s.Pass([]byte(strings.Replace(begin, `"x"`, fmt.Sprint(i), -1)))
	}
	if s.known.unused != 0 {
		t.Errorf("a sample that matches does not count: %d", s.known.unused)
	}
	for i := range 2 * maxUnused {
		s.Pass([]byte(strings.Replace(textChunks("a"), `"x"`, fmt.Sprint(i), 1)))
	}
	if s.known.unused != maxUnused {
		t.Errorf("samples are kept of a stream whose lines all differ: %d", s.known.unused)
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(chunkA+chunkU+Done), 7)
	f.Add([]byte(chunkU+chunkS+chunkU), 1)
	f.Add([]byte("data: {\ndata: \"usage\": {\"prompt_tokens\": 17}\ndata: }\n\n"), 3)
	f.Add([]byte(textChunks("a", "b", "", `\"`, "error", "c")+chunkB+textChunks("d")+chunkU+textChunks("e")+Done), 50)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		if size <= 0 {
			size = 1
		}
		run := func(take, samples bool, size int) (string, Stream) {
			s := Stream{TakeUsage: take}
			if !samples {
				s.known.unused = maxUnused
			}
			var out bytes.Buffer
			for rest := in; len(rest) > 0; {
				n := min(len(rest), size)
				out.Write(s.Pass(rest[:n]))
				rest = rest[n:]
			}
			if take {
				out.Write(s.line) // held back at the end of the stream
			}
			s.line, s.out, s.data, s.blank, s.long, s.known = nil, nil, nil, false, false, sample{}
			return out.String(), s
		}
		whole, a := run(false, true, len(in)+1)
		pieces, b := run(false, true, size)
		if whole != string(in) || pieces != string(in) || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("%q\n%q\n%+v\n%+v", whole, pieces, a, b)
		}
		whole, a = run(true, true, len(in)+1)
		pieces, b = run(true, true, size)
		if whole != pieces || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("%q\n%q\n%+v\n%+v", whole, pieces, a, b)
		}
		if searched, b := run(true, false, size); whole != searched || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("with samples %q, without %q\n%+v\n%+v", whole, searched, a, b)
		}
		if !strings.Contains(string(in), `"usage"`) && whole != string(in) {
			t.Fatalf("%q became %q", in, whole)
		}
	})
}

func BenchmarkStream(b *testing.B) {
	for _, take := range []bool{false, true} {
		b.Run(fmt.Sprint("take=", take), func(b *testing.B) {
			var p []byte
			for i := range 64 {
				p = fmt.Appendf(p, `data: {"id":"x","object":"chat.completion.chunk","created":1694268190,"model":"tiny","choices":`+
					`[{"index":0,"delta":{"content":" w%02d"},"finish_reason":null}]}`+"\n\n", i)
			}
			p = append(p, chunkB+chunkU+Done...)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				s := Stream{TakeUsage: take}
				s.Pass(p)
			}
		})
	}
}

// TestSeparateEvents: lines of whole data get an empty line between them; JSON in lines and events
// that have one stay as they are.
func TestSeparateEvents(t *testing.T) {
	for in, want := range map[string]string{
		"data: {\"a\":1}\ndata: {\"b\":2}\n": "data: {\"a\":1}\n\ndata: {\"b\":2}\n",
		": hi\ndata: {}\r\ndata: [DONE]\n":   ": hi\ndata: {}\r\n\ndata: [DONE]\n",
		"data: {\"a\":1}\ndata: {\"b\"":      "data: {\"a\":1}\n\ndata: {\"b\"",
		"data: {\"a\":1}\n":                  "",
		"data: {\ndata: \"a\":{}\ndata: }\n": "",
		"data: 1\ndata: 2\n":                 "", "data: {\nid: 5\ndata: {\"a\":1}\ndata: {\"b\":2}\n": "data: {\nid: 5\ndata: {\"a\":1}\n\ndata: {\"b\":2}\n",
		"event: x\ndata: {\"a\":1}\n":             "",
		"data: {\"a\":\ndata: {\"b\":2}\ndata: }": "",
	} {
		if got := string(SeparateEvents([]byte(in))); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
