package compose

import (
	"cmp"
	"encoding/json/jsontext"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxShort      = 200      // bytes of a short answer, as normalised
	maxStructured = 64 << 10 // bytes of a structured answer that is compared
)

// normalForm returns a key that equal answers share. exact reports whether equality of the
// keys is agreement: the answer is structured (a JSON object or array) or short.
//
// JSON is compared as in RFC 8785, except that whole numbers keep all of their digits. Of
// other texts, these do not count: spaces, a full stop, comma, colon or semicolon at the
// end, quotation marks and emphasis around all of it, and the case of words without digits
// that are written small, with a capital, or in capitals. Signs, decimal points and the case of
// identifiers do count.
func normalForm(text string) (key string, exact bool) {
	text = unwrapFence(text)
	if len(text) > maxStructured {
		return text, false
	}
	if text != "" && (text[0] == '{' || text[0] == '[') {
		v := jsontext.Value(text) // the conversion copies
		if v.IsValid() && v.Canonicalize(jsontext.CanonicalizeRawInts(false)) == nil {
			return "json " + string(v), true
		}
	}
	if len(text) > 4*maxShort {
		return "text " + text, false
	}
	words := strings.Fields(unwrapMarks(text))
	for i, w := range words {
		words[i] = foldWord(w)
	}
	key = strings.Join(words, " ")
	return "text " + key, key != "" && len(key) <= maxShort
}

// unwrapFence returns text without the code fence that surrounds all of it.
func unwrapFence(text string) string {
	text = strings.TrimSpace(text)
	inner, ok := strings.CutPrefix(text, "```")
	if !ok {
		return text
	}
	inner, ok = strings.CutSuffix(inner, "```")
	if !ok || strings.Contains(inner, "```") {
		return text
	}
	info, body, ok := strings.Cut(inner, "\n")
	if !ok || strings.ContainsAny(info, "{[\" ") {
		return text
	}
	return strings.TrimSpace(body)
}

// unwrapMarks removes the punctuation at the end and the marks around text.
func unwrapMarks(text string) string {
	for {
		before := text
		text = strings.TrimRight(strings.TrimSpace(text), ".,:;")
		if r, size := utf8.DecodeLastRuneInString(strings.TrimSuffix(text, "!")); size > 0 && unicode.IsLetter(r) {
			text = strings.TrimSuffix(text, "!")
		}
		for _, mark := range [][2]string{{"**", "**"}, {"__", "__"}, {"*", "*"}, {"_", "_"}, {"`", "`"}, {`"`, `"`}, {"'", "'"}, {"“", "”"}, {"„", "“"}, {"«", "»"}} {
			if len(text) > len(mark[0])+len(mark[1]) && strings.HasPrefix(text, mark[0]) && strings.HasSuffix(text, mark[1]) {
				inner := text[len(mark[0]) : len(text)-len(mark[1])]
				if !strings.Contains(inner, mark[0]) && !strings.Contains(inner, mark[1]) {
					text = inner
					break
				}
			}
		}
		if text == before {
			return text
		}
	}
}

// foldWord returns w in small letters if its case carries nothing.
func foldWord(w string) string {
	small := strings.ToLower(w)
	if strings.ContainsFunc(w, unicode.IsDigit) {
		return w
	}
	_, first := utf8.DecodeRuneInString(w)
	if w[first:] == strings.ToLower(w[first:]) || w == strings.ToUpper(w) {
		return small
	}
	return w
}

// majority compares the answers. best is the index of the first one of the largest set of
// equal answers (of several such sets, the one that comes first), or -1 if it is no
// agreement: at least two answers and more than half of `of` must be equal.
func majority(outcomes []outcome, of int) (best int, a Agreement) {
	first, count := map[string]int{}, map[string]int{}
	exact := map[string]bool{}
	var keys []string
	for i := range outcomes {
		if !outcomes[i].answered() {
			continue
		}
		key, ok := outcomes[i].normalForm()
		if count[key] == 0 {
			keys = append(keys, key)
			first[key], exact[key] = i, ok
		}
		count[key]++
		a.Answers++
	}
	best = -1
	for _, key := range keys {
		if count[key] > a.Agree {
			a.Agree, best = count[key], first[key]
			a.Exact = exact[key]
		}
	}
	of = cmp.Or(of, a.Answers)
	if a.Exact = a.Exact && a.Agree >= 2 && 2*a.Agree > of; !a.Exact {
		best = -1
	}
	return best, a
}
