package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const block = 1000

func openStore(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31) ^ byte(i>>8) ^ seed
	}
	return b
}

// begin claims and prepares.
func begin(s *store.Store, location string, files map[string][]byte) (*store.Ingest, error) {
	in, err := s.Claim(store.Key(location, ""))
	if err != nil {
		return nil, err
	}
	var list []source.File
	for name, b := range files {
		sum := sha256.Sum256(b)
		list = append(list, source.File{Name: name, Size: int64(len(b)), Version: hex.EncodeToString(sum[:4])})
	}
	if err := in.Prepare(context.Background(), location, list, block); err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

// ingest puts what is missing, and returns how many blocks that was.
func ingest(in *store.Ingest, files map[string][]byte) (int, error) {
	n := 0
	for _, p := range in.Parts {
		b := files[p.File.Name]
		for i := range p.Blocks() {
			if p.Has(i) {
				continue
			}
			n++
			off, size := p.Range(i)
			if err := p.Put(i, b[off:off+size]); err != nil {
				return n, err
			}
		}
		if err := p.Finish(); err != nil {
			return n, err
		}
	}
	return n, nil
}

func stage(s *store.Store, location string, files map[string][]byte) (store.Entry, *store.Lease, error) {
	in, err := begin(s, location, files)
	if err != nil {
		return store.Entry{}, nil, err
	}
	defer in.Close()
	if _, err := ingest(in, files); err != nil {
		return store.Entry{}, nil, err
	}
	return in.Commit()
}

func mustStage(t *testing.T, s *store.Store, location string, files map[string][]byte) store.Entry {
	t.Helper()
	e, lease, err := stage(s, location, files)
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	return e
}

func digests(t *testing.T, s *store.Store) string {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Source)
	}
	return strings.Join(out, " ")
}

// setAge makes a checkpoint last used that long ago.
func setAge(t *testing.T, e store.Entry, ago time.Duration) {
	t.Helper()
	at := time.Now().Add(-ago)
	if err := os.Chtimes(filepath.Join(filepath.Dir(e.Path), "lease"), at, at); err != nil {
		t.Fatal(err)
	}
}

func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	s := openStore(t, store.Options{Budget: 10_000})
	one := mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(4000, 1)})
	two := mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(4000, 2)})
	setAge(t, one, time.Hour)
	setAge(t, two, 2*time.Hour)
	// Used again: now one is older.
	_, lease, err := s.Acquire(two.Digest)
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	mustStage(t, s, "three", map[string][]byte{"a.gguf": testBytes(4000, 3)})
	if got := digests(t, s); got != "three two" {
		t.Errorf("left are %s", got)
	}
	if used, budget, err := s.Usage(); used != 8000 || budget != 10_000 || err != nil {
		t.Errorf("%d of %d, %v", used, budget, err)
	}
	if s.Plans.LastDigest("one") != "" || s.Plans.LastDigest("two") != two.Digest {
		t.Error("what a source led to last")
	}
}

