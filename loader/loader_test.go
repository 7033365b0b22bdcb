package loader_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/store"
)

// weights is a safetensors file with one tensor of n bytes.
func weights(n int, seed byte) []byte {
	head := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	b = slices.Grow(append(b, head...), n)
	for i := range n {
		b = append(b, byte(i*7)^byte(i>>8)^seed)
	}
	return b
}

func write(t *testing.T, folder, name string, body []byte) {
	t.Helper()
	p := filepath.Join(folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, body, 0o644); err != nil {
		t.Fatal(err)
	}
}

func model(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	write(t, folder, "config.json", []byte(`{"model_type":"llama"}`))
	write(t, folder, "model.safetensors", weights(100_000, 1))
	write(t, folder, "README.md", []byte("not staged"))
	return folder
}

// copied is a folder whose files are staged like those of any other source.
type copied struct{ loader.Source }

func openStore(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.DirectFrom == 0 {
		o.DirectFrom = 1 // the ways of large files, with small ones
	}
	s, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFolderInPlace(t *testing.T) {
	folder := model(t)
	l := loader.New(loader.Options{Sources: map[string]loader.Source{"file": dir.Source{}}})
	t.Cleanup(l.Close)
	s, err := l.Stage(context.Background(), folder, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Path != folder || len(c.Files) != 2 || !c.InPlace || c.Digest != "" {
		t.Errorf("checkpoint %+v", c)
	}
	c.Lease.Release()
}

// page is a text that several write to, and one reads meanwhile.
type page struct {
	mu   sync.Mutex
	text strings.Builder
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// Files that a model file names are staged and part of the plan; skipped files are
// logged once.
func TestFilesBesideTheList(t *testing.T) {
	folder := model(t)
	write(t, folder, "modeling.py", []byte("pass"))
	write(t, folder, "custom/kernels.py", []byte("pass # 2"))
	st := openStore(t, store.Options{})
	var log page
	l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(l.Close)
	stage := func(files ...string) (*loader.Checkpoint, string) {
		t.Helper()
		s, err := l.Stage(t.Context(), folder, loader.StageOptions{Files: files})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Release()
		c, err := s.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Lease.Release)
		return c, s.Progress().Note
	}
	has := func(c *loader.Checkpoint, name string) bool {
		_, err := os.Stat(filepath.Join(c.Path, filepath.FromSlash(name)))
		return err == nil
	}
	plain, note := stage()
	if len(plain.Files) != 2 || note != "3 files not staged: README.md, custom/kernels.py, modeling.py; spec.files stages them" {
		t.Errorf("%+v, %q", plain.Files, note)
	}
	code, note := stage("*.py")
	if len(code.Files) != 3 || !has(code, "modeling.py") || code.Digest == plain.Digest ||
		note != "2 files not staged: README.md, custom/kernels.py; spec.files stages them" {
		t.Errorf("%+v, %q", code.Files, note)
	}
	all, note := stage("*.py", "custom/*", "README.md")
	if len(all.Files) != 5 || !has(all, "custom/kernels.py") || note != "" {
		t.Errorf("%+v, %q", all.Files, note)
	}
	// Each finds its own again, also where the source cannot be reached.
	again, _ := stage()
	code2, _ := stage("*.py", "*.py")
	if again.Digest != plain.Digest || code2.Digest != code.Digest || strings.Count(log.String(), "not staged") != 2 {
		t.Errorf("%s and %s, want %s and %s\n%s", again.Digest, code2.Digest, plain.Digest, code.Digest, log.String())
	}
	remote := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": copied{unavailableSource{}}}})
	t.Cleanup(remote.Close)
	for _, tc := range []struct {
		files []string
		want  string
	}{{nil, plain.Digest}, {[]string{"*.py"}, code.Digest}, {[]string{"*.bin"}, ""}} {
		s, err := remote.Stage(t.Context(), folder, loader.StageOptions{Files: tc.files})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Wait(t.Context())
		if tc.want == "" && source.KindOf(err) != source.Unavailable || tc.want != "" && (err != nil || c.Digest != tc.want) {
			t.Errorf("%v without the source: %+v, %v", tc.files, c, err)
		}
		if c != nil {
			c.Lease.Release()
		}
		s.Release()
	}
	list, err := st.List()
	if err != nil || len(list) != 3 || list[0].Source != "file://"+folder {
		t.Errorf("%+v, %v", list, err)
	}
}

// Weights that can carry code are staged only if the model file names them.
func TestPickleByName(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, "config.json", []byte("{}"))
	write(t, folder, "pytorch_model.bin", []byte("PK"))
	l := loader.New(loader.Options{Store: openStore(t, store.Options{}), Sources: map[string]loader.Source{"file": copied{dir.Source{}}}})
	t.Cleanup(l.Close)
	for _, tc := range []struct {
		files []string
		kind  source.Kind
	}{{nil, source.Refused}, {[]string{"*.txt"}, source.Refused}, {[]string{"*.bin"}, ""}} {
		s, err := l.Stage(t.Context(), folder, loader.StageOptions{Files: tc.files})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Wait(t.Context())
		if source.KindOf(err) != tc.kind || tc.kind == "" && len(c.Files) != 2 {
			t.Errorf("%v: %+v, %v", tc.files, c, err)
		}
		if c != nil {
			c.Lease.Release()
		}
		s.Release()
	}
}

// unavailableSource is a source that does not answer.
type unavailableSource struct{}

func (unavailableSource) Plan(context.Context, string, source.Globs) (source.Plan, error) {
	return source.Plan{}, &source.Error{Kind: source.Unavailable, Detail: "does not answer"}
}

func (unavailableSource) Read(context.Context, source.File, int64, int64) (io.ReadCloser, error) {
	return nil, &source.Error{Kind: source.Unavailable, Detail: "does not answer"}
}

func TestStagedIntoStore(t *testing.T) {
	folder := model(t)
	st := openStore(t, store.Options{})
	l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}, Block: 4096})
	t.Cleanup(l.Close)
	s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Lease.Release()
	for _, n := range []string{"config.json", "model.safetensors"} {
		want, _ := os.ReadFile(filepath.Join(folder, n))
		got, err := os.ReadFile(filepath.Join(c.Path, n))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %d bytes, %v", n, len(got), err)
		}
	}
	list, err := st.List()
	if err != nil || len(list) != 1 || !list[0].Pinned || list[0].Digest != c.Digest {
		t.Errorf("list %+v, %v", list, err)
	}
	if source.KindOf(st.Remove(c.Digest)) != source.Refused {
		t.Error("a leased checkpoint was removed")
	}
}

