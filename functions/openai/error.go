package openai

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"math"
	"slices"
	"strconv"
	"time"
)

// Code is the machine-readable reason of an error, the "code" field on the wire.
type Code string

// The catalogue; lookup has the answer of each.
const (
	InvalidAPIKey            Code = "invalid_api_key"
	ModelNotFound            Code = "model_not_found"
	InvalidJSON              Code = "invalid_json"
	InvalidRequest           Code = "invalid_request" // a head or form that is not strict
	InvalidValue             Code = "invalid_value"
	UnsupportedParameter     Code = "unsupported_parameter"
	MissingRequiredParameter Code = "missing_required_parameter"
	UnknownEndpoint          Code = "unknown_endpoint"
	MethodNotAllowed         Code = "method_not_allowed"
	RequestTimeout           Code = "request_timeout"
	RequestTooLarge          Code = "request_too_large"
	UnsupportedEncoding      Code = "unsupported_encoding"
	HeadTooLarge             Code = "request_header_fields_too_large"
	MisdirectedRequest       Code = "misdirected_request" // Host is not ours
	OriginNotAllowed         Code = "origin_not_allowed"
	DataClassRefused         Code = "data_class_refused" // the data of the request may not be sent to this Remote
	PermissionDenied         Code = "permission_denied"
	NotFound                 Code = "not_found"
	CacheMiss                Code = "cache_miss" // the request takes an answer from the cache only
	Conflict                 Code = "conflict"
	ContextLengthExceeded    Code = "context_length_exceeded"
	RequestQuarantined       Code = "request_quarantined"
	CompositionCycle         Code = "composition_cycle" // the request went through too many servers
	AdapterNotFound          Code = "adapter_not_found"
	AdapterInvalid           Code = "adapter_invalid"
	AdapterUnavailable       Code = "adapter_unavailable"
	RateLimitExceeded        Code = "rate_limit_exceeded"
	InsufficientQuota        Code = "insufficient_quota"
	GPUQuotaExceeded         Code = "gpu_quota_exceeded"
	PrewarmBudgetExceeded    Code = "prewarm_budget_exceeded"
	QueueFull                Code = "queue_full"
	ModelLoading             Code = "model_loading"
	ModelLoadFailed          Code = "model_load_failed"
	ShuttingDown             Code = "shutting_down"
	EngineCrashed            Code = "engine_crashed"
	EngineHung               Code = "engine_hung"
	QueueTimeout             Code = "queue_timeout"
	ServiceUnavailable       Code = "service_unavailable" // what a host leads to cannot be reached
	InternalError            Code = "internal_error"
)

const (
	typeRequest = "invalid_request_error"
	typeServer  = "server_error"
	typeRate    = "rate_limit_error"
)

type catalogueRow struct {
	status  int
	errType string
	param   string        // where the fault always lies in one place
	after   time.Duration // Retry-After unless the caller passes another; 0: the row never has one
	again   bool          // x-should-retry
	message string        // the default
}

