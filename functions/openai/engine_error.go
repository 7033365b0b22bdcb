package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/json/jsontext"
	"fmt"
	"html"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Bounds of what is kept of an engine's error.
const (
	maxWords      = 16 << 10 // of its message, in bytes
	maxWord       = 128      // of its type, code and param, each
	maxErrorDepth = 4        // of the object that has the message
	maxErrorItems = 8        // of a list of errors
)

// EngineError returns the error with which an engine, or a remote API, answered a request.
// Words, status, type and code are the engine's own; a type or code that it does not name
// is that of the status. The forms that it reads:
//
//	{"error":{"message","type","param","code"}}    OpenAI, vLLM, SGLang, llama.cpp
//	{"type":"error","error":{"type","message"}}    Anthropic
//	{"error":"…","error_type"}                     Ollama, TGI
//	{"object":"error","message","type","code"}     older vLLM
//	{"detail":"…"}, {"detail":[{"loc","msg"}]}     FastAPI
//	[{"error":{"code","message","status"}}]        Google
//	text, HTML, nothing
//
// header returns a field of the answer by its name in lower case; nil is an answer without
// fields.
func EngineError(status int, header func(name string) string, body []byte, now time.Time) *Error {
	body = bytes.TrimSpace(body)
	w := readErrorWords(body)
	e := w.toError(status)
	if hasErrorShape(body) && jsontext.Value(body).IsValid() {
		e.JSON = body
	}
	if header != nil {
		e.setAdvice(header, now)
	}
	return e
}

// errorWords is what an engine's error states; an empty or zero field is not stated.
type errorWords struct {
	message, errType, code, param string
	status                        int
}

// readErrorWords reads an error of any form.
func readErrorWords(body []byte) errorWords {
	var v any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if d.Decode(&v) != nil || d.More() {
		return errorWords{message: readPlainWords(body)}
	}
	w := wordsOf(v, 0)
	if w.message == "" {
		if object := jsontext.Value(bytes.Clone(body)); object.Compact() == nil && len(object) > 2 && string(object) != "null" {
			w.message = string(object)
		}
	}
	w.status = cmp.Or(w.status, statusOfType[w.errType], statusOfCode[w.code])
	return w
}

// wordsOf reads a decoded error.
func wordsOf(v any, depth int) (w errorWords) {
	if depth > maxErrorDepth {
		return w
	}
	switch v := v.(type) {
	case string:
		if strings.TrimSpace(v) != "" {
			w.message = v
		}
	case []any:
		var all []string
		for i, item := range v[:min(len(v), maxErrorItems)] {
			one := wordsOf(item, depth+1)
			if i == 0 {
				w = one
			}
			if one.message != "" {
				all = append(all, one.message)
			}
		}
		w.message = strings.Join(all, "; ")
	case map[string]any:
		return wordsOfObject(v, depth)
	}
	return w
}

func wordsOfObject(v map[string]any, depth int) (w errorWords) {
	for _, name := range [...]string{"type", "error_type"} {
		if s, ok := v[name].(string); ok && s != "error" {
			w.errType = cmp.Or(w.errType, s)
		}
	}
	w.param, _ = v["param"].(string)
	for _, name := range [...]string{"code", "status", "status_code", "statusCode"} {
		s := fmt.Sprint(v[name])
		n, _ := strconv.Atoi(s)
		switch v[name].(type) {
		case string, json.Number:
			if n >= 400 && n < 600 {
				w.status = n
			} else if w.code == "" {
				w.code = s
			}
		}
	}
	var all []string
	for _, name := range [...]string{"error", "message", "msg", "error_message", "errorMessage", "error_description", "errmsg", "error_msg", "detail", "errors", "title", "description", "reason", "choices"} {
		inner := wordsOf(v[name], depth+1)
		if len(all) == 0 {
			w = inner.over(w)
		}
		if inner.message != "" && (len(all) == 0 || name != "title" && len(all) == 1 && all[0] != inner.message && isString(v["error"])) {
			all = append(all, inner.message)
		}
	}
	w.message = strings.Join(all, ": ")
	if place, ok := v["loc"].([]any); ok && w.message != "" { // a parameter that FastAPI refuses; the type is that of the check
		var path []string
		for _, p := range place {
			path = append(path, fmt.Sprint(p))
		}
		w.message, w.errType = strings.Join(path, ".")+": "+w.message, ""
		w.param = strings.Join(path[min(1, len(path)):], "/")
	}
	return w
}

