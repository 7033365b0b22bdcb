package openai

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

var update = flag.Bool("update", false, "write the records of testdata anew: read what changed in them")

// record compares lines with a file of testdata.
func record(t *testing.T, name string, lines []string) {
	t.Helper()
	escape := strings.NewReplacer("\n", `\n`, "\r", `\r`, "\x00", `\x00`, "\x01", `\x01`)
	for i := range lines {
		lines[i] = escape.Replace(lines[i])
	}
	file := filepath.Join("testdata", name)
	text := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o777), os.WriteFile(file, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(want) != len(lines) {
		t.Errorf("%s has %d lines, want %d", name, len(lines), len(want))
	}
	for i := range min(len(want), len(lines)) {
		if lines[i] != want[i] {
			t.Errorf("%s, line %d:\n%s\nwant\n%s", name, i+1, lines[i], want[i])
		}
	}
}

// describe is an answer's status, fields and body in one line.
func describe(e *Error) string {
	line := fmt.Sprint(e.Status)
	for name, value := range e.Header {
		if name != "content-type" {
			line += fmt.Sprintf(" %s=%s", name, value)
		}
	}
	return line + " " + string(e.Body())
}

// TestRecordOfBodies: what is read from a body with each of the members that are looked at,
// with values of all kinds.
func TestRecordOfBodies(t *testing.T) {
	names := []string{"model", "Model", "user", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n",
		"best_of", "messages", "input",
		"prompt", "instructions", "system", "documents", "tools", "tool_choice", "functions", "response_format", "text", "guided_json",
		"grammar", "logprobs",
		"top_logprobs", "temperature", "seed", "stop", "image_url", "metadata"}
	values := []string{`null`, `true`, `false`, `0`, `1`, `-1`, `2`, `1.0`, `1.5`, `1e400`, `"x"`, `""`, `"8"`, `[]`, `["a","b"]`,
		`[{"role":"user","content":"hi"}]`, `{}`,
		`{"include_usage":true}`, `{"include_usage":null,"x":1}`, `{"type":"json_object"}`, `{"type":"text"}`, `"none"`}
	var lines []string
	for _, name := range names {
		for _, value := range values {
			body := []byte(fmt.Sprintf(`{"model":"m",%q:%s}`, name, value))
			if name == "model" {
				body = []byte(fmt.Sprintf(`{%q:%s}`, name, value))
			}
			lines = append(lines, fmt.Sprintf("%s: %s = %s", name, value, readings(body)))
		}
	}
	record(t, "bodies.txt", lines)
}

// readings is all that the package reads from a body: only what is not the zero value.
func readings(body []byte) string {
	env, err := Peek(body)
	if e, ok := errors.AsType[*Error](err); ok {
		unnamed := "refused without a name as well"
		if other, err := PeekUnnamed(body); err == nil {
			unnamed = fmt.Sprintf("without a name %v", other.none)
		} else if err.Error() != e.Error() {
			unnamed = err.Error()
		}
		return fmt.Sprintf("%d %s at %q: %s; %s", e.Status, e.Code, e.Param, e.Message, unnamed)
	}
	var read []string
	add := func(name string, value any, is bool) {
		if is {
			read = append(read, fmt.Sprintf("%s %v", name, value))
		}
	}
	add("model", env.Model, env.Model != "m")
	add("user", env.User, env.User != "")
	add("stream", env.Stream, env.Stream)
	add("usage", env.IncludeUsage, env.IncludeUsage)
	add("asks usage", true, env.AsksUsage())
	add("tokens", env.MaxTokens, env.MaxTokens != 0)
	add("n", env.N, env.N != 1)
	add("messages", env.Messages, env.Messages != 0)
	add("prompt bytes", env.PromptBytes, env.PromptBytes != 0)
	for s, name := range []string{"prompt", "system", "texts", "tools", "format", "guided"} {
		part := env.Section(body, Section(s))
		add(name, string(part), len(part) > 0)
	}
	add("structured", true, env.Structured(body))
	splice := func(usage bool) string {
		var b strings.Builder
		for _, part := range env.Splice(nil, body, "NEW", usage) {
			b.Write(part)
		}
		return b.String()
	}
	read = append(read, splice(false))
	add("with usage", splice(true), splice(true) != splice(false))
	return strings.Join(read, ", ")
}

