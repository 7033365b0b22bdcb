package loader_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/azure"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

const block = 4096

// remote is a loader on a blob server with injected faults.
type remote struct {
	srv   *azuretest.Server
	store *store.Store
	l     *loader.Loader
	want  map[string][]byte
	idle  time.Duration
}

func newRemote(t *testing.T, o store.Options) *remote {
	t.Helper()
	r := &remote{srv: azuretest.New(t), store: openStore(t, o)}
	r.want = map[string][]byte{"config.json": []byte(`{"model_type":"llama"}`), "model.safetensors": weights(10*block, 3), "empty.txt": nil}
	for name, body := range r.want {
		r.srv.Put("m/"+name, body)
	}
	r.l = r.loader(t, r.store)
	return r
}

func (r *remote) loader(t *testing.T, st *store.Store) *loader.Loader {
	src := azure.New(azure.Options{Getenv: r.srv.Getenv})
	t.Cleanup(src.Close)
	l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"az": src}, Block: block, Parallel: 4,
		Retry: loader.Retry{Attempts: 4, Base: time.Millisecond, Max: 4 * time.Millisecond, Idle: r.idle}})
	t.Cleanup(l.Close)
	return l
}

func (r *remote) stage(t *testing.T, o loader.StageOptions) (*loader.Checkpoint, error) {
	t.Helper()
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c, err := s.Wait(t.Context())
	if c != nil {
		t.Cleanup(c.Lease.Release)
	}
	return c, err
}

