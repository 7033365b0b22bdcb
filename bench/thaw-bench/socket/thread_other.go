//go:build !linux

package socket

import (
	"errors"
	"time"
)

func threadTime() (time.Duration, error) { return 0, errors.ErrUnsupported }
