package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/loader/source"
)

// Part is one file on its way in, written block by block in any order. Its
// methods may be called concurrently.
type Part struct {
	File source.File

	ingest      *Ingest
	path        string
	block       int64
	knownSHA256 string // sha256 of bytes the store may have
	// linked: the bytes are a blob's already, nothing is written.
	linked bool
	// arrivesElsewhere: another staging, here or in another process, brings a file of
	// these very bytes. Changed by Prepare and Settle only.
	arrivesElsewhere bool
	claimLock        *os.File // the lock that says that this staging brings it
	durable          bool     // synced and read-only

	f, journal *os.File
	// direct is the same file, written past the page cache; nil where that cannot
	// be, or does not pay.
	direct       *os.File
	directFailed atomic.Bool // the file system says no after all

	mu         sync.Mutex // guards the fields below; journal appends run under it, they are one small write
	have       []bool
	sums       []uint64        // of the blocks that are here
	writers    map[int]*Writer // of the blocks that are coming
	blocksHere int
	bytes      int64
	resumed    int64
	sha256     string
	changed    chan struct{}
}

// Blocks is how many blocks the file has; 0 for an empty one.
func (p *Part) Blocks() int { return int((p.File.Size + p.block - 1) / p.block) }

// Range is where block i lies.
func (p *Part) Range(i int) (offset, length int64) {
	offset = int64(i) * p.block
	return offset, min(p.block, p.File.Size-offset)
}

// linkExisting links a blob with the same bytes in place of a part, if there is one.
// Under the store's lock, so that the blob cannot go meanwhile.
func (p *Part) linkExisting() error {
	if p.knownSHA256 == "" {
		return nil
	}
	fi, err := os.Stat(p.ingest.s.blob(p.knownSHA256))
	if err != nil || fi.Size() != p.File.Size {
		return nil
	}
	if err := os.Remove(p.path); ignoreMissing(err) != nil {
		return err
	}
	if err := os.Remove(p.path + ".journal"); ignoreMissing(err) != nil {
		return err
	}
	if err := p.ingest.s.step("adopt blob"); err != nil {
		return err
	}
	if err := os.Link(p.ingest.s.blob(p.knownSHA256), p.path); err != nil {
		return err
	}
	p.linked, p.arrivesElsewhere = true, false
	return nil
}

// tryClaim takes the right to bring the file, where its digest is known before:
// the same bytes may be wanted under another name, or from elsewhere.
func (p *Part) tryClaim() error {
	p.arrivesElsewhere = false
	if p.knownSHA256 == "" || p.File.Size == 0 || p.claimLock != nil {
		return nil
	}
	lock, err := lockFile(p.ingest.s.path("coming", p.knownSHA256), true, false)
	if errors.Is(err, errBusy) {
		p.arrivesElsewhere = true
		return nil
	}
	p.claimLock = lock
	return err
}

// releaseClaim ends a claim.
func (p *Part) releaseClaim() {
	if p.claimLock != nil {
		// The name goes while it is locked: who opened it before finds that out.
		_ = os.Remove(p.claimLock.Name())
		p.claimLock.Close()
		p.claimLock = nil
	}
}

// ArrivesElsewhere reports whether another staging brings a file of the same bytes;
// Ingest.PollShared looks after it. For the goroutine that calls Settle.
func (p *Part) ArrivesElsewhere() bool { return p.arrivesElsewhere }

