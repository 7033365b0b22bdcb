//go:build !linux && !darwin

package kit

import (
	"errors"

	"github.com/thaw-dev/thaw/functions"
)

func FreeDisk(string) (functions.Bytes, error) { return 0, errors.ErrUnsupported }

func OpenFiles() (uint64, error) { return 0, errors.ErrUnsupported }
