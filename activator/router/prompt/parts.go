package prompt

import "bytes"

// A request for parts of a text is among its first or its last bytes: the text itself is
// between.
const (
	partsBegin = 800
	partsEnd   = 400
	partsText  = 400 // that follow a request without a word for the text
)

// noteParts notes a sentence with words of these classes, and the ones of the verb that it
// begins with, if it asks for parts of a text; found: a verb of classFind is in the
// imperative.
func (s *scan) noteParts(w, begins wordClass, found bool) {
	if asksForParts(w, begins, found) {
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

// wantsParts reports whether a text of so many bytes asks for parts by its end, or by a
// request before it that has no word for the text.
func (s *scan) wantsParts(size int) bool {
	return s.parts > 0 && size-s.parts <= partsEnd || s.bare > 0 && s.bare <= partsBegin && size-s.bare >= partsText
}

// isImperative reports whether a verb behind a text is in the imperative: it begins a
// sentence or follows please, or it follows to or and.
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
// (I want) you to, (your task) is to, help me.
var politeBefore = [][]byte{[]byte("lease "), []byte("an you "), []byte("ould you "), []byte("you to "), []byte(" is to "), []byte("help me ")}

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
