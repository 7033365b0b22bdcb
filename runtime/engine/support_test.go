package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

func TestTableIsComplete(t *testing.T) {
	table := Table()
	if len(table) != len(functions.Engines) {
		t.Fatalf("%d rows for %d engines", len(table), len(functions.Engines))
	}
	for i, s := range table {
		if s.Engine != functions.Engines[i] {
			t.Errorf("row %d is %s", i, s.Engine)
		}
		if s.Tested == "" && !strings.HasPrefix(s.Note, "untested") {
			t.Errorf("%s was neither tested nor says that it was not", s.Engine)
		}
		for _, h := range s.Vulnerabilities {
			if h.Feature == "" || s.From != "" && h.Package == "" && h.Below != "" && compareVersions(h.Below, s.From) > 0 {
				t.Errorf("%s: what was tested has a known hole: %+v", s.Engine, h)
			}
		}
	}
}

func TestCompare(t *testing.T) {
	for _, x := range []struct {
		a, b string
		want int
	}{
		{"0.32.0", "0.32", 0}, {"0.32.0+cpu", "0.32.0", 0}, {"0.9.2", "0.30.0", -1}, {"0.33.0", "0.33", 0}, {"1.0", "0.99", 1},
		{"0.32.0rc1", "0.32.0", -1}, {"0.32.0rc1", "0.31.9", 1}, {"0.32.0.dev5", "0.32.0", -1}, {"0.32.0.post1", "0.32.0", 0}, {"", "0", 0},
		{"0.32.1.dev3+gabc", "0.32.0", 1}, {"99999999999999999999", "1", -1},
	} {
		if got := compareVersions(x.a, x.b); got != x.want {
			t.Errorf("%s and %s: %d", x.a, x.b, got)
		}
		if got := compareVersions(x.b, x.a); got != -x.want {
			t.Errorf("%s and %s: %d", x.b, x.a, got)
		}
	}
	v := Known(functions.EngineVLLM)
	for version, want := range map[string]bool{"0.32.0": true, "0.32.4+cpu": true, "0.31.0": false, "0.33.0": false, "0.33.0rc1": true, "": false, "b4567": false} {
		if v.Within(version) != want {
			t.Errorf("within %q: %v", version, !want)
		}
	}
}

// TestFind reads an environment's versions off the disk.
func TestFind(t *testing.T) {
	root := t.TempDir()
	sitePackages := filepath.Join(root, "lib", "python3.12", "site-packages")
	program := filepath.Join(root, "bin", "vllm")
	for _, d := range []string{filepath.Dir(program), filepath.Join(sitePackages, "vllm-0.29.1+cpu.dist-info"), filepath.Join(sitePackages, "torch-2.5.1.dist-info"), filepath.Join(sitePackages, "vllm_other-9.dist-info")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(program, []byte("#!"+root+"/bin/python\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := Programs{Environ: func() []string { return []string{"THAW_ENGINE_VLLM=" + program, "PATH=/nonexistent"} }}
	in, err := p.Find(t.Context(), functions.EngineVLLM)
	if err != nil || in.Version != "0.29.1+cpu" || in.Others["torch"] != "2.5.1" || in.Program != program {
		t.Fatalf("%+v %v", in, err)
	}
	if open := Known(functions.EngineVLLM).OpenVulnerabilities(in); len(open) != 2 {
		t.Errorf("%+v", open)
	}
	if open := Known(functions.EngineVLLM).OpenVulnerabilities(Installed{Version: "0.32.0", Others: map[string]string{"torch": "2.13.0"}}); len(open) != 0 {
		t.Errorf("%+v", open)
	}
	if open := Known(functions.EngineVLLM).OpenVulnerabilities(Installed{}); len(open) != 0 {
		t.Errorf("claimed of an unknown version: %+v", open)
	}
	gone := Programs{Environ: func() []string { return []string{"THAW_ENGINE_VLLM=/no/vllm"} }}
	if _, err := gone.Find(t.Context(), functions.EngineVLLM); err == nil || errors.Is(err, ErrNotInstalled) {
		t.Errorf("a variable that names nothing is a fault: %v", err)
	}
	none := Programs{Environ: func() []string { return nil }, Look: func(string) (string, error) { return "", os.ErrNotExist }}
	if _, err := none.Find(t.Context(), functions.EngineSGLang); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("%v", err)
	}
}
