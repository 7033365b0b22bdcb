package rude

import (
	"fmt"
	"strings"
)

// dialectRows are answers that are right by some standard and unlike OpenAI's: lines that end
// with a carriage return alone (E18), JSON in several lines of data (E19), calls of tools
// without an index (E20), NaN, and torn characters in an answer whose form is changed (E21), and
// OpenAI's frame of an error on an endpoint that has an event for it (E22).
func dialectRows() []Row {
	byCR := func(frames ...string) (out []string) {
		for _, f := range frames {
			out = append(out, f+"\r\r")
		}
		return out
	}
	inLines := func(frame string) string {
		return strings.NewReplacer(`,"`, ",\ndata: \"", `{"`, "{\ndata:  \"").Replace(frame) + "\n\n"
	}
	const (
		failure    = `data: {"error":{"message":"too long","code":400}}`
		call       = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"id":"ID","type":"function","function":{"name":"weather","arguments":"{}"}}]},"finish_reason":null}]}` + "\n\n"
		arguments  = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":" "}}]},"finish_reason":null}]}` + "\n\n"
		finish     = chunkFinish + "\n\n"
		done       = end + "\n\n"
		begun      = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[]}}\n\n"
		inner      = `data: {"error":{"message":"out of slots","code":500}}` + "\n\n"
		noProbs    = `"logprobs":{"content":[{"token":"a","logprob":NaN,"top_logprobs":[{"token":"b","logprob":-Infinity}]}]},"finish_reason"`
		clearProbs = `"logprob":null`
	)
	strange := strings.Replace(wholeChat, `"finish_reason"`, noProbs, 1)
	torn := strings.Replace(chunkText, `lo"`, "l\xff\xc3o\"", 1)
	two := []string{`"tool_calls":[{"id":"a",`, `"arguments":"{} "`, `{"id":"b",`, `"finish_reason":"stop"`}
	return []Row{
		{ID: "E18", Name: "lines that end with a carriage return", Stream: true, Answer: Chunked(200, eventsType, true, byCR(chunkRole, chunkText, chunkFinish, end)...), Status: 200, Words: []string{`"hel"`, `"lo"`, end}, Success: true, Requests: 1},
		{ID: "E18", Name: "such lines in single bytes", Stream: true, Answer: Chunked(200, "", true, strings.Split(strings.Join(byCR(chunkRole, chunkFinish, end), ""), "")...), Status: 200, Words: []string{`"hel"`, end}, Success: true, Requests: 1},
		{ID: "E18", Name: "an error in such lines", Stream: true, Answer: Chunked(200, eventsType, true, byCR(failure)...), Status: 400, Words: []string{"too long"}, Absent: []string{"engine_crashed"}, Requests: 1},
		{ID: "E18", Name: "plain, and such lines come", Answer: Chunked(200, eventsType, true, byCR(chunkRole, chunkFinish, end)...), Status: 200, Words: []string{`"object":"chat.completion"`, `"content":"hel"`}, Absent: []string{"data:"}, Requests: 1},
		{ID: "E19", Name: "JSON in several lines", Stream: true, Answer: Chunked(200, eventsType, true, inLines(chunkRole), inLines(chunkFinish)), Status: 200, Words: []string{`"content":"hel"`, `"finish_reason":"stop"`}, Success: true, Requests: 1},
		{ID: "E19", Name: "an error in several lines first", Stream: true, Answer: Chunked(200, eventsType, true, inLines(failure), done), Status: 400, Words: []string{"too long"}, Absent: []string{"engine_crashed", "[DONE]"}, Requests: 1},
		{ID: "E19", Name: "an error in several lines behind a token", Stream: true, Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", inLines(failure)), Status: 200, Words: []string{`"hel"`, "too long"}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true},
		{ID: "E19", Name: "plain, and JSON in several lines comes", Answer: Chunked(200, eventsType, true, inLines(chunkRole), inLines(chunkFinish), done), Status: 200, Words: []string{`"object":"chat.completion"`, `"content":"hel"`}, Absent: []string{"data:"}, Requests: 1},
		{ID: "E20", Name: "plain, and calls without an index stream", Answer: Chunked(200, eventsType, true, strings.Replace(call, "ID", "a", 1), arguments, strings.Replace(call, "ID", "b", 1), finish, done), Status: 200, Words: two, Absent: []string{"data:"}, Requests: 1},
		{ID: "E20", Name: "plain, and calls with ids and no index stream in parts", Answer: Chunked(200, eventsType, true, strings.Replace(call, "ID", "a", 1), strings.Replace(call, "ID", "b", 1), strings.Replace(strings.Replace(arguments, `{"function"`, `{"id":"a","function"`, 1), "ID", "a", 1), finish, done), Status: 200, Words: two, Absent: []string{"data:"}, Requests: 1},
		{ID: "E21", Name: "a whole answer with NaN", Stream: true, Answer: Plain(200, jsonType, strange), Status: 200, Words: []string{`"content":"hello"`, clearProbs, end + "\n\n"}, Absent: []string{"NaN"}, Success: true, Requests: 1},
		{ID: "E21", Name: "plain, with NaN", Answer: Plain(200, jsonType, strange), Status: 200, Words: []string{`"content":"hello"`, clearProbs, clearProbs}, Absent: []string{"NaN", "Infinity"}, Success: true, Requests: 1},
		{ID: "E21", Name: "plain, and NaN streams", Answer: Chunked(200, eventsType, true, strings.Replace(chunkRole, `"finish_reason"`, noProbs, 1)+"\n\n", finish, done), Status: 200, Words: []string{`"content":"hel"`, clearProbs}, Absent: []string{"data:", "NaN"}, Requests: 1},
		{ID: "E21", Name: "plain, and torn characters stream", Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", torn+"\n\n", finish, done), Status: 200, Words: []string{"\"content\":\"hell\ufffdo\""}, Absent: []string{"data:"}, Requests: 1},
		{ID: "E21", Name: "torn characters", Stream: true, Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", torn+"\n\n", finish, done), Status: 200, Words: []string{"l\xff\xc3o", end}, Success: true, Requests: 1},
		{ID: "E22", Name: "messages, OpenAI's frame of an error", Stream: true, Path: "/v1/messages", Answer: Chunked(200, eventsType, true, begun, inner, done), Status: 200, Words: []string{"message_start", "event: error\ndata: {\"type\":\"error\",", "out of slots"}, Requests: 1, Blamed: true},
		{ID: "E22", Name: "messages, llama.cpp's frame of an error", Stream: true, Path: "/v1/messages", Answer: Chunked(200, eventsType, true, begun, "error: out of slots\n\n"), Status: 200, Words: []string{"message_start", "event: error\ndata: {\"type\":\"error\",", "out of slots"}, Requests: 1, Blamed: true},
		{ID: "E22", Name: "messages, an event of its own", Stream: true, Path: "/v1/messages", Answer: Chunked(200, eventsType, true, begun, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n"), Status: 200, Words: []string{"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n"}, Requests: 1, Blamed: true},
		{ID: "E22", Name: "responses, OpenAI's frame of an error", Stream: true, Path: "/v1/responses", Answer: Chunked(200, eventsType, true, "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0}\n\n", inner), Status: 200, Words: []string{"event: error\ndata: {\"type\":\"error\",\"code\":", "out of slots", `"sequence_number":1}`}, Requests: 1, Blamed: true},
	}
}

// foreignRows are answers with a status of success that no client of the endpoint can read:
// nothing, a page, and JSON in lines (E23).
func foreignRows() (rows []Row) {
	page := Plain(200, "text/html", "<html><title>Sign in</title><body>Please sign in</body></html>")
	lines := `{"message":{"content":"hi"},"done":false}` + "\n" + `{"done":true}` + "\n"
	for _, f := range []struct {
		name   string
		answer Answer
		words  string
	}{
		{"nothing with a length", Plain(200, jsonType, ""), "an empty body"},
		{"nothing in chunks", Chunked(200, eventsType, true), "an empty body"},
		{"blanks", Plain(200, jsonType, "\n\n"), "an empty body"},
		{"204", Answer{Head(204)}, "an empty body"},
		{"a page and 200", page, "text/html: Sign in"},
		{"JSON in lines", Chunked(200, "application/x-ndjson", true, lines), "application/x-ndjson: {"},
		{"a text and 200", Plain(200, "text/plain", "Ollama is running"), "text/plain: Ollama is running"},
		{"half an object", Plain(200, jsonType, wholeChat[:80]), "(no answer of OpenAI's API)"},
	} {
		row := Row{ID: "E23", Name: "plain, then " + f.name, Answer: f.answer, Status: 502, Words: []string{f.words}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true}
		if f.name == "nothing in chunks" {
			row.Answer = Chunked(200, jsonType, true)
		}
		rows = append(rows, row)
		row.Answer, row.Name, row.Stream = f.answer, "stream, then "+f.name, true
		if f.name == "nothing in chunks" {
			continue // an event stream that ends at once is one that broke
		}
		rows = append(rows, row)
	}
	object := `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":{"type":"stop"}}]}` + "\n\n"
	rows = append(rows, Row{ID: "E23", Name: "a finish_reason that is an object, no end mark", Stream: true, Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", object), Status: 200, Words: []string{`"hel"`, `"type":"stop"`, end}, Success: true, Requests: 1})
	const failed = `"choices":[{"index":0,"delta":{"content":""},"message":{"content":""},"finish_reason":"error","error":{"code":502,"message":"provider is down"}}]`
	for _, stream := range []bool{false, true} {
		rows = append(rows, Row{ID: "E23", Name: fmt.Sprint("an error in a choice, whole, stream: ", stream), Stream: stream, Answer: Plain(200, jsonType, `{"id":"c",`+failed+`,"usage":{}}`), Status: 502, Words: []string{"provider is down"}, Absent: []string{"engine_crashed", "[DONE]"}, Requests: 1, Blamed: true})
	}
	frame := `data: {"id":"c",` + failed + "}\n\n"
	rows = append(rows, Row{ID: "E23", Name: "an error in a choice behind a token", Stream: true, Answer: Chunked(200, eventsType, true, chunkRole+"\n\n", frame, end+"\n\n"), Status: 200, Words: []string{`"hel"`, `"error":{"message":"provider is down"`}, Absent: []string{"engine_crashed"}, Requests: 1, Blamed: true})
	return append(rows, Row{ID: "E23", Name: "messages, then a page", Path: "/v1/messages", Answer: page, Status: 502, Words: []string{`"type":"error"`, "text/html: Sign in"}, Requests: 1, Blamed: true})
}
