// Package complexity rates how likely a request needs a large model: a linear model over
// hashed words, pairs of words and a few counts. Its weights are in weights.bin, which
// thaw-bench router --fit writes; bench/thaw-bench/router names the public sources.
package complexity

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/bits"
	"strings"
)

const (
	// Buckets is the number of hashed words and pairs.
	Buckets = 1 << 13

	// Features is the number of weights: the buckets, and behind them a weight for each
	// range of each count.
	Features = Buckets + counts*ranges

	// words, numbers, question marks, marks of mathematics, lines, marks of a choice, words
	// and characters of scripts beyond Latin, numbers per 64 words
	counts = 8
	ranges = 8 // 0, 1, 2 and 3, 4 to 7, …

	maxBytes = 8 << 10 // of a longer text the beginning and the end are read, half each
)

// Text is what a score is computed from: the set of hashed words and pairs, and the
// counts.
type Text struct {
	Found  [Buckets / 64]uint64
	Counts [counts]int
}

// Read analyses a text. Case makes no difference, and all numbers are alike.
func Read(text string) *Text {
	var t Text
	t.readEnds([]byte(text))
	return &t
}

func (t *Text) readEnds(text []byte) {
	if len(text) > maxBytes {
		t.read(text[:maxBytes/2])
		text = text[len(text)-maxBytes/2:]
	}
	t.read(text)
	t.Counts[7] = 64 * t.Counts[1] / max(t.Counts[0], 1)
}

func (t *Text) read(text []byte) {
	previous := uint32(0)
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == ' ': // changes nothing; most that is no word is one
		case c > firstIndic || c == firstIndic && isIndicDigit(text[i:]):
			previous = t.readLong(text[i:], previous)
			i += 3
			if c >= 0xF0 {
				i++
			}
			continue
		case inWord[c] && c != '\'':
			if c >= firstBeyond {
				t.Counts[6]++
			}
			start := i
			for i++; i < len(text) && inWord[text[i]]; i++ {
			}
			h := hashWord(text, start, i)
			if i == start+1 && i < len(text) && c >= 'A' && c <= 'F' && (text[i] == ')' || text[i] == '.') && (start == 0 || text[start-1] == '\n' || text[start-1] == '(') {
				t.Counts[5]++
			}
			if numerals[h%uint32(len(numerals))] == h {
				t.Counts[1]++
				h = numberWord
			} else {
				t.Counts[0]++
			}
			previous = t.add(h, previous)
			continue
		case c >= '0' && c <= '9':
			start := i
			for i < len(text) && (text[i] >= '0' && text[i] <= '9' || text[i] == '.' || text[i] == ',') {
				i++
			}
			if i < len(text) && start > 0 && (text[i] == ')' && text[start-1] == '(' || text[i] == ':' && inWord[text[start-1]]) {
				t.Counts[5]++ // (1) and Answer1:
			}
			t.Counts[1]++
			previous = t.add(numberWord, previous)
			continue
		case c == '?':
			t.Counts[2]++
		case c == '=' || c == '+' || c == '^' || c == '*' || c == '$' || c == '\\' || c == '%' || c == '<' || c == '>':
			t.Counts[3]++
			previous = 0
		case c == '\n':
			t.Counts[4]++
			previous = 0
		case c == '.' || c == '!' || c == ';' || c == ':':
			previous = 0
		}
		i++
	}
}

const (
	firstBeyond = 0xCE // the first byte of Greek, and of the scripts behind it
	firstIndic  = 0xE0 // the first byte of the scripts of India and of Thai, whose words are long
)

// isIndicDigit reports whether text begins with a digit of a script of India, or of Thai.
func isIndicDigit(text []byte) bool {
	if len(text) < 3 {
		return false
	}
	second, third := text[1], text[2]
	return second&1 == 1 && second >= 0xA5 && second <= 0xB5 && third >= 0xA6 && third <= 0xAF ||
		second == 0xB9 && third >= 0x90 && third <= 0x99
}

// readLong reads the character of three or four bytes that text begins with, of India's scripts only a digit. A
// letter is a word of its own: the scripts of China and Japan have no spaces between words.
func (t *Text) readLong(text []byte, previous uint32) uint32 {
	if len(text) < 3 || text[0] >= 0xF0 {
		return 0
	}
	switch second, third := text[1], text[2]; text[0] {
	case firstIndic:
		t.Counts[1]++
		return t.add(numberWord, previous)
	case 0xE2:
		if second >= 0x86 && second <= 0x8B { // arrows and operators
			t.Counts[3]++
			return 0
		}
		if second == 0x80 { // quotation marks, dashes
			return previous
		}
		return 0
	case 0xE3:
		if second == 0x80 { // its own punctuation
			return 0
		}
	case 0xEF:
		switch {
		case second == 0xBC && third == 0x9F:
			t.Counts[2]++
		case second == 0xBC && third >= 0x90 && third <= 0x99: // digits of full width
			t.Counts[1]++
			return t.add(numberWord, previous)
		}
		return 0
	}
	t.Counts[0]++
	t.Counts[6]++
	return t.add(hashWord(text, 0, 3), previous)
}

