package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// Options of a store.
type Options struct {
	// Dir is made if it is not there.
	Dir string
	// Budget is the most bytes the store may take; 0 means as much as the disk
	// has.
	Budget int64
	// High and Low are parts of the budget, or of what the disk has for the
	// store: when more than High would be taken, checkpoints go until no more
	// than Low is, so that not every staging evicts a little; 0.95 and 0.85 when
	// 0. The budget itself is the bound: a model that needs more than High
	// and fits is let in.
	High, Low float64
	// KeepFree is left free on the disk for everything else (logs first of
	// all).
	KeepFree int64
	// DirectFrom is the size of a file from which on it is written past the page
	// cache; 32 MiB when 0, never when it is less.
	DirectFrom int64
	// Private closes the store to other users, but for the files of a checkpoint
	// to whoever is given its folder (Entry.Path) open: what is around it cannot be
	// reached from there.
	Private bool
	// Log may be nil.
	Log *slog.Logger
	// Step, when set, is called before each step that changes the disk, with
	// the step's name. Tests stop the process there; an error fails the step.
	Step func(name string) error
}

// Store is a folder of checkpoints. All methods may be called concurrently,
// and by several processes on the same folder.
type Store struct {
	o Options

	evictions, evicted, quarantined atomic.Int64
}

// File is one file of a checkpoint.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Entry is a published checkpoint.
type Entry struct {
	// Digest is "sha256:" and the hex digest of the list of files: equal
	// digests are equal files under equal names.
	Digest  string    `json:"digest"`
	Source  string    `json:"source"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"`
	Files   []File    `json:"files"`

	// Path is the folder with the files under their own names.
	Path     string    `json:"-"`
	LastUsed time.Time `json:"-"`
	// Leased: a process uses it. Kept: Pin was called. Pinned is either: it is
	// not evicted.
	Leased, PinnedByUser, Pinned bool `json:"-"`
}

// Open opens a file of the checkpoint by its own name; the caller holds a
// lease.
func (e Entry) Open(name string) (*os.File, error) {
	root, err := os.OpenRoot(e.Path)
	if err != nil {
		return nil, diskError(name, err)
	}
	defer root.Close()
	f, err := root.Open(filepath.FromSlash(name))
	return f, diskError(name, err)
}

// Stats is what a store has done since it was opened.
type Stats struct {
	Evictions    int64 // checkpoints and unfinished stagings
	EvictedBytes int64
	Quarantined  int64 // files that Verify took out
}

// Stats counts what this process did.
func (s *Store) Stats() Stats {
	return Stats{Evictions: s.evictions.Load(), EvictedBytes: s.evicted.Load(), Quarantined: s.quarantined.Load()}
}

// Pin keeps a checkpoint from being evicted until Unpin, also over restarts.
// Remove and Verify take it out all the same.
func (s *Store) Pin(digest string) error { return s.setPin(digest, true) }

// Unpin takes a Pin back.
func (s *Store) Unpin(digest string) error { return s.setPin(digest, false) }

func (s *Store) setPin(digest string, setPin bool) error {
	_, lease, err := s.Acquire(digest)
	if err != nil {
		return err
	}
	defer lease.Release()
	mark := filepath.Join(filepath.Dir(lease.f.Name()), pinName)
	if !setPin {
		return diskError("", ignoreMissing(os.Remove(mark)))
	}
	if err := writeSync(mark, nil, 0o644); err != nil {
		return diskError("", err)
	}
	return diskError("", syncDir(filepath.Dir(mark)))
}

// pinName is the file that says that a checkpoint is pinned.
const pinName = "pin"

