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

var outputs = []string{"table", "wide", "json", "yaml", "name"}

// column is one column of a table; a wide one is shown with -o wide only.
type column[T any] struct {
	head string
	wide bool
	cell func(T) string
}

// kind is how one kind of thing is printed.
type kind[T any] struct {
	word    string // kind in JSON and before a name
	path    string // of its list in the API
	columns []column[T]
	name    func(T) string
}

// document is what -o json and yaml print: versioned, because programs read it.
type document[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []T    `json:"items"`
}

// one is a single thing: its fields, after version and kind.
func one(kind string, v any) (json.RawMessage, error) {
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

// encode prints v as JSON or YAML.
func (c *command) encode(v any) error {
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
	_, err = c.out.Write(b)
	return err
}

// list prints items as asked for.
func list[T any](c *command, k kind[T], items []T) error {
	switch c.output {
	case "json", "yaml":
		if items == nil {
			items = []T{}
		}
		return c.encode(document[T]{functions.APIVersion, k.word + "List", items})
	case "name":
		for _, it := range items {
			fmt.Fprintln(c.out, plain(k.name(it)))
		}
		return nil
	}
	if len(items) == 0 {
		c.remark("none")
		return nil
	}
	table(c.out, k, items, c.output == "wide", nil)
	return nil
}

// table aligns columns; widths, when given, are kept and grown from table to
// table, so that the lines of a watch stay under their heads.
func table[T any](w io.Writer, k kind[T], items []T, wide bool, widths *[]int) {
	var columns []column[T]
	for _, col := range k.columns {
		if wide || !col.wide {
			columns = append(columns, col)
		}
	}
	var rows [][]string
	if widths == nil || *widths == nil {
		heads := make([]string, len(columns))
		for i, col := range columns {
			heads[i] = col.head
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
			if row[i] = plain(col.cell(it)); row[i] == "" {
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

// watch prints what there is, and then a line for every change, until ctx ends.
func watch[T any](ctx context.Context, c *command, cl *api.Client, k kind[T], keep func(T) bool) error {
	var widths []int
	var first []T
	synced := false
	show := func(ch api.Change[T], items ...T) error {
		switch c.output {
		case "json":
			return json.NewEncoder(c.out).Encode(ch)
		case "yaml":
			if _, err := io.WriteString(c.out, "---\n"); err != nil {
				return err
			}
			return c.encode(ch)
		case "name":
			for _, it := range items {
				fmt.Fprintln(c.out, plain(k.name(it)))
			}
		default:
			table(c.out, k, items, c.output == "wide", &widths)
		}
		return nil
	}
	var printing error
	err := api.Watch(ctx, cl, k.path, func(ch api.Change[T]) bool {
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
				fmt.Fprintln(c.out, plain(ch.Name), "is gone")
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

// remark is for people and goes to stderr.
func (c *command) remark(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintln(c.err, plain(fmt.Sprintf(format, args...)))
	}
}

// span is a duration for people.
func span(d time.Duration) string {
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

func (c *command) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(max(0, c.now().Sub(t).Truncate(time.Second)))
}

func spanOf(s *float64) string {
	if s == nil {
		return ""
	}
	return span(time.Duration(*s * float64(time.Second)))
}

func numbers(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}
