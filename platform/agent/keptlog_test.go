package agent

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// TestKeptLog: the log of a replica that is no longer here is read from its file, to its end;
// an id names no other file.
func TestKeptLog(t *testing.T) {
	a := &Agent{o: Options{Dir: t.TempDir()}, replicas: map[string]*managedReplica{}}
	path := supervisor.LogPath(a.supervisorDir(), "r1")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{path: "one\ntwo\n", filepath.Join(a.supervisorDir(), "other.log"): "secret"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, follow := range []bool{false, true} {
		log, err := a.Logs(t.Context(), "r1", 1, follow)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(log); string(b) != "two\n" || err != nil {
			t.Errorf("%q %v", b, err)
		}
		log.Close()
	}
	for _, id := range []string{"r2", "../other", "..", "", ".", "a/b", strings.Repeat("a", 300), "r1.log/../../other"} {
		if log, err := a.Logs(t.Context(), id, 1, false); !errors.Is(err, functions.ErrNotFound) || log != nil ||
			strings.Count(err.Error(), "not found") != 1 || !strings.Contains(err.Error(), "no engine was started") {
			t.Errorf("%q: %v", functions.Clip(id), err)
		}
	}
}
