// Package durable replaces a file so that after a crash or a power cut its path holds the old
// content or the new one, whole, and syncs folders to the disk.
package durable

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
)

// WriteFile replaces the file at path with data and the given permission bits,
// whatever the umask. After a crash or a power cut at any point path holds the old
// content or the new one, whole; at most a temporary file beside it is left, whose
// name begins with a dot and ends in ".new". The folder must exist.
//
// The system calls are: openat (the temporary file), fchmod, write, fsync, close,
// rename, then open, fsync, close of the folder.
//
// Two writers of one path do not disturb each other: the later rename wins. On an
// error before the rename path is untouched and the temporary file is removed.
func WriteFile(path string, data []byte, perm os.FileMode) error {
	return calls{(*os.File).Sync, os.Rename, SyncDir}.writeFile(path, data, perm)
}

// calls are the calls whose order decides what a crash leaves.
type calls struct {
	sync    func(*os.File) error
	rename  func(from, to string) error
	syncDir func(dir string) error
}

func (c calls) writeFile(path string, data []byte, perm os.FileMode) error {
	dir, base := filepath.Split(filepath.Clean(path))
	dir = cmp.Or(dir, ".")
	f, err := os.CreateTemp(dir, "."+base+"-*.new")
	if err != nil {
		return err
	}
	err = f.Chmod(perm)
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = c.sync(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = c.rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return c.syncDir(dir)
}

// SyncDir flushes a folder: the names in it survive a power cut.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
