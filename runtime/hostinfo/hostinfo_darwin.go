package hostinfo

import "golang.org/x/sys/unix"

// ReadMemory knows the total alone: macOS has no one number for what is available.
func ReadMemory() (Memory, error) {
	n, err := unix.SysctlUint64("hw.memsize")
	return Memory{Total: int64(n)}, err
}

func GroupLimit() int64 { return 0 }

func BootID() string {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return s
}
