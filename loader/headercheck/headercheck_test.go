package headercheck_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/loader/source"
)

// fileBytes is a safetensors file with this header and n bytes of data.
func fileBytes(head string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	b = append(b, head...)
	return append(b, make([]byte, n)...)
}

func checkSafetensors(b []byte) error {
	return headercheck.Safetensors(bytes.NewReader(b), int64(len(b)))
}

func TestSafetensorsGood(t *testing.T) {
	for name, b := range map[string][]byte{
		"one":         fileBytes(`{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`, 24),
		"none":        fileBytes(`{}`, 0),
		"metadata":    fileBytes(`{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}`, 8),
		"no metadata": fileBytes(`{"__metadata__":{},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"null":        fileBytes(`{"__metadata__":null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"any order":   fileBytes(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"a":{"data_offsets":[0,3],"shape":[3],"dtype":"U8"}}`, 5),
		"scalar":      fileBytes(`{"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}`, 8),
		"empty shape": fileBytes(`{"a":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"padded":      fileBytes(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}       `, 1),
		"narrow":      fileBytes(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}`, 2),
	} {
		if err := checkSafetensors(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSafetensorsBad(t *testing.T) {
	good := fileBytes(`{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`, 24)
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	one := func(dtype, shape, offsets string) []byte {
		return fileBytes(fmt.Sprintf(`{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets), 24)
	}
	for name, tc := range map[string]struct {
		b    []byte
		kind source.Kind
	}{
		"empty file":            {nil, source.Truncated},
		"seven bytes":           {good[:7], source.Truncated},
		"cut in the header":     {good[:20], source.Truncated},
		"cut in the data":       {good[:len(good)-1], source.Truncated},
		"one byte too many":     {append(good[:len(good):len(good)], 0), source.Corrupt},
		"header of 8 EiB":       {append(huge, good...), source.Corrupt},
		"header of one byte":    {fileBytes(`{`, 9), source.Corrupt},
		"not JSON":              {fileBytes(`{"a":`, 9), source.Corrupt},
		"a list":                {fileBytes(`[]`, 0), source.Corrupt},
		"something after":       {fileBytes(`{}{}`, 0), source.Corrupt},
		"unknown type":          {one(`"Q4"`, `[6]`, `[0,24]`), source.Corrupt},
		"type is a number":      {one(`4`, `[6]`, `[0,24]`), source.Corrupt},
		"negative dimension":    {one(`"F32"`, `[-6]`, `[0,24]`), source.Corrupt},
		"fraction":              {one(`"F32"`, `[6.0]`, `[0,24]`), source.Corrupt},
		"exponent":              {one(`"F32"`, `[6e0]`, `[0,24]`), source.Corrupt},
		"product overflows":     {one(`"F32"`, `[4294967296,4294967296,4294967296]`, `[0,24]`), source.Corrupt},
		"product wraps to fit":  {one(`"U8"`, `[9223372036854775808,2,24]`, `[0,24]`), source.Corrupt},
		"bytes overflow":        {one(`"F64"`, `[2305843009213693955]`, `[0,24]`), source.Corrupt},
		"shape and length":      {one(`"F32"`, `[7]`, `[0,24]`), source.Corrupt},
		"offsets turned round":  {one(`"F32"`, `[6]`, `[24,0]`), source.Corrupt},
		"one offset":            {one(`"F32"`, `[6]`, `[24]`), source.Corrupt},
		"three offsets":         {one(`"F32"`, `[6]`, `[0,24,48]`), source.Corrupt},
		"does not begin at 0":   {one(`"U8"`, `[23]`, `[1,24]`), source.Corrupt},
		"too many dimensions":   {one(`"U8"`, `[`+strings.Repeat("1,", 20)+`24]`, `[0,24]`), source.Corrupt},
		"nested deep":           {fileBytes(`{"a":`+strings.Repeat("[", 50_000)+strings.Repeat("]", 50_000)+`}`, 0), source.Corrupt},
		"a key twice":           {fileBytes(`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), source.Corrupt},
		"a tensor twice":        {fileBytes(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), source.Corrupt},
		"an unknown key":        {fileBytes(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}`, 1), source.Corrupt},
		"no type":               {fileBytes(`{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1), source.Corrupt},
		"overlap":               {fileBytes(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}`, 6), source.Corrupt},
		"gap":                   {fileBytes(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3), source.Corrupt},
		"empty one inside":      {fileBytes(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}`, 4), source.Corrupt},
		"metadata of numbers":   {fileBytes(`{"__metadata__":{"a":1}}`, 0), source.Corrupt},
		"not UTF-8":             {fileBytes("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1), source.Corrupt},
		"name of two kilobytes": {fileBytes(`{"`+strings.Repeat("n", 2000)+`":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), source.Corrupt},
	} {
		if err := checkSafetensors(tc.b); source.KindOf(err) != tc.kind {
			t.Errorf("%s: %v, want kind %q", name, err, tc.kind)
		}
	}
}

func TestSafetensorsTooMany(t *testing.T) {
	var b strings.Builder
	b.WriteByte('{')
	for i := range 200_001 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"t%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, i, i, i+1)
	}
	b.WriteByte('}')
	if err := checkSafetensors(fileBytes(b.String(), 200_001)); source.KindOf(err) != source.Corrupt {
		t.Errorf("error %v", err)
	}
}

func FuzzSafetensors(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`), 24)
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}   `), 8)
	f.Add([]byte(`{"a":{"dtype":"U8","shape":[9223372036854775808,2,24],"data_offsets":[0,24]}}`), 24)
	f.Add([]byte(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"a":{"data_offsets":[0,3],"shape":[3],"dtype":"U8"}}`), 5)
	f.Fuzz(func(t *testing.T, head []byte, n int) {
		if n < 0 || n > 1<<16 {
			return
		}
		b := fileBytes(string(head), n)
		err := checkSafetensors(b)
		if err == nil {
			// What is good is not good with a byte less or more.
			if n > 0 && checkSafetensors(b[:len(b)-1]) == nil || checkSafetensors(append(b, 0)) == nil {
				t.Error("good, and good with another length")
			}
			return
		}
		if k := source.KindOf(err); k != source.Truncated && k != source.Corrupt {
			t.Errorf("error %v", err)
		}
	})
}

func TestGGUF(t *testing.T) {
	good := append([]byte("GGUF\x03\x00\x00\x00"), make([]byte, 16)...)
	for _, tc := range []struct {
		b    []byte
		kind source.Kind
	}{{good, ""}, {good[:23], source.Truncated}, {append([]byte("GGUF\x09\x00\x00\x00"), make([]byte, 16)...), source.Corrupt}, {append([]byte("ggml"), good...), source.Corrupt}} {
		if err := headercheck.File("x.gguf", bytes.NewReader(tc.b), int64(len(tc.b))); source.KindOf(err) != tc.kind {
			t.Errorf("%q: %v", tc.b, err)
		}
	}
}

// ggufFile writes a GGUF file with these whole numbers, and a tensor of 32 bytes at each of these
// places of the data.
func ggufFile(values map[string]uint32, tensors ...uint64) []byte {
	text := func(b []byte, s string) []byte {
		return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	b := append([]byte("GGUF"), 3, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(values)+4))
	b = binary.LittleEndian.AppendUint32(text(b, "general.architecture"), 8)
	b = text(b, "llama")
	b = binary.LittleEndian.AppendUint32(text(b, "llama.block_count"), 4)
	b = binary.LittleEndian.AppendUint32(b, 2)
	b = binary.LittleEndian.AppendUint32(text(b, "tokenizer.ggml.tokens"), 9)
	b = text(text(append(b, 8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0), "a"), "bc")
	for _, name := range slices.Sorted(maps.Keys(values)) { // behind the tokens, as writers do
		b = binary.LittleEndian.AppendUint32(text(b, name), 4)
		b = binary.LittleEndian.AppendUint32(b, values[name])
	}
	b = binary.LittleEndian.AppendUint32(text(b, "z"), 7)
	b = append(b, 1)
	end := uint64(0)
	for _, at := range tensors {
		b = binary.LittleEndian.AppendUint32(text(b, "blk.0"), 2)
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, 2), 4)
		b = binary.LittleEndian.AppendUint64(append(b, 0, 0, 0, 0), at)
		end = max(end, at+32)
	}
	align := max(int(values["general.alignment"]), 32)
	b = append(b, make([]byte, (align-len(b)%align)%align)...)
	return append(b, make([]byte, end)...)
}

// TestGGUFTensors: a file that ends before its last tensor does was cut short, wherever that
// is; one part of several under another name is refused with the way to join them.
func TestGGUFTensors(t *testing.T) {
	split := map[string]uint32{"split.no": 1, "split.count": 3}
	for _, tc := range []struct {
		name string
		b    []byte
		want string
	}{
		{"m.gguf", ggufFile(nil, 0, 64), ""},
		{"m.gguf", ggufFile(nil), ""},
		{"m.gguf", ggufFile(map[string]uint32{"general.alignment": 4096}, 64, 0), ""},
		{"m.gguf", ggufFile(map[string]uint32{"split.count": 1}, 0), ""},
		{"a/m-00002-of-00003.gguf", ggufFile(split, 0), ""},
		{"m.gguf", ggufFile(split, 0), "is part 2 of 3 of a model (split.count), renamed or joined with others by cat (name the parts NAME-00001-of-00003.gguf, or join"},
		{"m-00002-of-00002.gguf", ggufFile(split, 0), "is part 2 of 3"},
		{"m.gguf", append(ggufFile(split, 0), ggufFile(split, 0)...), "is part 2 of 3"},
	} {
		err := headercheck.File(tc.name, bytes.NewReader(tc.b), int64(len(tc.b)))
		if (err == nil) != (tc.want == "") || err != nil && (source.KindOf(err) != source.Corrupt || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	for _, whole := range [][]byte{ggufFile(nil, 0, 64), ggufFile(map[string]uint32{"general.alignment": 256}, 128, 0)} {
		for n := range len(whole) {
			err := headercheck.File("m.gguf", bytes.NewReader(whole[:n]), int64(n))
			if source.KindOf(err) != source.Truncated || n >= 24 && !strings.Contains(err.Error(), "was cut short (copy the file again)") {
				t.Errorf("%d of %d bytes: %v", n, len(whole), err)
			}
		}
	}
}

// An index or a checkpoint that was cloned without its large files is named as that.
func TestPointers(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid " +
		"sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
	for _, tc := range []struct{ name, text, want string }{
		{"model.safetensors", pointer, "is a Git LFS pointer: the file was not downloaded (git lfs pull)"},
		{"a/model-00001-of-00002.safetensors", pointer, "Git LFS"},
		{"m-Q4_K_M.gguf", pointer, "Git LFS"},
		{"tokenizer.json", pointer, "Git LFS"},
		{"tokenizer.model", pointer, "Git LFS"},
		{"config.json", pointer, "Git LFS"},
		{"model.onnx", pointer, "Git LFS"},
		{"pytorch_model.bin", "version https://hawser.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS"},
		{"picture.png", pointer, ""},
		{"merges.txt", "version https://git-lfs.github.com is where it is", ""},
		{"merges.txt", "#version: 0.2\na b\n", ""},
		{"notes.txt", pointer + strings.Repeat("x", 2000), ""},
		{"empty.txt", "", ""},
	} {
		err := headercheck.File(tc.name, strings.NewReader(tc.text), int64(len(tc.text)))
		if tc.want == "" && err != nil || tc.want != "" && (source.KindOf(err) != source.Missing || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if _, err := headercheck.Shards("model.safetensors.index.json", strings.NewReader(pointer), int64(len(pointer)),
		nil); source.KindOf(err) != source.Missing || !strings.Contains(err.Error(), "Git LFS") {
		t.Errorf("an index: %v", err)
	}
}

// config.json is read by Python in every folder, and its own words are as Python writes them.
func TestConfigOfPython(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"config.json", `{"rope_theta": Infinity, "x": [NaN, -Infinity]}`, ""},
		{"unet/config.json", `{"sigma": NaN}`, ""},
		{"config.json", `{"name": "\ud83d"}`, ""},
		{"config.json", "{\n \"a\": nan\n}", "line 2, column 8"},
		{"text_encoder/config.json", `{"a": 1,}`, "line 1, column 8"},
		{"config.json", `["a"]`, "not a JSON object"},
		{"config.json", `<?xml version="1.0"?><Error><Code>BlobNotFound</Code></Error>`, "a page (HTML or XML)"},
		{"config.json", "Entry not found", `text that begins with "Entry not found"`},
		{"config.json", strings.Repeat("\x00", 400), "begins with zeros"},
		{"m.safetensors", "Access to model x is restricted, ask for access at its page." + strings.Repeat(" ", 60), `begins with "Access to model x is restricted, ask for access at its page.`},
		{"m.gguf", `{"error":"Repository not found"}`, `it is text that begins with "{\"error\":\"Repository not found\"}"`},
		{"m.safetensors", "GGUF\x03\x00\x00\x00" + strings.Repeat("\x00", 300), "it is a GGUF file: rename it to NAME.gguf$"},
		{"m.gguf", "<!doctype html><html><title>Sign in</title></html>", "not a GGUF file: it is a page"},
		{"m.gguf", strings.Repeat("\x00", 400), "begins with zeros: its download or copy was not finished"},
		{"m.safetensors", "<!doctype html><html><title>Sign in</title></html>", "not a valid safetensors file: it is a page"},
		{"generation_config.json", `{"a": nan}`, ""}, // the engine's matter
	} {
		err := headercheck.File(tc.name, strings.NewReader(tc.text), int64(len(tc.text)))
		want, whole := strings.CutSuffix(tc.want, "$")
		if tc.want == "" && err != nil || tc.want != "" && (source.KindOf(err) != source.Corrupt || !strings.Contains(err.Error(), want)) ||
			whole && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s %s: %v, want %q", tc.name, tc.text, err, tc.want)
		}
	}
}

