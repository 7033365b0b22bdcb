package nodeloader

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/thaw-dev/thaw/loader/durable"
)

// writeState stores v in a file for the next loader, atomically.
func (d *Daemon) writeState(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(d.o.Dir, name), b, 0o600)
}

// readState reads at most most bytes that the previous loader stored. The error is
// os.ErrNotExist if there are none.
func (d *Daemon) readState(name string, maximum int64, v any) error {
	f, err := os.Open(filepath.Join(d.o.Dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewDecoder(io.LimitReader(f, maximum)).Decode(v)
}
