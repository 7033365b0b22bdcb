package supervisor

import (
	"slices"
	"testing"
)

func FuzzParseInotify(f *testing.F) {
	event := func(name string, n byte) []byte {
		b := make([]byte, 16)
		b[12] = n
		return append(append(b, name...), make([]byte, max(0, int(n)-len(name)))...)
	}
	f.Add(event("psm_1", 16))
	f.Add(append(event("a", 16), event("b", 16)...))
	f.Add(event("a", 200)[:20])
	f.Fuzz(func(t *testing.T, b []byte) { parseInotify(b) })
	if got := parseInotify(append(event("a", 16), event("bb", 16)...)); !slices.Equal(got, []string{"a", "bb"}) {
		f.Error(got)
	}
}

func TestMapped(t *testing.T) {
	for line, want := range map[string]uint64{
		"7f2c00000000-7f2c10000000 rw-s 00000000 00:18 42       /dev/shm/psm_1":            42,
		"7f2c00000000-7f2c10000000 rw-s 00000000 00:18 43   /dev/shm/sem.Ot0lnK (deleted)": 43,
		"7f2c00000000-7f2c10000000 rw-p 00000000 00:00 0":                                  0,
		"": 0,
	} {
		if got := mappedInode([]byte(line)); got != want {
			t.Errorf("%s: %d", line, got)
		}
	}
}
