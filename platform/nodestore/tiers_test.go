//go:build linux

package nodestore

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/store"
)

func TestNearness(t *testing.T) {
	dir := t.TempDir()
	const size = 3 << 20
	name := filepath.Join(dir, "model.safetensors")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	e := store.Entry{Path: dir, Bytes: size, Files: []store.File{{Name: "model.safetensors", Size: size}}}
	if tier, memory, known := tierOf(e); tier != functions.TierDRAM || memory != size || !known {
		t.Errorf("just written: %s, %d, %v", tier, memory, known)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if tier, memory, known := tierOf(e); memory != size && (tier != functions.TierNVMe || memory > size/2 || !known) {
		t.Errorf("dropped: %s, %d, %v", tier, memory, known)
	}
}
