//go:build !linux

package supervisor

import (
	"fmt"
	"syscall"
)

// There is no child subreaper here: what leaves its group is lost sight of.
func becomeReaper() error { return nil }

// A group of its own; there is no death signal here.
func groupLeader() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

type processInfo struct {
	pid, parent, group, session int
	zombie                      bool
}

// Processes are not listed here.
func listProcesses() []processInfo { return nil }

// Nobody's orphans come to us here, so nothing can be forked for us.
func isChild(int) bool { return false }

func hasEnvironment(int, string) bool { return false }

func oomKills() int64 { return 0 }

func endSession(int) int { return 0 }

func shortPath(path string) (string, func(), error) {
	if len(path) >= 104 {
		return "", nil, fmt.Errorf("%s: too long for a unix socket (103 bytes here)", path)
	}
	return path, func() {}, nil
}
