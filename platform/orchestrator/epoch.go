package orchestrator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// NextEpoch raises the epoch kept in DIR/epoch and returns it. It is on disk
// before it is used: two lives of a server never share one.
func NextEpoch(dir string) (int64, error) {
	path := filepath.Join(dir, "epoch")
	var epoch int64
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, fmt.Errorf("epoch: %w", err)
	default:
		epoch, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil || epoch < 0 {
			return 0, fmt.Errorf("epoch: %s holds %.40q, want a number; agents refuse a server whose epoch went back, so put one higher than any before", path, b)
		}
	}
	epoch++
	f, err := os.CreateTemp(dir, ".epoch-*")
	if err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintf(f, "%d\n", epoch)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	return epoch, nil
}
