package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *Store, id, content string) {
	t.Helper()
	u, err := s.NewUpload()
	if err == nil {
		_, err = io.WriteString(u, content)
	}
	if err == nil {
		_, err = u.Commit(File{ID: id, Team: "t", Purpose: "batch", Created: 1, Expires: 100})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// What a crash left of an upload or of a deletion is removed, and nothing else.
func TestOpenRemovesWhatACrashLeft(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "file-kept", "kept")
	put(t, s, "file-gone", "gone")
	u, err := s.NewUpload()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(u, "half")
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "files", "file-half.data"), []byte("renamed, not yet named"), 0o600),
		os.WriteFile(filepath.Join(dir, "files", ".file-half.json-1.new"), nil, 0o600),
		os.Remove(filepath.Join(dir, "files", "file-gone.data")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, dir)
	if list := s.Files("t"); len(list) != 1 || list[0].ID != "file-kept" || list[0].Bytes != 4 {
		t.Errorf("%+v", list)
	}
	for folder, want := range map[string]string{"uploads": "", "files": "file-kept.data file-kept.json"} {
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("%s: %s %v", folder, got, err)
		}
	}
	os.WriteFile(filepath.Join(dir, "files", "file-x.json"), []byte("{"), 0o600)
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "file-x.json") ||
		!strings.Contains(err.Error(), "move the file away") {
		t.Errorf("a broken file: %v", err)
	}
}

// Wherever a crash cuts the entries off, those that are whole stay, and what is appended
// then follows them.
func TestEntriesAreCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	l, err := s.OpenLines("batch_1", func(Entry, bool) { t.Error("an entry of a new batch") })
	if err != nil {
		t.Fatal(err)
	}
	entry := func(i int) []byte {
		return fmt.Appendf(nil, `{"custom_id":"l%d","response":{"body":{"n":%d,"n":%d}}}`, i, i, i)
	}
	for i := range 3 {
		if err := l.Append(entry(i), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Append(entry(3), true), l.Close()); err != nil {
		t.Fatal(err)
	}
	path := s.batchPath("batch_1", "output")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	each := len(whole) / 3
	for size := 0; size <= len(whole); size++ {
		for _, tail := range []string{"", "\x00\x00\x00", "\x00\n"} { // also as a power cut may leave it
			if err := os.WriteFile(path, append(whole[:size:size], tail...), 0o600); err != nil {
				t.Fatal(err)
			}
			var got []string
			l, err := s.OpenLines("batch_1", func(e Entry, failed bool) { got = append(got, fmt.Sprint(e.CustomID, failed)) })
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(l.Append(entry(7), false), l.Close()); err != nil {
				t.Fatal(err)
			}
			want := append([]string{"l0false", "l1false", "l2false"}[:size/each:size/each], "l3true")
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("cut at %d: %v, want %v", size, got, want)
			}
			b, _ := os.ReadFile(path)
			if string(b) != string(whole[:size/each*each])+string(entry(7))+"\n" {
				t.Fatalf("cut at %d, then: %q", size, b)
			}
		}
	}
}

