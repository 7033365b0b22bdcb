// Package prompt reads from a request's body the text of the user's newest turn and the features
// that a Router decides by (tokens, code, complexity, JSON or moderation demanded, tools, images,
// language), with word lists and package category; it writes no prompt. It builds no tree, and a
// string with escapes reads as the string that they stand for.
package prompt

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"github.com/thaw-dev/thaw/activator/router/category"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const (
	tokensOfMessage = 4   // that a chat template adds to each
	familyBytes     = 512 // at the beginning of a prompt: its family; a shorter prompt has none
	followUpBytes   = 400 // a message of fewer after one with code is about that code
	keptBuffer      = 256 << 10
)

// reader reads one request. Texts are analysed after the roles are known, so those of the
// newest turn of the user are kept as places in the body until the next turn or the end.
type reader struct {
	body []byte // the section that is read
	turn []span // texts of the user's newest turn
	open bool   // no other role has spoken since
	only bool   // the user's newest turn is read, and no other text

	begun int // texts of turn that are in family

	tokens  float64
	system  scan
	user    scan
	earlier bool // there is code in an earlier message
	images  bool

	family []byte // the beginning of all texts
	buffer []byte // for texts with escapes
	joined []byte // the newest turn, where it is not as in the body
	newest []byte // the newest turn

	named [familyBytes]byte // a family that was named before, by this reader
	known string            // its name

	first     []byte // the first text of the system in a request before
	firstScan scan   // what reading it has shown
}

type span struct{ at, end int }

var readers = sync.Pool{New: func() any { return new(reader) }}

// Read returns the features of a body that env was peeked from, all but those that need
// more than the body: RepeatedPrefix, Session and Intent. Complexity is -1 where there is no
// text, or code for certain.
func Read(env *openai.Envelope, body []byte) functions.RouteFeatures {
	r := readers.Get().(*reader)
	defer r.release()
	r.reset()
	f := functions.RouteFeatures{Complexity: -1}
	if r.body = env.Section(body, openai.SectionSystem); len(r.body) > 0 {
		r.eachText(0, ofSystem)
	}
	r.readPrompt(env.Section(body, openai.SectionPrompt))
	r.readTurn()
	tools := env.Section(body, openai.SectionTools)
	f.Tools = len(tools) > 0 && tools[0] == '[' && tools[skipSpace(tools, 1)] != ']'
	r.tokens += float64(len(tools))*tokensPerSchemaByte + float64(len(env.Section(body, openai.SectionTexts)))*tokensPerTextByte
	f.TokenCount = int(r.tokens + 0.5)
	f.Images = r.images
	f.Code = r.user.code.certain()
	f.StructuredOutput = env.Structured(body) || r.user.found&foundJSON != 0
	if len(r.newest) > 0 {
		r.judge(&f)
	}
	f.Safety = r.user.found&foundVerdict != 0 || r.system.found&foundSafePair != 0
	f.Language = r.user.language()
	f.PromptFamily = r.nameFamily()
	return f
}

// leastCode is the share of code with which signs of code that are not certain decide.
const leastCode = 0.02

// judge sets what the category of the newest turn decides. Code that is certain is not judged.
func (r *reader) judge(f *functions.RouteFeatures) {
	if !f.Code {
		shares := category.Judge(r.newest)
		is := shares.Category()
		f.Complexity = shares.Complexity()
		f.Code = is == category.Code && !f.StructuredOutput || shares[category.Code] > leastCode && r.user.code.found(r.user.words)
		f.StructuredOutput = f.StructuredOutput || is == category.Extraction && !f.Code
	}
	f.Code = f.Code || r.earlier && len(r.newest) < followUpBytes
}

// Text returns the text that complexity and intents are judged by: that of the user's
// newest turn, empty if there is none. It may be a part of body.
func Text(env *openai.Envelope, body []byte) []byte {
	r := readers.Get().(*reader)
	defer r.release()
	r.reset()
	r.only = true
	r.readPrompt(env.Section(body, openai.SectionPrompt))
	text := r.joinTurn()
	if len(r.joined) > 0 {
		return bytes.Clone(text)
	}
	return text
}

func (r *reader) reset() {
	r.turn, r.family, r.buffer, r.joined = r.turn[:0], r.family[:0], r.buffer[:0], r.joined[:0]
	r.open, r.only, r.earlier, r.images = false, false, false, false
	r.begun, r.tokens, r.system, r.user = 0, 0, scan{}, scan{}
}

