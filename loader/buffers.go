package loader

import (
	"context"
	"sync"
	"unsafe"
)

// bufferPool holds the buffers between socket and disk, one for each range in flight,
// and so bounds the memory of all stagings. A buffer fits the processor's cache
// between read, checksum and write, and is large enough for one write: a quarter of
// its size costs up to half as much processor time again.
type bufferPool struct {
	size  int
	slots chan struct{} // one entry per buffer in use

	mu   sync.Mutex
	free [][]byte
}

func (p *bufferPool) get(ctx context.Context) ([]byte, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b, nil
	}
	return alignedBuffer(p.size), nil
}

func (p *bufferPool) put(b []byte) {
	p.mu.Lock()
	p.free = append(p.free, b)
	p.mu.Unlock()
	<-p.slots
}

func (p *bufferPool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = nil
}

// alignedBuffer returns memory that begins at a page boundary, for O_DIRECT.
func alignedBuffer(size int) []byte {
	const page = 4096
	b := make([]byte, size+page-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1))
	return b[skip : skip+size : skip+size]
}
