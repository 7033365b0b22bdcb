package dir_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/testkit"
)

// TestFolderWithoutPermission: a folder that may not be read, as lost+found at the root of a
// volume, does not refuse the model beside it; the model's own folder does.
func TestFolderWithoutPermission(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "m")
	put(t, folder, "config.json", []byte("{}"))
	put(t, folder, "lost+found/x.json", []byte("{}"))
	for d := folder; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	if err := os.Chmod(filepath.Join(folder, "lost+found"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(filepath.Join(folder, "lost+found"), 0o755)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getuid() == 0 { // root reads everything
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setfsuid(0)
	}
	if _, err := os.ReadDir(folder); err != nil {
		testkit.Missing(t, "the folder of temporary files is not open to other users:", err)
	}
	plan, err := dir.Source{}.Plan(t.Context(), "file://"+folder, nil)
	if err != nil || len(plan.Files) != 1 || len(plan.Left) != 1 || plan.Left[0].Name != "lost+found" || plan.Left[0].Reason == "" {
		t.Errorf("%+v, %v", plan, err)
	}
	if _, err := (dir.Source{}).Plan(t.Context(), "file://"+filepath.Join(folder, "lost+found"), nil); source.KindOf(err) != source.Denied ||
		!strings.Contains(err.Error(), "permission denied (let the user that runs thaw read it") {
		t.Errorf("a folder that cannot be read: %v", err)
	}
}
