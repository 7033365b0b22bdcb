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

	in    *Ingest
	path  string
	block int64
	known string // sha256 of bytes the store may have
	// linked: the bytes are a blob's already, nothing is written.
	linked bool
	// elsewhere: another staging, here or in another process, brings a file of
	// these very bytes. Changed by Prepare and Settle only.
	elsewhere bool
	coming    *os.File // the lock that says that this staging brings it
	hard      bool     // synced and read-only

	f, journal *os.File
	// past is the same file, written past the page cache; nil where that cannot
	// be, or does not pay.
	past   *os.File
	pastNo atomic.Bool // the file system says no after all

	mu      sync.Mutex // guards the fields below; journal appends run under it, they are one small write
	have    []bool
	sums    []uint64        // of the blocks that are here
	writers map[int]*Writer // of the blocks that are coming
	count   int
	bytes   int64
	resumed int64
	sum     string
	changed chan struct{}
}

// Blocks is how many blocks the file has; 0 for an empty one.
func (p *Part) Blocks() int { return int((p.File.Size + p.block - 1) / p.block) }

// Range is where block i lies.
func (p *Part) Range(i int) (offset, length int64) {
	offset = int64(i) * p.block
	return offset, min(p.block, p.File.Size-offset)
}

// adopt links a blob with the same bytes in place of a part, if there is one.
// Under the store's lock, so that the blob cannot go meanwhile.
func (p *Part) adopt() error {
	if p.known == "" {
		return nil
	}
	fi, err := os.Stat(p.in.s.blob(p.known))
	if err != nil || fi.Size() != p.File.Size {
		return nil
	}
	if err := os.Remove(p.path); gone(err) != nil {
		return err
	}
	if err := os.Remove(p.path + ".journal"); gone(err) != nil {
		return err
	}
	if err := p.in.s.step("adopt blob"); err != nil {
		return err
	}
	if err := os.Link(p.in.s.blob(p.known), p.path); err != nil {
		return err
	}
	p.linked, p.elsewhere = true, false
	return nil
}

// claim takes the right to bring the file, where its digest is known before:
// the same bytes may be wanted under another name, or from elsewhere.
func (p *Part) claim() error {
	p.elsewhere = false
	if p.known == "" || p.File.Size == 0 || p.coming != nil {
		return nil
	}
	lock, err := lockFile(p.in.s.path("coming", p.known), true, false)
	if errors.Is(err, errBusy) {
		p.elsewhere = true
		return nil
	}
	p.coming = lock
	return err
}

// unclaim ends a claim.
func (p *Part) unclaim() {
	if p.coming != nil {
		// The name goes while it is locked: who opened it before finds that out.
		_ = os.Remove(p.coming.Name())
		p.coming.Close()
		p.coming = nil
	}
}

// Elsewhere reports whether another staging brings a file of the same bytes;
// Ingest.Settle looks after it. For the goroutine that calls Settle.
func (p *Part) Elsewhere() bool { return p.elsewhere }

