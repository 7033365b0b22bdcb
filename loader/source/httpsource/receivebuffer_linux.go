package httpsource

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// receiveBuffer bounds what the kernel takes of one connection before anybody reads
// it. By itself that grows to many megabytes where the sender is quicker than
// the reader, and is lost with the process, or when a range is given up: killed in
// the middle of 2 GiB, 6 % were read twice, and with this less than 1. It is
// enough for 57 MiB/s of one connection at 9 ms; sources further away are read
// over more connections.
const receiveBuffer = 512 << 10

// maxReceiveBuffer is the most a process may ask for. Where that is less, the bound would
// be one that slows down sources far away: the system's own is left alone.
var maxReceiveBuffer = sync.OnceValue(func() int {
	b, _ := os.ReadFile("/proc/sys/net/core/rmem_max")
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
})

func limitReceiveBuffer(_, _ string, c syscall.RawConn) error {
	if maxReceiveBuffer() < receiveBuffer {
		return nil
	}
	return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) })
}
