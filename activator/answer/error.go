package answer

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Error is the error that the engine answered a request of this path with, as the client gets
// it.
func (a *Answer) Error(path string, now time.Time) *openai.Error {
	up := a.Response
	status := up.Status
	if status == 499 || status > 599 { // a proxy before the engine was left, not thaw; no class of HTTP
		status = 502
	}
	e := openai.EngineError(status, up.Header, a.Begin, now)
	words, namesPath := strings.CutSuffix(e.Message, ": "+path)                                // as ember's
	isText := bytes.Contains(bytes.ReplaceAll(a.Begin, []byte(" "), nil), []byte(`"error":"`)) // as Spring's
	if (up.Status == 404 || up.Status == 405) && isBareStatus(words, e.JSON == nil || isText || namesPath) || isUnexpected(e.Message) {
		e.JSON = nil
		e.Code, e.Type = openai.UnknownEndpoint, "invalid_request_error"
		e.Message = "The engine of this model does not serve " + path + ": " + words
		if up.Status != 405 {
			e.Status = 404
		}
	} else if up.Status == 401 { // thaw has checked the client's key, and passes none on
		e.JSON = nil
		e.Message = "The engine of this model asks for a key of its own: " + e.Message + " (start it without one, such as without --api-key)"
	}
	return e
}

// NameServed adds to the error of a path that an engine does not have what the model answers, as far
// as its model file tells.
func NameServed(e *openai.Error, path string, m *functions.Model) *openai.Error {
	if e.Code != openai.UnknownEndpoint || m == nil {
		return e
	}
	switch {
	case len(m.Spec.Serves) > 0:
		e.Message += " (its model file says serves: " + strings.Join(strings.Fields(fmt.Sprint(m.Spec.Serves)), ", ") + ")"
	case m.Spec.Engine == functions.EngineEmber:
		e.Message += " (it serves /v1/chat/completions, /v1/completions and /v1/embeddings)"
	case path != "/v1/chat/completions":
		e.Message += " (most engines serve /v1/chat/completions)"
	}
	return e
}

// StreamError is the error of an answer to a stream that is none, whose head has been sent.
func (a *Answer) StreamError(path string, now time.Time) *openai.Error {
	status := a.Response.Status
	if status >= 400 && a.Encoding == "" {
		return a.Error(path, now)
	}
	said := "The engine answered a stream with status " + strconv.Itoa(status)
	if status < 400 {
		status = 502 // the answer cannot be passed on
	}
	if a.Encoding != "" {
		e := openai.EngineError(status, nil, nil, now)
		e.Message = said + " in the encoding " + functions.Clip(a.Encoding) + ", although the request asks for identity."
		return e
	}
	e := openai.EngineError(status, nil, a.Begin, now).Final()
	e.Message = said + " and " + functions.Clip(a.Response.Header("content-type")) + ": " + functions.Clip(e.Message)
	e.JSON = nil
	return e
}

// isUnexpected reports whether an engine's words, whatever the status, are those of a path that it
// does not have: of LM Studio, Express and Python's http.server.
func isUnexpected(words string) bool {
	return strings.HasPrefix(words, "Unexpected endpoint or method") || strings.Contains(words, "Cannot POST /") ||
		strings.Contains(words, "Unsupported method ('POST')")
}

// isBareStatus reports whether an engine's words are only those of a path that it does not
// have; short words may be those of something else where they come in OpenAI's form.
func isBareStatus(words string, foreign bool) bool {
	words = strings.ToLower(words)
	switch {
	case words == "file not found": // llama.cpp's
		return true
	case !foreign:
		return false
	}
	return words == "not found" || words == "method not allowed" || strings.HasPrefix(words, "404") || strings.HasPrefix(words, "405") ||
		strings.HasPrefix(words, "the engine answered with status")
}

// EngineDied reports whether b is what vLLM's front end sends while it ends after
// the death of its core process.
func EngineDied(b []byte) bool {
	return bytes.Contains(b, []byte("EngineCore")) || bytes.Contains(b, []byte("EngineDeadError"))
}

// NodeError is the error of an answer that an agent or a shim, not the engine behind
// it, gives where it has no such replica (any more), or its engine did not answer.
// Engines have no such codes.
func NodeError(status int, body []byte) error {
	switch {
	case status == 503 && (bytes.Contains(body, []byte(`"code":"shutting_down"`)) || bytes.Contains(body, []byte(`"code":"model_loading"`)) || bytes.Contains(body, []byte(`"code":"model_load_failed"`))):
		return upstream.ErrDial
	case bytes.Contains(body, []byte(`"code":"replica_not_found"`)), bytes.Contains(body, []byte(`"code":"replica_not_ready"`)):
		return upstream.ErrDial
	case bytes.Contains(body, []byte(`"code":"engine_hung"`)):
		return fmt.Errorf("%w: %w", upstream.ErrNoAnswer, upstream.ErrCut) // its agent ended it
	case bytes.Contains(body, []byte(`"code":"engine_crashed"`)):
		return upstream.ErrNoAnswer
	}
	return nil
}