// catalogue has all rows but that of InternalError. A retry is advised only with 429, 502, 503
// and 504: openai clients obey the advice even on a 400.
var catalogue = map[Code]catalogueRow{
	InvalidAPIKey:            {401, typeRequest, "", 0, false, "Incorrect API key provided."},
	ModelNotFound:            {404, typeRequest, "model", 0, false, "The model does not exist."},
	InvalidJSON:              {400, typeRequest, "", 0, false, "The body is not valid JSON."},
	InvalidRequest:           {400, typeRequest, "", 0, false, "The request is not well formed."},
	InvalidValue:             {400, typeRequest, "", 0, false, "A parameter has a value that is not allowed."},
	UnsupportedParameter:     {400, typeRequest, "", 0, false, "A parameter is not supported."},
	MissingRequiredParameter: {400, typeRequest, "model", 0, false, "You must provide a model parameter."},
	UnknownEndpoint:          {404, typeRequest, "", 0, false, "Unknown endpoint."},
	NotFound:                 {404, typeRequest, "", 0, false, "Not found."},
	CacheMiss:                {404, typeRequest, "", 0, false, "Not found."},
	MethodNotAllowed:         {405, typeRequest, "", 0, false, "This method is not allowed here."},
	RequestTimeout:           {408, typeRequest, "", 0, false, "The request arrived too slowly."},
	Conflict:                 {409, typeRequest, "", 0, false, "The request conflicts with the present state."},
	RequestTooLarge:          {413, typeRequest, "", 0, false, "The body is too large."},
	UnsupportedEncoding:      {415, typeRequest, "", 0, false, "Compressed bodies are not accepted: send the body without Content-Encoding."},
	MisdirectedRequest:       {421, typeRequest, "", 0, false, "This server does not answer for that host."},
	RequestQuarantined:       {422, typeRequest, "", 0, false, "This request has crashed engines before and is not run again."},
	CompositionCycle:         {400, typeRequest, "", 0, false, "The request goes through too many functions."},
	AdapterNotFound:          {404, typeRequest, "model", 0, false, "The adapter does not exist."},
	AdapterInvalid:           {400, typeRequest, "model", 0, false, "The adapter does not fit the model."},
	AdapterUnavailable:       {503, typeServer, "", 5 * time.Second, true, "The adapter could not be loaded now."},
	HeadTooLarge:             {431, typeRequest, "", 0, false, "The request's head is too large."},
	OriginNotAllowed:         {403, typeRequest, "", 0, false, "This origin is not allowed."},
	DataClassRefused:         {403, typeRequest, "model", 0, false, "The data of this request may not be sent there."},
	PermissionDenied:         {403, typeRequest, "", 0, false, "This key may not do that."},
	ContextLengthExceeded:    {400, typeRequest, "", 0, false, "The prompt is longer than the model's context."},
	RateLimitExceeded:        {429, typeRate, "", time.Second, true, "Rate limit reached."},
	InsufficientQuota:        {429, "insufficient_quota", "", 0, false, "The team's budget is used up."},
	GPUQuotaExceeded:         {429, typeRate, "", 30 * time.Second, true, "The team's GPU quota is in use."},
	PrewarmBudgetExceeded:    {429, typeRate, "", time.Minute, true, "The budget of prewarms is used up."},
	QueueFull:                {503, typeServer, "", 5 * time.Second, true, "The queue for this model is full (queue.requests and queue.bytes of its model file)."},
	ModelLoading:             {503, typeServer, "", 10 * time.Second, true, "The model is loading."},
	ModelLoadFailed:          {503, typeServer, "", 0, false, "The model could not be loaded."},
	ServiceUnavailable:       {503, typeServer, "", 5 * time.Second, true, "The service cannot be reached now."},
	ShuttingDown:             {503, typeServer, "", time.Second, true, "The server is shutting down."},
	EngineCrashed:            {502, typeServer, "", time.Second, true, "The engine died before it answered."},
	EngineHung:               {504, typeServer, "", time.Second, true, "The engine stopped making progress."},
	QueueTimeout:             {504, typeServer, "", 5 * time.Second, true, "No replica took the request in time (queue.wait of its model file, or the bound that the request sets)."},
}

func lookup(c Code) catalogueRow {
	if row, ok := catalogue[c]; ok {
		return row
	}
	return catalogueRow{500, typeServer, "", 0, false, "Something went wrong inside the server."}
}

// MaxRetryAfter bounds Retry-After on the wire.
const MaxRetryAfter = 55 * time.Second

// Detail is the extra "thaw" object of an error: how far a cold start is.
type Detail struct {
	Phase    string        // a word of the contracts; empty: omitted
	Progress int           // percent, 0 to 100; negative: omitted
	ETA      time.Duration // zero or negative: omitted
}

// Error is one answer of the catalogue. Make one with [New], then set what is
// known better; the zero RetryAfter means the row's own.
type Error struct {
	Status     int    // HTTP status
	Type       string // "type" on the wire
	Code       Code   // "code" on the wire
	Message    string // for people; it contains all that matters, because LiteLLM drops the code
	Param      string // a JSON pointer or field name; empty is null
	RetryAfter time.Duration
	Retry      *bool   // x-should-retry; nil is the row's advice
	Allow      string  // of a 405: the methods that are allowed
	Thaw       *Detail // nil: no "thaw" object
	JSON       []byte  // an engine's own answer, whose bytes are the body; nil: the body is made of the fields above
}

