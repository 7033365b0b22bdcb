package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/thaw-dev/thaw/loader/source"
)

// Part is one file on its way in, written block by block in any order. Its
// methods may be called concurrently; a block is put by one caller.
type Part struct {
	File source.File

	in    *Ingest
	path  string
	block int64
	known string // sha256 of bytes the store may have
	// linked: the bytes are a blob's already, nothing is written.
	linked bool

	f, journal *os.File

	mu      sync.Mutex // guards the fields below; journal appends run under it, they are one small write
	have    []bool
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
	p.linked = true
	return nil
}

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
	if p.f != nil {
		p.f.Close()
		p.f = nil
	}
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
	if len(sums) > 0 {
		buf = make([]byte, min(p.block, p.File.Size))
	}
	for i, sum := range sums {
		if err := ctx.Err(); err != nil {
			return err
		}
		off, n := p.Range(i)
		if _, err := p.f.ReadAt(buf[:n], off); err != nil {
			continue // whatever the reason, the block is fetched again
		}
		if xxh3.Hash(buf[:n]) != sum {
			continue
		}
		p.have[i] = true
		p.count++
		p.bytes += n
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

// replace starts the part anew on an inode of its own.
func (p *Part) replace() error {
	p.f.Close()
	p.f = nil
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

// Bytes is how many bytes are here, and how many of them were when the staging
// began.
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

// Put writes block i and then says so in the journal. data is the whole block
// and is not kept.
func (p *Part) Put(i int, data []byte) error {
	off, n := p.Range(i)
	if int64(len(data)) != n {
		return broken(p.File.Name, fmt.Errorf("block %d has %d bytes, not %d", i, len(data), n))
	}
	sum := xxh3.Hash(data)
	if err := p.in.s.step("write block"); err != nil {
		return p.writeError(err)
	}
	if _, err := p.f.WriteAt(data, off); err != nil {
		return p.writeError(err)
	}
	if err := p.in.s.step("write journal"); err != nil {
		return broken(p.File.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.journal.Write(journalRecord(i, sum)); err != nil {
		return p.writeError(err)
	}
	if !p.have[i] {
		p.have[i] = true
		p.count++
		p.bytes += n
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
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

// Seal says that the whole was read, and what its sha256 is.
func (p *Part) Seal(sum string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count != len(p.have) || !isHex(sum, 64) {
		return broken(p.File.Name, errors.New("sealed before it is complete"))
	}
	p.sum = sum
	return nil
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
	return f, broken(filepath.Base(p.path), err)
}

func (p *Part) close() {
	for _, f := range []*os.File{p.f, p.journal} {
		if f != nil {
			f.Close()
		}
	}
	p.f, p.journal = nil, nil
}
