//go:build !linux

package engine

import "syscall"

// childGroup is a process group of its own; there is no death signal.
func childGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
