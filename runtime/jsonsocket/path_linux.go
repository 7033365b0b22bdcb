package jsonsocket

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ShortPath returns a path of the same socket that fits into a socket address, until done.
func ShortPath(path string) (short string, done func(), err error) {
	if len(path) < 100 {
		return path, func() {}, nil
	}
	dir, base := filepath.Split(path)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd) + "/" + base, func() { unix.Close(fd) }, nil
}
