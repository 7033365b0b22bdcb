//go:build linux || darwin

package kit

import (
	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/functions"
)

// FreeDisk is what an ordinary user may still write at path.
func FreeDisk(path string) (functions.Bytes, error) {
	var s unix.Statfs_t
	err := unix.Statfs(path, &s)
	return functions.Bytes(int64(s.Bavail) * int64(s.Bsize)), err
}

// OpenFiles is how many files a process may have open. Go raises the soft limit
// to the hard one for itself, so that is what counts.
func OpenFiles() (uint64, error) {
	var r unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
	return r.Cur, err
}
