package store

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A lock ends with Close also while a child that is being started has the file as well.
func TestCloseUnlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := lockFile(path, false, false)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := unix.Dup(int(held.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	if _, err := lockFile(path, true, false); err != errBusy {
		t.Fatalf("locked: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := lockFile(path, true, false)
	if err != nil {
		t.Fatalf("closed: %v", err)
	}
	next.Close()
}
