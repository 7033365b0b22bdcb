package openai

import (
	"bytes"
	"strings"
)

// mistakes are what stands in bodies where JSON has something else, and what to write.
var mistakes = []struct{ found, change string }{
	{"'", "texts and names stand in double quotes"},
	{`\`, "its quotes are escaped once too often, as by a shell"},
	{"//", "JSON has no comments"}, {"/*", "JSON has no comments"}, {"#", "JSON has no comments"},
	{"NaN", "JSON has no such number: leave the member out"},
	{"Infinity", "JSON has no such number: leave the member out"},
	{"-Infinity", "JSON has no such number: leave the member out"},
	{"True", "write true"}, {"False", "write false"}, {"None", "write null"}, {"undefined", "write null"},
	{"}", "no comma or colon may stand before it"}, {"]", "no comma or colon may stand before it"},
}

// misplaced is the error of a body that has something else at byte i than what is expected.
func misplaced(b []byte, i int, where, expected string) *Error {
	if i >= len(b) {
		return invalidJSON(where, "it ends where %s is expected.", expected)
	}
	change := ""
	for _, m := range mistakes {
		if bytes.HasPrefix(b[i:], []byte(m.found)) {
			change = ": " + m.change
			break
		}
	}
	if c := b[i] | 0x20; change == "" && expected == "a string" && c >= 'a' && c <= 'z' {
		change = ": names stand in double quotes, which a shell may have taken away"
	}
	return invalidJSON(where, "%s is expected at byte %d, not `%s`%s.", expected, i, beginning(b[i:]), change)
}

// beginning is the first word of a text, for a message.
func beginning(b []byte) string {
	word := strings.ToValidUTF8(string(b[:min(len(b), 16)]), "")
	if end := strings.IndexAny(word, " \t\r\n"); end > 0 {
		word = word[:end]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == '`' || r == 0x7F {
			return '?'
		}
		return r
	}, word)
}

// quoted is what an error of a number adds where the value is a string.
func quoted(v []byte) string {
	if len(v) > 0 && v[0] == '"' {
		return " It is a string: send the number without quotes."
	}
	return ""
}