// TestRecordOfErrors: every answer of the catalogue at the endpoints with a form of their own,
// plain and in a stream.
func TestRecordOfErrors(t *testing.T) {
	var lines []string
	codes := append(slices.Sorted(maps.Keys(catalogue)), InternalError, "no_such_code")
	for _, code := range codes {
		lines = append(lines, string(code)+": "+describe(New(code, "")))
		for _, path := range []string{"/v1/messages", "/v1/responses", "/v1/embeddings"} {
			e := New(code, "Words.").With("/x").After(90 * time.Second)
			lines = append(lines, "\t"+path+" "+describe(e.For(path))+" "+fmt.Sprintf("%q", e.FrameFor(path, 7)))
		}
		final := New(code, "Words.").Final()
		lines = append(lines, fmt.Sprintf("\tfinal %s, again %v", describe(final), final.ShouldRetry()))
	}
	for _, d := range []Detail{{Progress: -1}, {}, {Phase: "loading", Progress: 100, ETA: time.Millisecond}, {Phase: "staging", Progress: -1,
		ETA: 90 * time.Second}} {
		e := New(ModelLoading, "Words.")
		e.Thaw = &d
		lines = append(lines, fmt.Sprintf("%+v: %s %q", d, describe(e), e.FrameFor("/v1/messages", 0)))
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Second, 1500 * time.Millisecond, 54*time.Second + 1, 55 * time.Second, time.Hour} {
		lines = append(lines, fmt.Sprintf("after %v: %s", d, describe(New(QueueFull, "").After(d))))
	}
	record(t, "errors.txt", lines)
}

// TestRecordOfEngineErrors: what becomes of an engine's refusal, for statuses, forms and
// advice of all kinds.
func TestRecordOfEngineErrors(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var lines []string
	add := func(status int, head map[string]string, body string) {
		e := EngineError(status, func(name string) string {
			if name != strings.ToLower(name) {
				t.Errorf("the field %s is read", textproto.CanonicalMIMEHeaderKey(name))
			}
			return head[name]
		}, []byte(body), now)
		lines = append(lines, fmt.Sprintf("%d %v %s: %s | type %s code %s param %s: %s | again %v after %v", status, head, body, describe(e),
			e.Type,
			e.Code, e.Param, e.Message, *e.Retry, e.RetryAfter))
		lines = append(lines, "\t"+describe(e.For("/v1/messages"))+" "+fmt.Sprintf("%q", e.FrameFor("/v1/chat/completions", 0)))
	}
	for _, status := range []int{400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 418, 422, 425, 429, 499, 500, 501, 502, 503, 504, 507, 529,
		599} {
		add(status, nil, "")
		add(status, nil, `{"error":{"message":"Words.","type":"t","code":"c","param":"p"}}`)
	}
	for _, body := range []string{`{"error":"Words.","error_type":"validation"}`,
		`{"object":"error","message":"Words.","type":"BadRequestError","param":null,"code":400}`,
		`{"detail":"Words."}`, `{"detail":[{"loc":["body","messages",0],"msg":"Words.","type":"missing"},{"loc":["query"],"msg":"More."}]}`,
		`[{"error":{"code":429,"message":"Words.","status":"RESOURCE_EXHAUSTED"}}]`,
		`{"type":"error","error":{"type":"overloaded_error","message":"Words."}}`,
		`<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1><p>nginx</p></body></html>`, "Words.\nMore words.",
		"\x00\x01", `{}`, `null`,
		`"Words."`, `{"message":"Words.","error":"Bad Request","statusCode":400}`, `{"error":{"message":""}}`, `{"errors":["One.","Two."]}`,
		`{"error":{"message":"Words.","type":"insufficient_quota","code":null}}`, `{"error":{"message":"Words.","code":"429"}}`,
		`{"title":"Title.","detail":"Words."}`} {
		add(400, nil, body)
		add(500, nil, body)
		add(429, nil, body)
	}
	for _, head := range []map[string]string{{"retry-after": "7"}, {"retry-after": "700"}, {"retry-after": "0"}, {"retry-after": "-1"},
		{"retry-after": "1.2"},
		{"retry-after": "Thu, 01 Jan 2026 00:00:09 GMT"}, {"retry-after": "Thu, 01 Jan 2020 00:00:09 GMT"}, {"retry-after-ms": "2500"},
		{"retry-after-ms": "25"},
		{"retry-after": "7", "retry-after-ms": "2500"}, {"x-should-retry": "true"}, {"x-should-retry": "false"}, {"x-should-retry": "false",
			"retry-after": "7"},
		{"x-should-retry": "maybe"}} {
		for _, status := range []int{400, 429, 500, 503} {
			add(status, head, `{"error":{"message":"Words."}}`)
		}
	}
	record(t, "engine_errors.txt", lines)
}

