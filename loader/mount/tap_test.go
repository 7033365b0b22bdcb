package mount

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
)

// tap lets bytes through up to a mark of each file.
type tap struct {
	files map[string][]byte
	mu    sync.Mutex
	data  map[string]int64
	reads []string
	next  chan struct{}
	err   error
}

func newTap(files map[string][]byte) *tap {
	return &tap{files: files, data: map[string]int64{}, next: make(chan struct{})}
}

func (t *tap) open(name string, upTo int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data[name], t.err = upTo, err
	close(t.next)
	t.next = make(chan struct{})
}

func (t *tap) all() {
	for name, b := range t.files {
		t.open(name, int64(len(b)), nil)
	}
}

func (t *tap) ReadAt(ctx context.Context, name string, b []byte, off int64) (int, error) {
	for {
		t.mu.Lock()
		data, next, err := t.data[name], t.next, t.err
		t.reads = append(t.reads, fmt.Sprint(name, off))
		t.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if data >= off+int64(len(b)) {
			return copy(b, t.files[name][off:]), nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (t *tap) list() (out []File) {
	for name, b := range t.files {
		out = append(out, File{name, int64(len(b))})
	}
	return out
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}
