package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// ErrBusy means that another process stages the same.
var ErrBusy = errors.New("another process is staging it")

// Ingest is one staging in progress, claimed by one process. Its methods are for one
// goroutine; its parts are safe for concurrent use.
type Ingest struct {
	s           *Store
	key         string
	dir         string
	lock        *fileLock
	progress    *os.File
	locationKey string
	block       int64
	Parts       []*Part // in the order of the plan
	removed     bool    // the folder is gone, or another claim's
}

// LocationKey is a location together with the patterns of files staged beside the standard
// ones: two models that stage other files of one location share no plan. Without
// patterns it is the location.
func LocationKey(location string, also source.Globs) string {
	if len(also) == 0 {
		return location
	}
	also = slices.Compact(slices.Sorted(slices.Values(also)))
	return fmt.Sprintf("%s\n%q", location, also)
}

func locationOf(locationKey string) string {
	location, _, _ := strings.Cut(locationKey, "\n") // no location holds a control character
	return location
}

// Key names a staging on the node: a place and its demanded digest, if any.
func Key(locationKey, digest string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", locationKey, digest))
	return hex.EncodeToString(sum[:16])
}

// Claim takes the staging called key, or returns ErrBusy at once if another process
// (or another Claim here) has it. The claim ends with Close, or with the process.
func (s *Store) Claim(key string) (*Ingest, error) {
	if !isHex(key, 32) {
		return nil, diskError("", fmt.Errorf("staging key %q", key))
	}
	dir := s.layout.path("parts", key)
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, diskError("", err)
		}
		lock, err := lockFile(filepath.Join(dir, "lock"), true, false)
		switch {
		case errors.Is(err, errBusy):
			return nil, ErrBusy
		case errors.Is(err, os.ErrNotExist):
			continue // its owner removed the folder just now
		case err != nil:
			return nil, diskError("", err)
		}
		progress, err := os.OpenFile(filepath.Join(dir, "progress"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			lock.Close()
			return nil, diskError("", err)
		}
		return &Ingest{s: s, key: key, dir: dir, lock: lock, progress: progress}, nil
	}
}

// SetProgress shows the progress, and the location for Unfinished, to other processes.
// Errors are ignored: it is only informative.
func (i *Ingest) SetProgress(done, total int64) {
	b := binary.LittleEndian.AppendUint64(nil, uint64(done))
	b = binary.LittleEndian.AppendUint64(b, uint64(total))
	_, _ = i.progress.WriteAt(append(b, locationOf(i.locationKey)...), 0)
}

// Progress returns what SetProgress wrote last, in any process.
func (s *Store) Progress(key string) (done, total int64, ok bool) {
	b, err := os.ReadFile(s.layout.path("parts", key, "progress"))
	if err != nil || len(b) < 16 {
		return 0, 0, false
	}
	return int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:])), true
}

// Prepare reserves the bytes of files, evicting if it must, and takes over what is
// still valid of an earlier attempt and what other checkpoints hold. ctx bounds
// reading that back. It is called once per plan; a second call, after the source
// changed, drops the parts of old versions.
func (i *Ingest) Prepare(ctx context.Context, locationKey string, files []source.File, block int64) error {
	i.closeParts()
	i.locationKey = locationKey
	names := map[string]bool{"lock": true, "progress": true}
	i.block = block
	known := i.s.Plans.knownTrees(locationKey, files, block)
	for index, f := range files {
		if err := source.CheckName(f.Name); err != nil {
			return err
		}
		p := &Part{File: f, block: block, store: i.s, key: i.key, path: filepath.Join(i.dir, partName(f)), knownTree: known[index],
			changed: make(chan struct{})}
		p.have, p.sums, p.digests = make([]bool, p.Blocks()), make([]uint64, p.Blocks()), make([]BlockDigest, p.Blocks())
		names[filepath.Base(p.path)] = true
		names[filepath.Base(p.path)+".journal"] = true
		i.Parts = append(i.Parts, p)
	}
	err := i.s.layout.locked(func() error { return i.allocate(names) })
	if err == nil {
		for _, p := range i.Parts {
			if p.OtherWriter {
				continue
			}
			if err = p.resume(ctx); err != nil {
				break
			}
		}
	}
	if err != nil {
		i.closeParts()
	}
	return diskError("", err)
}

