package hostinfo

import "golang.org/x/sys/unix"

// readMemory knows the total alone: macOS has no one number for what is available.
func readMemory() (Memory, error) {
	n, err := unix.SysctlUint64("hw.memsize")
	return Memory{Total: int64(n)}, err
}

func groupLimit() int64 { return 0 }

func bootID() string {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return s
}

func maxFiles() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	return int(min(l.Cur, 1<<30))
}
