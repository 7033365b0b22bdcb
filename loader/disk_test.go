package loader_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// The disk fails at every step in turn, once or from then on. The staging fails with a
// named error or succeeds; no partial checkpoint is listed, and the next attempt on a
// working disk succeeds.
func TestDiskFailsAtEveryStep(t *testing.T) {
	folder := model(t)
	for name, tc := range map[string]struct {
		err  error
		kind source.Kind
		ever bool
	}{
		"full once":     {syscall.ENOSPC, source.NoSpace, false},
		"full for good": {syscall.ENOSPC, source.NoSpace, true},
		"broken":        {syscall.EIO, source.Broken, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				var mu sync.Mutex
				n, off := 0, false
				failed := ""
				o := store.Options{Dir: t.TempDir(), Step: func(step string) error {
					mu.Lock()
					defer mu.Unlock()
					if n++; off || n < at || n > at && !tc.ever {
						return nil
					}
					failed = step
					return tc.err
				}}
				st := openStore(t, o)
				l := loader.New(loader.Options{Store: st, Block: 8 * block, Sources: map[string]loader.Source{"file": copied{checksummed{dir.Source{}}}}})
				stage := func() error {
					s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
					if err != nil {
						return err
					}
					defer s.Release()
					c, err := s.Wait(t.Context())
					if err == nil {
						c.Lease.Release()
						err = st.Verify(t.Context(), c.Digest)
					}
					return err
				}
				err := stage()
				mu.Lock()
				off = true
				step := failed
				mu.Unlock()
				if step == "" {
					if err != nil || at < 15 {
						t.Errorf("after %d steps: %v", at-1, err)
					}
					l.Close()
					return
				}
				if err != nil && source.KindOf(err) != tc.kind {
					t.Errorf("%s: %v", step, err)
				}
				list, lerr := st.List()
				if lerr != nil {
					t.Fatal(lerr)
				}
				for _, e := range list {
					if verr := st.Verify(t.Context(), e.Digest); verr != nil {
						t.Errorf("%s: listed and not whole: %v", step, verr)
					}
				}
				if err := stage(); err != nil {
					t.Errorf("%s: with a disk that is well: %v", step, err)
				}
				l.Close()
			}
		})
	}
}

// Space reserved for one staging is not given to another.
func TestNotEvictedWhileStaging(t *testing.T) {
	r := newRemote(t, store.Options{Budget: 50_000})
	gate, half := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		if n == 8 {
			once.Do(func() { close(half) })
			holdRequest(req, gate)
		}
		return false
	})
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-half
	other := t.TempDir()
	write(t, other, "model.safetensors", weights(30_000, 9))
	l := loader.New(loader.Options{Store: r.store, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}, Block: block})
	defer l.Close()
	o, err := l.Stage(t.Context(), other, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Wait(t.Context()); source.KindOf(err) != source.NoSpace {
		t.Errorf("error %v", err)
	}
	o.Release()
	close(gate)
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, c)
	c.Lease.Release()
	s.Release()
	// Now it may go.
	stageFolder(t, l, other).Lease.Release()
}

