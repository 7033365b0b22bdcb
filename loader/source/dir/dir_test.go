package dir_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/source/sourcetest"
)

func put(t *testing.T, folder, name string, body []byte) {
	t.Helper()
	p := filepath.Join(folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, body, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Location {
		folder := t.TempDir()
		return sourcetest.Location{
			Source: dir.Source{}, Location: "file://" + folder, Nowhere: "file://" + filepath.Join(folder, "none"),
			Put: func(t *testing.T, name string, body []byte) { put(t, folder, name, body) },
			Delete: func(t *testing.T, name string) {
				if err := os.Remove(filepath.Join(folder, name)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name     string
		make     func(t *testing.T, folder string) error
		kind     source.Kind
		wantText string
	}{
		{"a link out of the folder", func(t *testing.T, f string) error { return os.Symlink("/etc/passwd", filepath.Join(f, "config.json")) }, source.Refused, "is a link"},
		{"a link inside", func(t *testing.T, f string) error {
			put(t, f, "a.json", nil)
			return os.Symlink("a.json", filepath.Join(f, "b.json"))
		}, source.Refused, "is a link"},
		{"a link that is not used", func(t *testing.T, f string) error {
			put(t, f, "a.json", nil)
			return os.Symlink("/etc/passwd", filepath.Join(f, "README.md"))
		}, "", ""},
		{"a folder called like a file", func(t *testing.T, f string) error { return os.Mkdir(filepath.Join(f, "config.json"), 0o755) }, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := t.TempDir()
			if err := tc.make(t, folder); err != nil {
				t.Fatal(err)
			}
			_, err := dir.Source{}.Plan(t.Context(), "file://"+folder, nil)
			if source.KindOf(err) != tc.kind || err != nil && !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("error %v, want kind %q", err, tc.kind)
			}
		})
	}
	t.Run("a file for a folder", func(t *testing.T) {
		folder := t.TempDir()
		put(t, folder, "x.gguf", nil)
		if _, err := (dir.Source{}).Plan(t.Context(), "file://"+filepath.Join(folder, "x.gguf"), nil); source.KindOf(err) != source.BadSource {
			t.Errorf("error %v", err)
		}
	})
}

// What is no plain file is refused by name, and never waited for.
func TestDevices(t *testing.T) {
	folder := t.TempDir()
	put(t, folder, "model.gguf", []byte("GGUF"))
	plan, err := dir.Source{}.Plan(t.Context(), "file://"+folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "model.gguf")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(folder, "model.gguf"), 0o600); err != nil {
		sourcetest.Missing(t, "no pipes here:", err)
	}
	if _, err := (dir.Source{}).Plan(t.Context(), "file://"+folder, nil); source.KindOf(err) != source.Refused {
		t.Errorf("a pipe: %v", err)
	}
	if f, err := (dir.Source{}).Open(plan.Files[0]); err == nil {
		f.Close()
		t.Error("a pipe was opened")
	}
}

func TestLinkPutInAfterThePlan(t *testing.T) {
	folder := t.TempDir()
	put(t, folder, "config.json", []byte("{}"))
	plan, err := dir.Source{}.Plan(t.Context(), "file://"+folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "config.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(folder, "config.json")); err != nil {
		t.Fatal(err)
	}
	if f, err := (dir.Source{}).Open(plan.Files[0]); err == nil {
		f.Close()
		t.Error("opened")
	}
}

// What spec.files names is looked at as what always is staged; the rest is not.
func TestFilesBesideIndex(t *testing.T) {
	folder := t.TempDir()
	put(t, folder, "model.gguf", []byte("GGUF"))
	if err := os.Symlink("/etc/passwd", filepath.Join(folder, "code.py")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(folder, "etc")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		also source.Globs
		kind source.Kind
	}{{nil, ""}, {source.Globs{"*.txt"}, ""}, {source.Globs{"*.py"}, source.Refused}, {source.Globs{"*"}, source.Refused}, {source.Globs{"etc/passwd"}, ""}} {
		plan, err := dir.Source{}.Plan(t.Context(), "file://"+folder, tc.also)
		if source.KindOf(err) != tc.kind {
			t.Errorf("%v: %v", tc.also, err)
			continue
		}
		if err == nil {
			if got, err := source.Select("s", plan.Files, tc.also); err != nil || len(got) != 1 {
				t.Errorf("%v: %+v, %v", tc.also, got, err)
			}
		}
	}
}

func TestHubCache(t *testing.T) {
	repo := filepath.Join(t.TempDir(), "models--org--name")
	put(t, repo, "blobs/abc", []byte("{}"))
	snapshot := filepath.Join(repo, "snapshots", "rev")
	put(t, repo, "snapshots/rev/plain.json", []byte("[]"))
	if err := os.Symlink("../../blobs/abc", filepath.Join(snapshot, "config.json")); err != nil {
		t.Fatal(err)
	}
	plan, err := dir.Source{}.Plan(t.Context(), "file://"+snapshot, nil)
	if err != nil || len(plan.Files) != 2 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	for _, f := range plan.Files {
		r, err := (dir.Source{}).Open(f)
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	for link, kind := range map[string]source.Kind{"../../blobs/gone": source.Missing, "../../../../secret": source.Broken, "/etc/passwd": source.Broken} {
		name := filepath.Join(snapshot, "x.json")
		_ = os.Remove(name)
		if err := os.Symlink(link, name); err != nil {
			t.Fatal(err)
		}
		if _, err := (dir.Source{}).Plan(t.Context(), "file://"+snapshot, nil); source.KindOf(err) != kind {
			t.Errorf("link to %s: error %v, want kind %q", link, err, kind)
		}
	}
}
