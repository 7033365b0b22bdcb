package supervisor

import (
	"os"
	"testing"
	"testing/synctest"
)

// TestSupervisorGone: a client that lost its supervisor looks at the lock, and creates none.
func TestSupervisorGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if supervisorGone(dir) {
			t.Error("gone, from a folder that has no lock")
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("the client wrote %v into a folder that may be removed (%v)", entries, err)
		}
		lock, err := acquireLock(dir, os.O_CREATE)
		if err != nil {
			t.Fatal(err)
		}
		if supervisorGone(dir) {
			t.Error("gone, while the lock is held")
		}
		lock.Close()
		if !supervisorGone(dir) {
			t.Error("not gone, though the lock is free")
		}
	})
}
