package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
)

// No container engine builds the images of deploy/images here: what their files
// name is held to what there is.
func TestDockerfiles(t *testing.T) {
	root := filepath.Join("..", "..")
	files, _ := filepath.Glob(filepath.Join(root, "deploy", "images", "*.Dockerfile"))
	if len(files) != 2 {
		t.Fatalf("Dockerfiles: %v", files)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	toolchain := regexp.MustCompile(`(?m)^export GOTOOLCHAIN := go(\S+)$`).FindSubmatch(makefile)
	if toolchain == nil {
		t.Fatal("the Makefile names no Go")
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		args, stages, last := map[string]string{}, []string{}, map[string]string{}
		text := strings.ReplaceAll(string(b), "\\\n", " ")
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			if len(words) == 0 || strings.HasPrefix(words[0], "#") {
				continue
			}
			words = slices.DeleteFunc(words, func(w string) bool {
				return strings.HasPrefix(w, "--platform=")
			})
			last[words[0]] = strings.Join(words[1:], " ")
			switch words[0] {
			case "ARG":
				k, v, _ := strings.Cut(words[1], "=")
				args[k] = v
			case "FROM":
				image := words[1]
				if v, ok := args[strings.TrimPrefix(image, "$")]; ok && image[0] == '$' {
					image = v
				}
				if host, _, more := strings.Cut(image, "/"); more && strings.ContainsAny(host, ".:") {
					t.Errorf("%s: %s names a registry", name, image)
				}
				if v, ok := strings.CutPrefix(image, "golang:"); ok && v != string(toolchain[1]) {
					t.Errorf("%s: Go %s, and the Makefile has %s", name, v, toolchain[1])
				}
				if strings.HasPrefix(image, "vllm/") && image != knative.DefaultImage(functions.EngineVLLM) {
					t.Errorf("%s: %s, and models run from %s", name, image, knative.DefaultImage(functions.EngineVLLM))
				}
				if len(words) == 4 {
					stages = append(stages, words[3])
				}
			case "COPY":
				from := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "--from=") })
				if from > 0 {
					if s := strings.TrimPrefix(words[from], "--from="); !slices.Contains(stages, s) {
						t.Errorf("%s: no stage %s before %q", name, s, line)
					}
					continue
				}
				for _, path := range words[1 : len(words)-1] {
					if _, err := os.Stat(filepath.Join(root, path)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			case "RUN":
				for _, w := range words {
					if strings.HasPrefix(w, "./") {
						if m, _ := filepath.Glob(filepath.Join(root, w, "main.go")); len(m) == 0 {
							t.Errorf("%s: there is no program %s", name, w)
						}
					}
				}
			}
		}
		if last["USER"] != "65532:65532" {
			t.Errorf("%s: its user is %q", name, last["USER"])
		}
		want := `["/thaw"]`
		if name == "vllm.Dockerfile" {
			want = `["/opt/thaw/thaw"]` // where the rendered command looks
		}
		if last["ENTRYPOINT"] != want {
			t.Errorf("%s: its entry point is %s, want %s", name, last["ENTRYPOINT"], want)
		}
		if v := "github.com/thaw-dev/thaw/platform/cli.Version="; name == "thaw.Dockerfile" && !strings.Contains(text, v) {
			t.Errorf("%s sets no version", name)
		}
	}
}
