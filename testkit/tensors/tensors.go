// Package tensors writes the tensors that a test gives it to a stream as a safetensors file, in
// F32 or BF16; it reads none.
package tensors

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
)

// Source is a tensor to be written.
type Source struct {
	Name  string
	Shape []int
	Data  []float32
}

// Write writes the tensors as dtype, "BF16" or "F32", in the order of their names.
func Write(w io.Writer, dtype string, ts []Source) error {
	size, ok := map[string]int64{"BF16": 2, "F32": 4}[dtype]
	if !ok {
		return fmt.Errorf("cannot write dtype %q", dtype)
	}
	ts = slices.Clone(ts)
	slices.SortFunc(ts, func(a, b Source) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	head := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var at int64
	for _, t := range ts {
		n := int64(1)
		for _, d := range t.Shape {
			n *= int64(d)
		}
		if n != int64(len(t.Data)) {
			return fmt.Errorf("tensor %s: %d numbers for shape %v", t.Name, len(t.Data), t.Shape)
		}
		head[t.Name] = entry{dtype, t.Shape, [2]int64{at, at + n*size}}
		at += n * size
	}
	hb, err := json.Marshal(head)
	if err != nil {
		return err
	}
	for len(hb)%8 != 0 {
		hb = append(hb, ' ')
	}
	out := bufio.NewWriterSize(w, 1<<16)
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], uint64(len(hb)))
	out.Write(word[:])
	out.Write(hb)
	for _, t := range ts {
		for _, v := range t.Data {
			if size == 2 {
				binary.LittleEndian.PutUint16(word[:], ToBF16(v))
			} else {
				binary.LittleEndian.PutUint32(word[:], math.Float32bits(v))
			}
			out.Write(word[:size])
		}
	}
	return out.Flush() // a bufio.Writer keeps its first error
}

// ToBF16 rounds to the nearest bfloat16, ties to even. What is no number stays none.
func ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
