package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestDeployedFolder: thaw deploy sends the folder of a command engine whose arguments count
// from its file; the engine runs there, and its arguments stay.
func TestDeployedFolder(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	folder := t.TempDir()
	for name, content := range map[string]string{
		"srv/main.sh": "test -f own.txt && exec \"$1\" fake --name \"$2\" --port \"$3\"\n",
		"own.txt":     "",
		"m.yaml":      "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: own}\nspec:\n  engine: command\n  args: [sh, srv/main.sh, " + os.Args[0] + ", \"{name}\", \"{port}\"]\n",
	} {
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"deploy", "-f", filepath.Join(folder, "m.yaml"), "--server", p.url, "--data", p.data}, strings.NewReader(""), &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out.String(), errs.String())
	}
	if kept, err := os.ReadFile(filepath.Join(p.data, "functions", "default.own.yaml")); err != nil ||
		!strings.Contains(string(kept), "folder: "+folder+"\n") || !strings.Contains(string(kept), "srv/main.sh") {
		t.Errorf("%v %s", err, kept)
	}
	if a := p.chat("own", ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestDataFolderThatCannotBeWritten: the error names the setting.
func TestDataFolderThatCannotBeWritten(t *testing.T) {
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("no /proc")
	}
	_, err := makeDataFolder("/proc")
	if e, ok := errors.AsType[*kit.Error](err); !ok || !strings.Contains(e.Hint, "--data DIR or THAW_DATA") {
		t.Error(err)
	}
}
