package validate

import (
	"bytes"
	"encoding/binary"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"

	"github.com/thaw-dev/thaw/loader/source"
)

// Bounds of a header, those of the reference implementation where it has any.
const (
	MaxHeader  = 100 << 20
	maxTensors = 200_000
	maxDims    = 16
	maxTensor  = 1024 // bytes of a tensor's name
	headPrefix = 8
)

// dtypes is the bits of one element; some formats are narrower than a byte.
var dtypes = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16,
	"U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// HeaderEnd is how many bytes of a safetensors file its header takes, the
// length in front included, from its first 8 bytes.
func HeaderEnd(first [headPrefix]byte, size int64) (int64, error) {
	n := binary.LittleEndian.Uint64(first[:])
	switch {
	case n > MaxHeader:
		return 0, corrupt("the header claims %d bytes; at most %d are read", n, MaxHeader)
	case n < 2:
		return 0, corrupt("the header is %d bytes long, which holds nothing", n)
	case int64(n)+headPrefix > size:
		return 0, &source.Error{Kind: source.Truncated, What: fmt.Sprintf("the file has %d bytes and its header alone should have %d: it was cut short", size, int64(n)+headPrefix)}
	}
	return int64(n) + headPrefix, nil
}

// Safetensors checks the header of a file of size bytes: its length, that
// every tensor's type is known and its shape's product is its length, and that
// tensors follow each other without gap or overlap up to the file's last byte.
// Errors are *source.Error of kind Truncated (the file ends early) or Corrupt.
func Safetensors(r io.ReaderAt, size int64) error {
	if size < headPrefix {
		return &source.Error{Kind: source.Truncated, What: fmt.Sprintf("the file has %d bytes, too few for a header", size)}
	}
	var first [headPrefix]byte
	if err := readFull(r, first[:], 0); err != nil {
		return err
	}
	end, err := HeaderEnd(first, size)
	if err != nil {
		return err
	}
	head := make([]byte, end-headPrefix)
	if err := readFull(r, head, headPrefix); err != nil {
		return err
	}
	if head[0] != '{' {
		return corrupt("the header is not a JSON object")
	}
	spans, err := tensors(head)
	if err != nil {
		return err
	}
	slices.SortFunc(spans, func(a, b span) int {
		if a.begin != b.begin {
			return cmp(a.begin, b.begin)
		}
		return cmp(a.end, b.end)
	})
	var at uint64
	for _, s := range spans {
		if s.begin != at {
			return corrupt("a tensor begins at byte %d where %d was due: tensors must follow each other without gap or overlap", s.begin, at)
		}
		at = s.end
	}
	have := uint64(size - end)
	switch {
	case at > have:
		return &source.Error{Kind: source.Truncated, What: fmt.Sprintf("the file has %d bytes and its header describes %d: it was cut short", size, at+uint64(end))}
	case at < have:
		return corrupt("%d bytes follow the last tensor", have-at)
	}
	return nil
}

func cmp(a, b uint64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return &source.Error{Kind: source.Truncated, What: fmt.Sprintf("the file ends at byte %d, inside its header", off+int64(n))}
	}
	return &source.Error{Kind: source.Broken, What: "cannot be read", Err: err}
}

func corrupt(format string, args ...any) error {
	return &source.Error{Kind: source.Corrupt, What: "not a valid safetensors file: " + fmt.Sprintf(format, args...)}
}

type span struct{ begin, end uint64 }

// tensors reads the header token by token, so that what it costs is bounded by
// what it keeps (two numbers a tensor) and not by what the JSON could become.
// jsontext refuses duplicate names and bad UTF-8 by itself.
func tensors(head []byte) ([]span, error) {
	// A Buffer, whose bytes the decoder uses where they are.
	d := jsontext.NewDecoder(bytes.NewBuffer(head))
	if _, err := expect(d, '{'); err != nil {
		return nil, err
	}
	var out []span
	for d.PeekKind() != '}' {
		name, err := str(d)
		if err != nil {
			return nil, err
		}
		if name == "__metadata__" {
			if err := metadata(d); err != nil {
				return nil, err
			}
			continue
		}
		if len(name) > maxTensor {
			return nil, corrupt("a tensor's name is %d bytes long", len(name))
		}
		if len(out) == maxTensors {
			return nil, corrupt("more than %d tensors", maxTensors)
		}
		s, err := tensor(d, name)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if _, err := expect(d, '}'); err != nil {
		return nil, err
	}
	// The reference pads with spaces; the decoder skips white space.
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, corrupt("something follows the header's JSON")
	}
	return out, nil
}

