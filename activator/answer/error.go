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
	if (up.Status == 404 || up.Status == 405) && (e.JSON == nil && isBareStatus(e.Message) || e.Message == "File Not Found") { // of llama.cpp
		e.JSON = nil
		e.Code, e.Type = openai.UnknownEndpoint, "invalid_request_error"
		e.Message = "The engine of this model does not serve " + path + ": " + e.Message
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

// isBareStatus reports whether an engine's words are only those of a path that it does not
// have.
func isBareStatus(words string) bool {
	words = strings.ToLower(words)
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
