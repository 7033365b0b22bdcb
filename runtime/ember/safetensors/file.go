package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/thaw-dev/thaw/functions/pythonjson"
	"github.com/thaw-dev/thaw/functions/safetensors"
)

// Tensor is one entry of a file's header.
type Tensor = safetensors.Tensor

// Set is the tensors of one checkpoint, in one file or several.
type Set struct {
	byName map[string]tensorPlace
	files  []*file
	open   func(path string) ([]byte, error)
}

type tensorPlace struct {
	Tensor
	file *file
}

type file struct {
	name string
	all  []byte // the mapping, of the file or of memory
	data []byte // what follows the header
}

const maxIndex = 64 << 20

// OpenFolder maps model.safetensors, or the files that model.safetensors.index.json names, or
// without either all safetensors, of a checkpoint's folder.
func OpenFolder(dir string) (*Set, error) { return openFolder(dir, Open) }

// From opens a weight file at its beginning and returns its size in bytes.
type From func(name string) (io.ReadCloser, int64, error)

// CopyFolder is OpenFolder for files that are still arriving or are removed later: they
// are read into memory, each once from beginning to end, in the order of their names.
// from opens the weight files; nil opens them in the folder. report is called after each
// piece and ends the reading if it returns false.
func CopyFolder(dir string, from From, report func(done, total int64) bool) (*Set, error) {
	c := copying{from: from, report: report}
	if from == nil {
		c.from = func(name string) (io.ReadCloser, int64, error) {
			f, size, err := openRegular(filepath.Join(dir, name))
			if err != nil {
				return nil, 0, err // never a typed nil
			}
			return f, int64(size), nil
		}
	}
	if from != nil {
		if _, err := os.Stat(filepath.Join(dir, indexName)); errors.Is(err, fs.ErrNotExist) {
			return c.open(filepath.Join(dir, oneName))
		}
	}
	return openFolder(dir, c.open)
}

const (
	oneName   = "model.safetensors"
	indexName = "model.safetensors.index.json"
)

