package safetensors

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// populate asks the kernel for all pages of b: first to begin reading those that are
// not in memory, all at once instead of some at each fault, then to map them. Kernels
// before 5.14 cannot do the latter and get the portable way.
func populate(b []byte) {
	_ = unix.Madvise(b, unix.MADV_WILLNEED) // only advice
	if unix.Madvise(b, unix.MADV_POPULATE_READ) != nil {
		runtime.KeepAlive(read(b))
	}
}
