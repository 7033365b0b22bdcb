package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program builds a static program; the test's own binary may be none.
func program(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "pause")
	cmd := exec.Command("go", "build", "-o", out, "../pause")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return out
}

func read(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImage reads an archive as a runtime does: from the index down, by digests.
func TestImage(t *testing.T) {
	bin, dir := program(t), t.TempDir()
	note := filepath.Join(dir, "note.txt")
	os.WriteFile(note, []byte("a note"), 0o600)
	out := filepath.Join(dir, "x.tar")
	if err := build(out, "dev.local/x:test", "65532:65532", []string{bin + "=/opt/x/run", note}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	files := read(t, bytes.NewReader(whole))
	type ref struct {
		Digest      string
		Size        int
		Annotations map[string]string
	}
	get := func(r ref) []byte {
		b, ok := files["blobs/sha256/"+strings.TrimPrefix(r.Digest, "sha256:")]
		if !ok || len(b) != r.Size || digest(b) != r.Digest {
			t.Fatalf("%+v: not in the archive as it is named", r)
		}
		return b
	}
	var index struct{ Manifests []ref }
	var manifest struct {
		Config ref
		Layers []ref
	}
	var config struct {
		Config struct{ Entrypoint []string }
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	for _, x := range []struct {
		from func() []byte
		to   any
	}{
		{func() []byte { return files["index.json"] }, &index},
		{func() []byte { return get(index.Manifests[0]) }, &manifest},
		{func() []byte { return get(manifest.Config) }, &config},
	} {
		if err := json.Unmarshal(x.from(), x.to); err != nil {
			t.Fatal(err)
		}
	}
	if n := index.Manifests[0].Annotations["io.containerd.image.name"]; n != "dev.local/x:test" {
		t.Errorf("it is called %q", n)
	}
	layer := get(manifest.Layers[0])
	if e := config.Config.Entrypoint; len(e) != 1 || e[0] != "/opt/x/run" || config.Rootfs.DiffIDs[0] != digest(layer) {
		t.Errorf("config %+v", config)
	}
	inside := read(t, bytes.NewReader(layer))
	want, _ := os.ReadFile(bin)
	if !bytes.Equal(inside["opt/x/run"], want) || string(inside["note.txt"]) != "a note" {
		t.Error("the files are not what they were")
	}
	again := filepath.Join(dir, "y.tar")
	if err := build(again, "dev.local/x:test", "65532:65532", []string{bin + "=/opt/x/run", note}); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(again); !bytes.Equal(b, whole) {
		t.Error("the same files made another archive")
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755)
	bin := program(t)
	for what, x := range map[string]struct {
		name  string
		files []string
		want  string
	}{
		"no tag":         {"dev.local/x", []string{bin}, "has no tag"},
		"a port, no tag": {"localhost:5000/x", []string{bin}, "has no tag"},
		"latest":         {"dev.local/x:latest", []string{bin}, "latest"},
		"no program":     {"dev.local/x:1", []string{script}, "no Linux program"},
		"no file":        {"dev.local/x:1", []string{filepath.Join(dir, "none")}, "no such file"},
		"a bad path":     {"dev.local/x:1", []string{bin + "=../x"}, "no absolute path"},
	} {
		out := filepath.Join(dir, "out.tar")
		if err := build(out, x.name, "0:0", x.files); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: an archive was written", what)
		}
	}
}
