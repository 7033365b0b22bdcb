//go:build unix

package shim

import (
	"os"
	"syscall"
)

func ownedByRoot(path string) bool {
	st, err := os.Lstat(path)
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Uid == 0
}
