package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// MaxHeader bounds the header. The reference implementation has the same bound.
const MaxHeader = 100 << 20

// maxRank bounds the number of dimensions of one tensor.
const maxRank = 8

var sizes = map[string]int64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
	"I16": 2, "U16": 2, "F16": 2, "BF16": 2,
	"I32": 4, "U32": 4, "F32": 4,
	"I64": 8, "U64": 8, "F64": 8,
}

// Tensor is one entry of a header. Begin and End are offsets into the data that
// follows the header.
type Tensor struct {
	Name       string
	DType      string // "BF16", "F32", …
	Shape      []int
	Begin, End int64
}

// ParseHeader reads and checks the header of a file of size bytes whose first bytes
// are head; head must hold the whole header unless the file is too short for it.
// It returns the tensors in the order of their data, and where the data starts.
func ParseHeader(head []byte, size int64) ([]Tensor, int64, error) {
	if size < 8 || len(head) < 8 {
		return nil, 0, fmt.Errorf("%d bytes are too few for a safetensors file", size)
	}
	n := binary.LittleEndian.Uint64(head)
	switch {
	case n > MaxHeader:
		return nil, 0, fmt.Errorf("header of %d bytes is longer than the allowed %d", n, MaxHeader)
	case int64(n) > size-8 || int(n) > len(head)-8:
		return nil, 0, fmt.Errorf("truncated: header of %d bytes in a file of %d", n, size)
	case n == 0:
		return nil, 0, errors.New("header is empty")
	}
	data := 8 + int64(n)
	raw := head[8:data]
	if raw[0] != '{' {
		return nil, 0, errors.New("header does not begin with {")
	}
	ts, err := decode(raw)
	if err != nil {
		return nil, 0, fmt.Errorf("header: %w", err)
	}
	slices.SortFunc(ts, func(a, b Tensor) int {
		switch {
		case a.Begin != b.Begin:
			return compare(a.Begin, b.Begin)
		default:
			return compare(a.End, b.End)
		}
	})
	var at int64
	for _, t := range ts {
		bytes, err := t.bytes()
		if err != nil {
			return nil, 0, fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		if t.Begin != at {
			return nil, 0, fmt.Errorf("tensor %s: data begins at %d, want %d (a hole or an overlap)", t.Name, t.Begin, at)
		}
		if t.End < t.Begin || t.End-t.Begin != bytes {
			return nil, 0, fmt.Errorf("tensor %s: data of %d bytes, shape %v of %s needs %d", t.Name, t.End-t.Begin, t.Shape, t.DType, bytes)
		}
		at = t.End
		if at > size-data {
			return nil, 0, fmt.Errorf("truncated: tensor %s ends at byte %d, the file has %d", t.Name, data+at, size)
		}
	}
	if at != size-data {
		return nil, 0, fmt.Errorf("%d bytes after the last tensor belong to none", size-data-at)
	}
	return ts, data, nil
}

func compare(a, b int64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// bytes is how long the data must be.
func (t *Tensor) bytes() (int64, error) {
	n, ok := sizes[t.DType]
	if !ok {
		return 0, fmt.Errorf("unknown dtype %q", t.DType)
	}
	for _, d := range t.Shape {
		if d == 0 {
			return 0, nil
		}
		if int64(d) > math.MaxInt64/n {
			return 0, fmt.Errorf("shape %v overflows", t.Shape)
		}
		n *= int64(d)
	}
	return n, nil
}

// decode reads the JSON. jsontext refuses duplicate names and invalid UTF-8.
func decode(raw []byte) ([]Tensor, error) {
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	if err := want(d, '{'); err != nil {
		return nil, err
	}
	var ts []Tensor
	for d.PeekKind() != '}' {
		name, err := text(d)
		if err != nil {
			return nil, err
		}
		if name == "__metadata__" {
			if err := metadata(d); err != nil {
				return nil, fmt.Errorf("__metadata__: %w", err)
			}
			continue
		}
		t, err := entry(d)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", name, err)
		}
		t.Name = name
		ts = append(ts, t)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return ts, nil
}

func metadata(d *jsontext.Decoder) error {
	if err := want(d, '{'); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		for range 2 {
			if _, err := text(d); err != nil {
				return err
			}
		}
	}
	_, err := d.ReadToken()
	return err
}

func entry(d *jsontext.Decoder) (Tensor, error) {
	var t Tensor
	if err := want(d, '{'); err != nil {
		return t, err
	}
	seen := 0
	for d.PeekKind() != '}' {
		key, err := text(d)
		if err != nil {
			return t, err
		}
		switch key {
		case "dtype":
			if t.DType, err = text(d); err != nil {
				return t, err
			}
		case "shape":
			dims, err := numbers(d, maxRank)
			if err != nil {
				return t, fmt.Errorf("shape: %w", err)
			}
			t.Shape = make([]int, len(dims))
			for i, v := range dims {
				t.Shape[i] = int(v)
			}
		case "data_offsets":
			o, err := numbers(d, 2)
			if err != nil || len(o) != 2 {
				return t, fmt.Errorf("data_offsets: want two numbers (%v)", err)
			}
			t.Begin, t.End = o[0], o[1]
		default:
			return t, fmt.Errorf("unknown key %q", key)
		}
		seen++
	}
	if seen != 3 {
		return t, errors.New("want dtype, shape and data_offsets")
	}
	_, err := d.ReadToken()
	return t, err
}

func numbers(d *jsontext.Decoder, most int) ([]int64, error) {
	if err := want(d, '['); err != nil {
		return nil, err
	}
	var out []int64
	for d.PeekKind() != ']' {
		tok, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		if tok.Kind() != '0' {
			return nil, fmt.Errorf("want a number, have %s", tok.Kind())
		}
		// Digits only: 1e3 and 1.0 are numbers of JSON, but of nobody's header.
		v, err := strconv.ParseInt(tok.String(), 10, 64)
		if err != nil || v < 0 || v > math.MaxInt {
			return nil, fmt.Errorf("%s is not a size", tok)
		}
		if len(out) == most {
			return nil, fmt.Errorf("more than %d numbers", most)
		}
		out = append(out, v)
	}
	_, err := d.ReadToken()
	return out, err
}

func want(d *jsontext.Decoder, k jsontext.Kind) error {
	tok, err := d.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != k {
		return fmt.Errorf("want %s, have %s", k, tok.Kind())
	}
	return nil
}

func text(d *jsontext.Decoder) (string, error) {
	tok, err := d.ReadToken()
	if err != nil {
		return "", err
	}
	if tok.Kind() != '"' {
		return "", fmt.Errorf("want a string, have %s", tok.Kind())
	}
	return tok.String(), nil
}
