//go:build !linux

package mount

import (
	"fmt"
	"log/slog"
)

// Mount is a folder of files that are still arriving; there is none here.
type Mount struct{}

func New(string, []File, Bytes, *slog.Logger) (*Mount, error) {
	return nil, fmt.Errorf("%w: FUSE is used on Linux only", ErrUnavailable)
}

// TryUnmount always succeeds.
func (*Mount) TryUnmount() bool { return true }

func (*Mount) Close() {}

// Sweep finds nothing.
func Sweep(string) error { return nil }
