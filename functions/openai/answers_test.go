package openai

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestStatuses: for each status of an engine, what the client is told of it.
func TestStatuses(t *testing.T) {
	codes := map[int]Code{401: InvalidAPIKey, 403: PermissionDenied, 404: NotFound, 405: MethodNotAllowed, 408: RequestTimeout, 409: Conflict, 413: RequestTooLarge,
		429: RateLimitExceeded, 503: QueueFull, 502: ServiceUnavailable, 504: ServiceUnavailable, 529: ServiceUnavailable}
	types := map[int]string{401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
		429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error"}
	for status := 400; status < 600; status++ {
		e := EngineError(status, nil, []byte("no"), time.Time{})
		code, errType := InvalidRequest, "invalid_request_error"
		if status >= 500 {
			code, errType = InternalError, "api_error"
		}
		if c, ok := codes[status]; ok {
			code = c
		}
		if s, ok := types[status]; ok {
			errType = s
		}
		again := status == 429 || status == 502 || status == 503 || status == 504 || status == 529
		if e.Status != status || e.Code != code || e.Message != "no" || e.ShouldRetry() != again || e.RetrySeconds() != map[bool]int{true: 1}[again] {
			t.Errorf("%d: %+v, retry %v after %d", status, e, e.ShouldRetry(), e.RetrySeconds())
		}
		if want := `{"type":"error","error":{"type":"` + errType + `","message":"no"}}`; string(e.For("/v1/messages").Body()) != want {
			t.Errorf("%d: %s, want %s", status, e.For("/v1/messages").Body(), want)
		}
		yes := true
		e.Retry = &yes
		may := status == 408 || status == 409 || status == 425 || status == 429 || status >= 500
		if e.ShouldRetry() != may {
			t.Errorf("%d: a client may retry: %v", status, e.ShouldRetry())
		}
	}
	for errType := range strings.FieldsSeq("authentication_error billing_error permission_error not_found_error " +
		"request_too_large rate_limit_error api_error timeout_error overloaded_error") {
		e := New(InternalError, "x")
		if e.Type = errType; !strings.Contains(string(e.For("/v1/messages").Body()), `"type":"`+errType+`"`) {
			t.Errorf("%s: %s", errType, e.For("/v1/messages").Body())
		}
	}
	for code, status := range map[string]int{"context_length_exceeded": 400, "invalid_prompt": 400, "invalid_value": 400, "content_policy_violation": 400,
		"invalid_api_key": 401, "model_not_found": 404, "rate_limit_exceeded": 429, "insufficient_quota": 429} {
		for errType, want := range map[string]int{"t": status, "api_error": 500} {
			e, stated := Failure([]byte(`data: {"error":{"message":"x","type":"` + errType + `","code":"` + code + `"}}` + "\n"))
			if e == nil || e.Status != want || !stated || e.ShouldRetry() != (want == 429 && code[0] == 'r') {
				t.Errorf("%s of type %s: %+v, stated %v", code, errType, e, stated)
			}
		}
	}
	for errType, status := range map[string]int{"invalid_request_error": 400, "BadRequestError": 400, "authentication_error": 401, "permission_error": 403,
		"not_found_error": 404, "NotFoundError": 404, "request_too_large": 413, "rate_limit_error": 429, "insufficient_quota": 429, "server_error": 500,
		"api_error": 500, "InternalServerError": 500, "internal_error": 500, "overloaded_error": 529, "validation": 422, "template_error": 422, "tool_error": 422, "overloaded": 429} {
		if e, stated := Failure([]byte(`data: {"error":{"message":"x","type":"` + errType + `"}}` + "\n")); e == nil || e.Status != status || !stated {
			t.Errorf("%s: %+v, stated %v", errType, e, stated)
		}
	}
}

// TestAdviceOfEngines: each field of advice alone and against the others.
func TestAdviceOfEngines(t *testing.T) {
	now := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"7": 7 * time.Second, " 7 ": 7 * time.Second, "0.5": time.Second / 2, "0": 0, "-1": 0, "NaN": 0, "Inf": MaxRetryAfter, "-Inf": 0, "": 0, "x": 0, "55": MaxRetryAfter, "56": MaxRetryAfter,
		"54.9":                          54900 * time.Millisecond,
		"Sun, 29 Nov 2026 08:00:30 GMT": 30 * time.Second, "Sunday, 29-Nov-26 08:00:31 GMT": 31 * time.Second, "Sun Nov 29 08:00:32 2026": 32 * time.Second,
		"Sun, 29 Nov 2026 08:00:00 GMT": 0, "Sun, 29 Nov 2026 09:00:00 GMT": MaxRetryAfter, "Sun, 29 Nov 2026 07:59:59 GMT": 0,
	} {
		if got := ParseRetryAfter(value, now, MaxRetryAfter); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
	for _, x := range []struct {
		status            int
		after, ms, should string
		retry             bool
		seconds           int
	}{
		{429, "", "2500", "", true, 3}, {429, "4", "2500", "", true, 3}, {429, "4", "x", "", true, 4}, {429, "0", "2500", "", true, 3}, {429, "4", "0", "", true, 4}, {429, "4", "-5", "", true, 4}, {429, "4", "NaN", "", true, 4}, {429, "", "0", "", true, 1}, {429, "", "-5", "", true, 1},
		{429, "", "x", "", true, 1}, {429, "", "NaN", "", true, 1}, {500, "", "1500", "", true, 2}, {500, "", "x", "", false, 0}, {500, "", "", "true", true, 1},
		{500, "", "", "yes", false, 0}, {500, "5", "", "false", false, 0}, {429, "5", "", "false", false, 0}, {429, "5", "", "true", true, 5}, {503, "", "", "", true, 1},
	} {
		head := map[string]string{"retry-after": x.after, "retry-after-ms": x.ms, "x-should-retry": x.should}
		e := EngineError(x.status, func(name string) string { return head[name] }, nil, now)
		if e.ShouldRetry() != x.retry || e.RetrySeconds() != x.seconds {
			t.Errorf("%+v: retry %v after %d", x, e.ShouldRetry(), e.RetrySeconds())
		}
	}
}

// TestWordsOfErrors: whose words count where an error has several, and the bounds of all.
func TestWordsOfErrors(t *testing.T) {
	nest := func(n int) string { return strings.Repeat(`{"error":`, n) + `"deep"` + strings.Repeat("}", n) }
	list := func(n int) string { return listOf(n, `{"msg":"a"}`) }
	for _, x := range []struct{ in, message, errType, code, param string }{
		{nest(4), "deep", "server_error", "internal_error", ""},
		{nest(5), nest(5), "server_error", "internal_error", ""},
		{`{"detail":` + list(7) + `}`, strings.TrimSuffix(strings.Repeat("a; ", 7), "; "), "server_error", "internal_error", ""},
		{`{"detail":` + list(8) + `}`, strings.TrimSuffix(strings.Repeat("a; ", 8), "; "), "server_error", "internal_error", ""},
		{`{"detail":` + list(9) + `}`, strings.TrimSuffix(strings.Repeat("a; ", 8), "; "), "server_error", "internal_error", ""},
		{`[{"message":"a","type":"t","code":"c","param":"p"},{"message":"b","type":"u","code":"d"},{"code":"e"}]`, "a; b", "t", "c", "p"},
		{`{"error":{"message":"a","type":"t"},"type":"outer","code":"c","param":"p"}`, "a", "t", "c", "p"},
		{`{"error":{"message":"a"},"type":"outer","code":"c","param":"p"}`, "a", "outer", "c", "p"},
		{`{"message":"a","type":"error","code":"c"}`, "a", "server_error", "c", ""},
		{`{"message":"a","code":["c"],"status":"s","param":5}`, "a", "server_error", "s", ""},
		{`{"message":"a","code":"c","status":"s"}`, "a", "server_error", "c", ""},
		{`{"message":"a","status":499}`, "a", "server_error", "internal_error", ""},
		{`{"message":"a","code":399}`, "a", "server_error", "399", ""},
		{`{"message":"a","code":600}`, "a", "server_error", "600", ""},
		{`{"message":"a","code":12.5}`, "a", "server_error", "12.5", ""},
		{`{"message":"a","detail":"b"}`, "a", "server_error", "internal_error", ""},
		{`{"error":"a","message":"b"}`, "a: b", "server_error", "internal_error", ""},
		{`{"error":"a","message":"a","detail":"b"}`, "a: b", "server_error", "internal_error", ""},
		{`{"error":"a","title":"b"}`, "a", "server_error", "internal_error", ""},
		{`{"error":"a","message":"b","detail":"c"}`, "a: b", "server_error", "internal_error", ""},
		{`{"error":{"message":"a"},"detail":"c"}`, "a", "server_error", "internal_error", ""},
		{`{"error":"  ","message":"b"}`, "b", "server_error", "internal_error", ""},
		{`{"detail":[{"loc":["body","a","b"],"msg":"m","type":"missing"}]}`, "body.a.b: m", "server_error", "internal_error", "a/b"},
		{`{"detail":[{"loc":["body"],"msg":"m","type":"missing"}]}`, "body: m", "server_error", "internal_error", ""},
		{`{"detail":[{"loc":[],"msg":"m","type":"missing"}]}`, ": m", "server_error", "internal_error", ""},
		{`{"loc":["a"],"type":"t"}`, `{"loc":["a"],"type":"t"}`, "t", "internal_error", ""},
		{strings.Repeat("[", 5) + `"a"` + strings.Repeat("]", 5), strings.Repeat("[", 5) + `"a"` + strings.Repeat("]", 5), "server_error", "internal_error", ""},
		{`[[[["a"]]]]`, "a", "server_error", "internal_error", ""},
		{`null`, "The engine answered with status 500 and no text.", "server_error", "internal_error", ""},
		{`[]`, "The engine answered with status 500 and no text.", "server_error", "internal_error", ""},
		{`{"a":1}{"message":"b"}`, `{"a":1}{"message":"b"}`, "server_error", "internal_error", ""},
		{`<p>a <b>b</b></p>`, "a b", "server_error", "internal_error", ""},
		{`<title>t &amp; u</title><script>x</script><style>y</style><p>v</p>`, "t & u v", "server_error", "internal_error", ""},
		{`<title> t </title>`, "t", "server_error", "internal_error", ""},
		{"a\x00b", "The engine answered with status 500 and no text.", "server_error", "internal_error", ""},
		{strings.Repeat("a", 79) + strings.Repeat("\xff", 10), strings.Repeat("a", 79) + "\uFFFD", "server_error", "internal_error", ""},
		{`{"error":{"message":"m","type":"` + strings.Repeat("é", 65) + `","code":"` + strings.Repeat("é", 65) + `","param":"` + strings.Repeat("é", 65) + `"}}`, "m", strings.Repeat("é", 64), strings.Repeat("é", 64), strings.Repeat("é", 64)},
		{`{"error":{"message":"m","type":"x` + strings.Repeat("é", 64) + `","code":"` + strings.Repeat("c", 128) + `"}}`, "m", "x" + strings.Repeat("é", 63), strings.Repeat("c", 128), ""},
		{`{"message":"` + strings.Repeat("é", maxWords) + `"}`, strings.Repeat("é", maxWords/2), "server_error", "internal_error", ""},
		{strings.Repeat("a", 2*maxWords) + strings.Repeat("\xff", maxWords), strings.Repeat("a", maxWords), "server_error", "internal_error", ""}, // what is cut off does not count
		{strings.Repeat("a", 3*maxWords), strings.Repeat("a", maxWords), "server_error", "internal_error", ""},
	} {
		e := EngineError(500, nil, []byte(x.in), time.Time{})
		if e.Message != x.message || e.Type != x.errType || string(e.Code) != x.code || e.Param != x.param || !utf8.ValidString(e.Message) {
			t.Errorf("%.200s:\n%.200q %q %q %q", x.in, e.Message, e.Type, e.Code, e.Param)
		}
	}
	const more = `{"error":{"message":"a","more":1},"request_id":"r"}`
	if e := EngineError(400, nil, []byte(more), time.Time{}); string(e.Frame()) != "data: "+more+"\n\n" {
		t.Errorf("a frame loses what the engine wrote: %s", e.Frame())
	}
	// The words stay the engine's own where clients find them there.
	for in, own := range map[string]bool{
		`{"error":{"message":"a"}}`: true, `{"error":"a"}`: true, `{"object":"error","message":"a"}`: true, `{"type":"error","message":"a"}`: true,
		`{"error":{"msg":"a"}}`: false, `{"error":""}`: false, `{"object":"list","message":"a"}`: false, `{"object":"error","msg":"a"}`: false, `[{"error":{"message":"a"}}]`: false,
		`{"error":{"message":"a"}} x`: false, `{"error":{"message":"a"`: false, `{"message":"a"}`: false,
	} {
		if e := EngineError(400, nil, []byte(in), time.Time{}); (e.JSON != nil) != own {
			t.Errorf("%s: own %s", in, e.JSON)
		}
	}
}

// TestEventsOfStreams: functions that cut a stream into events, at every split of streams
// with each kind of line end.
func TestEventsOfStreams(t *testing.T) {
	for in, want := range map[string]int{
		"": 0, "data: a\n": 0, "data: a\n\n": 9, "data: a\n\ndata: b": 9, "data: a\n\ndata: b\n\n": 18, "data: a\r\n\r\n": 11, "data: a\r\n\r\ndata: b\r\n": 11,
		"data: a\n\ndata: b\r\n\r\nx": 20, "data: a\r\n\r\ndata: b\n\nx": 20, "data: a\n\n: c\n: d\ndata": 17, "data: a\n\n: c": 9, ": c\n: d\n": 8, ": c\n\n:": 5,
		"\n\n": 2, "\n\r\n": 3,
	} {
		if got := CompleteEvents([]byte(in)); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
	for in, want := range map[string]bool{
		"data: a\n": true, "data:\n": true, "error: a\n": true, ": c\ndata: a\n": true, "event: x\nerror:a\n": true, "data: a": false, ": data: a\n": false, "event: data\n": false, "": false,
		": c\ndata": false, "\n\ndata: a\n": true,
	} {
		if got := HasData([]byte(in)); got != want {
			t.Errorf("%q: has data %v", in, got)
		}
	}
	for in, want := range map[string]bool{
		"data: [DONE]\n\n": true, "data: {}\n": true, "data: {\ndata: }\n": true, "data: {\n": false, ": c\n": false, "": false, "event: x\ndata: 1\n": true, "data: \n": false, "data: [DONE] x\n": false,
		"data: {\"a\":1,\"a\":2}\n": true,
	} {
		if got := IsWholeEvent([]byte(in)); got != want {
			t.Errorf("%q: whole %v", in, got)
		}
	}
	for in, want := range map[string]string{
		` {"error":{"message":"m","code":429}} `: "429 m", `{"error":"m"}`: "500 m", `{"error":null}`: "", `{"choices":[],"error":"m"}`: "", `{"a":1}`: "", "": "", "x": "",
	} {
		got := ""
		if e := WholeError([]byte(in)); e != nil {
			got = fmt.Sprint(e.Status, " ", e.Message)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	for n, word := range map[int]string{10: "a", 20: "b\nc\x00d", 5000: strings.Repeat("é", 2500)} {
		got := string(AppendReason([]byte(": thaw state=failed\n"), word))
		if oneComment(t, got); !strings.HasPrefix(got, ": thaw state=failed why="+string([]rune(word)[:1])) || len(got) > 500 ||
			n == 20 && !strings.HasSuffix(got, "why=b c d\n") {
			t.Errorf("%.100q: %q", word, got)
		}
	}
	for in, want := range map[string]string{
		"azAZ_09-é\n`{": "az_09", "": "",
	} {
		if got := string(Comment(nil, in, -1, -1, -1)); strings.TrimPrefix(strings.TrimPrefix(got, ": thaw"), " state=") != want+"\n" {
			t.Errorf("%q: %q", in, got)
		}
	}
	for eta, want := range map[time.Duration]string{1: "1", time.Second: "1", time.Second + 1: "2", 1500 * time.Millisecond: "2"} {
		if got := string(Comment(nil, "x", -1, eta, -1)); got != ": thaw state=x eta_s="+want+"\n" {
			t.Errorf("%v: %q", eta, got)
		}
	}
	if got := string(Timeline(nil, []Span{{"a", -time.Second}, {"B!c", 1999 * time.Microsecond}})); got != ": thaw timeline a=0 c=1\n" {
		t.Errorf("%q", got)
	}
}

// TestErrorFrames: errors in whole events become frames of the endpoint's own form, once,
// and every other byte stays.
func TestErrorFrames(t *testing.T) {
	const chunk, object = "data: {\"a\":1}\n\n", `{"error":{"message":"m","code":429}}`
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} {
		for _, x := range []struct {
			in     string
			framed bool // where the endpoint has an event of errors
			line   bool // it is llama.cpp's line
		}{
			{chunk, false, false}, {"data: " + object + "\n\n", true, false}, {"data:" + object + "\r\n\r\n", true, false}, {"event: error\ndata: " + object + "\n\n", false, false},
			{"event: x\ndata: " + object + "\n\n", true, false}, {"error: {\"message\":\"m\",\"code\":429}\n\n", true, true}, {"error: m\n\n", true, true}, {"error:{\"message\"\n\n", true, true},
			{": error: m\n\n", false, false}, {"event: error\n: a comment\ndata: " + object + "\n\n", false, false}, {"data: error: m\n\n", false, false},
		} {
			for _, before := range []string{"", chunk} {
				in := before + x.in + chunk
				got := string(FrameErrors([]byte(in), path, 7))
				if path[4] == 'c' { // no event of errors
					want := in
					if x.line {
						rest, _ := strings.CutPrefix(x.in, "error:")
						object := strings.TrimSpace(rest)
						if !jsontext.Value(object).IsValid() {
							quoted, _ := json.Marshal(object)
							object = string(quoted)
						}
						want = before + `data: {"error":` + object + "}\n\n" + chunk
					}
					if got != want {
						t.Errorf("%s: %q became %q, want %q", path, in, got, want)
					}
					continue
				}
				if !x.framed {
					if got != in {
						t.Errorf("%s: %q became %q", path, in, got)
					}
					continue
				}
				inner, ok := strings.CutPrefix(got, before)
				inner = strings.TrimSuffix(inner, chunk)
				if strings.HasPrefix(x.in, "event: x\n") {
					inner, ok = strings.CutPrefix(inner, "event: x\n")
				}
				if e, _ := Failure([]byte(inner)); !ok || !strings.HasPrefix(inner, "event: error\ndata: {\"type\":\"error\",") ||
					strings.Count(strings.ReplaceAll(inner, "\r", ""), "\n\n") != 1 ||
					e == nil || path == "/v1/responses" != strings.Contains(inner, `"sequence_number":7`) {
					t.Errorf("%s: %q became %q", path, in, got)
				}
			}
		}
	}
}

// TestIDs: what passes as a client's id and as a trace, character by character.
func TestIDs(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if !ValidTrace(trace) {
		t.Error("a trace is none")
	}
	for _, bad := range []string{"", trace[:54], trace + "0", "01" + trace[2:], "00_" + trace[3:]} {
		if ValidTrace(bad) {
			t.Errorf("%q is a trace", bad)
		}
	}
	for c := range 256 {
		for at := range len(trace) {
			b := []byte(trace)
			b[at] = byte(c)
			want := at < 3 && string(b) == trace || at >= 3 && (at == 35 || at == 52) && c == '-' ||
				at >= 3 && at != 35 && at != 52 && strings.IndexByte("0123456789abcdef", byte(c)) >= 0
			if ValidTrace(string(b)) != want {
				t.Errorf("%q: %v", b, !want)
			}
		}
		id := "a" + string([]byte{byte(c)}) + "b"
		want := c < 128 && (strings.IndexByte("._-", byte(c)) >= 0 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
		if ValidID(id) != want || ValidID(id[1:2]) != want || ValidID(id[:2]) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
	if ValidID("") || !ValidID(strings.Repeat("a", 128)) || ValidID(strings.Repeat("a", 129)) {
		t.Error("the length of an id")
	}
	for _, e := range Endpoints {
		if form := strings.HasPrefix(e.Path, "/v1/audio/trans"); !Public(e.Path) || IsForm(e.Path) != form {
			t.Errorf("%s takes a form: %v", e.Path, IsForm(e.Path))
		}
	}
}

// TestStreamAgrees: of random events in random pieces, Stream finds what encoding/json finds
// in them, and with TakeUsage removes the chunks of usage alone.
func TestStreamAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	one := func(all ...string) string { return all[rng.IntN(len(all))] }
	for range 4000 {
		var in, kept strings.Builder
		var want Stream
		later := false // a token may be in another choice than the first
		for range 1 + rng.IntN(6) {
			end := one("\n", "\n", "\r\n")
			var line, chunk string
			choice := func() string {
				return one(`{"index":0,"delta":{"content":"say \"usage\":{\"prompt_tokens\":1}"}}`, `{"delta":{}, "finish_reason" : "stop"}`, `{"delta":{},"finish_reason":null}`,
					`{"text":""}`, `{"text": "x"}`, `{"delta":{"tool_calls":[{"index":0}]}}`, `{"delta":{"tool_calls":[ ]}}`)
			}
			choices := one("[", "[ ") + one("", "", choice(), choice()+", "+choice()) + "]"
			usage := one("null", `{"prompt_tokens":17,"completion_tokens":62}`, `{"completion_tokens": 62, "x":{"a":1}, "prompt_tokens" : 17}`, `{}`)
			switch rng.IntN(8) {
			case 0:
				line = ": usage choices" + end
			case 1:
				line = "id: 5" + end
			case 2:
				line = "event: " + one("error", "response.failed", "response.completed", "response.incomplete", "message_stop", "ping") + end
				switch name := strings.TrimSpace(line[7:]); name {
				case "error", "response.failed":
					want.Failed = true
				case "ping":
				default:
					want.Done = true
				}
			case 3:
				chunk = one(`{"error":{"message":"x"}}`, `{"error":null}`, `[DONE]`, `{"stop_reason":"end_turn"}`, `{"stop_reason":null}`)
			default:
				chunk = one(`{"id":"usage","choices":`+choices+`,"usage":`+usage+`}`, `{"usage": `+usage+`, "choices" : `+choices+`}`, `{"choices":`+choices+`}`)
			}
			if line != "" {
				in.WriteString(line)
				kept.WriteString(line)
				continue
			}
			event := one("data: ", "data:") + chunk + end + end
			in.WriteString(event)
			if chunk == "[DONE]" {
				want.Done = true
				kept.WriteString(event)
				continue
			}
			if strings.Contains(chunk, `"error":{`) {
				want.Failed = true
				kept.WriteString(event)
				continue
			}
			var read struct {
				Choices []struct {
					Delta struct {
						Content string `json:"content"`
						Calls   []any  `json:"tool_calls"`
					} `json:"delta"`
					Text   string  `json:"text"`
					Finish *string `json:"finish_reason"`
				} `json:"choices"`
				Stop  *string `json:"stop_reason"`
				Usage *struct {
					Prompt     int64 `json:"prompt_tokens"`
					Completion int64 `json:"completion_tokens"`
				} `json:"usage"`
			}
			if err := json.Unmarshal([]byte(chunk), &read); err != nil {
				t.Fatal(err)
			}
			want.Finished = want.Finished || read.Stop != nil
			for i, c := range read.Choices {
				want.Finished = want.Finished || c.Finish != nil
				token := c.Delta.Content != "" || c.Text != "" || len(c.Delta.Calls) > 0
				want.Token = want.Token || token && i == 0 // of a name only the first member is looked at
				later = later || token
			}
			counted := read.Usage != nil && (read.Usage.Prompt > 0 || read.Usage.Completion > 0)
			if counted {
				want.Usage = Usage{17, 62, true}
			}
			if !counted || len(read.Choices) > 0 || !strings.Contains(chunk, `"choices"`) {
				kept.WriteString(event)
			}
		}
		for _, take := range []bool{false, true} {
			s := Stream{TakeUsage: take}
			var out bytes.Buffer
			pass(rng, in.String(), func(p []byte) { out.Write(s.Pass(p)) })
			sent := in.String()
			if take {
				sent = kept.String()
			}
			if out.String() != sent {
				t.Fatalf("%q became\n%q, want\n%q", in.String(), out.String(), sent)
			}
			if s.Finished != want.Finished || s.Failed != want.Failed || s.Done != want.Done || s.Usage != want.Usage ||
				want.Token && !s.Token || s.Token && !later {
				t.Fatalf("%q:\n%+v, want\n%+v", in.String(), s, want)
			}
		}
	}
}
