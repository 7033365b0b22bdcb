package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestProgramPaths: a wrapper's program, its virtual environment and the Python that was
// made from are all that a program reads; folders around a bin folder are not.
func TestProgramPaths(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := write("python/bin/python3.12", "")
	write("venv/pyvenv.cfg", "home = "+filepath.Dir(base)+"\nversion = 3.12\n")
	if err := os.MkdirAll(filepath.Join(root, "venv/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(base, filepath.Join(root, "venv/bin/python")); err != nil {
		t.Fatal(err)
	}
	vllm := write("venv/bin/vllm", "#!"+filepath.Join(root, "venv/bin/python")+"\n")
	wrapper := write("home/bin/engine", "#!/bin/sh\nexport A=/etc/passwd\nexec "+vllm+" \"$@\"\n")
	got := ProgramPaths(wrapper)
	for _, want := range []string{wrapper, "home/bin", "home/lib", vllm, "venv", base, "python/bin", "python/lib", "/bin/sh"} {
		if !filepath.IsAbs(want) {
			want = filepath.Join(root, want)
		}
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, other := range []string{root, filepath.Join(root, "home"), filepath.Join(root, "python"), "/etc/passwd", "/"} {
		if slices.Contains(got, other) {
			t.Errorf("%s is none of a program's", other)
		}
	}
	named := NamedPaths([]string{"--chat-template=/t/x.jinja", "--path", "/lib/a:/lib/b", "--n=1", "/"}, map[string]string{"LD_LIBRARY_PATH": "/opt/x/../y"})
	if !slices.Equal(named, []string{"/t/x.jinja", "/lib/a", "/lib/b", "/opt/y"}) {
		t.Errorf("%q", named)
	}
}
