package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

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

// Writer is how block i comes in. Who fetches the same block at the same time
// shares it.
func (p *Part) Writer(i int) *Writer {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.writers[i]
	if w == nil {
		off, n := p.Range(i)
		w = &Writer{p: p, block: i, end: off + n, whole: p.have[i]}
		if w.at.Store(off); w.whole {
			w.at.Store(w.end)
			return w
		}
		if p.writers == nil {
			p.writers = make(map[int]*Writer)
		}
		p.writers[i] = w
	}
	return w
}

// Writer takes the bytes of one block in order, from one caller or from
// several who bring the same ones: each byte is written once, whoever brings it
// first, so that a checksum speaks of what is on the disk. Its methods may be
// called concurrently.
type Writer struct {
	p     *Part
	block int
	end   int64 // of the block, in the file

	mu     sync.Mutex   // guards the fields below and the order of writes
	at     atomic.Int64 // written under mu, read by anybody
	sum    Sum
	expect *uint64
	whole  bool
	marked int64 // bytes that the journal speaks of
	kept   int64 // bytes that an earlier try left
}

// markEvery is how many bytes of a block the journal says that they came
// before all have. A multiple of a leaf.
const markEvery = 1 << 20

// checkEvery is how much is read at once when the journal is compared with what
// is there.
const checkEvery = 1 << 20

// Position is the offset in the file of the first byte that is missing, and where the
// block ends.
func (w *Writer) Position() (at, end int64) { return w.at.Load(), w.end }

// ErrSum says that a block is not what Expect promised.
var ErrSum = errors.New("the block is not what its checksum says")

// Expect says what the Sum of the block must be.
func (w *Writer) Expect(sum uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expect = &sum
}

// Reset drops what has come of an unfinished block, and what was expected. It
// returns how many bytes that were.
func (w *Writer) Reset() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reset()
}

func (w *Writer) reset() int64 {
	if w.whole {
		return 0
	}
	off, _ := w.p.Range(w.block)
	n := w.at.Load() - off
	w.at.Store(off)
	w.sum.Reset()
	w.expect, w.marked = nil, 0
	w.p.dropKept(&w.kept)
	return n
}

// Write takes the bytes of the file from off on; b does not reach beyond the
// block and is not kept. What another brought already is passed over; used is
// the rest. whole says that the block is complete and in the journal.
func (w *Writer) Write(off int64, b []byte) (used int, whole bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.p
	at, end := w.at.Load(), off+int64(len(b))
	switch {
	case w.whole:
		return 0, true, nil
	case off > at || end > w.end:
		return 0, false, diskError(p.File.Name, fmt.Errorf("block %d is at %d, bytes %d to %d do not fit", w.block, at, off, end))
	case end <= at:
		return 0, false, nil
	}
	b = b[at-off:]
	w.sum.Write(b)
	if err := p.write(b, at); err != nil {
		w.reset()
		return 0, false, err
	}
	if w.at.Store(end); end < w.end {
		return len(b), false, w.writeMark(end)
	}
	sum := w.sum.Sum64()
	if w.expect != nil && *w.expect != sum {
		w.reset()
		return 0, false, ErrSum
	}
	if err := p.blockWritten(w, sum); err != nil {
		w.reset()
		return 0, false, err
	}
	w.whole = true
	return len(b), true, nil
}

// writeMark tells the journal how far the block is. Not of bytes that have yet to
// show that they are those that were promised.
func (w *Writer) writeMark(at int64) error {
	off, _ := w.p.Range(w.block)
	n := (at - off) / leafSize * leafSize
	if n < w.marked+markEvery || w.expect != nil || n != at-off {
		return nil
	}
	if err := w.p.ingest.s.step("write journal"); err != nil {
		return w.p.writeError(err)
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if _, err := w.p.journal.Write(journalRecord(w.block, blockRecord{n, w.sum.Sum64()})); err != nil {
		return w.p.writeError(err)
	}
	w.marked = n
	return nil
}

// write puts bytes at their place. A disk that turns out to be full is made
// room on once.
func (p *Part) write(b []byte, at int64) error {
	for again := false; ; again = true {
		err := p.ingest.s.step("write block")
		if err == nil {
			err = p.writeAt(b, at)
		}
		if err == nil {
			return nil
		}
		if !isDiskFull(err) || again {
			return p.writeError(err)
		}
		ok := false
		if lerr := p.ingest.s.locked(func() (err error) {
			ok, err = p.ingest.s.evictOldest(p.ingest.key)
			return err
		}); lerr != nil {
			return errors.Join(p.writeError(err), lerr)
		}
		if !ok {
			return p.writeError(err)
		}
	}
}

// directFrom is Options.DirectFrom of who says nothing.
const directFrom = 32 << 20

// pageSize is what lies at whole multiples of itself, in the file and in memory,
// may be written past the cache.
const pageSize = 4096

// writeAt writes whole pages past the cache, and what is around them through
// it. No page is written in both ways at once: a block has one writer, and
// blocks end where pages do.
func (p *Part) writeAt(b []byte, at int64) error {
	if p.direct != nil && !p.directFailed.Load() {
		head := int(-at & (pageSize - 1))
		if whole := (len(b) - head) &^ (pageSize - 1); whole > 0 && pageAligned(b[head:]) {
			if head > 0 {
				if _, err := p.f.WriteAt(b[:head], at); err != nil {
					return err
				}
			}
			n, err := p.direct.WriteAt(b[head:head+whole], at+int64(head))
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
			if err != nil {
				p.directFailed.Store(true)
			}
			if b, at = b[head+n:], at+int64(head+n); len(b) == 0 {
				return nil
			}
		}
	}
	_, err := p.f.WriteAt(b, at)
	return err
}

func pageAligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(pageSize-1) == 0
}

// dropKept takes bytes that an earlier try had left out of the count.
func (p *Part) dropKept(kept *int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes -= *kept
	*kept = 0
}

// blockWritten says in the journal that a block is here.
func (p *Part) blockWritten(w *Writer, sum uint64) error {
	i := w.block
	_, n := p.Range(i)
	if err := p.ingest.s.step("write journal"); err != nil {
		return p.writeError(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.journal.Write(journalRecord(i, blockRecord{n, sum})); err != nil {
		return p.writeError(err)
	}
	delete(p.writers, i)
	p.sums[i] = sum
	if !p.have[i] {
		p.have[i] = true
		p.blocksHere++
		p.bytes += n - w.kept
	}
	p.notify()
	return nil
}

// notify wakes who waits for a change; the caller holds mu.
func (p *Part) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Put writes the whole of block i.
func (p *Part) Put(i int, data []byte) error {
	off, n := p.Range(i)
	if int64(len(data)) != n {
		return diskError(p.File.Name, fmt.Errorf("block %d has %d bytes, not %d", i, len(data), n))
	}
	w := p.Writer(i)
	w.Reset()
	_, _, err := w.Write(off, data)
	return err
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

func (p *Part) writeError(err error) error {
	if !isDiskFull(err) {
		return diskError(p.File.Name, err)
	}
	avail, _ := freeBytes(p.ingest.s.o.Dir)
	return noSpaceError(&NoSpace{Needed: p.File.Size, Free: avail, Budget: p.ingest.s.o.Budget})
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
	return syncDir(dir)
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
