package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/runtime/confine"
)

// runDoctor runs the verb where no server runs.
func runDoctor(t *testing.T, env map[string]string, args ...string) (out, errs string, exit int) {
	t.Helper()
	const server = "http://127.0.0.1:1"
	getenv := func(k string) string { return env[k] }
	var o, e bytes.Buffer
	terminal := kit.NewTerminal(nil, &o, &e, getenv)
	terminal.Output = "table"
	cmd := New(Options{
		Terminal: terminal, Getenv: getenv,
		Embedded:      func(string) bool { return false },
		DataFolders:   func() ([]string, error) { return []string{env["THAW_DATA"]}, nil },
		Client:        func() (*api.Client, error) { return api.NewClient(server, "") },
		WithHint:      func(_ *api.Client, err error) error { return err },
		ServerNamed:   func() bool { return false },
		DefaultServer: server,
		IsLocal:       func(string) bool { return true },
		QueryTimeout:  time.Minute,
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	exit = terminal.Report(t.Context(), cmd.ExecuteContext(t.Context()))
	return o.String(), e.String(), exit
}

// python makes an environment that looks installed: a program, an interpreter,
// packages of these versions, and modules with or without bytecode.
func python(t *testing.T, bytecode bool, packages ...string) (program string) {
	t.Helper()
	root := t.TempDir()
	site := filepath.Join(root, "lib", "python3.12", "site-packages")
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range packages {
		write(filepath.Join(site, p+".dist-info", "METADATA"), "")
	}
	write(filepath.Join(site, "vllm", "__init__.py"), "")
	if bytecode {
		write(filepath.Join(site, "vllm", "__pycache__", "__init__.cpython-312.pyc"), "")
	}
	write(filepath.Join(root, "bin", "python"), "")
	program = filepath.Join(root, "bin", "vllm")
	write(program, "#!"+filepath.Join(root, "bin", "python")+"\n")
	return program
}

// TestGPUs: each state of the GPUs has a line that says it, and what mends it.
func TestGPUs(t *testing.T) {
	for _, x := range []struct {
		gpus       []functions.GPU
		driver     string
		err        error
		what, hint string
	}{
		{nil, "no GPUs: no driver", nil, "no GPUs: no driver", ""},
		{nil, "", nil, "the driver shows no GPU here; a container gets them by --gpus all", ""},
		{nil, "no GPUs: NVML: x", errors.New("NVML: Driver/library version mismatch"), "NVML: Driver/library version mismatch", "nvidia-smi has to work"},
		{[]functions.GPU{{Name: "H200", MemoryTotal: 2 << 30, MemoryFree: 1 << 30, Health: "ok"}}, "", nil, "H200, 1 GiB of 2 GiB free, ok", ""},
	} {
		var found []string
		d := doctor{Options: Options{GPUs: func() ([]functions.GPU, string, error) { return x.gpus, x.driver, x.err }}}
		d.examineGPUs(func(_, _, hint, format string, args ...any) {
			found = append(found, fmt.Sprintf(format, args...), hint)
		})
		if len(found) != 2 || !strings.HasPrefix(found[0], x.what) || !strings.Contains(found[1], x.hint) || strings.HasSuffix(found[0], ")") {
			t.Errorf("%+v: %q", x, found)
		}
	}
}

func TestDoctorOfEngines(t *testing.T) {
	model := func(name, engine, more string) string {
		return "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: " + name + "}\nspec: {engine: " + engine + ", source: /" + more +
			"}\n---\n"
	}
	for _, x := range []struct {
		name     string
		env      map[string]string
		models   string
		exit     int
		has      []string
		hasNot   []string
		inErrors []string
	}{
		{name: "nothing needed, nothing there", has: []string{"not installed; models of it cannot be served here"}},
		{name: "needed and not there", models: model("a", "vllm", "") + model("b", "vllm", ""), exit: kit.ExitFailed,
			has: []string{"not installed, and needed by default/a, default/b"}, inErrors: []string{"set THAW_ENGINE_VLLM"}},
		{name: "as tested", env: map[string]string{"THAW_ENGINE_VLLM": python(t, true, "vllm-0.32.0+cpu", "torch-2.13.0")}, models: model("a", "vllm", ""),
			has: []string{"0.32.0+cpu, a version that was tested", "its bytecode is there"}, hasNot: []string{"hole", "not installed, and"}},
		{name: "old", env: map[string]string{"THAW_ENGINE_VLLM": python(t, true, "vllm-0.29.0", "torch-2.4.1")},
			has:      []string{"0.29.0; tested was 0.32.0", "its version has a known hole", "CVE-2026-105754", "torch 2.4.1 has a known hole"},
			inErrors: []string{"upgrade to 0.30.0 or later", "upgrade to 2.6 or later"}},
		{name: "new", env: map[string]string{"THAW_ENGINE_VLLM": python(t, true, "vllm-0.40.1")}, has: []string{"0.40.1; tested was 0.32.0"}, hasNot: []string{"hole"}},
		{name: "untold", env: map[string]string{"THAW_ENGINE_VLLM": python(t, true)}, has: []string{"of unknown version; tested was 0.32.0"}, hasNot: []string{"hole"}},
		{name: "no bytecode", env: map[string]string{"THAW_ENGINE_VLLM": python(t, false, "vllm-0.32.0")},
			has: []string{"1 have no bytecode"}, inErrors: []string{"-m compileall"}},
		{name: "sglang", env: map[string]string{"THAW_ENGINE_SGLANG": python(t, true, "sglang-0.5.0")}, has: []string{"untested: it needs CUDA", "CVE-2026-3059"}},
		{name: "a command", models: "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: c}\nspec: {engine: command, args: [./no-such, " +
			"\"{port}\"]}\n", exit: kit.ExitFailed,
			has: []string{"no-such, of default/c"}},
		{name: "a file that does not read", models: "apiVersion: thaw.dev/v2\n", exit: kit.ExitFailed, has: []string{"functions"}, inErrors: []string{"thaw check"}},
		{name: "too few GPUs",
			models: "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: g}\nspec: {engine: ember, source: /, resources: {gpus: 8}}\n",
			has:    []string{"default/g wants 8, and here are 0"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "m.yaml"), []byte(x.models), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", filepath.Join(dir, "nothing"))
			env := map[string]string{"THAW_DATA": dir + "/data", "HOME": dir}
			for k, v := range x.env {
				env[k] = v
			}
			out, errs, exit := runDoctor(t, env, "--functions", dir)
			if exit != x.exit {
				t.Errorf("exit %d", exit)
			}
			for _, s := range x.has {
				if !strings.Contains(out, s) {
					t.Errorf("no %q in\n%s", s, out)
				}
			}
			for _, s := range x.hasNot {
				if strings.Contains(out, s) {
					t.Errorf("%q in\n%s", s, out)
				}
			}
			for _, s := range x.inErrors {
				if !strings.Contains(errs, s) {
					t.Errorf("no %q in\n%s", s, errs)
				}
			}
		})
	}
}

// TestDoctorOfDataFolder: doctor warns of a data folder that every confined engine may read.
func TestDoctorOfDataFolder(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/opt", link); err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{
		"/opt":                "/opt",
		"/opt/thaw/data":      "/opt",
		"/usr/local/lib/thaw": "/usr",
		link + "/thaw":        "/opt",
		"/optional/thaw":      "",
		"/var/lib/thaw":       "",
		dir + "/usr/thaw":     "",
	} {
		if got := systemFolder(data); got != want {
			t.Errorf("%s is below %q, want %q", data, got, want)
		}
	}
	const warning = "every engine may read what is below /proc"
	for data, want := range map[string]bool{"/proc/thaw-data": confine.Unavailable() == "", filepath.Join(dir, "data"): false} {
		out, _, _ := runDoctor(t, map[string]string{"HOME": dir, "THAW_DATA": data}, "--functions", dir)
		if strings.Contains(out, warning) != want {
			t.Errorf("data in %s, warned should be %v:\n%s", data, want, out)
		}
	}
}
