package report

import (
	"errors"
	"fmt"
	"strings"
)

// Goal is a goal and the value reached.
type Goal struct {
	Description string `json:"what"`
	Want        string `json:"want"`
	Got         string `json:"got"`
	Met         bool   `json:"met"`
}

// Goals are the goals of a benchmark in the order of the report.
type Goals []Goal

// Add appends a goal.
func (g *Goals) Add(met bool, description, want, got string) {
	*g = append(*g, Goal{description, want, got, met})
}

// Missed returns an error that names the first missed goal; nil if all are met.
func (g Goals) Missed() error {
	for _, x := range g {
		if !x.Met {
			return fmt.Errorf("goal missed: %s is %s, want %s", x.Description, x.Got, x.Want)
		}
	}
	return nil
}

// Part is one table of a report with its heading.
type Part struct {
	Heading string
	Table   *Table
}

// Parts returns the table of the goals with its heading, or nothing without goals.
func (g Goals) Parts() []Part {
	if len(g) == 0 {
		return nil
	}
	return []Part{{"Goals", g.Table()}}
}

// Table returns the goals as a table.
func (g Goals) Table() *Table {
	t := &Table{Head: []string{"goal", "want", "got", "met"}}
	for _, x := range g {
		met := "yes"
		if !x.Met {
			met = "NO"
		}
		t.Add(x.Description, x.Want, x.Got, met)
	}
	return t
}

// Page returns the report as Markdown: title, provenance, a description in a few
// sentences, missing measurements, and the tables.
func (p Provenance) Page(title, about string, missing []string, parts []Part) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n`%s`, commit %s, %s\n\n%s. %s\n", title, p.Command, p.Commit, p.At.Format("2006-01-02 15:04 UTC"), p.Machine,
		about)
	if len(missing) > 0 {
		fmt.Fprintf(&b, "\nNot found on this machine, so not measured: %s.\n", strings.Join(missing, ", "))
	}
	for _, x := range parts {
		fmt.Fprintf(&b, "\n## %s\n\n%s", x.Heading, x.Table.Markdown())
	}
	return b.String()
}

// Write writes a result as NAME.json and its page as NAME.md.
func Write(dir, name string, result any, page string) error {
	return errors.Join(WriteJSON(dir, name+".json", result), WriteFile(dir, name+".md", []byte(page)))
}
