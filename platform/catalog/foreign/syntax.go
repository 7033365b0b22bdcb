package foreign

import (
	"bytes"
	"strings"
)

// syntaxHints are the ways out of errors of the parser: where the file has a text, or the error.
var syntaxHints = []struct{ file, err, hint string }{
	{"{{", "", "a template is rendered first, such as by helm template"},
	{"\n\t", "", "indent with blanks, not with tabs"},
	{"<<<<<<< ", "", "a conflict of a merge is left in the file"},
	{"```", "", "leave the lines of ``` out"},
	{"\n//", "", "a comment begins with #"},
	{"", "directive", "a line that begins with % is left out; other text that does is put in quotes"},
	{"", "must be specified", BracesHint},
	{"", "escape character", "within double quotes a backslash begins an escape: use single quotes, or none"},
	{"", "reserved character", "put the text in quotes"},
	{"", "mapping value is not allowed", "put text that has a colon and a blank in quotes; an indentation may be wrong, too"},
	{"", "unexpected key name", "a key is followed by a colon and a blank: KEY: VALUE"},
	{": |", "non-map value", "the lines of a text that | begins stand deeper than its key"},
	{": >", "non-map value", "the lines of a text that > begins stand deeper than its key"},
	{"", "value is not allowed", "a comma stands between values, and --- between documents"},
	{"", "non-map value", "a key is followed by a colon and a blank: KEY: VALUE"},
}

// BracesHint is for text that YAML takes for keys and values.
const BracesHint = `put text that has braces in quotes, such as "--port={port}"`

// SuggestSyntax is the hint about an error of the parser in a file; "" where there is none.
func SuggestSyntax(file []byte, message string) string {
	file = append([]byte("\n"), file...)
	for _, h := range syntaxHints {
		if bytes.Contains(file, []byte(h.file)) && strings.Contains(message, h.err) {
			return h.hint
		}
	}
	return ""
}
