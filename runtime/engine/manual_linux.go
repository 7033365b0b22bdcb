package engine

import "syscall"

// aside is a group of its own that ends with the thread that starts it.
func aside() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
