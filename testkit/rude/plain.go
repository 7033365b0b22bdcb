package rude

import (
	"strings"
	"time"
)

// plainRows are streams that were not asked for and do not end well (E17): a plain request
// gets one whole answer of them or one error, and waits for neither without bound.
func plainRows() []Row {
	const whole, crashed, hung = `"role":"assistant","content":"hello"`, "engine_crashed", "engine_hung"
	said, begun := chunkRole+"\n\n"+chunkText+"\n\n", Head(200, "Content-Type: "+eventsType, "Transfer-Encoding: chunked")
	finished := said + chunkFinish + "\n\n"
	stream := func(parts ...string) Answer { return Chunked(200, eventsType, true, parts...) }
	open := func(parts ...Step) Answer { return append(append(Answer{begun}, parts...), Step{Then: Hang}) }
	untilClosed := func(text string) Answer {
		return Answer{Head(200, "Content-Type: "+eventsType, "Connection: close"), {Write: text}, {Then: Close}}
	}
	errorFrame := func(fields string) string { return `data: {"error":{"message":"boom"` + fields + "}}\n\n" }
	pings := Answer{begun, {Chunk: said}}
	for range 70 {
		pings = append(pings, Step{Pause: time.Minute, Chunk: ": ping\n\n"})
	}
	pings = append(pings, Step{Then: Hang})

	rows := []Row{
		{Name: "an error midway", Answer: stream(said, errorFrame(`,"code":500`), end+"\n\n"), Status: 500, Words: []string{"boom"}, Blamed: true},
		{Name: "an error midway without a status", Answer: stream(said, errorFrame("")), Status: 500, Words: []string{"boom"}, Blamed: true},
		{Name: "an error midway of the caller's", Answer: stream(said, errorFrame(`,"code":400`)), Status: 400, Words: []string{"boom"}},
		{Name: "an error midway in a named event", Answer: stream(said, "event: error\ndata: out of memory\n\n"), Status: 500, Words: []string{"out of memory"}, Blamed: true},
		{Name: "an error midway in llama.cpp's field", Answer: stream(said, "error: {\"code\":500,\"message\":\"no slot\",\"type\":\"server_error\"}\n\n"), Status: 500, Words: []string{"no slot"}, Blamed: true},
		{Name: "an error midway without its line's end", Answer: stream(said, strings.TrimRight(errorFrame(""), "\n")), Status: 500, Words: []string{"boom"}, Blamed: true},
		{Name: "an error midway, and the connection stays open", Answer: open(Step{Chunk: said + errorFrame(`,"code":503`)}), Status: 503, Words: []string{"boom"}, Blamed: true, Within: 2 * time.Second},
		{Name: "an error behind finish", Answer: stream(finished, errorFrame("")), Status: 500, Words: []string{"boom"}, Blamed: true},
		{Name: "vLLM's last words midway", Answer: stream(said, "data: {\"error\":{\"message\":\"EngineCore encountered an issue\",\"code\":500}}\n\n"), Status: 502, Code: crashed, Blamed: true},

		{Name: "cut in a chunk", Answer: Answer{begun, {Chunk: said}, {Write: "40\r\ndata: {"}, {Then: Close}}, Status: 502, Code: crashed, Words: []string{"in the middle"}, Blamed: true, Died: true},
		{Name: "cut between chunks", Answer: Chunked(200, eventsType, false, said), Status: 502, Code: crashed, Words: []string{"in the middle"}, Blamed: true, Died: true},
		{Name: "ended without a finish", Answer: stream(said), Status: 502, Code: crashed, Words: []string{"before it was complete"}, Blamed: true},
		{Name: "closed without a finish", Answer: untilClosed(said), Status: 502, Code: crashed, Words: []string{"before it was complete"}, Blamed: true},
		{Name: "closed in an event", Answer: untilClosed(said + chunkFinish[:30]), Status: 502, Code: crashed, Words: []string{"before it was complete"}, Blamed: true},
		{Name: "no HTTP midway", Answer: Answer{begun, {Chunk: said}, {Write: "zz\r\n"}, {Then: Hang}}, Status: 502, Code: crashed, Words: []string{"malformed in the middle"}, Blamed: true},

		{Name: "no end mark", Answer: stream(finished, chunkUsage+"\n\n"), Status: 200, Words: []string{whole, `"finish_reason":"stop"`, `"completion_tokens":2`}, Success: true},
		{Name: "no end mark, closed", Answer: untilClosed(finished), Status: 200, Words: []string{whole}, Success: true},
		{Name: "no end mark, half a chunk of usage", Answer: untilClosed(finished + chunkUsage[:40]), Status: 200, Words: []string{whole}, Success: true},
		{Name: "text behind the end mark", Answer: stream(finished + end + "\n\ndata: {\"more\":1}\n\n"), Status: 200, Words: []string{whole}, Absent: []string{"more"}, Success: true},
		{Name: "never closed behind the end mark", Answer: open(Step{Chunk: finished + end + "\n\n"}), Status: 200, Words: []string{whole}, Success: true, Within: 2 * time.Second},
		{Name: "never closed behind the finish", Answer: open(Step{Chunk: finished}), Status: 200, Words: []string{whole}, Success: true, Within: 12 * time.Second},
		{Name: "never closed behind the finish, but comments", Answer: open(Step{Chunk: finished}, Step{Pause: 6 * time.Second, Chunk: ": ping\n\n"}, Step{Pause: 6 * time.Second, Chunk: ": ping\n\n"}), Status: 200, Words: []string{whole}, Success: true, Within: 12 * time.Second},
		{Name: "never closed, usage late behind the finish", Answer: open(Step{Chunk: finished}, Step{Pause: 5 * time.Second, Chunk: chunkUsage + "\n\n"}), Status: 200, Words: []string{whole, `"completion_tokens":2`}, Success: true, Within: 20 * time.Second},

		{Name: "never closed, no finish", Answer: open(Step{Chunk: said}), Status: 504, Code: hung, Blamed: true, Within: 6 * time.Minute},
		{Name: "never closed, no event", Answer: open(), Status: 504, Blamed: true, Within: 6 * time.Minute},
		{Name: "only comments, for longer than an hour", Answer: pings, Status: 504, Code: hung, Blamed: true, Within: 62 * time.Minute},
		{Name: "half a minute between events", Answer: append(Answer{begun, {Chunk: chunkRole + "\n\n"}, {Pause: 30 * time.Second, Chunk: chunkText + "\n\n"}}, stream(chunkFinish + "\n\n" + end + "\n\n")[1:]...), Status: 200, Words: []string{whole}, Success: true},
	}
	for i := range rows {
		r := &rows[i]
		r.ID, r.Name = "E17", "plain, but it streams: "+r.Name
		r.Requests = max(r.Requests, 1)
		if r.Absent = append(r.Absent, "data:"); !r.Success {
			r.Absent = append(r.Absent, `"content"`)
		}
	}
	return rows
}
