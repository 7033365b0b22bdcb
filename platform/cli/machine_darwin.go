package cli

import (
	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/functions"
)

// memory of this machine. What is free is not told there in one number: 0.
func memory() (total, free functions.Bytes, err error) {
	n, err := unix.SysctlUint64("hw.memsize")
	return functions.Bytes(n), 0, err
}