func (r *reader) release() {
	r.body, r.newest = nil, nil
	if cap(r.buffer)+cap(r.joined)+cap(r.turn)+cap(r.first) <= keptBuffer {
		readers.Put(r)
	}
}

// readPrompt reads messages, input or prompt.
func (r *reader) readPrompt(v []byte) {
	r.body = v
	if len(v) == 0 {
		return
	}
	if v[0] != '[' {
		r.addUser(0)
		return
	}
	for i := skipSpace(v, 1); v[i] != ']'; i = skipSpace(v, i) {
		switch v[i] {
		case ',':
			i++
			continue
		case '{':
			i = r.readMessage(i)
		case '"', '[':
			i = r.addUser(i)
		default: // a token's id
			r.tokens++
			i = skipValue(v, i)
		}
	}
}

// addUser adds the texts of a value to the user's turn and returns where it ends. An
// array of numbers is a prompt of token ids.
func (r *reader) addUser(i int) int {
	r.beginUser()
	if r.body[i] == '[' {
		if k := skipSpace(r.body, i+1); r.body[k] >= '0' && r.body[k] <= '9' {
			for ; r.body[k] != ']'; k++ {
				if r.body[k] == ',' {
					r.tokens++
				}
			}
			r.tokens++
			return k + 1
		}
	}
	return r.eachText(i, ofUser)
}

// beginUser begins a turn of the user, unless the text before is of it.
func (r *reader) beginUser() {
	if !r.open {
		// the turn was not the newest
		for _, at := range r.turn {
			if !r.only {
				r.count(r.text(at))
			}
		}
		r.turn, r.begun = r.turn[:0], 0
	}
	r.open = true
}

func (r *reader) addText(at span, of author) {
	switch {
	case of == ofUser:
		r.turn = append(r.turn, at)
	case !r.only:
		r.addOther(r.text(at), of == ofSystem)
	}
}

// beginFamily adds the turn's texts to the family, before one that is not of it.
func (r *reader) beginFamily() {
	for ; r.begun < len(r.turn) && len(r.family) < familyBytes && !r.only; r.begun++ {
		r.addFamily(r.beginning(r.turn[r.begun], familyBytes))
	}
}

// readMessage reads one element of messages or input.
func (r *reader) readMessage(i int) int {
	r.tokens += tokensOfMessage
	end, role, content := r.members(i)
	switch {
	case role == "user" || role == "":
		for _, at := range content {
			if at.end > 0 && r.body[at.at] == '"' {
				r.beginUser()
				r.addText(at, ofUser)
			} else if at.end > 0 {
				r.addUser(at.at)
			}
		}
	default:
		r.beginFamily()
		r.open = false
		of := ofOthers
		if role == "system" || role == "developer" {
			of = ofSystem
		}
		for _, at := range content {
			if at.end > 0 {
				r.eachText(at.at, of)
			}
		}
	}
	return end
}

// members returns where the object at i ends, its role, and its values that hold text.
func (r *reader) members(i int) (end int, role string, content [4]span) {
	b, n := r.body, 0
	for i = skipSpace(b, i+1); b[i] != '}'; i = skipSpace(b, i) {
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
		name, at := r.member(i)
		i = skipValue(b, at)
		switch kind := kindOf(name); {
		case string(name) == "role":
			role = internRole(r.name(span{at, i}))
		case string(name) == "type" && b[at] == '"':
			switch string(r.name(span{at, i})) {
			case "function_call_output", "function_call", "reasoning", "web_search_call", "computer_call":
				role = "tool"
			case "input_image", "image_url", "image":
				r.images = true
			}
		case kind == imageName && b[at] != 'n':
			r.images = true
		case kind == textName && b[at] != 'n' && n < len(content):
			content[n] = span{at, i}
			n++
		}
	}
	return i + 1, role, content
}

// internRole avoids an allocation for the roles that exist.
func internRole(name []byte) string {
	switch string(name) {
	case "user":
		return "user"
	case "system":
		return "system"
	case "developer":
		return "developer"
	}
	return "other"
}

type author uint8

const (
	ofOthers author = iota
	ofSystem
	ofUser
)

