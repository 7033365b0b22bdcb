package store

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The error names the bound that leaves less, and what is kept free.
func TestNoSpaceWords(t *testing.T) {
	for _, tc := range []struct {
		budget, kept, free, used int64
		want                     string
	}{
		{0, 256 << 20, 30 << 20, 10, "no room in the store: /d/store: 57.2 MiB are needed, and 30 MiB are free on its disk, of which 256 MiB stay free (free disk there (inodes too: df -i), stop"},
		{0, 0, 7, 10, "57.2 MiB are needed, and 7 B are free on its disk, of which 0 B stay free (free disk there (inodes too: df -i), stop a model that is in use, or name a folder on a larger disk: --data"},
		{50, 256 << 20, 1 << 30, 10, "57.2 MiB are needed, and 40 B are left of the 50 B that it may take (raise --store-bytes"},
		{0, 256 << 20, 1 << 30, 10, "57.2 MiB are needed, and its disk takes no more though 1 GiB are free: it has no free inode (df -i), or this user a quota (free"},
		{1 << 40, 256 << 20, 3, 10, "57.2 MiB are needed, and 3 B are free on its disk, of which 256 MiB stay free"},
	} {
		s := &Store{layout: &layout{dir: "/d/store"}, o: Options{Budget: tc.budget, KeepFree: tc.kept}}
		if err := s.noSpaceError(60030000, tc.free, tc.used); !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// The error of a folder that cannot be used names the way out.
func TestDiskErrorWords(t *testing.T) {
	path := func(op string, err error) error { return &os.PathError{Op: op, Path: "/d/store/lock", Err: err} }
	for _, tc := range []struct {
		err  error
		want string
	}{
		{path("flock", unix.ENOLCK), "the store's disk: flock /d/store/lock: no locks available (the folder's file system lacks what the store needs, such as locks"},
		{path("flock", unix.ENOSYS), "function not implemented (the folder's file system lacks"},
		{path("open", unix.EROFS), "read-only file system (--data names a folder that this user may write to)"},
		{path("open", unix.EACCES), "permission denied (--data names"}, {path("read", unix.EIO), "input/output error (the disk or its mount has failed: see dmesg"},
		{path("open", unix.ESTALE), "(the disk or its mount has failed"}, {path("mkdir", unix.ENOSPC), "mkdir /d/store/lock: no space left on device (free disk there (inodes"},
		{path("open", unix.EMFILE), "open /d/store/lock: too many open files"},
	} {
		for _, file := range []string{"", "model.safetensors"} {
			if err := diskError(file, tc.err); !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), file) {
				t.Errorf("%v: %v", tc.err, err)
			}
		}
	}
}