// create opens the part and makes sure its bytes fit on the disk.
func (p *Part) create() error {
	s := p.in.s
	if fi, err := os.Stat(p.path); err == nil {
		if n, _ := links(fi); n > 1 && fi.Size() == p.File.Size {
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
	apart(f)
	if s.o.Past > 0 && p.File.Size >= s.o.Past && p.block%page == 0 {
		p.past = openPast(p.path)
	}
	for {
		err := s.step("allocate part")
		if err == nil {
			err = allocate(f, p.File.Size)
		}
		if err == nil {
			return nil
		}
		if !full(err) {
			return err
		}
		ok, everr := s.evictOldest(p.in.key)
		if everr != nil {
			return everr
		}
		if !ok {
			avail, ferr := free(s.o.Dir)
			if ferr != nil {
				return ferr
			}
			return noSpace(&NoSpace{Needed: p.File.Size, Free: max(avail-s.o.KeepFree, 0), Budget: s.o.Budget})
		}
	}
}

// dropEmpty deletes a part that has no journal, which is a reservation only.
func (p *Part) dropEmpty() {
	if _, err := os.Stat(p.path + ".journal"); err == nil || p.linked {
		return
	}
	p.shut()
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
		p.f, p.sum = f, p.known
		for i := range p.have {
			p.have[i] = true
		}
		p.count, p.bytes, p.resumed = len(p.have), p.File.Size, p.File.Size
		p.tell()
		return nil
	}
	if err := p.in.s.step("open journal"); err != nil {
		return err
	}
	journal, sums, err := openJournal(p.path+".journal", identity(p.File), p.block, p.Blocks())
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
		if !p.reread(&sum, buf, off, r.bytes) || sum.Sum64() != r.sum {
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
		p.count++
	}
	p.resumed = p.bytes
	if fi, err := p.f.Stat(); err != nil {
		return err
	} else if n, _ := links(fi); n > 1 && p.count < len(p.have) {
		// See create: this inode is not ours to write.
		return p.replace()
	}
	return nil
}

// reread feeds n bytes from off to sum; false when they cannot be read.
func (p *Part) reread(sum *Sum, buf []byte, off, n int64) bool {
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
	p.shut()
	if err := os.Remove(p.path); err != nil {
		return err
	}
	if err := p.create(); err != nil {
		return err
	}
	return p.forget()
}

// forget drops all blocks; the caller holds mu.
func (p *Part) forget() error {
	clear(p.have)
	clear(p.writers)
	p.count, p.bytes, p.resumed, p.sum = 0, 0, 0, ""
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
	return broken(p.File.Name, p.forget())
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

// At is the offset in the file of the first byte that is missing, and where the
// block ends.
func (w *Writer) At() (at, end int64) { return w.at.Load(), w.end }

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
	w.p.drop(&w.kept)
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
		return 0, false, broken(p.File.Name, fmt.Errorf("block %d is at %d, bytes %d to %d do not fit", w.block, at, off, end))
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
		return len(b), false, w.mark(end)
	}
	sum := w.sum.Sum64()
	if w.expect != nil && *w.expect != sum {
		w.reset()
		return 0, false, ErrSum
	}
	if err := p.wrote(w, sum); err != nil {
		w.reset()
		return 0, false, err
	}
	w.whole = true
	return len(b), true, nil
}

