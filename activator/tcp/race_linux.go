//go:build race

package tcp

import "syscall"

// The race detector takes a write of package syscall to be before every later read. Without
// that, what one end does before it writes would race with what the other does behind its read.

func receiveOnce(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Read(int(fd), p)
	return n, number(err)
}

func sendOnce(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), p)
	return n, number(err)
}

func number(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return err.(syscall.Errno)
}
