package collect

import (
	"encoding/json/jsontext"
	"strings"
	"testing"
)

// inData writes each JSON as an event of its own.
func inData(events ...string) string {
	return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n"
}

// TestPlainOfResponses: the response of the last event that has one, with the items and the status
// that other events brought; want is "" where there is none.
func TestPlainOfResponses(t *testing.T) {
	const created, item = `{"type":"response.created","response":{"id":"r","status":"in_progress"}}`, `{"type":"response.output_item.done","item":{"n":1}}`
	end := func(kind, response string) string {
		return `{"type":"response.` + kind + `","response":` + response + `}`
	}
	for in, want := range map[string]string{
		inData(created, item, end("completed", `{"id":"r","status":"completed","output":[{"a":1}]}`)): `{"id":"r","output":[{"a":1}],"status":"completed"}`,
		inData(created, item, end("completed", `{"status":"completed","output":[]}`)):                 `{"id":"r","output":[{"n":1}],"status":"completed"}`,
		inData(created, item, end("completed", `{"status":"completed","output":null}`)):               `{"id":"r","output":[{"n":1}],"status":"completed"}`,
		inData(created, item, end("completed", `{"status":"completed"}`)):                             `{"id":"r","output":[{"n":1}],"status":"completed"}`,
		inData(created, end("completed", `{"output":[]}`)):                                            `{"id":"r","output":[],"status":"completed"}`,
		inData(created, item, item): `{"id":"r","output":[{"n":1},{"n":1}],"status":"completed"}`,
		inData(item):                ``,
		inData(created):             ``,
		inData(created, end("in_progress", `{"status":"in_progress"}`)):                                     ``,
		inData(created, end("in_progress", `{"status":"queued"}`)):                                          ``,
		inData(created, end("done", `{}`)):                                                                  ``,
		inData(created, end("done", `{"status":"completed"}`)):                                              `{"id":"r","status":"completed"}`,
		inData(created, end("incomplete", `{}`)):                                                            `{"id":"r","status":"incomplete"}`,
		inData(created, end("failed", `{"status":"queued"}`)):                                               `{"id":"r","status":"failed"}`,
		inData(created, end("failed", `{"status":"cancelled"}`)):                                            `{"id":"r","status":"cancelled"}`,
		inData(end("incomplete", `{}`), item):                                                               `{"output":[{"n":1}],"status":"incomplete"}`,
		inData(created, end("completed", `5`)):                                                              ``,
		inData(created, end("completed", `null`)):                                                           ``,
		inData(created, `{"type":"response.completed"}`):                                                    ``,
		inData(created, end("else", `{"id":"x"}`), `[1]`, item):                                             `{"id":"r","output":[{"n":1}],"status":"completed"}`,
		"\ufeff" + inData(end("completed", `{"a":NaN}`)):                                                    `{"a":null,"status":"completed"}`,
		": c\nevent: response.completed\ndata:  " + end("completed", `{}`) + " \r\n\r\n" + "data: [DONE]\n": `{"status":"completed"}`,
		"data: {\"type\":\"response.completed\",\ndata: \"response\":{}}\n\n":                               `{"status":"completed"}`,
		inData(created, `{"type":`):                                                                         ``,
		"":                                                                                                  ``,
	} {
		if got := string(Plain("/v1/responses", []byte(in))); got != want {
			t.Errorf("%s:\n%s, want\n%s", in, got, want)
		}
	}
}

