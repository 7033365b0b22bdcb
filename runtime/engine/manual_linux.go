package engine

import "syscall"

// childGroup is a process group of its own that is killed with the starting thread.
func childGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
