package store_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/blake3"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// TestTree pins the format of doc.go: other nodes and earlier stores name files by it.
func TestTree(t *testing.T) {
	body := testBytes(2500, 1)
	doc := []byte("thaw tree 1\n\xe8\x03\x00\x00\x00\x00\x00\x00\xc4\x09\x00\x00\x00\x00\x00\x00") // 1,000 and 2,500
	for b := range slices.Chunk(body, 1000) {
		sum := blake3.Sum256(b)
		doc = append(doc, sum[:]...)
	}
	sum := blake3.Sum256(doc)
	want := hex.EncodeToString(sum[:])
	got, err := store.ReadTree(t.Context(), bytes.NewReader(body), 2500, 1000)
	if err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	empty, err := store.ReadTree(t.Context(), bytes.NewReader(nil), 0, 1000)
	if err != nil || empty == want || empty != store.Tree(0, 1000, nil) {
		t.Errorf("empty: %s, %v", empty, err)
	}
	if other, _ := store.ReadTree(t.Context(), bytes.NewReader(body), 2500, 500); other == want {
		t.Error("the block size does not count")
	}
}

// brokenDisk cannot be read in its second block.
type brokenDisk struct{ io.ReaderAt }

func (d brokenDisk) ReadAt(b []byte, at int64) (int, error) {
	if at >= 1000 && at < 2000 {
		return 0, syscall.EIO
	}
	return d.ReaderAt.ReadAt(b, at)
}

