package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// TestOutputOnFullDisk: the output of a process is read although its log cannot be
// opened or written (F9), and goes into the log again once there is room, with the number
// of bytes that are missing.
func TestOutputOnFullDisk(t *testing.T) {
	for _, c := range []struct{ name, disk string }{
		{"no file can be made", "nr_inodes=4"},
		{"no byte can be written", "size=512k"},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := t.TempDir()
			if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, c.disk); err != nil {
				testkit.Missing(t, "no file system can be mounted here:", err)
			}
			t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
			var fillers []string
			for i := 0; ; i++ {
				name := filepath.Join(disk, strconv.Itoa(i))
				err := os.WriteFile(name, make([]byte, 4096), 0o600)
				if err != nil {
					break
				}
				fillers = append(fillers, name)
			}
			path := filepath.Join(disk, "logs", "x")
			j, w, err := newOutputLog(path, LogBytes)
			if err != nil {
				t.Fatal(err)
			}
			go j.copy()
			defer j.finish(time.Second)
			defer w.Close()
			w.SetWriteDeadline(time.Now().Add(testTimeout))
			if _, err := w.WriteString(strings.Repeat("lost ", 40_000)); err != nil { // more than the pipe holds
				t.Fatal(err)
			}
			for _, name := range fillers {
				os.Remove(name)
			}
			testkit.Eventually(t, "what was dropped, and why", func() (bool, string) {
				w.SetWriteDeadline(time.Now().Add(testTimeout))
				w.WriteString("again\n")
				b, _ := os.ReadFile(path)
				return strings.Contains(string(b), "bytes of output were dropped here: ") && strings.Contains(string(b), "no space left on device\n") &&
					strings.HasSuffix(string(b), "again\n"), fmt.Sprintf("%.300q", b)
			})
		})
	}
}
