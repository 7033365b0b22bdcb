package loader

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func createDirect(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_DIRECT, 0o600)
}

func allocate(f *os.File, size int64) error { return unix.Fallocate(int(f.Fd()), 0, 0, size) }

// flush writes all dirty pages of dir's file system to the disk.
func flush(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// freeBytes returns the free bytes in dir.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return int64(st.Bavail) * int64(st.Bsize), err
}

// bytesRead returns the bytes that this process has read from a disk; -1 where the kernel
// does not count them.
func bytesRead() int64 {
	raw, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return -1
	}
	n := int64(-1)
	for line := range strings.Lines(string(raw)) {
		_, _ = fmt.Sscanf(line, "read_bytes: %d", &n)
	}
	return n
}
