package local

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNextEpoch(t *testing.T) {
	dir := t.TempDir()
	for want := int64(1); want < 4; want++ {
		if e, err := nextEpoch(dir); e != want || err != nil {
			t.Fatalf("%d %v, want %d", e, err, want)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".epoch*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, bad := range []string{"", "x", "-1", "1 2", "99999999999999999999"} {
		os.WriteFile(filepath.Join(dir, "epoch"), []byte(bad), 0o600)
		if e, err := nextEpoch(dir); err == nil {
			t.Errorf("%q gave epoch %d: agents would be commanded by two lives at once", bad, e)
		}
	}
	if _, err := nextEpoch(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("no folder, no error")
	}
}
