package mount

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/thaw-dev/thaw/testkit"
)

// TestMain: the test binary is also the reader, in a process of its own.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "read-file" {
		b, err := os.ReadFile(os.Args[2])
		fmt.Println(len(b), err)
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "read-page" {
		readPage(os.Args[2])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "read-own-mount" {
		readOwnMount(os.Args[2])
		return
	}
	testkit.ShortenExits()
	goleak.VerifyTestMain(m)
}

// silentBytes never come. asked is closed when one of them was asked for.
type silentBytes struct{ asked chan struct{} }

func (b *silentBytes) ReadAt(ctx context.Context, name string, p []byte, off int64) (int, error) {
	close(b.asked)
	select {}
}

// readOwnMount reads a byte that never comes in a mount of its own, past the page cache,
// whose pages are waited for until a kill, and prints a line when the read waits.
func readOwnMount(dir string) {
	fd, err := attach(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := &silentBytes{make(chan struct{})}
	go func() {
		<-b.asked
		fmt.Println("waits")
	}()
	m, err := serveMount(fd, dir, []File{{Name: "w", Size: 4096}}, b, slog.New(slog.DiscardHandler))
	if err == nil {
		err = withoutDevice(fd, func() error {
			f, err := unix.Open(filepath.Join(dir, "w"), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT, 0)
			if err == nil {
				_, err = unix.Pread(f, make([]byte, 4096), 0)
			}
			return err
		})
	}
	fmt.Println(m, err)
}

// TestKilledInOwnMount: a process that is killed while a thread of it waits for its own
// mount ends.
func TestKilledInOwnMount(t *testing.T) {
	mounted(t, newTap(nil)).Close() // or skips
	dir := t.TempDir()
	t.Cleanup(func() { Sweep(filepath.Dir(dir)) })
	cmd := exec.Command(os.Args[0], "read-own-mount", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "waits\n" {
		t.Errorf("%q %v", line, err)
	}
	cmd.Process.Kill()
	ended := make(chan struct{})
	go func() { defer close(ended); cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("it does not end")
		detach(dir)
		<-ended
	}
}

// readPage reads the first page of a file as Python reads: again after each EINTR. It
// prints its thread, each of those, and then how much it read and the error. It
// reads past the page cache, as fast loaders do: the kernel waits for a page of the cache
// whatever the signal, unless it kills.
func readPage(name string) {
	runtime.LockOSThread()
	fmt.Println(unix.Gettid())
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECT, 0)
	n, b := 0, make([]byte, 4096)
	for err == nil {
		if n, err = unix.Pread(fd, b, 0); err != syscall.EINTR {
			break
		}
		fmt.Println("EINTR")
		err = nil
	}
	fmt.Println(n, err)
}

// mounted makes a mount, or skips where there can be none.
func mounted(t *testing.T, from *tap) *Mount {
	t.Helper()
	m, err := New(t.TempDir(), from.list(), from, slog.New(slog.DiscardHandler))
	if errors.Is(err, ErrUnavailable) {
		testkit.Missing(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func TestReads(t *testing.T) {
	src := newTap(map[string][]byte{"config.json": []byte("{}"), "empty.txt": nil, "a/b/model.safetensors": random(9<<20 + 17)})
	src.all()
	m := mounted(t, src)
	var seen []string
	err := fs.WalkDir(os.DirFS(m.dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			seen = append(seen, p)
		}
		return err
	})
	if err != nil || !slices.Equal(seen, []string{"a/b/model.safetensors", "config.json", "empty.txt"}) {
		t.Fatal(seen, err)
	}
	for name, want := range src.files {
		got, err := os.ReadFile(filepath.Join(m.dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, "config.json"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("written: %v", err)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "other")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// Reads and page faults wait for missing bytes, and the kernel requests each byte
// once.
func TestWaits(t *testing.T) {
	want := random(4 << 20)
	src := newTap(map[string][]byte{"w": want})
	m := mounted(t, src)
	name := filepath.Join(m.dir, "w")
	got := make(chan []byte)
	go func() {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	select {
	case <-got:
		t.Fatal("bytes that are not here")
	case <-time.After(20 * time.Millisecond):
	}
	src.open("w", 1<<20, nil)
	src.open("w", 4<<20, nil)
	if !bytes.Equal(<-got, want) {
		t.Error("other bytes")
	}
	src.mu.Lock()
	src.reads = nil
	src.mu.Unlock()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if !bytes.Equal(b, want) {
		t.Error("mapped other bytes")
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	if len(src.reads) > 0 {
		t.Errorf("asked again: %v", src.reads)
	}
}

// With one thread for Go code, the reader in this process and the server of its bytes
// make progress, also while a command is started beside an open file.
func TestOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	src := newTap(map[string][]byte{"w": random(3 << 20)})
	m := mounted(t, src)
	f, err := os.Open(filepath.Join(m.dir, "w"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done := make(chan int)
	go func() {
		n := 0
		for buf := make([]byte, 1<<20); ; {
			k, err := f.Read(buf)
			if n += k; err != nil {
				break
			}
		}
		done <- n
	}()
	if err := exec.Command("true").Run(); err != nil {
		t.Error(err)
	}
	src.all()
	if n := <-done; n != 3<<20 {
		t.Error(n)
	}
}

func TestFails(t *testing.T) {
	src := newTap(map[string][]byte{"w": random(1 << 20)})
	m := mounted(t, src)
	src.open("w", 0, errors.New("the source is gone"))
	if _, err := os.ReadFile(filepath.Join(m.dir, "w")); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	// A failed page is asked for again.
	src.all()
	if b, err := os.ReadFile(filepath.Join(m.dir, "w")); err != nil || len(b) != 1<<20 {
		t.Error(len(b), err)
	}
}

// A reader that waits can be killed.
func TestInterrupted(t *testing.T) {
	src := newTap(map[string][]byte{"w": random(1 << 20)})
	m := mounted(t, src)
	cmd := exec.Command(os.Args[0], "read-file", filepath.Join(m.dir, "w"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a read of the source", func() bool { src.mu.Lock(); defer src.mu.Unlock(); return len(src.reads) > 0 })
	cmd.Process.Kill()
	dead := make(chan struct{})
	go func() { cmd.Wait(); close(dead) }()
	select {
	case <-dead:
	case <-time.After(time.Minute):
		t.Fatal("it did not die")
	}
}

// TestSignalToReader: a signal ends a wait with EINTR, after which readers try again, and
// not with EIO, after which they fail.
func TestSignalToReader(t *testing.T) {
	src := newTap(map[string][]byte{"w": random(1 << 20)})
	m := mounted(t, src)
	cmd := exec.Command(os.Args[0], "read-page", filepath.Join(m.dir, "w"))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	reads := func() int { src.mu.Lock(); defer src.mu.Unlock(); return len(src.reads) }
	lines := bufio.NewScanner(out)
	lines.Scan()
	thread, _ := strconv.Atoi(lines.Text())
	testkit.Eventually(t, "one read of the source", func() bool { return reads() == 1 })
	if err := unix.Tgkill(cmd.Process.Pid, thread, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if lines.Scan(); lines.Text() != "EINTR" {
		t.Fatalf("the reader has %q", lines.Text())
	}
	src.all()
	if lines.Scan(); lines.Text() != "4096 <nil>" {
		t.Errorf("after the signal it has read %q", lines.Text())
	}
}

// Close fails waiting reads, and leaves nothing mounted.
func TestClose(t *testing.T) {
	src := newTap(map[string][]byte{"w": random(1 << 20)})
	m := mounted(t, src)
	got := make(chan error)
	go func() {
		_, err := os.ReadFile(filepath.Join(m.dir, "w"))
		got <- err
	}()
	testkit.Eventually(t, "a read of the source", func() bool { src.mu.Lock(); defer src.mu.Unlock(); return len(src.reads) > 0 })
	m.Close()
	if err := <-got; err == nil {
		t.Error("read without bytes")
	}
	m.Close()
	if list, err := os.ReadDir(m.dir); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
}

// TryUnmount fails while a file is open.
func TestTryUnmount(t *testing.T) {
	src := newTap(map[string][]byte{"w": random(1 << 20)})
	src.all()
	m := mounted(t, src)
	f, err := os.Open(filepath.Join(m.dir, "w"))
	if err != nil {
		t.Fatal(err)
	}
	if m.TryUnmount() {
		t.Fatal("left with a file open")
	}
	if b, err := os.ReadFile(filepath.Join(m.dir, "w")); err != nil || len(b) != 1<<20 {
		t.Error(err)
	}
	f.Close()
	for range 2 {
		if !m.TryUnmount() {
			t.Error("still there")
		}
	}
}

// Sweep unmounts what a dead process left: here a mount whose server is gone.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "a b")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := attach(at)
	if err != nil {
		testkit.Missing(t, err)
	}
	unix.Close(fd)
	if _, err := os.ReadDir(at); err == nil {
		t.Error("a dead mount answers")
	}
	if err := Sweep(dir + "x"); err != nil {
		t.Error(err)
	}
	if _, err := os.ReadDir(at); err == nil {
		t.Error("swept from elsewhere")
	}
	if err := Sweep(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.ReadDir(at); err != nil {
		t.Error(err)
	}
}

// BenchmarkRead is what the way through the kernel costs when the bytes are here.
func BenchmarkRead(b *testing.B) {
	src := newTap(map[string][]byte{"w": random(256 << 20)})
	src.all()
	buf := make([]byte, 4<<20)
	b.SetBytes(256 << 20)
	for b.Loop() {
		m, err := New(b.TempDir(), src.list(), src, slog.New(slog.DiscardHandler))
		if err != nil {
			testkit.Missing(b, err)
		}
		f, err := os.Open(filepath.Join(m.dir, "w"))
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := f.Read(buf); err != nil {
				break
			}
		}
		f.Close()
		m.Close()
	}
}