// Digest is the digest of a checkpoint with these files.
func Digest(files []File) string {
	lines := make([]string, 0, len(files))
	for _, f := range files {
		lines = append(lines, fmt.Sprintf("%s %d %s\n", f.SHA256, f.Size, f.Name))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ParseDigest returns the hex part of "sha256:…", and an error for anything
// that is not exactly that: digests become names of folders.
func ParseDigest(d string) (string, error) {
	h, ok := strings.CutPrefix(d, "sha256:")
	if ok && isHex(h, 64) {
		return h, nil
	}
	return "", &source.Error{Kind: source.BadSource, What: fmt.Sprintf("%.80q is not a digest", d), Fix: "sha256: and 64 lower-case hex digits"}
}

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// Open makes the folders and clears what earlier processes left half deleted.
func Open(o Options) (*Store, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	abs, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, diskError("", err)
	}
	o.Dir = abs
	if o.High == 0 {
		o.High = 0.95
	}
	if o.Low == 0 {
		o.Low = 0.85
	}
	if o.DirectFrom == 0 {
		o.DirectFrom = directFrom
	}
	s := &Store{o: o}
	for _, d := range []string{"blobs/sha256", "checkpoints", "sources", "parts", "coming", "trash"} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return nil, diskError("", err)
		}
	}
	if o.Private {
		if err := s.makePrivate(); err != nil {
			return nil, diskError("", err)
		}
	}
	// Another process that holds the lock does its own sweeping.
	lock, err := lockFile(s.path("lock"), true, false)
	if errors.Is(err, errBusy) {
		return s, nil
	}
	if err != nil {
		return nil, diskError("", err)
	}
	defer lock.Close()
	if err := s.sweep(); err != nil {
		return nil, diskError("", err)
	}
	return s, nil
}

// makePrivate takes the store away from other users; the folder of each checkpoint too,
// for "files/.." of one that somebody was given is that.
func (s *Store) makePrivate() error {
	if err := os.Chmod(s.o.Dir, 0o700); err != nil {
		return err
	}
	list, err := os.ReadDir(s.path("checkpoints"))
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := os.Chmod(s.path("checkpoints", e.Name()), 0o700); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// sweep removes what no one can be using: the store's lock is held, so every
// half-made folder belongs to a process that is gone.
func (s *Store) sweep() error {
	list, err := os.ReadDir(s.path("trash"))
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := os.RemoveAll(s.path("trash", e.Name())); err != nil {
			return err
		}
	}
	if list, err = os.ReadDir(s.path("checkpoints")); err != nil {
		return err
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), newPrefix) {
			if err := os.RemoveAll(s.path("checkpoints", e.Name())); err != nil {
				return err
			}
		}
	}
	if list, err = os.ReadDir(s.path("coming")); err != nil {
		return err
	}
	for _, e := range list {
		if f, err := lockFile(s.path("coming", e.Name()), true, false); err == nil {
			_ = os.Remove(f.Name())
			f.Close()
		}
	}
	_, err = s.dropBlobs()
	return err
}

const newPrefix = ".new-"

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.o.Dir}, parts...)...)
}

func (s *Store) blob(sum string) string { return s.path("blobs", "sha256", sum[:2], sum) }

func (s *Store) step(name string) error {
	if s.o.Step == nil {
		return nil
	}
	return s.o.Step(name)
}

// locked runs fn with the store's lock, which other processes hold for as long
// as links take, never while bytes move.
func (s *Store) locked(fn func() error) error {
	f, err := lockFile(s.path("lock"), true, true)
	if err != nil {
		return diskError("", err)
	}
	defer f.Close()
	return fn()
}

// diskError wraps an error of the disk.
func diskError(file string, err error) error {
	if err == nil || source.KindOf(err) != "" {
		return err
	}
	if isDiskFull(err) {
		return &source.Error{Kind: source.NoSpace, File: file, What: "the store's disk is full", Err: err}
	}
	return &source.Error{Kind: source.Broken, File: file, What: "the store's disk", Err: err}
}

// Lease keeps a checkpoint from being evicted until it is released or the
// process ends.
type Lease struct {
	f *os.File
}

// Release may be called more than once, and on nil.
func (l *Lease) Release() {
	if l == nil || l.f == nil {
		return
	}
	// The end of a use is the last use.
	touch(l.f.Name())
	l.f.Close()
	l.f = nil
}