// eachText adds every text in the value at i and returns where the value ends. It notes
// images.
func (r *reader) eachText(i int, of author) int {
	b := r.body
	switch b[i] {
	case '"':
		end := skipValue(b, i)
		r.addText(span{i, end}, of)
		return end
	case '[':
		for i = skipSpace(b, i+1); b[i] != ']'; i = skipSpace(b, i) {
			if b[i] == ',' {
				i++
				continue
			}
			i = r.eachText(i, of)
		}
		return i + 1
	case '{':
		for i = skipSpace(b, i+1); b[i] != '}'; i = skipSpace(b, i) {
			if b[i] == ',' {
				i = skipSpace(b, i+1)
			}
			key, at := r.member(i)
			i = skipValue(b, at)
			switch kindOf(key) {
			case imageName:
				r.images = r.images || b[at] != 'n'
			case textName:
				r.eachText(at, of)
			default:
				if string(key) == "type" && b[at] == '"' {
					switch string(r.name(span{at, i})) {
					case "image_url", "input_image", "image":
						r.images = true
					}
				}
			}
		}
		return i + 1
	}
	return skipValue(b, i)
}

// member returns the name of the member at i and where its value begins.
func (r *reader) member(i int) (name []byte, at int) {
	end := skipValue(r.body, i)
	return r.name(span{i, end}), skipSpace(r.body, skipSpace(r.body, end)+1)
}

// name returns the content of a short literal.
func (r *reader) name(at span) []byte {
	lit := r.body[at.at:at.end]
	if lit[0] != '"' {
		return lit
	}
	if hasEscape(lit) {
		return appendText(nil, lit, len(lit))
	}
	return lit[1 : len(lit)-1]
}

// text returns the content of a string literal; it is valid until the next call.
func (r *reader) text(at span) []byte { return r.beginning(at, at.end) }

// beginning returns at least the first most bytes of the content of a string literal.
func (r *reader) beginning(at span, most int) []byte {
	lit := r.body[at.at:at.end]
	if !hasEscape(lit) {
		return lit[1 : len(lit)-1]
	}
	r.buffer = appendText(r.buffer[:0], lit, most)
	return r.buffer
}

// addOther reads a text that is not of the user's newest turn.
func (r *reader) addOther(text []byte, system bool) {
	r.addFamily(text)
	if system {
		r.readSystemText(text)
		r.tokens += r.system.takeTokens()
		return
	}
	r.count(text)
}

// readSystemText reads a text of the system. The first one is often that of the request before.
func (r *reader) readSystemText(text []byte) {
	switch {
	case r.system != scan{}:
		r.system.read(text)
	case len(text) > 0 && bytes.Equal(text, r.first):
		r.system = r.firstScan
	default:
		r.system.read(text)
		r.first, r.firstScan = append(r.first[:0], text...), r.system
	}
}

// count reads a text of which only the tokens and code matter.
func (r *reader) count(text []byte) {
	r.tokens += countTokens(text)
	r.earlier = r.earlier || hasFence(text)
}

// joinTurn returns the texts of the newest turn as one.
func (r *reader) joinTurn() []byte {
	if len(r.turn) == 1 {
		if lit := r.body[r.turn[0].at:r.turn[0].end]; !hasEscape(lit) {
			return lit[1 : len(lit)-1]
		}
	}
	for i, at := range r.turn {
		if i > 0 {
			r.joined = append(r.joined, '\n')
		}
		if lit := r.body[at.at:at.end]; hasEscape(lit) {
			r.joined = appendText(r.joined, lit, len(lit))
		} else {
			r.joined = append(r.joined, lit[1:len(lit)-1]...)
		}
	}
	return r.joined
}

// readTurn reads the user's newest turn.
func (r *reader) readTurn() {
	r.newest = r.joinTurn()
	if len(r.turn) == 1 && r.begun == 0 {
		r.addFamily(r.newest)
	} else {
		r.beginFamily()
	}
	r.user.read(r.newest)
	r.tokens += r.user.takeTokens()
}

// nameFamily returns a hash of the beginning, "" of a shorter prompt. Requests of one family
// often follow each other.
func (r *reader) nameFamily() string {
	switch {
	case len(r.family) < familyBytes:
		return ""
	case r.known == "" || !bytes.Equal(r.family, r.named[:]):
		sum := sha256.Sum256(r.family)
		r.known = hex.EncodeToString(sum[:8])
		copy(r.named[:], r.family)
	}
	return r.known
}

func (r *reader) addFamily(text []byte) {
	if room := familyBytes - len(r.family); room > 0 {
		r.family = append(r.family, text[:min(len(text), room)]...)
	}
}
