package headercheck

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/thaw-dev/thaw/functions/gguf"
	"github.com/thaw-dev/thaw/functions/pythonjson"
	"github.com/thaw-dev/thaw/functions/safetensors"
	"github.com/thaw-dev/thaw/functions/weightsets"
	"github.com/thaw-dev/thaw/loader/source"
)

// maxJSON bounds the two JSON files that are read whole.
const maxJSON = 64 << 20

// File checks one file by the type its name says. Files of other types pass, as long as
// they are no pointers: they are data for the engine.
func File(name string, r io.ReaderAt, size int64) error {
	if err := checkPointer(name, r, size); err != nil {
		return err
	}
	switch {
	case strings.EqualFold(path.Ext(name), ".safetensors"):
		return Safetensors(r, size)
	case strings.EqualFold(path.Ext(name), ".gguf"):
		if err := GGUF(r, size); err != nil {
			return err
		}
		return checkTensors(name, r, size)
	case path.Base(name) == "config.json":
		return checkJSONObject(r, size)
	case slices.Contains(tokenizerFiles, path.Base(name)):
		return checkJSONEnds(r, size)
	}
	return nil
}

// tokenizerFiles are JSON objects that engines read beside config.json. Some are large, so
// that only their ends are looked at.
var tokenizerFiles = []string{"tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "chat_template.json",
	"preprocessor_config.json"}

// checkJSONEnds returns an error for a file that does not begin and end as a JSON object does:
// a page in its place, another encoding, a download that was cut short.
func checkJSONEnds(r io.ReaderAt, size int64) error {
	const length = 64
	begin, end := make([]byte, min(size, length)), make([]byte, min(size, length))
	if err := readFull(r, begin); err != nil {
		return err
	}
	if n, err := r.ReadAt(end, size-int64(len(end))); n < len(end) {
		return &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err}
	}
	const blanks = " \t\r\n"
	begin, end = bytes.TrimLeft(begin, blanks), bytes.TrimRight(end, blanks)
	switch {
	case size == 0:
		return source.Fail(source.Truncated, "is empty", "")
	case len(begin) > 0 && begin[0] != '{':
		reason := cmp.Or(safetensors.Describe(begin), "it does not begin with {")
		if err := pythonjson.CheckObject(begin); bytes.IndexByte([]byte("\xef\xff\xfe"), begin[0]) >= 0 && err != nil {
			reason = err.Error()
		}
		return source.Fail(source.Corrupt, "not a JSON object: "+reason, "")
	case len(end) > 0 && end[len(end)-1] != '}':
		return source.Fail(source.Truncated, "does not end as a JSON object does: it was cut short", "")
	}
	return nil
}

// GGUF checks magic and version; the engine parses the rest of that header.
func GGUF(r io.ReaderAt, size int64) error {
	var head [24]byte
	if size < int64(len(head)) {
		return source.Fail(source.Truncated, fmt.Sprintf("the file has %d bytes, too few for a GGUF header", size), "")
	}
	if err := readFull(r, head[:]); err != nil {
		return err
	}
	if string(head[:4]) != "GGUF" {
		begin := make([]byte, min(size, safetensors.MostQuoted))
		if err := readFull(r, begin); err != nil {
			return err
		}
		reason := cmp.Or(safetensors.Describe(begin), "it does not begin with GGUF")
		return source.Fail(source.Corrupt, "not a GGUF file: "+reason, "")
	}
	if v := binary.LittleEndian.Uint32(head[4:]); v < 2 || v > 3 {
		return &source.Error{Kind: source.Corrupt, Detail: "GGUF: " + gguf.VersionProblem(v)}
	}
	return nil
}

// checkTensors returns an error for a GGUF file that ends before its last tensor does, or
// that is one of several parts by its metadata and not by its name.
func checkTensors(name string, r io.ReaderAt, size int64) error {
	m, least, err := gguf.ReadWhole(r, size)
	if e, ok := errors.AsType[*gguf.Error](err); ok && !e.Truncated {
		return nil // the engine says what it cannot read
	} else if ok {
		return source.Fail(source.Truncated, "GGUF: "+e.Reason, "")
	} else if err != nil {
		return &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err}
	}
	if size < least {
		return source.Fail(source.Truncated,
			fmt.Sprintf("the file has %d bytes and its tensors take it to %d at least: it was cut short", size, least), "")
	}
	parts := m.Int("split.count")
	if _, _, of, ok := weightsets.Split(path.Base(name)); parts > 1 && (!ok || of != parts) {
		return source.Fail(source.Corrupt, fmt.Sprintf("is part %d of %d of a model (split.count), renamed or joined with others by cat",
			m.Int("split.no")+1, parts), fmt.Sprintf("name the parts NAME-00001-of-%05d.gguf, or join them by llama-gguf-split --merge", parts))
	}
	return nil
}

func checkJSONObject(r io.ReaderAt, size int64) error {
	raw, err := readAll(r, size)
	if err != nil {
		return err
	}
	// Engines read it with Python, which takes more than the standard.
	if err := pythonjson.CheckObject(raw); err != nil {
		e := source.Fail(source.Corrupt, "not a JSON object that engines can read", "mend it there, or copy the file again")
		e.Err = err
		if what := safetensors.Describe(raw); what != "" && bytes.IndexByte([]byte("{[ \t\r\n"), raw[0]) < 0 {
			e.Detail += ": " + what
		}
		return e
	}
	return nil
}

