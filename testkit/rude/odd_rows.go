package rude

import (
	"strings"
	"time"
)

// oddRows are answers that have another form than their media type or OpenAI's API says (E51): texts
// as data, the field data twice, choices without an index, JSON as an event stream, errors with the
// status of a success and without a member error, and answers of other endpoints.
func oddRows() []Row {
	stream := func(parts ...string) Answer { return Chunked(200, eventsType, true, parts...) }
	const (
		text     = "data: Number of choices must be greater than 0.\n\n"
		finish   = chunkFinish + "\n\n"
		whole    = `"message":{"role":"assistant","content":"hello"}`
		said     = chunkRole + "\n\n" + chunkText + "\n\n"
		noIndex  = `data: {"id":"c","choices":[{"delta":{"role":"assistant","content":"hel"}}]}` + "\n\n" + `data: {"id":"c","choices":[{"index":null,"delta":{"content":"lo"},"finish_reason":"stop"}]}` + "\n\n"
		broke    = "event: error\ndata: something broke\n\n"
		older    = `data: {"object":"error","message":"CUDA error","type":"InternalServerError","code":500}` + "\n\n"
		success  = `{"code":500,"msg":"404 NOT_FOUND","success":false}`
		login    = "<html><body>login</body></html>"
		tooLong  = `{"error":{"message":"input too long","type":"invalid_request_error"}}`
		noVoice  = `{"error":{"message":"voice not found","code":404}}`
		fromLlam = `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`
	)
	hangs := append(stream(text)[:2:2], Step{Then: Hang})
	doubled := stream(strings.ReplaceAll(said+finish+end+"\n\n", "data: ", "data: data: "))
	return []Row{
		{ID: "E51", Name: "plain, a text in place of tokens", Answer: hangs, Status: 500, Words: []string{"Number of choices must be greater than 0."}, Requests: 1, Blamed: true, Within: 15 * time.Second},
		{ID: "E51", Name: "a text in place of tokens, then the end", Stream: true, Odd: true, Answer: stream(text), Status: 200, Words: []string{"data: Number of choices", "It wrote: Number of choices must be greater than 0."}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "data twice", Stream: true, Odd: true, Answer: doubled, Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Absent: []string{"data: data:", "data:data:"}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain, data twice", Answer: doubled, Status: 200, Words: []string{whole}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain, choices without an index", Answer: stream(noIndex, end+"\n\n"), Status: 200, Words: []string{whole}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain completions, choices without an index", Path: "/v1/completions", Answer: stream(`data: {"choices":[{"text":"hel"}]}`+"\n\n", `data: {"choices":[{"text":"lo","finish_reason":"stop"}]}`+"\n\n"), Status: 200, Words: []string{`"text":"hello"`}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain, a delta that is a text", Answer: stream(`data: {"choices":[{"index":0,"delta":"hello"}]}`+"\n\n", finish), Status: 200, Words: []string{`"content":"hello"`}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain, the end mark in small letters", Answer: stream(said, finish, "data: [done]\n\n"), Status: 200, Words: []string{whole}, Success: true, Requests: 1},
		{ID: "E51", Name: "tokens, then an error event with a text", Stream: true, Odd: true, Answer: stream(said, broke), Status: 200, Words: []string{`"lo"`, `data: {"error":{"message":"something broke"`}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "tokens, then an older vLLM's error", Stream: true, Odd: true, Answer: stream(said, older), Status: 200, Words: []string{`"lo"`, `data: {"error":{"message":"CUDA error"`}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "JSON as a stream, an error", Stream: true, Answer: Plain(200, eventsType, tooLong), Status: 400, Words: []string{"input too long"}, Requests: 1},
		{ID: "E51", Name: "plain, JSON as a stream, an error", Answer: Plain(200, eventsType, tooLong), Status: 400, Words: []string{"input too long"}, Requests: 1},
		{ID: "E51", Name: "JSON as a stream", Stream: true, Answer: Plain(200, eventsType, wholeChat), Status: 200, Words: []string{`"hello"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain, JSON as a stream", Answer: Plain(200, eventsType, wholeChat), Status: 200, Words: []string{wholeChat}, Success: true, Requests: 1},
		{ID: "E51", Name: "a stream, and JSON behind a mark of the byte order", Stream: true, Answer: Plain(200, jsonType, "\ufeff"+wholeChat), Status: 200, Words: []string{`"hello"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain, a failure in another form", Answer: Plain(200, jsonType, success), Status: 500, Words: []string{"404 NOT_FOUND"}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "a stream, a failure in another form", Stream: true, Answer: Plain(200, jsonType, success), Status: 500, Words: []string{"404 NOT_FOUND"}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "plain, a detail alone", Answer: Plain(200, jsonType, `{"detail":"Model is not loaded"}`), Status: 500, Words: []string{"Model is not loaded"}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "plain, an answer of the engine's own form", Answer: Plain(200, jsonType, `{"content":"hello","stop":true}`), Status: 200, Words: []string{`{"content":"hello","stop":true}`}, Success: true, Requests: 1},
		{ID: "E51", Name: "plain, null", Answer: Plain(200, jsonType, "null"), Status: 502, Words: []string{"application/json: null (no answer of OpenAI's API)"}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "embeddings, an error with 200", Path: "/v1/embeddings", Answer: Plain(200, jsonType, tooLong), Status: 400, Words: []string{"input too long"}, Requests: 1},
		{ID: "E51", Name: "embeddings, a page", Path: "/v1/embeddings", Answer: Plain(200, "text/html", login), Status: 502, Words: []string{"text/html: login (no answer of OpenAI's API)"}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "speech, an error with 200", Path: "/v1/audio/speech", Answer: Plain(200, jsonType, noVoice), Status: 404, Words: []string{"voice not found"}, Requests: 1},
		{ID: "E51", Name: "responses, llama.cpp without the path", Path: "/v1/responses", Answer: Plain(404, jsonType, fromLlam), Status: 404, Words: []string{"does not serve /v1/responses: File Not Found"}, Code: "unknown_endpoint", Requests: 1},
		{ID: "E51", Name: "messages, a chat completion", Stream: true, Path: "/v1/messages", Answer: Plain(200, jsonType, wholeChat), Status: 502, Words: []string{"no answer of OpenAI's API"}, Requests: 1, Blamed: true},
		{ID: "E51", Name: "responses, a chat completion", Stream: true, Path: "/v1/responses", Answer: Plain(200, jsonType, wholeChat), Status: 502, Words: []string{"no answer of OpenAI's API"}, Requests: 1, Blamed: true},
	}
}