// TestRecordOfStreams: what passes of a stream, event by event, and what is known then.
func TestRecordOfStreams(t *testing.T) {
	choice := func(rest string) string { return `data: {"id":"c","choices":[{"index":0,` + rest + `}]}` + "\n\n" }
	hi, stop := choice(`"delta":{"content":"hi"},"finish_reason":null`), choice(`"delta":{},"finish_reason":"stop"`)
	usage, done := `data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`+"\n\n", "data: [DONE]\n\n"
	streams := map[string][]string{
		"chat":                {choice(`"delta":{"role":"assistant"}`), hi, stop, usage, done},
		"usage beside choice": {strings.Replace(hi, `"choices"`, `"usage":{"prompt_tokens":1,"completion_tokens":1},"choices"`, 1), stop, done},
		"usage null":          {strings.Replace(hi, `"choices"`, `"usage":null,"choices"`, 1), done},
		"text":                {choice(`"text":"hi"`), choice(`"text":"","finish_reason":"length"`), done},
		"tool calls": {choice(`"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}`),
			choice(`"delta":{},"finish_reason":"tool_calls"`), done},
		"reasoning":   {choice(`"delta":{"reasoning_content":"hm"}`), hi, stop, done},
		"error":       {hi, `data: {"error":{"message":"no","code":500}}` + "\n\n", done},
		"error event": {hi, "event: error\ndata: {\"message\":\"no\"}\n\n"},
		"crlf":        {strings.ReplaceAll(hi, "\n", "\r\n"), strings.ReplaceAll(usage, "\n", "\r\n"), "data: [DONE]\r\n\r\n"},
		"comments": {": ping\n\n", hi, "event: x\nid: 1\nretry: 5\n", stop,
			"data:[DONE]\n\n"},
		"messages": {"event: message_start\n" +
			"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":4,\"output_tokens\":1}}}\n\n",
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":9}}\n\n",
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
		"responses": {"event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0}\n\n",
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\",\"sequence_number\":1}\n\n",
			"event: response.completed\n" +
				"data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":4,\"output_tokens\":9}},\"sequence_number\":2}\n\n"},
		"responses failed": {"event: response.failed\n" +
			"data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"no\"}},\"sequence_number\":2}\n\n"},
		"two lines": {"data: {\"id\":\"c\",\ndata: \"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", done},
		"two lines, then usage": {"data: {\"id\":\"c\",\ndata: \"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", hi, usage, stop + usage + hi,
			done},
		"usage and empty lines": {usage + "\n\n" + hi, usage, "\n\n", ": c\n\n", usage + usage, hi, done},
		"usage twice": {`data: {"choices":[],"timings":{"usage":null},"usage":{"prompt_tokens":5,"completion_tokens":6}}` + "\n\n",
			`data: {"choices":[],"usage":{"prompt_tokens":7},"x":{"usage":{"completion_tokens":8}}}` + "\n\n", done},
		"usage without an empty line": {usage[:len(usage)-1] + hi, usage[:len(usage)-1], hi, done},
		"usage, then another line":    {usage[:len(usage)-1] + "id: 1\n\n" + hi, usage + ": c\n\n\n" + hi, done},
		"usage with details": {`data: {"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0,"text_tokens":3},` +
			`"completion_tokens":2}}` + "\n\n", done},
		"usage of many digits":   {`data: {"choices":[],"usage":{"prompt_tokens":99999999999999999999999,"completion_tokens":-1}}` + "\n\n", done},
		"usage in a name":        {`data: {"x\"usage":{"prompt_tokens":9},"y\"finish_reason":"stop","choices":[]}` + "\n\n", done},
		"usage, then none":       {usage, hi, `data: {"choices":[],"usage":{}}` + "\n\n", `data: {"choices":[],"usage":{"prompt_tokens":null}}` + "\n\n"},
		"error with content":     {`data: {"error":{"message":"no","content":"x","finish_reason":"stop","usage":{"prompt_tokens":1}}}` + "\n\n", hi},
		"error line":             {"error: {\"message\":\"no\"}\n", ": c\n\n", hi, done},
		"other reasoning":        {choice(`"delta":{"reasoning":"hm"}`), done},
		"thinking":               {`data: {"type":"content_block_delta","delta":{"thinking":"hm"}}` + "\n\n"},
		"tool input":             {`data: {"type":"content_block_delta","delta":{"partial_json":"{"}}` + "\n\n"},
		"no tool calls":          {choice(`"delta":{"tool_calls":[ ]}`), choice(`"delta":{"tool_calls":null}`), choice(`"delta":{"tool_calls":[{}]}`)},
		"empty content":          {choice(`"delta":{"content":""}`), choice(`"delta":{"content":null}`), choice(`"delta":{"content":"a"}`)},
		"second choice finishes": {`data: {"choices":[{"finish_reason":null},{"finish_reason":"stop"}]}` + "\n\n"},
		"stop reason null":       {`data: {"delta":{"stop_reason":null}}` + "\n\n", `data: {"delta":{"stop_reason":"x"}}` + "\n\n"},
		"incomplete":             {"event: response.incomplete\ndata: {}\n\n"},
		"event names":            {"event:error\n\n", hi}, "other event names": {"event: errors\nevent: message_stop \n\n"},
		"many usages": {"data: {" + strings.Repeat(`"usage":{"prompt_tokens":1},`, 15) + `"usage":{"prompt_tokens":2},"usage":{"prompt_tokens":3}}` + "\n\n"},
		"texts":       {"data: one\n\n", "data:\n\n", "data: data: two\n\n", "data:data:\n\n", "data: data: {\"choices\":[{\"text\":\"x\"}]}\n\n", "data: three\n\n", done},
		"texts that are none": {"event: ping\ndata: one\n\n", "event: x\ndata: two\n\n", "data: : c\n\n",
			"data: " + strings.Repeat("y", 129) + "\n\n", "data: z\n\n",
			"data: {\"a\":\ndata: \"b\"\ndata: }\n\n", "data: data: [DONE]\n\n"},
		"a ping behind another": {"event: ping\n\nevent: x\n\ndata: one\n\n"}, "a ping's data, then more": {"event: ping\ndata: {}\n\n", "data: one\n\n"},
		"half": {hi[:30], hi[30:] + usage[:20], usage[20:], done[:8], done[8:]},
	}
	for i, end := range []string{`{"type":"message_stop"}`, `{"type":"message_stopp"}`, `{ "type": "response.completed","response":{}}`, `{"response":{}, "type":"response.incomplete"}`,
		`{"a":1,"type": "response.done"}`, `{"a":1,"type":"response.failed"}`, `{"a":1,"type":"message_stop","b":2}`, `{"type":"x","a":"message_stop"}`, `{"a":{"b":1,"type":"message_stop"}}`,
		`{"kind":"message_stop"}`, `{"a":[1],"Type":"message_stop"}`, `{"type":"response.done"}`, `{"typ":"response.done"}`, `{"type" :"response.done"}`} {
		streams[fmt.Sprintf("end by type %02d", i)] = []string{"data: " + end + "\n\n"}
	}
	for name := range strings.FieldsSeq("response.completed response.incomplete response.done response.failed response.created " +
		"message_stop error ping") {
		streams["event "+name] = []string{"event: " + name + "\ndata: {}\n\n"}
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(streams)) {
		for _, takes := range []bool{false, true} {
			s := Stream{TakeUsage: takes}
			sequence := int64(0)
			for _, event := range streams[name] {
				out := string(s.Pass([]byte(event)))
				sequence = NextSequence([]byte(out), sequence)
				shown := cmp.Or(strings.ReplaceAll(out, event, "as it came"), "nothing")
				state := ""
				for flag, is := range map[string]bool{
					" token": s.Token, " finished": s.Finished, " failed": s.Failed, " done": s.Done, " lines": s.InLines,
					" doubled": s.Doubled,
				} {
					if is {
						state += flag
					}
				}
				words := strings.Fields(state)
				slices.Sort(words)
				if len(s.Said) > 0 {
					words = append(words, fmt.Sprintf("said %q", s.Said))
				}
				lines = append(lines, fmt.Sprintf("%s, takes usage %v: %q: %s; %v %v next %d", name, takes, event, shown, words, s.Usage, sequence))
			}
		}
	}
	record(t, "streams.txt", lines)
}

// TestRecordOfFrames: what the clients of each endpoint get of an engine's events, errors among
// them, in whichever order.
func TestRecordOfFrames(t *testing.T) {
	const text, mark = "data: {\"type\":\"x\",\"sequence_number\":4}\n\n", "data: [DONE]\n\n"
	const failure = "data: {\"error\":{\"message\":\"no\",\"code\":503}}\n\n"
	parts := []string{text, failure, "event: error\n" + failure, "event: x\n" + failure, "error: {\"message\":\"no\",\"code\":400}\n\n",
		"error: no \"words\"\n\n",
		"event: error\n\n", "{x\ndata: 1\n\n", "data: {\r\ndata: \"error\":\r\ndata:  \"no\"}\r\n\r\n",
		": ping\n\n", "event: error\r\ndata: {\"message\":\"no\"}\r\n\r\n", "data: {\"a\":\ndata: 1}\n\n"}
	var lines []string
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses"} {
		for _, first := range parts {
			for _, second := range append(parts, mark) {
				p := first + second
				out := string(FrameErrors([]byte(p), path, 7))
				lines = append(lines, fmt.Sprintf("%s %q: %s; next %d, joined %s", path, p, strings.ReplaceAll(out, p, "as it came"),
					NextSequence([]byte(out), 2), strings.ReplaceAll(string(JoinData([]byte(p))), p, "as it came")))
			}
		}
	}
	for _, p := range append(parts, "event: error\n\n"+text, "event: error\r\n\r\n"+text, "event: error\n: c\ndata: {\"message\":\"no\"}\n\n",
		"event: error\nid: 1\ndata: {\"message\":\"no\"}\n\n", "event: error\nevent: x\n"+text, "", mark,
		text[:10], text+": c\n", text+": c\n: d", text+text[:5], "a\n\r\nb\n\n", "a\n\nb\n\r\nc",
		"a\rb\n", "a\nb\rc", "\r") {
		e, stated := Failure([]byte(p))
		failure := "no failure"
		if e != nil {
			failure = fmt.Sprintf("%s, stated %v", describe(e), stated)
		}
		lines = append(lines, fmt.Sprintf("%q: whole %d, data %v, event %v, ends by CR %v, %s", p, CompleteEvents([]byte(p)), HasData([]byte(p)),
			IsWholeEvent([]byte(p)), EndsLinesByCR([]byte(p)), failure))
	}
	record(t, "frames.txt", lines)
}

