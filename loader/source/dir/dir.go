package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/weightsets"
	"github.com/thaw-dev/thaw/loader/source"
)

// Source reads folders named by file:///abs. Its zero value is ready.
type Source struct{}

// maxEntries bounds the walk through a folder that is not a model's.
const maxEntries = 20_000

// Folder is the path of location; of a location that is one file, the folder that holds it.
func (Source) Folder(location string) string {
	folder := strings.TrimPrefix(location, "file://")
	if fi, err := os.Stat(folder); err == nil && fi.Mode().IsRegular() {
		return filepath.Dir(folder)
	}
	return folder
}

// openedFolder is an opened folder: the root that no name leaves, and where in it the files
// are.
type openedFolder struct {
	root *os.Root
	top  string // path of the root, without links
	sub  string
	hub  bool     // links may lead to blobs of the same repository
	only []string // the files of a source that is one file with its shards; nil for all
}

func openFolder(folder string) (openedFolder, error) {
	fi, err := os.Stat(folder)
	real := folder
	if err == nil {
		real, err = filepath.EvalSymlinks(folder)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if to, err := os.Readlink(folder); err == nil {
			return openedFolder{}, source.Fail(source.NotFound, fmt.Sprintf("is a link to %q, which is not there", functions.Clip(to)),
				"name the folder itself, or make the link anew")
		}
		fix := "paths in a model file are relative to that file; the hub is hf://ORG/REPO"
		if near := source.NearestPath(folder); near != "" {
			fix = fmt.Sprintf("there is %q, whose name is written otherwise", near)
		}
		return openedFolder{}, source.Fail(source.NotFound, "there is no such folder", fix)
	case errors.Is(err, fs.ErrPermission):
		return openedFolder{}, unreadable("the folder may not be read", err)
	case err != nil:
		return openedFolder{}, &source.Error{Kind: source.Broken, Detail: "the folder cannot be read", Err: errors.Unwrap(err)}
	case fi.Mode().IsRegular():
		// Its name, not that of what a link leads to: engines look at it.
		p, err := openFolder(filepath.Dir(folder))
		p.only = weightsets.Siblings(filepath.Base(folder))
		return p, err
	case !fi.IsDir():
		return openedFolder{}, &source.Error{Kind: source.BadSource, Detail: "is neither a folder nor a plain file"}
	}
	if real == "/" || isKernels(real) {
		return openedFolder{},
			&source.Error{Kind: source.BadSource, Detail: "is a folder of the system, not of a model", Fix: "point source at the model's own folder"}
	}
	if rev, err := os.ReadFile(filepath.Join(real, "refs", "main")); err == nil && strings.HasPrefix(filepath.Base(real), "models--") {
		return openedFolder{}, &source.Error{Kind: source.BadSource, Detail: "is the hub's cache of a repository, not one of its revisions",
			Fix: fmt.Sprintf("point source at snapshots/%.60s below it", strings.TrimSpace(string(rev)))}
	}
	p := openedFolder{sub: ".", top: real}
	// …/models--ORG--NAME/snapshots/REV
	if snapshots := filepath.Dir(real); filepath.Base(snapshots) == "snapshots" &&
		strings.HasPrefix(filepath.Base(filepath.Dir(snapshots)), "models--") {
		p.top = filepath.Dir(snapshots)
		p.sub, p.hub = path.Join("snapshots", filepath.Base(real)), true
	}
	if p.root, err = os.OpenRoot(p.top); err != nil {
		return openedFolder{}, unreadable("the folder cannot be opened", errors.Unwrap(err))
	}
	return p, nil
}

// isKernels reports whether a folder is one whose files the kernel makes up: reading them
// may fail, never end, or do something.
func isKernels(folder string) bool {
	return slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(top string) bool {
		return folder == top || strings.HasPrefix(folder, top+"/") && !strings.HasPrefix(folder, "/dev/shm/")
	})
}

