//go:build !linux && !darwin

package cli

import (
	"errors"

	"github.com/thaw-dev/thaw/functions"
)

func freeDisk(string) (functions.Bytes, error) { return 0, errors.ErrUnsupported }

func openFiles() (uint64, error) { return 0, errors.ErrUnsupported }
