//go:build linux || darwin

package hostinfo

import "golang.org/x/sys/unix"

// MaxFiles is how many files this process may have open; 0 where that is not known. Go raises
// the soft limit to the hard one for itself, so that is what counts.
func MaxFiles() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	return int(min(l.Cur, 1<<30))
}

// FreeDisk is how many bytes an ordinary user may still write at path.
func FreeDisk(path string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(path, &s)
	return int64(s.Bavail) * int64(s.Bsize), err
}
