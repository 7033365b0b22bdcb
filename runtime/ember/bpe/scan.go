package bpe

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON in memory. Of skipped values it validates only nesting and
// strings; encoding/json decodes the used ones later.
type scanner struct {
	b  []byte
	at int
}

var errEnd = errors.New("unexpected end of JSON")

// maxDepth bounds nesting of skipped values.
const maxDepth = 64

func (s *scanner) syntaxError(problem string) error {
	if s.at >= len(s.b) {
		return errEnd
	}
	return fmt.Errorf("want %s at byte %d, have %q", problem, s.at, s.b[s.at])
}

func (s *scanner) space() {
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case ' ', '\n', '\t', '\r':
			s.at++
		default:
			return
		}
	}
}

// peek skips space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.at >= len(s.b) {
		return 0
	}
	return s.b[s.at]
}

func (s *scanner) byte(c byte) error {
	if s.peek() != c {
		return s.syntaxError(string(c))
	}
	s.at++
	return nil
}

// list calls f for each element of an array or each member of an object whose
// opening byte comes next; f must consume it.
func (s *scanner) list(open, end byte, f func() error) error {
	if err := s.byte(open); err != nil {
		return err
	}
	if s.peek() == end {
		s.at++
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.at++
		case end:
			s.at++
			return nil
		default:
			return s.syntaxError(", or " + string(end))
		}
	}
}

// object calls f with each key; f must consume the value.
func (s *scanner) object(f func(key string) error) error {
	var buf []byte
	return s.list('{', '}', func() error {
		k, err := s.text(buf[:0])
		if err != nil {
			return err
		}
		buf = k
		if err := s.byte(':'); err != nil {
			return err
		}
		return f(string(k))
	})
}

// text appends the decoded string that comes next to dst.
func (s *scanner) text(dst []byte) ([]byte, error) {
	if err := s.byte('"'); err != nil {
		return dst, err
	}
	for s.at < len(s.b) {
		start := s.at
		for s.at < len(s.b) && s.b[s.at] != '"' && s.b[s.at] != '\\' && s.b[s.at] >= 0x20 {
			s.at++
		}
		dst = append(dst, s.b[start:s.at]...)
		if s.at >= len(s.b) {
			break
		}
		switch s.b[s.at] {
		case '"':
			s.at++
			return dst, nil
		case '\\':
			var err error
			if dst, err = s.escape(dst); err != nil {
				return dst, err
			}
		default:
			return dst, s.syntaxError("a string without control characters")
		}
	}
	return dst, errEnd
}

func (s *scanner) escape(dst []byte) ([]byte, error) {
	if s.at+1 >= len(s.b) {
		return dst, errEnd
	}
	c := s.b[s.at+1]
	s.at += 2
	switch c {
	case '"', '\\', '/':
		return append(dst, c), nil
	case 'b':
		return append(dst, '\b'), nil
	case 'f':
		return append(dst, '\f'), nil
	case 'n':
		return append(dst, '\n'), nil
	case 'r':
		return append(dst, '\r'), nil
	case 't':
		return append(dst, '\t'), nil
	case 'u':
		r, err := s.hex()
		if err != nil {
			return dst, err
		}
		if utf16.IsSurrogate(r) {
			if s.at+1 < len(s.b) && s.b[s.at] == '\\' && s.b[s.at+1] == 'u' {
				s.at += 2
				low, err := s.hex()
				if err != nil {
					return dst, err
				}
				r = utf16.DecodeRune(r, low)
			} else {
				r = utf8.RuneError
			}
		}
		return utf8.AppendRune(dst, r), nil
	}
	s.at--
	return dst, s.syntaxError("an escape")
}

func (s *scanner) hex() (rune, error) {
	if s.at+4 > len(s.b) {
		return 0, errEnd
	}
	var r rune
	for range 4 {
		c := s.b[s.at]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, s.syntaxError("a hex digit")
		}
		r = r<<4 | rune(c)
		s.at++
	}
	return r, nil
}

// id reads a small non-negative integer.
func (s *scanner) id() (int32, error) {
	s.space()
	start, v := s.at, int64(0)
	for s.at < len(s.b) && s.b[s.at] >= '0' && s.b[s.at] <= '9' {
		v = v*10 + int64(s.b[s.at]-'0')
		if v > maxVocab {
			return 0, fmt.Errorf("token id at byte %d is larger than %d", start, maxVocab)
		}
		s.at++
	}
	if s.at == start {
		return 0, s.syntaxError("a token id")
	}
	return int32(v), nil
}

// skip steps over any value and returns its bytes.
func (s *scanner) skip() ([]byte, error) {
	s.space()
	start := s.at
	err := s.step(0)
	return s.b[start:s.at], err
}

func (s *scanner) step(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d at byte %d", maxDepth, s.at)
	}
	switch c := s.peek(); c {
	case '"':
		s.at++
		for s.at < len(s.b) {
			switch s.b[s.at] {
			case '"':
				s.at++
				return nil
			case '\\':
				s.at++
			}
			s.at++
		}
		return errEnd
	case '{':
		return s.list('{', '}', func() error {
			if s.peek() != '"' {
				return s.syntaxError("a key")
			}
			if err := s.step(depth + 1); err != nil {
				return err
			}
			if err := s.byte(':'); err != nil {
				return err
			}
			return s.step(depth + 1)
		})
	case '[':
		return s.list('[', ']', func() error { return s.step(depth + 1) })
	case 0:
		return errEnd
	default:
		start := s.at
		for s.at < len(s.b) {
			switch s.b[s.at] {
			case ',', '}', ']', ' ', '\n', '\r', '\t', ':', '"', '{', '[':
				if s.at == start {
					return s.syntaxError("a value")
				}
				return nil
			}
			s.at++
		}
		return nil
	}
}