func TestFolderInPlaceBad(t *testing.T) {
	good := weights(100_000, 1)
	for _, tc := range []struct {
		name     string
		make     func(t *testing.T, folder string)
		o        loader.StageOptions
		kind     source.Kind
		wantText string
	}{
		{"empty", func(t *testing.T, f string) {}, loader.StageOptions{}, source.Missing, "no weights"},
		{"a folder in a file's place", func(t *testing.T, f string) { write(t, f, "model.safetensors/x.json", []byte("{}")) }, loader.StageOptions{}, source.Missing, "model.safetensors: is a folder"},
		{"cut short", func(t *testing.T, f string) { write(t, f, "model.safetensors", good[:50_000]) }, loader.StageOptions{}, source.Truncated, "50000 bytes"},
		{"a shard missing", func(t *testing.T, f string) {
			write(t, f, "a.safetensors", good)
			write(t, f, "model.safetensors.index.json", []byte(`{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}`))
		}, loader.StageOptions{}, source.Missing, "b.safetensors"},
		{"another digest", func(t *testing.T, f string) { write(t, f, "model.safetensors", good) }, loader.StageOptions{Digest: "sha256:" + strings.Repeat("0", 64)}, source.Digest, "is demanded"},
		{"a link for weights", func(t *testing.T, f string) {
			if err := os.Symlink("/etc/passwd", filepath.Join(f, "model.safetensors")); err != nil {
				t.Fatal(err)
			}
		}, loader.StageOptions{}, source.Refused, "is a link"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := t.TempDir()
			tc.make(t, folder)
			l := loader.New(loader.Options{Sources: map[string]loader.Source{"file": dir.Source{}}})
			defer l.Close()
			s, err := l.Stage(t.Context(), folder, tc.o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Release()
			_, err = s.Wait(t.Context())
			if source.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.wantText) || !strings.Contains(err.Error(), folder) {
				t.Errorf("error %v, want kind %q", err, tc.kind)
			}
		})
	}
}

func TestFolderInPlaceOfDigest(t *testing.T) {
	folder := model(t)
	staged := loader.New(loader.Options{Store: openStore(t, store.Options{}), Sources: map[string]loader.Source{"file": copied{dir.Source{}}}})
	defer staged.Close()
	want := stageFolder(t, staged, folder)
	want.Lease.Release()
	l := loader.New(loader.Options{Sources: map[string]loader.Source{"file": dir.Source{}}})
	defer l.Close()
	for range 2 {
		s, err := l.Stage(t.Context(), folder, loader.StageOptions{Digest: want.Digest})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Wait(t.Context())
		if err != nil || c.Digest != want.Digest || c.Path != folder {
			t.Errorf("%+v, %v", c, err)
		}
		s.Release()
	}
}

func TestStageRefuses(t *testing.T) {
	l := loader.New(loader.Options{Sources: map[string]loader.Source{"file": dir.Source{}, "az": copied{dir.Source{}}}})
	for src, wantText := range map[string]string{"s3://bucket/x": "az, file", "docker://h/x": "thaw cannot read docker:// sources (a folder, file:///…", "az://acc/c/p": "no store", "./x": "relative"} {
		if _, err := l.Stage(t.Context(), src, loader.StageOptions{}); source.KindOf(err) != source.BadSource ||
			!strings.Contains(err.Error(), wantText) {
			t.Errorf("%s: %v", src, err)
		}
	}
	l.Close()
	if _, err := l.Stage(t.Context(), "/x", loader.StageOptions{}); err == nil {
		t.Error("staged by a closed loader")
	}
}
