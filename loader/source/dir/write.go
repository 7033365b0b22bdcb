package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/thaw-dev/thaw/loader/source"
)

// Write stores body as name below location, in place of what was there and in
// one rename. It is what engines' compile caches are published with; nothing
// else writes to a folder of the user's.
func (s Source) Write(ctx context.Context, location, name string, body io.ReadSeeker, size int64) error {
	if err := write(ctx, s.Folder(location), name, body, size); err != nil {
		e := &source.Error{Kind: source.Broken, Detail: "cannot be written", Err: err}
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			e.Kind = source.Denied
		}
		return withLocation(location, name, e)
	}
	return nil
}

func write(ctx context.Context, folder, name string, body io.Reader, size int64) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// Through a root: no name leaves the folder.
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	name = filepath.FromSlash(name)
	tmp := name + ".new-" + rand.Text()
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, body, size)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(tmp))
	}
	return nil
}
