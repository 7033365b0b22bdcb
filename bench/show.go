package bench

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"github.com/thaw-dev/thaw/bench/report"
)

// reported is what the flags of a bench with a report ask for.
type reported struct {
	out    *string
	asJSON *bool
	strict *bool
}

func reportFlags(f *flag.FlagSet) reported {
	return reported{
		out:    f.String("out", "bench-results", "folder for the report"),
		asJSON: f.Bool("json", false, "print the result as JSON instead of tables"),
		strict: f.Bool("strict", false, "exit with 1 when a goal is missed"),
	}
}

// result is what such a bench found.
type result interface {
	Tables() []report.Part
	Write(dir string) error
}

// tell writes the report, shows it, and is strict about its goals where that is
// asked for.
func (o reported) tell(name string, r result, goals report.Goals, stdout, stderr io.Writer) error {
	if err := r.Write(*o.out); err != nil {
		return err
	}
	if *o.asJSON {
		return show(stdout, true, r)
	}
	for _, p := range r.Tables() {
		fmt.Fprintf(stdout, "%s\n\n", p.Heading)
		if err := p.Table.Text(stdout); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
	}
	fmt.Fprintf(stderr, "wrote %s\n", filepath.Join(*o.out, name+".{json,md}"))
	if *o.strict {
		return goals.Missed()
	}
	return nil
}

// show writes a result for people or for programs.
func show(w io.Writer, asJSON bool, result any, tables ...*report.Table) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(result)
	}
	for _, t := range tables {
		if err := t.Text(w); err != nil {
			return err
		}
	}
	return nil
}