func TestLeasedIsNotEvicted(t *testing.T) {
	s := openStore(t, store.Options{Budget: 10_000})
	_, lease, err := stage(s, "one", map[string][]byte{"a.gguf": testBytes(8000, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = stage(s, "two", map[string][]byte{"a.gguf": testBytes(4000, 2)})
	n, ok := errors.AsType[*store.NoSpace](err)
	if source.KindOf(err) != source.NoSpace || !ok || n.Needed != 4000 || n.Free != 2000 || n.Budget != 10_000 {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{"3.9 KiB", "2 KiB"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %s", err, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(lease0(t, s).Path)), "..", "parts", "*")); len(left) != 0 {
		t.Errorf("a staging that got no room left %v", left)
	}
	lease.Release()
	mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(4000, 2)})
	if got := digests(t, s); got != "two" {
		t.Errorf("left are %s", got)
	}
}

func lease0(t *testing.T, s *store.Store) store.Entry {
	t.Helper()
	list, err := s.List()
	if err != nil || len(list) == 0 {
		t.Fatal("nothing listed", err)
	}
	return list[0]
}

func TestBytesAreKeptOnce(t *testing.T) {
	s := openStore(t, store.Options{})
	shared := testBytes(5000, 1)
	one := mustStage(t, s, "one", map[string][]byte{"model.gguf": shared, "config.json": []byte("{}")})
	mustStage(t, s, "two", map[string][]byte{"other.gguf": shared, "config.json": []byte("[]")})
	if used, _, _ := s.Usage(); used != 5004 {
		t.Errorf("%d bytes used", used)
	}
	// The same from another place is the same checkpoint.
	if again := mustStage(t, s, "three", map[string][]byte{"model.gguf": shared, "config.json": []byte("{}")}); again.Digest != one.Digest {
		t.Errorf("%s and %s", again.Digest, one.Digest)
	}
	if err := s.Remove(one.Digest); err != nil {
		t.Fatal(err)
	}
	if used, _, _ := s.Usage(); used != 5002 {
		t.Errorf("%d bytes used after one of two went", used)
	}
	if err := s.Verify(t.Context(), lease0(t, s).Digest); err != nil {
		t.Error(err)
	}
}

// TestCloseAfterCommit: the end of a claim that has committed leaves the folder of the next
// claim alone, which may have begun in between.
func TestCloseAfterCommit(t *testing.T) {
	for name, end := range map[string]func(*store.Ingest) error{
		"committed": func(in *store.Ingest) error {
			_, lease, err := in.Commit()
			lease.Release()
			return err
		},
		"discarded": (*store.Ingest).Discard,
	} {
		data := t.TempDir()
		s := openStore(t, store.Options{Dir: data})
		files := map[string][]byte{"a.gguf": testBytes(3000, 1)}
		in, err := begin(s, "one", files)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ingest(in, files); err != nil {
			t.Fatal(err)
		}
		if err := end(in); err != nil {
			t.Fatal(err)
		}
		next, err := openStore(t, store.Options{Dir: data}).Claim(store.Key("one", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		in.Close()
		if err := next.Prepare(t.Context(), "one", []source.File{{Name: "a.gguf", Size: 3000, Version: "2"}}, block); err != nil {
			t.Errorf("%s: the next claim: %v", name, err)
		}
	}
}

// TestCommitIsLeased: a checkpoint is in use from the moment it is published, so another
// staging that needs space does not evict it before its own staging has a lease.
func TestCommitIsLeased(t *testing.T) {
	var s *store.Store
	removed := errors.New("not tried")
	s = openStore(t, store.Options{Step: func(name string) error {
		if name == "unlink parts" {
			list, err := s.List()
			if err != nil || len(list) != 1 {
				t.Errorf("%+v, %v", list, err)
				return nil
			}
			removed = s.Remove(list[0].Digest)
		}
		return nil
	}})
	mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(3000, 1)})
	if source.KindOf(removed) != source.Refused {
		t.Errorf("removed right after it was published: %v", removed)
	}
}

func TestDiskFullWhileReserving(t *testing.T) {
	full := 0
	s := openStore(t, store.Options{Step: func(name string) error {
		if name == "allocate part" && full > 0 {
			full--
			return syscall.ENOSPC
		}
		return nil
	}})
	mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(4000, 1)})
	// One eviction makes room.
	full = 1
	mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(4000, 2)})
	if got := digests(t, s); got != "two" {
		t.Errorf("left are %s", got)
	}
	// None does.
	full = 100
	if _, _, err := stage(s, "three", map[string][]byte{"a.gguf": testBytes(4000, 3), "b.gguf": testBytes(10, 3)}); source.KindOf(err) != source.NoSpace {
		t.Errorf("error %v", err)
	}
	full = 0
	if used, _, _ := s.Usage(); used != 0 {
		t.Errorf("%d bytes of partial files stay", used)
	}
}

func TestDiskFullWhileWriting(t *testing.T) {
	writes := 0
	s := openStore(t, store.Options{Step: func(name string) error {
		if name == "write block" {
			if writes++; writes == 3 {
				return syscall.ENOSPC
			}
		}
		return nil
	}})
	files := map[string][]byte{"a.gguf": testBytes(4500, 1)}
	if _, _, err := stage(s, "one", files); source.KindOf(err) != source.NoSpace {
		t.Errorf("error %v", err)
	}
	if got := digests(t, s); got != "" {
		t.Errorf("listed: %s", got)
	}
	in, err := begin(s, "one", files)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if n, err := ingest(in, files); n != 3 || err != nil {
		t.Errorf("%d of 5 blocks again, %v", n, err)
	}
	_, lease, err := in.Commit()
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
}

