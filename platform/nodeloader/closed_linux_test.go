package nodeloader

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// closed configures a lab whose store is closed to pods.
func closed(o *Options, storeOptions *nodestore.Options, mem *sourcetest.Memory) {
	o.Private, storeOptions.Private = true, true
	aModel(mem, "mem://models/theirs", 50_000, 2)
}

// comes connects a pod that accepts folders.
func (l *lab) comes(uid string) *caller {
	l.t.Helper()
	p := l.dial(uid)
	p.AcceptFiles()
	l.t.Cleanup(p.CloseFiles)
	p.send(controlstream.FromPod{Hello: &controlstream.Shim{PodIP: "10.0.0.7", Port: 8080, Version: "v1", Folders: true}})
	if m := p.receive(); m.Welcome == nil {
		l.t.Fatalf("welcome: %+v", m)
	}
	return p
}

// TestClosedStore: a user other than the loader's cannot read the store, and through a
// folder from the socket it reads that checkpoint's files and nothing else.
func TestClosedStore(t *testing.T) {
	l := newLab(t, closed)
	other := l.comes("11111111-1111-1111-1111-111111111111")
	other.want(1, "mem://models/theirs")
	theirs := other.staged(1)
	if f, err := other.File(); err != nil {
		t.Fatal(err)
	} else {
		defer f.Close()
	}
	p := l.comes("22222222-2222-2222-2222-222222222222")
	p.want(1, modelLocation)
	got := p.staged(1)
	if !got.Folder || !slices.Contains(got.Files, "config.json") {
		t.Fatalf("%+v", got)
	}
	f, err := p.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	// Run as the pod's user, with the folder at descriptor 3.
	if os.Getuid() != 0 {
		testkit.Missing(t, "to be another user takes root")
	}
	if err := os.Chmod(l.dir, 0o755); err != nil { // pods can enter a node's folder, unlike MkdirTemp's
		t.Fatal(err)
	}
	sh := func(script string) (string, error) {
		c := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		c.ExtraFiles = []*os.File{f}
		c.Dir = "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		b, err := c.CombinedOutput()
		return string(b), err
	}
	// Permitted: the checkpoint's files and the socket.
	if out, err := sh(`cat /proc/self/fd/3/config.json && cmp /proc/self/fd/3/model.safetensors /proc/self/fd/3/model.safetensors && test -S ` + filepath.Join(l.dir, SocketPath)); err != nil || !strings.Contains(out, "llama") {
		t.Fatalf("its own weights: %v\n%s", err, out)
	}
	digest, mine := filepath.Base(filepath.Dir(theirs.Path)), filepath.Base(filepath.Dir(got.Path))
	for description, script := range map[string]string{
		"the store's list":              "ls " + l.dir + "/store/checkpoints",
		"the store":                     "ls " + l.dir + "/store",
		"another's weights":             "cat " + theirs.Path + "/model.safetensors",
		"its own by their path":         "cat " + got.Path + "/model.safetensors",
		"what is around its own":        "ls /proc/self/fd/3/..",
		"its manifest":                  "cat /proc/self/fd/3/../manifest.json",
		"other checkpoints":             "ls /proc/self/fd/3/../..",
		"another's by way of its own":   "cat /proc/self/fd/3/../../" + digest + "/files/model.safetensors",
		"its own by way of itself":      "cat /proc/self/fd/3/../../" + mine + "/files/config.json",
		"blobs":                         "ls /proc/self/fd/3/../../../blobs/tree",
		"what is held":                  "cat " + l.dir + "/" + leasesFile,
		"a file of its own, to write":   "echo >> /proc/self/fd/3/config.json",
		"a file of its own, to replace": "echo > /proc/self/fd/3/config.json",
		"a new file":                    "echo > /proc/self/fd/3/new",
		"a file less":                   "rm -f /proc/self/fd/3/config.json",
		"the modes":                     "chmod 777 /proc/self/fd/3",
		"the lock of the folder":        "cat " + l.dir + "/loader.lock",
	} {
		if out, err := sh(script); err == nil {
			t.Errorf("%s: it can: %s\n%s", description, script, out)
		} else if !strings.Contains(strings.ToLower(out), "denied") && !strings.Contains(out, "not permitted") &&
			!strings.Contains(out, "No such file") {
			t.Errorf("%s: refused for another reason: %v %s", description, err, out)
		}
	}
	// Each folder is closed by itself, for one that is bind-mounted elsewhere (a subPath) is
	// not below the others there; and what pods mount holds the socket alone.
	for _, at := range []string{"store", "store/blobs", "store/blobs/tree", "store/blobs/tree/*", "store/checkpoints", "store/checkpoints/*", "store/sources", "store/known", "store/parts", "store/coming", "store/trash"} {
		found, err := filepath.Glob(filepath.Join(l.dir, at))
		if err != nil || len(found) == 0 {
			t.Errorf("%s: %v %v", at, found, err)
		}
		for _, path := range found {
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v %v", path, st, err)
			}
		}
	}
	if list, err := os.ReadDir(filepath.Join(l.dir, filepath.Dir(SocketPath))); err != nil || len(list) != 1 ||
		list[0].Type() != fs.ModeSocket {
		t.Errorf("pods mount %v, %v", list, err)
	}
	// The leases file is written by another goroutine and may not exist yet; then its mode
	// is not checked.
	if st, err := os.Stat(filepath.Join(l.dir, leasesFile)); err == nil && st.Mode().Perm()&0o077 != 0 {
		t.Errorf("%s is %s", leasesFile, st.Mode())
	}
}

// TestFoldersAreClosedOnOpen: a store that an earlier loader left open is closed, and a shim
// that cannot receive folders gets an error with the fix.
func TestFoldersAreClosedOnOpen(t *testing.T) {
	dir := folder(t)
	l := restart(t, dir, nil)
	p := l.pod("11111111-1111-1111-1111-111111111111")
	p.want(1, modelLocation)
	path := p.staged(1).Path
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]fs.FileMode{filepath.Join(dir, "store"): 0o755, filepath.Dir(path): 0o755} {
		if st, err := os.Stat(at); err != nil || st.Mode().Perm() != want {
			t.Fatalf("%s: %v %v", at, st, err)
		}
	}
	l = restart(t, dir, closed)
	for at, want := range map[string]fs.FileMode{filepath.Join(dir, "store"): 0o700, filepath.Dir(path): 0o700, path: 0o755} {
		if st, err := os.Stat(at); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v", at, st, err)
		}
	}
	old := l.pod("11111111-1111-1111-1111-111111111111")
	old.want(1, modelLocation)
	if m, _ := old.answer(1); m.Failed == nil || m.Failed.Kind != controlstream.KindRefused || m.Failed.Fix == "" {
		t.Errorf("%+v", m)
	}
}

// TestFoldersAreClosed: a folder that the shim does not take is closed.
func TestFoldersAreClosed(t *testing.T) {
	l := newLab(t, closed)
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range list {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasSuffix(to, "/files") {
				n++
			}
		}
		return n
	}
	for i := range 20 {
		p := l.comes(fmt.Sprintf("%08d-1111-1111-1111-111111111111", i))
		p.want(1, modelLocation)
		p.staged(1)
		p.CloseFiles()
		p.Close()
	}
	l.eventually("no folder is open", func() bool { return count() == 0 })
}
