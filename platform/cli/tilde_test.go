package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestTildeInAPath: a path that begins with ~ is refused before anything is made of it, in a
// flag of any verb, in a variable and in a file of settings.
func TestTildeInAPath(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	file := filepath.Join(dir, "settings.yaml")
	if err := os.WriteFile(file, []byte("data: ~/z\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := Programs{
		Serve: func(context.Context, ServeConfig, io.Writer, io.Writer) error { t.Error("served"); return nil },
		Agent: func(context.Context, AgentConfig, io.Writer, io.Writer) error { t.Error("an agent ran"); return nil },
	}
	for _, tc := range []struct {
		env  map[string]string
		args []string
		name string
	}{
		{nil, []string{"serve", "--data=~/z"}, "--data: "},
		{nil, []string{"serve", "--data=~"}, "--data: "},
		{nil, []string{"serve", "--functions=~/z"}, "--functions: "},
		{nil, []string{"serve", "--config=~/z"}, "--config: "},
		{nil, []string{"serve", "--config", file}, file + ":1: data: "},
		{nil, []string{"agent", "--server", "https://x", "--token-file=~/z"}, "--token-file: "},
		{nil, []string{"loader", "--folder=/a", "--folder=~/z"}, "--folder: "},
		{nil, []string{"ps", "--data=~/z"}, "--data: "},
		{nil, []string{"deploy", "-f=~/z"}, "--filename: "},
		{nil, []string{"doctor", "--functions=~/z"}, "--functions: "},
		{map[string]string{"THAW_DATA": "~/z"}, []string{"serve"}, "THAW_DATA: "},
		{map[string]string{"THAW_DATA": "~/z"}, []string{"models"}, "THAW_DATA: "},
		{map[string]string{"THAW_FUNCTIONS": "~/z"}, []string{"doctor"}, "THAW_FUNCTIONS: "},
		{map[string]string{"THAW_CONFIG": "~/z"}, []string{"serve"}, "the file of settings: "},
		{map[string]string{"THAW_TOKEN_FILE": "~/z"}, []string{"agent", "--server", "https://x"}, "THAW_TOKEN_FILE: "},
	} {
		env := map[string]string{"HOME": dir}
		for k, v := range tc.env {
			env[k] = v
		}
		_, errs, exit := runCLI(t, p, env, tc.args...)
		if exit != kit.ExitUsage || !strings.Contains(errs, "error: "+tc.name+`"~`) || !strings.Contains(errs, "write the whole path: /") {
			t.Errorf("%v %v: exit %d, %s", tc.env, tc.args, exit, errs)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("made %v, %v", left, err)
	}
	served := false
	p.Serve = func(_ context.Context, c ServeConfig, _, _ io.Writer) error {
		served = c.Data == filepath.Join(dir, "~x")
		return nil
	}
	if _, errs, exit := runCLI(t, p, map[string]string{"HOME": dir}, "serve", "--data=./~x"); exit != 0 || !served {
		t.Errorf("a folder of that name: exit %d, %s", exit, errs)
	}
}
