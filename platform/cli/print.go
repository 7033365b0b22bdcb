package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
)

var OutputForms = []string{"table", "wide", "json", "yaml", "name"}

// Column is one column of a table; a wide one is shown with -o wide only.
type Column[T any] struct {
	Head string
	Wide bool
	Cell func(T) string
}

// Kind is how one kind of thing is printed.
type Kind[T any] struct {
	Word    string // kind in JSON and before a name
	Path    string // of its list in the API
	Columns []Column[T]
	Name    func(T) string
}

// Document is what -o json and yaml print: versioned, because programs read it.
type Document[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []T    `json:"items"`
}

// WithKind is a single thing: its fields, after version and kind.
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

// Encode prints v as JSON or YAML.
func (c *command) Encode(v any) error {
	var b []byte
	var err error
	if c.output == "yaml" {
		b, err = catalog.EncodeYAML(v)
	} else if b, err = json.MarshalIndent(v, "", "  "); err == nil {
		b = append(b, '\n')
	}
	if err != nil {
		return err
	}
	_, err = c.Out.Write(b)
	return err
}

// PrintList prints items as asked for.
func PrintList[T any](c *command, k Kind[T], items []T) error {
	switch c.output {
	case "json", "yaml":
		if items == nil {
			items = []T{}
		}
		return c.Encode(Document[T]{functions.APIVersion, k.Word + "List", items})
	case "name":
		for _, it := range items {
			fmt.Fprintln(c.Out, Plain(k.Name(it)))
		}
		return nil
	}
	if len(items) == 0 {
		c.Remark("none")
		return nil
	}
	PrintTable(c.Out, k, items, c.output == "wide", nil)
	return nil
}

// PrintTable aligns columns; widths, when given, are kept and grown from table to
// table, so that the lines of a watch stay under their heads.
func PrintTable[T any](w io.Writer, k Kind[T], items []T, wide bool, widths *[]int) {
	var columns []Column[T]
	for _, col := range k.Columns {
		if wide || !col.Wide {
			columns = append(columns, col)
		}
	}
	var rows [][]string
	if widths == nil || *widths == nil {
		heads := make([]string, len(columns))
		for i, col := range columns {
			heads[i] = col.Head
		}
		rows = append(rows, heads)
	}
	if widths == nil {
		widths = new([]int)
	}
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
			(*widths)[i] = max((*widths)[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", (*widths)[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// watchList prints what there is, and then a line for every change, until ctx ends.
func watchList[T any](ctx context.Context, c *command, cl *api.Client, k Kind[T], keep func(T) bool) error {
	var widths []int
	var first []T
	synced := false
	show := func(ch api.Change[T], items ...T) error {
		switch c.output {
		case "json":
			return json.NewEncoder(c.Out).Encode(ch)
		case "yaml":
			if _, err := io.WriteString(c.Out, "---\n"); err != nil {
				return err
			}
			return c.Encode(ch)
		case "name":
			for _, it := range items {
				fmt.Fprintln(c.Out, Plain(k.Name(it)))
			}
		default:
			PrintTable(c.Out, k, items, c.output == "wide", &widths)
		}
		return nil
	}
	var printing error
	err := api.Watch(ctx, cl, k.Path, func(ch api.Change[T]) bool {
		if ch.Item != nil && keep != nil && !keep(*ch.Item) {
			return true
		}
		programs := c.output == "json" || c.output == "yaml"
		switch {
		case ch.Event == "synced":
			synced = true
			if !programs {
				printing = show(ch, first...)
			}
		case ch.Event == "removed":
			if programs {
				printing = show(ch)
			} else if c.output != "name" {
				fmt.Fprintln(c.Out, Plain(ch.Name), "is gone")
			}
		case synced || programs:
			printing = show(ch, *ch.Item)
		default:
			first = append(first, *ch.Item)
		}
		return printing == nil
	})
	if printing != nil {
		return printing
	}
	return err
}

// Remark is for people and goes to stderr.
func (c *command) Remark(format string, args ...any) {
	if !c.Quiet {
		fmt.Fprintln(c.Err, Plain(fmt.Sprintf(format, args...)))
	}
}

// Span is a duration for people.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

func (c *command) Since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Span(max(0, c.now().Sub(t).Truncate(time.Second)))
}

func Seconds(s *float64) string {
	if s == nil {
		return ""
	}
	return Span(time.Duration(*s * float64(time.Second)))
}

func JoinInts(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}
