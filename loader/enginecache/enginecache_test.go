package enginecache

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// memorySource is a source in memory.
type memorySource struct {
	mu    sync.Mutex
	files map[string][]byte // by location/name
	deny  bool
}

func (s *memorySource) Plan(ctx context.Context, location string, also source.Globs) (p source.Plan, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(s.files)) {
		if rest, ok := strings.CutPrefix(n, location+"/"); ok {
			p.Files = append(p.Files, source.File{Name: rest, Size: int64(len(s.files[n])), Ref: n})
		}
	}
	if len(p.Files) == 0 {
		return p, &source.Error{Kind: source.NotFound}
	}
	return p, nil
}

func (s *memorySource) Read(ctx context.Context, f source.File, off, n int64) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return io.NopCloser(bytes.NewReader(s.files[f.Ref][off : off+n])), nil
}

func (s *memorySource) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	if s.deny {
		return &source.Error{Kind: source.Denied, Detail: "no"}
	}
	b, err := io.ReadAll(body)
	if err != nil || int64(len(b)) != size {
		return errors.New("short")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[location+"/"+name] = b
	return nil
}

const at = "az://acc/c/m"

var key = Key{Model: "sha256:11", Engine: "vllm 0.32 H200"}

func writeFiles(t *testing.T, u *CacheUse, files map[string]string) {
	t.Helper()
	for n, b := range files {
		p := filepath.Join(u.Path(), n)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasSuffix(n, ".so") {
			mode = 0o755
		}
		if err := os.WriteFile(p, []byte(b), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func contents(t *testing.T, u *CacheUse) map[string]string {
	t.Helper()
	files, err := listFiles(u.Path(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(u.Path(), f.name))
		if err != nil {
			t.Fatal(err)
		}
		out[f.name] = string(b)
	}
	return out
}

func acquire(t *testing.T, c *Caches, k Key) *CacheUse {
	t.Helper()
	u, err := c.Acquire(k, "vllm", map[string]string{"modelinfos": ""})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Release)
	return u
}

var sampleFiles = map[string]string{"torch_compile_cache/ab/x.py": "code", "triton/k.so": "ELF", "a b/ü": "", "x.lock": "held"}

func publishedFiles() map[string]string {
	m := maps.Clone(sampleFiles)
	delete(m, "x.lock")
	return m
}

// A cache made on one node is taken up there, and by another node from the
// source.
func TestRoundTrip(t *testing.T) {
	s := &memorySource{files: map[string][]byte{}}
	one := New(Options{Dir: filepath.Join(t.TempDir(), "c")})
	u := acquire(t, one, key)
	if !u.Fresh {
		t.Error("not fresh")
	}
	writeFiles(t, u, sampleFiles)
	plan := Key{Model: "plan:7", Engine: key.Engine}
	n, err := u.Publish(t.Context(), s, at, plan)
	if err != nil || n == 0 {
		t.Fatal(n, err)
	}
	if n, err := u.Publish(t.Context(), s, at); err != nil || n != 0 {
		t.Error("published twice", n, err)
	}
	if again := acquire(t, one, key); again.Fresh || again.Path() != u.Path() {
		t.Error("not taken up")
	}
	if other := acquire(t, one, Key{Model: "sha256:22", Engine: key.Engine}); !other.Fresh {
		t.Error("trusted across keys")
	}

	for _, k := range []Key{key, plan} {
		two := New(Options{Dir: filepath.Join(t.TempDir(), "c")})
		v := acquire(t, two, k)
		writeFiles(t, v, map[string]string{"modelinfos/y.json": "{}"}) // shared, and no obstacle
		model, got, err := v.Fetch(t.Context(), s, at, k)
		if err != nil || model != key.Model || got != n || v.Fresh {
			t.Fatal(model, got, err)
		}
		if !maps.Equal(contents(t, v), publishedFiles()) {
			t.Errorf("%q", contents(t, v))
		}
		if fi, err := os.Stat(filepath.Join(v.Path(), "triton/k.so")); err != nil || fi.Mode()&0o100 == 0 {
			t.Error("does not run", err)
		}
	}
	v := acquire(t, New(Options{Dir: t.TempDir()}), Key{Model: "sha256:33", Engine: key.Engine})
	if _, _, err := v.Fetch(t.Context(), s, at, v.key); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	if _, _, err := v.Fetch(t.Context(), &memorySource{}, at, v.key); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

// A renamed, damaged, cut or overlong pack is not used, and leaves nothing.
func TestRefused(t *testing.T) {
	good := &memorySource{files: map[string][]byte{}}
	u := acquire(t, New(Options{Dir: t.TempDir()}), key)
	writeFiles(t, u, sampleFiles)
	if _, err := u.Publish(t.Context(), good, at); err != nil {
		t.Fatal(err)
	}
	other := Key{Model: "sha256:22", Engine: key.Engine}
	name := func(k Key) string { return at + "/" + Folder + "/" + k.String() + ".json" }
	pack := ""
	for n := range good.files {
		if strings.HasSuffix(n, ".tar") {
			pack = n
		}
	}
	change := func(s *memorySource, f func(m *manifest)) {
		var m manifest
		if err := json.Unmarshal(s.files[name(key)], &m); err != nil {
			t.Fatal(err)
		}
		f(&m)
		s.files[name(key)], _ = json.Marshal(m)
	}
	// repack puts entries of a hostile hand into the pack and makes the digest
	// of the whole right.
	repack := func(s *memorySource, hs ...*tar.Header) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range hs {
			w.WriteHeader(h)
			w.Write(make([]byte, h.Size))
		}
		w.Close()
		sum := sha256.Sum256(b.Bytes())
		p := hex.EncodeToString(sum[:])
		s.files[at+"/"+Folder+"/"+p+".tar"] = b.Bytes()
		change(s, func(m *manifest) { m.Pack, m.Size = p, int64(b.Len()) })
	}
	for _, c := range []struct {
		name string
		key  Key
		do   func(s *memorySource)
	}{
		{"another model's", other, func(s *memorySource) { s.files[name(other)] = s.files[name(key)] }},
		{"no JSON", key, func(s *memorySource) { s.files[name(key)] = []byte("x") }},
		{"another format", key, func(s *memorySource) { change(s, func(m *manifest) { m.Format = 2 }) }},
		{"absolute", key, func(s *memorySource) { repack(s, &tar.Header{Typeflag: tar.TypeReg, Name: "/x", Size: 1}) }},
		{"twice", key, func(s *memorySource) {
			h := &tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: 1}
			repack(s, h, h)
		}},
		{"too many files", key, func(s *memorySource) {
			hs := make([]*tar.Header, maxFiles+1)
			for i := range hs {
				hs[i] = &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint(i)}
			}
			repack(s, hs...)
		}},
		{"too large", key, func(s *memorySource) { change(s, func(m *manifest) { m.Size = 1 << 50 }) }},
		{"pack gone", key, func(s *memorySource) { delete(s.files, pack) }},
		{"pack cut", key, func(s *memorySource) { s.files[pack] = s.files[pack][:700] }},
		{"pack flipped", key, func(s *memorySource) {
			b := slices.Clone(s.files[pack])
			b[bytes.Index(b, []byte("code"))] ^= 1
			s.files[pack] = b
		}},
		{"tail flipped", key, func(s *memorySource) {
			b := slices.Clone(s.files[pack])
			b[len(b)-1] ^= 1
			s.files[pack] = b
		}},
		{"a link in the pack", key, func(s *memorySource) {
			repack(s, &tar.Header{Typeflag: tar.TypeSymlink, Name: "triton/k.so", Linkname: "/etc/passwd"})
		}},
		{"out of the pack", key, func(s *memorySource) { repack(s, &tar.Header{Typeflag: tar.TypeReg, Name: "../../x", Size: 1}) }},
		{"no pack", key, func(s *memorySource) {
			repack(s)
			for n := range s.files {
				if strings.HasSuffix(n, ".tar") {
					s.files[n] = bytes.Repeat([]byte("x"), len(s.files[n]))
				}
			}
		}},
	} {
		s := &memorySource{files: maps.Clone(good.files)}
		c.do(s)
		v := acquire(t, New(Options{Dir: t.TempDir()}), c.key)
		if _, _, err := v.Fetch(t.Context(), s, at, c.key); err == nil || errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := contents(t, v); len(got) != 0 {
			t.Errorf("%s left %v", c.name, got)
		}
	}
}

