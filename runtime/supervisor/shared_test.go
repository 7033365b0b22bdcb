package supervisor

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

func TestScratch(t *testing.T) {
	t.Parallel()
	h := start(t, time.Minute)
	exe, _ := os.Executable()
	root := ScratchRoot(h.dir)
	spawn := func(id string, argv ...string) (*Child, error) {
		return h.Spawn(t.Context(), Process{ID: id, Argv: argv, Env: []string{fastRaceExit}, Scratch: Scratch(root, id)})
	}
	c, err := spawn("r1", exe, "test-run", "wait")
	if err != nil {
		t.Fatal(err)
	}
	dir := Scratch(root, "r1")
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Fatal(st, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "socket"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if len(dir)+37 > 103 {
		t.Errorf("%s is too long for sockets in it", dir)
	}
	h.Kill(t.Context(), "r1")
	waitForExit(t, c)
	if _, err := os.Stat(dir); err == nil {
		t.Error("it is left when the exit is told")
	}
	if _, err := spawn("r2", "/no/such/program"); err == nil {
		t.Fatal("spawned")
	}
	if _, err := os.Stat(Scratch(root, "r2")); err == nil {
		t.Error("left of one that was never started")
	}
	// With the supervisor everything goes.
	if err := os.MkdirAll(Scratch(root, "r3"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := h.End(ctx, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the root is gone", func() bool { _, err := os.Stat(root); return err != nil })
}

func TestScratchRoot(t *testing.T) {
	if got := ScratchRoot("/data/supervisor"); got != "/data/supervisor/tmp" {
		t.Error(got)
	}
	t.Setenv("TMPDIR", "/tmp")
	long := ScratchRoot("/data/" + strings.Repeat("x", 80))
	if !strings.HasPrefix(long, "/tmp/thaw-") || len(Scratch(long, "r1"))+37 > 103 || long == ScratchRoot("/data/"+strings.Repeat("y", 80)) {
		t.Error(long)
	}
	// A folder that is not ours is not used.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"file", "link"} {
		if makeScratch(filepath.Join(dir, root, "r1"), nil) == nil {
			t.Errorf("made in %s", root)
		}
	}
}

// What a killed group leaves in shared memory is removed; what others use stays.
func TestSharedMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no /dev/shm")
	}
	name := func(s string) string {
		return "thaw-test-" + s + "-" + filepath.Base(t.TempDir()) + time.Now().Format("150405.000000")
	}
	ours, child, other := name("a"), name("b"), name("c")
	path := func(n string) string { return "/dev/shm/" + n }
	for _, n := range []string{ours, child, other} {
		t.Cleanup(func() { os.Remove(path(n)) })
	}
	h := start(t, time.Minute)
	sh := func(id, script string) *Child {
		c, err := h.Spawn(t.Context(), Process{ID: id, Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin:/usr/bin"}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	exists := func(n string) bool { _, err := os.Stat(path(n)); return err == nil }
	// The leader uses one, a child of its another.
	c := sh("r1", "exec 3>"+path(ours)+"; (exec 4>"+path(child)+"; sleep 600) & echo up; sleep 600")
	sh("r2", "exec 3>"+path(other)+"; echo up; sleep 600")
	testkit.Eventually(t, "all are there", func() bool { return exists(ours) && exists(child) && exists(other) })
	testkit.Eventually(t, "the supervisor knows whose they are", func() bool {
		b, _ := os.ReadFile(filepath.Join(h.dir, sharedNote))
		return strings.Contains(string(b), ours) && strings.Contains(string(b), child) && strings.Contains(string(b), other)
	})
	if err := syscall.Kill(-c.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitForExit(t, c)
	if exists(ours) || exists(child) || !exists(other) {
		t.Errorf("left: leader's %v, child's %v; another process's %v", exists(ours), exists(child), exists(other))
	}
	h.Kill(t.Context(), "r2")
	testkit.Eventually(t, "the other's is gone", func() bool { return !exists(other) })

	// Killed right after it was made: no process uses it, so it is removed.
	quickly := "psm_" + name("d")
	t.Cleanup(func() { os.Remove(path(quickly)) })
	c = sh("r3", "echo x > "+path(quickly)+"; kill -9 $$")
	waitForExit(t, c)
	testkit.Eventually(t, "it is gone", func() bool { return !exists(quickly) })
}

// The supervisor after one that was killed removes what its engines left.
func TestSharedMemoryOfAPredecessor(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /dev/shm")
	}
	dir := t.TempDir()
	name := func(s string) string { return "thaw-test-" + s + time.Now().Format("150405.000000000") }
	left, used, other := name("left"), name("used"), name("other")
	note := map[string]uint64{}
	for _, n := range []string{left, used, other} {
		if err := os.WriteFile("/dev/shm/"+n, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove("/dev/shm/" + n) })
		note[n] = shmInode(n)
	}
	note[other]++ // another file of that name by now
	f, err := os.Open("/dev/shm/" + used)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, _ := json.Marshal(note)
	for _, content := range [][]byte{[]byte("{"), b} {
		if err := os.WriteFile(filepath.Join(dir, sharedNote), content, 0o600); err != nil {
			t.Fatal(err)
		}
		removePredecessorShared(dir)
	}
	removePredecessorShared(dir)
	if shmInode(left) != 0 || shmInode(used) == 0 || shmInode(other) == 0 {
		t.Errorf("left %d, used %d, other %d", shmInode(left), shmInode(used), shmInode(other))
	}
}