// TestPlainOfMessages: the blocks in the order of their indices with all that their deltas add,
// and the members and the usage of the last events.
func TestPlainOfMessages(t *testing.T) {
	const start = `{"type":"message_start","message":{"id":"m","content":["x"],"stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}}`
	block := func(index, block string, deltas ...string) string {
		all := []string{`{"type":"content_block_start","index":` + index + `,"content_block":` + block + `}`}
		for _, d := range deltas {
			all = append(all, `{"type":"content_block_delta","index":`+index+`,"delta":`+d+`}`)
		}
		return strings.TrimSuffix(strings.TrimPrefix(inData(all...), "data: "), "\n\n")
	}
	const usage = `"stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}`
	for in, want := range map[string]string{
		inData(start): `{"content":[],"id":"m",` + usage,
		inData(start, block("1", `{"type":"text","text":"c"}`, `{"type":"text_delta","text":"d"}`),
			block("0", `{"type":"text","text":""}`, `{"type":"text_delta","text":"a"}`, `{"type":"text_delta","text":"b"}`)): `{"content":[{"text":"ab","type":"text"},{"text":"cd","type":"text"}],"id":"m",` + usage,
		inData(start, block("0", `{"type":"thinking"}`, `{"type":"thinking_delta","thinking":"a"}`, `{"type":"signature_delta","signature":"s"}`)): `{"content":[{"signature":"s","thinking":"a","type":"thinking"}],"id":"m",` + usage,
		inData(start, block("0", `{"type":"tool_use","input":{}}`, `{"partial_json":"{\"a\""}`, `{"partial_json":":1}"}`)):                         `{"content":[{"input":{"a":1},"type":"tool_use"}],"id":"m",` + usage,
		inData(start, block("0", `{"type":"tool_use","input":{}}`, `{"partial_json":"{\"a\""}`)):                                                   `{"content":[{"input":"{\"a\"","type":"tool_use"}],"id":"m",` + usage,
		inData(start, block("0", `{"type":"tool_use","input":{}}`, `{"partial_json":""}`)):                                                         `{"content":[{"input":{},"type":"tool_use"}],"id":"m",` + usage,
		inData(start, block("0", `{"type":"text"}`, `{"type":"citations_delta","citation":{"a":1}}`, `{"citation":2}`)):                            `{"content":[{"citations":[{"a":1},2],"type":"text"}],"id":"m",` + usage,
		inData(start, `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":9,"input_tokens":null}}`): `{"content":[],"id":"m","stop_reason":"end_turn",` +
			`"usage":{"input_tokens":3,"output_tokens":9}}`,
		inData(`{"type":"message_start","message":{"id":"m"}}`):                                                         `{"content":[],"id":"m"}`,
		inData(`{"type":"message_start","message":{"id":"m"}}`, `{"type":"message_delta","usage":{"output_tokens":9}}`): `{"content":[],"id":"m","usage":{"output_tokens":9}}`,
		inData(start, `{"type":"message_stop"}`, `{"type":"content_block_stop","index":0}`, `{"type":"ping"}`):          `{"content":[],"id":"m",` + usage,
		inData(`{"type":"message_start","message":5}`):                                                                  ``,
		inData(start, `{"type":"content_block_start","index":0,"content_block":5}`):                                     ``,
		inData(start, `{"type":"content_block_delta","index":0,"delta":{"text":"a"}}`):                                  ``,
		inData(start, block("0", `{"type":"text"}`, `5`)):                                                               ``,
		inData(block("0", `{"type":"text"}`)):                                                                           ``,
		"":                                                                                                              ``,
	} {
		if got := string(Plain("/v1/messages", []byte(in))); got != want {
			t.Errorf("%s:\n%s, want\n%s", in, got, want)
		}
	}
}

// TestPlainOfStream: a whole answer that was made a stream is the same again.
func TestPlainOfStream(t *testing.T) {
	for path, answers := range map[string][]string{
		"/v1/responses": {
			`{"id":"r","output":[{"content":[{"text":"hi","type":"output_text"},{"type":"refusal"}],"id":"i","type":"message"},{"arguments":"{}","type":"function_call"}],"status":"completed","usage":{"input_tokens":3}}`,
			`{"output":[],"status":"incomplete","usage":null}`, `{"error":{"message":"no"},"output":[],"status":"failed","usage":null}`,
		},
		"/v1/messages": {
			`{"content":[{"signature":"s","thinking":"x","type":"thinking"},{"text":"hi","type":"text"},{"id":"t","input":{"a":[1]},"type":"tool_use"},{"data":"d","type":"redacted_thinking"}],"id":"m","stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":3}}`,
			`{"content":[],"stop_reason":null,"stop_sequence":null}`,
			`{"content":[{"text":"","type":"text"}],"stop_reason":"stop_sequence","stop_sequence":"x"}`,
		},
	} {
		for _, answer := range answers {
			stream := Stream(path, []byte(answer), false)
			if got := string(Plain(path, stream)); got != answer || !jsontext.Value(answer).IsValid() {
				t.Errorf("%s:\n%s\nbecame\n%s", path, answer, got)
			}
		}
	}
}
