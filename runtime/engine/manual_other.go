//go:build !linux

package engine

import "syscall"

// lowPriorityGroup is a group of its own; there is no death signal here.
func lowPriorityGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
