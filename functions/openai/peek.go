package openai

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a body that Peek accepts. Python's parser stops at other places
// than ours would; inside these bounds all agree.
const (
	MaxDepth  = 64  // nesting of objects and arrays
	MaxKeys   = 128 // members of the top-level object
	MaxNumber = 64  // bytes of one number literal
	MaxName   = 512 // bytes of the model's name, as encoded in the body
)

// Envelope holds the values of a request's body that a gateway needs. Its strings are
// copies; its offsets refer to the body it was read from.
type Envelope struct {
	Model        string // unescaped; empty only where the body need not name one
	User         string // unescaped, "" when absent or longer than MaxName
	Stream       bool
	IncludeUsage bool  // stream_options.include_usage
	MaxTokens    int64 // max_completion_tokens, else max_output_tokens, else max_tokens; 0: not set
	N            int   // how many choices are asked for: n for each prompt
	Messages     int   // elements of messages, input or prompt when that is an array, else 1; 0: none of them
	PromptBytes  int   // bytes of that value, as encoded in the body

	model   span   // the value, quotes included
	options span   // the value of stream_options
	usage   span   // the value of include_usage in it
	bare    bool   // stream_options is {} : nothing to separate from
	form    bool   // multipart: the model's name is not quoted
	none    bool   // there is no model: Splice puts one at model.at
	empty   bool   // and nothing else either
	whole   span   // of a form: from its first boundary to its last
	part    string // of a form without a model: how the part that names it begins

	sections  [sections]span
	toolFault *schemaFault // see CheckTools
	formBound bool         // the form of the answer is bound; whole only where there is a fault
}

// span is body[at:end]; the zero span is absent (no value starts a body).
type span struct{ at, end int }

// Peek reads a JSON body in one pass and without decoding it. It accepts only
// what every strict parser reads alike: one object in valid UTF-8, no duplicate
// top-level key in whatever spelling, no second "model" in other case, depth,
// keys and numbers within the bounds above, nothing behind it. Otherwise the
// error is an *[Error] ready to be answered: 400 with a JSON pointer as its
// param.
func Peek(body []byte) (Envelope, error) { return peekBody(body, false, MaxKeys) }

// PeekUnnamed is [Peek] for requests whose model is known without the body: the body may
// name any model, or none.
func PeekUnnamed(body []byte) (Envelope, error) { return peekBody(body, true, MaxKeys) }

func peekBody(body []byte, unnamed bool, maxKeys int) (Envelope, error) {
	p := peeker{b: body, unnamed: unnamed, maxKeys: maxKeys}
	p.env.N, p.prompts = 1, 1
	if err := p.run(); err != nil {
		return Envelope{}, err
	}
	if p.env.toolFault != nil {
		p.env.formBound = p.env.formBound || p.env.Structured(body)
	}
	return p.env, nil
}

type peeker struct {
	b       []byte
	unnamed bool
	prompts int
	maxKeys int
	keys    [16][]byte // top-level keys so far, unescaped; more go to over
	over    [][]byte
	n       int
	env     Envelope

	miscased string
	sawMax   int  // rank of the max_tokens spelling seen
	chat     bool // there are messages
	media    bool // the value being scanned has a member whose name may carry media
}

func invalidJSON(param, format string, args ...any) *Error {
	return New(InvalidJSON, "The body is not valid JSON: "+fmt.Sprintf(format, args...)).With(param)
}

