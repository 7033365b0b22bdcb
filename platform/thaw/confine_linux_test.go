package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/runtime/confine"
	"github.com/thaw-dev/thaw/testkit"
)

// TestConfine: an engine reads its own model, and neither the secrets of thaw nor another
// model, the store, another engine's home or the environment of the server; with
// --confine off it reads them all.
func TestConfine(t *testing.T) {
	if why := confine.Unavailable(); why != "" {
		testkit.Missing(t, why)
	}
	for _, mode := range []string{"auto", "off"} {
		t.Run(mode, func(t *testing.T) {
			models := t.TempDir()
			write := func(path string) string {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("secret"), 0o644); err != nil {
					t.Fatal(err)
				}
				return path
			}
			own, other := write(filepath.Join(models, "own", "weights.bin")), write(filepath.Join(models, "other", "weights.bin"))
			p := start(t, map[string]string{
				"spy.yaml": fakeModel("spy", "--reads reads.txt", "source: "+filepath.Dir(own)+"\n"),
			}, "--confine", mode)
			bearer, _ := p.key("default", false)
			secrets := []string{
				filepath.Join(p.data, "admin-token"), filepath.Join(p.data, "agents", "ca.key"), filepath.Join(p.data, "keys.json"), filepath.Join(p.data, "keys.json.key"),
				write(filepath.Join(p.data, "store", "blobs", "sha256", "ab", "abcd")), write(filepath.Join(p.data, "agent", "engines", "red", "m", "home", "x")),
				other, fmt.Sprintf("/proc/%d/environ", os.Getpid()),
			}
			p.file("reads.txt", strings.Join(append(slices.Clone(secrets), own), "\n"))
			if r := p.chat("spy", "", "Authorization", bearer); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			logs, _ := filepath.Glob(filepath.Join(p.data, "agent", "supervisor", "logs", "*.log"))
			text := ""
			for _, l := range logs {
				b, err := os.ReadFile(l)
				if err != nil {
					t.Fatal(err)
				}
				text += string(b)
			}
			if !strings.Contains(text, "read true "+own) {
				t.Errorf("the engine does not read its own model:\n%s", text)
			}
			for _, path := range secrets {
				if want := fmt.Sprint("read ", mode == "off", " ", path); !strings.Contains(text, want+"\n") {
					t.Errorf("want %q", want)
				}
			}
			if t.Failed() {
				t.Log(text)
			}
		})
	}
}