// New makes the catalogue's answer for code. An empty message means the row's
// own; a code outside the catalogue is answered as a 500.
func New(code Code, message string) *Error {
	r := lookup(code)
	message = cmp.Or(message, r.message)
	return &Error{Status: r.status, Type: r.errType, Code: code, Message: message, Param: r.param}
}

// With returns e with param set, for chaining.
func (e *Error) With(param string) *Error {
	e.Param = param
	return e
}

// After returns e with RetryAfter set, for chaining.
func (e *Error) After(d time.Duration) *Error {
	e.RetryAfter = d
	return e
}

// Final returns e with the advice not to retry, for chaining: a crash that was
// already retried once.
func (e *Error) Final() *Error {
	e.Retry = new(false)
	return e
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// ShouldRetry is the value of x-should-retry.
func (e *Error) ShouldRetry() bool {
	if !slices.Contains([]int{408, 409, 425, 429}, e.Status) && e.Status < 500 {
		return false // official clients obey it even on a 400
	}
	if e.Retry != nil {
		return *e.Retry
	}
	return lookup(e.Code).again
}

// RetrySeconds is Retry-After in whole seconds: 1 to 55, or 0 for none. Terminal
// errors have none: the AI SDK would sleep and then retry regardless.
func (e *Error) RetrySeconds() int {
	d := cmp.Or(max(e.RetryAfter, 0), lookup(e.Code).after)
	if !e.ShouldRetry() {
		return 0
	}
	return int(math.Ceil(min(d, MaxRetryAfter).Seconds()))
}

// Header yields the header fields of the answer, content type included; the
// names are in lower case.
func (e *Error) Header(yield func(name, value string) bool) {
	after, authenticate := "", ""
	if s := e.RetrySeconds(); s > 0 {
		after = strconv.Itoa(s)
	}
	if e.Status == 401 {
		authenticate = "Bearer"
	}
	for _, f := range [...][2]string{{"content-type", "application/json"}, {"x-should-retry", strconv.FormatBool(e.ShouldRetry())},
		{"retry-after", after}, {"www-authenticate", authenticate}, {"allow", e.Allow}} {
		if f[1] != "" && !yield(f[0], f[1]) {
			return
		}
	}
}

// Body is the answer's JSON, {"error":{"message","type","param","code"}} in one
// line. Control characters are escaped, invalid UTF-8 is replaced.
func (e *Error) Body() []byte {
	if e.JSON != nil {
		return e.JSON
	}
	return e.append(make([]byte, 0, 160+len(e.Message)))
}

// Frame is the same object as one event of a stream, complete with its blank
// line and without an event name.
func (e *Error) Frame() []byte {
	b := append(make([]byte, 0, 168+len(e.Message)), "data: "...)
	if holdsMessage(errorMember(e.JSON)) {
		if own := jsontext.Value(bytes.Clone(e.JSON)); own.Compact() == nil {
			return append(append(b, own...), '\n', '\n')
		}
	}
	return append(e.append(b), '\n', '\n')
}

func (e *Error) append(b []byte) []byte {
	b = appendQuoted(append(b, `{"error":{"message":`...), e.Message)
	b = appendQuoted(append(b, `,"type":`...), e.Type)
	b = appendParam(b, e.Param)
	b = appendQuoted(append(b, `,"code":`...), string(e.Code))
	if d := e.Thaw; d != nil {
		b = append(b, `,"thaw":{`...)
		n := len(b)
		if d.Phase != "" {
			b = append(appendQuoted(append(b, `"phase":`...), d.Phase), ',')
		}
		if d.Progress >= 0 {
			b = append(strconv.AppendInt(append(b, `"progress":`...), int64(d.Progress), 10), ',')
		}
		if d.ETA > 0 {
			b = append(strconv.AppendInt(append(b, `"eta_s":`...), int64(math.Ceil(d.ETA.Seconds())), 10), ',')
		}
		if len(b) > n {
			b = b[:len(b)-1]
		}
		b = append(b, '}')
	}
	return append(b, '}', '}')
}

// appendParam appends the member param; an empty one is null.
func appendParam(b []byte, param string) []byte {
	if b = append(b, `,"param":`...); param == "" {
		return append(b, "null"...)
	}
	return appendQuoted(b, param)
}

// appendQuoted appends s as a JSON string. Invalid UTF-8 becomes U+FFFD; the error that
// reports it changes nothing here.
func appendQuoted(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
