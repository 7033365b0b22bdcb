package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate makes sure that size bytes of f can be written without running out
// of disk.
func allocate(f *os.File, size int64) error {
	if size == 0 {
		return f.Truncate(0)
	}
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP):
			// This file system cannot promise; a full disk shows at the write.
			return f.Truncate(size)
		case err != nil:
			return os.NewSyscallError("fallocate", err)
		}
		// A part of an older, longer try would end beyond the file.
		return f.Truncate(size)
	}
}

// flush begins to write n bytes from off to the disk, and does not wait for
// their end.
func flush(f *os.File, off, n int64) {
	// A hint: what it does not bring, the fsync does.
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