func isString(v any) bool { _, ok := v.(string); return ok }

// over returns w with what it does not state from outer.
func (w errorWords) over(outer errorWords) errorWords {
	w.errType, w.code = cmp.Or(w.errType, outer.errType), cmp.Or(w.code, outer.code)
	w.param, w.status = cmp.Or(w.param, outer.param), cmp.Or(w.status, outer.status)
	return w
}

var (
	htmlTitle  = regexp.MustCompile(`(?is)<title[^>]*>(.*?)</title>`)
	htmlHidden = regexp.MustCompile(`(?is)<(script|style|title)[^>]*>.*?</(script|style|title)>|<[^>]*>`)
)

// readPlainWords returns the words of an answer that is no JSON; none of one that is no text.
func readPlainWords(body []byte) string {
	if len(body) > 2*maxWords {
		body = body[:2*maxWords]
	}
	s := strings.ToValidUTF8(string(body), "\uFFFD")
	if bytes.IndexByte(body, 0) >= 0 || strings.Count(string([]rune(string(body))), "\uFFFD") > len(body)/8 { // of each bad byte
		return ""
	}
	if !strings.HasPrefix(s, "<") {
		return s
	}
	var all []string
	if m := htmlTitle.FindStringSubmatch(s); m != nil {
		all = strings.Fields(html.UnescapeString(m[1]))
	}
	title := strings.Join(all, " ")
	text := strings.Join(strings.Fields(html.UnescapeString(htmlHidden.ReplaceAllString(s, " "))), " ")
	if strings.HasPrefix(text, title) {
		return text
	}
	return strings.TrimSpace(title + " " + text)
}

// toError makes the answer of a status.
func (w errorWords) toError(status int) *Error {
	e := New(codeOfStatus(status), "")
	e.Status = status
	e.Param = functions.ClipTo(w.param, maxWord)
	if e.Message = functions.ClipTo(w.message, maxWords); e.Message == "" {
		e.Message = "The engine answered with status " + strconv.Itoa(status) + " and no text."
	}
	e.Type = cmp.Or(functions.ClipTo(w.errType, maxWord), e.Type)
	e.Code = cmp.Or(Code(functions.ClipTo(w.code, maxWord)), e.Code)
	retry := false
	switch status {
	case 429, 502, 503, 504, 529:
		retry = e.Code != InsufficientQuota && e.Type != string(InsufficientQuota)
	}
	if e.Retry = &retry; retry {
		e.RetryAfter = time.Second
	}
	return e
}

// codesOfStatus has the catalogue's codes for an engine's status. None of them means that the
// engine died: it answered.
var codesOfStatus = map[int]Code{
	401: InvalidAPIKey,
	403: PermissionDenied,
	404: NotFound,
	405: MethodNotAllowed,
	408: RequestTimeout,
	409: Conflict,
	413: RequestTooLarge,
	429: RateLimitExceeded,
	503: QueueFull,
	502: ServiceUnavailable, 504: ServiceUnavailable, 529: ServiceUnavailable,
}

func codeOfStatus(status int) Code {
	if status < 500 {
		return cmp.Or(codesOfStatus[status], InvalidRequest)
	}
	return cmp.Or(codesOfStatus[status], InternalError)
}

// statusOfType has the status that an error of a type has at OpenAI, Anthropic, vLLM and TGI.
var statusOfType = map[string]int{
	"invalid_request_error": 400, "BadRequestError": 400,
	"authentication_error": 401,
	"permission_error":     403,
	"not_found_error":      404, "NotFoundError": 404,
	"request_too_large": 413,
	"rate_limit_error":  429, "insufficient_quota": 429,
	"server_error": 500, "api_error": 500, "InternalServerError": 500, "internal_error": 500,
	"overloaded_error": 529,
	"validation":       422, "template_error": 422, "tool_error": 422, "overloaded": 429,
}

// statusOfCode has the status that an error of a code has at OpenAI, where no type says it.
var statusOfCode = map[string]int{
	"context_length_exceeded": 400, "invalid_prompt": 400, "invalid_value": 400, "content_policy_violation": 400,
	"invalid_api_key": 401, "model_not_found": 404,
	"rate_limit_exceeded": 429, "insufficient_quota": 429,
}

