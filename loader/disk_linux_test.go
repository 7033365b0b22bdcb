package loader_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit"
)

// A disk of its own that is too small, and one that may not be written.
func TestSmallDisk(t *testing.T) {
	small := t.TempDir()
	if err := syscallMount(small, "size=256k"); err != nil {
		testkit.Missing(t, "no file system can be mounted here:", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(small, syscall.MNT_DETACH) })
	one, two, giant := model(t), t.TempDir(), t.TempDir()
	write(t, two, "model.safetensors", weights(110_000, 2))
	write(t, giant, "model.safetensors", weights(400_000, 3))
	st := openStore(t, store.Options{Dir: filepath.Join(small, "store")})
	l := loader.New(loader.Options{Store: st, Block: 8 * block, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}})
	defer l.Close()
	stageFolder(t, l, one).Lease.Release()
	fails := func(folder string, kind source.Kind) {
		t.Helper()
		s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Release()
		_, err = s.Wait(t.Context())
		if source.KindOf(err) != kind {
			t.Errorf("error %v", err)
		}
	}
	fails(giant, source.NoSpace)
	if list, _ := st.List(); len(list) != 1 {
		t.Error("evicted for what cannot fit")
	}
	left, _ := filepath.Glob(filepath.Join(small, "store", "parts", "*", "*"))
	if len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	// Two at once do not fit: the first goes.
	write(t, two, "more.safetensors", weights(60_000, 3))
	c := stageFolder(t, l, two)
	if list, _ := st.List(); len(list) != 1 {
		t.Errorf("%+v", list)
	}
	// It is in use: nothing may go now.
	fails(one, source.NoSpace)
	c.Lease.Release()
	if err := syscallMount(small, "remount,ro"); err != nil {
		testkit.Missing(t, err)
	}
	fails(one, source.Broken)
}

func syscallMount(dir, o string) error {
	flags := uintptr(0)
	if remaining, ok := strings.CutPrefix(o, "remount,ro"); ok {
		flags, o = syscall.MS_REMOUNT|syscall.MS_RDONLY, remaining
	}
	return syscall.Mount("tmpfs", dir, "tmpfs", flags, o)
}

// Where the source names no digest of a whole file, a staging reads back no more than the
// header of the weights; where it names one, each byte once.
func TestBytesReadBack(t *testing.T) {
	const size = 4 << 20
	folder := t.TempDir()
	write(t, folder, "model.safetensors", weights(size, 1))
	for _, tc := range []struct {
		name    string
		source  loader.Source
		atLeast int64
		below   int64 // bytes read, beside those of the source
	}{
		{"no digest", copied{dir.Source{}}, 0, size / 16},
		{"sha256", copied{checksummed{dir.Source{}}}, size, size + size/16},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := loader.New(loader.Options{Store: openStore(t, store.Options{}), Block: 256 << 10, Sources: map[string]loader.Source{"file": tc.source}})
			defer l.Close()
			before := charactersRead(t)
			stageFolder(t, l, folder).Lease.Release()
			got := charactersRead(t) - before - size
			if _, ok := tc.source.(copied).Source.(checksummed); ok {
				got -= size // its plan reads the file
			}
			if got < tc.atLeast || got >= tc.below {
				t.Errorf("%d bytes of %d were read back", got, size)
			}
		})
	}
}

// charactersRead is how many bytes this process has got from read calls so far.
func charactersRead(t *testing.T) (n int64) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(raw), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}