func (r *remote) check(t *testing.T, c *loader.Checkpoint) {
	t.Helper()
	if len(c.Files) != len(r.want) {
		t.Errorf("files %+v", c.Files)
	}
	for name, want := range r.want {
		got, err := os.ReadFile(filepath.Join(c.Path, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// shortTimeouts has a short idle timeout, for tests of stalled bodies only: on a busy
// machine good answers are slow too.
func shortTimeouts(t *testing.T, fault string) *remote {
	r := newRemote(t, store.Options{})
	if fault == "slow body" || fault == "no headers" {
		r.idle = 700 * time.Millisecond
		r.l = r.loader(t, r.store)
	}
	return r
}

// holdRequest waits for gate, or until the client is gone: a test that fails must not
// leave its server waiting.
func holdRequest(r *http.Request, gate <-chan struct{}) {
	select {
	case <-gate:
	case <-r.Context().Done():
	}
}

// firstRequests injects the fault into the nth ranged GET only.
func firstRequests(n int, corrupt func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, r *http.Request, at int) bool {
		if at != n {
			return false
		}
		corrupt(w, r)
		return true
	}
}

func always(corrupt func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, r *http.Request, at int) bool {
		if at == 0 || !strings.Contains(r.URL.Path, "safetensors") {
			return false
		}
		corrupt(w, r)
		return true
	}
}

// answer is a 206 for the requested range, with the faults of the caller.
func answer(w http.ResponseWriter, r *http.Request, body []byte, change func(h http.Header, part []byte) []byte) {
	from, to, _ := azuretest.Range(r.Header.Get("x-ms-range"), len(body))
	if rng := r.Header.Get("Range"); rng != "" {
		from, to, _ = azuretest.Range(rng, len(body))
	}
	part := append([]byte(nil), body[from:to]...)
	w.Header().Set("ETag", r.Header.Get("If-Match"))
	w.Header().Set("Content-Length", strconv.Itoa(len(part)))
	w.Header().Set("Content-Range", "bytes "+strconv.Itoa(from)+"-"+strconv.Itoa(to-1)+"/"+strconv.Itoa(len(body)))
	part = change(w.Header(), part)
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(part)
}

func TestFaults(t *testing.T) {
	body := weights(10*block, 3)
	faults := map[string]func(w http.ResponseWriter, r *http.Request){
		"truncated": func(w http.ResponseWriter, r *http.Request) {
			answer(w, r, body, func(h http.Header, p []byte) []byte { return p[:len(p)/2] })
		},
		"wrong Content-Range": func(w http.ResponseWriter, r *http.Request) {
			answer(w, r, body, func(h http.Header, p []byte) []byte {
				h.Set("Content-Range", "bytes 0-"+strconv.Itoa(len(p)-1)+"/"+strconv.Itoa(len(body)+1))
				return p
			})
		},
		"200 for 206": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", r.Header.Get("If-Match"))
			_, _ = w.Write(body)
		},
		"503": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("x-ms-retry-after-ms", "3")
			azuretest.Fail(w, 503, "ServerBusy")
		},
		"429":        func(w http.ResponseWriter, r *http.Request) { azuretest.Fail(w, 429, "TooManyRequests") },
		"reset":      func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"slow body":  func(w http.ResponseWriter, r *http.Request) { stallBody(w, r, body) },
		"no headers": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	for name, corrupt := range faults {
		t.Run(name+" once", func(t *testing.T) {
			t.Parallel()
			r := shortTimeouts(t, name)
			r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
				return strings.Contains(req.URL.Path, "safetensors") && firstRequests(5, corrupt)(w, req, n)
			})
			c, err := r.stage(t, loader.StageOptions{})
			if err != nil {
				t.Fatal(err)
			}
			r.check(t, c)
		})
		t.Run(name+" always", func(t *testing.T) {
			t.Parallel()
			r := shortTimeouts(t, name)
			r.srv.Fault(always(corrupt))
			_, err := r.stage(t, loader.StageOptions{})
			if k := source.KindOf(err); k != source.Unavailable && k != source.Malformed {
				t.Errorf("error %v", err)
			}
			if !strings.Contains(err.Error(), "tries") || !strings.Contains(err.Error(), "model.safetensors") {
				t.Errorf("%q does not say what was tried on which file", err)
			}
			expectEmpty(t, r.store)
			// And once the source is well again, so is the staging.
			r.srv.Fault(nil)
			c, err := r.stage(t, loader.StageOptions{})
			if err != nil {
				t.Fatal(err)
			}
			r.check(t, c)
		})
	}
	t.Run("bit flip once", func(t *testing.T) {
		r := newRemote(t, store.Options{})
		var done atomic.Bool
		r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
			if n == 0 || !strings.Contains(req.URL.Path, "safetensors") ||
				!strings.Contains(req.Header.Get("Range")+req.Header.Get("x-ms-range"), "=8192-") || done.Swap(true) {
				return false
			}
			answer(w, req, body, func(h http.Header, p []byte) []byte { p[100] ^= 4; return p })
			return true
		})
		c, err := r.stage(t, loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.check(t, c)
		if !done.Load() {
			t.Error("the bit was not flipped")
		}
	})
	t.Run("bit flip always", func(t *testing.T) {
		r := newRemote(t, store.Options{})
		r.srv.PutAs("m/model.safetensors", body, bytes.Repeat([]byte{7}, 16), "")
		_, err := r.stage(t, loader.StageOptions{})
		if source.KindOf(err) != source.Digest {
			t.Errorf("error %v", err)
		}
		expectEmpty(t, r.store)
	})
	t.Run("compressed at rest", func(t *testing.T) {
		r := newRemote(t, store.Options{})
		r.srv.PutAs("m/model.safetensors", body, nil, "gzip")
		if _, err := r.stage(t, loader.StageOptions{}); source.KindOf(err) != source.Corrupt {
			t.Errorf("error %v", err)
		}
		expectEmpty(t, r.store)
	})
	for code, kind := range map[int]source.Kind{401: source.Denied, 403: source.Denied} {
		t.Run(strconv.Itoa(code)+" mid-way", func(t *testing.T) {
			r := newRemote(t, store.Options{})
			r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
				if n < 6 {
					return false
				}
				azuretest.Fail(w, code, "AuthenticationFailed")
				return true
			})
			_, err := r.stage(t, loader.StageOptions{})
			if source.KindOf(err) != kind || strings.Contains(err.Error(), azuretest.Key) {
				t.Errorf("error %v", err)
			}
			// Each lane is denied, and once more with new credentials.
			if n := len(r.srv.Gets()); n > 6+2*4 {
				t.Errorf("%d requests after a clear no", n)
			}
			expectEmpty(t, r.store)
		})
	}
	t.Run("overwritten once", func(t *testing.T) {
		r := newRemote(t, store.Options{})
		r.want["model.safetensors"] = weights(11*block, 9)
		r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
			if n == 6 {
				r.srv.Put("m/model.safetensors", r.want["model.safetensors"])
			}
			return false
		})
		c, err := r.stage(t, loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.check(t, c)
		if r.srv.Lists() != 2 {
			t.Errorf("%d listings", r.srv.Lists())
		}
	})
	t.Run("listed while it was written", func(t *testing.T) {
		r := newRemote(t, store.Options{})
		r.srv.Put("m/config.json", nil) // truncated, and about to be filled
		lists := 0
		r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
			if n > 0 {
				return false
			}
			if lists++; lists == 2 {
				r.srv.Put("m/config.json", r.want["config.json"])
			}
			return false
		})
		c, err := r.stage(t, loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.check(t, c)
		c.Lease.Release()
	})
	t.Run("overwritten again and again", func(t *testing.T) {
		r := newRemote(t, store.Options{})
		var seed atomic.Int32
		r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
			if n > 0 && n%5 == 0 {
				r.srv.Put("m/model.safetensors", weights(10*block, byte(seed.Add(1))))
			}
			return false
		})
		_, err := r.stage(t, loader.StageOptions{})
		if source.KindOf(err) != source.Changed {
			t.Errorf("error %v", err)
		}
		expectEmpty(t, r.store)
	})
}

