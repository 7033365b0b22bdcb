package store

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/loader/source"
)

// Part is one file on its way in, written block by block in any order. Its methods are
// safe for concurrent use.
type Part struct {
	File source.File

	store     *Store
	key       string // of the staging
	path      string
	block     int64
	knownTree string // tree digest of bytes the store may have
	// Linked: the bytes are those of an existing blob, nothing is written.
	Linked bool
	// OtherWriter: another staging, here or in another process, brings a file of
	// these very bytes. Set by Prepare and PollShared only, and for the goroutine that calls them.
	OtherWriter bool
	claimLock   *fileLock // the lock that marks this staging as its fetcher
	durable     bool      // synced and read-only

	disk    diskFile
	journal *os.File

	mu         sync.Mutex // guards the fields below; journal appends run under it, they are one small write
	have       []bool
	sums       []uint64        // of complete blocks
	digests    []BlockDigest   // of complete blocks
	writers    map[int]*Writer // of incomplete blocks
	blocksHere int
	bytes      int64
	tree       string
	changed    chan struct{}
}

// Blocks is how many blocks the file has; 0 for an empty one.
func (p *Part) Blocks() int { return int((p.File.Size + p.block - 1) / p.block) }

func (p *Part) Range(i int) (offset, length int64) {
	offset = int64(i) * p.block
	return offset, min(p.block, p.File.Size-offset)
}

// linkExisting links a blob with the same bytes in place of the part, if there is one.
// It runs under the store's lock, so that the blob cannot be evicted meanwhile.
func (p *Part) linkExisting() error {
	s := p.store
	if p.knownTree == "" && p.File.SHA256 != "" {
		p.knownTree = s.Plans.treeOfSHA256(p.File.SHA256, p.block)
	}
	if p.knownTree == "" {
		return nil
	}
	fi, err := os.Stat(s.layout.blob(p.knownTree))
	if err != nil || fi.Size() != p.File.Size {
		return nil
	}
	if err := errors.Join(ignoreMissing(os.Remove(p.path)), ignoreMissing(os.Remove(p.path+".journal"))); err != nil {
		return err
	}
	if err := s.layout.change("adopt blob", func() error { return os.Link(s.layout.blob(p.knownTree), p.path) }); err != nil {
		return err
	}
	p.Linked, p.OtherWriter = true, false
	return nil
}

// tryClaim takes the right to fetch the file, if a digest of it is known before: another
// staging may fetch the same bytes under another name.
func (p *Part) tryClaim() error {
	p.OtherWriter = false
	known := p.File.SHA256
	if !isHex(known, 64) {
		known = p.knownTree
	}
	if known == "" || p.File.Size == 0 || p.claimLock != nil {
		return nil
	}
	lock, err := lockFile(p.store.layout.path("coming", known), true, false)
	if errors.Is(err, errBusy) {
		p.OtherWriter = true
		return nil
	}
	p.claimLock = lock
	return err
}

// create opens the part and allocates its bytes on the disk.
func (p *Part) create() error {
	s := p.store
	if fi, err := os.Stat(p.path); err == nil {
		if n, _ := linkCount(fi); n > 1 && fi.Size() == p.File.Size {
			// A crash happened between linking the blob and unlinking this. The
			// inode may be in a checkpoint: it is read from here on, never
			// written.
			p.disk.cached, err = os.Open(p.path)
			return err
		}
		if err := os.Chmod(p.path, 0o600); err != nil {
			return err
		}
	}
	direct := s.o.DirectFrom > 0 && p.File.Size >= s.o.DirectFrom && p.block%pageSize == 0
	if err := s.layout.change("create part", func() error { return p.disk.open(p.path, direct) }); err != nil {
		return err
	}
	for {
		err := s.layout.change("allocate part", func() error { return allocate(p.disk.cached, p.File.Size) })
		if err == nil {
			return nil
		}
		if !isDiskFull(err) {
			return err
		}
		ok, everr := s.evictOldest(p.key)
		if everr != nil {
			return everr
		}
		if !ok {
			free, _, ferr := s.diskSpace()
			if ferr != nil {
				return ferr
			}
			return s.noSpaceError(p.File.Size, free, 0)
		}
	}
}

// dropEmpty deletes a part without a journal: it is only a reservation.
func (p *Part) dropEmpty() {
	if _, err := os.Stat(p.path + ".journal"); err == nil || p.Linked {
		return
	}
	p.disk.close()
	_ = os.Remove(p.path)
}