// allocate runs under the store's lock.
func (i *Ingest) allocate(names map[string]bool) error {
	s := i.s
	list, err := os.ReadDir(i.dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if !names[e.Name()] {
			if err := os.Remove(filepath.Join(i.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	var need int64
	for _, p := range i.Parts {
		if err := p.linkExisting(); err != nil {
			return err
		}
		if p.Linked {
			continue
		}
		if err := p.tryClaim(); err != nil {
			return err
		}
		if p.OtherWriter {
			continue
		}
		if fi, err := os.Stat(p.path); err == nil {
			need += max(p.File.Size-fi.Size(), 0)
		} else {
			need += p.File.Size
		}
	}
	if err := s.layout.change("reserve", func() error { return s.reserve(need, i.key) }); err != nil {
		return err
	}
	for index, p := range i.Parts {
		if p.Linked || p.OtherWriter {
			continue
		}
		if err := p.create(); err != nil {
			// Nothing of this attempt stays: a part without a block is only a
			// reservation.
			for _, q := range i.Parts[:index+1] {
				q.dropEmpty()
			}
			return err
		}
	}
	return nil
}

// Commit publishes: every part must be sealed. It returns the checkpoint with a lease
// on it.
func (i *Ingest) Commit() (Entry, *Lease, error) {
	if i.s.o.NoDigests {
		return Entry{}, nil, diskError("", errors.New("a store without digests publishes nothing"))
	}
	e := Entry{Format: format, Block: i.block, Source: locationOf(i.locationKey), Created: time.Now().UTC().Truncate(time.Second)}
	for _, p := range i.Parts {
		tree := p.Tree()
		if tree == "" {
			return Entry{}, nil, diskError(p.File.Name, errors.New("committed before it was verified"))
		}
		e.Files = append(e.Files, File{Name: p.File.Name, Size: p.File.Size, Tree: tree})
		e.Bytes += p.File.Size
	}
	e.Digest = Digest(e.Files)
	out, lease, err := i.commit(e)
	if err != nil {
		lease.Release()
		return Entry{}, nil, diskError("", err)
	}
	return out, lease, nil
}

func (i *Ingest) commit(e Entry) (out Entry, lease *Lease, err error) {
	s := i.s
	for _, p := range i.Parts {
		if err := p.makeDurable(); err != nil {
			return Entry{}, nil, err
		}
	}
	err = s.layout.locked(func() error {
		for _, p := range i.Parts {
			if err := p.linkBlob(p.Tree()); err != nil {
				return err
			}
		}
		// The folders made above are new names.
		if err := s.layout.syncFolder(s.layout.path("blobs", "tree")); err != nil {
			return err
		}
		if err := s.layout.publish(e); err != nil {
			return err
		}
		if err := i.writeIndex(e); err != nil {
			return err
		}
		// Under the lock: another staging that needs space does not evict it first.
		out, lease, err = s.Acquire(e.Digest)
		return err
	})
	if err == nil {
		err = s.layout.step("unlink parts")
	}
	if err != nil {
		return Entry{}, lease, err
	}
	i.closeParts()
	return out, lease, i.remove()
}

// PollShared checks a part that another staging fetches (Part.OtherWriter): if its
// bytes are published they are linked; if that staging gave up, the part becomes this
// one's. It reports whether one of the two has happened.
func (i *Ingest) PollShared(ctx context.Context, p *Part) (bool, error) {
	s := i.s
	err := s.layout.locked(func() error {
		if err := p.linkExisting(); err != nil || p.Linked {
			return err
		}
		if err := p.tryClaim(); err != nil || p.OtherWriter {
			return err
		}
		if err := s.reserve(p.File.Size, i.key); err != nil {
			return err
		}
		if err := p.create(); err != nil {
			p.dropEmpty()
			return err
		}
		return nil
	})
	if err != nil {
		return false, diskError(p.File.Name, err)
	}
	if p.OtherWriter {
		return false, nil
	}
	return true, diskError(p.File.Name, p.resume(ctx))
}

func (i *Ingest) closeParts() {
	for _, p := range i.Parts {
		p.close()
	}
	i.Parts = nil
}

// remove deletes the staging's folder. It renames it first: a process waiting for the
// lock in it must find all of it or nothing (lockFile).
func (i *Ingest) remove() error {
	i.removed = true
	return i.s.layout.discard(i.dir)
}

// Close ends the claim. What arrived stays for the next claim; a staging without bytes
// leaves nothing.
func (i *Ingest) Close() {
	for _, p := range i.Parts {
		// A reservation without bytes is removed.
		if fi, err := os.Stat(p.path + ".journal"); err == nil && fi.Size() <= headSize && p.File.Size > 0 {
			_ = os.Remove(p.path)
			_ = os.Remove(p.path + ".journal")
		}
	}
	i.closeParts()
	// A folder that is there after Commit or Discard is the next claim's.
	if list, err := os.ReadDir(i.dir); !i.removed && err == nil && len(list) <= 2 {
		_ = i.remove()
	}
	i.progress.Close()
	i.lock.Close()
}

func (i *Ingest) Discard() error {
	i.closeParts()
	return diskError("", i.remove())
}