func openFolder(dir string, open func(paths ...string) (*Set, error)) (*Set, error) {
	one := filepath.Join(dir, oneName)
	if _, err := os.Stat(one); err == nil {
		return open(one)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	index := filepath.Join(dir, indexName)
	st, err := os.Stat(index)
	if err != nil {
		return openAll(dir, open)
	}
	if st.Size() > maxIndex {
		return nil, fmt.Errorf("%s: %d bytes are too many for an index", index, st.Size())
	}
	b, err := os.ReadFile(index)
	if err != nil {
		return nil, err
	}
	var f struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := pythonjson.Decode(b, &f); err != nil {
		return nil, fmt.Errorf("%s: %w", index, err)
	}
	if len(f.WeightMap) == 0 {
		return nil, fmt.Errorf("%s: weight_map is missing or empty", index)
	}
	for t, name := range f.WeightMap {
		// A manifest must not reach outside its folder.
		if name == "" || name != filepath.Base(name) || strings.ContainsAny(name, `/\`) || name == ".." {
			return nil, fmt.Errorf("%s: tensor %s is in %q, which is not a file name", index, t, name)
		}
	}
	var paths []string
	for _, n := range slices.Compact(slices.Sorted(maps.Values(f.WeightMap))) {
		paths = append(paths, filepath.Join(dir, n))
	}
	s, err := open(paths...)
	if err != nil {
		return nil, err
	}
	for t, name := range f.WeightMap {
		p, ok := s.byName[t]
		if !ok || filepath.Base(p.file.name) != name {
			s.Close()
			return nil, fmt.Errorf("%s: tensor %s is not in %s: the index is of other shards", index, t, name)
		}
	}
	return s, nil
}

// openAll opens the safetensors of a folder that has neither model.safetensors nor an index, as
// other engines do: files of another name, or shards without an index.
func openAll(dir string, open func(paths ...string) (*Set, error)) (*Set, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if filepath.Ext(name) == ".safetensors" && !strings.HasPrefix(name, "adapter_model") && !strings.HasPrefix(name, "consolidated") {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no safetensors", dir)
	}
	return open(paths...)
}

// Open maps the given files as one set. The same name in two of them is an error.
func Open(paths ...string) (*Set, error) { return openFiles(mapFile, paths...) }

func openFiles(open func(path string) ([]byte, error), paths ...string) (*Set, error) {
	s := &Set{byName: map[string]tensorPlace{}, open: open}
	for _, p := range paths {
		if err := s.add(p); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (s *Set) add(path string) error {
	all, err := s.open(path)
	if err != nil {
		return err
	}
	f := &file{name: path, all: all}
	s.files = append(s.files, f)
	ts, at, err := safetensors.Parse(all, int64(len(all)))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	f.data = all[at:]
	for _, t := range ts {
		if old, ok := s.byName[t.Name]; ok {
			return fmt.Errorf("%s: tensor %s is also in %s", path, t.Name, old.file.name)
		}
		s.byName[t.Name] = tensorPlace{t, f}
	}
	return nil
}

// piece is the size of one read: large enough for ranged requests, small enough for
// progress.
const piece = 4 << 20

// ErrStopped reports a CopyFolder that its report ended.
var ErrStopped = errors.New("stopped")

// copying reads files into memory.
type copying struct {
	from        From
	done, total int64
	report      func(done, total int64) bool
	next        []opened
}

type opened struct {
	io.ReadCloser
	size int64
}

// open opens all files before the first is read, for the total size and because a
// missing file is reported at once.
func (c *copying) open(paths ...string) (*Set, error) {
	defer func() {
		for _, f := range c.next {
			f.Close()
		}
	}()
	for _, p := range paths {
		r, size, err := c.from(filepath.Base(p))
		if err != nil {
			return nil, err
		}
		c.next = append(c.next, opened{r, size})
		if size <= 0 || int64(int(size)) != size {
			return nil, fmt.Errorf("%s: %d bytes are too few or too many for a safetensors file", p, size)
		}
		c.total += size
	}
	return openFiles(c.file, paths...)
}

func (c *copying) file(path string) ([]byte, error) {
	f := c.next[0]
	c.next = c.next[1:]
	defer f.Close()
	all, err := mapMemory(int(f.size))
	if err != nil {
		return nil, fmt.Errorf("%s: no memory for %d bytes: %w", path, f.size, err)
	}
	for at := 0; at < len(all); {
		b := all[at:min(at+piece, len(all))]
		n, err := io.ReadFull(f, b)
		at += n
		c.done += int64(n)
		if err != nil {
			err = fmt.Errorf("%s: at byte %d of %d: %w", path, at, len(all), err)
		} else if !c.report(c.done, c.total) {
			err = ErrStopped
		}
		if err != nil {
			return nil, errors.Join(err, unmap(all))
		}
	}
	return all, nil
}

// Close unmaps the files. No tensor may be used afterwards.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, unmap(f.all))
		f.all, f.data = nil, nil
	}
	s.files, s.byName = nil, nil
	return errors.Join(errs...)
}

// Size is the number of mapped bytes.
func (s *Set) Size() int64 {
	var n int64
	for _, f := range s.files {
		n += int64(len(f.all))
	}
	return n
}

func (s *Set) Lookup(name string) (Tensor, bool) {
	p, ok := s.byName[name]
	return p.Tensor, ok
}

func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.byName)) }

// Bytes is a tensor's data in the mapping, little endian. It must not be written.
func (s *Set) Bytes(name string) []byte {
	p, ok := s.byName[name]
	if !ok {
		return nil
	}
	return p.file.data[p.Begin:p.End:p.End]
}

// BF16 is a BF16 tensor's data as numbers, in the mapping where the machine allows it.
func (s *Set) BF16(name string) []uint16 { return numbers(s.Bytes(name), binary.LittleEndian.Uint16) }

// F32 is an F32 tensor's data as numbers, in the mapping where the machine allows it.
func (s *Set) F32(name string) []float32 {
	return numbers(s.Bytes(name), func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) })
}

// numbers returns b as numbers, which decode reads where they have to be copied.
func numbers[T uint16 | float32](b []byte, decode func([]byte) T) []T {
	var one T
	size := int(unsafe.Sizeof(one))
	if len(b) < size {
		return nil
	}
	if direct && uintptr(unsafe.Pointer(&b[0]))%uintptr(size) == 0 {
		return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/size)
	}
	out := make([]T, len(b)/size)
	for i := range out {
		out[i] = decode(b[size*i:])
	}
	return out
}

// direct reports whether this machine is little endian, as files are. Unaligned data,
// which is rare, is copied.
var direct = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// Touch reads the pages of the mappings, chunk by chunk, and calls report after each. It
// stops if report returns false.
func (s *Set) Touch(report func(done, total int64) bool) {
	const chunk = 32 << 20
	total, done := s.Size(), int64(0)
	for _, f := range s.files {
		for b := f.all; len(b) > 0; {
			n := min(chunk, len(b))
			populate(b[:n])
			b = b[n:]
			done += int64(n)
			if !report(done, total) {
				return
			}
		}
	}
}
