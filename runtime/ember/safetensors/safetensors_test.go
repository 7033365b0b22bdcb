package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/kernel"
	"github.com/thaw-dev/thaw/testkit/tensors"
)

// image puts a header before n bytes of data.
func image(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, n)...)
}

func TestWriteAndOpen(t *testing.T) {
	data := []float32{1, -2, 0.5, 3}
	for _, dtype := range []string{"BF16", "F32"} {
		path := filepath.Join(t.TempDir(), "m.safetensors")
		var b bytes.Buffer
		if err := tensors.Write(&b, dtype, []tensors.Source{{Name: "b", Shape: []int{2, 2}, Data: data}, {Name: "a", Shape: []int{4}, Data: data}}); err != nil {
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
	if tensors.Write(&bytes.Buffer{}, "F64", nil) == nil || tensors.Write(&bytes.Buffer{}, "F32", []tensors.Source{{Name: "a", Shape: []int{3}, Data: data}}) == nil {
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
		if err := tensors.Write(&b, "F32", []tensors.Source{{Name: name, Shape: []int{1}, Data: []float32{1}}}); err != nil {
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
		{"none", nil, "has no safetensors"},
		{"another name", map[string][]byte{"tiny v2.safetensors": one("a"), "adapter_model.safetensors": one("a"), "consolidated.safetensors": one("a")}, ""},
		{"shards without an index", map[string][]byte{"x-00001-of-00002.safetensors": one("a"), "x-00002-of-00002.SAFETENSORS": one("b")}, ""},
		{"a copy", map[string][]byte{"x.safetensors": one("a"), "x (1).safetensors": one("a")}, "is also in"},
		{"shard missing", map[string][]byte{"x1": one("a"), index: []byte(`{"weight_map":{"a":"x1","b":"x2"}}`)}, "x2: no such file"},
		{"tensor elsewhere", map[string][]byte{"x1": one("a"), "x2": one("b"), index: []byte(`{"weight_map":{"a":"x2","b":"x2"}}`)}, "not in"},
		{"twice", map[string][]byte{"x1": one("a"), "x2": one("a"), index: []byte(`{"weight_map":{"a":"x1","b":"x2"}}`)}, "is also in"},
		{"outside the folder", map[string][]byte{index: []byte(`{"weight_map":{"a":"../x1"}}`)}, "not a file name"},
		{"parent", map[string][]byte{index: []byte(`{"weight_map":{"a":".."}}`)}, "not a file name"},
		{"absolute", map[string][]byte{index: []byte(`{"weight_map":{"a":"/etc/passwd"}}`)}, "not a file name"},
		{"index empty", map[string][]byte{index: []byte(`{}`)}, "weight_map is missing"},
		{"index broken", map[string][]byte{index: []byte(`{`)}, "line 1, column 2: it ends in the middle"},
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
		if err := tensors.Write(&b, "F32", []tensors.Source{{Name: n, Shape: []int{len(data)}, Data: data}, {Name: n + ".bias", Shape: []int{1}, Data: data[:1]}}); err != nil {
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
	target := filepath.Join(t.TempDir(), "away")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "model.safetensors.index.json"),
		filepath.Join(target, "model.safetensors.index.json")); err != nil {
		t.Fatal(err)
	}
	// The weights from elsewhere, the index from the folder.
	from := func(name string) (io.ReadCloser, int64, error) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		return io.NopCloser(bytes.NewReader(b)), int64(len(b)), err
	}
	elsewhere, err := CopyFolder(target, from, func(int64, int64) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(elsewhere.Bytes("b"), mapped.Bytes("b")) {
		t.Error("other bytes")
	}
	elsewhere.Close()
	if err := os.Rename(filepath.Join(target, "model.safetensors.index.json"),
		filepath.Join(dir, "model.safetensors.index.json")); err != nil {
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
