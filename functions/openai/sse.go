package openai

import (
	"bytes"
	"encoding/json/jsontext"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/thaw-dev/thaw/functions"
)

// Comment appends one comment line of a held stream to b, for example
//
//	: thaw state=staging percent=41 eta_s=12 position=3
//
// with exactly one newline. state must be a word of the contracts: anything
// but lower-case letters, digits and '_' is dropped, so that no name or error
// text can ever break the line. Unknown values are omitted: an empty state, a
// negative percent or position, an eta of zero or less.
func Comment(b []byte, state string, percent int, eta time.Duration, position int) []byte {
	b = append(b, ": thaw"...)
	if state != "" {
		b = appendWord(append(b, " state="...), state)
	}
	if percent >= 0 {
		b = strconv.AppendInt(append(b, " percent="...), int64(percent), 10)
	}
	if eta > 0 {
		b = strconv.AppendInt(append(b, " eta_s="...), int64((eta+time.Second-1)/time.Second), 10)
	}
	if position >= 0 {
		b = strconv.AppendInt(append(b, " position="...), int64(position), 10)
	}
	return append(b, '\n')
}

// AppendReason adds to the comment at the end of b why its state is what it is: the rest of
// the line after " why=", clipped, without line breaks.
func AppendReason(b []byte, reason string) []byte {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, functions.Clip(reason))
	return append(append(append(b[:len(b)-1], " why="...), clean...), '\n')
}

// Span is one phase of a timeline and how long it took.
type Span struct {
	Phase string
	Took  time.Duration
}

// Timeline appends the last comment of a held stream, the phases in
// milliseconds: ": thaw timeline queue=12 stage=3400", one newline.
func Timeline(b []byte, spans []Span) []byte {
	b = append(b, ": thaw timeline"...)
	for _, s := range spans {
		b = append(appendWord(append(b, ' '), s.Phase), '=')
		b = strconv.AppendInt(b, max(0, s.Took.Milliseconds()), 10)
	}
	return append(b, '\n')
}

// appendWord appends the letters, digits and underscores of s.
func appendWord(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' {
			b = append(b, c)
		}
	}
	return b
}

// NoopChat appends a chat chunk that adds nothing, as one event. Application
// timers of clients are reset by data, not by comments. No role: accumulators
// that concatenate strings would build "assistantassistant". The id is empty, because
// openai-go's accumulator ignores chunks whose id is not that of the first.
func NoopChat(b []byte, model string, created time.Time) []byte {
	return appendNoop(b, "chat.completion.chunk", `"delta":{"content":""}`, model, created)
}

// NoopCompletion is [NoopChat] for the completions endpoint.
func NoopCompletion(b []byte, model string, created time.Time) []byte {
	return appendNoop(b, "text_completion", `"text":""`, model, created)
}

func appendNoop(b []byte, object, delta, model string, created time.Time) []byte {
	b = append(append(append(b, `data: {"id":"","object":"`...), object...), `","created":`...)
	b = strconv.AppendInt(b, created.Unix(), 10)
	b = appendQuoted(append(b, `,"model":`...), model)
	b = append(append(append(b, `,"choices":[{"index":0,`...), delta...), `,"finish_reason":null}]}`...)
	return append(b, '\n', '\n')
}

// Done is the event that ends a successful stream.
const Done = "data: [DONE]\n\n"

// CompleteEvents is how many bytes of p are whole events, and comments between them.
func CompleteEvents(p []byte) int {
	a := bytes.LastIndex(p, []byte("\n\n"))
	b := -1
	if bytes.IndexByte(p, '\r') >= 0 {
		b = bytes.LastIndex(p, []byte("\n\r\n"))
	}
	n := 0
	switch {
	case b > a:
		n = b + 3
	case a >= 0:
		n = a + 2
	}
	for n < len(p) && p[n] == ':' { // comments between events
		i := bytes.IndexByte(p[n:], '\n')
		if i < 0 {
			break
		}
		n += i + 1
	}
	return n
}

// HasData reports whether a stream has a whole line of data, or of an error.
func HasData(p []byte) bool {
	for l := range bytes.Lines(p) {
		if l[len(l)-1] == '\n' && (bytes.HasPrefix(l, []byte("data:")) || bytes.HasPrefix(l, []byte(errorField))) {
			return true
		}
	}
	return false
}

