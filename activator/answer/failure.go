package answer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/openai/collect"
)

// EngineError is a failure that the engine itself reported before a byte went to the
// client.
type EngineError struct {
	Answer *openai.Error // with the engine's words; nil: the engine is about to exit
}

func (e *EngineError) Error() string {
	if e.Answer == nil {
		return "its core process died"
	}
	return e.Answer.Message
}

// IsDead reports whether the engine is about to exit.
func (e *EngineError) IsDead() bool { return e.Answer == nil }

// Failure looks for an engine's failure in its first bytes: a stream that begins
// with an error frame, a whole answer in place of a stream that is an error, or an answer
// after the death of its core process. A failure is tried on another replica. A refusal is
// the answer: an error of the caller's, or one that does not name a status, which another
// run would most likely repeat.
func (a *Answer) Failure(at *openai.Endpoint, stream, wantsUsage bool) (refusal *openai.Error, failure error) {
	switch {
	case a.Response.Status >= 300 && a.Response.Status < 400:
		return redirectError(a.Response), nil
	case a.Response.Status >= 500 && a.End && EngineDied(a.Begin):
		return nil, &EngineError{}
	case IsSuccess(a.Response.Status) && a.Encoding == "" && a.End && !at.Media() && !a.Events && a.isForeign(at.Usage):
		return a.ForeignError(), nil
	case !IsSuccess(a.Response.Status) || a.Encoding != "", !stream && !a.End:
		return nil, nil
	case a.Events && stream && !at.Usage && bytes.Contains(a.Begin, []byte("event:")):
		return nil, nil // an error has an event of the endpoint's own, which passes
	case a.Events:
		begin := a.Begin
		if a.End { // the last line need not be ended
			begin = append(bytes.Clone(begin), '\n')
		}
		e, stated := openai.Failure(begin)
		switch {
		case e == nil:
			return nil, nil
		case EngineDied([]byte(e.Message)):
			return nil, &EngineError{}
		case stated && e.Status >= 500 && !a.Began:
			return nil, &EngineError{e}
		}
		return e, nil
	case !a.End:
		return nil, nil
	}
	e := openai.WholeError(a.Begin)
	if e == nil && at.Usage {
		e = openai.WordsAlone(a.Begin)
	}
	if e != nil && (stream || at.Path != "/v1/responses") { // there it is a member of answers
		if isUnexpected(e.Message) {
			e = openai.New(openai.UnknownEndpoint, "The engine of this model does not serve "+at.Path+": "+e.Message)
		}
		return e, nil
	}
	if !stream {
		return nil, nil
	}
	events := collect.Stream(at.Path, a.Begin, wantsUsage)
	if events == nil {
		return a.ForeignError(), nil
	}
	a.Begin, a.Events = events, true
	return nil, nil
}

// isForeign reports whether a whole body is nothing, a page, such as that of a proxy's login, JSON
// in lines or a part of an object; or no object, where the answers of the endpoint are.
func (a *Answer) isForeign(isObject bool) bool {
	body := bytes.TrimSpace(bytes.TrimPrefix(a.Begin, []byte("\ufeff")))
	switch string(body) {
	case "", "null", "[]", "{}":
		return true
	}
	if strings.HasSuffix(mediaType(a.Response), "ndjson") {
		return true
	}
	return body[0] == '<' || body[0] == '{' && body[len(body)-1] != '}' || isObject && body[0] != '{'
}

// ForeignError is the error of an answer that a client of the endpoint cannot read although its
// status is that of a success.
func (a *Answer) ForeignError() *openai.Error {
	e := openai.EngineError(502, nil, a.Begin, time.Time{}).Final()
	what, words := "an empty body", e.Message
	if body := bytes.TrimSpace(a.Begin); len(body) > 0 {
		if len(body) <= len("null") {
			words = string(body)
		}
		kind := cmp.Or(functions.Clip(a.Response.Header("content-type")), "no media type")
		what = kind + ": " + functions.Clip(words) + " (no answer of OpenAI's API)"
	}
	e.Message = fmt.Sprintf("The engine answered with status %d and %s", a.Response.Status, what)
	e.JSON = nil
	return e
}

// redirectError is the error of an engine's redirect, which is not followed.
func redirectError(res *upstream.Response) *openai.Error {
	e := openai.New(openai.InternalError, fmt.Sprintf("The engine answered with a redirect (%d) to %q, which is not followed: only one to "+
		"the same host, port and path but for a final slash is, once.", res.Status, functions.Clip(res.Header("location"))))
	e.Status = 502
	return e.Final()
}

// What is said of a replica whose engine failed a request in its own words.
const (
	ErrorBeforeToken = "it answered with an error of its own before any token"
	ErrorInAnswer    = "it sent an error in the middle of an answer"
)

// DescribeFailure describes a failure for the platform, for the metrics, and for the
// client whose second try fails too.
func DescribeFailure(err error, hung bool) (problem, kind string, e *openai.Error) {
	var frame *EngineError
	switch {
	case err == io.ErrUnexpectedEOF:
		return "it ended a stream without an event", "cut",
			openai.New(openai.EngineCrashed, "The engine ended its answer before it wrote anything of it.")
	case hung:
		return "it said nothing within the deadline for its first token", "hung", openai.New(openai.EngineHung, "")
	case errors.As(err, &frame):
		if e = frame.Answer; e == nil {
			e = openai.New(openai.EngineCrashed, "The engine failed before it answered: its core process died. Its log says why.")
		}
		return ErrorBeforeToken, "error_frame", e
	case errors.Is(err, upstream.ErrDial):
		return "it refuses connections", "refused", openai.New(openai.EngineCrashed, "The engine could not be reached.")
	case errors.Is(err, upstream.ErrProtocol):
		words := "The engine's answer is not HTTP."
		if cause := (*upstream.Error)(nil); errors.As(err, &cause) {
			_, why, _ := strings.Cut(cause.Err.Error(), upstream.ErrProtocol.Error()+": ")
			words = "The engine's answer is not HTTP: " + cmp.Or(why, "it came without a request") + "."
		}
		return "its answer is not HTTP", "protocol", openai.New(openai.EngineCrashed, words)
	}
	return "it died before the first byte of an answer", "died", openai.New(openai.EngineCrashed, "")
}

// DescribeBreak describes, as DescribeFailure does, how an engine broke off an answer.
func DescribeBreak(err error) (problem, kind string, e *openai.Error) {
	switch {
	case err == io.EOF:
		return "it ended a stream without its end mark", "cut",
			openai.New(openai.EngineCrashed, "The engine ended the answer before it was complete.")
	case errors.Is(err, upstream.ErrSilent):
		return "it fell silent in the middle of an answer", "hung", openai.New(openai.EngineHung, "")
	case errors.Is(err, upstream.ErrProtocol):
		return "its answer became malformed in the middle", "protocol",
			openai.New(openai.EngineCrashed, "The engine's answer became malformed in the middle.")
	}
	return "it died in the middle of an answer", "died", openai.New(openai.EngineCrashed, "The engine died in the middle of the answer.")
}
