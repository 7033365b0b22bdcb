package collect

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions/openai"
)

// aDelta is the kind of a piece of a message.
var aDelta = regexp.MustCompile(`\w+_delta\b`)

// TestStream: a whole answer becomes a stream that ends as the endpoint's streams end,
// with the same words and usage.
func TestStream(t *testing.T) {
	for _, x := range []struct {
		name, path, in string
		usage          bool
		want           []string // in this order
		absent         string
	}{
		{"chat", "/v1/chat/completions", "{\n \"id\":\"c\", \"object\":\"chat.completion\", " +
			"\"created\":1.0,\n\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a <b> " +
			"\\ud83d\\ude00\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}", true,
			[]string{`"choices":[{"delta":{"role":"assistant","content":"a <b> `, `"finish_reason":"stop"`, `"object":"chat.completion.chunk"`, "\n\ndata: ", `"choices":[]`, `"prompt_tokens":3`, "\n\ndata: [DONE]\n\n"}, `"message"`},
		{"without usage", "/v1/chat/completions", `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}`, false,
			[]string{`"content":"a"`, "data: [DONE]"}, "usage"},
		{"two choices and tools", "/v1/chat/completions", `{"choices":[{"index":0,"message":{"content":null,"tool_calls":[{"id":"a"},{"id":"b"}]},"finish_reason":"tool_calls"},{"index":1,"message":{"content":"x"}}]}`, true,
			[]string{`{"id":"a","index":0},{"id":"b","index":1}`, `"finish_reason":"tool_calls"`, `"index":1`, "data: [DONE]"}, "usage"},
		{"completion", "/v1/completions", `{"object":"text_completion","choices":[{"index":0,"text":"hi","finish_reason":"length"}],"usage":{"prompt_tokens":3}}`, true,
			[]string{`"text":"hi"`, `"choices":[]`, "data: [DONE]"}, "delta"},
		{"another object", "/v1/chat/completions", `{"output":"hi"}`, true, []string{`data: {"output":"hi"}`, "data: [DONE]"}, "choices"},
		{"messages", "/v1/messages", `{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"hi"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}}],"stop_reason":"tool_use","usage":{"input_tokens":3,"output_tokens":2}}`, false,
			[]string{"event: message_start\n", `"content":[]`, `"text":""`, `"text":"hi","type":"text_delta"`, "event: content_block_stop\n", `"input":{}`, `"partial_json":"{\"a\":1}"`, "event: message_delta\n", `"stop_reason":"tool_use"`, `"output_tokens":2`, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"}, "[DONE]"},
		{"responses", "/v1/responses", `{"id":"r","status":"completed","output":[{"id":"i","type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]},{"id":"f","type":"function_call","arguments":"{}"}],"usage":{"input_tokens":3,"output_tokens":2}}`, false,
			[]string{"event: response.created\n", `"output":[]`, `"sequence_number":0`, "event: response.output_item.added\n", "event: response.output_text.delta\n", `"delta":"hi"`, `"sequence_number":6`, `"type":"function_call"`, "event: response.completed\n", `"text":"hi"`, `"output_tokens":2`}, "[DONE]"},
	} {
		got := string(Stream(x.path, []byte(x.in), x.usage))
		rest := got
		for _, w := range x.want {
			i := strings.Index(rest, w)
			if i < 0 {
				t.Errorf("%s: %q is not, or not in this order, in\n%s", x.name, w, got)
				break
			}
			rest = rest[i+len(w):]
		}
		if strings.Contains(got, x.absent) {
			t.Errorf("%s: %q is in\n%s", x.name, x.absent, got)
		}
		s := openai.Stream{}
		s.Pass([]byte(got))
		if !s.Done || s.Failed || strings.Contains(x.in, "usage") && x.path != "/v1/chat/completions" && !s.Usage.Known {
			t.Errorf("%s: %+v", x.name, s)
		}
	}
	// The events of each endpoint, in order.
	for _, x := range []struct{ path, in, want string }{
		{"/v1/responses", `{"id":"r","status":"completed","output":[{"id":"i","content":[{"type":"output_text","text":"a"},{"type":"refusal"},{"type":"output_text","text":"b"}]},{"id":"f","type":"function_call"}]}`,
			"created output_item.added content_part.added output_text.delta output_text.done content_part.done " +
				"content_part.added output_text.delta output_text.done content_part.done output_item.done " +
				"output_item.added output_item.done completed"},
		{"/v1/responses", `{"status":"incomplete","output":[]}`, "created incomplete"}, {"/v1/responses", `{"status":"failed"}`, "created failed"},
		{"/v1/messages", `{"content":[{"type":"thinking","thinking":"x","signature":"s"},{"type":"thinking","thinking":"y"},{"type":"text","text":"z"},{"type":"other"}]}`,
			"message_start content_block_start thinking_delta signature_delta content_block_stop " +
				"content_block_start thinking_delta content_block_stop " +
				"content_block_start text_delta content_block_stop content_block_start content_block_stop message_delta message_stop"},
	} {
		var names []string
		sequence := 0
		for event := range strings.SplitSeq(strings.TrimSuffix(string(Stream(x.path, []byte(x.in), false)), "\n\n"), "\n\n") {
			name, data, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
			short := strings.TrimPrefix(name, "response.")
			if kind := aDelta.FindString(data); name == "content_block_delta" {
				short = kind
			}
			names = append(names, short)
			if !strings.Contains(data, `"type":"`+name+`"`) || strings.Contains(x.path, "responses") && !strings.Contains(data, fmt.Sprintf(`"sequence_number":%d,`, sequence)) {
				t.Errorf("%s, event %d: %s", x.path, sequence, event)
			}
			sequence++
		}
		if got := strings.Join(names, " "); got != x.want {
			t.Errorf("%s:\n%s, want\n%s", x.path, got, x.want)
		}
	}
	for _, in := range []string{"", "null", "[]", "{", "hello", `"x"`} {
		if b := Stream("/v1/chat/completions", []byte(in), true); b != nil {
			t.Errorf("%q: %s", in, b)
		}
	}
}

var update = flag.Bool("update", false, "write the records of testdata anew: read what changed in them")

// TestRecordOfStreamedAnswers: the stream that each endpoint's clients get of a whole answer.
func TestRecordOfStreamedAnswers(t *testing.T) {
	var lines []string
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} {
		for _, in := range []string{
			`{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","tool_calls":[{"id":"a"},{"id":"b","index":7},null]},"finish_reason":"stop"},{"index":1,"text":"x"}],"usage":{"prompt_tokens":3}}`,
			`{"choices":[{"message":{"tool_calls":[]}},{"message":{"tool_calls":5}},{"message":"x"},{"message":null}],"usage":null}`,
			"\ufeff" + ` {"choices":"x","logprob":NaN,"a":1,"a":2} `, `{"choices":[],"usage":{}}`, `{"content":"x"}`, `{"output":"x"}`, `{"status":"failed","error":{"code":"c"}}`, `{"a":Nan}`, `{}`,
			`{"id":"m","content":[{"type":"text","text":"a","n":1},{"type":"thinking","thinking":"b","signature":"s"},{"type":"thinking","thinking":"c"},{"type":"tool_use","id":"t","input":{"a":"\u00e9"}},{"type":"other","x":1}],"stop_reason":"stop_sequence","stop_sequence":"s","usage":{"input_tokens":3}}`,
			`{"id":"r","status":"incomplete","output":[{"id":"i","content":[{"type":"output_text","text":"a","n":1},{"type":"refusal"},{"type":"output_text","text":"b"}]},{"id":"f","arguments":"{}"},{"id":"g","content":[]}],"usage":{"input_tokens":3}}`,
		} {
			for _, usage := range []bool{false, true}[:1+strings.Count(path, "completions")] {
				lines = append(lines, fmt.Sprintf("%s, usage %v, %s: %s", path, usage, in, Stream(path, []byte(in), usage)))
			}
		}
	}
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], "\n", `\n`)
	}
	got := strings.Join(lines, "\n") + "\n"
	const file = "testdata/streamed.txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%v, or another stream: read the difference after -update", err)
	}
}
