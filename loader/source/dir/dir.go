package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// Source reads folders named by file:///abs. Its zero value is ready.
type Source struct{}

// maxEntries bounds the walk through a folder that is not a model's.
const maxEntries = 20_000

// Folder is the path of location.
func (Source) Folder(location string) string { return strings.TrimPrefix(location, "file://") }

// openedFolder is an opened folder: the root that no name leaves, and where in it the files
// are.
type openedFolder struct {
	root *os.Root
	sub  string
	hub  bool // links are followed
}

func openFolder(folder string) (openedFolder, error) {
	fi, err := os.Stat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return openedFolder{}, &source.Error{Kind: source.NotFound, Detail: "there is no such folder", Fix: "paths in a model file are relative to that file; the hub is hf://ORG/REPO"}
	case errors.Is(err, fs.ErrPermission):
		return openedFolder{}, &source.Error{Kind: source.Denied, Detail: "the folder may not be read", Fix: "let the user that runs thaw read it"}
	case err != nil:
		return openedFolder{}, &source.Error{Kind: source.Broken, Detail: "the folder cannot be read", Err: errors.Unwrap(err)}
	case !fi.IsDir():
		return openedFolder{}, &source.Error{Kind: source.BadSource, Detail: "is a file, not a folder", Fix: "name the folder that holds it"}
	}
	p := openedFolder{sub: "."}
	top := folder
	// …/models--ORG--NAME/snapshots/REV
	if snapshots := filepath.Dir(folder); filepath.Base(snapshots) == "snapshots" && strings.HasPrefix(filepath.Base(filepath.Dir(snapshots)), "models--") {
		top = filepath.Dir(snapshots)
		p.sub, p.hub = path.Join("snapshots", filepath.Base(folder)), true
	}
	if p.root, err = os.OpenRoot(top); err != nil {
		return openedFolder{}, &source.Error{Kind: source.Broken, Detail: "the folder cannot be opened", Err: err}
	}
	return p, nil
}

// Plan lists the folder, subfolders included. The version of a file is its
// size and modification time.
func (s Source) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	folder := s.Folder(location)
	p, err := openFolder(folder)
	if err != nil {
		return source.Plan{}, withLocation(location, "", err)
	}
	defer p.root.Close()
	var plan source.Plan
	count := 0
	err = fs.WalkDir(p.root.FS(), p.sub, func(full string, d fs.DirEntry, err error) error {
		name := full
		switch {
		case full == p.sub:
			name = ""
		case p.sub != ".":
			name = strings.TrimPrefix(full, p.sub+"/")
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return withLocation(location, name, &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err})
		case name == "":
			return nil
		}
		if count++; count > maxEntries {
			return withLocation(location, "", &source.Error{Kind: source.Refused, Detail: fmt.Sprintf("holds more than %d files", maxEntries), Fix: "point source at the model's own folder"})
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		fi, err := p.look(full)
		if err != nil {
			// Only what would be used has to be sound.
			if !also.Includes(name) {
				return nil
			}
			return withLocation(location, name, err)
		}
		plan.Files = append(plan.Files, source.File{Name: name, Size: fi.Size(), Version: version(fi), Ref: filepath.Join(folder, filepath.FromSlash(name))})
		return nil
	})
	return plan, err
}

// look returns what a name is, and an error unless it is a plain file.
func (p openedFolder) look(full string) (fs.FileInfo, error) {
	fi, err := p.root.Lstat(full)
	if err == nil && p.hub && fi.Mode()&fs.ModeSymlink != 0 {
		if fi, err = p.root.Stat(full); errors.Is(err, fs.ErrNotExist) {
			return nil, &source.Error{Kind: source.Missing, Detail: "links to a blob that is not in the cache: the download was not finished"}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &source.Error{Kind: source.Changed, Detail: "is gone since it was listed"}
	}
	if err != nil {
		return nil, &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err}
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		return nil, &source.Error{Kind: source.Refused, Detail: "is a link", Fix: "put the file itself there, or a hard link"}
	}
	if !fi.Mode().IsRegular() {
		return nil, &source.Error{Kind: source.Refused, Detail: "is not a plain file"}
	}
	return fi, nil
}

func version(fi fs.FileInfo) string {
	return fmt.Sprintf("%d-%s", fi.Size(), fi.ModTime().UTC().Format(time.RFC3339Nano))
}

// Open opens a file of a plan, in the version of the plan.
func (s Source) Open(file source.File) (*os.File, error) {
	folder := strings.TrimSuffix(file.Ref, string(filepath.Separator)+filepath.FromSlash(file.Name))
	p, err := openFolder(folder)
	if err != nil {
		return nil, withLocation(folder, file.Name, err)
	}
	defer p.root.Close()
	full := path.Join(p.sub, file.Name)
	if _, err := p.look(full); err != nil {
		return nil, withLocation(folder, file.Name, err)
	}
	// A pipe that was put in its place meanwhile is opened without waiting for
	// another process to write, and refused below.
	f, err := p.root.OpenFile(full, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		kind := source.Broken
		if errors.Is(err, fs.ErrPermission) {
			kind = source.Denied
		}
		return nil, withLocation(folder, file.Name, &source.Error{Kind: kind, Detail: "cannot be opened", Err: errors.Unwrap(err)})
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || version(fi) != file.Version {
		f.Close()
		return nil, withLocation(folder, file.Name, &source.Error{Kind: source.Changed, Detail: "changed since it was listed"})
	}
	return f, nil
}

// Read returns a range of a file of a plan.
func (s Source) Read(ctx context.Context, file source.File, offset, length int64) (io.ReadCloser, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f, err := s.Open(file)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, offset, length), f}, nil
}

func withLocation(location, name string, err error) error {
	if e, ok := errors.AsType[*source.Error](err); ok {
		e.Source, e.File = location, name
	}
	return err
}
