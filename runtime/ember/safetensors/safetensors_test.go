package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/kernel"
)

// image puts a header before n bytes of data.
func image(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, n)...)
}

func TestParseHeader(t *testing.T) {
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
		{"metadata, padding", image(`{"__metadata__":{"format":"pt"},`+one("a", "U8", "[]", 0, 1)+"}   ", 1), ""},
		{"empty tensor", image("{"+one("a", "F32", "[0,5]", 0, 0)+","+one("b", "U8", "[1]", 0, 1)+"}", 1), ""},
		{"nothing in it", image("{}", 0), ""},
		{"short", []byte{1, 2, 3}, "too few"},
		{"header beyond the file", binary.LittleEndian.AppendUint64(nil, 5), "truncated: header"},
		{"header length overflows", append(binary.LittleEndian.AppendUint64(nil, 1<<63), "{}"...), "longer than the allowed"},
		{"header length all ones", append(binary.LittleEndian.AppendUint64(nil, ^uint64(0)), "{}"...), "longer than the allowed"},
		{"header empty", image("", 0), "header is empty"},
		{"leading space", image(" {}", 0), "begin with {"},
		{"not JSON", image("{x}", 0), "header: "},
		{"two values", image("{}{}", 0), "more than one"},
		{"duplicate name", image("{"+one("a", "U8", "[1]", 0, 1)+","+one("a", "U8", "[1]", 1, 2)+"}", 2), "duplicate"},
		{"duplicate key", image(`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "duplicate"},
		{"unknown key", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}`, 1), `unknown key "x"`},
		{"key missing", image(`{"a":{"dtype":"U8","shape":[1]}}`, 1), "want dtype, shape and data_offsets"},
		{"unknown dtype", image("{"+one("a", "F12", "[1]", 0, 1)+"}", 1), "unknown dtype"},
		{"negative size", image("{"+one("a", "U8", "[-1]", 0, 1)+"}", 1), "not a size"},
		{"fraction", image("{"+one("a", "U8", "[1.0]", 0, 1)+"}", 1), "not a size"},
		{"huge size", image("{"+one("a", "U8", "[99999999999999999999]", 0, 1)+"}", 1), "not a size"},
		{"product overflows", image("{"+one("a", "F64", "[4611686018427387904,4]", 0, 0)+"}", 0), "overflows"},
		{"product overflows to small", image("{"+one("a", "U8", "[4294967296,4294967296]", 0, 0)+"}", 0), "overflows"},
		{"too many dimensions", image("{"+one("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1)+"}", 1), "more than 8"},
		{"hole", image("{"+one("a", "U8", "[1]", 1, 2)+"}", 2), "hole or an overlap"},
		{"overlap", image("{"+one("a", "U8", "[2]", 0, 2)+","+one("b", "U8", "[2]", 1, 3)+"}", 3), "hole or an overlap"},
		{"backwards", image("{"+one("a", "U8", "[0]", 0, 0)+","+one("b", "U8", "[1]", 1, 0)+"}", 1), "hole or an overlap"},
		{"wrong length", image("{"+one("a", "U8", "[3]", 0, 2)+"}", 2), "needs 3"},
		{"truncated data", image("{"+one("a", "U8", "[4]", 0, 4)+"}", 3), "truncated: tensor a"},
		{"data behind", image("{"+one("a", "U8", "[4]", 0, 4)+"}", 5), "belong to none"},
		{"three offsets", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}`, 1), "data_offsets"},
		{"metadata of numbers", image(`{"__metadata__":{"a":1}}`, 0), "__metadata__"},
		{"shape is text", image(`{"a":{"dtype":"U8","shape":"x","data_offsets":[0,1]}}`, 1), "shape"},
	} {
		_, _, err := ParseHeader(c.b, int64(len(c.b)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Whatever is accepted must describe the data to the byte.
func FuzzParseHeader(f *testing.F) {
	f.Add(image(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`, 24))
	f.Add(image(`{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[],"data_offsets":[4,5]}}`, 5))
	f.Add(image(`{}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		ts, at, err := ParseHeader(b, int64(len(b)))
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
			n := sizes[x.DType]
			for _, d := range x.Shape {
				n *= int64(d)
			}
			if n != x.End-x.Begin || seen[x.Name] {
				t.Fatalf("%+v", x)
			}
			seen[x.Name] = true
		}
		if sum != int64(len(data)) {
			t.Fatalf("%d of %d bytes", sum, len(data))
		}
	})
}

func TestWriteAndOpen(t *testing.T) {
	data := []float32{1, -2, 0.5, 3}
	for _, dtype := range []string{"BF16", "F32"} {
		path := filepath.Join(t.TempDir(), "m.safetensors")
		var b bytes.Buffer
		if err := Write(&b, dtype, []Source{{"b", []int{2, 2}, data}, {"a", []int{4}, data}}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.Names(), []string{"a", "b"}) || s.Size() != int64(b.Len()) {
			t.Error(s.Names(), s.Size())
		}
		var last int64
		s.Touch(func(done, total int64) bool { last = done; return total == s.Size() })
		if last != s.Size() {
			t.Errorf("touched %d of %d", last, s.Size())
		}
		for i, want := range data {
			var got float32
			if dtype == "F32" {
				got = s.F32("b")[i]
			} else {
				got = kernel.FromBF16(s.BF16("b")[i])
			}
			if got != want {
				t.Errorf("%s: %v, want %v", dtype, got, want)
			}
		}
		if s.Bytes("c") != nil || s.F32("c") != nil {
			t.Error("a tensor that is not there")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if Write(&bytes.Buffer{}, "F64", nil) == nil || Write(&bytes.Buffer{}, "F32", []Source{{"a", []int{3}, data}}) == nil {
		t.Error("wrote nonsense")
	}
}

// A header whose length is odd leaves the data unaligned; it is copied then.
func TestUnaligned(t *testing.T) {
	h := `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}}`
	for len(h)%2 == 0 {
		h += " "
	}
	b := image(h, 6)
	binary.LittleEndian.PutUint32(b[len(b)-6:], 0x3f800000)
	binary.LittleEndian.PutUint16(b[len(b)-2:], 0x4000)
	path := filepath.Join(t.TempDir(), "m.safetensors")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.F32("a")[0] != 1 || kernel.FromBF16(s.BF16("b")[0]) != 2 {
		t.Error(s.F32("a"), s.BF16("b"))
	}
}

func TestFolder(t *testing.T) {
	one := func(name string) []byte {
		var b bytes.Buffer
		if err := Write(&b, "F32", []Source{{name, []int{1}, []float32{1}}}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	const index = "model.safetensors.index.json"
	for _, c := range []struct {
		name  string
		files map[string][]byte
		want  string
	}{
		{"one file", map[string][]byte{"model.safetensors": one("a")}, ""},
		{"two files", map[string][]byte{"x1": one("a"), "x2": one("b"), index: []byte(`{"metadata":{},"weight_map":{"a":"x1","b":"x2"}}`)}, ""},
		{"none", nil, "neither"},
		{"shard missing", map[string][]byte{"x1": one("a"), index: []byte(`{"weight_map":{"a":"x1","b":"x2"}}`)}, "x2: no such file"},
		{"tensor elsewhere", map[string][]byte{"x1": one("a"), "x2": one("b"), index: []byte(`{"weight_map":{"a":"x2","b":"x2"}}`)}, "not in"},
		{"twice", map[string][]byte{"x1": one("a"), "x2": one("a"), index: []byte(`{"weight_map":{"a":"x1","b":"x2"}}`)}, "is also in"},
		{"outside the folder", map[string][]byte{index: []byte(`{"weight_map":{"a":"../x1"}}`)}, "not a file name"},
		{"parent", map[string][]byte{index: []byte(`{"weight_map":{"a":".."}}`)}, "not a file name"},
		{"absolute", map[string][]byte{index: []byte(`{"weight_map":{"a":"/etc/passwd"}}`)}, "not a file name"},
		{"index empty", map[string][]byte{index: []byte(`{}`)}, "weight_map is missing"},
		{"index broken", map[string][]byte{index: []byte(`{`)}, "unexpected end"},
	} {
		dir := t.TempDir()
		for n, b := range c.files {
			if err := os.WriteFile(filepath.Join(dir, n), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		open := map[string]func(string) (*Set, error){"mapped": OpenFolder, "copied": func(dir string) (*Set, error) {
			return CopyFolder(dir, nil, func(int64, int64) bool { return true })
		}}
		for how, open := range open {
			s, err := open(dir)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %s: %v, want %q", c.name, how, err, c.want)
			}
			if err == nil {
				s.Close()
			}
		}
	}
	if err := os.Mkdir(filepath.Join(t.TempDir(), "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("opened a folder as a file")
	}
}

// What is copied is what is mapped, and is read once, in order.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	data := make([]float32, 3<<20)
	for i := range data {
		data[i] = float32(i)
	}
	for _, n := range []string{"a", "b"} {
		var b bytes.Buffer
		if err := Write(&b, "F32", []Source{{n, []int{len(data)}, data}, {n + ".bias", []int{1}, data[:1]}}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, n+".safetensors"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	index := `{"weight_map":{"a":"a.safetensors","a.bias":"a.safetensors","b":"b.safetensors","b.bias":"b.safetensors"}}`
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	mapped, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	var last int64
	copied, err := CopyFolder(dir, nil, func(done, total int64) bool {
		if done <= last || total != mapped.Size() {
			t.Errorf("%d of %d after %d", done, total, last)
		}
		last = done
		return true
	})
	if err != nil || last != mapped.Size() {
		t.Fatal(last, err)
	}
	defer copied.Close()
	for _, n := range mapped.Names() {
		if !bytes.Equal(mapped.Bytes(n), copied.Bytes(n)) {
			t.Error(n)
		}
	}
	away := filepath.Join(t.TempDir(), "away")
	if err := os.Mkdir(away, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "model.safetensors.index.json"), filepath.Join(away, "model.safetensors.index.json")); err != nil {
		t.Fatal(err)
	}
	// The weights from elsewhere, the index from the folder.
	from := func(name string) (io.ReadCloser, int64, error) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		return io.NopCloser(bytes.NewReader(b)), int64(len(b)), err
	}
	elsewhere, err := CopyFolder(away, from, func(int64, int64) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(elsewhere.Bytes("b"), mapped.Bytes("b")) {
		t.Error("other bytes")
	}
	elsewhere.Close()
	if err := os.Rename(filepath.Join(away, "model.safetensors.index.json"), filepath.Join(dir, "model.safetensors.index.json")); err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, err := CopyFolder(dir, nil, func(int64, int64) bool { n++; return n < 2 }); !errors.Is(err, ErrStopped) || n != 2 {
		t.Error(n, err)
	}
	if err := os.Truncate(filepath.Join(dir, "b.safetensors"), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := CopyFolder(dir, nil, func(int64, int64) bool { return true }); err == nil || !strings.Contains(err.Error(), "b.safetensors") {
		t.Error(err)
	}
}