func (p *peeker) run() (err error) {
	b := p.b
	if len(b) > 1 && (b[0] == 0 || b[1] == 0 || b[0]^b[1] == 1 && b[0] >= 0xFE) {
		return invalidJSON("", "it is UTF-16 or UTF-32: encode it as UTF-8.")
	}
	if !utf8.Valid(b) {
		at := 0
		for r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(b[at:]) {
			at += n
		}
		return invalidJSON("", "byte %d (0x%x) is not valid UTF-8: encode it as UTF-8.", at, b[at])
	}
	i := skipSpace(b, skipMark(b))
	if i == len(b) {
		return invalidJSON("", "it is empty.")
	}
	switch b[i] {
	case '{':
	case '"':
		return invalidJSON("", "an object is expected, not a string: it may have been encoded twice.")
	case '[':
		return invalidJSON("", "an object is expected, not an array: send each request by itself.")
	case '\'':
		return invalidJSON("", "it begins with a single quote, which the shell has not taken away: send it from a file, curl -d @body.json.")
	default:
		return invalidJSON("", "an object is expected, and it begins with `%s`: send JSON as it is, not a form or an event.", beginning(b[i:]))
	}
	opened := i + 1
	i, p.env.empty, err = p.object(i, "", p.member)
	if err != nil {
		return err
	}
	if i = skipSpace(b, i); i != len(b) {
		return invalidJSON("", "data follows the object at byte %d.", i)
	}
	if p.unnamed && p.miscased == "" && p.env.model == (span{}) {
		p.env.model, p.env.none = span{opened, opened}, true
		return nil
	}
	if p.miscased != "" {
		if p.env.model != (span{}) {
			return New(InvalidJSON, "The body is ambiguous: it has both model and "+p.miscased+".").With("/model")
		}
		return New(MissingRequiredParameter, "You must provide a model parameter: names are case-sensitive, use model and not "+p.miscased+".")
	}
	if p.env.Model == "" && !p.unnamed {
		return New(MissingRequiredParameter, "")
	}
	return nil
}

// object reads the object at i and returns where it ends, and whether it is empty. where is its
// pointer; member reads the value at an index, which has this name, and returns where it ends.
func (p *peeker) object(i int, where string, member func(key []byte, at int) (int, error)) (end int, empty bool, err error) {
	b := p.b
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, true, nil
	}
	for {
		key, end, err := scanKey(b, i)
		if err != nil {
			return 0, false, err
		}
		if i = skipSpace(b, end); i == len(b) || b[i] != ':' {
			return 0, false, misplaced(b, i, where, "a colon")
		}
		if end, err = member(key, skipSpace(b, i+1)); err != nil {
			return 0, false, err
		}
		if i = skipSpace(b, end); i == len(b) {
			return 0, false, invalidJSON(where, "it ends inside the object.")
		}
		if b[i] == '}' {
			return i + 1, false, nil
		}
		if b[i] != ',' {
			return 0, false, misplaced(b, i, where, "a comma or }")
		}
		i = skipSpace(b, i+1)
	}
}

// member reads the value at an index of a top-level member and returns where it ends.
func (p *peeker) member(key []byte, at int) (int, error) {
	b := p.b
	if err := p.addKey(key); err != nil {
		return 0, err
	}
	if string(key) == "stream_options" && at < len(b) && b[at] == '{' {
		end, bare, err := p.object(at, "/stream_options", p.streamOption)
		p.env.options, p.env.bare = span{at, end}, bare
		return end, err
	}
	p.media = false
	end, count, err := scanValue(b, at, 1, &p.media)
	if err != nil {
		return 0, err
	}
	return end, p.note(key, span{at, end}, count)
}

// addKey adds a top-level key; a second one of the same spelling is an error.
func (p *peeker) addKey(key []byte) error {
	for k := range p.n {
		var seen []byte
		if k < len(p.keys) {
			seen = p.keys[k]
		} else {
			seen = p.over[k-len(p.keys)]
		}
		if bytes.Equal(seen, key) {
			return New(InvalidJSON, "The body is ambiguous: the key "+cleanMessage(string(key))+" appears twice.").With(pointer(key))
		}
	}
	if p.n == p.maxKeys {
		return invalidJSON("", "it has more than %d keys.", p.maxKeys)
	}
	if p.n < len(p.keys) {
		p.keys[p.n] = key
	} else {
		p.over = append(p.over, key)
	}
	p.n++
	return nil
}

