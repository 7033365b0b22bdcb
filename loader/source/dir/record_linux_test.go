package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

// openFiles is how many files the process has open.
func openFiles(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// makeFolders makes what is listed: a file, a folder that ends with a slash, a link to the word
// behind ->, or a pipe with a bar behind its name.
func makeFolders(t *testing.T, top, list string) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
		name, target, isLink := strings.Cut(strings.TrimSpace(line), " -> ")
		at := filepath.Join(top, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch pipe, isPipe := strings.CutSuffix(at, "|"); {
		case err != nil:
		case isLink:
			err = os.Symlink(strings.ReplaceAll(target, "TOP", top), at)
		case isPipe:
			err = syscall.Mkfifo(pipe, 0o600)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		default:
			if err = os.WriteFile(at, []byte(name), 0o644); err == nil {
				err = os.Chtimes(at, time.Time{}, time.Date(2026, 11, 29, 8, 0, 0, 5, time.UTC))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRecordOfFolders: what is planned of each folder, with links and pipes of all kinds, what
// is read of it, and that nothing stays open.
func TestRecordOfFolders(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	makeFolders(t, top, `
		outside/secret.json
		plain/config.json
		plain/sub/a.json
		plain/sub/deep/b.json
		plain/.hidden/c.json
		plain/README.md
		plain/empty/
		links/a.json
		links/b.json -> a.json
		links/c.json -> TOP/links/a.json
		links/sub/d.json
		links/again -> sub
		links/.hidden -> sub
		links/.e.json -> a.json
		links/loop -> .
		links/sub/up -> ..
		out/README.md -> ../outside/secret.json
		out/notes.txt -> ../outside/secret.json
		out/folder -> ../outside
		out/other.json -> ../outside/../out/a.json
		out/a.json
		need/config.json -> ../outside/secret.json
		dead/README.md -> none
		dead/notes.txt -> none
		pipes/README.md|
		pipes/notes.txt|
		pipes/a.json
		shards/m-00001-of-00002.gguf
		shards/m-00002-of-00002.gguf -> ../outside/secret.json
		half/m-00001-of-00002.gguf
		whole/m-00001-of-00002.gguf
		whole/m-00002-of-00002.gguf
		linked -> whole
		one.gguf -> whole/m-00001-of-00002.gguf
		hub/models--o--r/refs/main
		hub/models--o--r/blobs/1
		hub/models--o--r/blobs/2/3
		hub/models--o--r/blobs2/4
		hub/models--o--r/snapshots/rev/a.json -> ../../blobs/1
		hub/models--o--r/snapshots/rev/b.txt -> ../../blobs/2/3
		hub/models--o--r/snapshots/rev/c.txt -> ../../blobs2/4
		hub/models--o--r/snapshots/rev/d.txt -> ../../blobs/none
		hub/models--o--r/snapshots/rev/e.txt -> ../../blobs/2
		hub/models--o--r/snapshots/rev/f.txt -> ../rev2/f.txt
		hub/models--o--r/snapshots/rev/g.txt -> ../../refs/main
		hub/models--o--r/snapshots/rev/sub/h.json -> ../../../blobs/1
		hub/models--o--r/snapshots/rev2/f.txt
		hub/models--o--r/snapshots/rev/self.txt -> .
		hub/models--o--r/other/rev/i.txt -> ../../blobs/1
		hub/other/snapshots/rev/j.txt -> ../../blobs/1
		hub/other/blobs/1
		models--x/k.json
		other/refs/main
		other/a.json`)
	before := openFiles(t)
	var out strings.Builder
	plain := func(s string) string { return strings.ReplaceAll(s, top, "TOP") }
	for _, location := range []string{
		"plain", "plain/", "links", "out", "need", "dead", "pipes", "shards", "shards/m-00001-of-00002.gguf", "half/m-00001-of-00002.gguf", "whole/m-00002-of-00002.gguf", "linked", "one.gguf", "hub/models--o--r",
		"hub/models--o--r/snapshots", "hub/models--o--r/snapshots/rev", "hub/models--o--r/snapshots/rev/a.json", "hub/models--o--r/other/rev", "hub/other/snapshots/rev", "models--x", "other", "plain/config.json", "plain/empty", "pipes/README.md", "none", "plain/config.json/x",
	} {
		first := ""
		for _, also := range []source.Globs{nil, {"README.md"}} {
			var found strings.Builder
			plan, err := (Source{}).Plan(t.Context(), "file://"+filepath.Join(top, location), also)
			fmt.Fprintf(&found, "folder %s, %v\n", plain(Source{}.Folder("file://"+filepath.Join(top, location))), plain(fmt.Sprint(err)))
			for _, l := range plan.Left {
				fmt.Fprintf(&found, "\tleft %s: %s\n", l.Name, plain(l.Reason))
			}
			for _, f := range plan.Files {
				body, err := (Source{}).Read(t.Context(), f, 1, 3)
				read := fmt.Sprint(err)
				if err == nil {
					b, _ := io.ReadAll(body)
					body.Close()
					read = fmt.Sprintf("read %q", b)
				}
				changed := f
				changed.Version = "another"
				_, err = (Source{}).Read(t.Context(), changed, 0, 1)
				fmt.Fprintf(&found, "\t%s %s at %s: %s; of another version %s %v\n", f.Name, f.Version, plain(f.Ref), plain(read),
					source.KindOf(err), plain(fmt.Sprint(err)))
			}
			if found.String() != first {
				fmt.Fprintf(&out, "%s %q: %s", location, also, &found)
			}
			first = found.String()
			if after := openFiles(t); after != before {
				t.Errorf("%s: %d files are open, %d were", location, after, before)
				before = after
			}
		}
	}
	sourcetest.Compare(t, "folders.txt", out.String())
}

// TestBoundOfEntries: as many entries as may be are listed, folders among them, and no more.
func TestBoundOfEntries(t *testing.T) {
	top := t.TempDir()
	makeFolders(t, top, "a.json\nsub/b.json")
	p, err := openFolder(top)
	if err != nil {
		t.Fatal(err)
	}
	defer p.root.Close()
	for before, want := range map[int]source.Kind{maxEntries - 3: "", maxEntries - 2: source.Refused} {
		l := listing{openedFolder: p, location: "file://" + top, folder: top, count: before}
		if err := l.list(t.Context(), p.sub, "", nil); source.KindOf(err) != want || want != "" && !strings.Contains(err.Error(), "20000 files") {
			t.Errorf("3 entries behind %d: %v", before, err)
		}
	}
}

// TestWritesAndRefusals: what is written may be read by all users, as engines run under others;
// errors say why nothing is written or read, and nothing stays open.
func TestWritesAndRefusals(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "m")
	makeFolders(t, folder, "a.json\nclosed/b.json")
	for d := folder; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	defer syscall.Umask(syscall.Umask(0o022))
	before := openFiles(t)
	write := func(ctx context.Context, folder string) error {
		return Source{}.Write(ctx, "file://"+folder, "x.tar", bytes.NewReader([]byte("abc")), 3)
	}
	if err := write(t.Context(), folder); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(folder, "x.tar")); err != nil || fi.Mode() != 0o644 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if err := write(t.Context(), filepath.Join(folder, "a.json")); err != nil { // beside the file that is the source
		t.Error(err)
	}
	left, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	cancel(over)
	plan, err := (Source{}).Plan(t.Context(), "file://"+folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Source{}).Read(left, plan.Files[0], 0, 1); err != over {
		t.Errorf("read of a caller that left: %v", err)
	}
	if _, err := (Source{}).Plan(left, "file://"+folder, nil); err != over {
		t.Errorf("plan of a caller that left: %v", err)
	}
	if err := write(left, folder); !errors.Is(err, over) {
		t.Errorf("write of a caller that left: %v", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getuid() == 0 { // root may do everything
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setfsuid(0)
	}
	i := slices.IndexFunc(plan.Files, func(f source.File) bool { return f.Name == "a.json" })
	if err := os.Chmod(filepath.Join(folder, "a.json"), 0); err != nil && os.Getuid() != 0 {
		t.Fatal(err)
	} else if err != nil { // of the owner alone
		syscall.Setfsuid(0)
		os.Chmod(filepath.Join(folder, "a.json"), 0)
		syscall.Setfsuid(65534)
	}
	if _, err := (Source{}).Read(t.Context(), plan.Files[i], 0, 1); source.KindOf(err) != source.Denied {
		t.Errorf("read of a file that may not be read: %v", err)
	}
	if os.Getuid() == 0 {
		if err := write(t.Context(), folder); source.KindOf(err) != source.Denied {
			t.Errorf("write to a folder that may not be written: %v", err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}
