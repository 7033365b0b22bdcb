//go:build !linux

package engine

import "syscall"

// aside is a group of its own; there is no death signal here.
func aside() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
