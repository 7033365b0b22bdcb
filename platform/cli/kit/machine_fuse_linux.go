package kit

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CheckFUSE is nil where this process may mount a folder whose files are still
// arriving, otherwise what is missing.
func CheckFUSE() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("/dev/fuse: %w", RootCause(err))
	}
	f.Close()
	var caps [2]unix.CapUserData
	err = unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	if err != nil || caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errors.New("it takes CAP_SYS_ADMIN to mount, which this user has not")
	}
	return nil
}
