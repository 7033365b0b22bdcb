package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/loader/durable"
)

// nextEpoch raises the epoch in DIR/epoch and returns it. The epoch is on disk before
// it is used, so that two runs of a server never share one.
func nextEpoch(dir string) (int64, error) {
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
			return 0, fmt.Errorf(
				"epoch: %s holds %.40q, want a number; agents refuse a server whose epoch went back, so put one higher than any before", path, b)
		}
	}
	epoch++
	if err := durable.WriteFile(path, fmt.Appendf(nil, "%d\n", epoch), 0o600); err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}
	return epoch, nil
}
