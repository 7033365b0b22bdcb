package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows of cells under a head. The first column is left-aligned text; the others
// are right-aligned numbers.
type Table struct {
	Head []string
	Rows [][]string
}

// Add appends a row; cells are formatted by fmt.Sprint.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.Rows = append(t.Rows, row)
}

// Text writes the table aligned for a terminal.
func (t *Table) Text(w io.Writer) error {
	width := make([]int, len(t.Head))
	all := append([][]string{t.Head}, t.Rows...)
	for _, row := range all {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i == 0 {
				line.WriteString(c + pad)
			} else {
				line.WriteString("  " + pad + c)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown returns the table as Markdown.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString("| " + strings.Join(t.Head, " | ") + " |\n|")
	for i := range t.Head {
		if i == 0 {
			b.WriteString(" --- |")
		} else {
			b.WriteString(" ---: |")
		}
	}
	b.WriteString("\n")
	for _, row := range t.Rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
	return b.String()
}

// Millis formats seconds as milliseconds with about three digits.
func Millis(seconds float64) string {
	ms := seconds * 1e3
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms >= 1:
		return fmt.Sprintf("%.2f ms", ms)
	case ms == 0:
		return "0"
	}
	return fmt.Sprintf("%.0f µs", ms*1e3)
}
