//go:build !linux

package supervisor

import (
	"net"
	"syscall"

	"github.com/prometheus/procfs"
)

// There is no child subreaper: a process that leaves its group is lost.
func becomeReaper() error { return nil }

func forbidTracing() error { return nil }

// There is no death signal.
func groupLeader() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Processes are not listed.
func listProcesses() []procfs.ProcStat { return nil }

// Without a subreaper no forked process becomes a child of this one.
func isChild(int) bool { return false }

func hasEnvironment(int, string) bool { return false }

func oomKills() int64 { return 0 }

func endSession(int) int { return 0 }

// isOwnProcess reports whether the peer is a process of this supervisor; unknown here.
func isOwnProcess(net.Conn) bool { return false }

// Listening lists nothing: only Linux shows which process has a socket.
func Listening(int) []string { return nil }
