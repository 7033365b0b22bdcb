package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

const (
	MaxHeader  = 100 << 20 // bytes, as in the reference implementation
	maxTensors = 200_000
	maxDims    = 8
	maxName    = 1024 // bytes of a tensor's name
	prefixSize = 8
)

// dtypeBits is the size of one element; some formats are narrower than a byte.
var dtypeBits = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16,
	"U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// Tensor is one entry of a header. Begin and End are byte offsets into the data.
type Tensor struct {
	Name       string
	DType      string // "BF16", "F32", …
	Shape      []int
	Begin, End int64
}

// Error reports a file that is not valid.
type Error struct {
	Truncated bool // the file is shorter than its header says
	Reason    string
}

func (e *Error) Error() string { return e.Reason }

func invalid(format string, args ...any) error { return &Error{Reason: fmt.Sprintf(format, args...)} }

func truncated(format string, args ...any) error {
	return &Error{Truncated: true, Reason: fmt.Sprintf(format, args...)}
}

// Describe says what a file is whose first bytes are these, where it is not what its name says:
// nothing yet, an archive, a page, text; "" where that is not known. 8 bytes are enough; of more
// text the beginning is quoted.
func Describe(beginning []byte) string {
	first := beginning[:min(len(beginning), prefixSize)]
	begins := func(with ...string) bool {
		return slices.ContainsFunc(with, func(w string) bool { return bytes.HasPrefix(first, []byte(w)) })
	}
	text := len(first) > 0
	for _, c := range first {
		text = text && (c >= ' ' && c < 0x7f || c == '\n' || c == '\r' || c == '\t')
	}
	switch {
	case len(first) > 0 && len(bytes.Trim(first, "\x00")) == 0:
		return "it begins with zeros: its download or copy was not finished"
	case begins("PK\x03\x04", "\x80\x02", "\x80\x04"):
		return "it is a zip or a pickle, as PyTorch writes (.bin, .pt): convert it to safetensors"
	case begins("GGUF"):
		return "it is a GGUF file: rename it to NAME.gguf"
	case begins("ggjt", "ggml", "ggmf", "tjgg", "lmgg", "fmgg"):
		return "it is in a format of GGML from before GGUF: convert the model to GGUF anew"
	case begins("\x1f\x8b", "\x28\xb5\x2f\xfd"):
		return "it is compressed: decompress it"
	case text && begins("<"):
		return "it is a page (HTML or XML), such as the error of a server that was stored in its place"
	case text:
		quoted := strings.ToValidUTF8(string(beginning[:min(len(beginning), MostQuoted)]), "")
		return fmt.Sprintf("it is text that begins with %q", strings.TrimSpace(quoted))
	}
	return ""
}

// MostQuoted is how many bytes of a file that is no weights an error quotes.
const MostQuoted = 100

// HeaderEnd returns where the data of a file of size bytes begins, from the file's
// first 8 bytes. A header of more than limit bytes is refused.
func HeaderEnd(first [prefixSize]byte, size int64, limit uint64) (int64, error) {
	return headerEnd(first[:], size, limit)
}

func headerEnd(first []byte, size int64, limit uint64) (int64, error) {
	n := binary.LittleEndian.Uint64(first)
	what := Describe(first)
	switch {
	case what != "" && (n > limit || n == 0 || int64(n)+prefixSize > size):
		return 0, invalid("%s", what)
	case n > limit:
		return 0, invalid("the header claims %d bytes; at most %d are read", n, limit)
	case n < 2:
		return 0, invalid("the header is %d bytes long, which holds nothing", n)
	case int64(n)+prefixSize > size:
		return 0, truncated("the file has %d bytes and its header alone should have %d: it was cut short", size, int64(n)+prefixSize)
	}
	return int64(n) + prefixSize, nil
}

// Read reads and checks the header of a file of size bytes. A header of more than
// limit bytes is refused. It returns what Parse returns; errors are *Error, or those
// of r.
func Read(r io.ReaderAt, size, limit int64) (tensors []Tensor, data int64, err error) {
	if size < prefixSize {
		return nil, 0, truncated("the file has %d bytes, too few for a header", size)
	}
	first := make([]byte, min(size, MostQuoted))
	if err := readFull(r, first, 0); err != nil {
		return nil, 0, err
	}
	end, err := headerEnd(first, size, uint64(limit))
	if err != nil {
		return nil, 0, err
	}
	head := make([]byte, end)
	if err := readFull(r, head, 0); err != nil {
		return nil, 0, err
	}
	return Parse(head, size)
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return truncated("the file ends at byte %d, inside its header", off+int64(n))
	}
	return err
}

// Parse checks the header of a file of size bytes whose first bytes are head, which
// holds the whole header unless the file is too short for it. It returns the tensors
// in the order of their data, and the offset in the file at which the data begins.
func Parse(head []byte, size int64) (tensors []Tensor, data int64, err error) {
	if size < prefixSize || len(head) < prefixSize {
		return nil, 0, truncated("the file has %d bytes, too few for a header", size)
	}
	data, err = headerEnd(head[:min(len(head), MostQuoted)], size, MaxHeader)
	if err != nil {
		return nil, 0, err
	}
	if data > int64(len(head)) {
		return nil, 0, truncated("the file ends at byte %d, inside its header", len(head))
	}
	raw := head[prefixSize:data]
	if raw[0] != '{' {
		return nil, 0, invalid("the header is not a JSON object")
	}
	if tensors, err = parseTensors(raw); err != nil {
		return nil, 0, err
	}
	return tensors, data, checkCover(tensors, data, size)
}

