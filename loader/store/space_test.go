package store

import (
	"strings"
	"testing"
)

// The error names the bound that leaves less, and what is kept free.
func TestNoSpaceWords(t *testing.T) {
	for _, tc := range []struct {
		budget, kept, avail, used int64
		want                      string
	}{
		{0, 256 << 20, 0, 10, "100 bytes are needed and 0 are free on the disk, beside a reserve of 268435456 that stays free"},
		{0, 0, 7, 10, "100 bytes are needed and 7 are free on the disk"},
		{50, 256 << 20, 1000, 10, "100 bytes are needed and 40 are free (the store may take 50)"},
		{5000, 256 << 20, 3, 10, "100 bytes are needed and 3 are free on the disk, beside a reserve of 268435456 that stays free"},
	} {
		s := &Store{o: Options{Budget: tc.budget, KeepFree: tc.kept}}
		if err := s.noSpaceError(100, tc.avail, tc.used); !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
