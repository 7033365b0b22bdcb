//go:build linux

package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/enginecache"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/loader/source/gcs"
	"github.com/thaw-dev/thaw/loader/source/s3"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/runtime/replica"
)

// Compile caches can be published to these sources.
var _ = []enginecache.Writer{(*azure.Source)(nil), (*s3.Source)(nil), (*gcs.Source)(nil)}

// remoteSource is a folder that is staged like a bucket and accepts writes.
type remoteSource struct{ d dir.Source }

func (s remoteSource) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	return s.d.Plan(ctx, location, also)
}
func (s remoteSource) Read(ctx context.Context, file source.File, off, n int64) (io.ReadCloser, error) {
	return s.d.Read(ctx, file, off, n)
}
func (s remoteSource) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	return s.d.Write(ctx, location, name, body, size)
}

// aNode is a stager with its own store and caches.
func aNode(t *testing.T, from loader.Source, trust bool) *Stager {
	t.Helper()
	root := t.TempDir()
	st, err := store.Open(store.Options{Dir: filepath.Join(root, "store")})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]loader.Source{"file": from}
	l := loader.New(loader.Options{Store: st, Sources: all})
	t.Cleanup(l.Close)
	s := NewStager(l, StagerOptions{
		Arriving: filepath.Join(root, "arriving"), Early: 1, Caches: enginecache.New(enginecache.Options{Dir: filepath.Join(root, "caches")}),
		Trust: trust, Sources: all, Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(s.Close)
	return s
}

func aModel(t *testing.T, fill byte) (folder string) {
	t.Helper()
	folder = t.TempDir()
	const n = 5 << 20
	head := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
	b = append(b, make([]byte, n)...)
	b[len(b)-1] = fill
	for name, body := range map[string][]byte{"config.json": []byte("{}"), "model.safetensors": b} {
		if err := os.WriteFile(filepath.Join(folder, name), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func stageRequest(folder string) replica.StageRequest {
	return replica.StageRequest{Source: folder, Engine: functions.EngineVLLM, Cache: "vllm torch-2 vllm-0.32; linux/amd64 H200 x1; flags 00"}
}

func ignoreProgress(functions.Bytes, functions.Bytes) {}

// started stages a model, writes to its cache as a compiling engine does, and releases
// it. It returns what the cache contained before.
func started(t *testing.T, s *Stager, req replica.StageRequest, early bool) (found string, digest string) {
	t.Helper()
	var c replica.Checkpoint
	var err error
	cache, ready := "", func() {}
	if early {
		a, aerr := s.StageEarly(t.Context(), req, ignoreProgress)
		if aerr != nil {
			t.Fatal(aerr)
		}
		if !a.Complete {
			if b, err := os.ReadFile(filepath.Join(a.Path, "model.safetensors")); err != nil || len(b) < 5<<20 {
				t.Errorf("arriving: %d bytes, %v", len(b), err)
			}
			cache, ready = a.Cache, a.EngineReady
		}
		c, err = a.Rest(t.Context())
	} else {
		c, err = s.Stage(t.Context(), req, ignoreProgress)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if cache == "" {
		cache = c.Cache
	}
	if cache == "" {
		return "", c.Digest
	}
	name := filepath.Join(cache, "graph.py")
	b, _ := os.ReadFile(name)
	if err := os.WriteFile(name, []byte("compiled"), 0o600); err != nil {
		t.Fatal(err)
	}
	ready()
	if err := c.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	return string(b), c.Digest
}

// TestCompileCacheStaysLocal: the next start on a node finds the cache of an earlier one, only for
// the same model and flags, whether the first checkpoint was staged early or not.
func TestCompileCacheStaysLocal(t *testing.T) {
	for _, early := range []bool{false, true} {
		folder := aModel(t, 1)
		s := aNode(t, remoteSource{}, false)
		req := stageRequest(folder)
		if found, _ := started(t, s, req, early); found != "" {
			t.Errorf("early %v: first start found %q", early, found)
		}
		if found, _ := started(t, s, req, false); found != "compiled" {
			t.Errorf("early %v: second start found %q", early, found)
		}
		other := req
		other.Cache += "1"
		if found, _ := started(t, s, other, false); found != "" {
			t.Errorf("early %v: other flags found %q", early, found)
		}
		if found, _ := started(t, s, stageRequest(aModel(t, 2)), false); found != "" {
			t.Errorf("early %v: another model found %q", early, found)
		}
		if _, err := os.Stat(filepath.Join(folder, "_thaw")); err == nil {
			t.Error("published although sources are not trusted")
		}
		req.Cache = ""
		if found, _ := started(t, s, req, false); found != "" {
			t.Error("an engine without caches got one")
		}
	}
}

// TestCompiledInPlace: a folder used in place has no digest and still its own cache.
func TestCompiledInPlace(t *testing.T) {
	s := aNode(t, dir.Source{}, false)
	folder := aModel(t, 1)
	for i, want := range []string{"", "compiled"} {
		if found, _ := started(t, s, stageRequest(folder), true); found != want {
			t.Errorf("start %d found %q", i, found)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte("{ }"), 0o644); err != nil {
		t.Fatal(err)
	}
	if found, _ := started(t, s, stageRequest(folder), true); found != "" {
		t.Errorf("changed, it found %q", found)
	}
}

// TestCompileCacheIsShared: a trusted source carries caches from node to node, and the digest
// of the checkpoint stays the same.
func TestCompileCacheIsShared(t *testing.T) {
	for _, early := range []bool{false, true} {
		folder := aModel(t, 1)
		req := stageRequest(folder)
		// An early start finds what a plain one published, and the reverse.
		_, first := started(t, aNode(t, remoteSource{}, true), req, !early)
		list, err := os.ReadDir(filepath.Join(folder, "_thaw", "cache"))
		if err != nil || len(list) < 2 {
			t.Fatal(list, err)
		}
		found, second := started(t, aNode(t, remoteSource{}, true), req, early)
		if found != "compiled" || first != second {
			t.Errorf("early %v: found %q, digests %s and %s", early, found, first, second)
		}
		if found, _ := started(t, aNode(t, remoteSource{}, false), req, early); found != "" {
			t.Errorf("early %v: fetched although sources are not trusted", early)
		}
		// A cache whose description does not match is not used.
		for _, e := range list {
			if strings.HasSuffix(e.Name(), ".json") {
				if err := os.WriteFile(filepath.Join(folder, "_thaw", "cache", e.Name()), []byte(`{"format":1,"key":{"model":"x"}}`), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		if found, _ := started(t, aNode(t, remoteSource{}, true), req, early); found != "" {
			t.Errorf("early %v: a lie was believed", early)
		}
	}
}

// TestCompileCacheOfOtherBytes: a source whose bytes change while its listing does not, such
// as one that lies, offers a cache that was made for other bytes: it is not kept.
func TestCompileCacheOfOtherBytes(t *testing.T) {
	folder := aModel(t, 1)
	req := stageRequest(folder)
	started(t, aNode(t, remoteSource{}, true), req, true)
	name := filepath.Join(folder, "model.safetensors")
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1]++
	if err := errors.Join(os.WriteFile(name, b, 0o644), os.Chtimes(name, time.Time{}, info.ModTime())); err != nil {
		t.Fatal(err)
	}
	s := aNode(t, remoteSource{}, true)
	a, err := s.StageEarly(t.Context(), req, ignoreProgress)
	if err != nil || a.Complete {
		t.Fatal(a, err)
	}
	if b, _ := os.ReadFile(filepath.Join(a.Cache, "graph.py")); string(b) != "compiled" {
		t.Fatalf("the engine found %q: nothing was fetched", b)
	}
	c, err := a.Rest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.EngineReady()
	if err := c.Filled(t.Context()); err == nil || !strings.Contains(err.Error(), "was made for") {
		t.Errorf("the cache of other bytes is kept: %v", err)
	}
	c.Release()
}

// TestServedWhereNothingIsMounted: without mounts, an engine that can read weights over
// HTTP starts early, and any other waits for the files.
func TestServedWhereNothingIsMounted(t *testing.T) {
	folder := aModel(t, 1)
	for e, asks := range map[functions.Engine]bool{functions.EngineEmber: true, functions.EngineVLLM: false} {
		s := aNode(t, &slow{gate: make(chan struct{})}, false)
		s.o.NoMount = true
		req := stageRequest(folder)
		req.Engine, req.Cache = e, ""
		gate := s.o.Sources["file"].(*slow).gate
		if !asks {
			close(gate)
		}
		a, err := s.StageEarly(t.Context(), req, ignoreProgress)
		if err != nil {
			t.Fatal(err)
		}
		if a.Complete == asks || (a.Weights != "") != asks {
			t.Errorf("%s: %+v", e, a)
		}
		if !asks {
			c, err := a.Rest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.Release()
			continue
		}
		if b, err := os.ReadFile(filepath.Join(a.Path, "config.json")); err != nil || string(b) != "{}" {
			t.Error(string(b), err)
		}
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(a.Weights, "unix:"))
		}}
		got := make(chan int)
		go func() {
			defer tr.CloseIdleConnections()
			res, err := (&http.Client{Transport: tr}).Get("http://weights/model.safetensors")
			if err != nil {
				t.Error(err)
				got <- 0
				return
			}
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body)
			got <- len(b)
		}()
		close(gate)
		if n := <-got; n < 5<<20 {
			t.Errorf("%d bytes", n)
		}
		c, err := a.Rest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.EngineReady()
		if b, err := os.ReadFile(filepath.Join(a.Path, "model.safetensors")); err != nil || len(b) < 5<<20 {
			t.Errorf("what is opened late: %d bytes, %v", len(b), err)
		}
		c.Release()
		if left, err := os.ReadDir(s.o.Arriving); err != nil || len(left) != 0 {
			t.Error("left:", left, err)
		}
	}
}

// slow delivers only the beginning of weights until gate is closed.
type slow struct {
	remoteSource
	gate chan struct{}
}

func (s *slow) Read(ctx context.Context, file source.File, off, n int64) (io.ReadCloser, error) {
	if source.Weights(file.Name) {
		select {
		case <-s.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.remoteSource.Read(ctx, file, off, n)
}

// TestStagedFileIsDamaged: verifying a checkpoint finds a damaged file, and the next
// staging leads to the same bytes as the first.
func TestStagedFileIsDamaged(t *testing.T) {
	s, req := aNode(t, remoteSource{}, false), stageRequest(aModel(t, 1))
	stage := func() replica.Checkpoint {
		t.Helper()
		c, err := s.Stage(t.Context(), req, func(_, _ functions.Bytes) {})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := stage()
	if err := c.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(c.Path, "model.safetensors")
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(name, 0o600), os.WriteFile(name, append([]byte{want[0] ^ 1}, want[1:]...), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := c.Verify(t.Context()); !errors.Is(err, replica.ErrDamaged) {
		t.Fatal(err)
	}
	if err := c.Verify(t.Context()); !errors.Is(err, replica.ErrDamaged) {
		t.Errorf("of a checkpoint that another verification removed: %v", err)
	}
	c.Release()
	again := stage()
	defer again.Release()
	if got, err := os.ReadFile(filepath.Join(again.Path, "model.safetensors")); err != nil || !bytes.Equal(got, want) ||
		again.Digest != c.Digest {
		t.Errorf("%d bytes of %s, %v", len(got), again.Digest, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := again.Verify(cancelled); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := os.Stat(again.Path); err != nil {
		t.Errorf("a verification that was called off removed it: %v", err)
	}
}
