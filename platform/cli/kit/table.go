package kit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"

	"golang.org/x/text/width"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// OutputForms are the values of --output.
var OutputForms = []string{"table", "wide", "json", "yaml", "name"}

// Column is one column of a table; a wide one is shown with -o wide only.
type Column[T any] struct {
	Head string
	Wide bool
	Cell func(T) string
}

// Col is a column of every table.
func Col[T any](head string, cell func(T) string) Column[T] { return Column[T]{Head: head, Cell: cell} }

// WideCol is a column that only -o wide shows.
func WideCol[T any](head string, cell func(T) string) Column[T] {
	return Column[T]{Head: head, Wide: true, Cell: cell}
}

// Kind describes how items of one kind are printed.
type Kind[T any] struct {
	Word    string // kind in JSON and before a name
	Path    string // of its list in the API
	Query   string // of it where the list is not watched, with its ?
	Columns []Column[T]
	Name    func(T) string
	Owner   func(T) string // the function, TEAM/NAME, or the team that an item belongs to; nil: to none
	Keep    func(T) bool   // which of the list are of this kind; nil: all
}

// Document is what -o json and yaml print: versioned, because programs read it.
type Document[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []T    `json:"items"`
}

// NewList returns the document of items; kind is the word for an item with "List" added.
func NewList[T any](kind string, items []T) Document[T] {
	if items == nil {
		items = []T{}
	}
	return Document[T]{functions.APIVersion, kind, items}
}

// WithKind is the JSON of v with apiVersion and kind before its fields.
func WithKind(kind string, v any) (json.RawMessage, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q`, functions.APIVersion, kind)
	if len(b) > len("{}") {
		head += ","
	}
	return append([]byte(head), b[1:]...), nil
}

// Encode prints v as JSON or YAML, as Output says.
func (t *Terminal) Encode(v any) error {
	var b []byte
	var err error
	if t.Output == "yaml" {
		b, err = catalog.EncodeYAML(v)
	} else if b, err = json.MarshalIndent(v, "", "  "); err == nil {
		b = append(b, '\n')
	}
	if err != nil {
		return err
	}
	_, err = t.Out.Write(b)
	return err
}

// PrintDocument prints v as a document of kind, or with -o name its name; people
// prints the other forms.
func (t *Terminal) PrintDocument(kind, name string, v any, people func()) error {
	switch t.Output {
	case "json", "yaml":
		m, err := WithKind(kind, v)
		if err != nil {
			return err
		}
		return t.Encode(m)
	case "name":
		fmt.Fprintln(t.Out, Plain(name))
	default:
		people()
	}
	return nil
}

// PrintKey prints a new API key, which is shown this once; v is its document.
func PrintKey(t *Terminal, id, team, secret string, v any) error {
	if t.Output == "json" || t.Output == "yaml" {
		return t.PrintDocument("Key", "", v, nil)
	}
	fmt.Fprintln(t.Out, Plain(secret))
	t.Remark("key %s of team %s; it is not shown again", id, team)
	return nil
}

// PrintList prints items in the form of t.Output.
func PrintList[T any](t *Terminal, k Kind[T], items []T) error {
	switch t.Output {
	case "json", "yaml":
		return t.Encode(NewList(k.Word+"List", items))
	case "name":
		for _, it := range items {
			fmt.Fprintln(t.Out, Plain(k.Name(it)))
		}
		return nil
	}
	if len(items) == 0 {
		t.Remark("none")
		return nil
	}
	PrintTable(t.Out, k, items, t.Output == "wide", nil)
	return nil
}

// PrintOne prints v in the form of t.Output.
func PrintOne[T any](t *Terminal, k Kind[T], v T) error {
	return t.PrintDocument(k.Word, k.Name(v), v, func() { PrintTable(t.Out, k, []T{v}, t.Output == "wide", nil) })
}

// PrintTable aligns columns; widths, when given, are kept and grown from table to
// table, so that the lines of a watch stay under their heads.
func PrintTable[T any](w io.Writer, k Kind[T], items []T, wide bool, widths *[]int) {
	columns := functions.Filter(k.Columns, func(col Column[T]) bool { return wide || !col.Wide })
	var rows [][]string
	if widths == nil || *widths == nil {
		heads := functions.ConvertAll(columns, func(col Column[T]) string { return col.Head })
		rows = append(rows, heads)
	}
	widths = cmp.Or(widths, new([]int))
	if *widths == nil {
		*widths = make([]int, len(columns))
	}
	for _, it := range items {
		row := make([]string, len(columns))
		for i, col := range columns {
			if row[i] = Plain(col.Cell(it)); row[i] == "" {
				row[i] = "-"
			}
		}
		rows = append(rows, row)
	}
	for _, row := range rows {
		for i, cell := range row {
			(*widths)[i] = max((*widths)[i], widthOf(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", (*widths)[i]-widthOf(cell)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// widthOf is how many columns of a terminal a text takes: wide characters take two (Unicode
// Standard Annex #11), combining ones none.
func widthOf(text string) (columns int) {
	for _, r := range text {
		switch k := width.LookupRune(r).Kind(); {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case k == width.EastAsianWide, k == width.EastAsianFullwidth:
			columns += 2
		default:
			columns++
		}
	}
	return columns
}