// EndsLinesByCR reports whether the first line of a stream ends with a carriage return alone,
// one of the three ends that the standard of event streams allows.
func EndsLinesByCR(p []byte) bool {
	i := bytes.IndexByte(p, '\r')
	return i >= 0 && i+1 < len(p) && p[i+1] != '\n' && bytes.IndexByte(p[:i], '\n') < 0
}

// errorField begins the line in which llama.cpp until 2025 wrote an error. Event streams have
// no such field, so clients skip it.
const errorField = "error:"

// FrameErrors returns whole events of the endpoint at path with the engine's errors as frames
// that the endpoint's clients read: the lines of errorField; on endpoints that have an event for
// errors, errors without it; and on others, errors without the member error, or that are a text.
// sequence is the number of the next event.
func FrameErrors(p []byte, path string, sequence int64) []byte {
	hasEvent := path == "/v1/messages" || path == "/v1/responses"
	var out []byte
	named, first := false, false // within an error event; and before its data
	for l := range bytes.Lines(p) {
		switch field, value, _ := bytes.Cut(bytes.TrimRight(l, "\r\n"), []byte(":")); string(field) {
		case "": // the end of an event, or a comment
			named = named && len(bytes.TrimRight(l, "\r\n")) > 0
			first = first && named
		case "event":
			named = string(bytes.TrimSpace(value)) == "error"
			first = named
		case "error", "data":
			value = bytes.TrimSpace(value)
			isText := first && len(value) > 0 && value[0] != '{' && string(value) != "[DONE]"
			switch isError := string(field) == "error"; {
			case isError:
				value = frameOfText(value)
			case !hasEvent && isText, !hasEvent && IsErrorObject(value) && errorMember(value) == nil:
				e, _ := frameError(value)
				first = false
				value = bytes.TrimSpace(bytes.TrimPrefix(e.Frame(), []byte("data: ")))
			case named || !hasEvent || !IsErrorObject(value):
				first = false
				out = append(out, l...)
				continue
			}
			if hasEvent {
				e, _ := frameError(value)
				l = bytes.TrimSuffix(e.FrameFor(path, sequence), []byte("\n"))
			} else {
				l = append(append([]byte("data: "), value...), '\n')
			}
		}
		out = append(out, l...)
	}
	return out
}

// frameOfText is the error of a line of errorField as an object.
func frameOfText(d []byte) []byte {
	if !jsontext.Value(d).IsValid() {
		d = appendQuoted(nil, string(d))
	}
	return append(append([]byte(`{"error":`), d...), '}')
}

// SeparateEvents returns the begin of a stream with an empty line between two lines of whole data,
// which some engines leave out; nil where p has no such lines.
func SeparateEvents(p []byte) []byte {
	var out []byte
	data, whole := false, false // the line before is data; all of an event's
	for l := range bytes.Lines(p) {
		d, isData := bytes.CutPrefix(l, []byte("data:"))
		switch {
		case isData && whole:
			out = append(out, '\n')
		case isData && data: // JSON in lines
			return nil
		}
		d = bytes.TrimSpace(d)
		data, whole = isData, isData && len(d) > 0 && (d[0] == '{' || d[0] == '[') && IsWholeEvent(l)
		out = append(out, l...)
	}
	if len(out) == len(p) {
		return nil
	}
	return out
}

// SingleData returns whole events without the second of two fields data in one line, which servers
// write that add the field to a line that has it.
func SingleData(p []byte) []byte { return doubledData.ReplaceAll(p, []byte("data:")) }

var doubledData = regexp.MustCompile(`(?m)^data: *data:`)

// JoinData returns whole events with the JSON of each in one line of data, as clients expect
// that read OpenAI's streams line by line.
func JoinData(p []byte) []byte {
	var out []byte
	joins := false
	for l := range bytes.Lines(p) {
		d, isData := bytes.CutPrefix(l, []byte("data:"))
		if joins && isData {
			out = append(bytes.TrimRight(out, "\r\n"), l[len("data:"):]...)
			continue
		}
		d = bytes.TrimSpace(d)
		joins = isData && len(d) > 0 && goesOn(d)
		out = append(out, l...)
	}
	return out
}