func readAll(r io.ReaderAt, size int64) ([]byte, error) {
	if size > maxJSON {
		return nil, &source.Error{Kind: source.Corrupt, Detail: fmt.Sprintf("%d bytes of JSON; at most %d are read", size, maxJSON)}
	}
	raw := make([]byte, size)
	return raw, readFull(r, raw)
}

// Shards returns the sorted names of the files that an index of sharded weights
// (…safetensors.index.json named index) uses. It checks them against the names that are
// there, and names the first that is not.
func Shards(index string, r io.ReaderAt, size int64, have []string) ([]string, error) {
	if err := checkPointer(index, r, size); err != nil {
		return nil, err
	}
	raw, err := readAll(r, size)
	if err != nil {
		return nil, err
	}
	if err := pythonjson.CheckObject(raw); err != nil {
		return nil, &source.Error{Kind: source.Corrupt, Detail: "not an index of shards that engines can read: " + err.Error()}
	}
	var doc struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := jsonv2.Unmarshal(pythonjson.Standard(raw), &doc, jsontext.AllowDuplicateNames(true)); err != nil || len(doc.Map) == 0 {
		return nil, &source.Error{Kind: source.Corrupt, Detail: "not an index of shards: it has no weight_map",
			Fix: "where one file holds all weights, remove the index; else copy it again"}
	}
	for tensor, file := range doc.Map { // Python joins the paths
		doc.Map[tensor] = strings.TrimPrefix(file, "./")
		if err := source.CheckName(doc.Map[tensor]); err != nil {
			e := source.Fail(source.KindOf(err), fmt.Sprintf("weight_map has for %.80q", tensor), "write the names of the shards beside it there, "+
				"or copy the index again")
			e.Err = err
			return nil, e
		}
	}
	shards := slices.Compact(slices.Sorted(maps.Values(doc.Map)))
	var missing []string
	for _, s := range shards {
		if !slices.Contains(have, path.Join(path.Dir(index), s)) {
			missing = append(missing, s)
		}
	}
	// Merged into one file, whose index was left behind: readers take the whole file.
	whole := slices.Contains(have, path.Join(path.Dir(index), "model.safetensors"))
	if len(missing) == 0 || len(missing) == len(shards) && whole {
		return shards, nil
	}
	e := source.Fail(source.Missing, fmt.Sprintf("names %d shards, %d of them are not there, the first is %s", len(shards), len(missing),
		missing[0]), "copy the missing files beside it")
	if len(missing) == len(shards) && len(have) > 0 {
		e.Fix += "; where the shards that are there are all of the model, remove the index"
	}
	want := norm.NFC.String(path.Join(path.Dir(index), missing[0]))
	for _, name := range have {
		switch composed := norm.NFC.String(name); {
		case composed == want:
			form := "NFC"
			if !norm.NFC.IsNormalString(missing[0]) {
				form = "NFD"
			}
			e.Detail += ", while a name is there that differs in its Unicode form alone"
			e.Fix = fmt.Sprintf("rename the files to the form of the index, %s: convmv -f utf8 -t utf8 --%s -r --notest FOLDER", form,
				strings.ToLower(form))
		case strings.EqualFold(composed, want):
			e.Detail, e.Fix = e.Detail+", while "+name+" is there", "rename the files as the index writes them"
		}
	}
	return nil, e
}

func IsIndex(name string) bool { return strings.HasSuffix(name, ".safetensors.index.json") }

// maxPointer is the size below which a file may be a pointer; Git LFS writes no larger ones.
const maxPointer = 1024

// pointerBeginnings are those of every version of Git LFS.
var pointerBeginnings = []string{"version https://git-lfs.github.com/spec/", "version https://hawser.github.com/spec/", "version http://git-media.io/v/"}

// mediaTypes are files that no engine loads: a clone that left them out is a whole model.
var mediaTypes = []string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf", ".mp3", ".mp4", ".wav", ".webm", ".md"}

// Pointer returns an error if a file is what Git LFS leaves in place of a large one. Its
// first maxPointer bytes are enough.
func Pointer(raw []byte) error {
	if len(raw) < maxPointer &&
		slices.ContainsFunc(pointerBeginnings, func(begin string) bool { return bytes.HasPrefix(raw, []byte(begin)) }) {
		return &source.Error{Kind: source.Missing, Detail: "is a Git LFS pointer: the file was not downloaded", Fix: "git lfs pull"}
	}
	return nil
}

// checkPointer is Pointer for a file that an engine may load.
func checkPointer(name string, r io.ReaderAt, size int64) error {
	if size >= maxPointer || size == 0 || slices.Contains(mediaTypes, strings.ToLower(path.Ext(name))) {
		return nil
	}
	raw := make([]byte, size)
	if err := readFull(r, raw); err != nil {
		return err
	}
	return Pointer(raw)
}
