package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
)

// Usage returns the bytes the store takes, parts included, and the most it may take:
// its budget or, without one, what the disk has.
func (s *Store) Usage() (used, budget int64, err error) {
	if used, err = s.layout.used(); err != nil {
		return 0, 0, diskError("", err)
	}
	if s.o.Budget > 0 {
		return used, s.o.Budget, nil
	}
	free, _, err := s.diskSpace()
	return used, used + max(0, free-s.o.KeepFree), diskError("", err)
}

// Remove removes a checkpoint. One that is in use stays, with an error of kind
// Refused.
func (s *Store) Remove(digest string) error {
	h, err := ParseDigest(digest)
	if err != nil {
		return err
	}
	return diskError("", s.layout.locked(func() error {
		ok, err := s.evictCheckpoint(h)
		if errors.Is(err, os.ErrNotExist) {
			return &source.Error{Kind: source.Missing, Detail: "checkpoint " + digest + " is not in the store"}
		}
		if err == nil && !ok {
			return &source.Error{Kind: source.Refused, Detail: "checkpoint " + digest + " is in use", Fix: "stop the models that use it first"}
		}
		if err == nil {
			_, err = s.layout.dropBlobs()
		}
		return err
	}))
}

// evictCheckpoint renames a checkpoint away and deletes its links; false if a process
// uses it. The caller holds the store's lock.
func (s *Store) evictCheckpoint(h string) (bool, error) {
	dir := s.layout.path("checkpoints", h)
	lease, err := lockFile(filepath.Join(dir, "lease"), true, false)
	if errors.Is(err, errBusy) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lease.Close()
	return true, s.layout.change("evict: rename", func() error { return s.layout.discard(dir) })
}