func TestShards(t *testing.T) {
	index := []byte(`{"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}`)
	for _, tc := range []struct {
		have []string
		kind source.Kind
	}{{[]string{"m-1.safetensors", "m-2.safetensors"}, ""}, {[]string{"m-1.safetensors"}, source.Missing}} {
		if _, err := headercheck.Shards("model.safetensors.index.json", bytes.NewReader(index), int64(len(index)),
			tc.have); source.KindOf(err) != tc.kind {
			t.Errorf("%v: %v", tc.have, err)
		}
	}
	// Shards that were merged: the whole file counts. With half of them there, it does not.
	for have, kind := range map[string]source.Kind{"model.safetensors": "", "model.safetensors m-1.safetensors": source.Missing, "other.safetensors": source.Missing} {
		if _, err := headercheck.Shards("model.safetensors.index.json", bytes.NewReader(index), int64(len(index)),
			strings.Fields(have)); source.KindOf(err) != kind {
			t.Errorf("%s: %v", have, err)
		}
	}
	// Names that look the same, and names that a system without capitals changed.
	for _, tc := range []struct{ named, have, want, fix string }{
		{"mod\u00e9le-1.safetensors", "mode\u0301le-1.safetensors", "differs in its Unicode form alone", "NFC: convmv -f utf8 -t utf8 --nfc "},
		{"mode\u0301le-1.safetensors", "mod\u00e9le-1.safetensors", "differs in its Unicode form alone", "NFD: convmv -f utf8 -t utf8 --nfd "},
		{"M-1.safetensors", "m-1.safetensors", "the first is M-1.safetensors, while m-1.safetensors is there", "rename the files as the index writes them"},
		{"m-1.safetensors", "x/m-1.safetensors", "the first is m-1.safetensors (", "copy the missing files beside it"},
	} {
		index := fmt.Appendf(nil, `{"weight_map":{"a":%q,"b":"c.safetensors"}}`, tc.named)
		_, err := headercheck.Shards("model.safetensors.index.json", bytes.NewReader(index), int64(len(index)), []string{"c.safetensors", tc.have})
		if source.KindOf(err) != source.Missing || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.fix) {
			t.Errorf("%q beside %q: %v", tc.named, tc.have, err)
		}
	}
	for named, want := range map[string]string{
		`"/data/m-1.safetensors"`: `for "a.weight": file name "/data/m-1.safetensors" is absolute`, `null`: `for "a.weight": file name "" is empty`,
		`"../m-1.safetensors"`: `for "a.weight": file name "../m-1.safetensors" does not name one file below its folder`} {
		index := `{"weight_map":{"a.weight":` + named + `,"b":"c.safetensors"}}`
		_, err := headercheck.Shards("model.safetensors.index.json", strings.NewReader(index), int64(len(index)), []string{"c.safetensors"})
		if source.KindOf(err) != source.Refused || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "copy the index again") {
			t.Errorf("%s: %v", named, err)
		}
	}
	// Another set lies there, whole.
	if _, err := headercheck.Shards("model.safetensors.index.json", bytes.NewReader(index), int64(len(index)),
		[]string{"x-00001-of-00001.safetensors"}); err == nil || !strings.Contains(err.Error(), "remove the index") {
		t.Error(err)
	}
	dotted := []byte(`{"weight_map":{"a":"./m-1.safetensors","b":"m-2.safetensors"}}`)
	if got, err := headercheck.Shards("model.safetensors.index.json", bytes.NewReader(dotted), int64(len(dotted)),
		[]string{"m-1.safetensors", "m-2.safetensors"}); err != nil || len(got) != 2 || got[0] != "m-1.safetensors" {
		t.Errorf("names with ./: %v %v", got, err)
	}
	torn := []byte("{\"metadata\":{\"x\":\"\xff\"},\"weight_map\":{\"a\":\"m-1.safetensors\"}}")
	if _, err := headercheck.Shards("i", bytes.NewReader(torn), int64(len(torn)), []string{"m-1.safetensors"}); err == nil || !strings.Contains(err.Error(), "line 1, column 19") {
		t.Errorf("torn UTF-8: %v", err)
	}
	for _, bad := range []string{``, `{}`, `{"weight_map":[]}`, `{"weight_map":{"a":1}}`, `null`} {
		if _, err := headercheck.Shards("i", strings.NewReader(bad), int64(len(bad)), nil); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
