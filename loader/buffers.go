package loader

import (
	"context"
	"sync"
	"unsafe"
)

// bufferPool are the buffers that bytes pass through on their way from the socket
// to the disk, one for each range in flight; they bound the memory all stagings
// take together. A piece is small enough to stay in the processor's cache between
// the read, the checksum and the write, and large enough for one write to the disk
// to pay: in writes of a quarter of it, the same bytes cost up to half as much
// again.
type bufferPool struct {
	size  int
	slots chan struct{} // one entry per buffer that is out

	mu   sync.Mutex
	free [][]byte
}

func newBufferPool(n, size int) *bufferPool {
	return &bufferPool{size: size, slots: make(chan struct{}, n)}
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

// trim lets the memory of buffers that are not out go.
func (p *bufferPool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = nil
}

// alignedBuffer is memory that begins at a page, so that it can go past the page
// cache.
func alignedBuffer(size int) []byte {
	const page = 4096
	b := make([]byte, size+page-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1))
	return b[skip : skip+size : skip+size]
}
