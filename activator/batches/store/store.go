// Package store keeps the files of the Batch API, its batches and the lines of their outputs and
// errors in a folder on disk, so that a crash loses none; it sends no line to a model. After a
// crash at any point a file is there whole or not at all, and each line of a batch is in its
// output, or in its errors, or to be run.
//
// The folder has:
//
//	uploads/*              uploads under way; removed when the store is opened
//	files/ID.data, ID.json a file and what is known of it; without ID.json it is not there
//	batches/ID.json        a batch
//	batches/ID.output      the lines of its answers so far, and
//	batches/ID.errors      of its errors: the files of these names when it has ended
package store

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/loader/durable"
)

// File is what is known of a file. Times are in seconds since 1970.
type File struct {
	ID       string `json:"id"`
	Team     string `json:"team"`
	Name     string `json:"filename"`
	Purpose  string `json:"purpose"`
	Bytes    int64  `json:"bytes"`
	Created  int64  `json:"created_at"`
	Expires  int64  `json:"expires_at"`
	Sequence int64  `json:"sequence"` // orders the files of a second
}

var (
	ErrNotFound = errors.New("no such file or batch")
	ErrInUse    = errors.New("the file is the input of a batch that has not ended")
)

// Store is an open folder. Its methods may be called concurrently; one process may open a
// folder at a time.
type Store struct {
	dir string

	mu       sync.Mutex
	files    map[string]File
	batches  map[string]Record
	sequence int64
}

// Open opens a folder, which is made where it is not there, and removes what uploads and
// deletions left when an earlier process ended.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, files: map[string]File{}, batches: map[string]Record{}}
	if err := os.RemoveAll(filepath.Join(dir, "uploads")); err != nil {
		return nil, err
	}
	for _, d := range []string{"uploads", "files", "batches"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	if err := durable.SyncDir(dir); err != nil {
		return nil, err
	}
	if err := readAll(filepath.Join(dir, "batches"), func(r Record) {
		s.batches[r.ID] = r
		s.sequence = max(s.sequence, r.Sequence)
	}); err != nil {
		return nil, err
	}
	if err := readAll(filepath.Join(dir, "files"), func(f File) {
		s.files[f.ID] = f
		s.sequence = max(s.sequence, f.Sequence)
	}); err != nil {
		return nil, err
	}
	return s, s.removeStrays()
}

// readAll reads the JSON files of a folder.
func readAll[T any](dir string, add func(T)) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var v T
		if err := json.Unmarshal(b, &v); err != nil {
			return fmt.Errorf("%s: %w; move the file away to go on without it", path, err)
		}
		add(v)
	}
	return nil
}

