package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate reserves size bytes of the disk for f.
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

// startWrite starts to write n bytes from off to the disk, without waiting for the
// end.
func startWrite(f *os.File, off, n int64) {
	// A hint: what it does not bring, the fsync does.
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// openDirect opens a file with O_DIRECT; nil if the file system does not support it.
func openDirect(path string) *os.File {
	f, _ := os.OpenFile(path, os.O_WRONLY|unix.O_DIRECT, 0)
	return f
}

// disableReadAhead turns the kernel's read-ahead of f off: it would cache bytes before
// they are written by O_DIRECT.
func disableReadAhead(f *os.File) { _ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) }

func startRead(f *os.File, off, n int64) { _ = unix.Fadvise(int(f.Fd()), off, n, unix.FADV_WILLNEED) }
