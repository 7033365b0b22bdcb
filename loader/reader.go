package loader

import (
	"io"
	"os"
	"sync"

	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// Reader reads a file that may still be arriving. Every block it returns matched its
// checksum; the digest of the whole file is known only when the staging is ready.
// ReadAt is safe for concurrent use; Close ends waiting reads.
type Reader struct {
	job  *stagingJob
	plan *stagingPlan // nil when the file is complete
	part *store.Part
	file *os.File
	size int64

	once   sync.Once
	closed chan struct{}
	off    int64 // of Read, owned by its caller
}

func (r *Reader) Size() int64 { return r.size }

// ReadAt implements io.ReaderAt and waits for missing blocks.
func (r *Reader) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off >= r.size {
		return 0, io.EOF
	}
	short := false
	if int64(len(b)) > r.size-off {
		b, short = b[:r.size-off], true
	}
	if err := r.wait(off, int64(len(b))); err != nil {
		return 0, err
	}
	n, err := r.file.ReadAt(b, off)
	if err != nil {
		return n, &source.Error{Kind: source.Broken, Source: r.job.location, Detail: "cannot be read back", Err: err}
	}
	if short {
		err = io.EOF
	}
	return n, err
}

// wait waits for the blocks that hold n bytes from off.
func (r *Reader) wait(off, n int64) error {
	if r.plan == nil || n <= 0 {
		return nil
	}
	block := r.job.loader.o.Block
	for i := off / block; i <= (off+n-1)/block; i++ {
		if err := r.await(int(i)); err != nil {
			return err
		}
		if first := i * block; first >= off {
			store.ReadAhead(r.file, first, min(block, r.size-first))
		}
	}
	return nil
}

func (r *Reader) await(i int) error {
	for {
		next := r.part.Changed()
		if r.part.Has(i) {
			return nil
		}
		r.plan.queue.prioritize(blockRef{r.part, i})
		select {
		case <-next:
		case <-r.closed:
			return os.ErrClosed
		case <-r.plan.stale:
			return &source.Error{Kind: source.Changed, Source: r.job.location, File: r.part.File.Name, Detail: "changed while it was read"}
		case <-r.job.done:
			if r.part.Has(i) {
				return nil
			}
			if r.job.err != nil {
				return r.job.err
			}
			return &source.Error{Kind: source.Changed, Source: r.job.location, File: r.part.File.Name, Detail: "changed while it was read"}
		}
	}
}

// Read continues where the last Read ended.
func (r *Reader) Read(b []byte) (int, error) {
	n, err := r.ReadAt(b, r.off)
	r.off += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// Close may be called more than once.
func (r *Reader) Close() error {
	r.cancel()
	return r.file.Close()
}

// cancel ends waiting reads.
func (r *Reader) cancel() { r.once.Do(func() { close(r.closed) }) }