func stallBody(w http.ResponseWriter, r *http.Request, body []byte) {
	answer(w, r, body, func(h http.Header, p []byte) []byte { return p[:10] })
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// expectEmpty is listed, and nothing is in any folder of a checkpoint.
func expectEmpty(t *testing.T, s *store.Store) {
	t.Helper()
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("list %+v, %v", list, err)
	}
}

func TestBadWeights(t *testing.T) {
	good := weights(10*block, 3)
	for _, tc := range []struct {
		name     string
		files    map[string][]byte
		kind     source.Kind
		wantText string
	}{
		{"cut short", map[string][]byte{"model.safetensors": good[:5*block]}, source.Truncated, "cut short"},
		{"no header", map[string][]byte{"model.safetensors": bytes.Repeat([]byte{255}, block)}, source.Corrupt, "header"},
		{"config is not JSON", map[string][]byte{"model.safetensors": good, "config.json": []byte("<html>")}, source.Corrupt, "config.json"},
		{"a shard missing", map[string][]byte{"model-1.safetensors": good, "model.safetensors.index.json": []byte(`{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}`)}, source.Missing, "model-2.safetensors"},
		{"an index that points away", map[string][]byte{"model-1.safetensors": good, "model.safetensors.index.json": []byte(`{"weight_map":{"a":"../../etc/passwd.safetensors"}}`)}, source.Refused, "below its folder"},
		{"pickle only", map[string][]byte{"pytorch_model.bin": good, "config.json": []byte("{}")}, source.Refused, "convert it to safetensors"},
		{"no weights", map[string][]byte{"config.json": []byte("{}")}, source.Missing, "no weights"},
		{"GGUF that is none", map[string][]byte{"x.gguf": good}, source.Corrupt, "GGUF"},
		{"a name that leaves the folder", map[string][]byte{"model.safetensors": good, "../x.json": []byte("{}")}, source.Refused, "x.json"},
		{"one name twice", map[string][]byte{"model.safetensors": good, "Model.safetensors": good}, source.Refused, "case"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRemote(t, store.Options{})
			for name := range r.want {
				r.srv.Delete("m/" + name)
			}
			for name, body := range tc.files {
				r.srv.Put("m/"+name, body)
			}
			_, err := r.stage(t, loader.StageOptions{})
			if source.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("error %v, want kind %q", err, tc.kind)
			}
			expectEmpty(t, r.store)
		})
	}
	t.Run("found by the header, before the rest is fetched", func(t *testing.T) {
		r := newRemote(t, store.Options{})
		r.srv.Put("m/model.safetensors", weights(4000*block, 1)[:3999*block])
		r.srv.Fault(nil)
		if _, err := r.stage(t, loader.StageOptions{}); source.KindOf(err) != source.Truncated {
			t.Errorf("error %v", err)
		}
		if n := len(r.srv.Gets()); n > 100 {
			t.Errorf("%d ranges of a file that is too short", n)
		}
		r.srv.Fault(nil)
		if _, err := r.stage(t, loader.StageOptions{}); source.KindOf(err) != source.Truncated || len(r.srv.Gets()) > 4 {
			// Four that were called off before may reach the server late.
			t.Errorf("asked again: %d ranges, %v", len(r.srv.Gets()), err)
		}
	})
}

