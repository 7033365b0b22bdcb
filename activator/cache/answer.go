package cache

import (
	"bytes"
	"encoding/json/jsontext"
	"strings"
	"sync/atomic"

	"github.com/thaw-dev/thaw/functions/openai"
)

// answer is one whole answer. Of endpoints with both forms, the one that it did not come in
// is made at the first request for it.
type answer struct {
	path     string
	usage    []byte // the tokens that it took; nil: unknown
	streamed bool   // it came as a stream
	plain    atomic.Pointer[text]
	events   atomic.Pointer[text]
}

// text is an answer with places for the id of the request that it is given to.
type text struct {
	parts  [][]byte // the id comes between them
	length int
	usage  *text // the event with the usage, which comes before the end mark; nil: there is none
}

// unusable is a form that cannot be made.
var unusable = &text{}

// size is the bytes that the answer takes with both of its forms.
func (a *answer) size() int64 {
	n := len(a.usage)
	for _, t := range [...]*text{a.plain.Load(), a.events.Load()} {
		if t != nil {
			n += t.length + 32*len(t.parts)
		}
	}
	if a.both() {
		n *= 2
	}
	return int64(n)
}

func (a *answer) both() bool { return a.path == pathChat || a.path == pathCompletions }

// newAnswer reads a whole answer; nil where it is none, or no success. events says that it
// is a stream of events, and usage is what the engine reported beside it.
func newAnswer(path string, body []byte, events bool, usage openai.Usage) *answer {
	a := &answer{path: path, streamed: events}
	if !events {
		v := jsontext.Value(bytes.Clone(body))
		if v.Compact() != nil || !wholePlain(path, v) {
			return nil
		}
		if a.both() {
			if u := value(membersOf(v), "usage"); !isNull(u) {
				a.usage = u
			}
		}
		a.plain.Store(newText([][]byte{v}, "", ""))
		return a
	}
	chunks, marked := readEvents(body)
	if !marked || !a.both() {
		return nil
	}
	if chunks, a.usage = takeUsage(chunks); a.usage == nil && usage.Known {
		a.usage = usage.Append(nil)
	}
	if !wholeEvents(chunks) {
		return nil
	}
	a.setEvents(chunks)
	return a
}

func (a *answer) setEvents(chunks [][]byte) *text {
	const before, behind = "data: ", "\n\n"
	t := newText(chunks, before, behind)
	if a.usage != nil {
		t.usage = newText([][]byte{usageChunk(chunks[0], a.usage)}, before, behind)
	}
	a.events.Store(t)
	return t
}

// in returns the answer in the form that is asked for; nil where it cannot be made.
func (a *answer) in(events, withUsage bool) *text {
	to := &a.plain
	if events {
		to = &a.events
	}
	t := to.Load()
	if t == nil && a.both() {
		t = unusable
		if events {
			if chunks := eventsOf(a.path, a.plain.Load().appendTo(nil, "")); chunks != nil {
				t = a.setEvents(chunks)
			}
		} else if p := plainOf(a.path, dataOf(a.events.Load().appendTo(nil, "")), a.usage, false); p != nil {
			t = newText([][]byte{p}, "", "")
		}
		to.Store(t)
	}
	if t == nil || t == unusable || a.usage == nil && (events && withUsage || !events && a.streamed) {
		return nil
	}
	return t
}

// newText is a text of JSON objects, with something before and behind each, and places for the
// id of the request in their member "id".
func newText(objects [][]byte, before, behind string) *text {
	t := &text{}
	var part []byte
	for _, o := range objects {
		part = append(part, before...)
		if at, end := placeOfID(o); end > 0 {
			part = append(part, o[:at]...)
			t.parts = append(t.parts, part)
			t.length += len(part)
			part, o = nil, o[end:]
		}
		part = append(append(part, o...), behind...)
	}
	t.parts = append(t.parts, part)
	t.length += len(part)
	return t
}

// placeOfID is where the request's id stands in the member "id" of an object: behind the kind
// that the id begins with, such as "chatcmpl-".
func placeOfID(object []byte) (at, end int) {
	split(object, func(name, value []byte) {
		if string(name) != "id" || len(value) < 2 || value[0] != '"' {
			return
		}
		i := cap(object) - cap(value) // value lies in object
		at, end = i+1, i+len(value)-1
		if k := bytes.IndexAny(value, "-_"); k >= 0 && k < 20 && strings.Trim(string(value[1:k]), "abcdefghijklmnopqrstuvwxyz") == "" {
			at = i + k + 1
		}
	})
	return at, end
}

// room is how many bytes the text needs with an id; t may be nil.
func (t *text) room(id string) int {
	if t == nil {
		return 0
	}
	return t.length + len(id)*len(t.parts)
}

// appendTo appends the text with an id in its places; t may be nil.
func (t *text) appendTo(b []byte, id string) []byte {
	if t == nil {
		return b
	}
	for i, p := range t.parts {
		if i > 0 {
			b = append(b, id...)
		}
		b = append(b, p...)
	}
	return b
}

// body is the answer as it is sent.
func (t *text) body(id string, events, withUsage bool) []byte {
	b := make([]byte, 0, t.room(id)+t.usage.room(id)+len(openai.Done))
	b = t.appendTo(b, id)
	if events && withUsage {
		b = t.usage.appendTo(b, id)
	}
	if events {
		b = append(b, openai.Done...)
	}
	return b
}

// readEvents returns the data of the events of a stream up to its end mark. Comments (also those
// that come as data), pings, chunks that add nothing, and a last line that is torn are left out.
// There is none of a stream of another kind. marked reports whether the end mark came, and nothing behind it.
func readEvents(body []byte) (chunks [][]byte, marked bool) {
	ping := false
	for line := range bytes.Lines(body) {
		whole := line[len(line)-1] == '\n'
		line = bytes.TrimRight(line, "\r\n")
		if name, ok := bytes.CutPrefix(line, []byte("event:")); ok || len(line) == 0 {
			name = bytes.TrimSpace(name)
			if ping = string(name) == "ping"; ping || len(name) == 0 || string(name) == "message" {
				continue
			}
		}
		text, ok := bytes.CutPrefix(line, []byte("data:"))
		if text = bytes.TrimSpace(text); ping || len(text) == 0 || text[0] == ':' || bytes.HasPrefix(line, []byte("id:")) ||
			bytes.HasPrefix(line, []byte("retry:")) {
			continue
		}
		data := jsontext.Value(bytes.Clone(text))
		switch {
		case marked:
			return chunks, false
		case strings.EqualFold(strings.Trim(string(data), "[]"), "done"):
			marked = len(chunks) > 0
		case ok && data.Compact() == nil && data.Kind() == '{':
			if !isNoop(data) {
				chunks = append(chunks, data)
			}
		case whole:
			return nil, false
		}
	}
	return chunks, marked
}

// dataOf is the objects of events that were kept.
func dataOf(events []byte) (chunks [][]byte) {
	for line := range bytes.Lines(events) {
		if data, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("data: ")); ok {
			chunks = append(chunks, data)
		}
	}
	return chunks
}
