//go:build !race

package tcp

import (
	"syscall"
	"unsafe"
)

// receiveOnce is recv(2); p has at least one byte.
func receiveOnce(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
	return int(n), err
}

// sendOnce is send(2); p has at least one byte.
func sendOnce(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), syscall.MSG_NOSIGNAL, 0, 0)
	return int(n), err
}
