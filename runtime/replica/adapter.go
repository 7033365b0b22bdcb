package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

const (
	AdapterNotFound    = "adapter_not_found"   // the model or its source has no such adapter: 404
	AdapterInvalid     = "adapter_invalid"     // the files are not an adapter of this model: 400
	AdapterUnavailable = "adapter_unavailable" // the replica is not ready, or loading failed: 503
)

// adapterEngine is an engine that loads adapters; *engine.Client is one.
type adapterEngine interface {
	LoadAdapter(ctx context.Context, name, path string) error
	UnloadAdapter(ctx context.Context, name string) error
}

// adapterSet has the adapters of one replica. Its methods may be called from any goroutine.
type adapterSet struct {
	assigned *Assignment
	stager   Stager
	linkDir  string // Options.AdapterDir
	changed  func() // an adapter was loaded or failed
	log      *slog.Logger

	mu         sync.Mutex
	replicaCtx context.Context // of the replica; nil before Run
	eng        adapterEngine   // while READY
	loaded     []string        // least recently used first
	leases     map[string]func()
	busy       map[string]chan struct{} // closed when that load has ended
	notes      map[string]string        // warnings about adapters, by name
	loads      sync.WaitGroup
}

func (s *adapterSet) start(replicaCtx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicaCtx = replicaCtx
	s.leases, s.busy, s.notes = map[string]func(){}, map[string]chan struct{}{}, map[string]string{}
}

// setEngine sets the engine to load adapters into; nil for none.
func (s *adapterSet) setEngine(e adapterEngine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eng = e
}

// releaseAll waits for the loads in progress, whose context has ended, and releases
// every adapter.
func (s *adapterSet) releaseAll() {
	s.loads.Wait()
	s.release()
}

func (s *adapterSet) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, release := range s.leases {
		release()
	}
	clear(s.leases)
	s.loaded = nil
}

// list returns the loaded adapters and the warnings about adapters by name, nil for none.
func (s *adapterSet) list() (names []string, notes map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.notes) > 0 {
		notes = maps.Clone(s.notes)
	}
	names = slices.Clone(s.loaded)
	slices.Sort(names)
	return names, notes
}

// unloadAll unloads the adapters whose weights the engine has dropped; they are loaded again
// on demand.
func (s *adapterSet) unloadAll(ctx context.Context, eng adapterEngine) {
	names, _ := s.list()
	for _, name := range names {
		if err := eng.UnloadAdapter(ctx, name); err != nil {
			s.log.Warn("adapter not unloaded after a deep sleep", "adapter", name, "error", err)
		}
	}
	s.release()
}