// TestTreeOfBrokenDisk: bytes that cannot be read have no digest.
func TestTreeOfBrokenDisk(t *testing.T) {
	if got, err := store.ReadTree(t.Context(), brokenDisk{bytes.NewReader(testBytes(2500, 1))}, 2500, 1000); !errors.Is(err, syscall.EIO) ||
		got != "" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestTreeOfArrivedBlocks: blocks that land in pieces, in any order, and across the end of
// a process lead to the digest of the whole file.
func TestTreeOfArrivedBlocks(t *testing.T) {
	const block = 256 << 10
	body := testBytes(3*block+777, 3)
	want, err := store.ReadTree(t.Context(), bytes.NewReader(body), int64(len(body)), block)
	if err != nil {
		t.Fatal(err)
	}
	s := openStore(t, store.Options{})
	claim := func() (*store.Ingest, *store.Part) {
		in, err := s.Claim(store.Key("one", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Prepare(t.Context(), "one", []source.File{{Name: "a.gguf", Size: int64(len(body)), Version: "1"}}, block); err != nil {
			t.Fatal(err)
		}
		return in, in.Parts[0]
	}
	write := func(p *store.Part, i int, pieces ...int) {
		t.Helper()
		off, n := p.Range(i)
		at, _ := p.Writer(i).Position()
		for _, end := range append(pieces, int(n)) {
			end := off + int64(end)
			if end <= at {
				continue
			}
			if _, _, err := p.Writer(i).Write(at, body[at:end]); err != nil {
				t.Fatal(err)
			}
			at = end
		}
	}
	in, p := claim()
	write(p, 3, 5, 300)
	write(p, 1, block/2)
	in.Close()
	in, p = claim() // reads blocks 1 and 3 back
	if have := p.Bytes(); have != block+777 {
		t.Errorf("%d bytes are here", have)
	}
	write(p, 2, 1000)
	// Bytes that were given up, as those of a node that broke off, do not count.
	if _, _, err := p.Writer(0).Write(0, testBytes(100_000, 9)); err != nil {
		t.Fatal(err)
	}
	p.Writer(0).Reset()
	write(p, 0, 64<<10, 100_000)
	if err := p.Finish(); err != nil {
		t.Fatal(err)
	}
	if p.Tree() != want {
		t.Errorf("%s, not %s", p.Tree(), want)
	}
	e, lease, err := in.Commit()
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	if err := s.Verify(t.Context(), e.Digest); err != nil {
		t.Error(err)
	}
	if e.Digest != store.Digest([]store.File{{Name: "a.gguf", Size: int64(len(body)), Tree: want}}) {
		t.Error(e.Digest)
	}
}

// TestKnownDigests: bytes are adopted before they arrive only by a digest of the same block
// size, and a digest is known only as long as its blob is there.
func TestKnownDigests(t *testing.T) {
	data := t.TempDir()
	s := openStore(t, store.Options{Dir: data})
	body := testBytes(5000, 1)
	sum := sha256.Sum256(body)
	named := source.File{Name: "a.gguf", Size: 5000, Version: "1", SHA256: hex.EncodeToString(sum[:])}
	plain := source.File{Name: "a.gguf", Size: 5000, Version: "1"}
	claim := func(location string, f source.File, block int64) *store.Ingest {
		t.Helper()
		in, err := s.Claim(store.Key(location, ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(in.Close)
		if err := in.Prepare(t.Context(), location, []source.File{f, {Name: "new.json", Size: 1, Version: location}}, block); err != nil {
			t.Fatal(err)
		}
		return in
	}
	in := claim("named", named, block)
	if _, err := ingest(in, map[string][]byte{"a.gguf": body, "new.json": {1}}); err != nil {
		t.Fatal(err)
	}
	e, lease, err := in.Commit()
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	in = claim("plain", plain, block)
	if _, err := ingest(in, map[string][]byte{"a.gguf": body, "new.json": {2}}); err != nil {
		t.Fatal(err)
	}
	p, lease, err := in.Commit()
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	for _, c := range []struct {
		location string
		file     source.File
		block    int64
		adopted  bool
	}{
		{"named elsewhere", named, block, true},
		{"named, other blocks", named, block / 2, false},
		{"plain", plain, block, true},
		{"plain", plain, block / 2, false},
		{"plain elsewhere", plain, block, false},
	} {
		in := claim(c.location, c.file, c.block)
		if got := in.Parts[0].Linked; got != c.adopted {
			t.Errorf("%s, blocks of %d: adopted %t", c.location, c.block, got)
		}
		if err := in.Discard(); err != nil {
			t.Fatal(err)
		}
		in.Close()
	}
	if list, _ := os.ReadDir(filepath.Join(data, "known")); len(list) != 1 {
		t.Errorf("known: %v", list)
	}
	for _, digest := range []string{e.Digest, p.Digest} {
		if err := s.Remove(digest); err != nil {
			t.Fatal(err)
		}
	}
	openStore(t, store.Options{Dir: data})
	if list, _ := os.ReadDir(filepath.Join(data, "known")); len(list) != 0 {
		t.Errorf("known of a blob that is gone: %v", list)
	}
}

// TestOtherFormat: a store of an earlier version of thaw is not misread. Checkpoints of
// it are deleted, but those pinned or in use, and the log says so.
func TestOtherFormat(t *testing.T) {
	data := t.TempDir()
	s := openStore(t, store.Options{Dir: data})
	one := mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(3000, 1)})
	two := mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(3000, 2)})
	_, lease, err := s.Acquire(two.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	three := mustStage(t, s, "three", map[string][]byte{"a.gguf": testBytes(3000, 3)})
	if err := s.SetPin(three.Digest, true); err != nil {
		t.Fatal(err)
	}
	for _, e := range []store.Entry{one, two, three} {
		manifest := filepath.Join(filepath.Dir(e.Path), "manifest.json")
		raw, err := json.Marshal(map[string]any{"format": 3, "digest": e.Digest, "source": e.Source, "bytes": 3000,
			"files": []map[string]any{{"name": "a.gguf", "size": 3000, "sha256": strings.Repeat("a", 64)}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(manifest, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	s = openStore(t, store.Options{Dir: data, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	for _, e := range []store.Entry{one, two, three} {
		if _, _, err := s.Acquire(e.Digest); source.KindOf(err) != source.Missing {
			t.Errorf("%s: %v", e.Source, err)
		}
	}
	if n := strings.Count(log.String(), "checkpoint of another version of thaw deleted"); n != 1 ||
		!strings.Contains(log.String(), one.Digest) {
		t.Errorf("%d deletions logged:\n%s", n, log.String())
	}
	if _, err := os.Stat(two.Path); err != nil {
		t.Errorf("the checkpoint in use is gone: %v", err)
	}
	if _, err := os.Stat(filepath.Join(three.Path, "a.gguf")); err != nil {
		t.Errorf("the pinned checkpoint is gone: %v", err)
	}
	if err := s.Remove(three.Digest); err != nil {
		t.Errorf("the pinned checkpoint cannot be removed: %v", err)
	}
	if e := mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(3000, 1)}); e.Digest != one.Digest {
		t.Errorf("staged again as %s, before as %s", e.Digest, one.Digest)
	}
}

// TestCommitAsksTheDisk: what doc.go lists as the system calls of a commit, in this order.
// A part that is published before its bytes are flushed has holes after a power cut.
func TestCommitAsksTheDisk(t *testing.T) {
	data := t.TempDir()
	var mu sync.Mutex
	var calls []string
	note := func(call string) error {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, call)
		return nil
	}
	s := openStore(t, store.Options{Dir: data, Step: note, Fsync: func(f *os.File) error {
		rel, err := filepath.Rel(data, f.Name())
		if err != nil {
			return err
		}
		parts := strings.Split(filepath.ToSlash(rel), "/")
		for i, p := range parts { // names that differ from run to run
			switch {
			case strings.HasPrefix(p, ".new-"):
				parts[i] = ".new"
			case i > 0 && parts[0] != "checkpoints" && len(p) >= 24, parts[0] == "blobs" && len(p) == 2:
				parts[i] = "*"
			}
		}
		_ = note("fsync " + strings.Join(parts, "/"))
		return f.Sync()
	}})
	in, err := begin(s, "one", map[string][]byte{"sub/a.gguf": testBytes(2500, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := ingest(in, map[string][]byte{"sub/a.gguf": testBytes(2500, 1)}); err != nil {
		t.Fatal(err)
	}
	calls = nil
	_, lease, err := in.Commit()
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	want := []string{
		"fsync part", "fsync parts/*/*",
		"link blob", "fsync blobs/tree/*", "fsync blobs/tree",
		"make folder", "link file",
		"write manifest", "fsync checkpoints/.new/manifest.json", "fsync checkpoints/.new/lease",
		"fsync checkpoints/.new/files", "fsync checkpoints/.new/files/sub", "fsync checkpoints/.new",
		"rename checkpoint", "fsync checkpoints", "fsync checkpoints",
		"write index",
		"unlink parts", "delete",
	}
	if i := slices.Index(calls, "fsync checkpoints/.new/lease"); i >= 0 && len(calls) > i+2 {
		slices.Sort(calls[i+1 : i+3]) // these two come in any order
	}
	if !slices.Equal(calls, want) {
		t.Errorf("a commit asks the disk for\n%s\nand not for\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
}

// TestEndOfUse: the end of a lease counts as a use.
func TestEndOfUse(t *testing.T) {
	s := openStore(t, store.Options{Budget: 10_000})
	one, lease, err := stage(s, "one", map[string][]byte{"a.gguf": testBytes(3000, 1)})
	if err != nil {
		t.Fatal(err)
	}
	two := mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(3000, 2)})
	setAge(t, one, 2*time.Hour)
	setAge(t, two, time.Hour)
	lease.Release() // one was used until now
	mustStage(t, s, "three", map[string][]byte{"a.gguf": testBytes(4000, 3)})
	if got := digests(t, s); got != "three one" {
		t.Errorf("left are %q", got)
	}
}

// TestNothingIsEvictedInVain: a checkpoint in use cannot go, so what does not fit beside
// it evicts nothing.
func TestNothingIsEvictedInVain(t *testing.T) {
	s := openStore(t, store.Options{Budget: 10_000})
	_, lease, err := stage(s, "one", map[string][]byte{"a.gguf": testBytes(4000, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(3000, 2)})
	if _, _, err := stage(s, "three", map[string][]byte{"a.gguf": testBytes(8000, 3)}); source.KindOf(err) != source.NoSpace {
		t.Fatal(err)
	}
	if got := digests(t, s); got != "two one" {
		t.Errorf("left are %q", got)
	}
}

// FuzzManifest: whatever a manifest holds, reading and verifying its checkpoint ends
// without a panic, and nothing outside of the checkpoint is removed.
func FuzzManifest(f *testing.F) {
	digest := strings.Repeat("ab", 32)
	tree, err := store.ReadTree(f.Context(), strings.NewReader("body"), 4, 1000)
	if err != nil {
		f.Fatal(err)
	}
	whole := `{"format":2,"block":1000,"digest":"sha256:` + digest + `","bytes":4,"files":[{"name":"a.gguf","size":4,"tree":"` + tree + `"}]}`
	for _, seed := range []string{whole, "", "{}", "null", strings.Replace(whole, `"format":2`, `"format":1`, 1), strings.Replace(whole, tree, "", 1),
		strings.Replace(whole, tree, "../../../../x", 1), strings.Replace(whole, "1000", "-1", 1), strings.Replace(whole, "1000", "1", 1),
		strings.Replace(whole, "1000", "9223372036854775807", 1), strings.Replace(whole, `"size":4`, `"size":-4`, 1), strings.Replace(whole, "a.gguf", "../lease", 1),
		strings.Replace(whole, tree, strings.Repeat("0", 64), 1), strings.Replace(whole, digest, strings.Repeat("cd", 32), 1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, manifest string) {
		data := t.TempDir()
		s := openStore(t, store.Options{Dir: data})
		other := mustStage(t, s, "other", map[string][]byte{"b.gguf": testBytes(1500, 1)})
		folder := filepath.Join(data, "checkpoints", digest)
		if err := os.MkdirAll(filepath.Join(folder, "files"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, body := range map[string]string{"files/a.gguf": "body", "manifest.json": manifest} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(body), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := s.Verify(t.Context(), "sha256:"+digest)
		if manifest == whole && err != nil {
			t.Error(err)
		}
		if err == nil && manifest != whole {
			var e store.Entry
			if json.Unmarshal([]byte(manifest), &e) != nil || e.Format != 2 || len(e.Files) > 0 && e.Files[0].Tree != tree {
				t.Errorf("verified: %s", manifest)
			}
		}
		s = openStore(t, store.Options{Dir: data})
		if _, err := s.List(); err != nil {
			t.Error(err)
		}
		if err := s.Verify(t.Context(), other.Digest); err != nil {
			t.Errorf("another checkpoint: %v", err)
		}
	})
}

// TestRotBeforeCommit: bytes that the disk damages between their arrival and the commit are
// published, as a commit reads nothing back. A verification removes them, and they are
// fetched again.
func TestRotBeforeCommit(t *testing.T) {
	data := t.TempDir()
	s := openStore(t, store.Options{Dir: data})
	body := map[string][]byte{"a.gguf": testBytes(3000, 1)}
	in, err := begin(s, "one", body)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := ingest(in, body); err != nil {
		t.Fatal(err)
	}
	parts, err := filepath.Glob(filepath.Join(data, "parts", "*", "*.journal"))
	if err != nil || len(parts) != 1 {
		t.Fatal(parts, err)
	}
	damageFile(t, strings.TrimSuffix(parts[0], ".journal"))
	e, lease, err := in.Commit()
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	in.Close()
	if err := s.Verify(t.Context(), e.Digest); source.KindOf(err) != source.Digest {
		t.Errorf("verified with the error %v", err)
	}
	if again := mustStage(t, s, "one", body); again.Digest != e.Digest {
		t.Errorf("staged again as %s, before as %s", again.Digest, e.Digest)
	}
	if err := s.Verify(t.Context(), e.Digest); err != nil {
		t.Error(err)
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

// TestDamagedManifest: a checkpoint whose manifest was cut, overwritten or removed is staged again,
// by the store that runs and by one that is opened anew; one in use is not deleted.
func TestDamagedManifest(t *testing.T) {
	files := map[string][]byte{"a.gguf": testBytes(3000, 1)}
	for name, damage := range map[string]func(manifest string) error{
		"cut":         func(manifest string) error { return os.WriteFile(manifest, nil, 0o644) },
		"overwritten": func(manifest string) error { return os.WriteFile(manifest, make([]byte, 900), 0o644) },
		"removed":     os.Remove,
	} {
		for _, opened := range []bool{false, true} {
			data := t.TempDir()
			s := openStore(t, store.Options{Dir: data})
			e := mustStage(t, s, "one", files)
			if err := s.SetPin(e.Digest, true); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(filepath.Dir(e.Path), "manifest.json")); err != nil {
				t.Fatal(err)
			}
			if opened {
				s = openStore(t, store.Options{Dir: data})
			}
			if _, _, err := s.Acquire(e.Digest); source.KindOf(err) != source.Missing {
				t.Errorf("%s, opened %v: %v", name, opened, err)
			}
			if again, lease, err := stage(s, "one", files); err != nil || again.Digest != e.Digest {
				t.Errorf("%s, opened %v: staged again: %s, %v", name, opened, again.Digest, err)
			} else if err := damage(filepath.Join(filepath.Dir(e.Path), "manifest.json")); err != nil {
				t.Fatal(err)
			} else if _, _, err := stage(s, "one", files); source.KindOf(err) != source.Missing {
				t.Errorf("%s, opened %v, in use: %v", name, opened, err)
			} else if _, err := os.Stat(filepath.Join(e.Path, "a.gguf")); err != nil {
				t.Errorf("%s, opened %v: deleted while it is in use: %v", name, opened, err)
			} else {
				lease.Release()
			}
		}
	}
}
