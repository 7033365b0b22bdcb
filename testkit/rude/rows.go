package rude

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"strings"
	"time"
)

// Row is one way in which engines answer, and what a client must get of it, whether the
// model was READY when the request came or not.
type Row struct {
	ID         string // of the case in the list of cases
	Name       string // unique
	Stream     bool   // the request has "stream": true
	Path       string // "" is chat completions
	Answer     Answer
	Status     int           // of the answer to the client, where its head was not sent before
	Words      []string      // in the body, in this order
	Absent     []string      // not in the body
	Code, Type string        // of the error, "" any
	RetryAfter string        // "" any
	Success    bool          // a whole answer and no error
	Odd        bool          // lines of a stream are the engine's own, unlike those that thaw writes
	Requests   int           // how often the engine is asked
	Blamed     bool          // the replica is reported to the platform
	Died       bool          // it counts as a crash of the engine
	Within     time.Duration // of virtual time, until the client has the answer; 0 any
}

func gzipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(s))
	z.Close()
	return b.String()
}

func deflated(s string) string {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	z.Write([]byte(s))
	z.Close()
	return b.String()
}

const (
	jsonType   = "application/json"
	eventsType = "text/event-stream"

	chunkRole   = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"hel"},"finish_reason":null}]}`
	chunkText   = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}`
	chunkFinish = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	chunkUsage  = `data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
	end         = "data: [DONE]"

	wholeChat    = `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`
	wholeMessage = `{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2}}`
)

// Rows are the cases of an engine's answers (E1 to E4, E7 to E9, E11 and E12).
func Rows() (rows []Row) {
	rows = append(rows, errorRows()...)
	rows = append(rows, wholeRows()...)
	rows = append(rows, encodedRows()...)
	rows = append(rows, frameRows()...)
	rows = append(rows, endRows()...)
	rows = append(rows, plainRows()...)
	rows = append(rows, reportRows()...)
	rows = append(rows, dialectRows()...)
	rows = append(rows, foreignRows()...)
	rows = append(rows, collectedRows()...)
	rows = append(rows, oddRows()...)
	return append(append(rows, strayRows()...), keptOpenRows()...)
}

// reportRows are further reports: errors in llama.cpp's own field until 2025 (E13), a finished
// stream whose connection stays open (E14), a proxy's 499 (E15), an error with status 200 (E16),
// and a stream that was not asked for (E17).
func reportRows() []Row {
	const (
		tooLong = `error: {"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}`
		noSlot  = `error: {"code":500,"message":"slot unavailable","type":"server_error"}`
	)
	open := Answer{Head(200, "Content-Type: "+eventsType, "Transfer-Encoding: chunked"), {Chunk: chunkRole + "\n\n" + chunkFinish + "\n\n"},
		{Then: Hang}}
	torn := Answer{Head(200, "Content-Type: "+eventsType, "Transfer-Encoding: chunked"), {Chunk: chunkRole + "\n\n"},
		{Pause: 30 * time.Second, Chunk: chunkFinish + "\n\n"}, {Write: "0\r\n\r\n"}}
	streamed := []string{chunkRole + "\n\n", ": ping\n\n", chunkText + "\n\n", chunkFinish + "\n\n", chunkUsage + "\n\n", end + "\n\n"}
	whole := []string{`"object":"chat.completion"`, `"role":"assistant","content":"hello"`, `"finish_reason":"stop"`, `"completion_tokens":2`}
	return []Row{
		{ID: "E13", Name: "llama.cpp's error first", Stream: true, Answer: Chunked(200, eventsType, true, tooLong+"\n\n"+end+"\n\n"), Status: 400, Words: []string{"exceeds the available context size"}, Absent: []string{"[DONE]", "engine_crashed"}, Requests: 1},
		{ID: "E13", Name: "llama.cpp's error first, in two parts", Stream: true, Answer: Chunked(200, "", true, tooLong[:20], tooLong[20:]+"\n\n", end+"\n\n"), Status: 400, Words: []string{"exceeds the available context size"}, Absent: []string{"[DONE]", "engine_crashed"}, Requests: 1},
		{ID: "E13", Name: "llama.cpp's error behind a token", Stream: true, Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", noSlot+"\n\n", end+"\n\n"), Status: 200, Words: []string{`"hel"`, `data: {"error":{"code":500,"message":"slot unavailable","type":"server_error"}}` + "\n\n"}, Absent: []string{"[DONE]", "engine_crashed", "\nerror:"}, Requests: 1, Blamed: true},
		{ID: "E13", Name: "a text in llama.cpp's field", Stream: true, Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", "error: out of slots\n\n"), Status: 200, Words: []string{`"hel"`, `data: {"error":"out of slots"}` + "\n\n"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E14", Name: "finished, and the connection stays open", Stream: true, Answer: open, Status: 200, Words: []string{`"hel"`, `"finish_reason":"stop"`}, Absent: []string{"engine_hung"}, Success: true, Requests: 1},
		{ID: "E14", Name: "half a minute without a token", Stream: true, Answer: torn, Status: 200, Words: []string{`"hel"`, `"finish_reason":"stop"`}, Success: true, Requests: 1},
		{ID: "E15", Name: "a proxy's 499", Answer: Plain(499, jsonType, `{"error":{"message":"the client closed the request"}}`), Status: 502, Words: []string{"the client closed the request"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E15", Name: "stream, then a proxy's 499", Stream: true, Answer: Plain(499, "text/plain", "the client closed the request"), Status: 502, Words: []string{"the client closed the request"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E15", Name: "a status of no class", Answer: Plain(600, jsonType, `{"error":{"message":"no such worker"}}`), Status: 502, Words: []string{"no such worker"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E15", Name: "stream, then a status of no class", Stream: true, Answer: Plain(999, "text/plain", "Request denied"), Status: 502, Words: []string{"Request denied"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E16", Name: "plain, an error with status 200", Answer: Plain(200, jsonType, `{"error":{"message":"no such lora","code":404}}`), Status: 404, Words: []string{"no such lora"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E16", Name: "plain, an error that is null", Answer: Plain(200, jsonType, strings.Replace(wholeChat, `"usage"`, `"error":null,"usage"`, 1)), Status: 200, Words: []string{`"error":null`}, Requests: 1},
		{ID: "E17", Name: "plain, but it streams", Answer: Chunked(200, eventsType, true, streamed...), Status: 200, Words: whole, Absent: []string{"data:"}, Requests: 1},
		{ID: "E17", Name: "plain, but it streams what is no answer", Answer: Chunked(200, eventsType, true, "data: {\"step\":1}\n\ndata: warming up\n\n"+end+"\n\n"), Status: 502, Words: []string{"text/event-stream", "warming up"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E17", Name: "plain, but it streams an end alone", Answer: Chunked(200, eventsType, true, end+"\n\n"), Status: 502, Words: []string{"text/event-stream"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E17", Name: "plain, but it streams and ends with a word", Answer: Chunked(200, eventsType, true, append(streamed[:5:5], "DONE\n\n")...), Status: 200, Words: whole, Absent: []string{"data:"}, Requests: 1},
		{ID: "E17", Name: "plain, but it streams an error", Answer: Chunked(200, eventsType, true, "data: {\"error\":{\"message\":\"too long\",\"code\":400}}\n\n", end+"\n\n"), Status: 400, Words: []string{"too long"}, Absent: []string{"data:"}, Requests: 1},
	}
}

// errorRows are error answers of every form, to a stream (E1, E2) and to a plain request.
func errorRows() (rows []Row) {
	type form struct {
		name       string
		status     int
		kind, body string
		words      string
		code, typ  string
	}
	for _, f := range []form{
		{"OpenAI's", 400, jsonType, `{"error":{"message":"prompt is too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`, "prompt is too long", "context_length_exceeded", "invalid_request_error"},
		{"older vLLM's", 400, jsonType, `{"object":"error","message":"max context is 4096","type":"BadRequestError","param":null,"code":400}`, "max context is 4096", "", "BadRequestError"},
		{"FastAPI's text", 400, jsonType, `{"detail":"no such adapter"}`, "no such adapter", "invalid_request", "invalid_request_error"},
		{"FastAPI's list", 422, "application/json; charset=UTF-8", `{"detail":[{"type":"missing","loc":["body","prompt"],"msg":"Field required","input":null}]}`, "body.prompt: Field required", "invalid_request", "invalid_request_error"},
		{"Anthropic's", 529, jsonType, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}`, "Overloaded", "", "overloaded_error"},
		{"Ollama's", 404, jsonType, `{"error":"model 'x' not found, try pulling it first"}`, "model 'x' not found", "", ""},
		{"Google's", 400, "Application/JSON", "[{\n  \"error\": {\"code\": 400, \"message\": \"bad tool\", \"status\": \"INVALID_ARGUMENT\"}\n}]", "bad tool", "INVALID_ARGUMENT", "invalid_request_error"},
		{"in lines", 400, jsonType, "{\n  \"error\": {\n    \"message\": \"no logprobs\",\n    \"type\": \"x\"\n  }\n}\n", "no logprobs", "", "x"},
		{"a text", 400, "text/plain; charset=utf-8", "temperature must be positive\n", "temperature must be positive", "invalid_request", "invalid_request_error"},
		{"JSON called text", 400, "text/plain", `{"error":{"message":"called text"}}`, "called text", "", ""},
		{"JSON without a type", 409, "", `{"message":"in use"}`, "in use", "conflict", "invalid_request_error"},
		{"a text of 500", 500, "text/plain", "CUDA out of memory", "CUDA out of memory", "internal_error", "server_error"},
		{"a page", 502, "text/html", "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1>nginx</body></html>", "502 Bad Gateway nginx", "service_unavailable", "server_error"},
		{"a path that is not there", 404, jsonType, `{"detail":"Not Found"}`, "does not serve", "unknown_endpoint", "invalid_request_error"},
		{"another method", 405, jsonType, `{"detail":"Method Not Allowed"}`, "does not serve", "unknown_endpoint", "invalid_request_error"},
		{"nothing at all", 500, "", "", "status 500", "internal_error", "server_error"},
	} {
		id := "E1"
		if f.status >= 500 {
			id = "E2"
		}
		row := Row{ID: id, Answer: Plain(f.status, f.kind, f.body), Status: f.status, Words: []string{f.words}, Absent: []string{"engine_crashed", "refused the request", "[DONE]"}, Code: f.code, Type: f.typ, Requests: 1}
		row.Name, row.Stream = "stream, then "+f.name, true
		rows = append(rows, row)
		row.ID, row.Name, row.Stream = "E2", "plain, then "+f.name, false
		rows = append(rows, row)
	}
	slow := Answer{Head(400, "Content-Type: text/plain", "Connection: close"), {Write: "it says "}, {Pause: 2 * time.Second, Write: "more"},
		{Then: Close}}
	torn := Answer{Head(400, "Content-Type: text/plain", "Content-Length: 100"), {Write: "half of its words"}, {Then: Close}}
	return append(rows,
		Row{ID: "E2", Name: "words in two parts", Answer: slow, Status: 400, Words: []string{"it says more"}, Absent: []string{"engine_crashed"}, Requests: 1},
		Row{ID: "E1", Name: "stream, then words in two parts", Stream: true, Answer: slow, Status: 400, Words: []string{"it says more"}, Absent: []string{"engine_crashed"}, Requests: 1},
		Row{ID: "E2", Name: "words that are cut", Answer: torn, Status: 400, Words: []string{"half of its words"}, Absent: []string{"engine_crashed"}, Requests: 1},
		Row{ID: "E11", Name: "Retry-After of a 429", Answer: Plain(429, jsonType, `{"error":{"message":"slow down","type":"requests","code":"rate_limited"}}`, "Retry-After: 7"), Status: 429, Words: []string{"slow down"}, Code: "rate_limited", Type: "requests", RetryAfter: "7", Requests: 1},
		Row{ID: "E11", Name: "Retry-After of a text", Answer: Plain(503, "text/plain", "busy", "rEtRy-AfTeR: 9"), Status: 503, Words: []string{"busy"}, RetryAfter: "9", Requests: 1},
		Row{ID: "E11", Name: "Retry-After of an hour", Answer: Plain(429, "text/plain", "busy", "Retry-After: 3600"), Status: 429, Words: []string{"busy"}, RetryAfter: "55", Requests: 1},
		Row{ID: "E11", Name: "no Retry-After", Answer: Plain(429, "text/plain", "busy"), Status: 429, Words: []string{"busy"}, RetryAfter: "1", Requests: 1},
	)
}

// wholeRows are streams that are answered otherwise, or by another name (E3).
func wholeRows() []Row {
	streamed := []string{chunkRole + "\n\n", chunkText + "\n\n", chunkFinish + "\n\n", end + "\n\n"}
	return []Row{
		{ID: "E3", Name: "a whole answer", Stream: true, Answer: Plain(200, jsonType, wholeChat), Status: 200, Words: []string{`"content":"hello"`, `"finish_reason":"stop"`, end + "\n\n"}, Absent: []string{`"message"`, `"usage"`, "error"}, Success: true, Requests: 1},
		{ID: "E3", Name: "a whole answer in chunks and lines", Stream: true, Answer: Chunked(201, "Application/Json;charset=utf-8", true, strings.ReplaceAll(wholeChat, ",", ",\n"), "\n"), Status: 201, Words: []string{`"content":"hello"`, end + "\n\n"}, Success: true, Requests: 1},
		{ID: "E3", Name: "a whole answer without a type", Stream: true, Answer: Plain(200, "", wholeChat), Status: 200, Words: []string{`"content":"hello"`, end + "\n\n"}, Success: true, Requests: 1},
		{ID: "E3", Name: "a whole answer in chunks without a type", Stream: true, Answer: Chunked(200, "", true, wholeChat[:9], wholeChat[9:50], wholeChat[50:]), Status: 200, Words: []string{`"content":"hello"`, end + "\n\n"}, Success: true, Requests: 1},
		{ID: "E3", Name: "a whole answer of two MiB", Stream: true, Answer: Plain(200, jsonType, strings.Replace(wholeChat, "hello", strings.Repeat("hello", 400<<10), 1)), Status: 200, Words: []string{`"content":"hellohello`, `"finish_reason":"stop"`, end + "\n\n"}, Success: true, Requests: 1},
		{ID: "E3", Name: "a text", Stream: true, Answer: Plain(418, "text/plain", "hello"), Status: 418, Words: []string{"hello"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E3", Name: "a whole message", Stream: true, Path: "/v1/messages", Answer: Plain(200, jsonType, wholeMessage), Status: 200, Words: []string{"event: message_start\n", `"text":"hello"`, "event: message_stop\n"}, Absent: []string{"[DONE]", "event: error"}, Success: true, Requests: 1},
		{ID: "E3", Name: "a whole answer that is an error", Stream: true, Answer: Plain(200, jsonType, `{"error":{"message":"no such lora","code":404}}`), Status: 404, Words: []string{"no such lora"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E3", Name: "another case", Stream: true, Answer: Chunked(200, "Text/Event-Stream;Charset=UTF-8", true, streamed...), Status: 200, Words: []string{`"hel"`, `"lo"`, end + "\n\n"}, Absent: []string{"error"}, Success: true, Requests: 1},
		{ID: "E3", Name: "blanks before the parameter", Stream: true, Answer: Chunked(200, "text/event-stream ; charset=utf-8", true, streamed...), Status: 200, Words: []string{`"hel"`, end + "\n\n"}, Success: true, Requests: 1},
		{ID: "E3", Name: "events without a type", Stream: true, Answer: Answer{Head(200, "Connection: close"), {Write: streamed[0]}, {Pause: time.Second, Write: strings.Join(streamed[1:], "")}, {Then: Close}}, Status: 200, Words: []string{`"hel"`, `"lo"`, end + "\n\n"}, Success: true, Requests: 1},
		{ID: "E3", Name: "events called text", Stream: true, Answer: Chunked(200, "text/plain", true, streamed...), Status: 200, Words: []string{`"hel"`, end + "\n\n"}, Success: true, Requests: 1},
	}
}

// encodedRows are answers that are compressed although the request asks for identity (E4).
func encodedRows() []Row {
	streamed := strings.Join([]string{chunkRole, chunkText, chunkFinish, end, ""}, "\n\n")
	z := gzipped(streamed)
	return []Row{
		{ID: "E4", Name: "gzip, plain", Answer: Plain(200, jsonType, gzipped(wholeChat), "Content-Encoding: gzip"), Status: 200, Words: []string{wholeChat}, Success: true, Requests: 1},
		{ID: "E4", Name: "GZIP, plain", Answer: Plain(200, jsonType, gzipped(wholeChat), "Content-Encoding: GZIP"), Status: 200, Words: []string{wholeChat}, Success: true, Requests: 1},
		{ID: "E4", Name: "deflate, plain", Answer: Plain(200, jsonType, deflated(wholeChat), "Content-Encoding: deflate"), Status: 200, Words: []string{wholeChat}, Success: true, Requests: 1},
		{ID: "E4", Name: "gzip, a whole answer to a stream", Stream: true, Answer: Plain(200, jsonType, gzipped(wholeChat), "Content-Encoding: gzip"), Status: 200, Words: []string{`"content":"hello"`, end + "\n\n"}, Success: true, Requests: 1},
		{ID: "E4", Name: "gzip, stream", Stream: true, Answer: Answer{Head(200, "Content-Type: "+eventsType, "Content-Encoding: gzip", "Transfer-Encoding: chunked"), {Chunk: z[:5]}, {Chunk: z[5:40]}, {Pause: time.Second, Chunk: z[40:]}, {Write: "0\r\n\r\n"}}, Status: 200, Words: []string{`"hel"`, `"lo"`, end + "\n\n"}, Absent: []string{"error"}, Success: true, Requests: 1},
		{ID: "E4", Name: "gzip, error", Answer: Plain(400, jsonType, gzipped(`{"detail":"too long"}`), "Content-Encoding: gzip"), Status: 400, Words: []string{"too long"}, Requests: 1},
		{ID: "E4", Name: "gzip, error to a stream", Stream: true, Answer: Plain(400, jsonType, gzipped(`{"detail":"too long"}`), "Content-Encoding: gzip"), Status: 400, Words: []string{"too long"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E4", Name: "an encoding that is not decoded", Answer: Plain(200, jsonType, "\x8b\x01\x80", "Content-Encoding: br"), Status: 200, Words: []string{"\x8b\x01\x80"}, Success: true, Requests: 1},
		{ID: "E4", Name: "a bomb", Answer: Plain(200, jsonType, gzipped(strings.Repeat(" ", 6<<20)), "Content-Encoding: gzip"), Status: 200, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
	}
}

// frameRows are errors on other endpoints (E9), and error frames: at the beginning (E7), and with a close behind them (E12).
func frameRows() []Row {
	return []Row{
		{ID: "E9", Name: "messages, OpenAI's error", Path: "/v1/messages", Stream: true, Answer: Plain(400, jsonType, `{"error":{"message":"too long","type":"BadRequestError","code":400}}`), Status: 400, Words: []string{`{"type":"error","error":{"type":"invalid_request_error","message":"too long"}}`}, Absent: []string{`"code"`}, Requests: 1},
		{ID: "E9", Name: "messages, a frame of OpenAI's", Path: "/v1/messages", Stream: true, Answer: Chunked(200, eventsType, true, "data: {\"error\":{\"message\":\"slow down\",\"type\":\"rate_limit_error\"}}\n\n"), Status: 429, Words: []string{`{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`}, Absent: []string{`"code"`}, Requests: 1},
		{ID: "E9", Name: "responses, a frame of OpenAI's", Path: "/v1/responses", Stream: true, Answer: Chunked(200, eventsType, true, "data: {\"error\":{\"message\":\"slow down\",\"type\":\"rate_limit_error\"}}\n\n"), Status: 429, Words: []string{"slow down"}, Code: "rate_limit_exceeded", Requests: 1},
		{ID: "E7", Name: "a frame with a text", Stream: true, Answer: Chunked(200, eventsType, true, "data: {\"error\":\"out of memory\"}\n\n"), Status: 500, Words: []string{"out of memory"}, Absent: []string{"engine_crashed", "[DONE]"}, Requests: 1, Blamed: true},
		{ID: "E7", Name: "a frame with a text and an end", Stream: true, Answer: Chunked(200, eventsType, true, "data: {\"error\":\"out of memory\"}\n\n", end+"\n\n"), Status: 500, Words: []string{"out of memory"}, Absent: []string{"engine_crashed", "[DONE]"}, Requests: 1, Blamed: true},
		{ID: "E7", Name: "a frame without its blank line", Stream: true, Answer: Chunked(200, eventsType, true, "data: {\"error\": \"out of memory\"}"), Status: 500, Words: []string{"out of memory"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E7", Name: "a named frame with a text", Stream: true, Answer: Chunked(200, eventsType, false, "event: error\ndata: out of memory\n\n"), Status: 500, Words: []string{"out of memory"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E7", Name: "a frame without a status", Stream: true, Answer: Chunked(200, eventsType, true, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n"), Status: 500, Words: []string{"out of memory"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E7", Name: "a frame of the caller's fault", Stream: true, Answer: Chunked(200, eventsType, true, ": ping\n\n", "data: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow down\"}}\n\n"), Status: 429, Words: []string{"slow down"}, Type: "rate_limit_error", Requests: 1},
		{ID: "E12", Name: "tokens, a frame, a close", Stream: true, Answer: Chunked(200, eventsType, false, chunkRole+"\n\n", "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n"), Status: 200, Words: []string{`"hel"`, "boom"}, Absent: []string{"engine_crashed", "[DONE]"}, Requests: 1, Blamed: true},
		{ID: "E12", Name: "tokens, a frame, an end", Stream: true, Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n", end+"\n\n"), Status: 200, Words: []string{`"hel"`, "boom"}, Absent: []string{"engine_crashed", "[DONE]"}, Requests: 1, Blamed: true},
		{ID: "E12", Name: "tokens, a frame, half an event, a close", Stream: true, Answer: Chunked(200, eventsType, false, chunkRole+"\n\n", "data: {\"type\":\"error\",\"error\":{\"message\":\"boom\"}}\n\ndata: {\"cho"), Status: 200, Words: []string{`"hel"`, "boom"}, Absent: []string{"engine_crashed", "data: {\"cho"}, Requests: 1, Blamed: true},
		{ID: "E12", Name: "tokens, a frame without its blank line, a close", Stream: true, Answer: Chunked(200, eventsType, false, chunkRole+"\n\n", "data: {\"error\":\"boom\"}"), Status: 200, Words: []string{`"hel"`, "boom"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E12", Name: "tokens, a frame, a reset", Stream: true, Answer: Answer{Head(200, "Content-Type: "+eventsType, "Transfer-Encoding: chunked"), {Chunk: chunkRole + "\n\n"}, {Chunk: "data: {\"error\":{\"message\":\"boom\"}}\n\n"}, {Pause: time.Second, Then: Reset}}, Status: 200, Words: []string{"boom"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
	}
}

// endRows are the ends of finished streams (E8).
func endRows() (rows []Row) {
	head := chunkRole + "\n\n"
	for name, tail := range map[string]string{
		"finish without its blank line":           chunkFinish + "\n",
		"finish without its line's end":           chunkFinish,
		"the end mark without its blank line":     chunkFinish + "\n\n" + end + "\n",
		"the end mark without its line's end":     chunkFinish + "\n\n" + end,
		"usage without its blank line":            chunkFinish + "\n\n" + chunkUsage + "\n",
		"finish with carriage returns":            chunkFinish + "\r\n",
		"finish, then half a chunk of usage":      chunkFinish + "\n\n" + chunkUsage[:len(chunkUsage)/2],
		"finish, then a comment without its line": chunkFinish + "\n\n: bye",
	} {
		row := Row{ID: "E8", Name: name, Stream: true, Answer: Chunked(200, eventsType, true, head, tail), Status: 200, Words: []string{`"hel"`, `"finish_reason":"stop"`}, Absent: []string{"error", "engine_crashed"}, Success: true, Requests: 1}
		rows = append(rows, row)
		row.Name += ", the connection ends it"
		row.Answer = Answer{Head(200, "Content-Type: "+eventsType, "Connection: close"), {Write: head}, {Pause: time.Second, Write: tail},
			{Then: Close}}
		rows = append(rows, row)
	}
	return append(rows, Row{ID: "E8", Name: "not finished and without its blank line", Stream: true, Answer: Chunked(200, eventsType, true, head, chunkText), Status: 200, Words: []string{`"hel"`, "before it was complete"}, Absent: []string{"[DONE]"}, Requests: 1, Blamed: true})
}
