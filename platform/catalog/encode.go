package catalog

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// EncodeYAML writes v as YAML, with the keys and the order its JSON has. It
// writes little of YAML, and nothing that readers of YAML differ about: a text
// that is not plainly a text stands in quotes, on one line.
func EncodeYAML(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	w := yamlWriter{in: jsontext.NewDecoder(bytes.NewReader(b))}
	if err := w.value("", false); err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// yamlWriter copies one JSON value as YAML.
type yamlWriter struct {
	in  *jsontext.Decoder
	out bytes.Buffer
}

// value writes the next value and the end of its last line. A collection that
// is not empty begins on a line of its own, indented, unless it stands where a
// line of that indentation has begun already.
func (w *yamlWriter) value(indent string, began bool) error {
	t, err := w.in.ReadToken()
	if err != nil {
		return err
	}
	var end jsontext.Kind
	empty := "{}\n"
	switch t.Kind() {
	case '{':
		end = '}'
	case '[':
		end, empty = ']', "[]\n"
	default:
		w.out.WriteString(yamlScalar(t) + "\n")
		return nil
	}
	if w.in.PeekKind() == end {
		w.out.WriteString(empty)
	} else if !began && w.out.Len() > 0 {
		if b := w.out.Bytes(); b[len(b)-1] == ' ' { // the blank after a key
			w.out.Truncate(len(b) - 1)
		}
		w.out.WriteByte('\n')
	}
	for w.in.PeekKind() != end {
		if !began {
			w.out.WriteString(indent)
		}
		began = false
		if err := w.item(end == ']', indent); err != nil {
			return err
		}
	}
	_, err = w.in.ReadToken()
	return err
}

// item writes an element of a list or a member of an object.
func (w *yamlWriter) item(list bool, indent string) error {
	if list {
		w.out.WriteString("- ")
		return w.value(indent+"  ", true)
	}
	key, err := w.in.ReadToken()
	if err != nil {
		return err
	}
	w.out.WriteString(yamlScalar(key) + ": ")
	if w.in.PeekKind() != '[' { // the dashes of a list stand under the key
		indent += "  "
	}
	return w.value(indent, false)
}

var (
	// plainText is never a number, a date, an indicator or the begin of a comment.
	plainText = regexp.MustCompile(`^(\./|\.\./|[A-Za-z_/])([A-Za-z0-9_./@%+=, -]|:[A-Za-z0-9_./@%+=-])*$`)
	// quantity is a number with a unit: 5m, 64Mi.
	quantity = regexp.MustCompile(`^[1-9][0-9]*(\.[0-9]+)?[A-DF-Za-df-z][A-Za-z]*$`)
	// notText are plain words that some reader takes for something else.
	notText = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|y|n|null|nan|inf)$`)
)

func yamlScalar(t jsontext.Token) string {
	s := t.String() // of a string, what it says; of all others, their JSON
	if t.Kind() != '"' || (plainText.MatchString(s) && !strings.HasSuffix(s, " ") || quantity.MatchString(s)) && !notText.MatchString(s) {
		return s
	}
	return quoteText(s)
}

// quoteText is a text in double quotes, with nothing in it that does not show.
func quoteText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < utf8.RuneSelf && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