// A crash at each step of the end of a batch: the next Publish makes its files, once.
func TestPublishAfterACrash(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	output, failed := "file-out", "file-err"
	r := Record{Batch: Batch{ID: "batch_1", Status: Finalizing, OutputFileID: &output, ErrorFileID: &failed}, Team: "t", Keep: 50,
		Outcome: Completed}
	l, err := s.OpenLines(r.ID, nil)
	if err == nil {
		err = errors.Join(l.Append([]byte(`{"custom_id":"a"}`), false), l.Append([]byte(`{"custom_id":"b"}`), true), l.Close(), s.Save(r))
	}
	if err != nil {
		t.Fatal(err)
	}
	move := func(dir, kind, id string) {
		if err := os.Rename(filepath.Join(dir, "batches", "batch_1."+kind), filepath.Join(dir, "files", id+".data")); err != nil {
			t.Fatal(err)
		}
	}
	for name, crash := range map[string]func(dir string){
		"before it":                   func(string) {},
		"after the output was moved":  func(dir string) { move(dir, "output", output) },
		"after both were moved":       func(dir string) { move(dir, "output", output); move(dir, "errors", failed) },
		"after the errors were moved": func(dir string) { move(dir, "errors", failed) },
		"after it":                    func(dir string) { open(t, dir).Publish(r, 7) },
		"in the writing of a metadata": func(dir string) {
			os.WriteFile(filepath.Join(dir, "files", ".file-out.json-7.new"), []byte("{"), 0o600)
		},
	} {
		dir := copyDir(t, dir)
		crash(dir)
		s := open(t, dir)
		for range 2 {
			if err := s.Publish(r, 7); err != nil {
				t.Errorf("a crash %s: %v", name, err)
			}
		}
		for id, want := range map[string]string{output: `{"custom_id":"a"}` + "\n", failed: `{"custom_id":"b"}` + "\n"} {
			f, meta, err := s.Content("t", id)
			if err != nil {
				t.Errorf("a crash %s: %v", name, err)
				continue
			}
			b, _ := io.ReadAll(f)
			f.Close()
			if string(b) != want || meta.Bytes != int64(len(want)) || meta.Expires != 57 || meta.Purpose != "batch_output" {
				t.Errorf("a crash %s: %+v %q", name, meta, b)
			}
		}
		if n := len(s.Files("t")); n != 2 {
			t.Errorf("a crash %s: %d files", name, n)
		}
	}
	// Of a part without entries there is no file, and nothing is left of it.
	r.ErrorFileID = nil
	if err := s.Publish(r, 7); err != nil || len(s.Files("t")) != 1 {
		t.Errorf("%v %+v", err, s.Files("t"))
	}
	if _, err := os.Stat(s.batchPath(r.ID, "errors")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the part is left: %v", err)
	}
}

// Where the disk is full an entry is refused whole, and written when there is room.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there is no /dev/full")
	}
	dir := t.TempDir()
	s := open(t, dir)
	l, err := s.OpenLines("batch_1", nil)
	if err != nil {
		t.Fatal(err)
	}
	first, second := []byte(`{"custom_id":"a"}`), []byte(`{"custom_id":"b"}`)
	if err := l.Append(first, false); err != nil {
		t.Fatal(err)
	}
	real := l.parts[0].f
	l.parts[0].f = full
	if err := l.Append(second, false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	full.Close()
	l.parts[0].f = real
	real.WriteAt([]byte("the beginning of an entry, and no room to cut it off"), 18)
	l.parts[0].torn = true
	if err := l.Append(second, false); err != nil {
		t.Fatal(err)
	}
	if size, _ := l.Sizes(); size != 36 {
		t.Errorf("%d bytes", size)
	}
	if b, _ := os.ReadFile(s.batchPath("batch_1", "output")); len(b) != 36 || string(b[18:]) != string(second)+"\n" {
		t.Errorf("%q", b)
	}
	l.Close()
}

// Files are removed when their time is over, but for the input of a batch that has not
// ended; batches a month after their end.
func TestExpire(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "file-a", "a")
	put(t, s, "file-b", "b")
	end := int64(90)
	r := Record{Batch: Batch{ID: "batch_1", Status: InProgress, InputFileID: "file-a"}, Team: "t"}
	if err := errors.Join(s.Save(r), s.Expire(time.Unix(99, 0))); err != nil || len(s.Files("t")) != 2 {
		t.Errorf("before their time: %v %+v", err, s.Files("t"))
	}
	if err := s.Expire(time.Unix(100, 0)); err != nil || len(s.Files("t")) != 1 || s.Files("t")[0].ID != "file-a" {
		t.Errorf("after it: %v %+v", err, s.Files("t"))
	}
	if err := s.Delete("t", "file-a"); !errors.Is(err, ErrInUse) {
		t.Errorf("delete of an input in use: %v", err)
	}
	r.Status, r.CompletedAt = Completed, &end
	if err := errors.Join(s.Save(r), s.Expire(time.Unix(100, 0))); err != nil || len(s.Files("t")) != 0 {
		t.Errorf("after the batch: %v %+v", err, s.Files("t"))
	}
	if err := s.Expire(time.Unix(91, 0).Add(keepBatches)); err != nil {
		t.Error(err)
	}
	if _, err := s.Batch("t", "batch_1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a batch of long ago: %v", err)
	}
	if s = open(t, dir); len(s.Files("t")) != 0 || len(s.Batches(func(*Record) bool { return true })) != 0 {
		t.Error("they are back")
	}
}
