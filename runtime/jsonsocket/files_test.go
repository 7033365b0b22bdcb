package jsonsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// socketPair returns both ends of a Unix connection.
func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "l")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if b, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestFolders: folders arrive with their own lines, in order, between lines without one,
// also if a line is longer than one read.
func TestFolders(t *testing.T) {
	a, b := socketPair(t)
	const n = 40
	var dirs []string
	for i := range n {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "who"), fmt.Append(nil, i), 0o600); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	long := strings.Repeat("x", 300_000)
	said := make(chan error, 1)
	out := NewConn(a, bound)
	go func() {
		said <- func() error {
			for i, dir := range dirs {
				f, err := os.Open(dir)
				if err != nil {
					return err
				}
				defer f.Close()
				m := message{ID: i, Folder: true}
				if i%7 == 0 {
					m.Text = long
				}
				if err := out.Send(message{ID: i}); err != nil {
					return err
				}
				if err := out.Send(m, f); err != nil {
					return err
				}
			}
			return a.CloseWrite()
		}()
	}()
	l := NewConn(b, bound)
	l.AcceptFiles()
	defer l.CloseFiles()
	for i := 0; i < n; {
		var m message
		if err := l.Receive(&m); err != nil {
			t.Fatal(err)
		}
		if !m.Folder {
			continue
		}
		f, err := l.File()
		if err != nil || m.ID != i {
			t.Fatalf("%d of %d: %v", m.ID, i, err)
		}
		who, err := os.ReadFile(filepath.Join("/proc/self/fd", fmt.Sprint(f.Fd()), "who"))
		if errors.Is(err, os.ErrNotExist) {
			if _, none := os.Stat("/proc/self/fd"); none != nil {
				who, err = fmt.Append(nil, i), nil // a system without /proc
			}
		}
		if err != nil || string(who) != fmt.Sprint(i) {
			t.Errorf("folder %d is %q's, %v", i, who, err)
		}
		f.Close()
		i++
	}
	if err := <-said; err != nil {
		t.Error(err)
	}
	if _, err := l.File(); !errors.Is(err, ErrLine) {
		t.Errorf("a folder that did not come: %v", err)
	}
}

// TestFoldersUnasked: more descriptors than announced end the connection.
func TestFoldersUnasked(t *testing.T) {
	a, b := socketPair(t)
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := NewConn(b, bound)
	l.AcceptFiles()
	defer l.CloseFiles()
	out := NewConn(a, bound)
	for i := range 10 * maxFiles {
		if err := out.Send(message{}, f); err != nil {
			break // the other end has closed
		}
		var m message
		if err := l.Receive(&m); err != nil {
			if i < maxFiles {
				t.Errorf("after %d: %v", i, err)
			}
			return
		}
	}
	t.Error("they are all taken")
}
