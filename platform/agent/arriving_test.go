//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRetainedViews: an adopted engine's symlink to files retains its folder; a symlink that
// still leads to the mount of an earlier agent is lost.
func TestRetainedViews(t *testing.T) {
	s := aNode(t, remoteSource{}, false)
	give := func(name, to string) (path string) {
		t.Helper()
		dir := filepath.Join(s.o.Arriving, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(dir, arrivingModel)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	files := t.TempDir()
	turned, mounted := give("a", files), give("b", arrivingFiles)
	for path, supervisorGone := range map[string]bool{turned: false, mounted: true, files: false, filepath.Join(s.o.Arriving, "gone", arrivingModel): true} {
		if got := s.ViewLost(path); got != supervisorGone {
			t.Errorf("%s lost: %v", path, got)
		}
	}
	if realPath, release := s.RetainView(files); realPath != files {
		t.Error(realPath)
	} else {
		release()
	}
	realPath, release := s.RetainView(turned)
	if realPath != files {
		t.Error(realPath)
	}
	_, again := s.RetainView(turned)
	// An agent's start removes folders that are not retained.
	if err := s.removeStaleViews(); err != nil {
		t.Fatal(err)
	}
	here := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	if !here(turned) || here(mounted) {
		t.Error("swept:", here(turned), here(mounted))
	}
	release()
	if !here(turned) {
		t.Error("gone while it is held")
	}
	again()
	if here(filepath.Dir(turned)) {
		t.Error("it stays although it is not retained")
	}
}