func metadata(d *jsontext.Decoder) error {
	if _, err := expect(d, '{'); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		if _, err := str(d); err != nil {
			return err
		}
		if _, err := str(d); err != nil {
			return err
		}
	}
	_, err := expect(d, '}')
	return err
}

func tensor(d *jsontext.Decoder, name string) (span, error) {
	var s span
	if _, err := expect(d, '{'); err != nil {
		return s, err
	}
	var width uint64
	elems := uint64(1)
	var haveType, haveShape, haveSpan bool
	for d.PeekKind() != '}' {
		key, err := str(d)
		if err != nil {
			return s, err
		}
		switch key {
		case "dtype":
			t, err := str(d)
			if err != nil {
				return s, err
			}
			if width, haveType = dtypes[t]; !haveType {
				return s, corrupt("tensor %s has the unknown type %s", quote(name), quote(t))
			}
		case "shape":
			dims, err := numbers(d, maxDims)
			if err != nil {
				return s, err
			}
			for _, n := range dims {
				hi, lo := bits.Mul64(elems, n)
				if hi != 0 {
					return s, corrupt("the shape of tensor %s overflows", quote(name))
				}
				elems = lo
			}
			haveShape = true
		case "data_offsets":
			at, err := numbers(d, 2)
			if err != nil {
				return s, err
			}
			if len(at) != 2 || at[0] > at[1] {
				return s, corrupt("tensor %s has no valid data_offsets", quote(name))
			}
			s, haveSpan = span{at[0], at[1]}, true
		default:
			return s, corrupt("tensor %s has the unknown key %s", quote(name), quote(key))
		}
	}
	if _, err := expect(d, '}'); err != nil {
		return s, err
	}
	if !haveType || !haveShape || !haveSpan {
		return s, corrupt("tensor %s lacks dtype, shape or data_offsets", quote(name))
	}
	hi, total := bits.Mul64(elems, width)
	if hi != 0 || total%8 != 0 {
		return s, corrupt("the size of tensor %s overflows or is no whole number of bytes", quote(name))
	}
	if total/8 != s.end-s.begin {
		return s, corrupt("tensor %s takes %d bytes by its shape and %d by its offsets", quote(name), total/8, s.end-s.begin)
	}
	return s, nil
}

func numbers(d *jsontext.Decoder, limit int) ([]uint64, error) {
	if _, err := expect(d, '['); err != nil {
		return nil, err
	}
	var out []uint64
	for d.PeekKind() != ']' {
		t, err := expect(d, '0')
		if err != nil {
			return nil, err
		}
		// Only plain digits: 1e3 and -0 are numbers to JSON and a difference
		// between parsers to everyone else.
		n, err := strconv.ParseUint(t.String(), 10, 64)
		if err != nil {
			return nil, corrupt("%s is not a count", quote(t.String()))
		}
		if len(out) == limit {
			return nil, corrupt("a list is longer than %d", limit)
		}
		out = append(out, n)
	}
	_, err := expect(d, ']')
	return out, err
}

func str(d *jsontext.Decoder) (string, error) {
	t, err := expect(d, '"')
	if err != nil {
		return "", err
	}
	return t.String(), nil
}

func expect(d *jsontext.Decoder, kind jsontext.Kind) (jsontext.Token, error) {
	t, err := d.ReadToken()
	if err != nil {
		return t, corrupt("the header is not valid JSON near byte %d", d.InputOffset())
	}
	if t.Kind() != kind {
		return t, corrupt("the header has %s where %s was due, near byte %d", t.Kind(), kind, d.InputOffset())
	}
	return t, nil
}

func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	return strconv.QuoteToASCII(s)
}
