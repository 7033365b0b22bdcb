package bench

import (
	"encoding/json"
	"io"

	"github.com/thaw-dev/thaw/bench/report"
)

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