// TestRecordOfTools: which tools which engine refuses, in which requests.
func TestRecordOfTools(t *testing.T) {
	schemas := []string{`{"type":"object"}`, `{"type":"string","pattern":"a{1,5000}"}`, `{"type":"array","minItems":100000}`,
		`{"anyOf":[` + strings.Repeat(`{"type":"string"},`, 300) + `{}]}`}
	var lines []string
	for _, schema := range schemas {
		for _, tool := range []string{`{"type":"function","function":{"name":"f","parameters":SCHEMA}}`, `{"name":"f","input_schema":SCHEMA}`,
			`{"type":"function","function":{"name":"f","strict":true,"parameters":SCHEMA}}`} {
			for _, rest := range []string{``, `,"tool_choice":"required"`, `,"tool_choice":"auto"`, `,"response_format":{"type":"json_object"}`} {
				body := `{"model":"m","tools":[` + strings.Replace(tool, "SCHEMA", schema, 1) + `]` + rest + `}`
				env, err := Peek([]byte(body))
				line := fmt.Sprintf("%.60s %.40s %s:", schema, tool, rest)
				if err != nil {
					line += " " + err.Error()
				} else {
					for _, engine := range []functions.Engine{functions.EngineVLLM, functions.EngineLlamaCpp} {
						refusal := "passes"
						if e := env.CheckTools(engine); e != nil {
							refusal = describe(e)
						}
						line += fmt.Sprintf(" %s %s", engine, refusal)
					}
				}
				lines = append(lines, line)
			}
		}
	}
	record(t, "tools.txt", lines)
}
