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
	// A start is refused below the version that fixes it, unless that is allowed.
	if err := os.WriteFile(filepath.Join(root, "bin", "python"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	model := Request{Spec: functions.ModelSpec{Engine: functions.EngineVLLM}, Name: "m", Path: root, Port: 1}
	p.Host = func() Host { return Host{} }
	if _, err := p.Prepare(model); err != nil {
		t.Errorf("allowed: %v", err)
	}
	p.RefuseVulnerable = true
	for _, c := range []struct{ vllm, torch, want string }{
		{"0.29.1+cpu", "2.6.0", "engine vllm: vllm 0.29.1+cpu has a known hole: one request can stop"},
		{"0.30.0", "2.5.1", "engine vllm: torch 2.5.1 has a known hole"},
		{"0.30.0", "2.6.0", ""},
	} {
		for name, version := range map[string]string{"vllm": c.vllm, "torch": c.torch} {
			old, _ := filepath.Glob(filepath.Join(sitePackages, name+"-*.dist-info"))
			if now := filepath.Join(sitePackages, name+"-"+version+".dist-info"); now != old[0] {
				if err := os.Rename(old[0], now); err != nil {
					t.Fatal(err)
				}
			}
		}
		switch _, err := p.Prepare(model); {
		case err == nil && c.want == "":
		case err == nil, c.want == "", !strings.HasPrefix(err.Error(), c.want), !strings.HasSuffix(err.Error(), "--vulnerable-engines allow"):
			t.Errorf("vLLM %s, torch %s: %v", c.vllm, c.torch, err)
		}
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
