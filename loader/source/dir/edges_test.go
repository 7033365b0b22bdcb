package dir

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// TestKernelsFolders: folders whose files the kernel makes up are no models; memory that looks
// like a disk is.
func TestKernelsFolders(t *testing.T) {
	for folder, want := range map[string]bool{"/proc": true, "/proc/1": true, "/sys/x": true, "/dev": true, "/dev/shm": true, "/dev/shm/model": false, "/process": false, "/devel/x": false, "/home": false} {
		if isKernels(folder) != want {
			t.Error(folder)
		}
	}
	if _, err := (Source{}).Plan(t.Context(), "file:///", nil); source.KindOf(err) != source.BadSource {
		t.Error(err)
	}
}

// TestBadFolders: what a location may be by mistake, each with its kind and its words.
func TestBadFolders(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(at("file"), nil, 0o600))
	must(syscall.Mkfifo(at("pipe"), 0o600))
	must(os.MkdirAll(at("models--o--r/refs"), 0o700))
	must(os.WriteFile(at("models--o--r/refs/main"), []byte("abc\n"), 0o600))
	must(os.MkdirAll(at("models--o--r/snapshots/abc"), 0o700))
	must(os.Symlink("../../blobs/none", at("models--o--r/snapshots/abc/model.safetensors")))
	must(os.MkdirAll(at("folder"), 0o700))
	must(os.Symlink("none", at("folder/model.safetensors")))
	must(os.MkdirAll(at("out"), 0o700))
	must(os.Symlink("../file", at("out/model.safetensors")))
	must(os.Symlink("/nowhere/model", at("dead")))
	must(os.MkdirAll(at("pipes"), 0o700))
	must(syscall.Mkfifo(at("pipes/model.safetensors"), 0o600))
	for name, want := range map[string]struct {
		kind source.Kind
		text string
	}{
		"none":                       {source.NotFound, "no such folder"},
		"Folder":                     {source.NotFound, `there is "` + at("folder") + `", whose name is written otherwise`},
		"fol\u200bder/x":             {source.NotFound, "no such folder (there is "},
		`fol\der`:                    {source.NotFound, `there is "` + at("folder")},
		"file/x":                     {source.Broken, "not a directory"},
		"dead":                       {source.NotFound, `is a link to "/nowhere/model", which is not there`},
		"pipe":                       {source.BadSource, "neither a folder nor a plain file"},
		"models--o--r":               {source.BadSource, "snapshots/abc below it"},
		"models--o--r/snapshots/abc": {source.Missing, `links to "../../blobs/none", a blob that is not in the cache: the download was not finished`},
		"folder":                     {source.Missing, `is a link to "none", which is not there: there is no "` + at("folder/none")},
		"out":                        {source.Refused, "leads out of the folder"},
		"pipes":                      {source.Refused, "not a plain file"},
	} {
		_, err := (Source{}).Plan(t.Context(), "file://"+at(name), nil)
		if source.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.text) || !strings.Contains(err.Error(), "file://"+at(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnfinishedFiles: what a copy and a download left in a folder is in its listing.
func TestUnfinishedFiles(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"config.json", ".model.safetensors.Ab12Cd", ".m.gguf.zZ09_x", ".cache/huggingface/download/model.safetensors.abc.incomplete",
		".cache/huggingface/download/model.safetensors.metadata", ".cache/other/x.incomplete", "sub/.cache/huggingface/download/x.incomplete"} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := (Source{}).Plan(t.Context(), "file://"+folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(plan.Names(), " ")
	want := ".m.gguf.zZ09_x .model.safetensors.Ab12Cd config.json .cache/huggingface/download/model.safetensors.abc.incomplete"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for name, want := range map[string]string{".model.safetensors.Ab12Cd": "copy the file again", ".cache/huggingface/download/model.safetensors.abc.incomplete": "finish it"} {
		if got := source.WithoutWeights([]string{"config.json", name}, "-"); !strings.Contains(got, name+" is of a ") || !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestFolderNotInUTF8: a folder of a name that is not UTF-8 is left out, and the others are listed.
func TestFolderNotInUTF8(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"bad\xe9/x.json", "ok/y.json", "z.json"} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Skip("this file system has names in UTF-8 alone:", err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := (Source{}).Plan(t.Context(), "file://"+folder, nil)
	if got := strings.Join(plan.Names(), " "); err != nil || got != "ok/y.json z.json bad\xe9" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestReplacedFile: a file that is not what was planned is not read, whatever took its place.
func TestReplacedFile(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "x.safetensors")
	for what, replace := range map[string]func() error{
		"nothing":       func() error { return nil },
		"a pipe":        func() error { return syscall.Mkfifo(name, 0o600) },
		"a folder":      func() error { return os.Mkdir(name, 0o700) },
		"a link":        func() error { return os.Symlink("/etc/hostname", name) },
		"a dead link":   func() error { return os.Symlink("none", name) },
		"a longer file": func() error { return os.WriteFile(name, []byte("longer"), 0o600) },
	} {
		os.RemoveAll(name)
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		plan, err := (Source{}).Plan(t.Context(), "file://"+folder, nil)
		if err != nil || len(plan.Files) != 1 {
			t.Fatalf("%+v, %v", plan, err)
		}
		os.Remove(name)
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		_, err = (Source{}).Read(t.Context(), plan.Files[0], 0, 1)
		e, ok := err.(*source.Error)
		if !ok || e.File != "x.safetensors" || e.Source != folder || e.Detail == "" ||
			e.Kind != source.Changed && e.Kind != source.Refused && e.Kind != source.Missing {
			t.Errorf("%s: %#v", what, err)
		}
	}
}
