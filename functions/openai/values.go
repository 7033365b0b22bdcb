package openai

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"strconv"
)

// skipSpace returns the first index from i that is no white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// scanString checks the string literal at i and returns the index behind it, and
// whether it has escapes. It looks at eight bytes at a time: prompts are long.
func scanString(b []byte, i int) (end int, escaped bool, err error) {
	if i >= len(b) || b[i] != '"' {
		return 0, false, misplaced(b, i, "", "a string")
	}
	i++
	for {
		for i+8 <= len(b) {
			x := binary.LittleEndian.Uint64(b[i:])
			q, e := x^(ones*'"'), x^(ones*'\\')
			m := (x-ones*0x20)&^x | (q-ones)&^q | (e-ones)&^e
			if m &= highs; m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			return 0, false, invalidJSON("", "it ends inside a string.")
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped, nil
		case c == '\\':
			escaped = true
			if i, err = scanEscape(b, i); err != nil {
				return 0, false, err
			}
		case c < 0x20:
			return 0, false, invalidJSON("", "a control character stands in a string at byte %d: write it as an escape, a line break as \\n.", i)
		default:
			i++
		}
	}
}

// scanKey checks the key of a member at i. It returns the key, unescaped, and the index
// behind the literal.
func scanKey(b []byte, i int) (key []byte, end int, err error) {
	end, escaped, err := scanString(b, i)
	if err != nil {
		return nil, 0, err
	}
	if escaped {
		return unquote(b[i:end]), end, nil
	}
	return b[i+1 : end-1], end, nil
}

// skipMark returns the index behind the byte order mark that b may begin with.
func skipMark(b []byte) int {
	if len(b) >= 3 && b[0] == 0xEF && b[1] == 0xBB && b[2] == 0xBF {
		return 3
	}
	return 0
}

// scanEscape checks the escape sequence at i and returns the index behind it. Half of a
// surrogate pair may stand alone: Python writes and reads it.
func scanEscape(b []byte, i int) (int, error) {
	if i+1 < len(b) {
		switch b[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			return i + 2, nil
		case 'u':
			var unit [2]byte
			if i+6 > len(b) {
				break
			}
			if _, err := hex.Decode(unit[:], b[i+2:i+6]); err != nil {
				break
			}
			return i + 6, nil
		}
	}
	return 0, invalidJSON("", "an escape sequence is wrong at byte %d: a backslash itself is written \\\\.", i)
}

// scanValue checks the value at i, nested depth deep, and returns the index behind
// it; of an array also how many elements it has. It sets media, if that is not nil, at a
// member whose name may carry media.
func scanValue(b []byte, i, depth int, media *bool) (end, count int, err error) {
	if i >= len(b) {
		return 0, 0, invalidJSON("", "it ends where a value is expected.")
	}
	switch c := b[i]; c {
	case '"':
		end, _, err = scanString(b, i)
		return end, 0, err
	case '{', '[':
		if depth >= MaxDepth {
			return 0, 0, invalidJSON("", "it is nested deeper than %d.", MaxDepth)
		}
		closing := c + 2 // '}' and ']' in ASCII
		i = skipSpace(b, i+1)
		if i < len(b) && b[i] == closing {
			return i + 1, 0, nil
		}
		for {
			if c == '{' {
				at, escaped := i, false
				if i, escaped, err = scanString(b, i); err != nil {
					return 0, 0, err
				}
				if media != nil && !*media && (escaped || mayCarryMedia(b[at+1:i-1])) {
					*media = true
				}
				i = skipSpace(b, i)
				if i == len(b) || b[i] != ':' {
					return 0, 0, misplaced(b, i, "", "a colon")
				}
				i = skipSpace(b, i+1)
			}
			if i, _, err = scanValue(b, i, depth+1, media); err != nil {
				return 0, 0, err
			}
			count++
			i = skipSpace(b, i)
			if i == len(b) {
				return 0, 0, invalidJSON("", "it ends inside an object or array.")
			}
			if b[i] == closing {
				return i + 1, count, nil
			}
			if b[i] != ',' {
				return 0, 0, misplaced(b, i, "", "a comma")
			}
			i = skipSpace(b, i+1)
		}
	case 't':
		return scanLiteral(b, i, "true")
	case 'f':
		return scanLiteral(b, i, "false")
	case 'n':
		return scanLiteral(b, i, "null")
	}
	end, err = scanNumber(b, i)
	return end, 0, err
}

func scanLiteral(b []byte, i int, word string) (int, int, error) {
	if end := i + len(word); end <= len(b) && string(b[i:end]) == word {
		return end, 0, nil
	}
	return 0, 0, misplaced(b, i, "", "a value")
}

// scanNumber checks the literal at i. What a double cannot hold is infinite to
// Python and an error to others, so it is refused.
func scanNumber(b []byte, i int) (int, error) {
	at := i
	digits := func() int {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i - from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	zero := i < len(b) && b[i] == '0'
	whole := digits()
	if whole == 0 || zero && whole > 1 {
		return 0, misplaced(b, at, "", "a value")
	}
	if i < len(b) && b[i] == '.' {
		i++
		if digits() == 0 {
			return 0, invalidJSON("", "a number is wrong at byte %d.", at)
		}
	}
	exp := 0
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		minus := i < len(b) && b[i] == '-'
		if minus || i < len(b) && b[i] == '+' {
			i++
		}
		from := i
		if digits() == 0 {
			return 0, invalidJSON("", "a number is wrong at byte %d.", at)
		}
		exp = 1000
		if n, err := strconv.Atoi(string(b[from:min(i, from+6)])); err == nil && i-from <= 6 {
			exp = n
		}
		if minus {
			exp = 0
		}
	}
	if i-at > MaxNumber || whole+exp > 308 {
		return 0, invalidJSON("", "a number is too large at byte %d.", at)
	}
	return i, nil
}
