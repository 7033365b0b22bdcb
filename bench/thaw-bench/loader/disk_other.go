//go:build !linux

package loader

import (
	"errors"
	"os"
)

var errLinux = errors.New("measured on Linux only")

func createDirect(string) (*os.File, error) { return nil, errLinux }

func allocate(f *os.File, size int64) error { return f.Truncate(size) }

func flush(string) error { return errLinux }

func freeBytes(string) (int64, error) { return 0, errLinux }

func bytesRead() int64 { return -1 }
