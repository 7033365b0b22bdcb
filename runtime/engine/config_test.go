package engine

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestLargeConfig: a config.json beyond its bound is not read into memory.
func TestLargeConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"torch_dtype":"bfloat16"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := readConfig(filepath.Dir(path)); c.Dtype != "bfloat16" {
		t.Errorf("%+v", c)
	}
	if err := os.Truncate(path, 256<<20); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := readConfig(filepath.Dir(path))
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 || c.Dtype != "" {
		t.Errorf("%d KiB allocated, %+v", n>>10, c)
	}
}
