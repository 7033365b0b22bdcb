package foresight

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDamagedFile: a history that does not parse is set aside and logged.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	file := filepath.Join(dir, "history.json")
	for _, bad := range []string{"", "{", `{"version":9}`, `{"version":1,"history":{},"starts":{}}`, `{"version":1,"history":{"version":1,"saved":"2026-01-01T00:00:00Z","functions":[]},"starts":{"x y":{}}}`,
		`{"version":1,"history":{"version":1,"saved":"2026-01-01T00:00:00Z","functions":[]},"starts":{"t/x":{"recipe":"1","samples":[{"total":-1}]}}}`,
		`{"version":1,"history":{"version":1,"saved":"2026-01-01T00:00:00Z","functions":[]},"starts":{},"more":1}`} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		log.Reset()
		if o := Open(dir, time.Now(), slog.New(slog.NewTextHandler(&log, nil))); o.History.Len() != 0 || len(o.starts) != 0 {
			t.Errorf("%s was taken in", bad)
		}
		if !strings.Contains(log.String(), "set aside") {
			t.Errorf("%s: nothing was logged: %s", bad, &log)
		}
		if kept, err := os.ReadFile(file + ".bad"); err != nil || string(kept) != bad {
			t.Errorf("%s is not kept aside: %q, %v", bad, kept, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is still there", bad)
		}
	}
}