func touch(path string) {
	now := time.Now()
	// Only the order of eviction hangs on it.
	_ = os.Chtimes(path, now, now)
}

// Acquire takes a lease on a published checkpoint. An error of kind Missing
// says that it is not here.
func (s *Store) Acquire(digest string) (Entry, *Lease, error) {
	h, err := ParseDigest(digest)
	if err != nil {
		return Entry{}, nil, err
	}
	dir := s.path("checkpoints", h)
	if _, err := os.Stat(dir); err != nil {
		return Entry{}, nil, &source.Error{Kind: source.Missing, What: "checkpoint " + digest + " is not in the store"}
	}
	f, err := lockFile(filepath.Join(dir, "lease"), false, true)
	if errors.Is(err, os.ErrNotExist) {
		return Entry{}, nil, &source.Error{Kind: source.Missing, What: "checkpoint " + digest + " is not in the store"}
	}
	if err != nil {
		return Entry{}, nil, diskError("", err)
	}
	e, err := s.entry(h)
	if err != nil {
		f.Close()
		return Entry{}, nil, diskError("", err)
	}
	touch(f.Name())
	e.Leased, e.Pinned = true, true
	return e, &Lease{f: f}, nil
}

// AcquirePath takes a lease on the checkpoint whose files lie at path. Where
// path is no checkpoint's of this store both results are nil.
func (s *Store) AcquirePath(path string) (*Lease, error) {
	dir := filepath.Dir(path)
	if h := filepath.Base(dir); filepath.Base(path) == "files" && isHex(h, 64) && dir == s.path("checkpoints", h) {
		_, lease, err := s.Acquire("sha256:" + h)
		return lease, err
	}
	return nil, nil
}

func (s *Store) entry(h string) (Entry, error) {
	dir := s.path("checkpoints", h)
	raw, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return Entry{}, err
	}
	var e Entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return Entry{}, fmt.Errorf("manifest of %s: %w", h, err)
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

// List returns the published checkpoints, last used first.
func (s *Store) List() ([]Entry, error) {
	var out []Entry
	err := s.locked(func() (err error) {
		out, err = s.list()
		return err
	})
	return out, diskError("", err)
}

