package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/loader/source"
)

type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Tree string `json:"tree"` // hex tree digest of its blocks
}

type Entry struct {
	// Format of the store that wrote the manifest; another one is not read.
	Format int `json:"format"`
	// Block is the size of the blocks of the files' tree digests.
	Block int64 `json:"block"`
	// Digest is "sha256:" and the hex digest of the list of files: equal digests mean
	// equal files under equal names.
	Digest  string    `json:"digest"`
	Source  string    `json:"source"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"`
	Files   []File    `json:"files"`

	// Path is the folder with the files under their own names.
	Path     string    `json:"-"`
	LastUsed time.Time `json:"-"`
	// Leased: a process uses it. PinnedByUser: it has a pin. Pinned is either of the
	// two; then it is not evicted.
	Leased, PinnedByUser, Pinned bool `json:"-"`
}

// Open opens a file of the checkpoint; the caller holds a lease.
func (e Entry) Open(name string) (*os.File, error) {
	root, err := os.OpenRoot(e.Path)
	if err != nil {
		return nil, diskError(name, err)
	}
	defer root.Close()
	f, err := root.Open(filepath.FromSlash(name))
	return f, diskError(name, err)
}

// SetPin sets or removes a checkpoint's pin, which protects it from eviction, also across
// restarts. Remove and Verify ignore it.
func (s *Store) SetPin(digest string, pinned bool) error {
	_, lease, err := s.Acquire(digest)
	if err != nil {
		return err
	}
	defer lease.Release()
	mark := filepath.Join(filepath.Dir(lease.f.Name()), pinName)
	if !pinned {
		return diskError("", ignoreMissing(os.Remove(mark)))
	}
	return diskError("", durable.WriteFile(mark, nil, 0o644))
}

// pinName is the file that marks a checkpoint as pinned.
const pinName = "pin"

func Digest(files []File) string {
	lines := functions.ConvertAll(files, func(f File) string { return fmt.Sprintf("%s %d %s\n", f.Tree, f.Size, f.Name) })
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ParseDigest returns the hex part of "sha256:…", and an error for anything else:
// digests become names of folders.
func ParseDigest(d string) (string, error) {
	h, ok := strings.CutPrefix(d, "sha256:")
	if ok && isHex(h, 64) {
		return h, nil
	}
	return "", source.Fail(source.BadSource, fmt.Sprintf("%.80q is not a digest", d), "sha256: and 64 lower-case hex digits")
}

func isHex(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" }

// Lease protects a checkpoint from eviction until it is released or the process ends.
type Lease struct {
	f *fileLock
}

// Release may be called more than once, and on nil.
func (l *Lease) Release() {
	if l == nil || l.f == nil {
		return
	}
	// The end of a use is the last use.
	updateAccessTime(l.f.Name())
	l.f.Close()
	l.f = nil
}

func updateAccessTime(path string) {
	now := time.Now()
	// Only the order of eviction depends on it.
	_ = os.Chtimes(path, now, now)
}

// Acquire takes a lease on a published checkpoint. An error of kind Missing means that
// it is not here.
func (s *Store) Acquire(digest string) (Entry, *Lease, error) {
	h, err := ParseDigest(digest)
	if err != nil {
		return Entry{}, nil, err
	}
	dir := s.layout.path("checkpoints", h)
	f, err := lockFile(filepath.Join(dir, "lease"), false, true)
	if errors.Is(err, os.ErrNotExist) {
		return Entry{}, nil, &source.Error{Kind: source.Missing, Detail: "checkpoint " + digest + " is not in the store"}
	}
	if err != nil {
		return Entry{}, nil, diskError("", err)
	}
	e, err := s.entry(h)
	if err != nil {
		f.Close()
		return Entry{}, nil, diskError("", err)
	}
	updateAccessTime(f.Name())
	e.Leased, e.Pinned = true, true
	return e, &Lease{f: f}, nil
}

// AcquirePath takes a lease on the checkpoint whose files lie at path. Both results
// are nil if path is not a checkpoint of this store.
func (s *Store) AcquirePath(path string) (*Lease, error) {
	dir := filepath.Dir(path)
	if h := filepath.Base(dir); filepath.Base(path) == "files" && isHex(h, 64) && dir == s.layout.path("checkpoints", h) {
		_, lease, err := s.Acquire("sha256:" + h)
		return lease, err
	}
	return nil, nil
}

func (s *Store) entry(h string) (Entry, error) {
	dir := s.layout.path("checkpoints", h)
	raw, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Entry{}, err
	}
	var e Entry
	if err != nil || json.Unmarshal(raw, &e) != nil {
		e = Entry{Format: format} // of no other version
	}
	if e.Format != format || !e.valid(h) {
		return Entry{Format: e.Format}, source.Fail(source.Missing,
			"checkpoint sha256:"+h+" was written by another version of thaw or is damaged",
			"it is deleted when no process uses it, and staged again")
	}
	e.Path = filepath.Join(dir, "files")
	if fi, err := os.Stat(filepath.Join(dir, "lease")); err == nil {
		e.LastUsed = fi.ModTime()
	}
	if _, err := os.Stat(filepath.Join(dir, pinName)); err == nil {
		e.PinnedByUser, e.Pinned = true, true
	}
	return e, nil
}

// valid reports whether a manifest of this format is whole: its trees become names of
// files, and its block size bounds the memory of a verification.
func (e Entry) valid(h string) bool {
	return e.Digest == "sha256:"+h && e.Block >= minBlock && !slices.ContainsFunc(e.Files, func(f File) bool {
		return !isHex(f.Tree, 64) || f.Size < 0 || source.CheckName(f.Name) != nil
	})
}

// minBlock is the smallest block size of a tree digest, in bytes.
const minBlock = 512

// List returns the published checkpoints, last used first.
func (s *Store) List() ([]Entry, error) {
	var out []Entry
	err := s.layout.locked(func() (err error) {
		out, err = s.list()
		return err
	})
	return out, diskError("", err)
}

// list returns the entries; the caller holds the store's lock, because probing a lease
// takes it for a moment.
func (s *Store) list() ([]Entry, error) {
	dirs, err := os.ReadDir(s.layout.path("checkpoints"))
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, d := range dirs {
		if !isHex(d.Name(), 64) {
			continue
		}
		e, err := s.entry(d.Name())
		if err != nil {
			s.o.Log.Warn("checkpoint cannot be read", "digest", d.Name(), "err", err)
			continue
		}
		f, err := lockFile(s.layout.path("checkpoints", d.Name(), "lease"), true, false)
		switch {
		case errors.Is(err, errBusy):
			e.Leased, e.Pinned = true, true
		case err != nil:
			return nil, err
		default:
			f.Close()
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return b.LastUsed.Compare(a.LastUsed) })
	return out, nil
}

// Verify reads a checkpoint again and compares every file with its digest. A bad file
// is removed together with every checkpoint that holds it, so that the next Stage fetches
// it again, and no other file; the error (kind Digest) names the first. Checkpoints in use
// are removed too: processes that map the file keep its bytes. If the checkpoint was removed
// meanwhile, nothing is, and the error has kind Missing. A file that cannot be read for
// another reason than its disk's ends the verification.
func (s *Store) Verify(ctx context.Context, digest string) error {
	e, lease, err := s.Acquire(digest)
	if err != nil {
		return err
	}
	defer lease.Release()
	root, err := os.OpenRoot(e.Path)
	if err != nil {
		return diskError("", err)
	}
	defer root.Close()
	folder, err := root.Stat(".")
	if err != nil {
		return diskError("", err)
	}
	var first error
	var bad []os.FileInfo // nil for a file that is not there
	for _, f := range e.Files {
		good, info, err := compareFile(ctx, root, f, e.Block)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && good {
			continue
		}
		if err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrNotExist) {
			return diskError(f.Name, err)
		}
		if bad = append(bad, info); first == nil {
			first = &source.Error{
				Kind: source.Digest, Source: e.Source, File: f.Name,
				Detail: "the stored file is not what was verified when it came",
				Fix:    "it was taken out and will be fetched again", Err: err,
			}
		}
	}
	if first == nil {
		return nil
	}
	if err := s.layout.locked(func() error { return s.quarantine(e, folder, bad) }); err != nil {
		if source.KindOf(err) == source.Missing {
			return err
		}
		return errors.Join(first, err)
	}
	return first
}

