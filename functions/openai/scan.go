package openai

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"strconv"
	"strings"
)

// Usage is the token usage that an answer reports.
type Usage struct {
	Prompt     int64
	Completion int64
	Known      bool
}

// Append appends the member usage of an answer.
func (u Usage) Append(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"prompt_tokens":`...), u.Prompt, 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), u.Completion, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), u.Prompt+u.Completion, 10)
	return append(b, '}')
}

// Stream inspects a server-sent event stream that passes in pieces of any size, without
// decoding content. With TakeUsage it also removes the chunk that has usage and no
// choices, which the client did not ask for; all other bytes pass unchanged. It is for
// one goroutine.
type Stream struct {
	TakeUsage bool
	Findings

	Said []byte // the last data that is a text, where no token has come

	line  []byte // a line that has begun and not ended
	long  bool   // it is longer than maxLine: not parsed
	blank bool   // the line before was removed, and so is the empty one after it
	ping  bool   // the present event is one
	data  []byte // of an event whose JSON has more lines
	known sample
	out   []byte
}

// Findings are what a Stream has found so far.
type Findings struct {
	Token    bool // generated text or a tool call has come
	Finished bool // some choice has a finish_reason
	Failed   bool // the engine sent an error: [DONE] after it is no success
	Done     bool // [DONE], or the end event of the responses and messages endpoints
	InLines  bool // the JSON of some event has several lines of data
	Doubled  bool // the data of some event begins with data: itself
	Usage    Usage
}

// maxLine is what a line may have to be looked at; longer ones only pass.
const maxLine = 1 << 20

// Pass inspects p and returns the bytes to send on: p itself or, if something was
// removed or held back, a buffer that is valid until the next call. With TakeUsage a
// line is held back until it is whole.
func (s *Stream) Pass(p []byte) []byte {
	s.out = s.out[:0]
	// Whole lines of which none is in question are not copied.
	takes := s.TakeUsage && (len(s.line) > 0 || s.blank || len(p) == 0 || p[len(p)-1] != '\n' || maybeUsage(p))
	for rest := p; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		whole := i >= 0
		l := rest
		if whole {
			l = rest[:i+1]
		}
		rest = rest[len(l):]
		if !s.long && (!whole || len(s.line) > 0) {
			s.line = append(s.line, l...)
			l = s.line
		}
		switch {
		case s.long: // the begin of this line was already passed on
			s.long = !whole
		case !whole && len(l) <= maxLine:
			return s.passed(takes, p)
		case !whole:
			s.long = true
		case takes && s.blank && len(bytes.TrimRight(l, "\r\n")) == 0:
			s.blank, l = false, nil
		case s.look(l):
			if s.blank = takes; takes {
				l = nil
			}
		default:
			s.blank = false
		}
		if takes {
			s.out = append(s.out, l...)
		}
		s.line = s.line[:0]
	}
	return s.passed(takes, p)
}

func (s *Stream) passed(takes bool, p []byte) []byte {
	if takes {
		return s.out
	}
	return p
}

// maybeUsage reports whether p could hold the chunk to be removed.
func maybeUsage(p []byte) bool {
	for i := memberValue(p, "choices"); i >= 0; i = memberValue(p, "choices") {
		if i < len(p) && p[i] == '[' {
			if j := skipSpace(p, i+1); j >= len(p) || p[j] == ']' {
				return true
			}
		}
		p = p[i:]
	}
	return false
}

// look reads one line with its end. It returns true for a chunk that carries usage and
// nothing else.
func (s *Stream) look(l []byte) (alone bool) {
	if len(s.data) == 0 && (l[0] == '\n' || s.known.matches(l)) {
		return false
	}
	before := s.Findings
	alone = s.lookAtLine(l)
	if s.Findings != before || len(s.data) > 0 {
		s.known.line = s.known.line[:0]
	} else if !alone && s.Token {
		s.known.keep(l)
	}
	return alone
}

// lookAtLine is look for a line that is like none before.
func (s *Stream) lookAtLine(l []byte) bool {
	if l = bytes.TrimRight(l, "\r\n"); len(l) == 0 && len(s.data) > 0 {
		s.lookAtData(s.data)
		s.data = s.data[:0]
		return false
	}
	if e, ok := bytes.CutPrefix(l, []byte("event:")); ok {
		name := string(bytes.TrimSpace(e))
		s.ping = name == "ping"
		switch name {
		case "error", "response.failed":
			s.Failed = true
		case "response.completed", "response.incomplete", "response.done", "message_stop":
			s.Done = true
		}
		return false
	}
	d, ok := bytes.CutPrefix(l, []byte("data:"))
	if !ok {
		s.Failed = s.Failed || bytes.HasPrefix(l, []byte(errorField))
		return false
	}
	d = bytes.TrimSpace(d)
	if len(d) == 0 {
		return false
	}
	if rest, twice := bytes.CutPrefix(d, []byte("data:")); twice {
		s.Doubled = true
		if d = bytes.TrimSpace(rest); len(d) == 0 {
			return false
		}
	}
	if string(d) == "[DONE]" {
		s.Done = true
		return false
	}
	if d[0] != '{' && d[0] != ':' && !s.Token && !s.ping && len(s.data) == 0 {
		s.Said = append(s.Said[:0], d[:min(len(d), maxWord)]...)
	}
	if len(s.data) > 0 || goesOn(d) {
		s.InLines = true
		if s.data = append(append(s.data, d...), '\n'); len(s.data) > maxLine {
			s.data = s.data[:0]
		}
		return false
	}
	return s.lookAtData(d)
}

// goesOn reports whether d is the first of several lines of one JSON object, each with a
// field data of its own, as engines write that print JSON in lines.
func goesOn(d []byte) bool { return d[0] == '{' && d[len(d)-1] != '}' }

// lookAtData reads the JSON of one event, as [Stream.look] does.
func (s *Stream) lookAtData(d []byte) bool {
	if IsErrorObject(d) {
		s.Failed = true
		return false
	}
	s.Done = s.Done || isEndEvent(d)
	s.Token = s.Token || hasToken(d)
	if !s.Finished {
		i := memberValue(d, "finish_reason")
		for at := 0; i >= 0 && !s.Finished; i = memberValue(d[at:], "finish_reason") {
			at += i
			s.Finished = holdsText(d, at) || at < len(d) && d[at] == '{' // some engines write an empty one in each chunk
		}
		if i = memberValue(d, "stop_reason"); i >= 0 && holdsText(d, i) { // the messages endpoint
			s.Finished = true
		}
	}
	if !s.Usage.read(d) {
		return false
	}
	i := memberValue(d, "choices")
	if i < 0 || i >= len(d) || d[i] != '[' {
		return false
	}
	i = skipSpace(d, i+1)
	return i < len(d) && d[i] == ']'
}

// isEndEvent reports whether an event is the last of the responses or messages endpoint by its
// type, which some engines write without a line of the event's name.
func isEndEvent(d []byte) bool {
	if len(d) < len(`{"type":"message_stop"}`) {
		return false
	}
	if rest, ok := bytes.CutPrefix(d[skipSpace(d, 1):], []byte(`"type":`)); ok {
		d = bytes.TrimLeft(rest, " ")
	} else if i := bytes.LastIndexByte(d, ','); i >= 0 {
		if rest, ok = bytes.CutPrefix(bytes.TrimLeft(d[i+1:], " "), []byte(`"type":`)); !ok {
			return false
		}
		d = bytes.TrimLeft(rest, " ")
	}
	for _, kind := range [...]string{`"response.completed"`, `"response.incomplete"`, `"response.done"`, `"message_stop"`} {
		if bytes.HasPrefix(d, []byte(kind)) {
			return true
		}
	}
	return false
}

// holdsText reports whether a string that is not empty begins at i.
func holdsText(d []byte, i int) bool { return i+1 < len(d) && d[i] == '"' && d[i+1] != '"' }

// hasToken reports whether a chunk holds generated text or a tool call: chunks of the
// role, of an answer's creation, and of usage do not.
func hasToken(d []byte) bool {
	if textValue(d) >= 0 {
		return true
	}
	i := memberValue(d, "tool_calls")
	if i < 0 || i >= len(d) || d[i] != '[' {
		return false
	}
	i = skipSpace(d, i+1)
	return i < len(d) && d[i] != ']'
}

// textValue returns the index of the first character of generated text in an event; -1: it
// has none.
func textValue(d []byte) int {
	for _, name := range [...]string{"content", "text", "delta", "reasoning_content", "reasoning", "thinking", "partial_json", "tool_calls"} {
		if i := memberValue(d, name); i >= 0 && holdsText(d, i) {
			return i + 1
		}
	}
	return -1
}

// Failure reads the error frame at the start p of a stream; nil if the first event is no
// error or not whole yet. stated reports whether the frame names a status, or a type that
// has one; the status of others is 500.
func Failure(p []byte) (e *Error, stated bool) {
	named := false
	for len(p) > 0 {
		l, rest, whole := bytes.Cut(p, []byte{'\n'})
		if !whole {
			return nil, false
		}
		l, p = bytes.TrimRight(l, "\r"), rest
		named = named && len(l) > 0 // until the event ends
		if event, ok := bytes.CutPrefix(l, []byte("event:")); ok {
			named = string(bytes.TrimSpace(event)) == "error"
		}
		d, data := bytes.CutPrefix(l, []byte("data:"))
		if e, ok := bytes.CutPrefix(l, []byte(errorField)); ok {
			return frameError(bytes.TrimSpace(e))
		}
		if d = bytes.TrimSpace(d); !data || len(d) == 0 {
			continue // a comment, the name of an event, an empty line
		}
		if goesOn(d) {
			if d = joinData(d, p); d == nil {
				return nil, false
			}
		}
		if !named && !IsErrorObject(d) {
			return nil, false
		}
		return frameError(d)
	}
	return nil, false
}

// joinData adds the lines of data in p up to an empty line; nil if that has not come.
func joinData(first, p []byte) []byte {
	data := bytes.Clone(first)
	for l := range bytes.Lines(p) {
		if len(bytes.TrimRight(l, "\r\n")) == 0 {
			return data
		}
		if d, ok := bytes.CutPrefix(l, []byte("data:")); ok {
			data = append(data, d...)
		}
	}
	return nil
}

// WholeError reads an error that an engine answered with a status of success; nil if body is
// no error.
func WholeError(body []byte) *Error {
	body = bytes.TrimSpace(body)
	if !IsErrorObject(body) || memberValue(body, "choices") >= 0 && !isFailedChoice(memberNamed(body, "choices")) {
		return nil
	}
	e, _ := frameError(body)
	return e
}

// wordsOfErrors are the members of objects that state an error and nothing else, in forms of
// engines and gateways that have no member error.
const wordsOfErrors = " code msg message detail details status success type title request_id requestid id timestamp path trace_id " +
	"traceid error_code error_msg errcode errmsg errors object param data result "

// WordsAlone reads an error without a member error that an engine answered with a status of
// success, such as {"code":500,"msg":"…","success":false}; nil if body has more than the words of
// an error.
func WordsAlone(body []byte) *Error {
	body = bytes.TrimSpace(body)
	if len(body) == 0 || body[0] != '{' || bytes.Contains(body, []byte(`"choices"`)) {
		return nil // most answers end here, before they are read
	}
	alone, worded := true, false
	eachMember(body, func(name, value []byte) bool {
		alone = bytes.IndexByte(name, ' ') < 0 && strings.Contains(wordsOfErrors, " "+strings.ToLower(string(name))+" ") &&
			(len(value) == 0 || value[0] != '{' || string(name) == "detail")
		switch string(name) {
		case "msg", "message", "detail", "errors", "errmsg", "error_msg":
			worded = worded || isTruthy(value)
		case "data", "result":
			alone = alone && !isTruthy(value)
		}
		return alone
	})
	if !alone || !worded || !jsontext.Value(body).IsValid() {
		return nil
	}
	e, _ := frameError(body)
	return e
}

// Tolerant lets pass what engines' JSON may have and clients accept.
var Tolerant = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), json.Deterministic(true))

// IsWholeEvent reports whether p has the data of one event to its end: JSON or [DONE].
func IsWholeEvent(p []byte) bool {
	var data []byte
	for l := range bytes.Lines(p) {
		if d, ok := bytes.CutPrefix(l, []byte("data:")); ok {
			data = append(data, d...)
		}
	}
	data = bytes.TrimSpace(data)
	return string(data) == "[DONE]" || jsontext.Value(data).IsValid(Tolerant)
}

func frameError(d []byte) (e *Error, stated bool) {
	w := readErrorWords(d)
	if stated = w.status != 0; !stated {
		w.status = 500
	}
	return w.toError(w.status), stated
}

// memberValue returns the index of the value behind the first member called name, or -1.
// No string can hold such a member: inside one its quotes are escaped.
func memberValue(b []byte, name string) int {
	at := 0
	for {
		i := bytes.Index(b[at:], []byte(name))
		if i < 0 {
			return -1
		}
		i += at
		at = i + len(name)
		if i == 0 || b[i-1] != '"' || at >= len(b) || b[at] != '"' || i > 1 && b[i-2] == '\\' {
			continue
		}
		if j := skipSpace(b, at+1); j < len(b) && b[j] == ':' {
			return skipSpace(b, j+1)
		}
	}
}

// maxUsage is how much of a usage object in a stream is read.
const maxUsage = 2 << 10

// read parses the last usage object in b; false if there is none.
func (u *Usage) read(b []byte) bool {
	found := false
	for range 16 { // more are in no real answer; the bound keeps the work finite
		i := memberValue(b, "usage")
		if i < 0 {
			break
		}
		b = b[i:]
		if len(b) == 0 || b[0] != '{' {
			continue
		}
		object := b[:min(len(b), maxUsage)]
		for _, name := range [...]string{"prompt_tokens", "input_tokens"} {
			if n, ok := memberNumber(object, name); ok {
				u.Prompt, found = n, true
			}
		}
		for _, name := range [...]string{"completion_tokens", "output_tokens"} {
			if n, ok := memberNumber(object, name); ok {
				u.Completion, found = n, true
			}
		}
	}
	u.Known = u.Known || found
	return found
}

// memberNumber reads the first number called name.
func memberNumber(b []byte, name string) (n int64, ok bool) {
	i := memberValue(b, name)
	if i < 0 {
		return 0, false
	}
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9' && n < 1<<50; i++ {
		n, ok = n*10+int64(b[i]-'0'), true
	}
	return n, ok
}
