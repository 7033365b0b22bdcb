package store

import "fmt"

// Put writes the whole of block i.
func (p *Part) Put(i int, data []byte) error {
	off, n := p.Range(i)
	if int64(len(data)) != n {
		return diskError(p.File.Name, fmt.Errorf("block %d has %d bytes, not %d", i, len(data), n))
	}
	w := p.Writer(i)
	w.Reset()
	_, _, err := w.Write(off, data)
	return err
}
