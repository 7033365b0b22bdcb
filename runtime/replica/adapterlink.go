package replica

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// linkFolder makes a folder at to with the files below from, as hard links or, from
// another file system, as copies: a confined engine may read what is there, and not the
// store. A folder that is there is replaced.
func linkFolder(from, to string) (string, error) {
	if !filepath.IsLocal(filepath.Base(to)) {
		return "", fmt.Errorf("%q is no name of a folder", filepath.Base(to))
	}
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(to); err != nil {
		return "", err
	}
	return to, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
		if os.Link(path, target) == nil {
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
