package openai

import "bytes"

// sample is a line of a stream that changed no finding. A line that differs from it in its
// generated text alone changes none either, and most lines of a stream do. It holds as long as
// the findings do.
type sample struct {
	line     []byte // empty: there is none
	from, to int    // of a piece of generated text in it
	unused   int    // lines to keep since the last that matched
}

const maxSample, maxUnused = 4 << 10, 16 // bytes; lines, behind which no sample is kept any more

// matches reports whether l differs from the sample in plain text alone, in which no name and no
// value begins or ends.
func (s *sample) matches(l []byte) bool {
	to := len(l) - len(s.line) + s.to
	if len(s.line) == 0 || to < s.from || string(l[:s.from]) != string(s.line[:s.from]) || string(l[to:]) != string(s.line[s.to:]) ||
		!isPlainText(l[s.from:to]) {
		return false
	}
	s.unused = 0
	return true
}

// keep makes l the sample if it has generated text. Lines in whose reading more than names and
// values counts are left out: errors, and usage.
func (s *sample) keep(l []byte) {
	if s.unused == maxUnused {
		return
	}
	s.unused++
	from := textValue(l)
	if from < 0 || len(l) > maxSample || bytes.Contains(l, []byte(`"error`)) || bytes.Contains(l, []byte(`_tokens"`)) {
		return
	}
	n := bytes.IndexByte(l[from:], '"')
	to := from + n
	if n < 0 || !isPlainText(l[from:to]) || l[to+1] != '}' && l[to+1] != ',' { // l ends with a line feed
		return
	}
	s.line, s.from, s.to = append(s.line[:0], l...), from, to
}

func isPlainText(p []byte) bool { return bytes.IndexByte(p, '"') < 0 && bytes.IndexByte(p, '\\') < 0 }
