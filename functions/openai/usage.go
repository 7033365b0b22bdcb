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
	key     [maxUsageKey]byte
	keySize int
	number  usageNumber // what the digits of the present value are
	digits  int
}

type usageNumber uint8

const (
	otherValue usageNumber = iota
	promptTokens
	completionTokens
)

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

// Observe looks at p.
func (s *UsageScan) Observe(p []byte) {
	quote := 0 // behind i: where the next one is
	for i := 0; i < len(p) && s.state != scanOver; i++ {
		c := p[i]
		switch {
		case s.inside && s.escape:
			s.escape = false
			s.keep(c)
		case s.inside:
			if !s.isKey { // most of an answer
				if quote <= i {
					if quote = bytes.IndexByte(p[i:], '"'); quote < 0 {
						quote = len(p) - i
					}
					quote += i
				}
				n := bytes.IndexByte(p[i:quote], '\\')
				if n < 0 {
					n = quote - i
				}
				if i += n; i == len(p) {
					return
				}
				c = p[i]
			}
			s.passString(c)
		case s.state == scanBegins:
			s.begin(c)
		case s.number != otherValue || isStructure[c]:
			s.passStructure(c)
		}
	}
}

// isStructure are the bytes outside strings that passStructure notes beside digits.
var isStructure = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true, ',': true, ':': true}

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
	if s.isKey && s.keySize < maxUsageKey {
		s.key[s.keySize] = c
		s.keySize++
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
	if s.number != otherValue {
		if c >= '0' && c <= '9' && s.digits < maxUsageDigits {
			tokens := s.tokens()
			*tokens = *tokens*10 + int64(c-'0')
			s.digits++
			s.usage.Known = true
			return
		}
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			s.number = otherValue
		}
	}
	switch c {
	case '"':
		s.inside, s.isKey = true, s.expects
		if s.expects {
			s.keySize, s.expects = 0, false
		}
	case '{', '[':
		s.depth++
		if s.depth == 2 {
			s.counts = keyEquals(s.key[:s.keySize], "usage")
		}
		s.expects = s.counts
	case '}', ']':
		if s.depth--; s.depth == 0 {
			s.state = scanOver
		}
	case ',':
		s.expects = s.depth == 1 || s.depth == 2 && s.counts
	case ':':
		if s.depth == 2 && s.counts {
			s.expectNumber()
		}
	}
}

// expectNumber prepares for the value of a member of usage.
func (s *UsageScan) expectNumber() {
	key := s.key[:s.keySize]
	switch {
	case keyEquals(key, "prompt_tokens"), keyEquals(key, "input_tokens"):
		s.number = promptTokens
	case keyEquals(key, "completion_tokens"), keyEquals(key, "output_tokens"):
		s.number = completionTokens
	default:
		return
	}
	*s.tokens(), s.digits = 0, 0
}

// tokens is the count that number names.
func (s *UsageScan) tokens() *int64 {
	if s.number == promptTokens {
		return &s.usage.Prompt
	}
	return &s.usage.Completion
}