// create opens the part and makes sure its bytes fit on the disk.
func (p *Part) create() error {
	s := p.ingest.s
	if fi, err := os.Stat(p.path); err == nil {
		if n, _ := linkCount(fi); n > 1 && fi.Size() == p.File.Size {
			// A crash came between linking the blob and unlinking this. The
			// inode may be in a checkpoint: it is read from here on, never
			// written.
			if p.f, err = os.Open(p.path); err != nil {
				return err
			}
			return nil
		}
		if err := os.Chmod(p.path, 0o600); err != nil {
			return err
		}
	}
	if err := s.step("create part"); err != nil {
		return err
	}
	f, err := os.OpenFile(p.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	p.f = f
	disableReadAhead(f)
	if s.o.DirectFrom > 0 && p.File.Size >= s.o.DirectFrom && p.block%pageSize == 0 {
		p.direct = openDirect(p.path)
	}
	for {
		err := s.step("allocate part")
		if err == nil {
			err = allocate(f, p.File.Size)
		}
		if err == nil {
			return nil
		}
		if !isDiskFull(err) {
			return err
		}
		ok, everr := s.evictOldest(p.ingest.key)
		if everr != nil {
			return everr
		}
		if !ok {
			avail, ferr := freeBytes(s.o.Dir)
			if ferr != nil {
				return ferr
			}
			return noSpaceError(&NoSpace{Needed: p.File.Size, Free: max(avail-s.o.KeepFree, 0), Budget: s.o.Budget})
		}
	}
}

// dropEmpty deletes a part that has no journal, which is a reservation only.
func (p *Part) dropEmpty() {
	if _, err := os.Stat(p.path + ".journal"); err == nil || p.linked {
		return
	}
	p.closeFiles()
	_ = os.Remove(p.path)
}

// resume reads back the blocks that the journal speaks of and keeps those that
// are what it says.
func (p *Part) resume(ctx context.Context) error {
	if p.linked {
		f, err := os.Open(p.path)
		if err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.f, p.sha256 = f, p.knownSHA256
		for i := range p.have {
			p.have[i] = true
		}
		p.blocksHere, p.bytes, p.resumed = len(p.have), p.File.Size, p.File.Size
		p.notify()
		return nil
	}
	if err := p.ingest.s.step("open journal"); err != nil {
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
		if !p.rereadSum(&sum, buf, off, r.bytes) || sum.Sum64() != r.sum {
			continue // whatever the reason, the block is fetched again
		}
		p.bytes += r.bytes
		if r.bytes < n {
			if p.writers == nil {
				p.writers = make(map[int]*Writer)
			}
			w := &Writer{p: p, block: i, end: off + n, sum: sum, marked: r.bytes, kept: r.bytes}
			w.at.Store(off + r.bytes)
			p.writers[i] = w
			continue
		}
		p.have[i], p.sums[i] = true, r.sum
		p.blocksHere++
	}
	p.resumed = p.bytes
	if fi, err := p.f.Stat(); err != nil {
		return err
	} else if n, _ := linkCount(fi); n > 1 && p.blocksHere < len(p.have) {
		// See create: this inode is not ours to write.
		return p.replace()
	}
	return nil
}

// rereadSum feeds n bytes from off to sum; false when they cannot be read.
func (p *Part) rereadSum(sum *Sum, buf []byte, off, n int64) bool {
	for n > 0 {
		b := buf[:min(int64(len(buf)), n)]
		if _, err := p.f.ReadAt(b, off); err != nil {
			return false
		}
		sum.Write(b)
		off, n = off+int64(len(b)), n-int64(len(b))
	}
	return true
}

// replace starts the part anew on an inode of its own.
func (p *Part) replace() error {
	p.closeFiles()
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
	p.blocksHere, p.bytes, p.resumed, p.sha256 = 0, 0, 0, ""
	if err := p.journal.Truncate(headSize); err != nil {
		return err
	}
	_, err := p.journal.Seek(headSize, 0)
	return err
}

// Reset drops every block: the whole was not what it should be.
func (p *Part) Reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return diskError(p.File.Name, p.reset())
}

// Has reports whether block i is here and its checksum held.
func (p *Part) Has(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have[i]
}

// Bytes is how many bytes are here, in whole blocks and of those an earlier try
// left unfinished, and how many of them were here when the staging began.
func (p *Part) Bytes() (have, resumed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes, p.resumed
}

// Changed is closed when the next block comes in.
func (p *Part) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// checkEvery is how much is read at once when the journal is compared with what
// is there.
const checkEvery = 1 << 20

