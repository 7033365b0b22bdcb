package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// image is a file with this header and n bytes of data.
func image(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, n)...)
}

func read(b []byte) error {
	_, _, err := Read(bytes.NewReader(b), int64(len(b)), MaxHeader)
	return err
}

func TestParse(t *testing.T) {
	one := func(name, dtype, shape string, from, to int) string {
		return fmt.Sprintf(`"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, from, to)
	}
	for _, c := range []struct {
		name string
		b    []byte
		want string // part of the error, "" for none
	}{
		{"one", image("{"+one("a", "F32", "[2,3]", 0, 24)+"}", 24), ""},
		{"two, any order", image("{"+one("b", "BF16", "[2]", 8, 12)+","+one("a", "F32", "[2]", 0, 8)+"}", 12), ""},
		{"no metadata", image(`{"__metadata__":null,`+one("a", "U8", "[]", 0, 1)+"}", 1), ""},
		{"metadata, padding", image(`{"__metadata__":{"format":"pt"},`+one("a", "U8", "[]", 0, 1)+"}   ", 1), ""},
		{"empty tensor", image("{"+one("a", "F32", "[0,5]", 0, 0)+","+one("b", "U8", "[1]", 0, 1)+"}", 1), ""},
		{"nothing in it", image("{}", 0), ""},
		{"short", []byte{1, 2, 3}, "too few"},
		{"header beyond the file", binary.LittleEndian.AppendUint64(nil, 5), "cut short"},
		{"header length overflows", append(binary.LittleEndian.AppendUint64(nil, 1<<63), "{}"...), "the header claims"},
		{"header length all ones", append(binary.LittleEndian.AppendUint64(nil, ^uint64(0)), "{}"...), "the header claims"},
		{"header empty", image("", 0), "begins with zeros: its download or copy was not finished"},
		{"header of one byte", append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, "{}"...), "holds nothing"},
		{"zip", []byte("PK\x03\x04\x14\x00\x08\x00 archive/data.pkl"), "a zip or a pickle, as PyTorch writes"},
		{"pickle", []byte("\x80\x02\x8a\nl\xfc\x9cF\xf9"), "a zip or a pickle"},
		{"GGUF", []byte("GGUF\x03\x00\x00\x00\x00\x01"), "a GGUF file"},
		{"gzip", []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"), "compressed"},
		{"page", []byte("<!doctype html><title>Sign in</title>"), "a page (HTML or XML)"},
		{"answer of a server", []byte("Entry not found"), `text that begins with "Entry not found"`},

		{"leading space", image(" {}", 0), "not a JSON object"},
		{"not JSON", image("{x}", 0), "not valid JSON"},
		{"two values", image("{}{}", 0), "something follows"},
		{"duplicate name", image("{"+one("a", "U8", "[1]", 0, 1)+","+one("a", "U8", "[1]", 1, 2)+"}", 2), "not valid JSON"},
		{"duplicate key", image(`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "not valid JSON"},
		{"unknown key", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}`, 1), `unknown key "x"`},
		{"key missing", image(`{"a":{"dtype":"U8","shape":[1]}}`, 1), "lacks dtype, shape or data_offsets"},
		{"unknown type", image("{"+one("a", "F12", "[1]", 0, 1)+"}", 1), "unknown type"},
		{"negative size", image("{"+one("a", "U8", "[-1]", 0, 1)+"}", 1), "not a size"},
		{"fraction", image("{"+one("a", "U8", "[1.0]", 0, 1)+"}", 1), "not a size"},
		{"huge size", image("{"+one("a", "U8", "[99999999999999999999]", 0, 1)+"}", 1), "not a size"},
		{"product overflows", image("{"+one("a", "F64", "[4611686018427387904,4]", 0, 0)+"}", 0), "overflows"},
		{"product overflows to small", image("{"+one("a", "U8", "[4294967296,4294967296]", 0, 0)+"}", 0), "overflows"},
		{"too many dimensions", image("{"+one("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1)+"}", 1), "longer than 8"},
		{"hole", image("{"+one("a", "U8", "[1]", 1, 2)+"}", 2), "hole or overlap"},
		{"overlap", image("{"+one("a", "U8", "[2]", 0, 2)+","+one("b", "U8", "[2]", 1, 3)+"}", 3), "hole or overlap"},
		{"backwards", image("{"+one("a", "U8", "[0]", 0, 0)+","+one("b", "U8", "[1]", 1, 0)+"}", 1), "no valid data_offsets"},
		{"wrong length", image("{"+one("a", "U8", "[3]", 0, 2)+"}", 2), "takes 3 bytes by its shape"},
		{"truncated data", image("{"+one("a", "U8", "[4]", 0, 4)+"}", 3), "cut short"},
		{"data behind", image("{"+one("a", "U8", "[4]", 0, 4)+"}", 5), "follow the last tensor"},
		{"three offsets", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}`, 1), "longer than 2"},
		{"metadata of numbers", image(`{"__metadata__":{"a":1}}`, 0), "where string was due"},
		{"shape is text", image(`{"a":{"dtype":"U8","shape":"x","data_offsets":[0,1]}}`, 1), "where [ was due"},
	} {
		_, _, err := Parse(c.b, int64(len(c.b)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// What is accepted describes the data to the byte.
func FuzzParse(f *testing.F) {
	f.Add(image(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`, 24))
	f.Add(image(`{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[],"data_offsets":[4,5]}}`, 5))
	f.Add(image(`{}`, 0))
	f.Add(image(`{"a":{"dtype":"U8","shape":[9223372036854775808,2,24],"data_offsets":[0,24]}}`, 24))
	f.Add(image(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}   `, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		ts, at, err := Parse(b, int64(len(b)))
		if rerr := read(b); (err == nil) != (rerr == nil) {
			t.Fatalf("Parse: %v, Read: %v", err, rerr)
		}
		if err != nil {
			return
		}
		if at < 8 || at > int64(len(b)) {
			t.Fatalf("data at %d of %d", at, len(b))
		}
		data, sum, seen := b[at:], int64(0), map[string]bool{}
		for _, x := range ts {
			_ = data[x.Begin:x.End]
			sum += x.End - x.Begin
			n := int64(dtypeBits[x.DType])
			for _, d := range x.Shape {
				n *= int64(d)
			}
			if n != 8*(x.End-x.Begin) || seen[x.Name] {
				t.Fatalf("%+v", x)
			}
			seen[x.Name] = true
		}
		if sum != int64(len(data)) {
			t.Fatalf("%d of %d bytes", sum, len(data))
		}
	})
}

func TestRead(t *testing.T) {
	good := image(`{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`, 24)
	for name, c := range map[string]struct {
		b         []byte
		limit     int64
		truncated bool
	}{
		"seven bytes":         {good[:7], MaxHeader, true},
		"cut in the header":   {good[:20], MaxHeader, true},
		"cut in the data":     {good[:len(good)-1], MaxHeader, true},
		"one byte too many":   {append(good[:len(good):len(good)], 0), MaxHeader, false},
		"above the limit":     {good, 20, false},
		"nine dimensions":     {image(`{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}`, 1), MaxHeader, false},
		"no whole byte":       {image(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), MaxHeader, false},
		"name of 2 kilobytes": {image(`{"`+strings.Repeat("n", 2000)+`":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), MaxHeader, false},
	} {
		_, _, err := Read(bytes.NewReader(c.b), int64(len(c.b)), c.limit)
		if e, ok := errors.AsType[*Error](err); !ok || e.Truncated != c.truncated {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ts, data, err := Read(bytes.NewReader(good), int64(len(good)), MaxHeader); err != nil || len(ts) != 1 || data != int64(len(good))-24 {
		t.Error(ts, data, err)
	}
	if _, _, err := Read(bytes.NewReader(good[:20]), int64(len(good)), MaxHeader); err == nil {
		t.Error("a file that is shorter than its size passed")
	}
}
