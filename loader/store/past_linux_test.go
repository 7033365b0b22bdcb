package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// paged is body in memory that lies so many bytes behind a page's beginning.
func paged(n, behind int, seed byte) []byte {
	b := make([]byte, n+2*4096)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b)))&4095) + behind
	b = b[skip : skip+n]
	copy(b, testBytes(n, seed))
	return b
}

// cached is how many pages of a file are in memory.
func cached(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(fi.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	vec := make([]byte, (len(m)+4095)/4096)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)),
		uintptr(unsafe.Pointer(unsafe.SliceData(vec)))); errno != 0 {
		t.Fatal(errno)
	}
	n := 0
	for _, v := range vec {
		n += int(v & 1)
	}
	return n
}

// Bytes come to their place whichever way they take, wherever they begin and
// end, and a reader in between sees them.
func TestDirectWrites(t *testing.T) {
	const block = 64 << 10
	const size = 4*block + 777
	for name, c := range map[string]struct {
		writes []int // where one write ends and the next begins
		behind int   // a page's beginning, in memory
		past   int64
		most   int // pages of the file in memory afterwards; -1: any
	}{
		"whole pages":          {writes: []int{8192, 40960}, past: 1, most: 1},
		"in the middle":        {writes: []int{5000, 9000, 9001, 50000}, past: 1, most: -1},
		"memory beside a page": {writes: []int{8192}, behind: 512, past: 1, most: -1},
		"small file":           {writes: []int{8192}, past: size + 1, most: -1},
		"never":                {writes: []int{8192}, past: -1, most: -1},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			want := paged(size, c.behind, 7)
			s := openStore(t, store.Options{Dir: data, DirectFrom: c.past})
			in, err := s.Claim(store.Key("one", ""))
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if err := in.Prepare(t.Context(), "one", []source.File{{Name: "a.gguf", Size: size, Version: "1"}}, block); err != nil {
				t.Fatal(err)
			}
			p := in.Parts[0]
			path, _ := filepath.Glob(filepath.Join(data, "parts", "*", "*"))
			for _, i := range []int{2, 0, 1, 4, 3} {
				off, n := p.Range(i)
				w := p.Writer(i)
				at := 0
				for _, end := range append(c.writes, block) {
					end = min(end, int(n))
					if end == at {
						continue
					}
					if _, _, err := w.Write(off+int64(at), want[int(off)+at:int(off)+end]); err != nil {
						t.Fatal(err)
					}
					at = end
				}
			}
			if c.most >= 0 && direct(t, data) {
				for _, path := range path {
					if fi, err := os.Stat(path); err == nil && fi.Size() == size {
						if n := cached(t, path); n > c.most {
							t.Errorf("%d pages are in memory", n)
						}
					}
				}
			}
			for _, i := range []int{0, 3, 1} {
				off, n := p.Range(i)
				p.StartRead(i)
				got := make([]byte, n)
				if _, err := p.ReadAt(got, off); err != nil || !bytes.Equal(got, want[off:off+n]) {
					t.Errorf("block %d is not what was written: %v", i, err)
				}
			}
			// Once more, over what is in memory now.
			again := paged(size, 0, 9)
			for i := range p.Blocks() {
				p.DropBlock(i)
				off, n := p.Range(i)
				if err := p.Put(i, again[off:off+n]); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, size)
			if _, err := p.ReadAt(got, 0); err != nil || !bytes.Equal(got, again) {
				t.Errorf("stale bytes: %v", err)
			}
			if err := p.Finish(); err != nil {
				t.Fatal(err)
			}
			e, lease, err := in.Commit()
			if err != nil {
				t.Fatal(err)
			}
			lease.Release()
			if err := s.Verify(t.Context(), e.Digest); err != nil {
				t.Error(err)
			}
		})
	}
}

// direct reports whether the file system of dir writes past the cache.
func direct(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "direct"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		return false
	}
	defer func() {
		f.Close()
		os.Remove(f.Name())
	}()
	if _, err := f.WriteAt(paged(4096, 0, 1), 0); err != nil {
		return false
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(fmt.Errorf("statfs: %w", err))
	}
	return st.Type != unix.TMPFS_MAGIC
}

// TestVerifyWithoutDescriptors: files that cannot be opened for want of file descriptors
// are not damaged.
func TestVerifyWithoutDescriptors(t *testing.T) {
	s := openStore(t, store.Options{})
	e := mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(100, 1), "b.gguf": testBytes(100, 2)})
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}
	defer restore()
	err := s.Verify(betweenFiles{t.Context(), new(int), func(n int) {
		if n > 1 {
			restore()
		} else if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}}, e.Digest)
	if !errors.Is(err, syscall.EMFILE) || source.KindOf(err) == source.Digest {
		t.Errorf("error %v", err)
	}
	if err := s.Verify(t.Context(), e.Digest); err != nil {
		t.Errorf("the checkpoint afterwards: %v", err)
	}
}
