package gguf

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	maxBytes = 64 << 20 // read at most
	maxKeys  = 4096
	maxKey   = 1024      // bytes of a key's name
	maxText  = 4096      // bytes of a text that is kept; longer ones are passed over
	maxList  = 4096      // numbers of a list that is kept; longer ones are counted
	chunk    = 256 << 10 // read at once
)

const (
	typeU8 = iota
	typeI8
	typeU16
	typeI16
	typeU32
	typeI32
	typeF32
	typeBool
	typeText
	typeList
	typeU64
	typeI64
	typeF64
)

var widths = map[uint32]int{typeU8: 1, typeI8: 1, typeU16: 2, typeI16: 2, typeU32: 4, typeI32: 4, typeF32: 4, typeBool: 1, typeU64: 8, typeI64: 8, typeF64: 8}

var numbers = map[uint32]func(b []byte) float64{
	typeU8: number[uint8], typeBool: number[uint8], typeI8: number[int8], typeU16: number[uint16], typeI16: number[int16], typeU32: number[uint32],
	typeI32: number[int32], typeF32: number[float32], typeU64: number[uint64], typeI64: number[int64], typeF64: number[float64],
}

func number[T uint8 | int8 | uint16 | int16 | uint32 | int32 | float32 | uint64 | int64 | float64](b []byte) float64 {
	var v T
	binary.Decode(b, binary.LittleEndian, &v) // b has the type's width
	return float64(v)
}

// blocks are how tensors of a type are kept (ggml's ggml_type), of the types that are usual: so many
// values in so many bytes.
var blocks = map[uint32]struct{ values, bytes uint64 }{
	0: {1, 4}, 1: {1, 2}, 30: {1, 2}, 2: {32, 18}, 3: {32, 20}, 6: {32, 22}, 7: {32, 24}, 8: {32, 34}, 20: {32, 18},
	10: {256, 84}, 11: {256, 110}, 12: {256, 144}, 13: {256, 176}, 14: {256, 210}, 23: {256, 136},
}

// Metadata are the keys and values. Numbers and booleans are float64, which holds every
// size that a configuration names exactly; texts are string; lists of numbers are
// []float64. A list that is not kept is in Lengths only.
type Metadata struct {
	Values  map[string]any
	Lengths map[string]uint64
}

// Text returns the text of a key, or "".
func (m *Metadata) Text(key string) string {
	s, _ := m.Values[key].(string)
	return s
}

// Numbers returns the numbers of a key: one, or those of a list.
func (m *Metadata) Numbers(key string) []float64 {
	switch v := m.Values[key].(type) {
	case float64:
		return []float64{v}
	case []float64:
		return v
	}
	return nil
}

// Int returns the whole number of a key, the largest of a list; 0 if there is none.
func (m *Metadata) Int(key string) int {
	most := 0.0
	for _, v := range m.Numbers(key) {
		most = max(most, v)
	}
	return int(min(most, math.MaxInt32))
}

// Error reports a file that is not valid.
type Error struct {
	Truncated bool // the file ends inside its metadata
	Reason    string
}

func (e *Error) Error() string { return e.Reason }

func invalid(format string, args ...any) error { return &Error{Reason: fmt.Sprintf(format, args...)} }

// VersionProblem is what is wrong with a file of a version that is not read.
func VersionProblem(v uint32) string {
	if v&0xFFFF == 0 {
		return "it is written for big-endian machines: convert the model to GGUF anew"
	}
	return fmt.Sprintf("version %d is not known: convert the model to GGUF anew", v)
}

// Read reads the metadata of a file of size bytes, and ends early when the tokenizer's
// list has been counted: writers put it last, and it is most of the bytes. Errors are
// *Error, or those of r.
func Read(r io.ReaderAt, size int64) (*Metadata, error) {
	m, _, err := read(newDecoder(r, size))
	return m, err
}

// ReadWhole is Read of all metadata. It also reads where the tensors are, and returns the
// least size that a file with them has.
func ReadWhole(r io.ReaderAt, size int64) (m *Metadata, least int64, err error) {
	d := newDecoder(r, size)
	d.whole = true
	m, tensors, err := read(d)
	if err != nil || tensors == 0 {
		return m, 0, err
	}
	var last uint64 // where the last tensor ends, in the data
	for range tensors {
		d.skip(d.u64()) // name
		values, dimensions := uint64(1), d.u32()
		if d.err == nil && dimensions > 8 {
			return nil, 0, invalid("a tensor of %d dimensions", dimensions)
		}
		for range dimensions {
			values *= d.u64()
		}
		kind, begin := d.u32(), d.u64()
		if d.err != nil {
			return nil, 0, d.err
		}
		bytes := uint64(1)
		if b, ok := blocks[kind]; ok && values < 1<<48 {
			bytes = max(1, values/b.values*b.bytes)
		}
		if last = max(last, begin+bytes); last > math.MaxInt64/2 || begin > last {
			return nil, 0, invalid("a tensor at byte %d", begin)
		}
	}
	at, _ := d.section.Seek(0, io.SeekCurrent) // which fails for no section
	at -= int64(d.r.Buffered())
	align := int64(cmp.Or(m.Int("general.alignment"), 32))
	return m, (at+align-1)/align*align + int64(last), nil
}

