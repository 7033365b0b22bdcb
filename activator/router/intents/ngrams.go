package intents

import (
	"math/bits"
	"unicode"
	"unicode/utf8"
)

const (
	bucketBits = 16
	buckets    = 1 << bucketBits

	minGram, maxGram = 3, 5

	// maxRunes bounds the runes of a text that are read: of a longer one the beginning
	// and the end, half each.
	maxRunes = 2000
)

// extractor turns texts into sets of buckets. It is for one goroutine.
type extractor struct {
	runes []rune
	has   [buckets / 64]uint64 // a bit for each bucket
	found []uint16
}

func (e *extractor) add(bucket uint16) { e.has[bucket/64] |= 1 << (bucket % 64) }

// extract returns the buckets of a text in ascending order, each once: its n-grams of
// minGram to maxGram characters and its words. Case, punctuation and the amount of white
// space make no difference. The result is valid until the next call.
func (e *extractor) extract(text string) []uint16 {
	e.runes = append(e.runes[:0], ' ')
	e.normalise(clipMiddle(text))
	e.close()
	return e.read(1)
}

// read returns the buckets of runes, but for those that the first ones have by themselves.
// A space is the last of those.
func (e *extractor) read(known int) []uint16 {
	for i := max(0, known+1-maxGram); i < len(e.runes); i++ {
		h := uint32(2166136261)
		for n := 1; n <= maxGram && i+n <= len(e.runes); n++ {
			h = (h ^ uint32(e.runes[i+n-1])) * 16777619
			if n >= minGram && i+n > known {
				e.add(bucketOf(h))
			}
		}
	}
	word, at := uint32(0), known-1
	for i := known; i < len(e.runes); i++ {
		if r := e.runes[i]; r != ' ' {
			word = (word ^ uint32(r)) * 2654435769
			continue
		}
		if i > at+1 {
			e.add(bucketOf(word + 1))
		}
		word, at = 0, i
	}
	e.found = e.found[:0]
	for i, word := range e.has {
		for ; word != 0; word &= word - 1 {
			e.found = append(e.found, uint16(64*i+bits.TrailingZeros64(word)))
		}
	}
	clear(e.has[:])
	return e.found
}

// bucketOf mixes a hash so that its low bits depend on all of it.
func bucketOf(h uint32) uint16 {
	h ^= h >> 15
	h *= 0x2c1b3c6d
	return uint16(h >> (32 - bucketBits))
}

// normalise appends a text to runes, which end in one, in lower case with one space for
// whatever is no letter or digit.
func (e *extractor) normalise(text string) {
	for _, r := range text {
		switch {
		case unicode.IsLetter(r) || unicode.IsMark(r):
			e.runes = append(e.runes, unicode.ToLower(r))
		case unicode.IsDigit(r):
			e.runes = append(e.runes, r)
		case e.runes[len(e.runes)-1] != ' ':
			e.runes = append(e.runes, ' ')
		}
	}
}

// close ends runes by a space.
func (e *extractor) close() {
	if e.runes[len(e.runes)-1] != ' ' {
		e.runes = append(e.runes, ' ')
	}
}

// clipMiddle cuts the middle out of a text of more than maxRunes runes.
func clipMiddle(text string) string {
	if len(text) <= maxRunes || utf8.RuneCountInString(text) <= maxRunes {
		return text
	}
	head, tail := 0, len(text)
	for range maxRunes / 2 {
		_, n := utf8.DecodeRuneInString(text[head:])
		head += n
		_, n = utf8.DecodeLastRuneInString(text[:tail])
		tail -= n
	}
	return text[:head] + " " + text[tail:]
}
