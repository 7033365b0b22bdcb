package bpe

import (
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer is one loaded tokenizer.json.
type Tokenizer struct {
	names        names
	merges       *merges
	byteID       [256]int32 // -1 where the vocabulary lacks the byte
	Pattern      Pattern    // how text is split into words
	prefix       bool       // a text gets a leading space
	nfc          bool
	ignoreMerges bool // a word that is in the vocabulary is not merged (ignore_merges)
	Size         int  // one more than the largest token id
	added        []added
	byText       map[string]int // index into added
	lengths      [256][]int     // of the added tokens that begin with a byte, the longest first
	flags        []uint8
	Longest      int // bytes of the longest token
	before       []int32
	after        []int32

	mu    sync.Mutex
	cache map[string][]int32 // of words, bounded
}

const (
	isAdded = 1 << iota
	isSpecial
)

// ByteRune is the character of a byte in vocabularies: printable bytes are themselves,
// the others are from U+0100 on.
func ByteRune(b byte) rune { return byteRunes[b] }

var byteRunes = func() (t [256]rune) {
	next := rune(256)
	for b := range t {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			t[b] = rune(b)
		} else {
			t[b] = next
			next++
		}
	}
	return t
}()

// runeBytes is the inverse of ByteRune: byte+1, 0 for other characters.
var runeBytes = func() (t [512]uint16) {
	for b, r := range byteRunes {
		t[r] = uint16(b) + 1
	}
	return t
}()

// decodeByteLevel replaces a vocabulary's characters by their bytes, in place. A name
// with other characters (of an added token) is unchanged.
func decodeByteLevel(b []byte) []byte {
	i := 0
	for i < len(b) && b[i] < 0x80 {
		i++ // printable characters stand for themselves
	}
	if i == len(b) {
		return b
	}
	for k := i; k < len(b); {
		r, n := decodeTwoByte(b[k:])
		if n == 0 || runeBytes[r] == 0 {
			return b
		}
		k += n
	}
	out := b[:i]
	for i < len(b) {
		r, n := decodeTwoByte(b[i:])
		out = append(out, byte(runeBytes[r]-1)) // never ahead of i
		i += n
	}
	return out
}

// decodeTwoByte decodes a character below U+0200, all that stand for bytes; n is 0 for others.
func decodeTwoByte(b []byte) (r, n int) {
	switch c := b[0]; {
	case c < 0x80:
		return int(c), 1
	case c >= 0xc2 && c < 0xc8 && len(b) > 1 && b[1]&0xc0 == 0x80:
		return int(c&0x1f)<<6 | int(b[1]&0x3f), 2
	}
	return 0, 0
}

// Find returns the id of the token that is exactly text, added ones first.
func (t *Tokenizer) Find(text string) (int, bool) {
	if k, ok := t.byText[text]; ok {
		return int(t.added[k].ID), true
	}
	id := t.names.find([]byte(text))
	return int(id), id >= 0
}

// Special reports whether a token is not text, such as an end mark.
func (t *Tokenizer) Special(id int) bool {
	return id >= 0 && id < len(t.flags) && t.flags[id]&isSpecial != 0
}

// Bytes returns the bytes of a token, which may be part of a character; none for an
// unknown id. The slice must not be written.
func (t *Tokenizer) Bytes(id int) []byte {
	if id < 0 || id >= t.Size {
		return nil
	}
	return t.names.bytes(int32(id))
}

// Decode joins the text of tokens. Invalid bytes become U+FFFD.
func (t *Tokenizer) Decode(ids []int) string {
	var b []byte
	for _, id := range ids {
		b = append(b, t.Bytes(id)...)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// Encode returns the tokens of text; with around, with those of the post-processor
// before and after it.
func (t *Tokenizer) Encode(text string, around bool) []int {
	out := make([]int, 0, len(text)/3+4)
	if around {
		out = appendIDs(out, t.before)
	}
	for len(text) > 0 {
		at, end, id := t.nextAdded(text)
		if id < 0 {
			out = t.encodeText(out, text)
			break
		}
		a := &t.added[id]
		head, tail := text[:at], text[end:]
		if a.LStrip {
			head = strings.TrimRightFunc(head, isSpace)
		}
		if a.RStrip {
			tail = strings.TrimLeftFunc(tail, isSpace)
		}
		out = t.encodeText(out, head)
		out = append(out, int(a.ID))
		text = tail
	}
	if around {
		out = appendIDs(out, t.after)
	}
	return out
}

func appendIDs(out []int, ids []int32) []int {
	for _, id := range ids {
		out = append(out, int(id))
	}
	return out
}

func isSpace(r rune) bool { return slowClass(r) == space }

// nextAdded finds the leftmost, longest added token.
func (t *Tokenizer) nextAdded(s string) (at, end, id int) {
	if len(t.added) == 0 {
		return 0, 0, -1
	}
	for i := range len(s) {
		for _, n := range t.lengths[s[i]] {
			if n > len(s)-i {
				continue
			}
			k, ok := t.byText[s[i:i+n]]
			before, _ := utf8.DecodeLastRuneInString(s[:i])
			after, _ := utf8.DecodeRuneInString(s[i+n:])
			if ok && !(t.added[k].SingleWord && (inWord(before) || inWord(after))) {
				return i, i + n, k
			}
		}
	}
	return 0, 0, -1
}

func inWord(r rune) bool { return r == '_' || slowClass(r) == letter || slowClass(r) == number }

func (t *Tokenizer) encodeText(out []int, s string) []int {
	if s == "" {
		return out
	}
	if t.nfc && !norm.NFC.IsNormalString(s) {
		s = norm.NFC.String(s)
	}
	if t.prefix && s[0] != ' ' {
		s = " " + s
	}
	t.Pattern.Split(s, func(w string) { out = t.encodeWord(out, w) })
	return out
}

// maxCached and longest bound the cache: long words rarely repeat.
const (
	maxCached = 1 << 14
	longest   = 64
)

func (t *Tokenizer) encodeWord(out []int, w string) []int {
	if len(w) == 1 {
		if id := t.byteID[w[0]]; id >= 0 {
			return append(out, int(id))
		}
		return out
	}
	if t.ignoreMerges {
		if id := t.names.find([]byte(w)); id >= 0 {
			return append(out, int(id))
		}
	}
	if len(w) > longest {
		return appendIDs(out, t.merge(w))
	}
	t.mu.Lock()
	ids, ok := t.cache[w]
	t.mu.Unlock()
	if !ok {
		ids = t.merge(w)
		t.mu.Lock()
		if t.cache == nil || len(t.cache) >= maxCached {
			t.cache = map[string][]int32{}
		}
		t.cache[strings.Clone(w)] = ids
		t.mu.Unlock()
	}
	return appendIDs(out, ids)
}
