package huggingface_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source/huggingface"
	"github.com/thaw-dev/thaw/loader/source/huggingface/huggingfacetest"
	"github.com/thaw-dev/thaw/loader/source/sourcetest"
)

// checkpoint lays files out as the store does.
func checkpoint(t *testing.T, folder, source string, files map[string][]byte) huggingface.Checkpoint {
	t.Helper()
	c := huggingface.Checkpoint{Source: source, Path: folder}
	for name, b := range files {
		p := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		c.Files = append(c.Files, name)
	}
	return c
}

func exists(p string) bool { _, err := os.Stat(p); return err == nil }

func TestView(t *testing.T) {
	srv := huggingfacetest.New(t)
	files := map[string][]byte{"config.json": []byte("{}"), "sub/x.json": []byte("[]"), "model.safetensors": bytes.Repeat([]byte("w"), 5000)}
	commit := srv.Commit("main", files)
	s := huggingface.New(huggingface.Options{Getenv: srv.Getenv})
	defer s.Close()
	if _, err := s.Plan(t.Context(), repo, nil); err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	c := checkpoint(t, filepath.Join(data, "store", "checkpoints", "abc", "files"), repo, files)
	cacheHome := filepath.Join(data, "hf")
	v := huggingface.NewView(cacheHome, s)
	for range 2 { // the second changes nothing
		if err := v.Sync([]huggingface.Checkpoint{c, {Source: "az://a/c/p", Path: "/x", Files: []string{"y"}}}); err != nil {
			t.Fatal(err)
		}
	}
	r := filepath.Join(cacheHome, "hub", "models--"+huggingfacetest.Org+"--"+huggingfacetest.Repo)
	if ref, err := os.ReadFile(filepath.Join(r, "refs", "main")); string(ref) != commit || err != nil {
		t.Errorf("refs/main %q, %v", ref, err)
	}
	for name, want := range files {
		link := filepath.Join(r, "snapshots", commit, name)
		got, err := os.ReadFile(link)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		to, err := os.Readlink(link)
		if err != nil || !strings.Contains(to, "blobs/") || filepath.IsAbs(to) {
			t.Errorf("%s leads to %q, %v", name, to, err)
		}
	}
	// The same folder under another name.
	moved := data + "-moved"
	if err := os.Rename(data, moved); err != nil {
		t.Fatal(err)
	}
	if !exists(filepath.Join(moved, "hf", "hub", "models--"+huggingfacetest.Org+"--"+huggingfacetest.Repo, "snapshots", commit, "config.json")) {
		t.Error("the view does not move with its data")
	}
	if err := os.Rename(moved, data); err != nil {
		t.Fatal(err)
	}
	// A newer commit; the older checkpoint is still in the store.
	second := srv.Commit("main", map[string][]byte{"config.json": []byte(`{"a":1}`)})
	if _, err := s.Plan(t.Context(), repo, nil); err != nil {
		t.Fatal(err)
	}
	newer := map[string][]byte{"config.json": []byte(`{"a":1}`), "sub/x.json": files["sub/x.json"], "model.safetensors": files["model.safetensors"]}
	c2 := checkpoint(t, filepath.Join(data, "store", "checkpoints", "def", "files"), repo, newer)
	if err := v.Sync([]huggingface.Checkpoint{c2}); err != nil {
		t.Fatal(err)
	}
	if ref, _ := os.ReadFile(filepath.Join(r, "refs", "main")); string(ref) != second || !exists(filepath.Join(r, "snapshots", second, "model.safetensors")) || !exists(filepath.Join(r, "snapshots", commit, "config.json")) {
		t.Errorf("refs/main %q after a newer commit", ref)
	}
	// Evicted, also when another process looks.
	if err := os.RemoveAll(filepath.Join(data, "store", "checkpoints", "abc")); err != nil {
		t.Fatal(err)
	}
	if err := huggingface.NewView(cacheHome, nil).Sync(nil); err != nil {
		t.Fatal(err)
	}
	if exists(filepath.Join(r, "snapshots", commit)) || !exists(filepath.Join(r, "snapshots", second, "config.json")) {
		t.Error("an evicted checkpoint is still shown, or another is not")
	}
	if err := os.RemoveAll(filepath.Join(data, "store", "checkpoints", "def")); err != nil {
		t.Fatal(err)
	}
	if err := v.Sync(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(r); err == nil {
		t.Error("an empty repository stays")
	}
}

// A file that another program put into the view is kept.
func TestViewKeepsUserFiles(t *testing.T) {
	cacheHome := t.TempDir()
	blob := filepath.Join(cacheHome, "hub", "models--a--b", "blobs", "x")
	snap := filepath.Join(cacheHome, "hub", "models--a--b", "snapshots", "s", "config.json")
	for _, p := range []string{blob, snap} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := huggingface.NewView(cacheHome, nil).Sync(nil); err != nil {
		t.Fatal(err)
	}
	if !exists(blob) || !exists(snap) {
		t.Error("removed")
	}
}

// The library of the hub that vLLM has finds the model without a network.
func TestViewForVLLM(t *testing.T) {
	vllm := os.Getenv("THAW_ENGINE_VLLM")
	python := filepath.Join(filepath.Dir(vllm), "python")
	if vllm == "" || !exists(python) {
		sourcetest.Missing(t, "THAW_ENGINE_VLLM names no vllm with a python beside it")
	}
	srv := huggingfacetest.New(t)
	files := map[string][]byte{"config.json": []byte(`{"model_type":"llama"}`), "model.safetensors": bytes.Repeat([]byte("w"), 5000)}
	commit := srv.Commit("main", files)
	s := huggingface.New(huggingface.Options{Getenv: srv.Getenv})
	defer s.Close()
	if _, err := s.Plan(t.Context(), repo, nil); err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	cacheHome := filepath.Join(data, "hf")
	c := checkpoint(t, filepath.Join(data, "store", "checkpoints", "abc", "files"), repo, files)
	if err := huggingface.NewView(cacheHome, s).Sync([]huggingface.Checkpoint{c}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", `
import json, os
from huggingface_hub import snapshot_download, hf_hub_download, try_to_load_from_cache, scan_cache_dir
id = "`+huggingfacetest.Org+"/"+huggingfacetest.Repo+`"
folder = snapshot_download(id)
info = scan_cache_dir()
print(json.dumps({"folder": folder, "files": sorted(os.listdir(folder)), "config": open(hf_hub_download(id, "config.json")).read(), "cached": try_to_load_from_cache(id, "model.safetensors") is not None, "repos": [r.repo_id for r in info.repos], "warnings": [str(w) for w in info.warnings]}))`)
	cmd.Env = append(os.Environ(), "HF_HOME="+cacheHome, "HF_HUB_OFFLINE=1", "HF_HUB_DISABLE_TELEMETRY=1", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var got struct {
		Folder   string
		Files    []string
		Config   string
		Cached   bool
		Repos    []string
		Warnings []string
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if filepath.Base(got.Folder) != commit || len(got.Files) != 2 || got.Config != string(files["config.json"]) || !got.Cached || len(got.Repos) != 1 || len(got.Warnings) > 0 {
		t.Errorf("%+v", got)
	}
}