func newDecoder(r io.ReaderAt, size int64) *decoder {
	section := io.NewSectionReader(r, 0, min(size, maxBytes))
	return &decoder{section: section, r: bufio.NewReaderSize(section, chunk), size: size}
}

// read reads the metadata, and returns the number of tensors too.
func read(d *decoder) (*Metadata, uint64, error) {
	m := &Metadata{Values: map[string]any{}, Lengths: map[string]uint64{}}
	if head := d.bytes(4); d.err == nil && string(head) != "GGUF" {
		return nil, 0, invalid("it does not begin with GGUF")
	}
	if v := d.u32(); d.err == nil && (v < 2 || v > 3) {
		return nil, 0, invalid("%s", VersionProblem(v))
	}
	tensors, keys := d.u64(), d.u64()
	if d.err == nil && keys > maxKeys {
		return nil, 0, invalid("%d keys; at most %d are read", keys, maxKeys)
	}
	for range keys {
		key := d.key()
		kind := d.u32()
		if d.err != nil {
			break
		}
		d.value(m, key, kind)
		if d.err != nil || d.done {
			break
		}
	}
	if d.err != nil {
		return nil, 0, d.err
	}
	return m, tensors, nil
}

type decoder struct {
	section *io.SectionReader
	r       *bufio.Reader // of section
	size    int64
	whole   bool // the rest matters too
	err     error
	done    bool // the rest does not matter
	buf     [8]byte
}

// fail keeps the first error. An end of the file is one of the file.
func (d *decoder) fail(err error) {
	switch {
	case d.err != nil || err == nil:
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		d.err = err
	case d.size > maxBytes:
		d.err = invalid("its metadata is longer than %d bytes", maxBytes)
	default:
		d.err = &Error{Truncated: true, Reason: "the file ends inside its metadata: it was cut short"}
	}
}

func (d *decoder) bytes(n int) []byte {
	b := d.buf[:n]
	if d.err == nil {
		_, err := io.ReadFull(d.r, b)
		d.fail(err)
	}
	return b
}

func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

// skip passes over n bytes.
func (d *decoder) skip(n uint64) {
	if d.err != nil {
		return
	}
	if n > maxBytes {
		d.err = invalid("a value of %d bytes", n)
		return
	}
	_, err := d.r.Discard(int(n))
	d.fail(err)
}

func (d *decoder) key() string {
	n := d.u64()
	if d.err == nil && n > maxKey {
		d.err = invalid("a name of %d bytes", n)
	}
	return d.text(n)
}

func (d *decoder) text(n uint64) string {
	if d.err != nil {
		return ""
	}
	b := make([]byte, n)
	_, err := io.ReadFull(d.r, b)
	d.fail(err)
	return string(b)
}

func (d *decoder) value(m *Metadata, key string, kind uint32) {
	switch kind {
	case typeText:
		n := d.u64()
		if d.err != nil || n > maxText {
			d.skip(n)
			return
		}
		m.Values[key] = d.text(n)
	case typeList:
		d.list(m, key)
	default:
		if widths[kind] == 0 {
			d.fail(invalid("a value of the unknown type %d", kind))
			return
		}
		m.Values[key] = d.number(kind)
	}
}

func (d *decoder) list(m *Metadata, key string) {
	kind, n := d.u32(), d.u64()
	m.Lengths[key] = n
	width := widths[kind]
	switch {
	case d.err != nil:
	case !d.whole && key == "tokenizer.ggml.tokens" && m.Int(m.Text("general.architecture")+".block_count") > 0:
		d.done = true
	case kind == typeText:
		for range n {
			if d.skip(d.u64()); d.err != nil {
				return
			}
		}
	case width == 0:
		d.fail(invalid("a list of the unknown type %d", kind))
	case n > maxList:
		if n > maxBytes {
			d.fail(invalid("a list of %d numbers", n))
			return
		}
		d.skip(n * uint64(width))
	default:
		list := make([]float64, n)
		for i := range list {
			list[i] = d.number(kind)
		}
		m.Values[key] = list
	}
}

func (d *decoder) number(kind uint32) float64 { return numbers[kind](d.bytes(widths[kind])) }
