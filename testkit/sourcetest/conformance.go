// Package sourcetest is the conformance suite that every source of weights passes (reads,
// encodings, writes), and has Memory, a source in memory for tests of the loader and its users.
package sourcetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// Source is what the loader asks of a source (loader.Source).
type Source interface {
	Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error)
	Read(ctx context.Context, file source.File, offset, length int64) (io.ReadCloser, error)
}

// Location is a location of a source that a test may write to.
type Location struct {
	Source   Source
	Location string
	Nowhere  string // a location of the same source with nothing at it
	Put      func(t *testing.T, name string, body []byte)
	Delete   func(t *testing.T, name string)
	// Kept says that a version stays readable when there is a newer one, or
	// none: a commit of a hub. Elsewhere it must not be read any more.
	Kept bool
	// FolderOnly: a location is no single file.
	FolderOnly bool
}

// blockReader is the other way in which the loader reads (loader.BlockReader).
type blockReader interface {
	ReadInto(ctx context.Context, file source.File, offset int64, b []byte) error
}

// readBody returns the bytes of a range by Read.
func readBody(ctx context.Context, s Source, f source.File, off, n int64) ([]byte, error) {
	r, err := s.Read(ctx, f, off, n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// Run runs the suite; open makes a fresh, empty place.
func Run(t *testing.T, open func(t *testing.T) Location) {
	body := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i) ^ byte(i>>8)
		}
		return b
	}
	plan := func(t *testing.T, l Location) map[string]source.File {
		t.Helper()
		got, err := l.Source.Plan(t.Context(), l.Location, nil)
		if err != nil {
			t.Fatal(err)
		}
		files := make(map[string]source.File)
		for _, f := range got.Files {
			files[f.Name] = f
		}
		return files
	}
	read := func(ctx context.Context, l Location, f source.File, off, n int64) ([]byte, error) {
		got, err := readBody(ctx, l.Source, f, off, n)
		if s, ok := l.Source.(blockReader); ok {
			into := make([]byte, n)
			intoErr := s.ReadInto(ctx, f, off, into)
			if (err == nil) != (intoErr == nil) || source.KindOf(err) != source.KindOf(intoErr) || err == nil && !bytes.Equal(got, into) {
				return nil, fmt.Errorf("Read gave %d bytes and the error %v; ReadInto gave other bytes or another error: %v", len(got), err, intoErr)
			}
		}
		return got, err
	}

	old := func(t *testing.T, l Location, f source.File, all []byte) {
		t.Helper()
		got, err := read(t.Context(), l, f, 0, int64(len(all)))
		switch {
		case l.Kept && (err != nil || !bytes.Equal(got, all)):
			t.Errorf("a version that is kept: %d bytes, %v", len(got), err)
		case !l.Kept && source.KindOf(err) != source.Changed:
			t.Errorf("error %v", err)
		}
	}

	t.Run("lists names, sizes and versions", func(t *testing.T) {
		l := open(t)
		want := map[string]int{"config.json": 10, "model.safetensors": 70_000, "sub/folder/x.json": 3, "a name with spaces, 100%.txt": 5, "été.json": 7, "empty.txt": 0}
		for name, n := range want {
			l.Put(t, name, body(n))
		}
		files := plan(t, l)
		if len(files) != len(want) {
			t.Errorf("%d files, want %d: %v", len(files), len(want), files)
		}
		for name, n := range want {
			f, ok := files[name]
			if !ok || f.Size != int64(n) || f.Version == "" {
				t.Errorf("%q: %+v", name, f)
			}
		}
	})
	t.Run("files beside the list", func(t *testing.T) {
		l := open(t)
		all := body(300)
		for _, name := range []string{"config.json", "model.safetensors", "modeling.py", "custom/code.py", "custom/deep/code.py", "vocab.pkl", "README.md", ".hidden.py", "_thaw/own.py"} {
			l.Put(t, name, all)
		}
		for _, tc := range []struct {
			also source.Globs
			want string
		}{
			{nil, "config.json model.safetensors"},
			{source.Globs{"*.py"}, "config.json model.safetensors modeling.py"},
			{source.Globs{"custom/*", "vocab.pkl", "*/*.py", "*"}, "README.md config.json custom/code.py model.safetensors modeling.py vocab.pkl"},
			{source.Globs{".*", "_thaw/*", "../*"}, "config.json model.safetensors"},
		} {
			got, err := l.Source.Plan(t.Context(), l.Location, tc.also)
			if err != nil {
				t.Fatal(err)
			}
			files, _, err := source.Select(l.Location, got.Files, tc.also)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, f := range files {
				names = append(names, f.Name)
				if b, err := read(t.Context(), l, f, 0, f.Size); err != nil || f.Version == "" || !bytes.Equal(b, all) {
					t.Errorf("%v: %+v: %d bytes, %v", tc.also, f, len(b), err)
				}
			}
			slices.Sort(names)
			if s := strings.Join(names, " "); s != tc.want {
				t.Errorf("%v: %s, want %s", tc.also, s, tc.want)
			}
			if left := tc.also.Skipped(got.Files); len(tc.also) == 0 && !slices.Contains(left, "modeling.py") ||
				slices.ContainsFunc(left, tc.also.Includes) {
				t.Errorf("%v: left are %v", tc.also, left)
			}
		}
	})
	t.Run("one file", func(t *testing.T) {
		l := open(t)
		if l.FolderOnly {
			t.Skip("this source is a folder")
		}
		for _, name := range []string{"config.json", "model.onnx", "m-Q4.gguf", "s-00001-of-00003.gguf", "s-00002-of-00003.gguf", "s-00003-of-00003.gguf", "t-00001-of-00003.gguf", "t-00003-of-00003.gguf", "v1.5/config.json"} {
			l.Put(t, name, body(len(name)))
		}
		for name, want := range map[string]string{
			"m-Q4.gguf": "m-Q4.gguf", "model.onnx": "model.onnx", "v1.5": "config.json", "s-00002-of-00003.gguf": "s-00001-of-00003.gguf s-00002-of-00003.gguf s-00003-of-00003.gguf",
			"t-00003-of-00003.gguf": "!t-00002-of-00003.gguf", "gone.gguf": "!gone.gguf", "gone.onnx": "!gone.onnx",
		} {
			got, err := l.Source.Plan(t.Context(), l.Location+"/"+name, nil)
			var names []string
			for _, f := range got.Files {
				names = append(names, f.Name)
				if b, err := read(t.Context(), l, f, 0, f.Size); err != nil || len(b) != int(f.Size) {
					t.Errorf("%s: %d bytes, %v", f.Name, len(b), err)
				}
			}
			slices.Sort(names)
			if missing, bad := strings.CutPrefix(want, "!"); bad {
				if kind := source.KindOf(err); kind != source.NotFound && kind != source.Missing || !strings.Contains(err.Error(), missing) {
					t.Errorf("%s: %v, %v", name, names, err)
				}
			} else if err != nil || strings.Join(names, " ") != want {
				t.Errorf("%s: %v, %v", name, names, err)
			}
		}
	})
	t.Run("nothing there", func(t *testing.T) {
		l := open(t)
		if _, err := l.Source.Plan(t.Context(), l.Nowhere, nil); source.KindOf(err) != source.NotFound {
			t.Errorf("error %v", err)
		}
	})
	t.Run("reads any range", func(t *testing.T) {
		l := open(t)
		all := body(70_000)
		l.Put(t, "model.safetensors", all)
		l.Put(t, "a name with spaces, 100%.txt", all)
		for _, f := range plan(t, l) {
			for _, at := range [][2]int64{{0, 1}, {0, 70_000}, {1, 69_999}, {69_999, 1}, {4096, 4096}} {
				got, err := read(t.Context(), l, f, at[0], at[1])
				if err != nil || !bytes.Equal(got, all[at[0]:at[0]+at[1]]) {
					t.Errorf("%s %v: %d bytes, %v", f.Name, at, len(got), err)
				}
			}
		}
	})
	t.Run("many ranges at once", func(t *testing.T) {
		l := open(t)
		all := body(64_000)
		l.Put(t, "model.safetensors", all)
		f := plan(t, l)["model.safetensors"]
		var wg sync.WaitGroup
		for i := range int64(16) {
			wg.Go(func() {
				got, err := read(t.Context(), l, f, i*4000, 4000)
				if err != nil || !bytes.Equal(got, all[i*4000:(i+1)*4000]) {
					t.Errorf("range %d: %d bytes, %v", i, len(got), err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("another version is not read", func(t *testing.T) {
		l := open(t)
		l.Put(t, "model.safetensors", body(1000))
		f := plan(t, l)["model.safetensors"]
		l.Put(t, "model.safetensors", body(1001))
		old(t, l, f, body(1000))
		if g := plan(t, l)["model.safetensors"]; g.Version == f.Version || g.Size != 1001 {
			t.Errorf("planned again: %+v", g)
		}
	})
	t.Run("a file that is gone", func(t *testing.T) {
		l := open(t)
		l.Put(t, "config.json", body(10))
		l.Put(t, "model.safetensors", body(1000))
		f := plan(t, l)["model.safetensors"]
		l.Delete(t, "model.safetensors")
		old(t, l, f, body(1000))
	})
	t.Run("a caller that left", func(t *testing.T) {
		l := open(t)
		l.Put(t, "config.json", body(10))
		f := plan(t, l)["config.json"]
		gone := fmt.Errorf("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if _, err := read(ctx, l, f, 0, 10); err == nil {
			t.Error("read after its caller left")
		}
		if _, err := l.Source.Plan(ctx, l.Location, nil); err == nil {
			t.Error("planned after its caller left")
		}
	})
}