// removeStrays removes contents of files that were never finished, or were deleted, and
// forgets files whose content is gone.
func (s *Store) removeStrays() error {
	ending := map[string]bool{}
	for _, r := range s.batches {
		if !r.Ended() {
			for _, id := range []*string{r.OutputFileID, r.ErrorFileID} {
				if id != nil {
					ending[*id] = true
				}
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "files"))
	if err != nil {
		return err
	}
	contents := map[string]bool{}
	for _, e := range entries {
		id, isContent := strings.CutSuffix(e.Name(), ".data")
		_, known := s.files[id]
		switch {
		case isContent && (known || ending[id]):
			contents[id] = true
		case isContent, strings.HasSuffix(e.Name(), ".new"):
			if err := os.Remove(filepath.Join(s.dir, "files", e.Name())); err != nil {
				return err
			}
		}
	}
	for id := range s.files {
		if !contents[id] {
			delete(s.files, id)
			if err := os.Remove(s.metaOf(id)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) metaOf(id string) string    { return filepath.Join(s.dir, "files", id+".json") }
func (s *Store) contentOf(id string) string { return filepath.Join(s.dir, "files", id+".data") }

// Upload is a file that is being written.
type Upload struct {
	s    *Store
	f    *os.File
	Size int64 // bytes that were written
}

// NewUpload begins a file. Commit or Discard must follow.
func (s *Store) NewUpload() (*Upload, error) {
	f, err := os.CreateTemp(filepath.Join(s.dir, "uploads"), "")
	if err != nil {
		return nil, err
	}
	return &Upload{s: s, f: f}, nil
}

func (u *Upload) Write(p []byte) (int, error) {
	n, err := u.f.Write(p)
	u.Size += int64(n)
	return n, err
}

// Commit makes the upload a file. Its Bytes and Sequence are set here. An upload that could
// not be committed is gone.
func (u *Upload) Commit(f File) (File, error) {
	f.Bytes = u.Size
	if err := errors.Join(u.f.Sync(), u.f.Close()); err != nil {
		os.Remove(u.f.Name())
		return File{}, err
	}
	f, err := u.s.add(f, u.f.Name())
	if err != nil {
		os.Remove(u.f.Name())
	}
	return f, err
}

func (u *Upload) Discard() {
	u.f.Close()
	os.Remove(u.f.Name())
}

// add makes the flushed content at path, which it moves, the content of a file.
func (s *Store) add(f File, path string) (File, error) {
	s.mu.Lock()
	s.sequence++
	f.Sequence = s.sequence
	s.mu.Unlock()
	err := os.Rename(path, s.contentOf(f.ID))
	if err == nil {
		err = s.write(s.metaOf(f.ID), f)
	}
	if err != nil {
		return File{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[f.ID] = f
	return f, nil
}

// write replaces a JSON file. The names in its folder are flushed with it.
func (s *Store) write(path string, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(b, '\n'), 0o600)
}

func (s *Store) File(team, id string) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[id]
	if !ok || f.Team != team {
		return File{}, ErrNotFound
	}
	return f, nil
}

// Files returns the files of a team, the newest first.
func (s *Store) Files(team string) []File {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.DeleteFunc(slices.Collect(maps.Values(s.files)), func(f File) bool { return f.Team != team })
	slices.SortFunc(list, func(a, b File) int { return int(b.Sequence - a.Sequence) })
	return list
}

// Content opens a file of a team for reading.
func (s *Store) Content(team, id string) (*os.File, File, error) {
	f, err := s.File(team, id)
	if err != nil {
		return nil, f, err
	}
	c, err := os.Open(s.contentOf(id))
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNotFound // it was deleted a moment ago
	}
	return c, f, err
}

// Delete removes a file of a team. A reader that has it open reads on.
func (s *Store) Delete(team, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[id]
	if !ok || f.Team != team {
		return ErrNotFound
	}
	return s.deleteFile(f)
}

// deleteFile removes a file that no batch needs any more. mu is held.
func (s *Store) deleteFile(f File) error {
	for _, r := range s.batches {
		if r.InputFileID == f.ID && !r.Ended() {
			return ErrInUse
		}
	}
	if err := os.Remove(s.metaOf(f.ID)); err != nil {
		return err
	}
	delete(s.files, f.ID)
	return os.Remove(s.contentOf(f.ID)) // if it stays, the next Open removes it
}

// keepBatches is how long a batch is kept after its end.
const keepBatches = 30 * 24 * time.Hour

// Expire removes the files whose time is over, unless a batch still reads them, and the
// batches that have ended long ago.
func (s *Store) Expire(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range s.files {
		if f.Expires > 0 && f.Expires <= now.Unix() {
			if err := s.deleteFile(f); err != nil && !errors.Is(err, ErrInUse) {
				errs = append(errs, err)
			}
		}
	}
	for id, r := range s.batches {
		if end := r.EndedAt(); end > 0 && end+int64(keepBatches/time.Second) <= now.Unix() {
			if err := os.Remove(s.batchPath(id, "json")); err != nil {
				errs = append(errs, err)
				continue
			}
			delete(s.batches, id)
		}
	}
	return errors.Join(errs...)
}