// Bytes of a part count only if their checksum matches.
func TestResumeTrustsNothing(t *testing.T) {
	files := map[string][]byte{"a.gguf": testBytes(4500, 1)}
	for name, tc := range map[string]struct {
		corrupt func(t *testing.T, part, journal string)
		again   int
	}{
		"nothing spoiled": {func(t *testing.T, part, journal string) {}, 0},
		"a byte of a block": {func(t *testing.T, part, journal string) {
			patch(t, part, 2500, 1)
		}, 1},
		"a part cut short": {func(t *testing.T, part, journal string) {
			if err := os.Truncate(part, 1500); err != nil {
				t.Fatal(err)
			}
		}, 4},
		"a record torn": {func(t *testing.T, part, journal string) {
			fi, _ := os.Stat(journal)
			if err := os.Truncate(journal, fi.Size()-3); err != nil {
				t.Fatal(err)
			}
		}, 1},
		"a record spoiled": {func(t *testing.T, part, journal string) {
			fi, _ := os.Stat(journal)
			patch(t, journal, fi.Size()-5, 1)
		}, 1},
		"the journal's head spoiled": {func(t *testing.T, part, journal string) { patch(t, journal, 20, 1) }, 5},
		"no journal": {func(t *testing.T, part, journal string) {
			if err := os.Remove(journal); err != nil {
				t.Fatal(err)
			}
		}, 5},
		"no part": {func(t *testing.T, part, journal string) {
			if err := os.Remove(part); err != nil {
				t.Fatal(err)
			}
		}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			s := openStore(t, store.Options{Dir: data})
			in, err := begin(s, "one", files)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ingest(in, files); err != nil {
				t.Fatal(err)
			}
			in.Close()
			journals, _ := filepath.Glob(filepath.Join(data, "parts", "*", "*.journal"))
			if len(journals) != 1 {
				t.Fatal(journals)
			}
			tc.corrupt(t, strings.TrimSuffix(journals[0], ".journal"), journals[0])
			if in, err = begin(s, "one", files); err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if n, err := ingest(in, files); n != tc.again || err != nil {
				t.Errorf("%d blocks again, want %d, %v", n, tc.again, err)
			}
			e, lease, err := in.Commit()
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			if err := s.Verify(t.Context(), e.Digest); err != nil {
				t.Error(err)
			}
		})
	}
}

