package safetensors

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// populate reads and maps all pages of b with two calls of madvise. Kernels before 5.14
// lack the second and read one byte per page.
func populate(b []byte) {
	_ = unix.Madvise(b, unix.MADV_WILLNEED) // only advice
	if unix.Madvise(b, unix.MADV_POPULATE_READ) != nil {
		runtime.KeepAlive(readPages(b))
	}
}
