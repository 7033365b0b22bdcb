package safetensors

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// populate asks the kernel for all pages of b in one call; kernels before 5.14
// cannot and get the portable way.
func populate(b []byte) {
	if unix.Madvise(b, unix.MADV_POPULATE_READ) != nil {
		runtime.KeepAlive(read(b))
	}
}