// mark tells the journal how far the block is. Not of bytes that have yet to
// show that they are those that were promised.
func (w *Writer) mark(at int64) error {
	off, _ := w.p.Range(w.block)
	n := (at - off) / leafSize * leafSize
	if n < w.marked+markEvery || w.expect != nil || n != at-off {
		return nil
	}
	if err := w.p.in.s.step("write journal"); err != nil {
		return w.p.writeError(err)
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if _, err := w.p.journal.Write(journalRecord(w.block, record{n, w.sum.Sum64()})); err != nil {
		return w.p.writeError(err)
	}
	w.marked = n
	return nil
}

// write puts bytes at their place. A disk that turns out to be full is made
// room on once.
func (p *Part) write(b []byte, at int64) error {
	for again := false; ; again = true {
		err := p.in.s.step("write block")
		if err == nil {
			err = p.writeAt(b, at)
		}
		if err == nil {
			return nil
		}
		if !full(err) || again {
			return p.writeError(err)
		}
		ok := false
		if lerr := p.in.s.locked(func() (err error) {
			ok, err = p.in.s.evictOldest(p.in.key)
			return err
		}); lerr != nil {
			return errors.Join(p.writeError(err), lerr)
		}
		if !ok {
			return p.writeError(err)
		}
	}
}

// pastFrom is Options.Past of who says nothing.
const pastFrom = 32 << 20

// page is what lies at whole multiples of itself, in the file and in memory,
// may be written past the cache.
const page = 4096

// writeAt writes whole pages past the cache, and what is around them through
// it. No page is written in both ways at once: a block has one writer, and
// blocks end where pages do.
func (p *Part) writeAt(b []byte, at int64) error {
	if p.past != nil && !p.pastNo.Load() {
		head := int(-at & (page - 1))
		if whole := (len(b) - head) &^ (page - 1); whole > 0 && onPage(b[head:]) {
			if head > 0 {
				if _, err := p.f.WriteAt(b[:head], at); err != nil {
					return err
				}
			}
			n, err := p.past.WriteAt(b[head:head+whole], at+int64(head))
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
			if err != nil {
				p.pastNo.Store(true)
			}
			if b, at = b[head+n:], at+int64(head+n); len(b) == 0 {
				return nil
			}
		}
	}
	_, err := p.f.WriteAt(b, at)
	return err
}

func onPage(b []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(page-1) == 0 }

// drop takes bytes that an earlier try had left out of the count.
func (p *Part) drop(kept *int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes -= *kept
	*kept = 0
}

// wrote says in the journal that a block is here.
func (p *Part) wrote(w *Writer, sum uint64) error {
	i := w.block
	_, n := p.Range(i)
	if err := p.in.s.step("write journal"); err != nil {
		return p.writeError(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.journal.Write(journalRecord(i, record{n, sum})); err != nil {
		return p.writeError(err)
	}
	delete(p.writers, i)
	p.sums[i] = sum
	if !p.have[i] {
		p.have[i] = true
		p.count++
		p.bytes += n - w.kept
	}
	p.tell()
	return nil
}

// tell wakes who waits for a change; the caller holds mu.
func (p *Part) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Put writes the whole of block i.
func (p *Part) Put(i int, data []byte) error {
	off, n := p.Range(i)
	if int64(len(data)) != n {
		return broken(p.File.Name, fmt.Errorf("block %d has %d bytes, not %d", i, len(data), n))
	}
	w := p.Writer(i)
	w.Reset()
	_, _, err := w.Write(off, data)
	return err
}

// Block is the Sum that block i had when it was written; ok is false for one
// that is not here, or was another checkpoint's.
func (p *Part) Block(i int) (sum uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sums[i], p.have[i] && !p.linked
}

// Linked reports whether the bytes are another checkpoint's.
func (p *Part) Linked() bool { return p.linked }

// Came is the offset in the file of the first byte of block i that is not here.
func (p *Part) Came(i int) int64 {
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
	at, _ := w.At()
	return at
}

// Forget drops one block: read back, it was not what had been written.
func (p *Part) Forget(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, n := p.Range(i); p.have[i] {
		p.have[i] = false
		p.count--
		p.bytes -= n
	}
}

// Flush begins to bring a block to the disk, so that the fsync at the end finds
// little left to do. It may wait for the disk.
func (p *Part) Flush(i int) {
	if p.past != nil && !p.pastNo.Load() {
		return
	}
	off, n := p.Range(i)
	flush(p.f, off, n)
}

func (p *Part) writeError(err error) error {
	if !full(err) {
		return broken(p.File.Name, err)
	}
	avail, _ := free(p.in.s.o.Dir)
	return noSpace(&NoSpace{Needed: p.File.Size, Free: avail, Budget: p.in.s.o.Budget})
}

// ReadAt reads what was put; the caller asks Has first.
func (p *Part) ReadAt(b []byte, off int64) (int, error) { return p.f.ReadAt(b, off) }

// Seal says that the whole was read, and what its sha256 is. Where that was
// known before, others may wait for the file: it goes among the blobs at once.
func (p *Part) Seal(sum string) error {
	p.mu.Lock()
	whole := p.count == len(p.have)
	p.mu.Unlock()
	if !whole || !isHex(sum, 64) {
		return broken(p.File.Name, errors.New("sealed before it is complete"))
	}
	if p.coming != nil && sum == p.known {
		err := p.harden()
		if err == nil {
			err = p.in.s.locked(func() error { return p.linkBlob(sum) })
		}
		if err != nil {
			return broken(p.File.Name, err)
		}
		p.unclaim()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum = sum
	return nil
}

// harden brings every byte to the disk and lets nobody write any more.
func (p *Part) harden() error {
	if p.linked || p.hard {
		return nil
	}
	if err := p.in.s.step("fsync part"); err != nil {
		return err
	}
	if err := p.f.Sync(); err != nil {
		return err
	}
	p.hard = true
	return p.f.Chmod(0o444)
}

// linkBlob gives the part its name among the blobs; under the store's lock.
func (p *Part) linkBlob(sum string) error {
	s := p.in.s
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

// Sum is the hex sha256 of a sealed part, and "" before.
func (p *Part) Sum() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum
}

// Open opens the part for a reader that outlives the staging: its bytes stay
// readable after the part's name is gone.
func (p *Part) Open() (*os.File, error) {
	f, err := os.Open(p.path)
	if err == nil {
		apart(f)
	}
	return f, broken(filepath.Base(p.path), err)
}

// Ahead begins to bring block i, which is here, into memory.
func (p *Part) Ahead(i int) {
	off, n := p.Range(i)
	ahead(p.f, off, n)
}

// ReadAhead is Ahead for who reads a block with a file of Open: the kernel reads
// nothing ahead of such a one by itself, because what is behind it may be on its
// way past the page cache, which would hold what was there before.
func ReadAhead(f *os.File, off, n int64) { ahead(f, off, n) }

func (p *Part) close() {
	p.shut()
	if p.journal != nil {
		p.journal.Close()
		p.journal = nil
	}
	p.unclaim()
}

// shut closes the file.
func (p *Part) shut() {
	for _, f := range []*os.File{p.f, p.past} {
		if f != nil {
			f.Close()
		}
	}
	p.f, p.past = nil, nil
}