// resume reads back the blocks of the journal and keeps those whose checksum matches.
func (p *Part) resume(ctx context.Context) error {
	if p.Linked {
		f, err := os.Open(p.path)
		if err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.disk.cached, p.tree = f, p.knownTree
		for i := range p.have {
			p.have[i] = true
		}
		p.blocksHere, p.bytes = len(p.have), p.File.Size
		p.notify()
		return nil
	}
	if err := p.store.layout.step("open journal"); err != nil {
		return err
	}
	journal, sums, err := openJournal(p.path+".journal", versionID(p.File), p.block, p.Blocks())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.journal = journal
	var buf []byte
	for i, r := range sums {
		if err := ctx.Err(); err != nil {
			return err
		}
		off, n := p.Range(i)
		if r.bytes <= 0 || r.bytes > n {
			continue
		}
		if buf == nil {
			buf = make([]byte, min(p.block, p.File.Size, checkEvery))
		}
		var sum Sum
		digest := blake3.New()
		read, err := io.CopyBuffer(io.MultiWriter(&sum, digest), io.NewSectionReader(p.disk.cached, off, r.bytes), buf)
		if err != nil || read != r.bytes || sum.Sum64() != r.sum {
			continue // the block is fetched again
		}
		p.bytes += r.bytes
		if r.bytes < n {
			if p.writers == nil {
				p.writers = make(map[int]*Writer)
			}
			w := &Writer{p: p, block: i, end: off + n, sum: sum, digest: digest, marked: r.bytes, kept: r.bytes}
			w.at.Store(off + r.bytes)
			p.writers[i] = w
			continue
		}
		p.have[i], p.sums[i], p.digests[i] = true, r.sum, BlockDigest(digest.Sum(nil))
		p.blocksHere++
	}
	if fi, err := p.disk.cached.Stat(); err != nil {
		return err
	} else if n, _ := linkCount(fi); n > 1 && p.blocksHere < len(p.have) {
		// See create: this inode must not be written.
		return p.store.layout.locked(p.replace)
	}
	return nil
}

// replace restarts the part on a new inode. The caller holds mu and the store's lock.
func (p *Part) replace() error {
	p.disk.close()
	if err := os.Remove(p.path); err != nil {
		return err
	}
	if err := p.create(); err != nil {
		return err
	}
	return p.reset()
}

// reset drops all blocks; the caller holds mu.
func (p *Part) reset() error {
	clear(p.have)
	clear(p.writers)
	p.blocksHere, p.bytes, p.tree = 0, 0, ""
	if err := p.journal.Truncate(headSize); err != nil {
		return err
	}
	_, err := p.journal.Seek(headSize, 0)
	return err
}

// Reset drops every block: the whole file was bad.
func (p *Part) Reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.reset(); err != nil {
		return diskError(p.File.Name, err)
	}
	if fi, err := p.disk.cached.Stat(); err != nil {
		return diskError(p.File.Name, err)
	} else if n, _ := linkCount(fi); n > 1 {
		// See create: this inode must not be written, and readers have it open.
		return &source.Error{Kind: source.Changed, File: p.File.Name, Detail: "of an earlier checkpoint is not what its source names now"}
	}
	return nil
}

// Has reports whether block i is complete and its checksum matched.
func (p *Part) Has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have[i]
}

// Bytes returns how many bytes are here, in whole blocks and in unfinished ones of an
// earlier attempt.
func (p *Part) Bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// Changed returns a channel that is closed when the next block completes.
func (p *Part) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// checkEvery is how much is read at once when the journal is compared with what
// is there.
const checkEvery = 1 << 20

// notify wakes waiters of Changed; the caller holds mu.
func (p *Part) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// BlockSum returns the checksum that block i had when it was written; ok is false if
// it is not here, or belongs to another checkpoint.
func (p *Part) BlockSum(i int) (sum uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sums[i], p.have[i] && !p.Linked
}

// Arrived is the offset in the file of the first missing byte of block i.
func (p *Part) Arrived(i int) int64 {
	p.mu.Lock()
	w := p.writers[i]
	have := p.have[i]
	p.mu.Unlock()
	off, n := p.Range(i)
	switch {
	case have:
		return off + n
	case w == nil:
		return off
	}
	at, _ := w.Position()
	return at
}

// DropBlock drops one block: it is not what its sender should have sent, or, read back,
// differed from what was written.
func (p *Part) DropBlock(i int) {
	p.ForgetBlocks(i)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, n := p.Range(i); p.have[i] {
		p.have[i] = false
		p.blocksHere--
		p.bytes -= n
	}
}

