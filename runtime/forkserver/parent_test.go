package forkserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/testkit"
)

// python runs a few lines beside parent.py, with a package vllm that has next to
// nothing in it.
func python(t *testing.T, lines string) {
	t.Helper()
	if !Supported {
		t.Skip("Linux only")
	}
	program, err := exec.LookPath("python3")
	if err != nil {
		testkit.Missing(t, "no python3")
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "vllm", "plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "parent.py"), string(script))
	write(t, filepath.Join(dir, "vllm", "__init__.py"), "")
	write(t, filepath.Join(dir, "vllm", "plugins", "__init__.py"), "def load_general_plugins(): pass\n")
	cmd := exec.Command(program, "-B", "-c", "import os, parent\n"+lines)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestInspected: what would run in an executed process runs in a forked one, and
// in an executed one where that fails.
func TestInspected(t *testing.T) {
	python(t, `
run = parent.inspected(lambda fn: "executed")
here = os.getpid()
assert run(lambda: ("forked", os.getpid() != here)) == ("forked", True)
assert run(lambda: 1 / 0) == "executed"
assert run(lambda: os._exit(3)) == "executed"
assert run(lambda: (lambda: 0)) == "executed"  # not to be pickled
assert len(run(lambda: "x" * 3_000_000)) == 3_000_000
`)
}

// TestWatched: names that are asked for are noted; who copies everything has
// asked for nothing.
func TestWatched(t *testing.T) {
	python(t, `
w = parent.Watched({b"A": b"1", b"B": b"2"})
os.environ._data = w
assert dict(os.environ) == {"A": "1", "B": "2"} and w.asked == set(), w.asked
list(os.environ.items()), os.environ.copy()
assert w.asked == set(), w.asked
os.environ.get("A"), os.environ.get("NONE"), "SEEN" in os.environ
assert w.asked == {b"A", b"NONE", b"SEEN"}, w.asked
for k in os.environ:
    break
os.environ.get("B")
assert b"B" in w.asked, w.asked
`)
}

// TestMissing: a name that a version has not is skipped, one that fails is not.
func TestMissing(t *testing.T) {
	python(t, `
parent.ROWS["vllm"] = ["vllm", "vllm.gone.deep"]
parent.LATER["vllm"] = ["vllm.{device}_later"]
assert parent.load("vllm") == ["vllm.gone.deep", "vllm.cpu_later"] or parent.load("vllm") == ["vllm.gone.deep", "vllm.gpu_later"], parent.load("vllm")
open("vllm/broken.py", "w").write("import no_such_module\n")
parent.ROWS["vllm"] = ["vllm", "vllm.broken"]
try:
    parent.load("vllm")
except ModuleNotFoundError as e:
    assert e.name == "no_such_module"
else:
    raise SystemExit("a broken module was skipped")
`)
}
