package pagecache

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore fills vec with one byte per page of b; x/sys has no wrapper.
func mincore(b, vec []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0]))); e != 0 {
		return e
	}
	return nil
}
