package kit

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// CheckFUSE is nil where this process may mount a folder whose files are still
// arriving, otherwise what is missing.
func CheckFUSE() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("/dev/fuse: %w", RootCause(err))
	}
	f.Close()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return RootCause(err)
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	caps, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil || caps&(1<<capSysAdmin) == 0 {
		return errors.New("it takes CAP_SYS_ADMIN to mount, which this user has not")
	}
	return nil
}

const capSysAdmin = 21
