package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// A checkpoint is a folder of the node that the pod's user cannot reach by its path.
// It comes open over the loader's socket, and for the engine it is made into a folder
// of links, below the shim's own:
//
//	weights/1/at              -> /proc/PID/fd/N    this process has it open
//	weights/1/model/FILE      -> ../at/FILE        what the engine is given is weights/1/model
//
// The engine has the shim's user, so the kernel lets it through /proc to what the
// shim has open, and to nothing else of the store.
const (
	folderAt    = "at"
	folderModel = "model"
)

// openFolder is a checkpoint that came as an open folder.
type openFolder struct {
	dir  string
	open *os.File
}

// newOpenFolder makes links for the files of an open folder, in a folder of its own below
// dir. It takes f over.
func newOpenFolder(dir string, f *os.File, files []string) (_ *openFolder, err error) {
	w := &openFolder{dir: dir, open: f}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if len(files) == 0 {
		return nil, errors.New("the loader names no file of the weights")
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(w.path(), 0o700); err != nil {
		return nil, err
	}
	inProc := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) // which the children of this process can use
	if err := os.Symlink(inProc, filepath.Join(dir, folderAt)); err != nil {
		return nil, err
	}
	for _, name := range files {
		name = filepath.FromSlash(name)
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("the loader names a file outside the checkpoint: %q", name)
		}
		at := filepath.Join(w.path(), name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return nil, err
		}
		up, err := filepath.Rel(filepath.Dir(at), filepath.Join(dir, folderAt, name))
		if err != nil {
			return nil, err
		}
		if err := os.Symlink(up, at); err != nil {
			return nil, err
		}
	}
	// The engine reaches the files if this process does.
	if _, err := os.Stat(filepath.Join(w.path(), filepath.FromSlash(files[0]))); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w (the engine reaches its weights through /proc of the shim)", err)
		}
		return nil, fmt.Errorf("the weights from the loader: %w", err)
	}
	return w, nil
}

// path is the folder that the engine gets.
func (f *openFolder) path() string { return filepath.Join(f.dir, folderModel) }

// close releases the folder. Files that are open or mapped stay so.
func (f *openFolder) close() {
	f.open.Close()
	os.RemoveAll(f.dir)
}
