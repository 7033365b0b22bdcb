//go:build unix

package remote

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestKeyPipe: a path that is no file is not opened, where a reader could wait for ever.
func TestKeyPipe(t *testing.T) {
	f := keyFile{path: filepath.Join(t.TempDir(), "key")}
	if err := syscall.Mkfifo(f.path, 0o600); err != nil {
		t.Fatal(err)
	}
	if key, reason, fresh := f.read(); key != "" || !fresh || !strings.Contains(reason, "is no regular file") {
		t.Errorf("%q %q %v", key, reason, fresh)
	}
}
