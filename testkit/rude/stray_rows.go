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
