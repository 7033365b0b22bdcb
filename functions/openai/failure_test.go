package openai

import (
	"strings"
	"testing"
	"time"
)

// What engines put into a stream before anything else, as they write it.
func TestFailure(t *testing.T) {
	for _, x := range []struct {
		name, in string
		status   int
		message  string
		stated   bool
	}{
		{"vllm", `data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\ndata: [DONE]\n\n", 500, "EngineCore encountered an issue.", true},
		{"the caller's", `data: {"error":{"message":"Grammar error: \"(\"\n","type":"BadRequestError","param":null,"code":400}}` + "\n\n", 400, "Grammar error: \"(\"\n", true},
		{"behind comments", ": ping\n\n: ping\n\r\ndata:{\"error\":{\"message\":\"x\"}}\r\n\r\n", 500, "x", false},
		{"a text", `data: {"error":"out of memory"}` + "\n\n", 500, "out of memory", false},
		{"behind an event's name, text", "event: error\ndata: out of memory\n\n", 500, "out of memory", false},
		{"Anthropic's", `data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}` + "\n\n", 529, "Overloaded", true},
		{"older vLLM", `data: {"object":"error","message":"x","type":"BadRequestError","param":null,"code":400}` + "\n\n", 400, "x", true},
		{"beside choices", `data: {"id":"c","choices":[{"delta":{}}],"error":{"code":502,"message":"x"}}` + "\n\n", 502, "x", true},
		{"an error that is none", `data: {"error":null,"choices":[]}` + "\n\n", 0, "", false},
		{"behind an event's name", "event: error\ndata: {\"error\":\"no\"}\n\n", 500, "no", false},
		{"a code that is a word", `data: {"error":{"message":"x","code":"server_error"}}` + "\n", 500, "x", false},
		{"a code out of range", `data: {"error":{"message":"x","code":40312}}` + "\n", 500, "x", false},
		{"a chunk first", `data: {"id":"c","choices":[]}` + "\n\n" + `data: {"error":{"code":500}}` + "\n\n", 0, "", false},
		{"a chunk that speaks of errors", `data: {"id":"error","choices":[{"delta":{"content":"{\"error\":1}"}}]}` + "\n\n", 0, "", false},
		{"in lines", "data: {\r\ndata: \"error\": {\"message\": \"x\",\r\ndata: \"code\": 400}\r\ndata: }\r\n\r\n", 400, "x", true},
		{"in lines, not whole", "data: {\ndata: \"error\": {\"message\": \"x\"}\ndata: }\n", 0, "", false},
		{"not whole", `data: {"error":{"message":"x"`, 0, "", false},
		{"the end alone", "data: [DONE]\n\n", 0, "", false},
		{"nothing", "", 0, "", false},
	} {
		e, stated := Failure([]byte(x.in))
		if e == nil {
			e = &Error{}
		}
		if e.Status != x.status || e.Message != x.message || stated != x.stated || e.Code == EngineCrashed {
			t.Errorf("%s: %+v %v", x.name, e, stated)
		}
	}
}

func FuzzFailure(f *testing.F) {
	f.Add([]byte("data: {\"error\":{\"message\":\"x\\u0041\",\"code\":400}}\n\n"))
	f.Add([]byte(": c\ndata:{\"error\":\n"))
	f.Add([]byte("event: error\ndata: [{\"loc\":[1,\"x\"],\"msg\":\"y\"}]\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		e, stated := Failure(p)
		if e == nil {
			if stated {
				t.Fatal("a status of no error")
			}
			return
		}
		if e.Status < 400 || e.Status > 599 || e.Message == "" || len(e.Message) > maxWords {
			t.Fatalf("%+v", e)
		}
		if whole, _ := Failure(append(p, "data: {}\n\n"...)); whole == nil || whole.Status != e.Status {
			t.Fatalf("what follows changes it: %+v, then %+v", e, whole)
		}
	})
}

// TestEngineError: words, type and code of every form reach the client.
func TestEngineError(t *testing.T) {
	now := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for _, x := range []struct {
		name, in      string
		status        int
		message       string
		errType, code string
		own           bool // the body is the engine's
	}{
		{"OpenAI", `{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}`, 400, "too long", "invalid_request_error", "context_length_exceeded", true},
		{"vLLM", `{"error":{"message":"too long","type":"BadRequestError","code":400}}`, 400, "too long", "BadRequestError", "invalid_request", true},
		{"older vLLM", `{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}`, 400, "too long", "BadRequestError", "invalid_request", true},
		{"FastAPI, text", `{"detail":"no such lora"}`, 400, "no such lora", "invalid_request_error", "invalid_request", false},
		{"FastAPI, list", `{"detail":[{"type":"missing","loc":["body","messages",0],"msg":"Field required","input":{}},{"loc":["body"],"msg":"no"}]}`, 422, "body.messages.0: Field required; body: no", "invalid_request_error", "invalid_request", false},
		{"FastAPI, object", `{"detail":{"error":{"message":"x","type":"y"}}}`, 400, "x", "y", "invalid_request", false},
		{"FastAPI, nothing", `{"detail":[]}`, 422, `{"detail":[]}`, "invalid_request_error", "invalid_request", false},
		{"Anthropic", `{"type":"error","error":{"type":"not_found_error","message":"model: x"},"request_id":"r"}`, 404, "model: x", "not_found_error", "not_found", true},
		{"Ollama", `{"error":"model 'x' not found"}`, 404, "model 'x' not found", "invalid_request_error", "not_found", true},
		{"TGI", `{"error":"Input validation error","error_type":"validation"}`, 422, "Input validation error", "validation", "invalid_request", true},
		{"OAuth", `{"error":"invalid_grant","error_description":"it has expired"}`, 401, "invalid_grant: it has expired", "invalid_request_error", "invalid_api_key", true},
		{"Spring", `{"timestamp":"2026","status":500,"error":"Internal Server Error","message":"out of memory","path":"/v1"}`, 500, "Internal Server Error: out of memory", "server_error", "internal_error", true},
		{"Google", `[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED"}}]`, 429, "quota", "rate_limit_error", "RESOURCE_EXHAUSTED", false},
		{"a code of digits", `{"error":{"code":"1302","message":"busy"}}`, 429, "busy", "rate_limit_error", "1302", true},
		{"a message alone", `{"message":"Unauthorized","request_id":"r"}`, 401, "Unauthorized", "invalid_request_error", "invalid_api_key", false},
		{"problem+json", `{"type":"about:blank","title":"Bad","detail":"no tools here","status":400}`, 400, "no tools here", "about:blank", "invalid_request", false},
		{"other JSON", ` {"reasons": 3} `, 400, `{"reasons":3}`, "invalid_request_error", "invalid_request", false},
		{"text", "CUDA out of memory\n", 500, "CUDA out of memory", "server_error", "internal_error", false},
		{"HTML", "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center><hr>nginx</body></html>", 502, "502 Bad Gateway nginx", "server_error", "service_unavailable", false},
		{"torn", `{"error":{"message":"x`, 400, `{"error":{"message":"x`, "invalid_request_error", "invalid_request", false},
		{"bytes", "\x1f\x8b\x08\x00\x00", 400, "The engine answered with status 400 and no text.", "invalid_request_error", "invalid_request", false},
		{"nothing", "", 500, "The engine answered with status 500 and no text.", "server_error", "internal_error", false},
		{"an empty message", ` { "error": {"message" : ""} }`[1:], 500, `{"error":{"message":""}}`, "server_error", "internal_error", true},
		{"empty members", `{"error":{}}`, 500, `{"error":{}}`, "server_error", "internal_error", false},
	} {
		e := EngineError(x.status, nil, []byte(x.in), now)
		if e.Status != x.status || e.Message != x.message || e.Type != x.errType || string(e.Code) != x.code || (e.JSON != nil) != x.own {
			t.Errorf("%s: %q %q %q, own %s", x.name, e.Message, e.Type, e.Code, e.JSON)
		}
		if x.own && string(e.Body()) != x.in {
			t.Errorf("%s: %s", x.name, e.Body())
		}
		frame := string(e.Frame())
		if again, _ := Failure([]byte(frame)); again == nil || again.Message != x.message || strings.Count(frame, "\n") != 2 ||
			!holdsMessage(errorMember([]byte(strings.TrimSpace(strings.TrimPrefix(frame, "data: "))))) {
			t.Errorf("%s: the frame is %s", x.name, frame)
		}
	}
	if e := EngineError(500, nil, []byte(strings.Repeat("\u00e9", maxWords)), now); len(e.Message) != maxWords {
		t.Errorf("%d bytes of words", len(e.Message))
	}
}

// TestEngineAdvice: an engine's own Retry-After is passed on, at most 55 s of it.
func TestEngineAdvice(t *testing.T) {
	now := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for _, x := range []struct {
		status int
		body   string
		head   map[string]string
		retry  bool
		after  int
	}{
		{429, "", map[string]string{"retry-after": "7"}, true, 7},
		{503, "", map[string]string{"retry-after": "7"}, true, 7},
		{529, "", map[string]string{"retry-after": "7"}, true, 7},
		{500, "", map[string]string{"retry-after": "7"}, true, 7},
		{429, "", map[string]string{"retry-after": "Sun, 29 Nov 2026 08:00:12 GMT"}, true, 12},
		{429, "", map[string]string{"retry-after": "Sun, 29 Nov 2026 07:00:12 GMT"}, true, 1},
		{429, "", map[string]string{"retry-after": "3600"}, true, 55},
		{429, "", map[string]string{"retry-after": "1e300"}, true, 55},
		{429, "", map[string]string{"retry-after": "1.2"}, true, 2},
		{429, "", map[string]string{"retry-after-ms": "2500"}, true, 3},
		{429, "", map[string]string{"retry-after": "soon"}, true, 1},
		{429, "", map[string]string{"retry-after": "NaN"}, true, 1},
		{429, "", map[string]string{"retry-after": "-5"}, true, 1},
		{429, "", map[string]string{"x-should-retry": "false"}, false, 0},
		{429, `{"error":{"message":"m","type":"insufficient_quota","code":"insufficient_quota"}}`, nil, false, 0},
		{429, `{"error":{"message":"m","code":"1302"}}`, nil, true, 1},
		{502, "", nil, true, 1},
		{500, "", nil, false, 0},
		{500, "", map[string]string{"x-should-retry": "true"}, true, 1},
		{409, "", map[string]string{"retry-after": "2"}, true, 2},
		{400, "", map[string]string{"retry-after": "2", "x-should-retry": "true"}, false, 0},
	} {
		e := EngineError(x.status, func(name string) string { return x.head[name] }, []byte(x.body), now)
		if e.ShouldRetry() != x.retry || e.RetrySeconds() != x.after {
			t.Errorf("%d %v %s: retry %v, after %d s", x.status, x.head, x.body, e.ShouldRetry(), e.RetrySeconds())
		}
	}
}
