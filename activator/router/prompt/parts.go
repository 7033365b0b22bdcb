package prompt

import "bytes"

// A request for parts of a text is among its first or its last bytes: the text itself is
// between.
const (
	partsBegin = 800
	partsEnd   = 400
	partsText  = 400 // that follow a request without a word for the text

	lineOfCode = 4 // points of structure that a line of code has at least
)

// noteParts notes a sentence with words of these classes, and the ones of the verb that it
// begins with, if it asks for parts of a text; found: a verb of classFind is in the
// imperative.
func (s *scan) noteParts(w, begins wordClass, found bool) {
	asks := asksForParts(w, begins, found) || s.mentioned && begins&classFind != 0 && w&(classEntity|classField) != 0 ||
		begins&classConstruct != 0 && w&classEntity != 0 && (s.mentioned || w&classText != 0)
	s.mentioned = s.mentioned || w&classText != 0
	if asks {
		s.demand = s.demand || found
		if s.parts = s.last; s.last <= partsBegin {
			s.found |= foundParts
		}
		return
	}
	find := begins&(classFind|classGive) != 0 && w&(classEntity|classField|classExtract) != 0 || found && w&classExtract != 0
	if s.bare == 0 && (find || begins&classConstruct != 0 && w&classTable != 0) {
		s.bare = s.last
	}
}

// wantsParts reports whether a text asks for parts by its end, or by a request before it
// that has no word for the text.
func (s *scan) wantsParts(text []byte) bool {
	if asksAtEnd(text) {
		s.demand = true
		return true
	}
	size := len(text)
	return s.parts > 0 && size-s.parts <= partsEnd || s.bare > 0 && s.bare <= partsBegin && (s.given || size-s.bare >= partsText)
}

// demandsParts reports whether the text asks for parts in the imperative, or in a question
// at its end, and is no code for certain. Other signs of code do not count there: names of relations and fields look like
// calls and variables.
func (s *scan) demandsParts() bool {
	c := &s.code
	return s.found&foundParts != 0 && s.demand && c.structure < lineOfCode && c.asked == 0 && c.languages+c.syntax == 0 &&
		(s.words > shortWords || c.technical+c.inline == 0)
}

const (
	askedText     = 20  // bytes at least before a question about a text
	askedQuestion = 160 // of the question at most
)

// asksAtEnd reports whether the last line is a question for what is in the text before it,
// such as "Which phrases name a place in the text?".
func asksAtEnd(text []byte) bool {
	text, asks := bytes.CutSuffix(bytes.TrimRight(text, " \t\r\n"), []byte("?"))
	if !asks {
		return false
	}
	near := text[max(0, len(text)-askedQuestion-1):] // a line that begins before is too long
	line := bytes.LastIndexByte(near, '\n')
	question := near[line+1:]
	if line < 0 || len(text)-len(question) < askedText || !hasPrefixFold(question, "what ") && !hasPrefixFold(question, "which ") {
		return false
	}
	question, word := cutLastWord(question)
	if len(word) > longestWord {
		return false
	}
	h := hashWord(word, 0, len(word))
	if e := table.find(h); e.class&wordClass(e.matches(h))&classText == 0 {
		return false
	}
	for {
		switch question, word = cutLastWord(question); string(word) {
		case "the", "this", "given", "above":
		case "in", "from", "within":
			return true
		default:
			return false
		}
	}
}

func hasPrefixFold(text []byte, prefix string) bool {
	return len(text) >= len(prefix) && bytes.EqualFold(text[:len(prefix)], []byte(prefix))
}

// cutLastWord cuts the bytes behind the last blank.
func cutLastWord(text []byte) (before, word []byte) {
	i := bytes.LastIndexByte(text, ' ')
	return text[:max(i, 0)], text[i+1:]
}

// isImperative reports whether a verb behind a text is in the imperative: it begins a
// sentence or follows please or the like, or it follows to or and.
func isImperative(text []byte) (imperative, begins bool) {
	i := len(text) - 1
	if i < 1 || text[i] != ' ' {
		begins = i < 0 || text[i] == '\n'
		return begins || kinds[text[i]] == kindNone, begins
	}
	switch text[i-1] {
	case '.', '?', '!', ':', '-', '*', '#', '\n':
		return true, true
	case ',', ';':
		return true, false
	}
	for _, before := range politeBefore {
		if bytes.HasSuffix(text, before) {
			return true, true
		}
	}
	return bytes.HasSuffix(text, []byte("to ")) || bytes.HasSuffix(text, []byte("and ")), false
}

// politeBefore are what stands before a verb in the imperative: please, can you, could you,
// (I want) you to, (your task) is to, is about, (you) have to, need to, should, must,
// (you are) expected to, asked to, required to, help me.
var politeBefore = [][]byte{[]byte("lease "), []byte("an you "), []byte("ould you "), []byte("you to "), []byte(" is to "), []byte(" is about "),
	[]byte("help me "), []byte("ou have to "), []byte("ou need to "), []byte("ou should "), []byte("ou must "),
	[]byte("re expected to "), []byte("re asked to "), []byte("re required to ")}

// asksForParts reports whether a sentence with words of these classes asks for parts of a
// text; found: a verb of classFind is in the imperative.
func asksForParts(w, begins wordClass, found bool) bool {
	const parts = classEntity | classField
	switch {
	case w&classExtract != 0:
		return w&(parts|classText|classAll) != 0 || begins&classExtract != 0
	case w&classText == 0 || w&parts == 0:
		return false
	case w&classFind != 0:
		return found || w&(classEntity|classAll|classTable) != 0
	case begins&classGive != 0:
		return w&classField != 0
	case w&classTable != 0:
		return w&(classConstruct|classAnswer) != 0
	}
	return w&parts == parts && w&classAll != 0 // which people are mentioned
}
