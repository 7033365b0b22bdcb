package forkserver

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// shortPath spells a socket's path so that it fits into an address.
func shortPath(path string) (short string, done func(), err error) {
	if len(path) < 100 {
		return path, func() {}, nil
	}
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd) + "/" + filepath.Base(path), func() { unix.Close(fd) }, nil
}

// Supported: forked engines need a child subreaper as their parent.
const Supported = true
