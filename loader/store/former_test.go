package store_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// writeFormer writes a checkpoint as a thaw of the former format did: files by the SHA-256
// of all their bytes, a manifest without format and blocks. It returns the digest.
func writeFormer(t *testing.T, data, location string, version string, files map[string][]byte) (digest string) {
	t.Helper()
	type file struct {
		Name    string `json:"name"`
		Size    int    `json:"size"`
		Version string `json:"version,omitempty"`
		SHA256  string `json:"sha256"`
	}
	var list []file
	var lines []string
	total := 0
	for name, body := range files {
		sum := fmt.Sprintf("%x", sha256.Sum256(body))
		list = append(list, file{name, len(body), "", sum})
		lines = append(lines, fmt.Sprintf("%s %d %s\n", sum, len(body), name))
		total += len(body)
	}
	slices.Sort(lines)
	h := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(lines, ""))))
	digest = "sha256:" + h
	write := func(path string, v any) {
		t.Helper()
		raw, err := json.Marshal(v)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(data, "checkpoints", h)
	write(filepath.Join(dir, "manifest.json"), map[string]any{"digest": digest, "source": location, "bytes": total, "files": list})
	for _, f := range list {
		blob, name := filepath.Join(data, "blobs", "sha256", f.SHA256[:2], f.SHA256), filepath.Join(dir, "files", filepath.FromSlash(f.Name))
		for _, path := range []string{blob, name} {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(blob); err != nil {
			if err := os.WriteFile(blob, files[f.Name], 0o444); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(blob, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "lease"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i].Version = version
	}
	key := sha256.Sum256([]byte(location))
	write(filepath.Join(data, "sources", hex.EncodeToString(key[:16])+".json"), map[string]any{"location": location, "digest": digest, "files": list})
	return digest
}

// ofVersion lists files as a source does.
func ofVersion(version string, files map[string][]byte) (out []source.File) {
	for name, body := range files {
		out = append(out, source.File{Name: name, Size: int64(len(body)), Version: version})
	}
	slices.SortFunc(out, func(a, b source.File) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// TestFormerCheckpointInUse: a checkpoint of the former format is leased, listed and
// verified after an upgrade, and evicted like any other.
func TestFormerCheckpointInUse(t *testing.T) {
	data := t.TempDir()
	files := map[string][]byte{"a.gguf": testBytes(3000, 1), "sub/b.json": testBytes(10, 2)}
	digest := writeFormer(t, data, "one", "1", files)
	s := openStore(t, store.Options{Dir: data, Budget: 5000})
	// A pod that has it names its digest at the new loader.
	e, lease, err := s.Acquire(digest)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if b, err := os.ReadFile(filepath.Join(e.Path, name)); err != nil || string(b) != string(want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 1 || !list[0].Leased || list[0].Digest != digest || len(list[0].Files) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if d := s.LastDigest("one"); d != digest {
		t.Errorf("the last checkpoint of its place is %q", d)
	}
	if d := s.DigestOf("one", ofVersion("1", files)); d != "" {
		t.Errorf("%s is not taken over", d)
	}
	if err := s.Verify(t.Context(), digest); err != nil {
		t.Error(err)
	}
	openStore(t, store.Options{Dir: data}) // another process
	if _, _, err := stage(s, "two", map[string][]byte{"a.gguf": testBytes(3000, 3)}); source.KindOf(err) != source.NoSpace {
		t.Errorf("beside one in use: %v", err)
	}
	lease.Release()
	mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(3000, 3)})
	if _, _, err := s.Acquire(digest); source.KindOf(err) != source.Missing {
		t.Errorf("after its lease has ended: %v", err)
	}
}

// TestFormerCheckpointDamaged: a damaged file of a former checkpoint is found and removed.
func TestFormerCheckpointDamaged(t *testing.T) {
	data := t.TempDir()
	digest := writeFormer(t, data, "one", "1", map[string][]byte{"a.gguf": testBytes(3000, 1)})
	s := openStore(t, store.Options{Dir: data})
	damageFile(t, filepath.Join(data, "checkpoints", strings.TrimPrefix(digest, "sha256:"), "files", "a.gguf"))
	if err := s.Verify(t.Context(), digest); source.KindOf(err) != source.Digest {
		t.Errorf("error %v", err)
	}
	if _, _, err := s.Acquire(digest); source.KindOf(err) != source.Missing {
		t.Errorf("the damaged checkpoint stays: %v", err)
	}
	if used, _, err := s.Usage(); err != nil || used != 0 {
		t.Errorf("%d bytes stay, %v", used, err)
	}
}

func damageFile(t *testing.T, path string) {
	t.Helper()
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff, 0xfe, 0xfd}, 1500); err != nil {
		t.Fatal(err)
	}
}

// TestFormerCheckpointTakenOver: a staging of the same versions reads the files of a former
// checkpoint in place of a download, and the result is that of a download. A file that has
// changed at the source or is damaged on the disk is fetched.
func TestFormerCheckpointTakenOver(t *testing.T) {
	files := map[string][]byte{"a.gguf": testBytes(3000, 1), "b.gguf": testBytes(2500, 2), "c.json": testBytes(10, 3)}
	want := mustStage(t, openStore(t, store.Options{}), "one", files)
	for name, c := range map[string]struct {
		change  func(dir string, plan []source.File)
		leased  bool
		pinned  bool
		fetched string
	}{
		"unchanged":       {},
		"in use":          {leased: true},
		"pinned":          {pinned: true},
		"one has changed": {change: func(_ string, plan []source.File) { plan[1].Version = "2" }, fetched: "b.gguf"},
		"no versions":     {change: func(_ string, plan []source.File) { plan[1].Version = "" }, fetched: "b.gguf"},
		"another sha256":  {change: func(_ string, plan []source.File) { plan[1].SHA256 = strings.Repeat("a", 64) }, fetched: "b.gguf"},
		"the same sha256": {change: func(_ string, plan []source.File) {
			plan[1].SHA256, plan[1].Version = fmt.Sprintf("%x", sha256.Sum256(files["b.gguf"])), "9"
		}},
		"one is damaged":   {change: func(dir string, _ []source.File) { damageFile(t, filepath.Join(dir, "b.gguf")) }, fetched: "b.gguf"},
		"one is truncated": {change: func(dir string, _ []source.File) { truncate(t, filepath.Join(dir, "b.gguf")) }, fetched: "b.gguf"},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			digest := writeFormer(t, data, "one", "1", files)
			dir := filepath.Join(data, "checkpoints", strings.TrimPrefix(digest, "sha256:"), "files")
			var log strings.Builder
			s := openStore(t, store.Options{Dir: data, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if c.pinned {
				if err := s.Pin(digest); err != nil {
					t.Fatal(err)
				}
			}
			if c.leased {
				_, lease, err := s.Acquire(digest)
				if err != nil {
					t.Fatal(err)
				}
				defer lease.Release()
			}
			plan := ofVersion("1", files)
			if c.change != nil {
				c.change(dir, plan)
			}
			in, err := s.Claim(store.Key("one", ""))
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if err := in.Prepare(t.Context(), "one", plan, block); err != nil {
				t.Fatal(err)
			}
			var fetched []string
			for _, p := range in.Parts() {
				if have, resumed := p.Bytes(); have != resumed || have != 0 && have != p.File.Size {
					t.Errorf("%s: %d of %d bytes, resumed %d", p.File.Name, have, p.File.Size, resumed)
				} else if have == 0 {
					fetched = append(fetched, p.File.Name)
				}
				for i := range p.Blocks() {
					if off, n := p.Range(i); !p.Has(i) {
						if err := p.Put(i, files[p.File.Name][off:off+n]); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := p.Finish(); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(fetched, " "); got != c.fetched {
				t.Errorf("fetched %q, want %q", got, c.fetched)
			}
			e, lease, err := in.Commit()
			if err != nil {
				t.Fatal(err)
			}
			lease.Release()
			if e.Digest != want.Digest {
				t.Errorf("digest %s, a download has %s", e.Digest, want.Digest)
			}
			if err := s.Verify(t.Context(), e.Digest); err != nil {
				t.Error(err)
			}
			list, err := s.List()
			if err != nil {
				t.Fatal(err)
			}
			former := slices.ContainsFunc(list, func(e store.Entry) bool { return e.Digest == digest })
			pinned := slices.ContainsFunc(list, func(x store.Entry) bool { return x.Digest == e.Digest && x.PinnedByUser })
			if former != c.leased || pinned != c.pinned {
				t.Errorf("the former checkpoint is listed: %t; the new one pinned: %t\n%s", former, pinned, &log)
			}
			if used, _, err := s.Usage(); err != nil || used != e.Bytes {
				t.Errorf("%d bytes used, the checkpoint has %d, %v", used, e.Bytes, err)
			}
		})
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
}
