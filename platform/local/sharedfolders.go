package local

import (
	"slices"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// sharedFolders lists the folders of this machine that other nodes may stage: the sources
// of the catalog's models and their adapters. The catalog is read again after a change.
type sharedFolders struct {
	catalog orchestrator.Catalog

	mu     sync.Mutex // guards known
	cached map[string][]string
}

// folder reports whether a folder is shared, and which files beside the listed ones are
// part of it.
func (f *sharedFolders) folder(path string) (files []string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cached == nil {
		f.cached = sharedFoldersOf(f.catalog.Models())
	}
	files, ok = f.cached[path]
	return files, ok
}

// invalidate makes the next call read the catalog again.
func (f *sharedFolders) invalidate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cached = nil
}

// sharedFoldersOf lists the folders of models and adapters, with the union of the files
// that those with the same folder need.
func sharedFoldersOf(models []*functions.Model) map[string][]string {
	out := make(map[string][]string)
	add := func(m *functions.Model, src string, files []string) {
		if folder, ok, err := loader.Local(src, m.Dir); src != "" && ok && err == nil {
			all := append(out[folder], files...)
			slices.Sort(all)
			out[folder] = slices.Compact(all)
		}
	}
	for _, m := range models {
		add(m, m.Spec.Source, m.Spec.StagedFiles())
		for _, a := range m.Spec.Adapters {
			add(m, a.Source, a.Files)
		}
	}
	return out
}

// normalizeBorrowed rewrites an agent's peer sources of this machine's folders to the
// sources in model files.
func (l *Local) normalizeBorrowed(hb *functions.Heartbeat) {
	hb.Borrows = hb.Borrows && l.node.PeerURL() != "" && hb.Machine != l.machine
	hb.Cached = slices.Clone(hb.Cached)
	for i := range hb.Cached {
		if node, folder, ok := loader.ParsePeerLocation(hb.Cached[i].Source); ok && node == l.node.ID() {
			hb.Cached[i].Source = "file://" + folder
		}
	}
}
