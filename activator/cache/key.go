package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json/jsontext"
	"hash"
	"slices"
	"strconv"

	"github.com/thaw-dev/thaw/functions"
)

// form is how answers of an endpoint are kept.
type form struct {
	sampled bool // the temperature matters
	events  bool // both forms of an answer are made from either
	choices bool // the answer has choices, each of which ends with a reason
	stored  bool // the other side keeps the answer under its id unless "store" is false
}

// formOf is the form of an endpoint's answers; false: they are not kept.
func formOf(path string) (form, bool) {
	switch path {
	case pathChat, pathCompletions:
		return form{sampled: true, events: true, choices: true}, true
	case "/v1/responses":
		return form{sampled: true, stored: true}, true
	case "/v1/messages":
		return form{sampled: true}, true
	case "/v1/embeddings", "/v1/messages/count_tokens", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/tokenize", "/detokenize":
		return form{}, true
	}
	return form{}, false
}

const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
)

// Reasons why a request is not looked up.
const (
	byEndpoint    = "endpoint"
	byForm        = "form" // the answer cannot be made in the form that is asked for
	byTemperature = "temperature"
	byTools       = "tools"
	byImages      = "images"
	byN           = "n"
	byState       = "state" // the answer depends on more than the body
	byBody        = "body"  // the parsers of the engines may not agree on it
)

// scope is the part of a key that is not in the body.
type scope struct {
	team, key string // key: "" where the team shares
	function  functions.Name
	version   [32]byte
	adapter   string
	path      string
}

func (s *scope) write(h hash.Hash) {
	var n [8]byte
	for _, part := range [...]string{s.team, s.key, s.function.Team, s.function.Name, s.adapter, s.path} {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	h.Write(s.version[:])
}

// keyOf is the key of a request; reason is why it has none.
func (s *spellings) keyOf(k scope, f form, q *Request, c *functions.ExactCache) (key [32]byte, reason string) {
	body := q.Body
	if f.sampled && !c.AnyTemperature && !bytes.Contains(body, []byte(`"temperature"`)) {
		return key, byTemperature // most requests: their bodies are not read
	}
	of := spelling{k, c, q.Hashed}
	if of.body == (Body{}) {
		of.body = BodyOf(body)
	}
	if key, ok := s.get(&of); ok {
		return key, ""
	}
	if key, reason = keyOf(k, f, body, c); reason == "" {
		s.put(&of, key)
	}
	return key, reason
}

// keyOf is the key by the canonical form of a body.
func keyOf(k scope, f form, body []byte, c *functions.ExactCache) (key [32]byte, reason string) {
	v := jsontext.Value(bytes.Clone(body))
	// Numbers keep their spelling: a double does not hold all that an engine reads.
	if v.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) != nil {
		return key, byBody
	}
	h := sha256.New()
	k.write(h)
	r := reader{form: f, config: c, cold: c.AnyTemperature || !f.sampled, stored: f.stored}
	split(v, func(name, value []byte) {
		if r.reason == "" {
			r.read(name, value)
		}
		switch string(name) {
		case "model", "stream", "stream_options", "user", "metadata":
			return
		}
		h.Write(quote)
		h.Write(name)
		h.Write(quote)
		h.Write(value)
	})
	if r.reason == "" && r.media && !slices.Contains(c.Also, "images") {
		r.reason = byImages
	}
	if r.reason == "" && r.stored { // a replay has another id, which the other side does not know
		r.reason = byState
	}
	if r.reason == "" && !r.cold {
		r.reason = byTemperature
	}
	h.Sum(key[:0])
	return key, r.reason
}

// quote marks both ends of a name, which has none.
var quote = []byte{'"'}

// reader reads what decides whether the answer to a request is kept.
type reader struct {
	form   form
	config *functions.ExactCache
	cold   bool // the answer is not sampled, or that does not matter
	stored bool // the answer can be asked for again by its id
	media  bool
	reason string
}

func (r *reader) read(name, value []byte) {
	null := string(value) == "null"
	switch string(name) {
	case "temperature":
		if t, err := strconv.ParseFloat(string(value), 64); err == nil && t <= 0 {
			r.cold = true
		}
	case "tools", "functions", "web_search_options", "search_parameters", "plugins", "mcp_servers", "data_sources":
		if !null && string(value) != "[]" && !slices.Contains(r.config.Also, "tools") {
			r.reason = byTools
		}
	case "n":
		if n, err := strconv.ParseFloat(string(value), 64); !null && (err != nil || n > 1) && !slices.Contains(r.config.Also, "n") {
			r.reason = byN
		}
	case "previous_response_id", "conversation", "container":
		if !null {
			r.reason = byState
		}
	case "prompt": // a text, or a template that is kept at the other side
		if r.media = r.media || holdsMedia(value); value[0] == '{' {
			r.reason = byState
		}
	case "store":
		r.stored = string(value) == "true" || null && r.form.stored
	case "background":
		if string(value) == "true" {
			r.reason = byState
		}
	case "stream_options":
		if !null && r.form.events {
			split(value, func(name, _ []byte) {
				if s := string(name); s != `include_usage` && s != `include_obfuscation` {
					r.reason = byForm
				}
			})
		}
	case "audio", "modalities":
		if !null && string(value) != `["text"]` {
			r.media = true
		}
	default:
		r.media = r.media || holdsMedia(value)
	}
}

// split yields the members of an object without white space between its tokens: names
// without quotes, as they are encoded.
func split(v []byte, yield func(name, value []byte)) {
	if len(v) == 0 || v[0] != '{' {
		return
	}
	for i := 1; i < len(v) && v[i] == '"'; i++ {
		at := i + 1
		i = stringEnd(v, i)
		name := v[at : i-1]
		at = i + 1 // behind the colon
		for i, depth := at, 0; ; i++ {
			switch v[i] {
			case '"':
				i = stringEnd(v, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if c := v[i]; depth < 0 || depth == 0 && c == ',' {
				yield(name, v[at:i])
				at = i
				break
			}
		}
		i = at
	}
}

// stringEnd is the index behind the string that begins at i.
func stringEnd(v []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(v[i:], '"')
		n := i
		for v[n-1] == '\\' {
			n--
		}
		if (i-n)%2 == 0 {
			return i + 1
		}
	}
}

// holdsMedia reports whether a value has a member, at any depth, whose name may be that of
// an image, a video, a sound or a file.
func holdsMedia(v []byte) bool {
	if len(v) == 0 || v[0] != '{' && v[0] != '[' {
		return false
	}
	for i := 0; i < len(v); i++ {
		if v[i] != '"' {
			continue
		}
		at := i + 1
		i = stringEnd(v, i)
		if i < len(v) && v[i] == ':' {
			name := v[at : i-1]
			switch string(name) {
			case "file", "files", "file_data", "file_url", "file_id", "input_file", "source", "data", "b64_json":
				return true
			}
			if bytes.Contains(name, []byte("image")) || bytes.Contains(name, []byte("video")) || bytes.Contains(name, []byte("audio")) {
				return true
			}
		}
		i--
	}
	return false
}