// Plan lists the folder, subfolders included, and follows links that stay inside. The
// version of a file is its size and modification time.
func (s Source) Plan(ctx context.Context, location string, also source.Globs) (source.Plan, error) {
	p, err := openFolder(strings.TrimPrefix(location, "file://"))
	if err != nil {
		return source.Plan{}, withLocation(location, "", err)
	}
	defer p.root.Close()
	l := listing{openedFolder: p, location: location, folder: s.Folder(location), also: also}
	if p.only == nil {
		err = l.list(ctx, p.sub, "", nil)
		return l.plan, err
	}
	for _, name := range p.only {
		_, fi, err := p.find(path.Join(p.sub, name))
		if source.KindOf(err) == source.Changed {
			err = &source.Error{Kind: source.Missing, Detail: "is not there, and the names beside it count it", Fix: "copy it beside the others"}
		}
		if err != nil {
			return source.Plan{}, withLocation(location, name, err)
		}
		l.addFile(name, fi)
	}
	return l.plan, nil
}

type listing struct {
	openedFolder
	location string
	folder   string
	also     source.Globs
	plan     source.Plan
	count    int
}

// list adds what is in the folder at a path below the root, under the names below name.
// above are the folders that it is in: a link to one of them would never end.
func (l *listing) list(ctx context.Context, at, name string, above []fs.FileInfo) error {
	self, err := l.root.Stat(at)
	if err == nil && slices.ContainsFunc(above, func(fi fs.FileInfo) bool { return os.SameFile(fi, self) }) {
		return nil
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = fs.ReadDir(l.root.FS(), at)
	}
	if errors.Is(err, fs.ErrPermission) && name != "" { // such as lost+found of a volume
		l.plan.Left = append(l.plan.Left, source.LeftOut{Name: name, Reason: "is a folder that may not be read"})
		return nil
	}
	if err != nil {
		return withLocation(l.location, name, &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err})
	}
	above = append(slices.Clip(above), self)
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if l.count++; l.count > maxEntries {
			return withLocation(l.location, "", source.Fail(source.Refused, fmt.Sprintf("holds more than %d files", maxEntries),
				"point source at the model's own folder"))
		}
		if err := l.add(ctx, path.Join(at, e.Name()), path.Join(name, e.Name()), e, above); err != nil {
			return err
		}
	}
	return nil
}

func (l *listing) add(ctx context.Context, at, name string, e fs.DirEntry, above []fs.FileInfo) error {
	hidden := strings.HasPrefix(e.Name(), ".")
	switch {
	case name == ".cache" && e.IsDir(): // huggingface_hub downloads below it
		unfinished, _ := fs.Glob(l.root.FS(), at+"/huggingface/download/*.incomplete") // of a pattern that is valid
		for _, u := range unfinished {
			l.plan.Left = append(l.plan.Left,
				source.LeftOut{Name: name + strings.TrimPrefix(u, at), Reason: "is of a download that has not finished"})
		}
		return nil
	case hidden && e.IsDir():
		return nil
	case e.IsDir() && !utf8.ValidString(name): // which fs.FS does not read
		l.plan.Left = append(l.plan.Left, source.LeftOut{Name: name, Reason: "is a folder whose name is not UTF-8"})
		return nil
	case e.IsDir():
		return l.list(ctx, at, name, above)
	}
	to, fi, err := l.find(at)
	switch {
	case err == nil && fi.IsDir() && hidden:
		return nil
	case err == nil && fi.IsDir():
		return l.list(ctx, to, name, above)
	case err == nil:
		l.addFile(name, fi)
		return nil
	case !l.also.Includes(name):
		return nil // only what would be used has to be sound
	case l.also.Needs(name):
		return withLocation(l.location, name, err)
	}
	reason := "cannot be read"
	if e, ok := errors.AsType[*source.Error](err); ok {
		reason = e.Detail
	}
	l.plan.Left = append(l.plan.Left, source.LeftOut{Name: name, Reason: reason})
	return nil
}