func TestSecondStageFetchesNothing(t *testing.T) {
	r := newRemote(t, store.Options{})
	first, err := r.stage(t, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.srv.Fault(nil)
	second, err := r.stage(t, loader.StageOptions{})
	if err != nil || second.Path != first.Path || second.Digest != first.Digest {
		t.Fatalf("%+v, %v", second, err)
	}
	if n := len(r.srv.Gets()); n != 0 {
		t.Errorf("%d ranges fetched again", n)
	}
	lists := r.srv.Lists()
	if _, err := r.stage(t, loader.StageOptions{Digest: first.Digest}); err != nil || r.srv.Lists() != lists {
		t.Errorf("a known digest asked the source: %v", err)
	}
	// One file changes: only that one is fetched.
	r.want["config.json"] = []byte(`{"model_type":"qwen2"}`)
	r.srv.Put("m/config.json", r.want["config.json"])
	third, err := r.stage(t, loader.StageOptions{})
	if err != nil || third.Digest == first.Digest {
		t.Fatalf("%+v, %v", third, err)
	}
	r.check(t, third)
	if n := len(r.srv.Gets()); n != 1 {
		t.Errorf("%d ranges for one small file: %v", n, r.srv.Gets())
	}
	// The source is gone, or the key has expired: what came from it stays usable. Removed
	// files are not used.
	for code, reason := range map[int]string{503: "ServerBusy", 403: "AuthorizationFailure"} {
		r.srv.Fault(func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			azuretest.Fail(w, code, reason)
			return true
		})
		if c, err := r.stage(t, loader.StageOptions{}); err != nil || c.Digest != third.Digest {
			t.Errorf("%d: %+v, %v", code, c, err)
		}
	}
	r.srv.Fault(func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		azuretest.Fail(w, 404, "ContainerNotFound")
		return true
	})
	if _, err := r.stage(t, loader.StageOptions{}); source.KindOf(err) != source.NotFound {
		t.Errorf("error %v", err)
	}
}

func TestDigestDemanded(t *testing.T) {
	r := newRemote(t, store.Options{})
	wrong := "sha256:" + strings.Repeat("0", 64)
	if _, err := r.stage(t, loader.StageOptions{Digest: wrong}); source.KindOf(err) != source.Digest {
		t.Errorf("error %v", err)
	}
	expectEmpty(t, r.store)
	if _, err := r.l.Stage(t.Context(), azuretest.Location("m"),
		loader.StageOptions{Digest: "sha256:../../x"}); source.KindOf(err) != source.BadSource {
		t.Errorf("error %v", err)
	}
}

func TestConcurrentStagesShareDownload(t *testing.T) {
	r := newRemote(t, store.Options{})
	gate := make(chan struct{})
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		if n == 8 {
			holdRequest(req, gate)
		}
		return false
	})
	type result struct {
		c   *loader.Checkpoint
		err error
	}
	results := make(chan result)
	for range 8 {
		s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer s.Release()
			c, err := s.Wait(t.Context())
			results <- result{c, err}
		}()
	}
	close(gate)
	for range 8 {
		got := <-results
		if got.err != nil {
			t.Fatal(got.err)
		}
		got.c.Lease.Release()
	}
	if n := len(r.srv.Gets()); n != 12 || r.srv.Lists() != 1 {
		t.Errorf("%d ranges and %d listings for one model", n, r.srv.Lists())
	}
}

