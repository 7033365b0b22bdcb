package dir_test

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
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
		{"a link out of the folder", func(t *testing.T, f string) error { return os.Symlink("/etc/passwd", filepath.Join(f, "config.json")) }, source.Refused, `is a link that leads out of the folder, to "/etc/passwd"`},
		{"a link out of the folder, of a tokenizer in a folder", func(t *testing.T, f string) error {
			put(t, f, "tok/a.json", nil)
			return os.Symlink("../../other/tokenizer.model", filepath.Join(f, "tok", "tokenizer.model"))
		}, source.Missing, "cp -aL"},
		{"dangling weights", func(t *testing.T, f string) error {
			return os.Symlink("../../blobs/0123", filepath.Join(f, "model-00001-of-00002.safetensors"))
		}, source.Missing, `is a link to "../../blobs/0123", which is not there: there is no "`},
		{"a dangling tokenizer", func(t *testing.T, f string) error {
			return os.Symlink("gone", filepath.Join(f, "tokenizer_config.json"))
		}, source.Missing, "cp -aL"},
		{"weights that link to themselves", func(t *testing.T, f string) error {
			return os.Symlink("model.gguf", filepath.Join(f, "model.gguf"))
		}, source.Broken, "model.gguf: is a link that leads back to itself (copy the folder with cp -aL"},
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
	t.Run("a folder of the system", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "model")
		if err := os.Symlink("/", link); err != nil {
			t.Fatal(err)
		}
		for _, folder := range []string{"/", "//", "/proc", "/proc/self", "/sys", "/dev", link} {
			_, err := dir.Source{}.Plan(t.Context(), "file://"+folder, nil)
			if source.KindOf(err) != source.BadSource || !strings.Contains(err.Error(), "is a folder of the system, not of a model") {
				t.Errorf("%s: %v", folder, err)
			}
		}
	})
	t.Run("a file for a folder", func(t *testing.T) {
		folder := t.TempDir()
		for _, name := range []string{"x.gguf", "config.json", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "t-00001-of-00003.gguf", "t-00003-of-00003.gguf", "model.onnx"} {
			put(t, folder, name, []byte("GGUF"))
		}
		for name, want := range map[string]string{"x.gguf": "x.gguf", "s-00001-of-00002.gguf": "s-00001-of-00002.gguf s-00002-of-00002.gguf", "s-00002-of-00002.gguf": "s-00001-of-00002.gguf s-00002-of-00002.gguf", "model.onnx": "model.onnx", "t-00001-of-00003.gguf": ""} {
			location := "file://" + filepath.Join(folder, name)
			plan, err := dir.Source{}.Plan(t.Context(), location, nil)
			var got []string
			for _, f := range plan.Files {
				got = append(got, f.Name)
				if r, err := (dir.Source{}).Open(f); err != nil {
					t.Error(err)
				} else {
					r.Close()
				}
			}
			if want == "" && (source.KindOf(err) != source.Missing || !strings.Contains(err.Error(), "t-00002-of-00003.gguf")) ||
				want != "" && err != nil || strings.Join(got, " ") != want {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			if at := (dir.Source{}).Folder(location); at != folder {
				t.Errorf("%s is in %s", name, at)
			}
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
		testkit.Missing(t, "no pipes here:", err)
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

// A file that is rewritten after the plan is another version, also within the same second and
// with as many bytes.
func TestRewrittenWithinASecond(t *testing.T) {
	folder := t.TempDir()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	write := func(body string, after time.Duration) {
		put(t, folder, "config.json", []byte(body))
		if err := os.Chtimes(filepath.Join(folder, "config.json"), at.Add(after), at.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	write("old", 100*time.Millisecond)
	plan, err := dir.Source{}.Plan(t.Context(), "file://"+folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		body  string
		after time.Duration
		kind  source.Kind
	}{{"old", 100 * time.Millisecond, ""}, {"new", 900 * time.Millisecond, source.Changed}} {
		write(x.body, x.after)
		f, err := dir.Source{}.Open(plan.Files[0])
		if err == nil {
			f.Close()
		}
		if source.KindOf(err) != x.kind {
			t.Errorf("%s, %s after the second: %v", x.body, x.after, err)
		}
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
	}{{nil, ""}, {source.Globs{"*.txt"}, ""}, {source.Globs{"*.py"}, source.Refused}, {source.Globs{"*"}, ""}, {source.Globs{"etc/passwd"}, ""}} {
		plan, err := dir.Source{}.Plan(t.Context(), "file://"+folder, tc.also)
		if source.KindOf(err) != tc.kind {
			t.Errorf("%v: %v", tc.also, err)
			continue
		}
		if err == nil {
			if got, _, err := source.Select("s", plan.Files, tc.also); err != nil || len(got) != 1 {
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
	short := filepath.Join(t.TempDir(), "short") // a link to the snapshot itself
	if err := os.Symlink(snapshot, short); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{snapshot, short} {
		plan, err := dir.Source{}.Plan(t.Context(), "file://"+at, nil)
		if err != nil || len(plan.Files) != 2 {
			t.Fatalf("%s: plan %+v, %v", at, plan, err)
		}
		for _, f := range plan.Files {
			r, err := (dir.Source{}).Open(f)
			if err != nil {
				t.Fatal(err)
			}
			r.Close()
		}
	}
	put(t, repo, "refs/main", []byte("rev\n"))
	if _, err := (dir.Source{}).Plan(t.Context(), "file://"+repo, nil); source.KindOf(err) != source.BadSource ||
		!strings.Contains(err.Error(), "snapshots/rev below it") {
		t.Errorf("the repository itself: %v", err)
	}
	for link, kind := range map[string]source.Kind{"../../blobs/gone": source.Missing, "../../../../secret": source.Missing, "/etc/passwd": source.Refused, "../../refs/main": source.Refused, "../../blobs": source.Refused} {
		name := filepath.Join(snapshot, "tokenizer.json")
		_ = os.Remove(name)
		if err := os.Symlink(link, name); err != nil {
			t.Fatal(err)
		}
		if _, err := (dir.Source{}).Plan(t.Context(), "file://"+snapshot, nil); source.KindOf(err) != kind {
			t.Errorf("link to %s: error %v, want kind %q", link, err, kind)
		}
	}
}

// Links that stay inside are followed, to files and to folders, and end.
func TestLinksInside(t *testing.T) {
	folder := t.TempDir()
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, folder, "real/model.safetensors", []byte("weights"))
	put(t, folder, "real/deep/x.json", []byte("{}"))
	link("real/model.safetensors", "model.safetensors")
	link(filepath.Join(folder, "real/deep/x.json"), "absolute.json")
	link("real/deep", "1_Pooling")
	link(".", "real/deep/again")
	link(".", "self")
	// As Kubernetes mounts a ConfigMap.
	put(t, folder, "..2024_01_02/config.json", []byte("{ }"))
	put(t, folder, "..2024_01_02/tok/tokenizer.json", []byte("{  }"))
	link("..2024_01_02", "..data")
	link("..data/config.json", "config.json")
	link("..data/tok", "tok")
	link("gone.json", "side.json")
	link("/etc/hostname", "notes.txt")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a link that is followed round and round
	defer cancel()
	plan, err := dir.Source{}.Plan(ctx, "file://"+folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"real/model.safetensors": "weights", "model.safetensors": "weights", "absolute.json": "{}", "1_Pooling/x.json": "{}", "real/deep/x.json": "{}", "config.json": "{ }", "tok/tokenizer.json": "{  }"}
	got := map[string]string{}
	for _, f := range plan.Files {
		r, err := (dir.Source{}).Open(f)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		raw, _ := io.ReadAll(r)
		r.Close()
		got[f.Name] = string(raw)
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	var left []string
	for _, l := range plan.Left {
		left = append(left, l.Name)
	}
	if slices.Sort(left); !slices.Equal(left, []string{"notes.txt", "side.json"}) {
		t.Errorf("left out %v", plan.Left)
	}
	// A link that is swapped after the listing leads nowhere else.
	for _, to := range []string{"/etc/passwd", "../secret", "absolute.json"} {
		name := filepath.Join(folder, "config.json")
		_ = os.Remove(name)
		link(to, "config.json")
		for _, f := range plan.Files {
			if f.Name != "config.json" {
				continue
			}
			if r, err := (dir.Source{}).Open(f); err == nil {
				r.Close()
				t.Errorf("opened %s", to)
			}
		}
	}
}