func (l *listing) addFile(name string, fi fs.FileInfo) {
	l.plan.Files = append(l.plan.Files,
		source.File{Name: name, Size: fi.Size(), Version: version(fi), Ref: filepath.Join(l.folder, filepath.FromSlash(name))})
}

const copyLinks = "copy the folder with cp -aL, which copies what links lead to"

// find follows links and returns the path below the root of what a name stands for. It is a
// plain file or a folder, inside of the folder, or a blob of the same repository of the hub.
// A link that is swapped afterwards does not lead out of the root: what was found is opened
// below it.
func (f openedFolder) find(at string) (string, fs.FileInfo, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(f.top, filepath.FromSlash(at)))
	if err != nil {
		if fi, lerr := f.root.Lstat(at); lerr == nil && fi.Mode()&fs.ModeSymlink != 0 && errors.Is(err, fs.ErrNotExist) {
			if f.hub {
				return "", nil, source.Fail(source.Missing, fmt.Sprintf("links to %q, a blob that is not in the cache: the download was not "+
					"finished", f.target(at)), "download it again, such as by hf download ORG/REPO")
			}
			detail := fmt.Sprintf("is a link to %q, which is not there", f.target(at))
			if p, ok := errors.AsType[*fs.PathError](err); ok {
				detail += fmt.Sprintf(": there is no %q", p.Path)
			}
			return "", nil, source.Fail(source.Missing, detail, copyLinks)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil, &source.Error{Kind: source.Changed, Detail: "is gone since it was listed"}
		}
		if errors.Unwrap(err) == nil { // what filepath says of a loop
			return "", nil, source.Fail(source.Broken, "is a link that leads back to itself", copyLinks)
		}
		return "", nil, &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: errors.Unwrap(err)}
	}
	to, err := filepath.Rel(f.top, real)
	to = filepath.ToSlash(to)
	inside := err == nil && filepath.IsLocal(to) &&
		(f.sub == "." || to == f.sub || strings.HasPrefix(to, f.sub+"/") || f.hub && path.Dir(to) == "blobs")
	if !inside {
		return "", nil, &source.Error{Kind: source.Refused, Fix: copyLinks,
			Detail: fmt.Sprintf("is a link that leads out of the folder, to %q", functions.Clip(real))}
	}
	fi, err := f.root.Lstat(to)
	switch {
	case err != nil:
		return "", nil, &source.Error{Kind: source.Broken, Detail: "cannot be read", Err: err}
	case !fi.Mode().IsRegular() && (!fi.IsDir() || path.Dir(to) == "blobs"):
		return "", nil, &source.Error{Kind: source.Refused, Detail: "is not a plain file", Fix: "put the file itself there"}
	}
	return to, fi, nil
}

// target is what a link says.
func (f openedFolder) target(at string) string {
	to, _ := f.root.Readlink(at) // it was one when it was looked at
	return functions.Clip(to)
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
	full, _, err := p.find(path.Join(p.sub, file.Name))
	if err != nil {
		return nil, withLocation(folder, file.Name, err)
	}
	// A pipe that was put in its place meanwhile is opened without waiting for
	// another process to write, and refused below.
	f, err := p.root.OpenFile(full, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, withLocation(folder, file.Name, unreadable("cannot be opened", errors.Unwrap(err)))
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || version(fi) != file.Version {
		f.Close()
		return nil, withLocation(folder, file.Name, &source.Error{Kind: source.Changed, Detail: "changed since it was listed"})
	}
	return f, nil
}

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

// unreadable is the error of a folder or a file that cannot be opened.
func unreadable(detail string, err error) *source.Error {
	if errors.Is(err, fs.ErrPermission) {
		return &source.Error{Kind: source.Denied, Detail: detail, Err: err,
			Fix: "let the user that runs thaw read it, such as by chmod -R a+rX FOLDER"}
	}
	return &source.Error{Kind: source.Broken, Detail: detail, Err: err}
}
