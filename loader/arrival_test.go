package loader_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// arriving stages m with ranges behind the first block held until gate is
// closed, and answered by then, if it likes, from then on.
func arriving(t *testing.T, r *remote, hooks ...func(w http.ResponseWriter, q *http.Request) bool) (s *loader.Staging, a *loader.Arrival,
	open func()) {
	t.Helper()
	gate := make(chan struct{})
	r.srv.Fault(func(w http.ResponseWriter, q *http.Request, n int) bool {
		from, _, _ := azuretest.Range(q.Header.Get("x-ms-range")+q.Header.Get("Range"), 1<<40)
		if strings.Contains(q.URL.Path, "safetensors") && from >= block {
			holdRequest(q, gate)
			for _, f := range hooks {
				if f(w, q) {
					return true
				}
			}
		}
		return false
	})
	s, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Release)
	if a, err = s.Arriving(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	opened := false
	open = func() {
		if !opened {
			opened = true
			close(gate)
		}
	}
	t.Cleanup(open)
	return s, a, open
}

func readArrival(ctx context.Context, a *loader.Arrival, name string, off, n int) ([]byte, error) {
	b := make([]byte, n)
	got, err := a.ReadAt(ctx, name, b, int64(off))
	return b[:got], err
}

func TestArrival(t *testing.T) {
	r := newRemote(t, store.Options{})
	want := r.want["model.safetensors"]
	s, a, open := arriving(t, r)
	if len(a.Files) != 3 || a.Missing == 0 {
		t.Fatalf("%+v", a)
	}
	if b, err := readArrival(t.Context(), a, "config.json", 0, 5); err != nil || !bytes.Equal(b, r.want["config.json"][:5]) {
		t.Errorf("%q, %v", b, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if _, err := readArrival(ctx, a, "model.safetensors", len(want)-10, 10); !errors.Is(err, gone) {
		t.Error(err)
	}
	for _, at := range [][2]int{{-1, 2}, {len(want) - 1, 2}} {
		if _, err := readArrival(t.Context(), a, "model.safetensors", at[0], at[1]); source.KindOf(err) != source.Missing {
			t.Error(at, err)
		}
	}
	if _, err := readArrival(t.Context(), a, "other", 0, 1); source.KindOf(err) != source.Missing {
		t.Error(err)
	}
	got := make(chan []byte)
	go func() {
		b, err := readArrival(t.Context(), a, "model.safetensors", 5, len(want)-5)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	open()
	if !bytes.Equal(<-got, want[5:]) {
		t.Error("other bytes")
	}
	if err := a.Verified(t.Context()); err != nil {
		t.Error(err)
	}
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Lease.Release()
	// Published: its parts are gone, and a file not opened before is found.
	if b, err := readArrival(t.Context(), a, "config.json", 0, 3); err != nil || len(b) != 3 {
		t.Error(b, err)
	}
	// What is here already has nothing missing, and reads the same.
	r.srv.Fault(nil)
	again, err := r.l.Stage(t.Context(), azuretest.Location("m"), loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	b, err := again.Arriving(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if x, err := readArrival(t.Context(), b, "model.safetensors", 0, len(want)); b.Missing != 0 && (err != nil || !bytes.Equal(x, want)) {
		t.Error(b.Missing, err)
	}
}

// A source changes while an engine reads it: the staging fetches the new version, and
// the reader of the old one gets an error.
func TestArrivalChanged(t *testing.T) {
	r := newRemote(t, store.Options{})
	s, a, open := arriving(t, r)
	r.srv.Put("m/model.safetensors", weights(10*block, 9))
	open()
	if _, err := readArrival(t.Context(), a, "model.safetensors", 9*block, block); source.KindOf(err) != source.Changed {
		t.Error(err)
	}
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Lease.Release()
	if err := a.Verified(t.Context()); source.KindOf(err) != source.Changed {
		t.Error(err)
	}
}

// Bytes were read that fail the source's digest: the staging fetches them again, and
// Verified returns an error.
func TestArrivalCorrupted(t *testing.T) {
	r := newRemote(t, store.Options{})
	var bad atomic.Bool
	bad.Store(true)
	s, a, open := arriving(t, r, func(w http.ResponseWriter, q *http.Request) bool {
		if q.Context().Err() != nil || !bad.CompareAndSwap(true, false) {
			return false
		}
		answer(w, q, r.want["model.safetensors"], func(_ http.Header, b []byte) []byte {
			b[len(b)-1] ^= 1
			return b
		})
		return true
	})
	open()
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Lease.Release()
	if bad.Load() {
		t.Fatal("nothing was left to spoil")
	}
	if err := a.Verified(t.Context()); source.KindOf(err) != source.Changed {
		t.Error(err)
	}
}

// A staging that fails fails its readers, with its cause.
func TestArrivalFails(t *testing.T) {
	r := newRemote(t, store.Options{})
	_, a, open := arriving(t, r)
	got := make(chan error)
	go func() {
		_, err := readArrival(t.Context(), a, "model.safetensors", 9*block, block)
		got <- err
	}()
	r.srv.Delete("m/model.safetensors")
	r.srv.Delete("m/config.json")
	open()
	if err := <-got; err == nil {
		t.Error("read what is gone")
	}
	if err := a.Verified(t.Context()); err == nil {
		t.Error("whole without its bytes")
	}
}
