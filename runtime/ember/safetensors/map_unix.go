//go:build unix

package safetensors

import (
	"fmt"
	"os"
	"syscall"
)

// mapFile maps a whole file for reading.
func mapFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if st.Size() == 0 {
		return nil, fmt.Errorf("%s: 0 bytes are too few for a safetensors file", path)
	}
	if int64(int(st.Size())) != st.Size() {
		return nil, fmt.Errorf("%s is too large for this machine's addresses", path)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return b, nil
}

func unmap(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return syscall.Munmap(b)
}

// step is at most the size of a page anywhere.
const step = 4096

// read touches one byte of every page. The sum keeps the compiler from dropping it.
func read(b []byte) byte {
	var s byte
	for i := 0; i < len(b); i += step {
		s += b[i]
	}
	return s
}
