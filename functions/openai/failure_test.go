package openai

import "testing"

// What engines put into a stream before anything else, as they write it.
func TestFailure(t *testing.T) {
	for _, x := range []struct {
		name, in string
		status   int
		message  string
		ok       bool
	}{
		{"vllm", `data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\ndata: [DONE]\n\n", 500, "EngineCore encountered an issue.", true},
		{"the caller's", `data: {"error":{"message":"Grammar error: \"(\"\n","type":"BadRequestError","param":null,"code":400}}` + "\n\n", 400, "Grammar error: \"(\"\n", true},
		{"behind comments", ": ping\n\n: ping\n\r\ndata:{\"error\":{\"message\":\"x\"}}\r\n\r\n", 500, "x", true},
		{"behind an event's name", "event: error\ndata: {\"error\":\"no\"}\n\n", 500, "", true},
		{"a code that is a word", `data: {"error":{"message":"x","code":"server_error"}}` + "\n", 500, "x", true},
		{"a code out of range", `data: {"error":{"message":"x","code":40312}}` + "\n", 500, "x", true},
		{"a chunk first", `data: {"id":"c","choices":[]}` + "\n\n" + `data: {"error":{"code":500}}` + "\n\n", 0, "", false},
		{"a chunk that speaks of errors", `data: {"id":"error","choices":[{"delta":{"content":"{\"error\":1}"}}]}` + "\n\n", 0, "", false},
		{"not whole", `data: {"error":{"message":"x"`, 0, "", false},
		{"the end alone", "data: [DONE]\n\n", 0, "", false},
		{"nothing", "", 0, "", false},
	} {
		status, message, ok := Failure([]byte(x.in))
		if status != x.status || message != x.message || ok != x.ok {
			t.Errorf("%s: %d %q %v", x.name, status, message, ok)
		}
	}
}

func FuzzFailure(f *testing.F) {
	f.Add([]byte("data: {\"error\":{\"message\":\"x\\u0041\",\"code\":400}}\n\n"))
	f.Add([]byte(": c\ndata:{\"error\":\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		status, _, ok := Failure(p)
		if ok != (status != 0) || ok && (status < 400 || status > 599) {
			t.Fatalf("%d %v", status, ok)
		}
		if whole, _, again := Failure(append(p, "data: {}\n\n"...)); ok && (!again || whole != status) {
			t.Fatalf("what follows changes it: %d, then %d", status, whole)
		}
	})
}