// setAdvice takes the engine's own advice on when to try again.
func (e *Error) setAdvice(header func(name string) string, now time.Time) {
	after := ParseRetryAfter(header("retry-after"), now, MaxRetryAfter)
	if ms, _ := strconv.ParseFloat(header("retry-after-ms"), 64); ms > 0 { // the official clients read it first
		after = secondsOf(ms/1000, MaxRetryAfter)
	}
	retry := *e.Retry
	if after > 0 {
		retry, e.RetryAfter = true, after
	}
	switch header("x-should-retry") {
	case "true":
		retry = true
	case "false":
		retry = false
	}
	if e.Retry = &retry; retry && e.RetryAfter == 0 {
		e.RetryAfter = time.Second
	}
}

// ParseRetryAfter reads a Retry-After field, seconds or a date; 0 where there is none or it
// is over. It returns at most maximum.
func ParseRetryAfter(value string, now time.Time, maximum time.Duration) time.Duration {
	value = strings.TrimSpace(value)
	if s, err := strconv.ParseFloat(value, 64); err == nil {
		return secondsOf(s, maximum)
	}
	at, _ := http.ParseTime(value) // of another text the zero time, which is over
	return secondsOf(at.Sub(now).Seconds(), maximum)
}

func secondsOf(s float64, maximum time.Duration) time.Duration {
	if math.IsNaN(s) || s <= 0 {
		return 0
	}
	return time.Duration(min(s, maximum.Seconds()) * float64(time.Second))
}

// IsErrorObject reports whether a JSON object, such as a chunk of a stream, is an error: it
// or its first choice has a member error that is not empty, or it calls itself one, or has an
// error_message and no choices.
func IsErrorObject(d []byte) bool {
	if len(d) == 0 || d[0] != '{' || !bytes.Contains(d, []byte(`"error`)) {
		return false
	}
	isError, hasWords, hasChoices := false, false, false
	eachMember(d, func(name, value []byte) bool {
		switch string(name) {
		case "error":
			isError = isTruthy(value)
		case "object", "type":
			isError = string(value) == `"error"`
		case "error_message":
			hasWords = isTruthy(value)
		case "choices":
			hasChoices, isError = isTruthy(value), isFailedChoice(value)
		}
		return !isError
	})
	return isError || hasWords && !hasChoices
}

// isFailedChoice reports whether the first of the choices is an error, as gateways to several APIs write it.
func isFailedChoice(choices []byte) bool {
	if !bytes.Contains(choices, []byte(`"error"`)) || choices[0] != '[' {
		return false
	}
	v := memberNamed(choices[skipSpace(choices, 1):], "error")
	return v != nil && isTruthy(v)
}

// hasErrorShape reports whether clients find the words of an error by themselves: it has a
// member error, or is of older vLLM's form.
func hasErrorShape(d []byte) bool {
	v := errorMember(d)
	return holdsMessage(v) || len(v) > 2 && v[0] == '"' || v == nil && IsErrorObject(d) && memberValue(d, "message") >= 0
}

// holdsMessage reports whether v is an object with a message, as official clients read it.
func holdsMessage(v []byte) bool {
	return len(v) > 0 && v[0] == '{' && memberValue(v, "message") >= 0
}

// errorMember returns the member error of an object; nil if it has none.
func errorMember(d []byte) []byte { return memberNamed(d, "error") }

// memberNamed returns the first member of a name of an object; nil if it has none.
func memberNamed(d []byte, name string) (v []byte) {
	if len(d) > 0 && d[0] == '{' {
		eachMember(d, func(n, value []byte) bool {
			if string(n) == name {
				v = value
			}
			return v == nil
		})
	}
	return v
}

// eachMember calls yield with each member of an object. A malformed value is the rest of d,
// and the last.
func eachMember(d []byte, yield func(name, value []byte) bool) {
	i := skipSpace(d, 1)
	for {
		end, _, err := scanString(d, i)
		if err != nil {
			return
		}
		name := d[i+1 : end-1]
		if i = skipSpace(d, end); i >= len(d) || d[i] != ':' {
			return
		}
		i = skipSpace(d, i+1)
		if end, _, err = scanValue(d, i, 1, nil); err != nil {
			end = len(d)
		}
		if i == end || !yield(name, d[i:end]) {
			return
		}
		if i = skipSpace(d, end); i >= len(d) || d[i] != ',' {
			return
		}
		i = skipSpace(d, i+1)
	}
}

// isTruthy reports whether a JSON value is neither null, false, zero nor empty.
func isTruthy(v []byte) bool {
	return !slices.Contains([]string{"null", "false", "0", `""`, "{}", "[]"}, string(v))
}
