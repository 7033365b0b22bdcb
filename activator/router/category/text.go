package category

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Part is a part of a text whose words count on their own: what is asked for is mostly said
// first or last.
type Part int

const (
	Body  Part = iota // the beginning and the end
	First             // the first line
	Last              // the last line

	Parts Part = 3
)

const (
	beginBytes = 600
	endBytes   = 300
	firstBytes = 250
	lastBytes  = 200
	shortLine  = 20 // bytes up to which the next line counts too

	mostFeatures = 2 * (beginBytes + endBytes)
	ofLine       = 2 * firstBytes
)

// The counts: words, words with capitals inside, calls, numbers, question marks, marks of
// mathematics, other marks, lines, characters of scripts without spaces, capitals, length,
// and of numbers, other marks, marks of mathematics, capitals and lines those per 64 words.
const (
	countWords = iota
	countInside
	countCalls
	countNumbers
	countQuestions
	countMathematics
	countMarks
	countLines
	countWide
	countCapitals
	countLength
	countDense // the first of those per 64 words

	counts = countDense + len(dense)
	ranges = 12 // 0, 1, 2 and 3, 4 to 7, …

	// Ranges is the number of features that are ranges of counts.
	Ranges = counts * ranges
)

var dense = [5]int{countNumbers, countMarks, countMathematics, countCapitals, countLines}

// Text is what a text is judged by.
type Text struct {
	body        [mostFeatures]uint32
	first, last [ofLine]uint32
	n           [Parts]int // how many of these there are
	counts      [counts]int
}

// Read analyses a text. Case makes no difference, and all numbers are alike.
func Read(text []byte) *Text {
	t := new(Text)
	t.read(text)
	return t
}

// Features returns the hashes of the words and pairs of words of a part.
func (t *Text) Features(part Part) []uint32 { return t.of(part)[:t.n[part]] }

// Range returns the range that a count is in, a number below [Ranges].
func (t *Text) Range(count int) int {
	return count*ranges + min(bits.Len(uint(t.counts[count])), ranges-1)
}

const Counts = counts

func (t *Text) of(part Part) []uint32 {
	switch part {
	case First:
		return t.first[:]
	case Last:
		return t.last[:]
	}
	return t.body[:]
}

func (t *Text) read(text []byte) {
	text = bytes.TrimSpace(text)
	if len(text) > beginBytes+endBytes {
		t.readPart(text[:beginBytes], Body)
		t.readPart(text[len(text)-endBytes:], Body)
	} else {
		t.readPart(text, Body)
	}
	c := t.counts
	c[countLength] = len(text) / 32
	for i, of := range dense {
		c[countDense+i] = 64 * c[of] / max(c[countWords]+c[countWide], 1)
	}
	first := text[:min(len(text), firstBytes)]
	if i := bytes.IndexByte(first, '\n'); i > shortLine {
		first = first[:i]
	}
	last := text[max(0, len(text)-lastBytes):]
	if i := bytes.LastIndexByte(last, '\n'); i >= 0 && i < len(last)-shortLine {
		last = last[i+1:]
	}
	t.readPart(first, First)
	t.readPart(last, Last)
	t.counts = c
}

const (
	numberWord = 7  // the word that stands for every number
	lineWord   = 99 // stands before the first word of a line
	markFactor = 7919
	firstWide  = 0xE3 // the first byte of the scripts without spaces between words
)

// readPart adds the features of a part. A pair is of a word or a mark and the one before it in a sentence.
func (t *Text) readPart(text []byte, part Part) {
	list, n := t.of(part), t.n[part]
	salt := uint32(part) * 0x85ebca6b
	previous := uint32(0)
	for i := 0; i < len(text) && n+2 <= len(list); {
		c := text[i]
		word := uint32(0)
		switch classes[c] {
		case letter:
			start := i
			i = t.readWord(text, i)
			word = hashWord(text, start, i)
		case digit:
			for i++; i < len(text) && (classes[text[i]] == digit || text[i] == '.' || text[i] == ','); i++ {
			}
			t.counts[countNumbers]++
			word = numberWord
		case wide:
			size := 3
			if c >= 0xF0 {
				size = 4
			}
			if i+size > len(text) {
				i = len(text)
				continue
			}
			if c == 0xE3 && text[i+1] == 0x80 || c == 0xEF { // punctuation
				previous = 0
				i += size
				continue
			}
			t.counts[countWide]++
			word = hashWord(text, i, i+size)
			i += size
		case question, mathematics, mark:
			t.counts[countQuestions+int(classes[c]-question)]++
			word = uint32(c) * markFactor
			i++
		case line:
			t.counts[countLines]++
			previous = lineWord
			i++
			continue
		case stop:
			previous = uint32(c)
			i++
			continue
		default:
			i++
			continue
		}
		list[n] = spreadHash(word + salt)
		n++
		if previous != 0 {
			list[n] = spreadHash(previous*31 + word + salt)
			n++
		}
		previous = word
	}
	t.n[part] = n
}

// readWord counts the word at i and returns where it ends.
func (t *Text) readWord(text []byte, i int) int {
	c := &t.counts
	c[countWords]++
	c[countCapitals] += int(inWord[text[i]] & wordCapital)
	inside := uint8(0)
	for i++; i < len(text); i++ {
		of := inWord[text[i]]
		if of == 0 {
			if text[i] == '(' {
				c[countCalls]++
			}
			break
		}
		inside |= of
	}
	c[countInside] += int(inside&wordCapital | inside&wordLine>>1)
	return i
}

type class uint8

const (
	other class = iota
	letter
	digit
	wide
	line
	stop
	question // these three in the order of their counts
	mathematics
	mark
)

var classes = func() (t [256]class) {
	for c := range t {
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= 0x80 && c < firstWide:
			t[c] = letter
		case c >= '0' && c <= '9':
			t[c] = digit
		case c >= firstWide:
			t[c] = wide
		}
	}
	for of, list := range map[class]string{line: "\n", stop: ".!:", question: "?", mathematics: "=+^*$\\%<>", mark: "{};()[]`\"_#/&|@-"} {
		for _, c := range []byte(list) {
			t[c] = of
		}
	}
	return t
}()

// inWord says of each byte of a word behind the first what it is.
var inWord = func() (t [256]uint8) {
	for c := range t {
		switch {
		case c >= 'A' && c <= 'Z':
			t[c] = wordByte | wordCapital
		case c == '_':
			t[c] = wordByte | wordLine
		case classes[c] == letter || c == '\'':
			t[c] = wordByte
		}
	}
	return t
}()

const (
	wordCapital = 1 << iota
	wordLine    // the line that stands for a blank
	wordByte
)

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

// spreadHash spreads a hash over all its bits.
func spreadHash(h uint32) uint32 {
	h ^= h >> 15
	h *= 0x2c1b3c6d
	h ^= h >> 12
	h *= 0x297a2d39
	return h ^ h>>15
}
