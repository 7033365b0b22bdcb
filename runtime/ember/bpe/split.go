package bpe

import (
	"unicode"
	"unicode/utf8"
)

// Pattern is how a known tokenizer splits text into words before merging.
type Pattern int

const (
	GPT2   Pattern = iota // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
	Digits                // as GPT2, after splitting off every digit (SmolLM)
	Llama3                // (?i:'s|…)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
	Qwen2                 // as Llama3, with \p{N} alone
)

// Regular expressions of tokenizer.json files.
const (
	gpt2Regex   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Regex = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Regex  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

func (p Pattern) String() string {
	switch p {
	case GPT2:
		return "gpt2"
	case Digits:
		return "digits"
	case Llama3:
		return "llama3"
	case Qwen2:
		return "qwen2"
	}
	return "unknown"
}

// Regex is the regular expression that tokenizer.json files have for the pattern;
// Digits has GPT2's behind a step of its own.
func (p Pattern) Regex() string {
	switch p {
	case Llama3:
		return llama3Regex
	case Qwen2:
		return qwen2Regex
	}
	return gpt2Regex
}

type class uint8

const (
	space class = iota
	letter
	number
	other
	none // end of text
)

var ascii = func() (t [128]class) {
	for i := range t {
		t[i] = slowClass(rune(i))
	}
	return t
}()

func slowClass(r rune) class {
	switch {
	case unicode.IsSpace(r):
		return space
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	}
	return other
}

func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return none, 0
	}
	if c := s[i]; c < 128 {
		return ascii[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return slowClass(r), n
}

// classRun returns the end of the run of class c that begins at i.
func classRun(s string, i int, c class) int {
	for {
		k, n := classAt(s, i)
		if k != c {
			return i
		}
		i += n
	}
}

// contraction returns the length of an English contraction at i, 0 if none.
func contraction(s string, i int, fold bool) int {
	if s[i] != '\'' || i+1 >= len(s) {
		return 0
	}
	low := func(j int) byte {
		if j >= len(s) {
			return 0
		}
		c := s[j]
		if fold && c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	switch low(i + 1) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if low(i+2) == 'e' {
			return 3
		}
	case 'l':
		if low(i+2) == 'l' {
			return 3
		}
	}
	return 0
}

// Split calls emit with each word of s; joined, they are s.
func (p Pattern) Split(s string, emit func(string)) {
	switch p {
	case GPT2:
		splitGPT2(s, emit)
	case Digits:
		start := 0
		for i := 0; i < len(s); {
			c, n := classAt(s, i)
			if c == number {
				if start < i {
					splitGPT2(s[start:i], emit)
				}
				splitGPT2(s[i:i+n], emit)
				start = i + n
			}
			i += n
		}
		if start < len(s) {
			splitGPT2(s[start:], emit)
		}
	case Llama3:
		splitModern(s, 3, emit)
	case Qwen2:
		splitModern(s, 1, emit)
	}
}

func splitGPT2(s string, emit func(string)) {
	for i := 0; i < len(s); {
		if n := contraction(s, i, false); n > 0 {
			emit(s[i : i+n])
			i += n
			continue
		}
		at := i
		if s[i] == ' ' {
			if c, _ := classAt(s, i+1); c != space && c != none {
				at++
			}
		}
		c, _ := classAt(s, at)
		end := classRun(s, at, c)
		if c == space {
			end = leaveOneSpace(s, at, end)
		}
		emit(s[i:end])
		i = end
	}
}

// leaveOneSpace is \s+(?!\S)|\s+ : the last character of spaces before a word
// belongs to the word, unless there is only one.
func leaveOneSpace(s string, at, end int) int {
	if end == len(s) {
		return end
	}
	_, n := utf8.DecodeLastRuneInString(s[at:end])
	if end-n > at {
		return end - n
	}
	return end
}

func isNewline(c byte) bool { return c == '\r' || c == '\n' }

func splitModern(s string, digits int, emit func(string)) {
	for i := 0; i < len(s); {
		end := matchModern(s, i, digits)
		emit(s[i:end])
		i = end
	}
}

func matchModern(s string, i, digits int) int {
	if n := contraction(s, i, true); n > 0 {
		return i + n
	}
	c, n := classAt(s, i)
	switch {
	case c == letter:
		return classRun(s, i, letter)
	case c != number && !isNewline(s[i]):
		if k, _ := classAt(s, i+n); k == letter {
			return classRun(s, i+n, letter)
		}
	case c == number:
		end := i
		for range digits {
			k, n := classAt(s, end)
			if k != number {
				break
			}
			end += n
		}
		return end
	}
	at := i
	if s[i] == ' ' {
		at++
	}
	if k, _ := classAt(s, at); k == other {
		end := classRun(s, at, other)
		for end < len(s) && isNewline(s[end]) {
			end++
		}
		return end
	}
	// Only space is left. \s*[\r\n]+ takes everything up to the last newline of the run.
	end := classRun(s, i, space)
	for j := end; j > i; j-- {
		if isNewline(s[j-1]) {
			return j
		}
	}
	return leaveOneSpace(s, i, end)
}
