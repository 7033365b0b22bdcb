package store

import (
	"strings"
	"testing"
)

// The error names the bound that leaves less, and what is kept free.
func TestNoSpaceWords(t *testing.T) {
	for _, tc := range []struct {
		budget, kept, free, used int64
		want                     string
	}{
		{0, 256 << 20, 30 << 20, 10, "no room in the store: /d/store: 57.2 MiB are needed, and 30 MiB are free on its disk, of which 256 MiB stay free (free disk there"},
		{0, 0, 7, 10, "57.2 MiB are needed, and 7 B are free on its disk (free disk there, stop a model that is in use, or name a folder on a larger disk: --data"},
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