// A disk returns other bytes than were written: the block is fetched again.
func TestTornBlock(t *testing.T) {
	for _, ever := range []bool{false, true} {
		t.Run(fmt.Sprint(ever), func(t *testing.T) {
			data := t.TempDir()
			r := newRemote(t, store.Options{Dir: data})
			var corrupted atomic.Int32
			r.l = r.loader(t, openStore(t, store.Options{Dir: data, Step: func(step string) error {
				parts, _ := filepath.Glob(filepath.Join(data, "parts", "*", "*.journal"))
				for _, p := range parts {
					p = strings.TrimSuffix(p, ".journal")
					// The last block is written last, so that the others are here.
					if fi, err := os.Stat(p); step == "write journal" && err == nil && fi.Size() > 10*block && (ever || corrupted.Load() == 0) {
						f, err := os.OpenFile(p, os.O_RDWR, 0)
						if err != nil {
							return err
						}
						var b [1]byte
						want := r.want["model.safetensors"]
						if _, err = f.ReadAt(b[:], fi.Size()-1); err == nil && b[0] == want[len(want)-1] {
							_, err = f.WriteAt([]byte{b[0] ^ 1}, fi.Size()-1)
							corrupted.Add(1)
						}
						if err := errors.Join(err, f.Close()); err != nil {
							return err
						}
					}
				}
				return nil
			}}))
			c, err := r.stage(t, loader.StageOptions{})
			if ever {
				if source.KindOf(err) != source.Broken {
					t.Errorf("error %v after %d times", err, corrupted.Load())
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.check(t, c)
			if corrupted.Load() == 0 {
				t.Error("nothing was spoiled")
			}
		})
	}
}

// A stored file is damaged: Verify removes it, and the next staging fetches it again.
func TestCorruptBlockIsRefetched(t *testing.T) {
	r := newRemote(t, store.Options{})
	c, err := r.stage(t, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(c.Path, "model.safetensors")
	b := bytes.Clone(r.want["model.safetensors"])
	b[20_000] ^= 2
	if err := errors.Join(os.Chmod(name, 0o600), os.WriteFile(name, b, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Verify(t.Context(), c.Digest); source.KindOf(err) != source.Digest {
		t.Errorf("error %v", err)
	}
	r.srv.Fault(nil)
	again, err := r.stage(t, loader.StageOptions{})
	if err != nil || again.Digest != c.Digest {
		t.Fatal(again, err)
	}
	r.check(t, again)
	gets := r.srv.Gets()
	if len(gets) < 10 || slices.ContainsFunc(gets, func(g string) bool { return !strings.HasPrefix(g, "m/model.safetensors") }) {
		t.Errorf("fetched again: %q; the other file is well", gets)
	}
}

// denied is a source whose credentials run out in the middle.
type denied struct {
	*slowRemote
	fresh   atomic.Bool
	renewed atomic.Int32
	useless bool
}

func (d *denied) Read(ctx context.Context, f source.File, off, n int64) (io.ReadCloser, error) {
	if off > int64(len(d.body))/2 && !d.fresh.Load() {
		return nil, &source.Error{Kind: source.Denied, Detail: "403"}
	}
	return d.slowRemote.Read(ctx, f, off, n)
}

func (d *denied) Refresh(context.Context, string) error {
	d.renewed.Add(1)
	d.fresh.Store(!d.useless)
	return nil
}

func TestCredentialsAreRenewedOnce(t *testing.T) {
	for _, useless := range []bool{false, true} {
		d := &denied{slowRemote: shaped(1, weights(1<<20, 1)), useless: useless}
		d.slowRemote.first, d.slowRemote.each, d.slowRemote.all = 0, 1e12, 1e12
		l := loader.New(loader.Options{Store: openStore(t, store.Options{}), Sources: map[string]loader.Source{"far": d}, Block: 64 << 10})
		s, err := l.Stage(t.Context(), "far://account/weights", loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Wait(t.Context())
		if useless && source.KindOf(err) != source.Denied || !useless && err != nil || d.renewed.Load() != 1 {
			t.Errorf("%d renewals, %v", d.renewed.Load(), err)
		}
		if c != nil {
			c.Lease.Release()
		}
		s.Release()
		l.Close()
	}
}

// misnamed is a folder whose plan names a sha256 that the weights do not have.
type misnamed struct {
	dir.Source
	sum string
}

func (m misnamed) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := m.Source.Plan(ctx, location, also)
	for i, f := range p.Files {
		if f.Name == "model.safetensors" {
			p.Files[i].SHA256 = m.sum
		}
	}
	return p, err
}

func TestOtherSHA256(t *testing.T) {
	folder := model(t)
	for _, sum := range []string{strings.Repeat("0", 64), "00", "../../x"} {
		st := openStore(t, store.Options{})
		l := loader.New(loader.Options{Store: st, Block: 8 * block, Sources: map[string]loader.Source{"file": copied{misnamed{sum: sum}}}})
		s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Wait(t.Context()); source.KindOf(err) != source.Digest {
			t.Errorf("%q: %v", sum, err)
		}
		s.Release()
		l.Close()
		expectEmpty(t, st)
	}
}

// twice is a folder whose plan names the weights twice, with their sha256.
type twice struct{ misnamed }

func (t twice) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := t.misnamed.Plan(ctx, location, also)
	for _, f := range p.Files {
		if f.SHA256 != "" {
			f.Name = "copy.safetensors"
			p.Files = append(p.Files, f)
		}
	}
	return p, err
}

// TestEqualFiles: of two files of a source with the same bytes one is fetched.
func TestEqualFiles(t *testing.T) {
	folder := model(t)
	b, err := os.ReadFile(filepath.Join(folder, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	l := loader.New(loader.Options{Store: openStore(t, store.Options{}), Block: 8 * block,
		Sources: map[string]loader.Source{"file": copied{twice{misnamed{sum: hex.EncodeToString(sum[:])}}}}})
	defer l.Close()
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
	for _, name := range []string{"model.safetensors", "copy.safetensors"} {
		if got, err := os.ReadFile(filepath.Join(c.Path, name)); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}
