//go:build unix

package safetensors

import (
	"fmt"
	"os"
	"syscall"
)

func mapFile(path string) ([]byte, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return b, nil
}

// openRegular opens a regular file that fits into the address space.
func openRegular(path string) (*os.File, int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case st.Size() == 0:
		err = fmt.Errorf("%s: 0 bytes are too few for a safetensors file", path)
	case int64(int(st.Size())) != st.Size():
		err = fmt.Errorf("%s is too large for this machine's addresses", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, int(st.Size()), nil
}

// mapMemory returns n bytes outside Go's heap, aligned to a page; unmap frees them.
func mapMemory(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

func unmap(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return syscall.Munmap(b)
}

// step is at most the page size of any system.
const step = 4096

// readPages reads one byte of every page. The sum keeps the compiler from dropping it.
func readPages(b []byte) byte {
	var s byte
	for i := 0; i < len(b); i += step {
		s += b[i]
	}
	return s
}
