package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

var guideInit = regexp.MustCompile("(?s)```yaml\n(# Worked out by thaw init.*?)```")

// TestInit: what thaw init prints is checked and deployed as it is, and the model answers.
// Of the shipped model the guide shows it.
func TestInit(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	thaw := func(args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if code := run(t.Context(), args, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("thaw %v: %d %s", args, code, &errs)
		}
		return out.String()
	}
	generated := filepath.Join(t.TempDir(), "Small_One")
	if err := os.Mkdir(generated, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.Folder(generated, checkpoint.Tiny, "What is thaw? It is what ice does in spring.", 5); err != nil {
		t.Fatal(err)
	}
	for source, name := range map[string]string{tinyDir(t): "tiny", generated: "small-one"} {
		text := thaw("init", source)
		if name == "tiny" {
			page, err := os.ReadFile("../../deploy/docs/models.md")
			if err != nil {
				t.Fatal(err)
			}
			shown := guideInit.FindStringSubmatch(string(page))
			if shown == nil || strings.Replace(shown[1], "/home/me/thaw/functions/shipped/tiny", source, 1) != text {
				t.Errorf("the guide does not show\n%s", text)
			}
		}
		file := filepath.Join(t.TempDir(), "model.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		thaw("check", file)
		thaw("deploy", "-f", file, "--server", p.url, "--data", p.data)
		if r := p.chat(name, `"max_tokens":4`); r.status != 200 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
}

// TestResourcesLeftOut: of a vLLM model without resources they are worked out at its deploy,
// printed and kept, where a node has a GPU.
func TestResourcesLeftOut(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "--gpus", "2", "--gpu-memory", "24Gi")
	deploy := func(more string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "m.yaml")
		if err := os.WriteFile(file, []byte(modelFile("m", "  source: "+tinyDir(t)+"\n  engine: vllm\n"+more)), 0o644); err != nil {
			t.Fatal(err)
		}
		var out, errs strings.Builder
		if code := run(t.Context(), []string{"deploy", "-f", file, "--server", p.url, "--data", p.data}, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("%d %s", code, &errs)
		}
		return errs.String()
	}
	kept := func() string {
		b, err := os.ReadFile(filepath.Join(p.data, "functions", "default.m.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if said := deploy(""); !strings.Contains(said, "default/m: spec.resources is left out, and was worked out: {gpus: 1, gpuMemory: ") ||
		!strings.Contains(kept(), "gpus: 1\n") {
		t.Errorf("%s%s", said, kept())
	}
	if said := deploy("  resources: {memory: 1Gi}\n"); strings.Contains(said, "worked out") || !strings.Contains(kept(), "gpus: 0\n") {
		t.Errorf("%s%s", said, kept())
	}
}

// TestResourcesLeftOutInFolder: of a file in the folder of functions they are worked out when
// it is read; they are shown, are an event, and are there at once after a restart.
func TestResourcesLeftOutInFolder(t *testing.T) {
	t.Parallel()
	file := modelFile("m", "  source: "+tinyDir(t)+"\n  engine: vllm\n")
	p := start(t, map[string]string{"m.yaml": file}, "--gpus", "2", "--gpu-memory", "24Gi")
	shows := func(name string) bool {
		return strings.Contains(p.do("GET", "/api/v1/functions/default/"+name, "").body, `"resources":{"gpus":1,"gpuMemory":`)
	}
	p.eventually("the resources are worked out", func() bool { return shows("m") })
	if events := p.do("GET", "/api/v1/events?kind=resources", "").body; !strings.Contains(events, "was worked out: {gpus: 1, gpuMemory: ") || !strings.Contains(events, `"function":"default/m"`) {
		t.Error(events)
	}
	p.file("away.yaml", modelFile("away", "  source: "+t.TempDir()+"\n  engine: vllm\n"))
	p.eventually("the log says why they are not known, and what to do", func() bool {
		log := p.log.String()
		return strings.Contains(log, "function=default/away") && strings.Contains(log, "write what thaw init prints")
	})
	p.file("m.yaml", file+"  scale: {idle: 7m}\n")
	p.eventually("the file is read again", func() bool {
		return strings.Contains(p.do("GET", "/api/v1/functions/default/m", "").body, `"idle":"7m`)
	})
	if !shows("m") {
		t.Error("they are forgotten with a change of something else")
	}
}
