package huggingface

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// View is a folder in the layout of huggingface_hub's cache (HF_HOME), over
// checkpoints elsewhere on the same machine. Its links hold no bytes: an evicted
// checkpoint disappears from it, at the latest at the next Sync. Its methods are safe
// for concurrent use.
type View struct {
	dir string
	// source reports the commit that a location resolved to; nil if unknown.
	source interface {
		Planned(location string) (commit string, objects map[string]string)
	}
	mu sync.Mutex // one Sync at a time
}

// Checkpoint is a published checkpoint.
type Checkpoint struct {
	Source string   // hf://…; others are skipped
	Path   string   // the folder with its files under their own names
	Files  []string // their names
}

// NewView returns the view at dir, an HF_HOME. from is the source that planned the
// checkpoints; nil shows only what an earlier view left. Nothing is made before the
// first Sync with a checkpoint.
func NewView(dir string, from *Source) *View {
	v := &View{dir: dir}
	if from != nil {
		v.source = from
	}
	return v
}

// Sync makes the view show exactly these checkpoints. One of a repository's folder, or
// of a single file, is not shown: the cache has whole commits only.
func (v *View) Sync(all []Checkpoint) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var first error
	for _, c := range all {
		p, err := parse(c.Source)
		if err != nil || p.sub != "" || v.source == nil {
			continue
		}
		commit, objects := v.source.Planned(c.Source)
		if commit == "" {
			continue // planned by an earlier process, which showed it
		}
		if err := v.showCheckpoint(p, commit, objects, c); err != nil && first == nil {
			first = err
		}
	}
	if err := v.prune(); err != nil && first == nil {
		first = err
	}
	return first
}

func (v *View) repoFolder(p repoLocation) string {
	return filepath.Join(v.dir, "hub", "models--"+p.org+"--"+p.repo)
}

// showCheckpoint makes blobs, a snapshot and the revision that names it, in that
// order: a concurrent reader finds nothing or all.
func (v *View) showCheckpoint(p repoLocation, commit string, objects map[string]string, c Checkpoint) error {
	repo := v.repoFolder(p)
	snapshot := filepath.Join(repo, "snapshots", commit)
	for _, name := range c.Files {
		object := objects[name]
		if object == "" || strings.Trim(object, "0123456789abcdefABCDEF") != "" {
			return fmt.Errorf("hub: %s of %s is not of the plan", name, p)
		}
		file := filepath.Join(c.Path, filepath.FromSlash(name))
		blob := filepath.Join(repo, "blobs", object)
		if err := relink(file, blob); err != nil {
			return err
		}
		if err := relink(blob, filepath.Join(snapshot, filepath.FromSlash(name))); err != nil {
			return err
		}
	}
	if isCommit(p.rev) {
		return nil
	}
	ref := filepath.Join(repo, "refs", filepath.FromSlash(p.rev))
	if had, err := os.ReadFile(ref); err == nil && string(had) == commit {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(ref), 0o755); err != nil {
		return err
	}
	// Without a newline, as huggingface_hub writes it.
	return replaceFile(ref, func(tmp string) error { return os.WriteFile(tmp, []byte(commit), 0o644) })
}

// relink points link at file, relative, so that the data folder may be mounted
// elsewhere.
func relink(file, link string) error {
	to, err := filepath.Rel(filepath.Dir(link), file)
	if err != nil {
		to = file
	}
	if had, err := os.Readlink(link); err == nil && had == to {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	return replaceFile(link, func(tmp string) error { return os.Symlink(to, tmp) })
}

// replaceFile replaces path with what write makes, atomically.
func replaceFile(path string, write func(tmp string) error) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := write(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// prune removes dangling entries: snapshots that lack a file, revisions without a
// snapshot, blobs without bytes, repositories without snapshots.
func (v *View) prune() error {
	repos, err := os.ReadDir(filepath.Join(v.dir, "hub"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range repos {
		if !strings.HasPrefix(r.Name(), "models--") {
			continue
		}
		repo := filepath.Join(v.dir, "hub", r.Name())
		inUse, err := pruneSnapshots(filepath.Join(repo, "snapshots"))
		if err != nil {
			return err
		}
		if len(inUse) == 0 {
			if err := os.RemoveAll(repo); err != nil {
				return err
			}
			continue
		}
		err = filepath.WalkDir(filepath.Join(repo, "refs"), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return ignoreMissing(err)
			}
			commit, err := os.ReadFile(p)
			if err == nil && !inUse[string(commit)] {
				err = os.Remove(p)
			}
			return err
		})
		if err != nil {
			return err
		}
		blobs, err := os.ReadDir(filepath.Join(repo, "blobs"))
		if ignoreMissing(err) != nil {
			return err
		}
		for _, b := range blobs {
			// Links only: the view makes no files here.
			if at := filepath.Join(repo, "blobs", b.Name()); b.Type()&fs.ModeSymlink != 0 && isDangling(at) {
				if err := os.Remove(at); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func pruneSnapshots(dir string) (inUse map[string]bool, err error) {
	list, err := os.ReadDir(dir)
	if ignoreMissing(err) != nil {
		return nil, err
	}
	inUse = make(map[string]bool)
	for _, s := range list {
		whole := true
		err := filepath.WalkDir(filepath.Join(dir, s.Name()), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&fs.ModeSymlink != 0 && isDangling(p) {
				whole = false
				return fs.SkipAll
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if whole {
			inUse[s.Name()] = true
		} else if err := os.RemoveAll(filepath.Join(dir, s.Name())); err != nil {
			return nil, err
		}
	}
	return inUse, nil
}

func isDangling(link string) bool {
	_, err := os.Stat(link)
	return errors.Is(err, fs.ErrNotExist)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