// ForgetBlocks records in the journal that blocks are not here, so that another attempt fetches
// them; in this one they stay until DropBlock or Reset.
func (p *Part) ForgetBlocks(blocks ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.journal == nil {
		return
	}
	for _, i := range blocks {
		if _, err := p.journal.Write(journalRecord(i, blockRecord{})); err != nil {
			p.store.o.Log.Warn("a dropped block is in the journal still", "file", p.File.Name, "block", i, "error", err)
		}
	}
}

// IsPublished reports whether the part's bytes are those of a blob by their digest. It is
// called when no goroutine works on the part.
func (p *Part) IsPublished() bool { return p.Linked || p.durable }

// StartWrite starts to write a block back to the disk, so that the final fsync finds
// little left. It may wait for the disk.
func (p *Part) StartWrite(i int) {
	off, n := p.Range(i)
	p.disk.startWrite(off, n)
}

// ReadAt reads bytes of blocks that are here (Has).
func (p *Part) ReadAt(b []byte, off int64) (int, error) { return p.disk.cached.ReadAt(b, off) }

// Finish marks the part as verified: every block is here, and the whole file has the
// digests that the source names. If one of them was known before, other stagings may
// wait for the file: it is published as a blob at once.
func (p *Part) Finish() error {
	p.mu.Lock()
	complete, tree := p.blocksHere == len(p.have), p.tree
	if complete && tree == "" {
		tree = Tree(p.File.Size, p.block, p.digests)
	}
	p.mu.Unlock()
	if !complete {
		return diskError(p.File.Name, errors.New("finished before it is complete"))
	}
	if p.claimLock != nil && !p.store.o.NoDigests && (p.File.SHA256 != "" || tree == p.knownTree) {
		err := p.makeDurable()
		if err == nil {
			err = p.store.layout.locked(func() error { return p.publishBlob(tree) })
		}
		if err != nil {
			return diskError(p.File.Name, err)
		}
		p.claimLock.remove()
		p.claimLock = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tree = tree
	return nil
}

// publishBlob links the part among the blobs, and under the sha256 that its source names;
// under the store's lock.
func (p *Part) publishBlob(tree string) error {
	if err := p.linkBlob(tree); err != nil || p.File.SHA256 == "" {
		return err
	}
	known := p.store.Plans.knownPath(p.File.SHA256, p.block)
	return p.store.layout.change("write known digest", func() error { return durable.WriteFile(known, []byte(tree), 0o644) })
}

// makeDurable writes every byte to the disk and makes the file read-only.
func (p *Part) makeDurable() error {
	if p.Linked || p.durable {
		return nil
	}
	if err := p.store.layout.change("fsync part", func() error { return p.store.layout.fsync(p.disk.cached) }); err != nil {
		return err
	}
	p.durable = true
	return p.disk.cached.Chmod(0o444)
}

// linkBlob links the part among the blobs; under the store's lock.
func (p *Part) linkBlob(tree string) error {
	s := p.store
	blob := s.layout.blob(tree)
	dir := filepath.Dir(blob)
	if err := os.MkdirAll(dir, s.layout.folderMode()); err != nil {
		return err
	}
	err := s.layout.change("link blob", func() error { return os.Link(p.path, blob) })
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return s.layout.syncFolder(dir)
}

// Tree is the hex tree digest of a finished part, and "" before.
func (p *Part) Tree() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tree
}

// Open opens the part for a reader that may outlive the staging: the bytes stay
// readable after the part's name is gone.
func (p *Part) Open() (*os.File, error) {
	f, err := os.Open(p.path)
	if err == nil {
		disableReadAhead(f)
	}
	return f, diskError(filepath.Base(p.path), err)
}

// StartRead starts to read block i, which is here, into the page cache.
func (p *Part) StartRead(i int) {
	off, n := p.Range(i)
	startRead(p.disk.cached, off, n)
}

// ReadAhead starts to read n bytes from off of a file from Part.Open into the page
// cache. The kernel's own read-ahead is off for such files: it would cache bytes
// before they are written by O_DIRECT.
func ReadAhead(f *os.File, off, n int64) { startRead(f, off, n) }

func (p *Part) close() {
	p.disk.close()
	p.journal.Close()
	p.claimLock.remove()
	p.journal, p.claimLock = nil, nil
}