// checkCover sorts tensors by their data, which must follow each other up to the
// file's last byte.
func checkCover(tensors []Tensor, data, size int64) error {
	slices.SortFunc(tensors, func(a, b Tensor) int { return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End)) })
	var at int64
	for i := range tensors {
		if t := &tensors[i]; t.Begin != at {
			return invalid("tensor %s begins at byte %d where %d was due: tensors must follow each other without hole or overlap", quote(t.Name),
				t.Begin, at)
		}
		at = tensors[i].End
	}
	switch have := size - data; {
	case at > have:
		return truncated("the file has %d bytes and its header describes %d: it was cut short", size, uint64(at)+uint64(data))
	case at < have:
		return invalid("%d bytes follow the last tensor", have-at)
	}
	return nil
}

// parseTensors reads the JSON token by token, so that memory is bounded by the
// tensors kept and not by what the JSON could become. jsontext refuses duplicate
// names and bad UTF-8.
func parseTensors(raw []byte) ([]Tensor, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw)) // the decoder uses a Buffer's bytes in place
	if _, err := expect(d, '{'); err != nil {
		return nil, err
	}
	var out []Tensor
	for d.PeekKind() != '}' {
		name, err := readString(d)
		if err != nil {
			return nil, err
		}
		if name == "__metadata__" {
			if err := skipMetadata(d); err != nil {
				return nil, err
			}
			continue
		}
		if len(name) > maxName {
			return nil, invalid("a tensor's name is %d bytes long", len(name))
		}
		if len(out) == maxTensors {
			return nil, invalid("more than %d tensors", maxTensors)
		}
		t, err := parseTensor(d, name)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	if _, err := expect(d, '}'); err != nil {
		return nil, err
	}
	// The reference pads with spaces; the decoder skips white space.
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, invalid("something follows the header's JSON")
	}
	return out, nil
}

// skipMetadata reads an object of strings, or null, which the reference takes as none.
func skipMetadata(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		return d.SkipValue()
	}
	if _, err := expect(d, '{'); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		for range 2 {
			if _, err := readString(d); err != nil {
				return err
			}
		}
	}
	_, err := expect(d, '}')
	return err
}

func parseTensor(d *jsontext.Decoder, name string) (Tensor, error) {
	t := Tensor{Name: name}
	if _, err := expect(d, '{'); err != nil {
		return t, err
	}
	keys := 0
	for d.PeekKind() != '}' {
		key, err := readString(d)
		if err != nil {
			return t, err
		}
		switch key {
		case "dtype":
			if t.DType, err = readString(d); err != nil {
				return t, err
			}
		case "shape":
			dims, err := readNumbers(d, maxDims)
			if err != nil {
				return t, err
			}
			t.Shape = make([]int, len(dims))
			for i, n := range dims {
				t.Shape[i] = int(n)
			}
		case "data_offsets":
			at, err := readNumbers(d, 2)
			if err != nil {
				return t, err
			}
			if len(at) != 2 || at[0] > at[1] {
				return t, invalid("tensor %s has no valid data_offsets", quote(name))
			}
			t.Begin, t.End = at[0], at[1]
		default:
			return t, invalid("tensor %s has the unknown key %s", quote(name), quote(key))
		}
		keys++ // no key occurs twice
	}
	if _, err := expect(d, '}'); err != nil {
		return t, err
	}
	if keys != 3 {
		return t, invalid("tensor %s lacks dtype, shape or data_offsets", quote(name))
	}
	return t, t.checkSize()
}

// checkSize compares the size by type and shape with that by the offsets.
func (t *Tensor) checkSize() error {
	width, ok := dtypeBits[t.DType]
	if !ok {
		return invalid("tensor %s has the unknown type %s", quote(t.Name), quote(t.DType))
	}
	size := width
	for _, n := range t.Shape {
		hi, lo := bits.Mul64(size, uint64(n))
		if hi != 0 {
			return invalid("the shape of tensor %s overflows", quote(t.Name))
		}
		size = lo
	}
	if size%8 != 0 {
		return invalid("the size of tensor %s is no whole number of bytes", quote(t.Name))
	}
	if size/8 != uint64(t.End-t.Begin) {
		return invalid("tensor %s takes %d bytes by its shape and %d by its offsets", quote(t.Name), size/8, t.End-t.Begin)
	}
	return nil
}

// readNumbers reads an array of at most limit sizes.
func readNumbers(d *jsontext.Decoder, limit int) ([]int64, error) {
	if _, err := expect(d, '['); err != nil {
		return nil, err
	}
	var out []int64
	for d.PeekKind() != ']' {
		t, err := expect(d, '0')
		if err != nil {
			return nil, err
		}
		// Digits only: parsers differ on 1e3 and -0.
		n, err := strconv.ParseUint(t.String(), 10, 63)
		if err != nil || n > math.MaxInt {
			return nil, invalid("%s is not a size", quote(t.String()))
		}
		if len(out) == limit {
			return nil, invalid("a list is longer than %d", limit)
		}
		out = append(out, int64(n))
	}
	_, err := expect(d, ']')
	return out, err
}

func readString(d *jsontext.Decoder) (string, error) {
	t, err := expect(d, '"')
	if err != nil {
		return "", err
	}
	return t.String(), nil
}

func expect(d *jsontext.Decoder, kind jsontext.Kind) (jsontext.Token, error) {
	t, err := d.ReadToken()
	if err != nil {
		return t, invalid("the header is not valid JSON near byte %d", d.InputOffset())
	}
	if t.Kind() != kind {
		return t, invalid("the header has %s where %s was due, near byte %d", t.Kind(), kind, d.InputOffset())
	}
	return t, nil
}

// quote clips s for a message.
func quote(s string) string {
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	return strconv.QuoteToASCII(s)
}
