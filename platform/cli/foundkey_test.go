package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestFoundKeyOfAnotherServer: an admin token that was found, and is another server's, does not
// keep a verb from what needs no key; where one is needed the hint says how to name it. A key
// that was given is sent or nothing is.
func TestFoundKeyOfAnotherServer(t *testing.T) {
	s := start(t)
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "admin-token"), []byte("thaw-of-another-server-0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "m.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: new}\nspec: {engine: ember, source: ./w}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args []string
		exit int
		hint string
		key  string // THAW_KEY
	}{
		{[]string{"models", "--data", data}, 0, "", ""},
		{[]string{"describe", "tiny", "--data", data}, 0, "", ""},
		{[]string{"deploy", "-f", file, "--data", data}, kit.ExitDenied, "the key came from " + filepath.Join(data, "admin-token") + "; is it of this server? --data DIR names the server's data folder", ""},
		{[]string{"models", "--key", "wrong"}, kit.ExitDenied, "the key came from --key; is it of this server?\n", ""},
		{[]string{"deploy", "-f", file, "--data", data}, kit.ExitDenied, "the key came from " + filepath.Join(data, "admin-token"), "\n"},
	} {
		s.env["THAW_KEY"] = x.key
		if _, errs, exit := s.thaw(t, "", x.args...); exit != x.exit || !strings.Contains(errs, x.hint) {
			t.Errorf("%v: %d %s", x.args, exit, errs)
		}
	}
}