// load is LoadAdapter of the replica.
func (s *adapterSet) load(ctx context.Context, name string) error {
	i := slices.IndexFunc(s.assigned.Spec.Adapters, func(a functions.Adapter) bool { return a.Name == name })
	if i < 0 {
		return &functions.AdapterError{Code: AdapterNotFound, Message: fmt.Sprintf("model %s has no adapter %q", s.assigned.Model, name)}
	}
	e := s.assigned.Spec.Engine
	if can, _ := engine.Supports(e); !can {
		return &functions.AdapterError{Code: AdapterInvalid, Message: fmt.Sprintf("adapter %s: engine %s loads no adapters while it "+
			"runs: vllm and ember do; llamacpp takes args: [--lora, FILE]", name, e)}
	}
	for {
		s.mu.Lock()
		if j := slices.Index(s.loaded, name); j >= 0 {
			s.loaded = append(slices.Delete(s.loaded, j, j+1), name)
			s.mu.Unlock()
			return nil
		}
		eng, replicaCtx := s.eng, s.replicaCtx
		if eng == nil {
			s.mu.Unlock()
			return &functions.AdapterError{Code: AdapterUnavailable, Message: fmt.Sprintf("adapter %s: the replica is not ready", name)}
		}
		other := s.busy[name]
		if other == nil {
			done := make(chan struct{})
			s.busy[name] = done
			s.loads.Add(1)
			s.mu.Unlock()
			err := s.loadOne(ctx, replicaCtx, eng, s.assigned.Spec.Adapters[i])
			s.mu.Lock()
			delete(s.busy, name)
			s.mu.Unlock()
			close(done)
			s.loads.Done()
			s.changed()
			return err
		}
		s.mu.Unlock()
		select {
		case <-other: // check again: that load may have failed with its caller
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// loadOne stages, validates and loads one adapter.
func (s *adapterSet) loadOne(ctx, replicaCtx context.Context, eng adapterEngine, a functions.Adapter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(replicaCtx, func() { cancel(errors.New("the replica has ended")) })()
	fail := func(code string, err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return &functions.AdapterError{Code: code, Message: fmt.Sprintf("adapter %s: %v", a.Name, err)}
	}
	limit := s.assigned.Spec.Deadlines.Stage
	sctx, stop := context.WithTimeoutCause(ctx, limit.Std(), fmt.Errorf("not staged within %s (deadlines.stage)", limit))
	defer stop()
	c, err := s.stager.Stage(sctx, StageRequest{Source: a.Source, Dir: s.assigned.Dir, Files: a.Files}, func(_, _ functions.Bytes) {})
	if err != nil {
		return fail(AdapterUnavailable, fmt.Errorf("stage: %w", err))
	}
	release, loaded := c.Release, false
	if release == nil {
		release = func() {}
	}
	defer func() {
		if !loaded {
			release()
		}
	}()
	note, err := inspectAdapter(c.Path, a.Rank, engine.MaxRank(s.assigned.Spec))
	if err != nil {
		return fail(AdapterInvalid, err)
	}
	if note != "" {
		s.log.Warn("adapter", "adapter", a.Name, "note", note)
	}
	if err := s.freeSlot(ctx, eng); err != nil {
		return fail(AdapterUnavailable, err)
	}
	path := c.Path
	if s.linkDir != "" {
		if path, err = linkFolder(c.Path, filepath.Join(s.linkDir, a.Name)); err != nil {
			return fail(AdapterUnavailable, err)
		}
	}
	if err := eng.LoadAdapter(ctx, a.Name, path); err != nil {
		if se, ok := errors.AsType[*engine.StatusError](err); !ok || se.Status != http.StatusBadRequest || !engine.AdapterLoaded(se) {
			return fail(adapterErrorCode(err), err)
		}
	}
	loaded = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = append(s.loaded, a.Name)
	s.leases[a.Name] = release
	if note != "" {
		s.notes[a.Name] = note
	}
	return nil
}

func adapterErrorCode(err error) string {
	if se, ok := errors.AsType[*engine.StatusError](err); ok {
		switch se.Status {
		case http.StatusNotFound:
			return AdapterNotFound
		case http.StatusBadRequest, http.StatusInternalServerError, http.StatusUnprocessableEntity:
			// vLLM answers 500 if a rank is too large or modules do not fit.
			return AdapterInvalid
		}
	}
	return AdapterUnavailable
}

// freeSlot unloads the least recently used adapters until a slot is free. One that the
// engine does not unload stays in the list.
func (s *adapterSet) freeSlot(ctx context.Context, eng adapterEngine) error {
	for {
		s.mu.Lock()
		if len(s.loaded) < engine.AdapterSlots(s.assigned.Spec) {
			s.mu.Unlock()
			return nil
		}
		old := s.loaded[0]
		s.loaded = s.loaded[1:]
		release := s.leases[old]
		delete(s.leases, old)
		s.mu.Unlock()
		err := eng.UnloadAdapter(ctx, old)
		if se, ok := errors.AsType[*engine.StatusError](err); err == nil || ok && se.Status == http.StatusNotFound {
			release()
			continue
		}
		s.mu.Lock()
		if s.eng == eng && !slices.Contains(s.loaded, old) { // for all that is known it is still there
			s.loaded, s.leases[old], release = slices.Insert(s.loaded, 0, old), release, func() {}
		}
		s.mu.Unlock()
		release()
		return fmt.Errorf("no free slot: unload %s: %w", old, err)
	}
}

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
