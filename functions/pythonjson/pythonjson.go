// Package pythonjson turns JSON as Python's json module writes it, in checkpoints and engines'
// answers, into standard JSON (NaN becomes 0 or null, infinities null, lone surrogates U+FFFD), and
// checks that a text is one object; it corrects no other mistakes. Beyond the standard such JSON
// has NaN, Infinity and -Infinity as numbers, half a surrogate pair in strings, and a name twice in
// one object. Checkpoints are written by Python, and engines read them with it.
package pythonjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/functions/jsonerror"
)

// Standard returns raw as standard JSON of the same length, so that offsets stay: NaN as 0,
// the infinities as null, half a surrogate pair as U+FFFD. All else stays as it is, with its
// mistakes. raw itself is not changed.
func Standard(raw []byte) []byte {
	out := raw
	eachExtension(raw, func(at int, old, by string) {
		if &out[0] == &raw[0] {
			out = bytes.Clone(raw)
		}
		copy(out[at:], by)
		for i := at + len(by); i < at+len(old); i++ {
			out[i] = ' '
		}
	})
	return out
}

// ReadFile decodes a regular file of at most so many bytes, which the author of a checkpoint wrote,
// into v.
func ReadFile(path string, most int64, v any) error {
	st, err := os.Stat(path) // before it is opened: the open of a pipe would wait for a writer
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() > most {
		return fmt.Errorf("it is larger than %d bytes, or no regular file", most)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return Decode(b, v)
}

// Decode decodes raw into v as package encoding/json does. Errors name the line and column of a
// mistake, or the member that is of another kind.
func Decode(raw []byte, v any) error {
	err := jsonv2.Unmarshal(Standard(raw), v, json.DefaultOptionsV1(), json.ReportErrorsWithLegacySemantics(false))
	if e, ok := errors.AsType[*jsonv2.SemanticError](err); ok {
		return errors.New(jsonerror.Describe(e))
	}
	if err != nil {
		return cmp.Or(CheckObject(raw), err)
	}
	return nil
}

// WithNulls is [Standard] with null for NaN, in place of a zero that would be taken for a
// value. It is longer by a byte for each.
func WithNulls(raw []byte) []byte {
	var out []byte
	end := 0
	eachExtension(raw, func(at int, old, by string) {
		if old == "NaN" {
			by = "null"
		}
		out = append(append(out, raw[end:at]...), by...)
		end = at + len(old)
	})
	return append(out, raw[end:]...)
}

// eachExtension calls replace with each place of raw that is not standard JSON, what stands
// there, and what may stand there instead.
func eachExtension(raw []byte, replace func(at int, old, by string)) {
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			i = standardString(raw, i+1, func(at int) { replace(at, `\uXXXX`, `\ufffd`) })
		case 'N', 'I', '-':
			for _, token := range []struct{ old, by string }{{"NaN", "0"}, {"Infinity", "null"}, {"-Infinity", "null"}} {
				if isWhole(raw, i, token.old) {
					replace(i, token.old, token.by)
					i += len(token.old) - 1
					break
				}
			}
		}
	}
}

// isWhole reports whether token stands at i as a value of its own: 1NaN is none.
func isWhole(raw []byte, i int, token string) bool {
	end := i + len(token)
	return end <= len(raw) && string(raw[i:end]) == token &&
		(i == 0 || bytes.IndexByte([]byte(":[, \t\r\n"), raw[i-1]) >= 0) &&
		(end == len(raw) || bytes.IndexByte([]byte(",]} \t\r\n"), raw[end]) >= 0)
}

// standardString calls lone for each escape that is half a surrogate pair of the string that
// begins at i, and returns where its end is.
func standardString(raw []byte, i int, lone func(at int)) int {
	for ; i < len(raw) && raw[i] != '"'; i++ {
		if raw[i] != '\\' {
			continue
		}
		switch r := escaped(raw, i); {
		case r >= 0xd800 && r < 0xdc00:
			if low := escaped(raw, i+6); low >= 0xdc00 && low < 0xe000 {
				i += 11
				continue
			}
			lone(i)
			i += 5
		case r >= 0xdc00 && r < 0xe000:
			lone(i)
			i += 5
		default:
			i++ // the byte after it is no quote of the end
		}
	}
	return i
}

// escaped returns the value of an escape \uXXXX at i, -1 where there is none.
func escaped(raw []byte, i int) int {
	if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 32)
	if err != nil {
		return -1
	}
	return int(n)
}

// CheckObject returns an error unless raw is one JSON object. The error names line and
// column, from 1, in characters, as Python does.
func CheckObject(raw []byte) error {
	switch {
	case bytes.HasPrefix(raw, []byte("\xef\xbb\xbf")):
		return errors.New("line 1, column 1: it begins with a byte order mark, which Python refuses: save it as UTF-8 without one")
	case bytes.HasPrefix(raw, []byte("\xff\xfe")) || bytes.HasPrefix(raw, []byte("\xfe\xff")):
		return errors.New("line 1, column 1: it is in UTF-16: save it as UTF-8")
	}
	d := jsontext.NewDecoder(bytes.NewReader(Standard(raw)), jsontext.AllowDuplicateNames(true))
	kind := d.PeekKind()
	err := d.SkipValue()
	if err == nil {
		if _, err = d.ReadToken(); err == io.EOF {
			err = nil
		} else if err == nil {
			return errors.New(place(raw, d.InputOffset()-1) + ": more follows where the value ended")
		}
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		reason := "cannot be read"
		if errors.Is(e.Err, io.ErrUnexpectedEOF) {
			reason = "it ends in the middle"
		} else if e.Err != nil {
			reason = e.Err.Error()
		}
		return fmt.Errorf("%s: %s", place(raw, e.ByteOffset), reason)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: it ends in the middle", place(raw, int64(len(raw))))
	case kind != '{':
		return errors.New("not a JSON object")
	}
	return nil
}

// place names line and column of an offset.
func place(raw []byte, offset int64) string {
	before := raw[:min(max(offset, 0), int64(len(raw)))]
	line := bytes.Count(before, []byte("\n"))
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Sprintf("line %d, column %d", line+1, column+1)
}
