package nodeloader

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/thaw-dev/thaw/loader/durable"
)

// writeState leaves v in a file for the next loader, whole or as it was.
func (d *Daemon) writeState(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(d.o.Dir, name), b, 0o600)
}

// readState is what the loader before this one has left in a file, of which no more than
// most is looked at. Where it has left none the error is os.ErrNotExist.
func (d *Daemon) readState(name string, most int64, v any) error {
	f, err := os.Open(filepath.Join(d.o.Dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewDecoder(io.LimitReader(f, most)).Decode(v)
}