// reserve makes room for need more bytes in the budget and on the disk. It evicts
// unpinned checkpoints, least recently used first, then parts of unclaimed stagings;
// nothing is evicted for what cannot fit. The caller holds the store's lock.
func (s *Store) reserve(need int64, keepPart string) error {
	for evicted := false; ; evicted = true {
		used, err := s.layout.used()
		if err != nil {
			return err
		}
		free, low, err := s.diskSpace()
		if err != nil {
			return err
		}
		avail := max(free-s.o.KeepFree, 0)
		total := used + avail
		if s.o.Budget > 0 {
			total = min(s.o.Budget, total)
		}
		fits := used+need <= total && need <= avail
		mark := s.o.High
		if evicted {
			mark = s.o.Low
		}
		if need == 0 || fits && used+need <= int64(mark*float64(total)) && need <= free-low {
			return nil
		}
		if !evicted && !fits {
			pinned, err := s.pinnedBytes()
			if err != nil {
				return err
			}
			if pinned+need > total {
				return s.noSpaceError(need, free, used)
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
			return s.noSpaceError(need, free, used)
		}
	}
}

// Trim evicts what no process uses, least recently used first, while less than FreeShare of
// the disk is free: others fill the disk too.
func (s *Store) Trim() error {
	if free, low, err := s.diskSpace(); err != nil || free >= low {
		return diskError("", err)
	}
	return diskError("", s.layout.locked(func() error {
		for {
			if free, low, err := s.diskSpace(); err != nil || free >= low {
				return err
			}
			if ok, err := s.evictOldest(""); err != nil || !ok {
				return err
			}
		}
	}))
}

// pinnedBytes is the size of the files that checkpoints keep which cannot be evicted.
func (s *Store) pinnedBytes() (sum int64, err error) {
	list, err := s.list()
	counted := make(map[string]bool)
	for _, e := range list {
		for _, f := range e.Files {
			if e.Pinned && !counted[f.Tree] {
				counted[f.Tree] = true
				sum += f.Size
			}
		}
	}
	return sum, err
}

const freeDisk = "free disk there (inodes too: df -i), stop a model that is in use, or name a folder on a larger disk: --data, " +
	"--store of a loader"

// noSpaceError is the error of a staging of need bytes for which nothing can be evicted.
func (s *Store) noSpaceError(need, free, used int64) error {
	e := &NoSpace{Dir: s.layout.dir, Needed: need, Free: free, Kept: s.o.KeepFree}
	fix := freeDisk
	// The bound is what leaves less: the budget or the disk.
	if left := max(s.o.Budget-used, 0); s.o.Budget > 0 && left <= max(free-s.o.KeepFree, 0) {
		e.Free, e.Budget, fix = left, s.o.Budget, "raise --store-bytes, or stop a model that is in use"
	}
	return &source.Error{Kind: source.NoSpace, Detail: "no room in the store", Fix: fix, Err: e}
}

// NoSpace is in the chain of an error of kind NoSpace: a staging needs more bytes than
// evicting all unused checkpoints would free.
type NoSpace struct {
	Dir string // of the store
	// In bytes. Free is what the disk has, of which Kept stay free; with a Budget, which is then
	// the bound, what is left of it.
	Needed, Free, Budget, Kept int64
}

func (s *NoSpace) Error() string {
	size := func(n int64) string { return functions.Bytes(n).Human() }
	text := fmt.Sprintf("%s: %s are needed, and ", s.Dir, size(s.Needed))
	switch {
	case s.Budget > 0:
		return text + fmt.Sprintf("%s are left of the %s that it may take", size(s.Free), size(s.Budget))
	case s.Free-s.Kept >= s.Needed:
		return text + fmt.Sprintf("its disk takes no more though %s are free: it has no free inode (df -i), or this user a quota", size(s.Free))
	}
	return text + fmt.Sprintf("%s are free on its disk, of which %s stay free", size(s.Free), size(s.Kept))
}

// evictOldest evicts one thing; false if nothing can be evicted.
func (s *Store) evictOldest(keepPart string) (bool, error) {
	// First blobs without a checkpoint or staging: files that were published
	// by themselves and whose staging was given up.
	if freed, err := s.layout.dropBlobs(); err != nil || freed > 0 {
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
		ok, err := s.evictCheckpoint(strings.TrimPrefix(e.Digest, "sha256:"))
		if err != nil {
			return false, err
		}
		if !ok {
			continue
		}
		freed, err := s.layout.dropBlobs()
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

// Unfinished is a staging that no process has claimed.
type Unfinished struct {
	Key      string
	Location string // "" where it ended before its files were known
	Path     string
	Files    int
	Bytes    int64 // that it takes of the store
	LastUsed time.Time
}

// Unfinished lists the stagings that no process has claimed.
func (s *Store) Unfinished() (out []Unfinished, err error) {
	dirs, err := os.ReadDir(s.layout.path("parts"))
	if err != nil {
		return nil, diskError("", err)
	}
	for _, d := range dirs {
		if !isHex(d.Name(), 32) {
			continue
		}
		u := Unfinished{Key: d.Name(), Path: s.layout.path("parts", d.Name())}
		lock, err := lockFile(filepath.Join(u.Path, "lock"), true, false)
		if err != nil {
			continue // claimed, or removed just now
		}
		if b, err := os.ReadFile(filepath.Join(u.Path, "progress")); err == nil && len(b) > 16 {
			u.Location = string(b[16:])
		}
		err = walkFiles(u.Path, func(name string, fi fs.FileInfo) error {
			if name := filepath.Base(name); name != "lock" && name != "progress" && filepath.Ext(name) != ".journal" {
				u.Files, u.Bytes = u.Files+1, u.Bytes+fi.Size()
			}
			if fi.ModTime().After(u.LastUsed) {
				u.LastUsed = fi.ModTime()
			}
			return nil
		})
		lock.Close()
		if err != nil {
			return nil, diskError("", err)
		}
		out = append(out, u)
	}
	return out, nil
}

// RemoveUnfinished removes a staging that no process has claimed. A claimed one stays, with an
// error of kind Refused.
func (s *Store) RemoveUnfinished(key string) error {
	dir := s.layout.path("parts", key)
	if _, err := os.Stat(dir); !isHex(key, 32) || err != nil {
		return &source.Error{Kind: source.Missing, Detail: "unfinished download " + key + " is not in the store"}
	}
	lock, err := lockFile(filepath.Join(dir, "lock"), true, false)
	if errors.Is(err, errBusy) {
		return &source.Error{Kind: source.Refused, Detail: "download " + key + " is running", Fix: "remove the model that it is for first"}
	}
	if err != nil {
		return diskError("", ignoreMissing(err)) // its owner removed it just now
	}
	defer lock.Close()
	return diskError("", s.layout.discard(dir))
}

// dropPart deletes the oldest staging that no process has claimed.
func (s *Store) dropPart(except string) (bool, error) {
	dirs, err := os.ReadDir(s.layout.path("parts"))
	if err != nil {
		return false, err
	}
	var parts []fs.FileInfo
	for _, d := range dirs {
		if fi, err := d.Info(); err == nil && d.Name() != except {
			parts = append(parts, fi)
		}
	}
	slices.SortStableFunc(parts, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, part := range parts {
		dir := s.layout.path("parts", part.Name())
		lock, err := lockFile(filepath.Join(dir, "lock"), true, false)
		if err != nil {
			continue
		}
		defer lock.Close()
		s.evictions.Add(1)
		s.o.Log.Info("unfinished staging dropped", "part", part.Name())
		return true, s.layout.discard(dir)
	}
	return false, nil
}