// quarantine removes a checkpoint of which files are bad, their blobs, and the other
// checkpoints that link to one. Their other files stay for the next staging, until space
// is needed. Nothing is removed if folder, which holds the bad files, is no longer the
// checkpoint's: another verification has removed it, and it may have been staged again.
func (s *Store) quarantine(e Entry, folder os.FileInfo, bad []os.FileInfo) error {
	if now, err := os.Stat(e.Path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(now, folder) {
		return source.Fail(source.Missing, "checkpoint "+e.Digest+" was removed while it was verified",
			"it is fetched again when a model needs it").At(e.Source, "")
	} else if err != nil {
		return err
	}
	isBad := func(name string) bool {
		info, err := os.Stat(name)
		return err == nil && slices.ContainsFunc(bad, func(b os.FileInfo) bool { return os.SameFile(b, info) })
	}
	list, err := s.list()
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, other := range list {
		drop := other.Digest == e.Digest
		for _, f := range other.Files {
			if isBad(filepath.Join(other.Path, filepath.FromSlash(f.Name))) {
				drop, found[f.Tree] = true, true
			}
		}
		if !drop {
			continue
		}
		if err := s.layout.discard(filepath.Dir(other.Path)); err != nil {
			return err
		}
	}
	for tree := range found {
		s.quarantined.Add(1)
		if name := s.layout.blob(tree); isBad(name) {
			if err := ignoreMissing(os.Remove(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareFile reports whether a file below root has its digest, and returns the file that
// was read; nil if it is not there.
func compareFile(ctx context.Context, root *os.Root, file File, block int64) (good bool, info os.FileInfo, err error) {
	f, err := root.Open(filepath.FromSlash(file.Name))
	if err != nil {
		return false, nil, err
	}
	defer f.Close()
	info, err = f.Stat()
	if err != nil || info.Size() != file.Size {
		return false, info, err
	}
	tree, err := ReadTree(ctx, f, file.Size, block)
	return tree == file.Tree, info, err
}
