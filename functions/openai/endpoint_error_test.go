package openai

import "testing"

// TestErrorForms: each endpoint has its own form of errors, plain and as an event.
func TestErrorForms(t *testing.T) {
	type row struct {
		e           *Error
		path        string
		body, frame string
	}
	const openaiBody = `{"error":{"message":"a \"b\"","type":"invalid_request_error","param":"model","code":"model_not_found"}}`
	const anthropicBody = `{"type":"error","error":{"type":"not_found_error","message":"a \"b\""}}`
	missing := New(ModelNotFound, `a "b"`)
	own := New(InternalError, "no")
	own.JSON = []byte("{\n\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"no\"},\"request_id\":\"r\"}")
	engines := New(InternalError, "no")
	engines.JSON = []byte(`{"error":{"message":"no","type":"x"}}`)
	rows := []row{
		{missing, "/v1/chat/completions", openaiBody, "data: " + openaiBody + "\n\n"},
		{missing, "/v1/messages", anthropicBody, "event: error\ndata: " + anthropicBody + "\n\n"},
		{missing, "/v1/messages/count_tokens", anthropicBody, "data: " + openaiBody + "\n\n"},
		{missing, "/v1/responses", openaiBody, "event: error\ndata: {\"type\":\"error\",\"code\":\"model_not_found\",\"message\":\"a \\\"b\\\"\",\"param\":\"model\",\"sequence_number\":7}\n\n"},
		{New(EngineCrashed, "x"), "/v1/responses", `{"error":{"message":"x","type":"server_error","param":null,"code":"engine_crashed"}}`, "event: error\ndata: {\"type\":\"error\",\"code\":\"engine_crashed\",\"message\":\"x\",\"param\":null,\"sequence_number\":7}\n\n"},
		{own, "/v1/messages", string(own.JSON), "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"no\"},\"request_id\":\"r\"}\n\n"},
		{engines, "/v1/messages", `{"type":"error","error":{"type":"api_error","message":"no"}}`, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"no\"}}\n\n"},
	}
	for code, errType := range map[Code]string{
		InvalidAPIKey: "authentication_error", PermissionDenied: "permission_error", ModelNotFound: "not_found_error", InvalidJSON: "invalid_request_error",
		RequestTooLarge: "request_too_large", RateLimitExceeded: "rate_limit_error", InsufficientQuota: "rate_limit_error", MethodNotAllowed: "invalid_request_error",
		ModelLoading: "overloaded_error", QueueTimeout: "timeout_error", EngineCrashed: "api_error", InternalError: "api_error",
	} {
		body := `{"type":"error","error":{"type":"` + errType + `","message":"x"}}`
		rows = append(rows, row{New(code, "x"), "/v1/messages", body, "event: error\ndata: " + body + "\n\n"})
	}
	for _, x := range rows {
		before := string(x.e.Body())
		if got := string(x.e.For(x.path).Body()); got != x.body {
			t.Errorf("%s on %s: %s, want %s", x.e.Code, x.path, got, x.body)
		}
		if got := string(x.e.FrameFor(x.path, 7)); got != x.frame {
			t.Errorf("%s on %s: %q, want %q", x.e.Code, x.path, got, x.frame)
		}
		if string(x.e.Body()) != before {
			t.Errorf("%s was changed", x.e.Code)
		}
	}
	// Only what is whole in Anthropic's form stays as it is.
	for in, stays := range map[string]bool{
		`{"type":"error","error":{"type":"x","message":"no"}}`: true, `{"error":{"message":"no","type":"x"},"a":1,"type":"error"}`: true, `{"type":"errors","error":{"type":"x","message":"no"}}`: false,
		`{"error":{"type":"x","message":"no"}}`: false, `{"type":"error","error":{"message":"no"}}`: false, `{"type":"error","error":{"type":"x"}}`: false, `{"type":"error","error":"no"}`: false, `["error"]`: false,
	} {
		e := New(InternalError, "no")
		e.JSON = []byte(in)
		want := in
		if !stays {
			want = `{"type":"error","error":{"type":"api_error","message":"no"}}`
		}
		for _, path := range []string{"/v1/messages", "/v1/messages/count_tokens"} {
			if got := string(e.For(path).Body()); got != want {
				t.Errorf("%s on %s: %s", in, path, got)
			}
		}
	}
	torn := New(InternalError, "no")
	torn.JSON = []byte(`{"type":"error","error":{"type":"x","message":"no"} x`)
	if got := string(torn.FrameFor("/v1/messages", 0)); got != `data: {"error":{"message":"no","type":"server_error","param":null,"code":"internal_error"}}`+"\n\n" {
		t.Errorf("a frame of what is no JSON: %s", got)
	}
	if (*Error)(nil).For("/v1/messages") != nil {
		t.Error("no error became one")
	}
	for events, want := range map[string]int64{
		"": 4, "data: {}\n\n": 4,
		"data: {\"sequence_number\":6}\n\ndata: {\"delta\":\"\\\"sequence_number\\\":9\",\"sequence_number\" : 7}\n\n": 8,
	} {
		if got := NextSequence([]byte(events), 4); got != want {
			t.Errorf("%q: %d, want %d", events, got, want)
		}
	}
}
