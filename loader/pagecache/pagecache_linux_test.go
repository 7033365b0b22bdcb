package pagecache

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/testkit"
)

// tempFile of n bytes whose pages are on the disk and, if the file system lets us,
// not in memory.
func tempFile(t *testing.T, n int64) (File, *os.File) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "w"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	buf := make([]byte, 1<<20)
	for left := n; left > 0; left -= int64(len(buf)) {
		if _, err := f.Write(buf[:min(left, int64(len(buf)))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return File{f.Name(), n}, f
}

func dropCache(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

func within(got, want, tolerance int64) bool { return got >= want-tolerance && got <= want+tolerance }

func TestResident(t *testing.T) {
	for _, size := range []int64{1, 5000, 3<<20 + 17} {
		f, open := tempFile(t, size)
		if n, ok := Resident([]File{f}); !ok || n != size {
			t.Errorf("%d bytes just written: %d, %v", size, n, ok)
		}
		dropCache(t, open)
		n, ok := Resident([]File{f})
		if !ok || n != 0 {
			testkit.Missing(t, "pages stay here (tmpfs):", n, ok)
		}
	}
	if n, ok := Resident(nil); !ok || n != 0 {
		t.Error(n, ok)
	}
	if n, ok := Resident([]File{{"/nowhere", 5 << 20}}); !ok || n != 0 {
		t.Error(n, ok)
	}
}

// Both ways of looking say the same, of half a file too.
func TestResidencyMethodsAgree(t *testing.T) {
	const size = 8 << 20
	f, open := tempFile(t, size)
	dropCache(t, open)
	// Nothing is read beyond what is asked for.
	if err := unix.Fadvise(int(open.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	if _, err := open.ReadAt(make([]byte, size/2), 0); err != nil {
		t.Fatal(err)
	}
	a, err := measureCached(open, 0, size)
	if err != nil {
		testkit.Missing(t, err)
	}
	b, err := incore(open, 0, size)
	if err != nil || a != b {
		t.Errorf("cachestat %d, mincore %d, %v", a, b, err)
	}
	if n, ok := Resident([]File{f}); !ok || !within(n, a, 1<<16) {
		t.Errorf("%d, %v, want %d", n, ok, a)
	}
}

// A large file is looked at through windows, and half of it counts as half.
func TestSampled(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 200 MiB")
	}
	const size = 200 << 20
	f, open := tempFile(t, size)
	dropCache(t, open)
	if n, _ := Resident([]File{f}); n != 0 {
		testkit.Missing(t, "pages stay here (tmpfs)")
	}
	if got := ReadAhead(t.Context(), []File{f}, size/2); got != size/2 {
		t.Errorf("asked for %d", got)
	}
	testkit.Eventually(t, fmt.Sprintf("about %d bytes are resident", size/2), func() (bool, string) {
		n, _ := Resident([]File{f})
		return within(n, size/2, size/25), fmt.Sprint(n)
	})
}

func TestReadAheadEnds(t *testing.T) {
	f, _ := tempFile(t, 20<<20)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n := ReadAhead(ctx, []File{f}, 1<<40); n != 0 {
		t.Error(n)
	}
	if n := ReadAhead(t.Context(), []File{{"/nowhere", 9}, f, f}, 25<<20); n != 25<<20 {
		t.Error(n)
	}
}

func TestSpread(t *testing.T) {
	for _, size := range []int64{129 << 20, 1 << 33, 130<<20 + 13} {
		last := int64(-1)
		list := sampleExtents(size, maxWindows, false)
		for _, e := range list {
			if e.off <= last || e.off%(1<<16) != 0 || e.len <= 0 || e.off+e.len > size {
				t.Fatalf("size %d: %+v", size, e)
			}
			last = e.off + e.len - 1
		}
		if len(list) != maxWindows {
			t.Errorf("size %d: %d windows", size, len(list))
		}
	}
}

func TestSpareMemory(t *testing.T) {
	if SpareMemory() <= 0 {
		t.Error("no memory")
	}
}

func BenchmarkResident(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "w"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	const size = 4 << 30 // sparse
	if err := f.Truncate(size); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		Resident([]File{{f.Name(), size}})
	}
}
