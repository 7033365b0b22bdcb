package openai

import "bytes"

// UsageScan finds the usage of a plain JSON answer that passes in pieces of any size: the
// member usage of the answer's object itself, wherever it stands. Nothing is kept but a short
// key, so that the size of the answer does not matter. An answer that does not begin with an
// object, such as audio, is not looked at. It is for one goroutine.
type UsageScan struct {
	usage Usage

	state   scanState
	depth   int  // of containers around the present byte; past 2 their kinds do not matter
	counts  bool // the object at depth 2 is the value of usage
	inside  bool // in a string
	escape  bool // behind a backslash in it
	expects bool // the next string is a key, at depth 1 or in usage
	isKey   bool // the present string is one
	key     []byte
	buffer  [maxUsageKey]byte // of key
	number  *int64            // receives the digits of the present value; nil: it is another value
	digits  int
}

type scanState uint8

const (
	scanBegins scanState = iota // only blanks have come
	scanInside
	scanOver // the object has ended, or the answer is none
)

const (
	maxUsageKey    = 32 // as encoded; a longer key is none that matters
	maxUsageDigits = 15
)

// Usage is the usage that has passed. Known is false if there was none.
func (s *UsageScan) Usage() Usage { return s.usage }

// Pass looks at p.
func (s *UsageScan) Pass(p []byte) {
	for i := 0; i < len(p) && s.state != scanOver; i++ {
		c := p[i]
		switch {
		case s.inside && s.escape:
			s.escape = false
			s.keep(c)
		case s.inside:
			if !s.isKey { // most of an answer
				n := bytes.IndexAny(p[i:], `"\`)
				if n < 0 {
					return
				}
				i += n
				c = p[i]
			}
			s.passString(c)
		case s.state == scanBegins:
			s.begin(c)
		default:
			s.passStructure(c)
		}
	}
}

// begin notes a byte before the object.
func (s *UsageScan) begin(c byte) {
	switch c {
	case ' ', '\t', '\r', '\n':
	case '{':
		s.state, s.depth, s.expects = scanInside, 1, true
	default:
		s.state = scanOver
	}
}

// keep notes a byte of a key.
func (s *UsageScan) keep(c byte) {
	if s.isKey && len(s.key) < maxUsageKey {
		s.key = append(s.key, c)
	}
}

func (s *UsageScan) passString(c byte) {
	switch c {
	case '"':
		s.inside = false
		return
	case '\\':
		s.escape = true
	}
	s.keep(c)
}

func (s *UsageScan) passStructure(c byte) {
	if s.number != nil {
		if c >= '0' && c <= '9' && s.digits < maxUsageDigits {
			*s.number = *s.number*10 + int64(c-'0')
			s.digits++
			s.usage.Known = true
			return
		}
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' || s.digits > 0 {
			s.number = nil
		}
	}
	switch c {
	case '"':
		s.inside, s.isKey = true, s.expects
		if s.expects {
			s.key, s.expects = s.buffer[:0], false
		}
	case '{', '[':
		s.depth++
		if s.depth == 2 {
			s.counts = c == '{' && keyEquals(s.key, "usage")
		}
		s.expects = s.depth == 2 && s.counts
	case '}', ']':
		if s.depth--; s.depth == 0 {
			s.state = scanOver
		}
		s.expects = false
	case ',':
		s.expects = s.depth == 1 || s.depth == 2 && s.counts
		s.key = s.buffer[:0]
	case ':':
		if s.depth == 2 && s.counts {
			s.expectNumber()
		}
	}
}

// expectNumber prepares for the value of a member of usage.
func (s *UsageScan) expectNumber() {
	for _, name := range [...]string{"prompt_tokens", "input_tokens", "completion_tokens", "output_tokens"} {
		if keyEquals(s.key, name) {
			if s.number = &s.usage.Completion; name == "prompt_tokens" || name == "input_tokens" {
				s.number = &s.usage.Prompt
			}
			*s.number, s.digits = 0, 0
			return
		}
	}
}