func patch(t *testing.T, name string, at int64, x byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= x
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyRemovesCorrupt(t *testing.T) {
	s := openStore(t, store.Options{})
	shared := testBytes(5000, 1)
	one := mustStage(t, s, "one", map[string][]byte{"model.gguf": shared})
	mustStage(t, s, "two", map[string][]byte{"model.gguf": shared, "config.json": []byte("{}")})
	mustStage(t, s, "three", map[string][]byte{"model.gguf": testBytes(100, 9)})
	patch(t, filepath.Join(one.Path, "model.gguf"), 3000, 8)
	err := s.Verify(t.Context(), one.Digest)
	if source.KindOf(err) != source.Digest || !strings.Contains(err.Error(), "model.gguf") {
		t.Errorf("error %v", err)
	}
	if got := digests(t, s); got != "three" {
		t.Errorf("left are %s", got)
	}
	mustStage(t, s, "one", map[string][]byte{"model.gguf": shared})
	if err := s.Verify(t.Context(), one.Digest); err != nil {
		t.Error(err)
	}
}

// betweenFiles is a context whose Err, which Verify calls after each file, calls between
// with the number of the call.
type betweenFiles struct {
	context.Context
	calls   *int
	between func(int)
}

func (f betweenFiles) Err() error {
	*f.calls++
	f.between(*f.calls)
	return f.Context.Err()
}

// TestTwoVerifications: of two verifications of a checkpoint the slower one leaves what was
// staged after the faster one removed it, and the file that was bad is the only one fetched.
func TestTwoVerifications(t *testing.T) {
	for _, slowerReadsBad := range []bool{true, false} {
		s := openStore(t, store.Options{})
		files := map[string][]byte{"a.gguf": testBytes(5000, 1), "b.gguf": testBytes(5000, 2), "c.gguf": testBytes(5000, 3)}
		one := mustStage(t, s, "one", files)
		bad := "a.gguf"
		if !slowerReadsBad {
			bad = "c.gguf" // it is no longer there when the slower one comes to it
		}
		patch(t, filepath.Join(one.Path, bad), 3000, 8)
		err := s.Verify(betweenFiles{t.Context(), new(int), func(n int) {
			if n != 1 {
				return
			}
			if err := s.Verify(t.Context(), one.Digest); source.KindOf(err) != source.Digest || !strings.Contains(err.Error(), bad) {
				t.Errorf("the faster verification: %v", err)
			}
			in, err := begin(s, "one", files)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if n, err := ingest(in, files); n != 5 || err != nil {
				t.Errorf("%d blocks are fetched again, want those of one file, %v", n, err)
			}
			_, lease, err := in.Commit()
			if err != nil {
				t.Fatal(err)
			}
			lease.Release()
		}}, one.Digest)
		if source.KindOf(err) != source.Missing {
			t.Errorf("the slower verification: %v", err)
		}
		if err := s.Verify(t.Context(), one.Digest); err != nil {
			t.Errorf("what was staged again: %v", err)
		}
		if got := s.Stats().Quarantined; got != 1 {
			t.Errorf("%d files were taken out", got)
		}
	}
}

func TestOneWriterPerPart(t *testing.T) {
	s := openStore(t, store.Options{})
	key := store.Key("one", "")
	in, err := s.Claim(key)
	if err != nil {
		t.Fatal(err)
	}
	in.SetProgress(3, 9)
	if _, err := s.Claim(key); !errors.Is(err, store.ErrBusy) {
		t.Errorf("error %v", err)
	}
	if done, total, ok := s.Progress(key); done != 3 || total != 9 || !ok {
		t.Errorf("%d %d %v", done, total, ok)
	}
	in.Close()
	in, err = s.Claim(key)
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	if _, err := s.Claim("../../x"); err == nil {
		t.Error("a key that is a path")
	}
}

func TestNamesAndDigests(t *testing.T) {
	s := openStore(t, store.Options{})
	for _, name := range []string{"../x.json", "/x.json", "a/../../x.json", "a\x00.json"} {
		if _, _, err := stage(s, "one", map[string][]byte{name: []byte("{}")}); source.KindOf(err) != source.Refused {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, d := range []string{"", "sha256:", "sha256:../../x", "sha256:" + strings.Repeat("A", 64), "md5:" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("a", 63) + "/"} {
		if _, _, err := s.Acquire(d); source.KindOf(err) != source.BadSource {
			t.Errorf("%q: %v", d, err)
		}
	}
	if _, _, err := s.Acquire("sha256:" + strings.Repeat("a", 64)); source.KindOf(err) != source.Missing {
		t.Errorf("error %v", err)
	}
}

func TestPublishedFilesAreReadOnly(t *testing.T) {
	s := openStore(t, store.Options{})
	e := mustStage(t, s, "one", map[string][]byte{"sub/a.gguf": testBytes(10, 1)})
	fi, err := os.Lstat(filepath.Join(e.Path, "sub", "a.gguf"))
	if err != nil || fi.Mode() != 0o444 {
		t.Errorf("%v, %v", fi, err)
	}
}

func TestAcquirePath(t *testing.T) {
	s := openStore(t, store.Options{})
	one := mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(4000, 1)})
	lease, err := s.AcquirePath(one.Path)
	if err != nil || lease == nil {
		t.Fatalf("%v %v", lease, err)
	}
	defer lease.Release()
	if list, err := s.List(); err != nil || len(list) != 1 || !list[0].Pinned {
		t.Errorf("%+v %v", list, err)
	}
	for _, elsewhere := range []string{"", "/", t.TempDir(), filepath.Dir(one.Path)} {
		if l, err := s.AcquirePath(elsewhere); l != nil || err != nil {
			t.Errorf("%q: %v %v", elsewhere, l, err)
		}
	}
	if _, budget, err := s.Usage(); budget <= 4000 || err != nil {
		t.Errorf("without a budget the disk's: %d, %v", budget, err)
	}
}

// Bytes of a block from before a crash are not fetched again, megabyte by megabyte,
// unless their checksum fails.
// TestUnfinished: a staging that ended early is listed with its source and its bytes as long as
// no process goes on with it, and can be removed then; a running one is neither.
func TestUnfinished(t *testing.T) {
	s := openStore(t, store.Options{})
	location := store.LocationKey("az://acct/models/one", source.Globs{"*.py"})
	files := map[string][]byte{"a.gguf": testBytes(9000, 1)}
	in, err := begin(s, location, files)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Parts[0].Put(0, files["a.gguf"][:block]); err != nil {
		t.Fatal(err)
	}
	in.SetProgress(4096, 9000)
	key := store.Key(location, "")
	if list, err := s.Unfinished(); len(list) != 0 || err != nil {
		t.Errorf("while it runs: %+v, %v", list, err)
	}
	if err := s.RemoveUnfinished(key); source.KindOf(err) != source.Refused {
		t.Errorf("removed while it runs: %v", err)
	}
	in.Close()
	list, err := s.Unfinished()
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if u := list[0]; u.Key != key || u.Location != "az://acct/models/one" || u.Files != 1 || u.Bytes != 9000 || time.Since(u.LastUsed) > time.Hour {
		t.Errorf("%+v", u)
	}
	if done, total, ok := s.Progress(key); done != 4096 || total != 9000 || !ok {
		t.Errorf("progress %d of %d, %v", done, total, ok)
	}
	for _, name := range []string{"../parts/" + key, "", strings.Repeat("0", 32)} {
		if err := s.RemoveUnfinished(name); source.KindOf(err) != source.Missing {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := s.RemoveUnfinished(key); err != nil {
		t.Fatal(err)
	}
	list, err = s.Unfinished()
	if used, _, _ := s.Usage(); used != 0 || len(list) != 0 || err != nil {
		t.Errorf("removed, and %d bytes and %+v are there, %v", used, list, err)
	}
	mustStage(t, s, location, files)
	if list, err := s.Unfinished(); len(list) != 0 || err != nil {
		t.Errorf("after a whole staging: %+v, %v", list, err)
	}
}

func TestResumeInsideBlock(t *testing.T) {
	const mib = 1 << 20
	want := testBytes(10*mib, 5)
	for name, tc := range map[string]struct {
		wrote   int // bytes of block 1 that came
		corrupt func(t *testing.T, part string)
		at      int64 // of block 1, in it
		expect  bool
	}{
		"nothing":         {wrote: 0, at: 0},
		"less than marks": {wrote: mib - 1, at: 0},
		"two and a half":  {wrote: 5 * mib / 2, at: 2 * mib},
		"spoiled":         {wrote: 3 * mib, at: 0, corrupt: func(t *testing.T, part string) { patch(t, part, 4*mib+mib/2, 1) }},
		"spoiled behind":  {wrote: 5 * mib / 2, at: 2 * mib, corrupt: func(t *testing.T, part string) { patch(t, part, 4*mib+2*mib+100, 1) }},
		"of a neighbour":  {wrote: 3 * mib, at: 0, expect: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := source.File{Name: "a.gguf", Size: int64(len(want)), Version: "1"}
			claim := func() *store.Ingest {
				in, err := openStore(t, store.Options{Dir: dir}).Claim(store.Key("one", ""))
				if err != nil {
					t.Fatal(err)
				}
				if err := in.Prepare(t.Context(), "one", []source.File{file}, 4*mib); err != nil {
					t.Fatal(err)
				}
				return in
			}
			in := claim()
			w := in.Parts[0].Writer(1)
			if tc.expect {
				w.Expect(7)
			}
			for at := 0; at < tc.wrote; at += mib / 2 {
				if _, _, err := w.Write(int64(4*mib+at), want[4*mib+at:4*mib+min(at+mib/2, tc.wrote)]); err != nil {
					t.Fatal(err)
				}
			}
			in.Close()
			if tc.corrupt != nil {
				journals, _ := filepath.Glob(filepath.Join(dir, "parts", "*", "*.journal"))
				tc.corrupt(t, strings.TrimSuffix(journals[0], ".journal"))
			}
			in = claim()
			defer in.Close()
			p := in.Parts[0]
			at, end := p.Writer(1).Position()
			have := p.Bytes()
			if at != 4*mib+tc.at || end != 8*mib || have != tc.at {
				t.Fatalf("at %d of block 1, want %d; %d bytes here", at-4*mib, tc.at, have)
			}
			for i := range p.Blocks() {
				w := p.Writer(i)
				at, end := w.Position()
				if _, total, err := w.Write(at, want[at:end]); !total || err != nil {
					t.Fatalf("block %d: %v", i, err)
				}
				if sum, ok := p.BlockSum(i); !ok || sum != sumOf(want[end-min(end-4*mib*int64(i), 4*mib):end]) {
					t.Errorf("block %d: another sum", i)
				}
			}
			if have := p.Bytes(); have != file.Size {
				t.Errorf("%d bytes", have)
			}
			got := make([]byte, len(want))
			if _, err := p.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("other bytes, %v", err)
			}
		})
	}
}

// Two writers of one block write each byte once, and neither runs ahead of the bytes
// that are there.
func TestWriterIsShared(t *testing.T) {
	want := testBytes(block, 3)
	s := openStore(t, store.Options{})
	in, err := begin(s, "one", map[string][]byte{"a.gguf": want})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p := in.Parts[0]
	w := p.Writer(0)
	if w != p.Writer(0) {
		t.Error("two writers of one block")
	}
	wrong := bytes.Repeat([]byte{9}, 300)
	for _, put := range []struct {
		off  int64
		b    []byte
		used int
		bad  bool
	}{
		{0, want[:300], 300, false},
		{0, wrong, 0, false},             // what is here stays
		{100, want[100:500], 200, false}, // only what is new
		{501, want[501:600], 0, true},    // a gap
		{900, want[:200], 0, true},       // beyond the block
	} {
		used, total, err := w.Write(put.off, put.b)
		if used != put.used || total || (err != nil) != put.bad {
			t.Errorf("at %d: %d used, %v, %v", put.off, used, total, err)
		}
	}
	w.Expect(1)
	if _, total, err := w.Write(500, want[500:]); total || !errors.Is(err, store.ErrSum) {
		t.Errorf("%v, %v", total, err)
	}
	if at, _ := w.Position(); at != 0 || p.Has(0) {
		t.Errorf("at %d after bytes that were not those promised", at)
	}
	w.Expect(sumOf(want))
	if _, total, err := w.Write(0, want); !total || err != nil || !p.Has(0) {
		t.Errorf("%v, %v", total, err)
	}
	if used, total, err := w.Write(0, wrong); used != 0 || !total || err != nil {
		t.Errorf("after the end: %d %v %v", used, total, err)
	}
	p.DropBlock(0)
	if have := p.Bytes(); p.Has(0) || have != 0 {
		t.Error("forgotten and here")
	}
}

// TestDroppedBlocks: blocks that were dropped or distrusted are fetched again by the next
// attempt; distrusted ones stay in this one.
func TestDroppedBlocks(t *testing.T) {
	want := testBytes(3*block, 3)
	s := openStore(t, store.Options{})
	in, err := begin(s, "one", map[string][]byte{"a.gguf": want})
	if err != nil {
		t.Fatal(err)
	}
	p := in.Parts[0]
	for i := range p.Blocks() {
		off, n := p.Range(i)
		if _, total, err := p.Writer(i).Write(off, want[off:off+n]); !total || err != nil {
			t.Fatal(total, err)
		}
	}
	p.DropBlock(0)
	p.ForgetBlocks(1)
	if p.Has(0) || !p.Has(1) || !p.Has(2) {
		t.Errorf("in this attempt: %v %v %v", p.Has(0), p.Has(1), p.Has(2))
	}
	in.Close()
	if in, err = begin(s, "one", map[string][]byte{"a.gguf": want}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p = in.Parts[0]
	if p.Has(0) || p.Has(1) || !p.Has(2) {
		t.Errorf("in the next attempt: %v %v %v", p.Has(0), p.Has(1), p.Has(2))
	}
	off, n := p.Range(1)
	if _, total, err := p.Writer(1).Write(off, want[off:off+n]); !total || err != nil || !p.Has(1) {
		t.Errorf("fetched again: %v, %v", total, err)
	}
}

// A sum is the same however the bytes come.
func FuzzSum(f *testing.F) {
	f.Add(uint32(0), uint16(1), uint16(1))
	f.Add(uint32(300_000), uint16(65_000), uint16(1000))
	f.Fuzz(func(t *testing.T, n uint32, a, b uint16) {
		want := testBytes(int(n%500_000), byte(a))
		var s store.Sum
		for i, rest := 0, want; len(rest) > 0; i++ {
			k := min(len(rest), int(a)+1)
			if i%2 == 1 {
				k = min(len(rest), int(b)+1)
			}
			s.Write(rest[:k])
			rest = rest[k:]
		}
		if s.Sum64() != sumOf(want) {
			t.Errorf("%d bytes in pieces of %d and %d", len(want), int(a)+1, int(b)+1)
		}
	})
}

func TestWatermarks(t *testing.T) {
	s := openStore(t, store.Options{Budget: 10_000, High: 0.9, Low: 0.5})
	for i, name := range []string{"one", "two", "three", "four"} {
		e := mustStage(t, s, name, map[string][]byte{"a.gguf": testBytes(2000, byte(i))})
		setAge(t, e, time.Hour-time.Duration(i)*time.Minute)
	}
	// 8000 and 1000 are no more than 9000; 2000 are more: down to 5000.
	mustStage(t, s, "small", map[string][]byte{"a.gguf": testBytes(1000, 9)})
	if got := digests(t, s); len(strings.Fields(got)) != 5 {
		t.Fatalf("evicted below the mark: %s", got)
	}
	mustStage(t, s, "more", map[string][]byte{"a.gguf": testBytes(2000, 10)})
	if got := digests(t, s); got != "more small four" {
		t.Errorf("left are %s", got)
	}
	if st := s.Stats(); st.Evictions != 3 || st.EvictedBytes != 6000 {
		t.Errorf("%+v", st)
	}
	// More than the mark, and less than the budget: let in.
	mustStage(t, s, "large", map[string][]byte{"a.gguf": testBytes(9900, 11)})
	if got := digests(t, s); got != "large" {
		t.Errorf("left are %s", got)
	}
	// What cannot fit evicts nothing.
	if _, _, err := stage(s, "giant", map[string][]byte{"a.gguf": testBytes(10_001, 12)}); source.KindOf(err) != source.NoSpace {
		t.Errorf("error %v", err)
	}
	if got := digests(t, s); got != "large" {
		t.Errorf("evicted in vain, left are %s", got)
	}
}

// While less than its share of the disk is free, what no process uses is evicted: by Trim, as
// images and logs fill the disk without asking the store, and for a staging, which is admitted
// all the same.
func TestDiskStaysFree(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, store.Options{Dir: dir, FreeShare: 1e-9})
	left := func() string { return strings.Join(slices.Sorted(slices.Values(strings.Fields(digests(t, s)))), " ") }
	mustStage(t, s, "idle", map[string][]byte{"a.gguf": testBytes(1000, 1)})
	pinned := mustStage(t, s, "pinned", map[string][]byte{"a.gguf": testBytes(2000, 2)})
	_, lease, err := stage(s, "used", map[string][]byte{"a.gguf": testBytes(3000, 3)})
	if err := errors.Join(err, s.SetPin(pinned.Digest, true), s.Trim()); err != nil || left() != "idle pinned used" {
		t.Fatalf("with room left: %s, %v", left(), err)
	}
	s = openStore(t, store.Options{Dir: dir, FreeShare: 1})
	if err := s.Trim(); err != nil || left() != "pinned used" {
		t.Errorf("left are %s, %v", left(), err)
	}
	mustStage(t, s, "new", map[string][]byte{"a.gguf": testBytes(1000, 4)})
	mustStage(t, s, "newer", map[string][]byte{"a.gguf": testBytes(1000, 5)})
	if left() != "newer pinned used" {
		t.Errorf("after a staging: %s", left())
	}
	lease.Release()
	if err := s.Trim(); err != nil || left() != "pinned" || s.Stats().EvictedBytes != 6000 {
		t.Errorf("after the end of its use: %s, %+v, %v", left(), s.Stats(), err)
	}
}

func TestPins(t *testing.T) {
	data := t.TempDir()
	s := openStore(t, store.Options{Dir: data, Budget: 10_000})
	one := mustStage(t, s, "one", map[string][]byte{"a.gguf": testBytes(6000, 1)})
	if err := s.SetPin(one.Digest, true); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, store.Options{Dir: data, Budget: 10_000})
	if _, _, err := stage(s, "two", map[string][]byte{"a.gguf": testBytes(6000, 2)}); source.KindOf(err) != source.NoSpace {
		t.Errorf("error %v", err)
	}
	if e := lease0(t, s); !e.PinnedByUser || !e.Pinned || e.Leased {
		t.Errorf("%+v", e)
	}
	if err := errors.Join(s.SetPin(one.Digest, false), s.SetPin(one.Digest, false)); err != nil {
		t.Error(err)
	}
	mustStage(t, s, "two", map[string][]byte{"a.gguf": testBytes(6000, 2)})
	if got := digests(t, s); got != "two" {
		t.Errorf("left are %s", got)
	}
	if err := s.SetPin(one.Digest, true); source.KindOf(err) != source.Missing {
		t.Errorf("error %v", err)
	}
	// Who says remove means it.
	two := lease0(t, s)
	if err := errors.Join(s.SetPin(two.Digest, true), s.Remove(two.Digest)); err != nil {
		t.Error(err)
	}
}

