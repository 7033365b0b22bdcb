package durable

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for _, c := range []struct {
		data string
		perm os.FileMode
	}{{"one", 0o600}, {"", 0o644}, {"a longer text", 0o600}} {
		if err := WriteFile(path, []byte(c.data), c.perm); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != c.data {
			t.Fatalf("holds %q (%v), want %q", b, err, c.data)
		}
		if info, _ := os.Stat(path); info.Mode() != c.perm {
			t.Errorf("mode %v, want %v", info.Mode(), c.perm)
		}
	}
	wantAlone(t, dir, "a")
}

// The temporary file is flushed whole before it gets its name, and the folder after that.
// If a call fails, none of the later ones is made.
func TestWriteFileOrder(t *testing.T) {
	for failing, want := range map[string]string{"": "sync rename syncDir", "sync": "sync", "rename": "sync rename", "syncDir": "sync rename syncDir"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "a")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		var made []string
		call := func(name, content string) error {
			made = append(made, name)
			if b, err := os.ReadFile(path); err != nil || string(b) != content {
				t.Errorf("at %s the file holds %q (%v), want %q", name, b, err, content)
			}
			if name == failing {
				return errors.New(name)
			}
			return nil
		}
		err := calls{
			sync: func(f *os.File) error {
				if b, err := os.ReadFile(f.Name()); err != nil || string(b) != "new content" {
					t.Errorf("flushed is %q (%v)", b, err)
				}
				return call("sync", "old")
			},
			rename: func(from, to string) error { return errors.Join(call("rename", "old"), os.Rename(from, to)) },
			syncDir: func(at string) error {
				if filepath.Clean(at) != dir {
					t.Errorf("flushed is the folder %s", at)
				}
				return call("syncDir", "new content")
			},
		}.writeFile(path, []byte("new content"), 0o600)
		if (err != nil) != (failing != "") || strings.Join(made, " ") != want {
			t.Errorf("%q fails: calls %q, %v", failing, made, err)
		}
	}
}

// A failed replacement leaves the target and removes the temporary file.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.MkdirAll(filepath.Join(path, "inside"), 0o755); err != nil {
		t.Fatal(err)
	}
	if WriteFile(path, []byte("x"), 0o600) == nil {
		t.Error("a folder that is not empty was replaced")
	}
	if WriteFile(filepath.Join(dir, "none", "a"), nil, 0o600) == nil {
		t.Error("a file was written into a folder that does not exist")
	}
	wantAlone(t, dir, "a")
}

// Writers of one path leave one of their contents, whole.
func TestWriteFileConcurrently(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	var writers sync.WaitGroup
	for _, c := range "abcd" {
		writers.Go(func() {
			data := make([]byte, 1<<12)
			for i := range data {
				data[i] = byte(c)
			}
			for range 20 {
				if err := WriteFile(path, data, 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	b, err := os.ReadFile(path)
	if err != nil || len(b) != 1<<12 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	for _, c := range b {
		if c != b[0] {
			t.Fatal("two writers' bytes are mixed")
		}
	}
	wantAlone(t, dir, "a")
}

func wantAlone(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("the folder holds %v (%v), want %s alone", entries, err, name)
	}
}