func TestReadersDuringArrival(t *testing.T) {
	r := newRemote(t, store.Options{})
	gate := make(chan struct{})
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		// Everything but the front waits, so that order shows.
		if strings.Contains(req.URL.Path, "safetensors") && !strings.Contains(req.Header.Get("Range")+req.Header.Get("x-ms-range"), "=0-") {
			holdRequest(req, gate)
		}
		return false
	})
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	f, err := s.Arriving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := r.want["model.safetensors"]
	b := make([]byte, 100)
	if n, err := f.ReadAt(t.Context(), "model.safetensors", b, 0); n != 100 || err != nil || !bytes.Equal(b, want[:100]) {
		t.Fatalf("front: %d, %v", n, err)
	}
	if p := s.Progress(); p.State != loader.Fetching {
		t.Errorf("progress %+v", p)
	}
	got := make(chan error)
	go func() {
		_, err := f.ReadAt(t.Context(), "model.safetensors", b, int64(len(want)-100))
		if err == nil && !bytes.Equal(b, want[len(want)-100:]) {
			err = errors.New("other bytes")
		}
		got <- err
	}()
	close(gate)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(t.Context(), "none.json", b, 0); source.KindOf(err) != source.Missing {
		t.Errorf("error %v", err)
	}
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Lease.Release()
	// The open reader and a new one both work after publication.
	lateReader, err := s.Arriving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lateReader.Close()
	for _, rd := range []*loader.Arrival{f, lateReader} {
		if _, err := rd.ReadAt(t.Context(), "model.safetensors", b, 5000); err != nil || !bytes.Equal(b, want[5000:5100]) {
			t.Errorf("after: %v", err)
		}
	}
}

func TestEndOfContextEndsARead(t *testing.T) {
	r := newRemote(t, store.Options{})
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		if n > 4 {
			<-req.Context().Done()
			return true
		}
		return false
	})
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Arriving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := f.ReadAt(ctx, "model.safetensors", make([]byte, 1), int64(len(r.want["model.safetensors"])-1))
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Error("read after the end of its context:", err)
	}
	// The last release calls it off.
	s.Release()
	if _, err := s.Wait(t.Context()); err == nil {
		t.Error("staged after all released it")
	}
}

func TestEvents(t *testing.T) {
	r := newRemote(t, store.Options{})
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	events, stop := s.Events()
	defer stop()
	var last loader.Progress
	for p := range events {
		if p.Done < last.Done && p.State == last.State {
			t.Errorf("went back from %+v to %+v", last, p)
		}
		last = p
	}
	if last.State != loader.Ready || last.Percent() != 100 || last.Done != last.Total || last.Total == 0 {
		t.Errorf("last %+v", last)
	}
}

func TestResume(t *testing.T) {
	dir := t.TempDir()
	r := newRemote(t, store.Options{Dir: dir})
	reached := make(chan struct{})
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		if n == 8 {
			close(reached)
		}
		if n >= 8 {
			<-req.Context().Done()
			return true
		}
		return false
	})
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	s.Release()
	if _, err := s.Wait(context.Background()); err == nil {
		t.Fatal("staged")
	}
	r.l.Close()
	r.srv.Fault(nil)
	r.l = r.loader(t, openStore(t, store.Options{Dir: dir}))
	c, err := r.stage(t, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, c)
	if n := len(r.srv.Gets()); n > 9 {
		t.Errorf("%d of 12 ranges fetched again", n)
	}
}

// A file that failed its digest is fetched again: its bytes of the first time do not
// count as progress any more.
func TestProgressOfSecondFetch(t *testing.T) {
	r := newRemote(t, store.Options{})
	body := r.want["model.safetensors"]
	var flipped, second atomic.Bool
	gate := make(chan struct{})
	var once sync.Once
	open := func() { once.Do(func() { close(gate) }) }
	defer open()
	r.srv.Fault(func(w http.ResponseWriter, req *http.Request, n int) bool {
		if n == 0 || !strings.Contains(req.URL.Path, "safetensors") ||
			!strings.Contains(req.Header.Get("Range")+req.Header.Get("x-ms-range"), "=8192-") {
			return false
		}
		if !flipped.Swap(true) {
			answer(w, req, body, func(h http.Header, p []byte) []byte { p[100] ^= 4; return p })
			return true
		}
		second.Store(true)
		holdRequest(req, gate)
		return false
	})
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	events, stop := s.Events()
	defer stop()
	var between int64
	for p := range events {
		if p.Done > p.Total {
			t.Errorf("%d of %d bytes, %s", p.Done, p.Total, p.State)
		}
		// One block is held, so fewer than all are here.
		if second.Load() && p.State == loader.Fetching && p.Done != p.Total {
			between = p.Done
			open()
		}
	}
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, c)
	c.Lease.Release()
	if between == 0 || between >= int64(len(body)) {
		t.Errorf("%d of %d bytes while the second fetch was held", between, len(body))
	}
}
