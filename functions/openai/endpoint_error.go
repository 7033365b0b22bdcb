package openai

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"strconv"
	"strings"
)

// ollamaPaths follow /api/ in Ollama's API, whose clients print an error that is a text alone.
const ollamaPaths = " tags ps show version chat generate embed embeddings pull push create copy delete blobs "

// For returns e in the form of the endpoint at path: Anthropic's on the messages endpoints,
// Ollama's on those of its API, e itself on others. e may be nil.
func (e *Error) For(path string) *Error {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/api/"), "/")
	if e != nil && strings.HasPrefix(path, "/api/") && strings.Contains(ollamaPaths, " "+first+" ") {
		own := *e
		own.JSON = append(appendQuoted([]byte(`{"error":`), e.Message), '}')
		return &own
	}
	if e == nil || path != "/v1/messages" && !strings.HasPrefix(path, "/v1/messages/") || isAnthropicError(e.JSON) {
		return e
	}
	own := *e
	own.JSON = appendQuoted([]byte(`{"type":"error","error":{"type":`), e.anthropicType())
	own.JSON = append(appendQuoted(append(own.JSON, `,"message":`...), e.Message), '}', '}')
	return &own
}

// isAnthropicError reports whether d is {"type":"error","error":{"type","message"}}.
func isAnthropicError(d []byte) bool {
	inner := errorMember(d)
	return holdsMessage(inner) && memberValue(inner, "type") >= 0 && string(memberNamed(d, "type")) == `"error"`
}

// anthropicType is the error's type among those of Anthropic's API: its own if that is one of
// them, else that of its status.
func (e *Error) anthropicType() string {
	switch e.Type {
	case "authentication_error", "billing_error", "permission_error", "not_found_error", "request_too_large", "rate_limit_error", "api_error",
		"timeout_error", "overloaded_error":
		return e.Type
	}
	if e.Status < 500 {
		return cmp.Or(anthropicTypes[e.Status], "invalid_request_error")
	}
	return cmp.Or(anthropicTypes[e.Status], "api_error")
}

var anthropicTypes = map[int]string{
	401: "authentication_error",
	402: "billing_error",
	403: "permission_error",
	404: "not_found_error",
	413: "request_too_large",
	429: "rate_limit_error",
	504: "timeout_error",
	503: "overloaded_error", 529: "overloaded_error",
}

// FrameFor is the error as one event of a stream in the form of the endpoint at path.
// sequence is the number of the event, which those of the responses endpoint have.
func (e *Error) FrameFor(path string, sequence int64) []byte {
	var d jsontext.Value
	switch path {
	case "/v1/messages":
		if d = bytes.Clone(e.For(path).JSON); d.Compact() != nil {
			return e.Frame()
		}
	case "/v1/responses":
		d = appendQuoted([]byte(`{"type":"error","code":`), string(e.Code))
		d = appendParam(appendQuoted(append(d, `,"message":`...), e.Message), e.Param)
		d = append(strconv.AppendInt(append(d, `,"sequence_number":`...), sequence, 10), '}')
	default:
		return e.Frame()
	}
	return append(append([]byte("event: error\ndata: "), d...), '\n', '\n')
}

// NextSequence is the number of the event that follows events of the responses endpoint; next
// if they have no number.
func NextSequence(events []byte, next int64) int64 {
	if i := bytes.LastIndex(events, []byte(`"sequence_number"`)); i >= 0 {
		if n, ok := memberNumber(events[i:], "sequence_number"); ok {
			return n + 1
		}
	}
	return next
}
