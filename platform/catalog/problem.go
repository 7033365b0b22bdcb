package catalog

import (
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/thaw-dev/thaw/functions"
)

// Problem is one thing wrong, and where. Line and Column count from 1; 0 where
// there is none. It is an error.
type Problem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"` // such as spec.scale.mx
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// Warning: the document is used as it is, but something in it has no effect.
	Warning bool `json:"warning,omitempty"`
	// Unknown: a Router or Composition names a function that is not there. It is a warning in a folder that
	// is watched, since the target may come, and an error to [Problems.RequireTargets].
	Unknown bool `json:"-"`
}

func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		b.WriteString(strconv.Itoa(p.Line) + ":")
		if p.Column > 0 {
			b.WriteString(strconv.Itoa(p.Column) + ":")
		}
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString(" (" + p.Hint + ")")
	}
	return Plain(b.String())
}

// WarningsAt makes warnings of problems of the document at a line.
func WarningsAt(file string, line int, of []functions.Problem) Problems {
	return functions.ConvertAll(of, func(p functions.Problem) Problem {
		return Problem{File: file, Line: line, Path: p.Path, Message: p.Message, Hint: p.Hint, Warning: true}
	})
}

// Problems are everything wrong with what was read, in the order of the file.
type Problems []Problem

func (p Problems) Error() string {
	lines := functions.ConvertAll(p, func(x Problem) string { return x.Error() })
	return strings.Join(lines, "\n")
}

// Wrong are the problems that are no warnings.
func (p Problems) Wrong() Problems {
	return functions.Filter(p, func(x Problem) bool { return !x.Warning })
}

// RequireTargets makes errors of the targets that are not there.
func (p Problems) RequireTargets() Problems {
	out := slices.Clone(p)
	for i := range out {
		out[i].Warning = out[i].Warning && !out[i].Unknown
	}
	return out
}

// Plain spells out control characters: text of a server or a file must not control the terminal
// or a log.
func Plain(s string) string {
	bad := func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }
	if !strings.ContainsFunc(s, bad) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if bad(r) {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
