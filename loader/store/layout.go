package store

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// layout is the store's folder: where its files lie, the lock on it, and the changes that
// survive a crash.
type layout struct {
	dir     string
	private bool
	step    func(name string) error // Options.Step
	fsync   func(*os.File) error    // Options.Fsync
}

// folderMode is the mode of all folders but those of a checkpoint's files.
func (l *layout) folderMode() os.FileMode {
	if l.private {
		return 0o700
	}
	return 0o755
}

// makePrivate closes the store to other users, each folder by itself: one that is mounted
// elsewhere is not below the others there, and a process that holds a checkpoint's files
// could otherwise reach their parent by "..".
func (l *layout) makePrivate() error {
	for _, pattern := range append([]string{".", "blobs", "blobs/tree/*", "checkpoints/*"}, folders...) {
		found, _ := fs.Glob(os.DirFS(l.dir), pattern) // no error: the patterns are valid
		for _, d := range found {
			if err := os.Chmod(l.path(d), 0o700); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func (l *layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir}, parts...)...)
}

func (l *layout) blob(tree string) string { return l.path("blobs", "tree", tree[:2], tree) }

// syncFolder flushes a folder: the names in it survive a power cut.
func (l *layout) syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(l.fsync(f), f.Close())
}

func (l *layout) writeSync(name string, body []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(body); err != nil {
		return err
	}
	return l.fsync(f)
}

// locked runs fn with the store's lock. It is held while links are made or removed,
// never while bytes move.
func (l *layout) locked(fn func() error) error {
	f, err := lockFile(l.path("lock"), true, true)
	if err != nil {
		return diskError("", err)
	}
	defer f.Close()
	return fn()
}

// discard deletes a folder of the store; a crash leaves it under trash.
func (l *layout) discard(dir string) error {
	out := l.path("trash", filepath.Base(dir)+"-"+rand.Text())
	if err := os.Rename(dir, out); err != nil {
		return ignoreMissing(err)
	}
	if err := l.step("delete"); err != nil {
		return err
	}
	return os.RemoveAll(out)
}

// publish makes the folder of links and renames it to its final name.
func (l *layout) publish(e Entry) error {
	h, err := ParseDigest(e.Digest)
	if err != nil {
		return err
	}
	if _, err := os.Stat(l.path("checkpoints", h)); err == nil {
		return nil // published by another staging
	}
	// Through a root: a name that passed every check by mistake still cannot
	// leave the store.
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tmp := path.Join("checkpoints", newPrefix+rand.Text())
	if err := l.step("make folder"); err != nil {
		return err
	}
	dirs := map[string]bool{path.Join(tmp, "files"): true}
	if err := root.MkdirAll(path.Join(tmp, "files"), 0o755); err != nil {
		return err
	}
	if l.private {
		if err := root.Chmod(tmp, 0o700); err != nil {
			return err
		}
	}
	for _, f := range e.Files {
		name := path.Join(tmp, "files", f.Name)
		for d := path.Dir(name); !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := l.step("link file"); err != nil {
			return err
		}
		if err := root.Link(path.Join("blobs", "tree", f.Tree[:2], f.Tree), name); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	if err := l.step("write manifest"); err != nil {
		return err
	}
	if err := l.writeSync(l.path(tmp, "manifest.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	// A user who can open the file can lock it, and pods have the store mounted.
	if err := l.writeSync(l.path(tmp, "lease"), nil, 0o600); err != nil {
		return err
	}
	for d := range dirs {
		if err := l.syncFolder(l.path(d)); err != nil {
			return err
		}
	}
	if err := l.syncFolder(l.path(tmp)); err != nil {
		return err
	}
	if err := l.step("rename checkpoint"); err != nil {
		return err
	}
	if err := root.Rename(tmp, path.Join("checkpoints", h)); err != nil {
		return err
	}
	if err := l.step("fsync checkpoints"); err != nil {
		return err
	}
	return l.syncFolder(l.path("checkpoints"))
}

// used counts every inode once: a part that is being published is also a blob.
func (l *layout) used() (int64, error) {
	var sum int64
	inodes := make(map[uint64]bool)
	for _, dir := range []string{"blobs", "parts"} {
		err := walkFiles(l.path(dir), func(_ string, fi fs.FileInfo) error {
			n, inode := linkCount(fi)
			if n > 1 {
				if inodes[inode] {
					return nil
				}
				inodes[inode] = true
			}
			sum += fi.Size()
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// dropBlobs deletes blobs without other links and returns the bytes freed. The caller
// holds the store's lock: a commit links a blob and a checkpoint under one hold of it.
func (l *layout) dropBlobs() (int64, error) {
	var freed int64
	err := walkFiles(l.path("blobs"), func(p string, fi fs.FileInfo) error {
		if n, _ := linkCount(fi); n > 1 {
			return nil
		}
		if err := os.Remove(p); err != nil {
			return err
		}
		freed += fi.Size()
		return nil
	})
	return freed, err
}

// walkFiles calls visit with every file below dir. Files that disappear are left out, also
// while visit works on them.
func walkFiles(dir string, visit func(path string, fi fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreMissing(err)
		}
		fi, err := d.Info()
		if err == nil {
			err = visit(p, fi)
		}
		return ignoreMissing(err)
	})
}

// ignoreMissing drops the error of a file that disappears during a walk.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