// notify wakes who waits for a change; the caller holds mu.
func (p *Part) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// BlockSum is the Sum that block i had when it was written; ok is false for one
// that is not here, or was another checkpoint's.
func (p *Part) BlockSum(i int) (sum uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sums[i], p.have[i] && !p.linked
}

// Linked reports whether the bytes are another checkpoint's.
func (p *Part) Linked() bool { return p.linked }

// Arrived is the offset in the file of the first byte of block i that is not here.
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

// DropBlock drops one block: read back, it was not what had been written.
func (p *Part) DropBlock(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, n := p.Range(i); p.have[i] {
		p.have[i] = false
		p.blocksHere--
		p.bytes -= n
	}
}

// StartWrite begins to bring a block to the disk, so that the fsync at the end finds
// little left to do. It may wait for the disk.
func (p *Part) StartWrite(i int) {
	if p.direct != nil && !p.directFailed.Load() {
		return
	}
	off, n := p.Range(i)
	startWrite(p.f, off, n)
}

// ReadAt reads what was put; the caller asks Has first.
func (p *Part) ReadAt(b []byte, off int64) (int, error) { return p.f.ReadAt(b, off) }

// Seal says that the whole was read, and what its sha256 is. Where that was
// known before, others may wait for the file: it goes among the blobs at once.
func (p *Part) Seal(sum string) error {
	p.mu.Lock()
	whole := p.blocksHere == len(p.have)
	p.mu.Unlock()
	if !whole || !isHex(sum, 64) {
		return diskError(p.File.Name, errors.New("sealed before it is complete"))
	}
	if p.claimLock != nil && sum == p.knownSHA256 {
		err := p.makeDurable()
		if err == nil {
			err = p.ingest.s.locked(func() error { return p.linkBlob(sum) })
		}
		if err != nil {
			return diskError(p.File.Name, err)
		}
		p.releaseClaim()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sha256 = sum
	return nil
}

// makeDurable brings every byte to the disk and lets nobody write any more.
func (p *Part) makeDurable() error {
	if p.linked || p.durable {
		return nil
	}
	if err := p.ingest.s.step("fsync part"); err != nil {
		return err
	}
	if err := p.f.Sync(); err != nil {
		return err
	}
	p.durable = true
	return p.f.Chmod(0o444)
}

// linkBlob gives the part its name among the blobs; under the store's lock.
func (p *Part) linkBlob(sum string) error {
	s := p.ingest.s
	blob := s.blob(sum)
	dir := filepath.Dir(blob)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := s.step("link blob"); err != nil {
		return err
	}
	if err := os.Link(p.path, blob); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return durable.SyncDir(dir)
}

// SHA256 is the hex sha256 of a sealed part, and "" before.
func (p *Part) SHA256() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sha256
}

// Open opens the part for a reader that outlives the staging: its bytes stay
// readable after the part's name is gone.
func (p *Part) Open() (*os.File, error) {
	f, err := os.Open(p.path)
	if err == nil {
		disableReadAhead(f)
	}
	return f, diskError(filepath.Base(p.path), err)
}

// StartRead begins to bring block i, which is here, into memory.
func (p *Part) StartRead(i int) {
	off, n := p.Range(i)
	startRead(p.f, off, n)
}

// ReadAhead is Ahead for who reads a block with a file of Open: the kernel reads
// nothing ahead of such a one by itself, because what is behind it may be on its
// way past the page cache, which would hold what was there before.
func ReadAhead(f *os.File, off, n int64) { startRead(f, off, n) }

func (p *Part) close() {
	p.closeFiles()
	if p.journal != nil {
		p.journal.Close()
		p.journal = nil
	}
	p.releaseClaim()
}

// closeFiles closes the file.
func (p *Part) closeFiles() {
	for _, f := range []*os.File{p.f, p.direct} {
		if f != nil {
			f.Close()
		}
	}
	p.f, p.direct = nil, nil
}
