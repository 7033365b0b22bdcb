package main

import (
	"bytes"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestServerKilledAtAnyTime: a server is killed at random moments of a cold start, from
// staging to serving, five times before a request is let finish. After each kill no part of
// a file is in the store under the name of the whole; the next server answers, whether it
// comes at once or after all engines have ended; and no process is left.
func TestServerKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	const lives, kills = 2, 5
	src := newSlowBlobServer(t)
	src.Fault(func(_ http.ResponseWriter, r *http.Request, _ int) bool { // so that staging takes as long as a start
		select {
		case <-time.After(50 * time.Millisecond):
		case <-r.Context().Done():
		}
		return false
	})
	p := src.spawn(t, src.model(), "--orphan-timeout", "2s")
	ask := func() string {
		t.Helper()
		r := p.chat("big", `"max_tokens":4`)
		if r.status != 200 || r.text() == "" {
			t.Fatalf("%d %v %s", r.status, r.err, r.body)
		}
		return r.text()
	}
	began := time.Now()
	want := ask()
	full := time.Since(began)
	states := map[string]int{}
	for life := range lives {
		p.proc.Process.Signal(syscall.SIGTERM)
		if err := p.proc.Wait(); err != nil {
			t.Fatalf("the server ended with %v", err)
		}
		p.proc = nil
		p.awaitNoProcess()
		if err := os.RemoveAll(p.data); err != nil {
			t.Fatal(err)
		}
		for range kills {
			p.respawn()
			ended := make(chan struct{})
			go func() { defer close(ended); p.chat("big", `"max_tokens":4`) }()
			<-time.After(time.Duration(rand.Float64() * 1.2 * float64(full)))
			states[p.state("default/big")]++
			p.kill()
			<-ended
			src.verifyStore(t, p.data)
		}
		if life%2 == 1 {
			p.awaitNoProcess()
		}
		p.respawn()
		if got := ask(); got != want {
			t.Errorf("after %d kills: %q, want %q", kills, got, want)
		}
		src.verifyStore(t, p.data)
		p.eventually("nothing mounted", func() bool { return mounts(p.data) == 0 })
	}
	t.Logf("a cold start took %v; killed in the states %v", full, states)
}

// verifyStore compares every file of every checkpoint that a store lists with the source.
func (s *slowBlobServer) verifyStore(t *testing.T, data string) {
	t.Helper()
	folders, _ := filepath.Glob(filepath.Join(data, "store", "checkpoints", "*"))
	for _, folder := range folders {
		files := 0
		err := fs.WalkDir(os.DirFS(folder), ".", func(path string, d fs.DirEntry, err error) error {
			want, known := s.files[filepath.Base(path)]
			if err != nil || d.IsDir() || !known {
				return err
			}
			got, err := os.ReadFile(filepath.Join(folder, path))
			if err == nil && !bytes.Equal(got, want) {
				t.Errorf("%s in the store has %d bytes that are not those of the source, which has %d", path, len(got), len(want))
			}
			files++
			return err
		})
		if err != nil || files != len(s.files) {
			t.Errorf("%s: %d of %d files: %v", folder, files, len(s.files), err)
		}
	}
}
