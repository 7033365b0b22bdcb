package catalog

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestGiven: documents in no folder are there, the files of folders beside them, and one
// that does not read is an error.
func TestGiven(t *testing.T) {
	remote := "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: sglang-router}\nspec: {url: \"%s\", allow: internal}\n"
	dir := t.TempDir()
	given := func(url string) map[string][]byte {
		return map[string][]byte{"GATEWAY_SGLANG_ROUTER_URL": []byte(strings.Replace(remote, "%s", url, 1))}
	}
	c, err := Open(Options{Folder: dir, Given: given("http://127.0.0.1:30000/v1")})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "same.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(remote, "%s", "https://other.example/v1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Reload()
	if r := c.Remotes(); len(r) != 1 || r[0].Spec.Allow != functions.DataInternal || r[0].Spec.URL != "http://127.0.0.1:30000/v1" {
		t.Errorf("%+v", r)
	}
	if p := c.Problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "same.yaml") ||
		!strings.Contains(p[0].Error(), "GATEWAY_SGLANG_ROUTER_URL") {
		t.Errorf("%d: %v", len(p), p)
	}
	if _, err := Open(Options{Given: given("http://sglang.example:30000/v1"), Plain: func(*url.URL) bool { return false }}); err == nil ||
		!strings.Contains(err.Error(), "GATEWAY_SGLANG_ROUTER_URL") {
		t.Errorf("%v", err)
	}
}
