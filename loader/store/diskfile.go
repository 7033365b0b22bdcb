package store

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// diskFile is a file that is read through the page cache and written with and without it.
type diskFile struct {
	cached *os.File
	// direct is the same file opened with O_DIRECT; nil if the file system does not
	// support it or the file is small.
	direct       *os.File
	directFailed atomic.Bool // the file system refused a direct write
}

const directFrom = 32 << 20

// pageSize is the alignment of O_DIRECT, in the file and in memory.
const pageSize = 4096

// open opens the file or makes it. Only with direct do writes bypass the cache.
func (d *diskFile) open(path string, direct bool) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	d.cached = f
	disableReadAhead(f)
	if direct {
		d.direct = openDirect(path)
	}
	return nil
}

// writeAt writes whole pages with O_DIRECT and partial ones through the cache. No page
// is written in both ways at once: a block has one writer, and blocks end at page
// boundaries.
func (d *diskFile) writeAt(b []byte, at int64) error {
	if d.direct != nil && !d.directFailed.Load() {
		head := int(-at & (pageSize - 1))
		if total := (len(b) - head) &^ (pageSize - 1); total > 0 && pageAligned(b[head:]) {
			if head > 0 {
				if _, err := d.cached.WriteAt(b[:head], at); err != nil {
					return err
				}
			}
			n, err := d.direct.WriteAt(b[head:head+total], at+int64(head))
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
			if err != nil {
				d.directFailed.Store(true)
			}
			if b, at = b[head+n:], at+int64(head+n); len(b) == 0 {
				return nil
			}
		}
	}
	_, err := d.cached.WriteAt(b, at)
	return err
}

func pageAligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(pageSize-1) == 0
}

// startWrite starts to write n bytes from off back to the disk, if they are in the cache.
func (d *diskFile) startWrite(off, n int64) {
	if d.direct == nil || d.directFailed.Load() {
		startWrite(d.cached, off, n)
	}
}

// close closes the files, each of which may be nil.
func (d *diskFile) close() {
	d.cached.Close()
	d.direct.Close()
	d.cached, d.direct = nil, nil
}
