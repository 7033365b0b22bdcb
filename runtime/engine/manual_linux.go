package engine

import "syscall"

// lowPriorityGroup is a group of its own that ends with the thread that starts it.
func lowPriorityGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
