package shim

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/runtime/jsonsocket"
	"github.com/thaw-dev/thaw/runtime/replica"
)

// TestFolderOutside: a loader that names files outside the checkpoint gets no link made, and
// leaves nothing.
func TestFolderOutside(t *testing.T) {
	for _, name := range []string{"../secret", "a/../../secret", "/etc/passwd", ""} {
		f, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		top := t.TempDir()
		dir := filepath.Join(top, "weights", "1")
		if _, err := newOpenFolder(dir, f, []string{name}); err == nil || !strings.Contains(err.Error(), "outside the checkpoint") {
			t.Errorf("%q: %v", name, err)
		}
		if left, _ := filepath.Glob(filepath.Join(top, "weights", "*")); len(left) > 0 {
			t.Errorf("%q leaves %v", name, left)
		}
	}
}

func TestFolder(t *testing.T) {
	otherDir := t.TempDir()
	for name, text := range map[string]string{"config.json": "{}", "a/b/model.safetensors": "weights"} {
		at := filepath.Join(otherDir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *os.File {
		f, err := os.Open(otherDir)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	dir := filepath.Join(t.TempDir(), "weights", "1")
	f := open()
	w, err := newOpenFolder(dir, f, []string{"config.json", "a/b/model.safetensors"})
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	filepath.Walk(w.path(), func(p string, _ os.FileInfo, err error) error {
		rel, _ := filepath.Rel(w.path(), p)
		list = append(list, rel)
		return err
	})
	if !slices.Equal(list, []string{".", "a", "a/b", "a/b/model.safetensors", "config.json"}) {
		t.Error(list)
	}
	if b, err := os.ReadFile(filepath.Join(w.path(), "a/b/model.safetensors")); string(b) != "weights" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	w.close()
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Error("links stay")
	}
	if _, err := f.Stat(); err == nil {
		t.Error("the folder stays open")
	}
	for _, files := range [][]string{nil, {"../x"}, {"/etc/passwd"}, {"missing"}, {"config.json", "config.json"}, {""}} {
		f := open()
		if w, err := newOpenFolder(dir, f, files); err == nil {
			t.Errorf("%q: %s", files, w.path())
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%q: links stay", files)
		}
		if _, err := f.Stat(); err == nil {
			t.Errorf("%q: the folder stays open", files)
		}
	}
}

// What comes open is staged, is there when the loader comes back, and goes when it is
// let go.
func TestStagedOpen(t *testing.T) {
	otherDir := t.TempDir()
	store, err := os.MkdirTemp("", "p") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(store)
	if err := os.WriteFile(filepath.Join(otherDir, "config.json"), []byte("{}"), 0o444); err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(store, SocketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	// Each connection: hello, welcome, stage, staged; then it waits for its end.
	hello, hang := make(chan controlstream.Shim, 2), make(chan struct{}, 2)
	go func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			in := jsonsocket.NewConn(c, controlstream.MaxLine)
			var m controlstream.FromPod
			if in.Receive(&m) == nil && m.Hello != nil {
				hello <- *m.Hello
				in.Send(controlstream.ToPod{Welcome: &controlstream.Welcome{Node: "n", Store: "/node/thaw"}})
			}
			for m = (controlstream.FromPod{}); m.Stage == nil && in.Receive(&m) == nil; {
			}
			if f, err := os.Open(otherDir); err == nil && m.Stage != nil {
				in.Send(controlstream.ToPod{Staged: &controlstream.Staged{ID: m.Stage.ID, Path: "/node/thaw/x", Digest: "sha256:1", Bytes: 2, Files: []string{"config.json"}, Folder: true}}, f)
				f.Close()
			}
			<-hang
			c.Close()
		}
	}()
	o := Options{Sockets: store, Dir: t.TempDir(), LoaderTimeout: time.Minute}
	s := New(o)
	l := s.loader
	stop := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(stop); l.Run(ctx) }()
	defer func() { cancel(); hang <- struct{}{}; <-stop }()
	c, err := l.Stage(ctx, replica.StageRequest{Source: "az://a/b"}, func(_, _ functions.Bytes) {})
	if err != nil {
		t.Fatal(err)
	}
	if h := <-hello; !h.Folders {
		t.Errorf("%+v", h)
	}
	if !strings.HasPrefix(c.Path, filepath.Join(o.Dir, "weights")) {
		t.Errorf("weights in %s", c.Path)
	}
	read := func() {
		t.Helper()
		if b, err := os.ReadFile(filepath.Join(c.Path, "config.json")); string(b) != "{}" || err != nil {
			t.Errorf("%q %v", b, err)
		}
	}
	read()
	hang <- struct{}{} // the next loader gives it again
	<-hello
	read()
	c.Release()
	if _, err := os.Lstat(c.Path); !os.IsNotExist(err) {
		t.Error("it stays")
	}
}
