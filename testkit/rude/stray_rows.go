package rude

import (
	"strings"
	"time"
)

// strayRows are fields and lines that stand where others are expected: finish_reason empty or
// null to the end (E24, E25), data that is empty or a comment (E26, E27), no blank behind
// data (E28), TGI's type of an error (E29), Mistral's message, an object (E30), a body without
// length and end (E31), chunked twice (E32), empty lines before JSON (E33), chunks without a delta
// (E34), text in the chunk that finishes (E35), a line of 3 MiB (E36), whole answers unfinished or
// with calls (E38), nulls (E39), and a stream without a media type (E40).
func strayRows() []Row {
	stream := func(parts ...string) Answer { return Chunked(200, eventsType, true, parts...) }
	const (
		text     = chunkRole + "\n\n" + chunkText + "\n\n"
		finish   = chunkFinish + "\n\n"
		done     = end + "\n\n"
		whole    = `"role":"assistant","content":"hello"`
		begun    = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"hel"},"finish_reason":""}]}` + "\n\n"
		rest     = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":""}]}` + "\n\n"
		invalid  = `{"error":"Input validation error: inputs must have less than 4096 tokens","error_type":"validation"}`
		extra    = `{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted","input":1}]},"type":"invalid_request_error","param":null,"code":null}`
		hollow   = `data: {"id":"","object":"","created":0,"model":"","choices":[{"index":0,"finish_reason":null,"content_filter_offsets":{"check_offset":1}}]}` + "\n\n"
		nothing  = `data: {"id":"c","object":"chat.completion.chunk","choices":null,"usage":null}` + "\n\n" + `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":null,"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
		nulls    = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":null,"content":"lo","tool_calls":null,"reasoning_content":null,"function_call":null,"refusal":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}` + "\n\n"
		call     = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"weather","arguments":""}}]},"finish_reason":null}]}` + "\n\n"
		argument = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":null,"content":null,"tool_calls":[{"index":0,"id":null,"type":null,"function":{"name":null,"arguments":"{}"}}]},"finish_reason":null}]}` + "\n\n"
	)
	slow := Answer{Head(200, "Content-Type: "+eventsType, "Transfer-Encoding: chunked"), {Chunk: begun},
		{Pause: 30 * time.Second, Chunk: rest}}
	neverEnds := Answer{Head(200, "Content-Type: "+eventsType), {Write: text + finish + done}, {Then: Hang}}
	padded := func(lines int, body string) Answer {
		a := Answer{Head(200, "Content-Type: "+jsonType, "Transfer-Encoding: chunked")}
		for range lines {
			a = append(a, Step{Pause: 30 * time.Second, Chunk: "\n"})
		}
		return append(a, Step{Chunk: body}, Step{Write: "0\r\n\r\n"})
	}
	image := strings.Repeat("A", 3<<20)
	calls := strings.Replace(wholeChat, `"content":"hello"`, `"content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"weather","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"time","arguments":"{}"}}]`, 1)
	tight := strings.ReplaceAll(text+finish+chunkUsage+"\n\n"+done, "data: ", "data:")
	rows := []Row{
		{ID: "E24", Name: "an empty finish_reason in each chunk, half a minute between two", Stream: true, Answer: append(slow[:len(slow):len(slow)], Step{Chunk: finish + done}, Step{Write: "0\r\n\r\n"}), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E24", Name: "an empty finish_reason in each chunk, then death", Stream: true, Answer: append(slow[:len(slow):len(slow)], Step{Then: Close}), Status: 200, Words: []string{`"hel"`, `"lo"`, "engine_crashed"}, Absent: []string{"[DONE]"}, Requests: 1, Blamed: true, Died: true},
		{ID: "E24", Name: "plain, and an empty finish_reason streams", Answer: append(slow[:len(slow):len(slow)], Step{Chunk: finish + done}, Step{Write: "0\r\n\r\n"}), Status: 200, Words: []string{whole, `"finish_reason":"stop"`}, Success: true, Requests: 1},
		{ID: "E25", Name: "no finish_reason before the end mark", Stream: true, Answer: stream(text, done), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E25", Name: "plain, no finish_reason before the end mark", Answer: stream(text, done), Status: 200, Words: []string{whole}, Success: true, Requests: 1},
		{ID: "E26", Name: "empty data lines", Stream: true, Odd: true, Answer: stream("data:\n\ndata: \n\n", chunkRole+"\n\n", "data:\n\n", chunkText+"\n\n", "data: \n\n", finish+done), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E26", Name: "plain, empty data lines", Answer: stream("data:\n\ndata: \n\n", chunkRole+"\n\n", "data:\n\n", chunkText+"\n\n", "data: \n\n", finish+done), Status: 200, Words: []string{whole}, Success: true, Requests: 1},
		{ID: "E27", Name: "data that is a comment", Stream: true, Odd: true, Answer: stream("data: : OPENROUTER PROCESSING\n\n", text, finish+done), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E27", Name: "plain, data that is a comment", Answer: stream("data: : OPENROUTER PROCESSING\n\n", text, finish+done), Status: 200, Words: []string{whole}, Success: true, Requests: 1},
		{ID: "E28", Name: "no blank behind data", Stream: true, Odd: true, Answer: stream(tight), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E28", Name: "plain, no blank behind data", Answer: stream(tight), Status: 200, Words: []string{whole, `"completion_tokens":2`}, Success: true, Requests: 1},
		{ID: "E29", Name: "TGI's validation error first", Stream: true, Answer: stream("data: " + invalid + "\n\n"), Status: 422, Words: []string{"must have less than 4096 tokens"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E29", Name: "TGI's validation error with 200", Answer: Plain(200, jsonType, invalid), Status: 422, Words: []string{"must have less than 4096 tokens"}, Requests: 1},
		{ID: "E29", Name: "TGI's validation error with 422", Answer: Plain(422, jsonType, invalid), Status: 422, Words: []string{"must have less than 4096 tokens"}, Requests: 1},
		{ID: "E29", Name: "TGI's overload first", Stream: true, Answer: stream(`data: {"error":"Model is overloaded","error_type":"overloaded"}` + "\n\n"), Status: 429, Words: []string{"Model is overloaded"}, Requests: 1},
		{ID: "E29", Name: "TGI's generation error first", Stream: true, Answer: stream(`data: {"error":"Request failed during generation","error_type":"generation"}` + "\n\n"), Status: 500, Words: []string{"Request failed during generation"}, Requests: 1, Blamed: true},
		{ID: "E30", Name: "Mistral's error, whose message is an object", Answer: Plain(422, jsonType, extra), Status: 422, Words: []string{"Extra inputs are not permitted"}, Requests: 1},
		{ID: "E30", Name: "stream, then Mistral's error", Stream: true, Answer: Plain(422, jsonType, extra), Status: 422, Words: []string{"Extra inputs are not permitted"}, Requests: 1},
		{ID: "E31", Name: "neither length nor chunks, never closed", Stream: true, Answer: neverEnds, Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1, Within: 20 * time.Second},
		{ID: "E31", Name: "plain, neither length nor chunks, never closed", Answer: neverEnds, Status: 200, Words: []string{whole}, Success: true, Requests: 1, Within: 20 * time.Second},
		{ID: "E32", Name: "chunked twice", Answer: Answer{Head(200, "Content-Type: "+jsonType, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), {Chunk: wholeChat}, {Write: "0\r\n\r\n"}}, Status: 200, Words: []string{`"hello"`}, Success: true, Requests: 1},
		{ID: "E33", Name: "lines before the answer", Answer: padded(5, wholeChat), Status: 200, Words: []string{wholeChat}, Success: true, Requests: 1},
		{ID: "E33", Name: "lines before an error", Answer: padded(5, `{"error":{"message":"too long","code":400}}`), Status: 400, Words: []string{"too long"}, Requests: 1},
		{ID: "E33", Name: "stream, lines before the answer", Stream: true, Answer: padded(3, wholeChat), Status: 200, Words: []string{`"hello"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E34", Name: "a chunk without a delta behind finish", Stream: true, Answer: stream(text, finish, hollow, done), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E34", Name: "plain, a chunk without a delta behind finish", Answer: stream(text, finish, hollow, done), Status: 200, Words: []string{whole, `"finish_reason":"stop"`}, Success: true, Requests: 1},
		{ID: "E35", Name: "plain, text in the chunk that finishes", Answer: stream(chunkRole+"\n\n", strings.Replace(chunkText, `"finish_reason":null`, `"finish_reason":"length"`, 1)+"\n\n", done), Status: 200, Words: []string{whole, `"finish_reason":"length"`}, Success: true, Requests: 1},
		{ID: "E36", Name: "a line of 3 MiB", Stream: true, Answer: stream(chunkRole+"\n\n", strings.Replace(chunkText, "lo", image, 1)+"\n\n", finish+done), Status: 200, Words: []string{`"hel"`, image, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E36", Name: "plain, a line of 3 MiB", Answer: stream(chunkRole+"\n\n", strings.Replace(chunkText, "lo", image, 1)+"\n\n", finish+done), Status: 200, Words: []string{"hel" + image}, Success: true, Requests: 1},
		{ID: "E38", Name: "a whole answer with finish_reason null", Stream: true, Answer: Plain(200, jsonType, strings.Replace(wholeChat, `"stop"`, "null", 1)), Status: 200, Words: []string{`"hello"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E38", Name: "plain, finish_reason null", Answer: Plain(200, jsonType, strings.Replace(wholeChat, `"stop"`, "null", 1)), Status: 200, Words: []string{`"hello"`}, Success: true, Requests: 1},
		{ID: "E38", Name: "a whole answer with two calls", Stream: true, Answer: Plain(200, jsonType, calls), Status: 200, Words: []string{`"role":"assistant"`, `"weather"`, `"index":0`, `"time"`, `"index":1`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E39", Name: "nulls", Stream: true, Answer: stream(nothing, chunkRole+"\n\n", nulls, nothing, finish+done), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E39", Name: "plain, nulls", Answer: stream(nothing, chunkRole+"\n\n", nulls, nothing, finish+done), Status: 200, Words: []string{whole}, Success: true, Requests: 1},
		{ID: "E39", Name: "plain, calls with nulls", Answer: stream(call, argument, finish, done), Status: 200, Words: []string{`"id":"a"`, `"weather"`, `"arguments":"{}"`}, Success: true, Requests: 1},
		{ID: "E40", Name: "plain, and a stream without a type comes", Answer: Chunked(200, "", true, ": ok\n\n"+text, finish, done), Status: 200, Words: []string{whole}, Success: true, Requests: 1},
	}
	return rows
}

// keptOpenRows are streams of the messages endpoint that finish and do not end (E41), answers
// without choices or with a second document (E42, E43), fields of event streams that are no data
// (E44), and what is kept where a stream is made a plain answer (E45).
func keptOpenRows() []Row {
	const (
		began   = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[]}}\n\n"
		stopped = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{}}\n\n"
		ended   = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		ping    = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
		dated   = "event: ping\ndata: 2025-07-15 10:00:00.123456+00:00\n\n"
		finish  = chunkFinish + "\n\n"
		done    = end + "\n\n"
		both    = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"hm","content":"hello"},"finish_reason":null}]}` + "\n\n"
		broken  = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{\"a\":\\\\D<|"}}]},"finish_reason":null}]}` + "\n\n"
		probs   = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"hello"},"logprobs":{"content":[{"token":"hello","logprob":-0.5}]},"finish_reason":"stop"}]}` + "\n\n"
	)
	stream := func(parts ...string) Answer { return Chunked(200, eventsType, true, parts...) }
	open := func(parts ...string) Answer {
		a := Answer{Head(200, "Content-Type: "+eventsType, "Transfer-Encoding: chunked")}
		for _, p := range parts {
			a = append(a, Step{Chunk: p})
		}
		return a
	}
	pings := open(began, stopped)
	for range 60 {
		pings = append(pings, Step{Pause: 15 * time.Second, Chunk: ping})
	}
	slow := Answer{Head(200, "Content-Type: "+eventsType, "Transfer-Encoding: chunked")}
	for range 6 {
		slow = append(slow, Step{Pause: 15 * time.Second, Chunk: ": keep-alive\n\n"})
	}
	slow = append(slow, Step{Chunk: chunkRole + "\n\n" + finish + done}, Step{Write: "0\r\n\r\n"})
	blanks := open("\n", "\n\n", chunkRole+"\n\n", "\n", chunkText+"\n\n\n\n", finish, "\n", done)
	blanks = append(blanks, Step{Write: "0\r\n\r\n"})
	const response = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}\n\n"
	const incomplete = "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"id\":\"r\"}}\n\n"
	named := strings.ReplaceAll(chunkRole+"\n\n"+chunkText+"\n\n"+finish, "data: {", "id: 1\nevent: message\nretry: 1000\ndata: {")
	return []Row{
		{ID: "E41", Name: "messages, pings behind the stop reason for ever", Stream: true, Path: "/v1/messages", Answer: append(pings, Step{Then: Hang}), Status: 200, Words: []string{"message_start", "end_turn"}, Absent: []string{"event: error"}, Success: true, Requests: 1, Within: time.Minute},
		{ID: "E41", Name: "messages, the end and the connection stays open", Stream: true, Path: "/v1/messages", Answer: append(open(began, stopped, ended), Step{Then: Hang}), Status: 200, Words: []string{"message_start", "end_turn", "message_stop"}, Absent: []string{"event: error"}, Success: true, Requests: 1, Within: 20 * time.Second},
		{ID: "E41", Name: "chat, comments behind the finish for ever", Stream: true, Answer: append(open(chunkRole+"\n\n", finish, ": ping\n\n"), append(pings[3:len(pings):len(pings)], Step{Then: Hang})...), Status: 200, Words: []string{`"hel"`, `"finish_reason":"stop"`}, Absent: []string{"engine_hung"}, Success: true, Odd: true, Requests: 1, Within: time.Minute},
		{ID: "E41", Name: "messages, an empty stop reason at the beginning, then death", Stream: true, Path: "/v1/messages", Answer: append(open(strings.Replace(began, `"content":[]`, `"content":[],"stop_reason":""`, 1)), Step{Pause: 30 * time.Second, Then: Close}), Status: 200, Words: []string{"message_start", "event: error"}, Requests: 1, Blamed: true, Died: true},
		{ID: "E41", Name: "responses, incomplete and the connection stays open", Stream: true, Path: "/v1/responses", Answer: append(open(response, incomplete), Step{Then: Hang}), Status: 200, Words: []string{"response.created", "response.incomplete"}, Absent: []string{"event: error"}, Success: true, Requests: 1, Within: 20 * time.Second},
		{ID: "E44", Name: "blank lines between events", Stream: true, Odd: true, Answer: blanks, Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E44", Name: "plain, blank lines between events", Answer: blanks, Status: 200, Words: []string{`"role":"assistant","content":"hello"`}, Success: true, Requests: 1},
		{ID: "E42", Name: "no choices", Answer: Plain(200, jsonType, `{"id":"c","object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}`), Status: 200, Words: []string{`"choices":[]`}, Success: true, Requests: 1},
		{ID: "E42", Name: "stream, no choices", Stream: true, Answer: Plain(200, jsonType, `{"id":"c","object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}`), Status: 200, Words: []string{"[DONE]"}, Success: true, Requests: 1},
		{ID: "E43", Name: "two documents", Answer: Plain(200, jsonType, `{"content":"slot unavailable"}`+"\n"+wholeChat), Status: 200, Words: []string{"slot unavailable", `"hello"`}, Success: true, Requests: 1},
		{ID: "E44", Name: "a ping with a date", Stream: true, Odd: true, Answer: stream(dated, chunkRole+"\n\n", dated, chunkText+"\n\n", finish, done), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E44", Name: "plain, a ping with a date", Answer: stream(dated, chunkRole+"\n\n", dated, chunkText+"\n\n", finish, done), Status: 200, Words: []string{`"role":"assistant","content":"hello"`}, Success: true, Requests: 1},
		{ID: "E44", Name: "names of events, ids and times", Stream: true, Odd: true, Answer: stream(named, done), Status: 200, Words: []string{`"hel"`, `"lo"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E44", Name: "plain, names of events, ids and times", Answer: stream(named, done), Status: 200, Words: []string{`"role":"assistant","content":"hello"`}, Success: true, Requests: 1},
		{ID: "E44", Name: "comments for a minute and a half", Stream: true, Odd: true, Answer: slow, Status: 200, Words: []string{`"hel"`, "[DONE]"}, Success: true, Requests: 1},
		{ID: "E45", Name: "plain, reasoning and text in one delta", Answer: stream(both, finish, done), Status: 200, Words: []string{`"reasoning_content":"hm"`, `"content":"hello"`}, Success: true, Requests: 1},
		{ID: "E45", Name: "plain, arguments that are no JSON", Answer: stream(broken, finish, done), Status: 200, Words: []string{`"name":"f","arguments":"{\"a\":\\\\D`}, Success: true, Requests: 1},
		{ID: "E45", Name: "plain, logprobs in the chunk that finishes", Answer: stream(probs, done), Status: 200, Words: []string{`"content":"hello"`, `"logprob":-0.5`, `"finish_reason":"stop"`}, Success: true, Requests: 1},
		{ID: "E45", Name: "an empty field for foreign pages", Answer: Plain(200, jsonType, wholeChat, "Access-Control-Allow-Origin: ", "Connection: close"), Status: 200, Words: []string{`"hello"`}, Success: true, Requests: 1},
		{ID: "E46", Name: "plain, the whole message in an event", Answer: stream("data: "+wholeChat+"\n\n", done), Status: 200, Words: []string{`"message":{"role":"assistant","content":"hello"}`}, Absent: []string{"data:", "null,\"message\""}, Success: true, Requests: 1},
		{ID: "E46", Name: "plain, a mark of the byte order first", Answer: stream("\ufeff"+chunkRole+"\n\n", chunkText+"\n\n", finish, done), Status: 200, Words: []string{`"content":"hello"`}, Absent: []string{"data:"}, Success: true, Requests: 1},
		{ID: "E46", Name: "plain, members of the engine's own", Answer: stream(`data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"hello","reasoning_details":[{"text":"hm"}],"annotations":[{"type":"url_citation"}]}}]}`+"\n\n", finish, done), Status: 200, Words: []string{`"content":"hello"`, `"reasoning_details":[{"text":"hm"}]`, `"annotations":[{"type":"url_citation"}]`}, Absent: []string{"data:"}, Success: true, Requests: 1},
		{ID: "E46", Name: "plain, content in parts", Answer: stream(`data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":[{"type":"text","text":"hello"}]}}]}`+"\n\n", finish, done), Status: 200, Words: []string{`"content":[{"type":"text","text":"hello"}]`}, Absent: []string{"data:"}, Success: true, Requests: 1},
		{ID: "E45", Name: "plain, usage null without choices", Answer: stream(chunkRole+"\n\n", chunkText+"\n\n", finish, `data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":null}`+"\n\n", done), Status: 200, Words: []string{`"content":"hello"`}, Success: true, Requests: 1},
	}
}
