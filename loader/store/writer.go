package store

import (
	"errors"
	"fmt"
	"hash"
	"sync"
	"sync/atomic"

	"github.com/zeebo/blake3"
)

// Writer returns the writer of block i, shared by all requests for that block.
func (p *Part) Writer(i int) *Writer {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.writers[i]
	if w == nil {
		off, n := p.Range(i)
		w = &Writer{p: p, block: i, end: off + n, whole: p.have[i], digest: blake3.New()}
		if p.store.o.NoDigests {
			w.digest = noDigest{w.digest}
		}
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

// Writer takes the bytes of one block in order, from one or several callers that bring
// the same ones. Each byte is written once, from the first to bring it, so that the
// checksum covers what is on the disk. Its methods are safe for concurrent use.
type Writer struct {
	p     *Part
	block int
	end   int64 // of the block, in the file

	mu     sync.Mutex   // guards the fields below and the order of writes
	at     atomic.Int64 // written under mu, read without it
	sum    Sum
	digest hash.Hash // of the block
	expect *uint64
	whole  bool
	marked int64 // bytes in the journal
	kept   int64 // bytes of an earlier attempt
}

// noDigest takes no bytes.
type noDigest struct{ hash.Hash }

func (noDigest) Write(b []byte) (int, error) { return len(b), nil }

// markEvery is the interval of bytes at which an incomplete block is recorded in the
// journal; a multiple of leafSize.
const markEvery = 1 << 20

// Position returns the offset in the file of the first missing byte, and where the
// block ends.
func (w *Writer) Position() (at, end int64) { return w.at.Load(), w.end }

// ErrSum means that a block does not match Expect.
var ErrSum = errors.New("the block is not what its checksum says")

// Expect sets the checksum that the block must have.
func (w *Writer) Expect(sum uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expect = &sum
}

// Reset drops the bytes of an unfinished block and the expected checksum. It returns
// how many bytes were dropped.
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
	w.sum = Sum{}
	w.digest.Reset()
	w.expect, w.marked = nil, 0
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.p.bytes -= w.kept
	w.kept = 0
	return n
}

// Write takes bytes of the file from off on, within the block; b is not kept. Bytes
// that are here already are skipped; used counts the others. whole reports that the
// block is complete and in the journal.
func (w *Writer) Write(off int64, b []byte) (used int, total bool, err error) {
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
	w.digest.Write(b)
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

// writeMark records in the journal how far the block is, unless its bytes have yet to
// match an expected checksum.
func (w *Writer) writeMark(at int64) error {
	off, _ := w.p.Range(w.block)
	n := (at - off) / leafSize * leafSize
	if n < w.marked+markEvery || w.expect != nil || n != at-off {
		return nil
	}
	if err := w.p.store.layout.step("write journal"); err != nil {
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

// write writes bytes at their offset. If the disk is full, it evicts once and retries.
func (p *Part) write(b []byte, at int64) error {
	for again := false; ; again = true {
		err := p.store.layout.step("write block")
		if err == nil {
			err = p.disk.writeAt(b, at)
		}
		if err == nil {
			return nil
		}
		if !isDiskFull(err) || again {
			return p.writeError(err)
		}
		ok := false
		if lerr := p.store.layout.locked(func() (err error) {
			ok, err = p.store.evictOldest(p.key)
			return err
		}); lerr != nil {
			return errors.Join(p.writeError(err), lerr)
		}
		if !ok {
			return p.writeError(err)
		}
	}
}

// blockWritten records in the journal that a block is complete.
func (p *Part) blockWritten(w *Writer, sum uint64) error {
	i := w.block
	_, n := p.Range(i)
	if err := p.store.layout.step("write journal"); err != nil {
		return p.writeError(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.journal.Write(journalRecord(i, blockRecord{n, sum})); err != nil {
		return p.writeError(err)
	}
	delete(p.writers, i)
	p.sums[i], p.digests[i] = sum, BlockDigest(w.digest.Sum(nil))
	if !p.have[i] {
		p.have[i] = true
		p.blocksHere++
		p.bytes += n - w.kept
	}
	p.notify()
	return nil
}

func (p *Part) writeError(err error) error {
	if !isDiskFull(err) {
		return diskError(p.File.Name, err)
	}
	free, _, _ := p.store.diskSpace()
	return p.store.noSpaceError(p.File.Size, free, 0)
}