// note checks one top-level member and reads the Envelope's fields from it. An array's
// count is how many elements it has.
func (p *peeker) note(key []byte, at span, count int) error {
	v := p.b[at.at:at.end]
	p.env.addSection(key, at, v[0] == 'n')
	switch string(key) {
	case "model":
		switch {
		case len(v) > MaxName:
			return outside(key, "is longer than any name")
		case v[0] == '"':
			if bytes.IndexByte(v, '\\') >= 0 {
				if _, err := jsontext.AppendUnquote(nil, v); err != nil {
					return outside(key, "has half of a surrogate pair, as no name has")
				}
			}
			p.env.Model = unquoteText(v)
			p.env.model = at
		case string(v) == "null":
			if p.unnamed {
				p.env.model = at
			}
		default:
			return outside(key, "must be a string")
		}
	case "stream":
		switch string(v) {
		case "true":
			p.env.Stream = true
		case "false", "null":
		default:
			return outside(key, "must be a boolean, true or false")
		}
	case "stream_options":
		if string(v) != "null" {
			return outside(key, "must be an object")
		}
		p.env.options = at
	case "max_completion_tokens":
		return p.maxTokens(key, v, 3)
	case "max_output_tokens":
		return p.maxTokens(key, v, 2)
	case "max_tokens":
		return p.maxTokens(key, v, 1)
	case "n":
		if string(v) != "null" {
			if err := between(key, v, 1, MaxN); err != nil {
				return err
			}
			n, _ := parseWhole(v)
			p.env.N = int(n) * p.prompts
		}
	case "user":
		if v[0] == '"' && len(v) <= MaxName {
			p.env.User = unquoteText(v)
		}
	case "messages", "input", "prompt":
		p.chat = p.chat || string(key) == "messages"
		if err := checkCount(key, v, count); err != nil {
			return err
		}
		if v[0] != '[' {
			count = 1
		}
		if string(key) == "prompt" && count > 1 && strings.IndexByte(`"[`, v[skipSpace(v, 1)]) >= 0 { // not one of token ids
			p.prompts = count
			p.env.N *= count
		}
		if string(v) != "null" {
			p.env.Messages += count
			p.env.PromptBytes += len(v)
		}
		return p.checkMedia(key, v)
	default:
		if strings.EqualFold(string(key), "model") {
			p.miscased = string(key)
		}
		return p.checkMember(key, v, count)
	}
	return nil
}

// streamOption reads a member of stream_options; only include_usage means anything to us.
func (p *peeker) streamOption(key []byte, at int) (end int, err error) {
	end, _, err = scanValue(p.b, at, 2, nil)
	if err != nil || string(key) != "include_usage" {
		return end, err
	}
	if p.env.usage != (span{}) {
		return 0, New(InvalidJSON, "The body is ambiguous: a key appears twice.").With("/stream_options/include_usage")
	}
	p.env.usage = span{at, end}
	switch string(p.b[at:end]) {
	case "true":
		p.env.IncludeUsage = true
	case "false", "null":
	default:
		return 0, outside(key, "must be a boolean, true or false").With("/stream_options/include_usage")
	}
	return end, nil
}

func (p *peeker) maxTokens(key, v []byte, rank int) error {
	if string(v) == "null" {
		return nil
	}
	n, err := parseMaxTokens(key, v)
	if err == nil && rank > p.sawMax {
		p.sawMax, p.env.MaxTokens = rank, max(n, 0)
	}
	return err
}

// parseMaxTokens reads a bound of the answer's tokens: a whole number, in whatever spelling,
// or -1, by which clients ask for no bound.
func parseMaxTokens(key, v []byte) (int64, error) {
	if n, ok := parseWhole(v); ok && n >= -1 && n <= MaxOutput {
		return n, nil
	}
	text := fmt.Sprintf("%s must be an integer from 0 to %d, or -1 for no bound.%s", key, MaxOutput, quoted(v))
	return 0, New(InvalidValue, text).With(string(key))
}

// parseWhole reads a whole number in whatever spelling: several clients write every number
// as 1.0.
func parseWhole(v []byte) (int64, bool) {
	n, ok := parseInteger(v)
	if !ok && len(v) > 0 && (v[0] == '-' || v[0] >= '0' && v[0] <= '9') {
		x, err := strconv.ParseFloat(string(v), 64)
		n, ok = int64(x), err == nil && x == math.Trunc(x) && math.Abs(x) < 1<<53
	}
	return n, ok
}

// parseInteger reads a literal of digits alone. 1.0 and 1e3 are integers to some
// parsers and not to others, so they are none here.
func parseInteger(v []byte) (int64, bool) {
	if len(v) == 0 || len(v) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// pointer is the JSON pointer of a top-level key, bounded, because answers contain it.
func pointer(key []byte) string {
	if len(key) > 64 {
		return ""
	}
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(string(key))
}

// unquoteText is the unescaped string of a checked literal, quotes included.
func unquoteText(lit []byte) string {
	if bytes.IndexByte(lit, '\\') < 0 {
		return string(lit[1 : len(lit)-1])
	}
	return string(unquote(lit))
}

// unquote unescapes a literal that str has accepted.
func unquote(lit []byte) []byte {
	out, _ := jsontext.AppendUnquote(nil, lit)
	return out
}