// numberWord is the word that stands for every number.
const numberWord = 1

// numerals are the hashes of numbers that are spelled out, each in the slot of its own.
var numerals = func() (t [1 << 10]uint32) {
	for word := range strings.FieldsSeq("two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty hundred thousand half twice") {
		h := hashWord([]byte(word), 0, len(word))
		if t[h%uint32(len(t))] != 0 {
			panic("complexity: two numerals have one slot")
		}
		t[h%uint32(len(t))] = h
	}
	return t
}()

// inWord are the bytes of words: letters of ASCII, characters of two bytes and of India's scripts, the apostrophe.
var inWord = func() (t [256]bool) {
	for c := range t {
		t[c] = c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80 && c <= firstIndic || c == '\''
	}
	return t
}()

// hashWord hashes text[start:end] without the case of its letters, eight bytes at a time.
func hashWord(text []byte, start, end int) uint32 {
	h := uint64(end - start)
	for ; start < end; start += 8 {
		var w uint64
		if start+8 <= len(text) {
			w = binary.LittleEndian.Uint64(text[start:])
			if n := end - start; n < 8 {
				w &= 1<<(8*n) - 1
			}
		} else {
			for k := end - 1; k >= start; k-- {
				w = w<<8 | uint64(text[k])
			}
		}
		h = (h ^ (w | 0x2020202020202020)) * 0x9E3779B97F4A7C15
		h ^= h >> 32
	}
	return uint32(h)
}

// add notes a word and its pair with the word before, and returns the word.
func (t *Text) add(h, previous uint32) uint32 {
	t.mark(h)
	if previous != 0 {
		t.mark(previous*31 + h)
	}
	return h
}

func (t *Text) mark(h uint32) {
	h ^= h >> 15
	h *= 0x2c1b3c6d
	h >>= 32 - 13
	t.Found[h/64] |= 1 << (h % 64)
}

// Each calls f with every feature of the text and its value: words and pairs have length
// 1 together.
func (t *Text) Each(f func(feature int, value float64)) {
	n := 0
	for _, w := range t.Found {
		n += bits.OnesCount64(w)
	}
	value := 1 / math.Sqrt(float64(max(n, 1)))
	for i, w := range t.Found {
		for ; w != 0; w &= w - 1 {
			f(i*64+bits.TrailingZeros64(w), value)
		}
	}
	for k, n := range t.Counts {
		f(rangeOf(k, n), countValue)
	}
}

// countValue is the value of a range that a count is in.
const countValue = 0.25

// rangeOf is the feature of the range that count k is in.
func rangeOf(k, n int) int { return Buckets + k*ranges + min(bits.Len(uint(n)), ranges-1) }

// Header is the number of bytes before the weights in weights.bin: the scale of the
// weights and the bias, as 32-bit floats, little-endian. Each weight is a signed byte.
const Header = 8

//go:embed weights.bin
var weights []byte

// Score rates a text, 0 to 1. Above a half the sources call it reasoning.
func Score(text []byte) float64 {
	var t Text
	t.readEnds(text)
	return scoreBy(&t, weights)
}

func scoreBy(t *Text, weights []byte) float64 {
	if len(weights) != Header+Features {
		panic("complexity: weights.bin is of another version")
	}
	scale := float64(math.Float32frombits(binary.LittleEndian.Uint32(weights)))
	bias := float64(math.Float32frombits(binary.LittleEndian.Uint32(weights[4:])))
	n, words := 0, 0
	for i, w := range t.Found {
		of := weights[Header+i*64 : Header+(i+1)*64]
		for n += bits.OnesCount64(w); w != 0; w &= w - 1 {
			words += int(int8(of[bits.TrailingZeros64(w)&63]))
		}
	}
	sum := float64(words) / math.Sqrt(float64(max(n, 1)))
	for k, n := range t.Counts {
		sum += float64(int8(weights[Header+rangeOf(k, n)])) * countValue
	}
	return math.Round(1e4/(1+math.Exp(-sum*scale-bias))) / 1e4
}

// Encode returns the content of weights.bin.
func Encode(w []float64, bias float64) []byte {
	largest := 1e-9
	for _, x := range w {
		largest = max(largest, math.Abs(x))
	}
	scale := largest / math.MaxInt8
	out := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(scale)))
	out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(bias)))
	for _, x := range w {
		out = append(out, byte(int8(math.Round(x/scale))))
	}
	return out
}
