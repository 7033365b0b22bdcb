package sizer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/loader/durable"
)

const (
	atOnce     = 4           // sources that are read at once for a Folder
	retryPause = time.Minute // until what could not be worked out is tried again
)

// Folder fills in the resources of models whose files are the user's own and are never written.
// It works them out in the background, one source not waiting for another, and keeps them in a
// file of its own, so that after a restart models have the resources of their running replicas.
// Its methods may be called concurrently.
type Folder struct {
	path string
	wake newest.Signal // set when a model may be due

	mu     sync.Mutex
	wanted map[string]*wanted // by the model's name
	kept   map[string]kept
}

// wanted is a model whose file leaves its resources out.
type wanted struct {
	model  functions.Model // as its file says it
	digest string
	state  string // "" it is due, "running" or "failed"
	text   string // that was reported last
}

// kept is what was worked out for a model; Digest is of what it was worked out from.
type kept struct {
	Digest    string              `json:"digest"`
	Resources functions.Resources `json:"resources"`
}

// OpenFolder reads what was worked out earlier from the file at path.
func OpenFolder(path string) (*Folder, error) {
	f := &Folder{path: path, wake: newest.NewSignal(), wanted: map[string]*wanted{}, kept: map[string]kept{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &f.kept)
	}
	if err != nil {
		return nil, fmt.Errorf("the resources that were worked out cannot be read from %s: %w; remove the file to have them worked out again",
			path, err)
	}
	return f, nil
}

// Complete gives a model that was just read from its file the resources that are known of it, if
// the file leaves them out. Until new ones are worked out those are what was known before.
func (f *Folder) Complete(m *functions.Model) {
	name := m.FullName().String()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !LeavesOut(&m.Spec) {
		delete(f.wanted, name)
		return
	}
	w := &wanted{model: *m, digest: digestOf(&m.Spec)}
	if before := f.wanted[name]; before != nil && before.digest == w.digest {
		w = before
	}
	f.wanted[name] = w
	m.Spec.Resources = f.kept[name].Resources
	f.wake.Set()
}

// digestOf identifies what resources are worked out from.
func digestOf(s *functions.ModelSpec) string {
	b, err := json.Marshal([]any{s.Source, s.Files, s.Exclude, s.Weights, s.Engine, s.Args, s.Adapters, s.Scale.Target})
	if err != nil {
		panic(err) // texts and numbers
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// FolderEvents are called from several goroutines.
type FolderEvents struct {
	// Report is given how the resources of a model came about, or, with known false, why they
	// are not known.
	Report func(name functions.Name, text string, known bool)
	// Reread is to have the file of the model read again.
	Reread func(name functions.Name)
}

// Run works resources out until ctx ends.
func (f *Folder) Run(ctx context.Context, s Sizer, on FolderEvents) error {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, atOnce)
	retry := time.NewTicker(retryPause)
	defer retry.Stop()
	again := false
	for {
		for _, w := range f.due(again) {
			running.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				resources, text := s.Size(ctx, &w.model)
				if ctx.Err() == nil {
					f.finish(w, resources, text, on)
				}
			})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.wake:
			again = false
		case <-retry.C:
			again = true
		}
	}
}

// due returns the models whose resources are to be worked out now; again has those that failed
// among them.
func (f *Folder) due(again bool) (list []*wanted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, w := range f.wanted {
		if f.kept[name].Digest != w.digest && (w.state == "" || again && w.state == "failed") {
			w.state = "running"
			list = append(list, w)
		}
	}
	return list
}

// finish keeps what was worked out for a model, and reports it if it is news.
func (f *Folder) finish(w *wanted, resources functions.Resources, text string, on FolderEvents) {
	full := w.model.FullName()
	known := resources != functions.Resources{}
	f.mu.Lock()
	current := f.wanted[full.String()] == w
	news := current && w.text != text
	w.text, w.state = text, "failed"
	var err error
	if known && current {
		f.kept[full.String()] = kept{w.digest, resources}
		w.state = ""
		err = f.write()
	}
	f.mu.Unlock()
	if err != nil {
		text += fmt.Sprintf("; it is worked out again after a restart: %v", err)
	}
	if news {
		on.Report(full, text, known)
	}
	if known && current {
		on.Reread(full)
	}
}

// write writes the file, without models whose files are gone or have their own resources. mu is
// held.
func (f *Folder) write() error {
	maps.DeleteFunc(f.kept, func(name string, _ kept) bool { return f.wanted[name] == nil })
	b, err := json.Marshal(f.kept)
	if err != nil {
		return err
	}
	return durable.WriteFile(f.path, append(b, '\n'), 0o600)
}