// list wants the store's lock: probing a lease takes it for a moment.
func (s *Store) list() ([]Entry, error) {
	dirs, err := os.ReadDir(s.path("checkpoints"))
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
		f, err := lockFile(s.path("checkpoints", d.Name(), "lease"), true, false)
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

// Usage is the bytes the store takes, parts included, and the most it may take:
// its budget or, where it has none, what the disk has.
func (s *Store) Usage() (used, budget int64, err error) {
	if used, err = s.used(); err != nil {
		return 0, 0, diskError("", err)
	}
	if s.o.Budget > 0 {
		return used, s.o.Budget, nil
	}
	left, err := freeBytes(s.o.Dir)
	return used, used + max(0, left-s.o.KeepFree), diskError("", err)
}

// used counts every inode once: a part that is being published is also a blob.
func (s *Store) used() (int64, error) {
	var sum int64
	seen := make(map[uint64]bool)
	for _, dir := range []string{"blobs", "parts"} {
		err := filepath.WalkDir(s.path(dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return ignoreMissing(err)
			}
			fi, err := d.Info()
			if err != nil {
				return ignoreMissing(err)
			}
			n, inode := linkCount(fi)
			if n > 1 {
				if seen[inode] {
					return nil
				}
				seen[inode] = true
			}
			sum += fi.Size()
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// ignoreMissing forgives files that disappear while a folder is walked.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Remove takes a checkpoint out. One in use is not removed: errors of kind
// Refused say so.
func (s *Store) Remove(digest string) error {
	h, err := ParseDigest(digest)
	if err != nil {
		return err
	}
	return diskError("", s.locked(func() error {
		ok, err := s.evictCheckpoint(h)
		if errors.Is(err, os.ErrNotExist) {
			return &source.Error{Kind: source.Missing, What: "checkpoint " + digest + " is not in the store"}
		}
		if err == nil && !ok {
			return &source.Error{Kind: source.Refused, What: "checkpoint " + digest + " is in use", Fix: "stop the models that use it first"}
		}
		if err == nil {
			_, err = s.dropBlobs()
		}
		return err
	}))
}

// evictCheckpoint takes one checkpoint out of sight and deletes its links; false means
// that it is pinned. The caller holds the store's lock.
func (s *Store) evictCheckpoint(h string) (bool, error) {
	dir := s.path("checkpoints", h)
	if _, err := os.Stat(dir); err != nil {
		return false, err
	}
	lease, err := lockFile(filepath.Join(dir, "lease"), true, false)
	if errors.Is(err, errBusy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lease.Close()
	if err := s.step("evict: rename"); err != nil {
		return false, err
	}
	return true, s.discard(dir)
}

// dropBlobs deletes blobs that have no name but their own, and returns the
// bytes that came free. The caller holds the store's lock: a commit links a
// blob and a checkpoint under one hold of it.
func (s *Store) dropBlobs() (int64, error) {
	var freed int64
	err := filepath.WalkDir(s.path("blobs"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreMissing(err)
		}
		fi, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		if n, _ := linkCount(fi); n > 1 {
			return nil
		}
		if err := os.Remove(p); err != nil {
			return ignoreMissing(err)
		}
		freed += fi.Size()
		return nil
	})
	return freed, err
}

// reserve makes room for need more bytes in the budget and on the disk, by
// evicting what was used longest ago and is not pinned, then parts that nobody
// is staging. Nothing is evicted for what cannot fit. The caller holds the
// store's lock.
func (s *Store) reserve(need int64, keepPart string) error {
	for evicted := false; ; evicted = true {
		used, err := s.used()
		if err != nil {
			return err
		}
		avail, err := freeBytes(s.o.Dir)
		if err != nil {
			return err
		}
		avail = max(avail-s.o.KeepFree, 0)
		whole := used + avail
		if s.o.Budget > 0 {
			whole = min(s.o.Budget, whole)
		}
		fits := used+need <= whole && need <= avail
		mark := s.o.High
		if evicted {
			mark = s.o.Low
		}
		if need == 0 || fits && used+need <= int64(mark*float64(whole)) {
			return nil
		}
		if !evicted && !fits {
			can, err := s.evictable()
			if err != nil {
				return err
			}
			if used-can+need > whole {
				return s.noRoom(need, avail, used)
			}
		}
		ok, err := s.evictOldest(keepPart)
		if err != nil {
			return err
		}
		switch {
		case ok:
		case fits:
			return nil
		default:
			return s.noRoom(need, avail, used)
		}
	}
}

// evictable is at most how many bytes would come free if everything went that
// may.
func (s *Store) evictable() (int64, error) {
	used, err := s.used()
	if err != nil {
		return 0, err
	}
	list, err := s.list()
	if err != nil {
		return 0, err
	}
	kept := make(map[string]int64)
	for _, e := range list {
		for _, f := range e.Files {
			if e.Pinned {
				kept[f.SHA256] = f.Size
			}
		}
	}
	for _, n := range kept {
		used -= n
	}
	return used, nil
}

func (s *Store) noRoom(need, avail, used int64) error {
	if s.o.Budget > 0 {
		left := max(s.o.Budget-used, 0)
		return noSpaceError(&NoSpace{Needed: need, Free: min(avail, left), Budget: s.o.Budget})
	}
	return noSpaceError(&NoSpace{Needed: need, Free: avail})
}

func noSpaceError(e *NoSpace) error {
	return &source.Error{Kind: source.NoSpace, What: "no room in the store", Fix: "raise the store's budget, free disk, or stop a model that is in use", Err: e}
}

// NoSpace is in the chain of an error of kind NoSpace: a staging needs more bytes than can be had, with
// everything evicted that nobody uses.
type NoSpace struct {
	Needed, Free, Budget int64 // bytes; Budget 0: the disk is the bound
}

func (e *NoSpace) Error() string {
	if e.Budget > 0 {
		return fmt.Sprintf("%d bytes are needed and %d are free (the store may take %d)", e.Needed, e.Free, e.Budget)
	}
	return fmt.Sprintf("%d bytes are needed and %d are free on the disk", e.Needed, e.Free)
}

// evictOldest evicts one thing; false when nothing can go.
func (s *Store) evictOldest(keepPart string) (bool, error) {
	// First what no checkpoint and no staging holds any more: a file that was
	// published by itself, and whose staging was given up.
	if freed, err := s.dropBlobs(); err != nil || freed > 0 {
		return freed > 0, err
	}
	list, err := s.list()
	if err != nil {
		return false, err
	}
	for _, e := range slices.Backward(list) {
		if e.Pinned {
			continue
		}
		h, err := ParseDigest(e.Digest)
		if err != nil {
			return false, err
		}
		ok, err := s.evictCheckpoint(h)
		if err != nil {
			return false, err
		}
		if !ok {
			continue
		}
		freed, err := s.dropBlobs()
		if err != nil {
			return false, err
		}
		s.evictions.Add(1)
		s.evicted.Add(freed)
		s.o.Log.Info("checkpoint evicted", "digest", e.Digest, "source", e.Source, "freed", freed)
		return true, nil
	}
	return s.dropPart(keepPart)
}

// dropPart deletes the oldest staging that no process is at work on.
func (s *Store) dropPart(keep string) (bool, error) {
	dirs, err := os.ReadDir(s.path("parts"))
	if err != nil {
		return false, err
	}
	var name string
	var age time.Time
	for _, d := range dirs {
		fi, err := d.Info()
		if err != nil || d.Name() == keep {
			continue
		}
		lock, err := lockFile(s.path("parts", d.Name(), "lock"), true, false)
		if err != nil {
			continue
		}
		lock.Close()
		if name == "" || fi.ModTime().Before(age) {
			name, age = d.Name(), fi.ModTime()
		}
	}
	if name == "" {
		return false, nil
	}
	lock, err := lockFile(s.path("parts", name, "lock"), true, false)
	if err != nil {
		return false, nil
	}
	defer lock.Close()
	s.evictions.Add(1)
	s.o.Log.Info("unfinished staging dropped", "part", name)
	return true, s.discard(s.path("parts", name))
}

// Verify reads a checkpoint again and compares every file with its digest. A
// file that differs is taken out together with every checkpoint that holds it,
// so that the next Stage fetches it anew; the error (kind Digest) names it.
// Checkpoints in use are taken out too: who maps a bad file keeps its bytes,
// and nobody new gets them.
func (s *Store) Verify(digest string) error {
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
	for _, f := range e.Files {
		sum, n, err := hashFile(root, f.Name)
		if err == nil && sum == f.SHA256 && n == f.Size {
			continue
		}
		bad := &source.Error{Kind: source.Digest, Source: e.Source, File: f.Name, What: "the stored file is not what was verified when it came", Fix: "it was taken out and will be fetched again", Err: err}
		if err := s.locked(func() error { return s.quarantine(f.SHA256) }); err != nil {
			return errors.Join(bad, err)
		}
		return bad
	}
	return nil
}

// quarantine takes out a blob and the checkpoints that link to it.
func (s *Store) quarantine(sum string) error {
	list, err := s.list()
	if err != nil {
		return err
	}
	for _, e := range list {
		if !slices.ContainsFunc(e.Files, func(f File) bool { return f.SHA256 == sum }) {
			continue
		}
		h, err := ParseDigest(e.Digest)
		if err != nil {
			return err
		}
		if err := s.discard(s.path("checkpoints", h)); err != nil {
			return err
		}
	}
	s.quarantined.Add(1)
	if err := os.Remove(s.blob(sum)); err != nil {
		return ignoreMissing(err)
	}
	_, err = s.dropBlobs()
	return err
}
