package shim

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/durable"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// Bounds of what is taken over from an image: files of a KiB or two each.
const (
	seedFiles = 4096
	seedBytes = 1 << 20 // of each
)

// seedCaches makes the folder for an engine's caches, and copies into it what the image
// has of them, which is read-only: nine seconds of vLLM's first start go into inspecting
// the class of its model. It is "" for an engine without caches. The folder is the pod's,
// so it outlives a container whose start failed.
//
// None of it leaves the pod: it is code that other pods would run.
func seedCaches(dir string, e functions.Engine, environ []string) (string, error) {
	shared := engine.CacheShared(e, environ)
	if shared == nil || dir == "" {
		return "", nil
	}
	dir = filepath.Join(dir, string(e))
	for name, from := range shared {
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(to, 0o700); err != nil {
			return "", err
		}
		if from == "" || from == to {
			continue
		}
		if err := copySmallFiles(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dir, err
		}
	}
	return dir, nil
}

// copySmallFiles copies the small readable files of a folder that are not there yet. The
// error is of the first that cannot be read.
func copySmallFiles(from, to string) (first error) {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	entries, err := f.ReadDir(seedFiles)
	if err != nil && err != io.EOF {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > seedBytes {
			continue
		}
		path := filepath.Join(to, e.Name())
		if _, err := os.Lstat(path); err == nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		if err := durable.WriteFile(path, b, 0o600); err != nil {
			return err
		}
	}
	return first
}