// A scratch becomes the cache of the model once that is known.
func TestPublishOnRelease(t *testing.T) {
	c := New(Options{Dir: t.TempDir()})
	u, err := c.Scratch("vllm", map[string]string{"modelinfos": ""})
	if err != nil {
		t.Fatal(err)
	}
	writeFiles(t, u, sampleFiles)
	writeFiles(t, u, map[string]string{"modelinfos/y.json": "{}"})
	if _, err := u.Publish(t.Context(), &memorySource{}, at); err == nil {
		t.Error("published without a model")
	}
	path := u.Path()
	if err := u.KeepAs(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if u.Path() != path {
		t.Error("the engine's folder moved")
	}
	u.Release()
	u.Release()
	if _, err := os.Stat(path); err == nil {
		t.Error("the scratch stays")
	}
	v := acquire(t, c, key)
	if v.Fresh || !maps.Equal(contents(t, v), publishedFiles()) {
		t.Error(contents(t, v))
	}
	if b, err := os.ReadFile(filepath.Join(acquire(t, c, Key{Model: "x"}).Path(), "modelinfos/y.json")); err != nil || string(b) != "{}" {
		t.Error("not shared", err)
	}
}

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	c := New(Options{Dir: dir, Budget: 2500})
	var uses []*CacheUse
	for i, m := range []string{"a", "b", "c"} {
		u := acquire(t, c, Key{Model: m})
		writeFiles(t, u, map[string]string{"x": strings.Repeat("x", 1000)})
		when := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(u.lease.Name(), when, when); err != nil {
			t.Fatal(err)
		}
		uses = append(uses, u)
	}
	uses[1].Release()
	if err := c.Trim(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, true} { // b: the oldest that is not in use
		if _, err := os.Stat(uses[i].Path()); (err == nil) != want {
			t.Errorf("%s: %v", uses[i].key.Model, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, uses[0].key.String(), keyName), []byte(`{"model":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	nested := filepath.Join(t.TempDir(), "a", "b")
	w, err := c.Acquire(Key{Model: "d"}, "vllm", map[string]string{"modelinfos": nested})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Release()
	if to, err := filepath.EvalSymlinks(filepath.Join(w.Path(), "modelinfos")); err != nil || to != nested {
		t.Error(to, err)
	}
	if _, err := c.Acquire(uses[0].key, "", nil); err == nil {
		t.Error("took what is of something else")
	}
}

// TestSharedLinkIsMadeAgain: an engine's own link in place of one to a shared folder goes,
// and changes nothing of what a cache says that it shares.
func TestSharedLinkIsMadeAgain(t *testing.T) {
	c := New(Options{Dir: t.TempDir()})
	elsewhere, want := t.TempDir(), []string(nil)
	for range 2 {
		u, err := c.Acquire(key, "vllm", map[string]string{"modelinfos": ""})
		if err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(u.Path(), "modelinfos")
		if to, err := os.Readlink(link); err != nil || to == elsewhere || !slices.Equal(u.Shared, []string{to}) || want != nil && !slices.Equal(u.Shared, want) {
			t.Errorf("%s leads to %s (%v), shared are %q", link, to, err, u.Shared)
		}
		want = u.Shared
		if err := errors.Join(os.Remove(link), os.Symlink(elsewhere, link)); err != nil {
			t.Fatal(err)
		}
		u.Release()
	}
}

// TestCopyOfReplacedFiles: what an engine puts in place of a file that was listed is copied
// only if it is a regular file of the cache.
func TestCopyOfReplacedFiles(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.WriteFile(filepath.Join(dir, "file"), []byte("kernel"), 0o600),
		os.Mkdir(filepath.Join(dir, "folder"), 0o700),
		os.Symlink(secret, filepath.Join(dir, "link")), os.Symlink(filepath.Dir(secret), filepath.Join(dir, "way")),
		syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"file": true, "folder": false, "link": false, "way/secret": false, "pipe": false} {
		into := t.TempDir()
		err := copyFiles(t.Context(), dir, into, []cacheFile{{name, 6}})
		b, _ := os.ReadFile(filepath.Join(into, name))
		if (err == nil) != want || want != (string(b) == "kernel") || string(b) == "secret" {
			t.Errorf("%s: %v %q", name, err, b)
		}
	}
}

func TestNotAllowed(t *testing.T) {
	u := acquire(t, New(Options{Dir: t.TempDir(), MaxBytes: 10}), key)
	writeFiles(t, u, map[string]string{"x": "1"})
	if _, err := u.Publish(t.Context(), &memorySource{deny: true}, at); source.KindOf(err) != source.Denied {
		t.Error(err)
	}
	writeFiles(t, u, map[string]string{"y": "12345678901"})
	if _, err := u.Publish(t.Context(), &memorySource{files: map[string][]byte{}}, at); err == nil ||
		!strings.Contains(err.Error(), "larger") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	m := manifest{Format: 1, Key: key, Pack: strings.Repeat("a", 64), Size: 9}
	b, _ := json.Marshal(m)
	f.Add(b)
	f.Add([]byte(`{"format":1,"pack":"../x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseManifest(b, key, 1<<20)
		if err != nil {
			return
		}
		if m.Key != key || !filepath.IsLocal(m.Pack) || m.Size < 0 || m.Size > 1<<20 {
			t.Fatalf("%+v", m)
		}
	})
}
