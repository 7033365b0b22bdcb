package openai

import (
	"bytes"
	"encoding/json/jsontext"
)

// Renamer replaces the model's name in an answer that passes in pieces of any size: the
// value of "model" at the top of the JSON, and in "response" and "message" there, where
// events of the responses and messages endpoints have it. All other bytes pass unchanged,
// and nothing is kept but a short key. It is for one goroutine.
type Renamer struct {
	quoted []byte // the new name as a JSON string
	events bool   // each data line has a JSON of its own

	line      lineState
	matched   int // bytes of dataPrefix at the begin of the line
	depth     int
	object    [3]bool // whether the container at depth 1 and 2 is an object
	inside    bool    // in a string
	escape    bool    // behind a backslash in it
	isKey     bool    // it is a key
	expects   bool    // the next string is a key
	dropping  bool    // it is the name that is replaced
	named     bool    // the value of a model key comes next
	nested    bool    // the object at depth 2 may name the model
	key       [maxRenamerKey]byte
	keyLength int
}

type lineState uint8

const (
	lineBegins lineState = iota // dataPrefix may come
	lineData
	lineOther
)

const (
	dataPrefix    = "data:"
	maxRenamerKey = 32 // as encoded; a longer key names no model
)

// NewRenamer makes a Renamer of an answer: of an event stream, or of one JSON.
func NewRenamer(name string, events bool) *Renamer {
	r := &Renamer{quoted: appendQuoted(nil, name), events: events}
	if !events {
		r.line = lineData
	}
	return r
}

// Append appends what p becomes to dst.
func (r *Renamer) Append(dst, p []byte) []byte {
	from := 0
	for i := 0; i < len(p); i++ {
		if r.inside && !r.isKey && !r.escape && !r.dropping {
			for i < len(p) && p[i] != '"' && p[i] != '\\' && p[i] != '\n' { // of a long string
				i++
			}
			if i == len(p) {
				break
			}
		}
		c := p[i]
		if r.events && (c == '\n' || r.line != lineData) {
			if c == '\n' && r.dropping { // a broken line: its end is kept
				from = i
			}
			r.passLine(c)
			continue
		}
		was := r.dropping
		r.passJSON(c)
		switch {
		case r.dropping && !was: // c opens the string
			dst = append(append(dst, p[from:i]...), r.quoted...)
			from = i + 1
		case was: // up to the quote that closes it
			from = i + 1
		}
	}
	if from < len(p) {
		dst = append(dst, p[from:]...)
	}
	return dst
}

// passLine notes a byte of an event stream outside of a JSON, or one that ends a line.
func (r *Renamer) passLine(c byte) {
	switch {
	case c == '\n':
		*r = Renamer{quoted: r.quoted, events: true}
	case r.line == lineBegins && c == dataPrefix[r.matched]:
		if r.matched++; r.matched == len(dataPrefix) {
			r.line = lineData
		}
	default:
		r.line = lineOther
	}
}

func (r *Renamer) passJSON(c byte) {
	if r.inside {
		r.passString(c)
		return
	}
	switch c {
	case '"':
		r.inside, r.isKey = true, r.expects
		r.dropping, r.named = r.named, false
		r.expects, r.keyLength = false, 0
	case '{', '[':
		r.depth++
		if r.depth < len(r.object) {
			r.object[r.depth] = c == '{'
		}
		r.nested = r.depth == 2 && c == '{' && (r.keyIs("response") || r.keyIs("message")) || r.depth > 2 && r.nested
		r.expects, r.named = r.readsKeys(), false
	case '}', ']':
		r.depth = max(0, r.depth-1)
		r.expects, r.named = false, false
	case ',':
		r.expects, r.named = r.readsKeys(), false
	case ':':
		r.named = r.readsKeys() && r.keyIs("model")
	}
}

func (r *Renamer) passString(c byte) {
	switch {
	case r.escape:
		r.escape = false
	case c == '\\':
		r.escape = true
	case c == '"':
		r.inside, r.dropping = false, false
		return
	}
	if r.isKey {
		if r.keyLength < len(r.key) {
			r.key[r.keyLength] = c
		}
		r.keyLength++
	}
}

// readsKeys reports whether the keys of the present object matter.
func (r *Renamer) readsKeys() bool {
	return r.depth == 1 && r.object[1] || r.depth == 2 && r.object[2] && r.nested
}

func (r *Renamer) keyIs(name string) bool {
	return r.keyLength <= len(r.key) && keyEquals(r.key[:r.keyLength], name)
}

// keyEquals reports whether a key, as encoded and without its quotes, is name.
func keyEquals(key []byte, name string) bool {
	if string(key) == name {
		return true
	}
	if bytes.IndexByte(key, '\\') < 0 {
		return false
	}
	out, err := jsontext.AppendUnquote(nil, append(append([]byte{'"'}, key...), '"'))
	return err == nil && string(out) == name
}
