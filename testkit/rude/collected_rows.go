package rude

import "strings"

// collectedRows are streams of the responses and messages endpoints that come for a plain
// request (E50): whole ones, such that end without their last event, with an error, and such of
// another endpoint.
func collectedRows() []Row {
	stream := func(parts ...string) Answer { return Chunked(200, eventsType, true, parts...) }
	event := func(name, members string) string {
		return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + members + "}\n\n"
	}
	const (
		item    = `{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"hello"}]}`
		message = `,"message":{"id":"m","type":"message","role":"assistant","content":[],"stop_reason":null,"usage":{"input_tokens":3,"output_tokens":0}}`
		words   = `,"error":{"code":"context_length_exceeded","message":"too many tokens"}`
	)
	response := func(status, output string) string {
		return `,"response":{"id":"r","object":"response","status":"` + status + `","output":` + output + `,"usage":{"input_tokens":3,"output_tokens":2}}`
	}
	begun := event("response.created", response("in_progress", "[]"))
	completed := event("response.completed", response("completed", "["+item+"]"))
	block := event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`) +
		event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"hel"}`) +
		event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"lo"}`) + event("content_block_stop", `,"index":0`)
	tool := event("content_block_start", `,"index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}`) +
		event("content_block_delta", `,"index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}`) +
		event("content_block_delta", `,"index":1,"delta":{"type":"input_json_delta","partial_json":"1}"}`)
	stopped := event("message_delta", `,"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}`) + event("message_stop", "")
	unnamed := strings.NewReplacer("event: response.created\n", "", "event: response.completed\n", "").Replace(begun + completed)
	return []Row{
		{ID: "E50", Name: "plain responses, a stream", Path: "/v1/responses", Answer: stream(begun, event("response.output_item.done", `,"item":`+item), completed), Status: 200, Words: []string{`"output":[{"type":"message"`, `"text":"hello"`, `"status":"completed"`, `"input_tokens":3`}, Absent: []string{"event:", "response.created"}, Success: true, Requests: 1},
		{ID: "E50", Name: "plain responses, a stream without names of events", Path: "/v1/responses", Answer: append(stream(unnamed)[:2:2], Step{Then: Hang}), Status: 200, Words: []string{`"text":"hello"`, `"status":"completed"`}, Absent: []string{"data:"}, Success: true, Requests: 1},
		{ID: "E50", Name: "plain responses, no output in the last event", Path: "/v1/responses", Answer: stream(begun, event("response.output_item.done", `,"item":`+item), event("response.completed", response("completed", "[]"))), Status: 200, Words: []string{`"text":"hello"`}, Success: true, Requests: 1},
		{ID: "E50", Name: "plain responses, no last event", Path: "/v1/responses", Answer: stream(begun, event("response.output_item.done", `,"item":`+item), "data: [DONE]\n\n"), Status: 200, Words: []string{`"text":"hello"`, `"status":"completed"`}, Success: true, Requests: 1},
		{ID: "E50", Name: "plain responses, incomplete", Path: "/v1/responses", Answer: stream(begun, event("response.incomplete", response("incomplete", "["+item+"]"))), Status: 200, Words: []string{`"status":"incomplete"`}, Success: true, Requests: 1},
		{ID: "E50", Name: "plain responses, failed", Path: "/v1/responses", Answer: stream(begun, event("response.failed", strings.Replace(response("failed", "[]"), `,"usage"`, words+`,"usage"`, 1))), Status: 400, Words: []string{"too many tokens"}, Code: "context_length_exceeded", Requests: 1},
		{ID: "E50", Name: "plain responses, an error first", Path: "/v1/responses", Answer: stream(event("error", `,"code":"rate_limit_exceeded","message":"slow down"`)), Status: 429, Words: []string{"slow down"}, Requests: 1},
		{ID: "E50", Name: "plain responses, a stream of chunks", Path: "/v1/responses", Answer: stream(chunkRole+"\n\n", chunkText+"\n\n", chunkFinish+"\n\n", end+"\n\n"), Status: 502, Words: []string{"text/event-stream"}, Requests: 1, Blamed: true},
		{ID: "E50", Name: "plain responses, cut", Path: "/v1/responses", Answer: Chunked(200, eventsType, false, begun), Status: 502, Code: "engine_crashed", Requests: 1, Blamed: true, Died: true},
		{ID: "E50", Name: "plain messages, a stream", Path: "/v1/messages", Answer: stream(event("message_start", message), event("ping", ""), block, tool, stopped), Status: 200, Words: []string{`"content":[{"text":"hello","type":"text"},{"id":"t","input":{"a":1},"name":"f","type":"tool_use"}]`, `"stop_reason":"end_turn"`, `"input_tokens":3`, `"output_tokens":2`}, Absent: []string{"event:"}, Success: true, Requests: 1},
		{ID: "E50", Name: "plain messages, a stream that stays open", Path: "/v1/messages", Answer: append(stream(event("message_start", message), block, stopped)[:4:4], Step{Then: Hang}), Status: 200, Words: []string{`"text":"hello"`}, Success: true, Requests: 1},
		{ID: "E50", Name: "plain messages, an error first", Path: "/v1/messages", Answer: stream(event("error", `,"error":{"type":"rate_limit_error","message":"busy"}`)), Status: 429, Words: []string{"busy"}, Type: "rate_limit_error", Requests: 1},
		{ID: "E50", Name: "responses, no names of events", Path: "/v1/responses", Stream: true, Odd: true, Answer: append(stream(unnamed)[:2:2], Step{Then: Hang}), Status: 200, Words: []string{"response.created", `"hello"`}, Absent: []string{"event: error"}, Success: true, Requests: 1},
	}
}