// Two stagings need the same bytes, from different places: one fetches them.
func TestSharedFileIsFetchedOnce(t *testing.T) {
	s := openStore(t, store.Options{})
	shared := testBytes(5000, 1)
	sum := sha256.Sum256(shared)
	known := func(name string) source.File {
		return source.File{Name: name, Size: int64(len(shared)), Version: name, SHA256: hex.EncodeToString(sum[:])}
	}
	prepare := func(location string) (*store.Ingest, *store.Part) {
		in, err := s.Claim(store.Key(location, ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Prepare(t.Context(), location, []source.File{known(location + ".gguf")}, block); err != nil {
			t.Fatal(err)
		}
		return in, in.Parts[0]
	}
	commit := func(in *store.Ingest) {
		t.Helper()
		_, lease, err := in.Commit()
		if err != nil {
			t.Fatal(err)
		}
		lease.Release()
		in.Close()
	}
	put := func(p *store.Part) {
		t.Helper()
		for i := range p.Blocks() {
			off, n := p.Range(i)
			if err := p.Put(i, shared[off:off+n]); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Finish(); err != nil {
			t.Fatal(err)
		}
	}
	one, p1 := prepare("one")
	two, p2 := prepare("two")
	three, p3 := prepare("three")
	if p1.OtherWriter || !p2.OtherWriter || !p3.OtherWriter {
		t.Fatal("who brings it")
	}
	if ok, err := two.PollShared(t.Context(), p2); ok || err != nil {
		t.Fatal(ok, err)
	}
	// The one that brings it gives up: the next one does.
	one.Close()
	if ok, err := two.PollShared(t.Context(), p2); !ok || err != nil || p2.Linked {
		t.Fatal(ok, err)
	}
	if ok, err := three.PollShared(t.Context(), p3); ok || err != nil {
		t.Fatal(ok, err)
	}
	put(p2)
	// Before the other's checkpoint is published.
	if ok, err := three.PollShared(t.Context(), p3); !ok || err != nil || !p3.Linked || p3.Tree() == "" {
		t.Fatal(ok, err)
	}
	commit(three)
	commit(two)
	if used, _, _ := s.Usage(); used != 5000 {
		t.Errorf("%d bytes used", used)
	}
	for _, e := range []string{"one", "two", "three"} {
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(lease0(t, s).Path), "..", "..", "coming", "*")); len(left) != 0 {
			t.Errorf("%s: locks left: %v", e, left)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, e := range list {
		if err := s.Verify(t.Context(), e.Digest); err != nil {
			t.Error(err)
		}
	}
}

// A folder without write permission is a named error.
func TestReadOnlyFolder(t *testing.T) {
	data := t.TempDir()
	openStore(t, store.Options{Dir: data})
	for _, dir := range []string{filepath.Join(data, "parts"), data} {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	}
	s, err := store.Open(store.Options{Dir: data})
	if err == nil {
		_, _, err = stage(s, "one", map[string][]byte{"a.gguf": testBytes(10, 1)})
	}
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere")
	}
	if source.KindOf(err) != source.Broken {
		t.Errorf("error %v", err)
	}
}

// sumOf is the checksum of a whole block.
func sumOf(b []byte) uint64 {
	var s store.Sum
	s.Write(b)
	return s.Sum64()
}

// TestNoFolderToWrite: a folder that no store can be made in is an error with the way out.
func TestNoFolderToWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{file, file + "/sub"} {
		if _, err := store.Open(store.Options{Dir: folder}); err == nil ||
			!strings.Contains(err.Error(), "not a directory (--data names a folder") {
			t.Errorf("%s: %v", folder, err)
		}
	}
}
