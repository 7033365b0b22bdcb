package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
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

// AdapterError is why an adapter was not loaded.
type AdapterError struct {
	Code    string
	Message string
	Err     error // may be nil
}

func (e *AdapterError) Error() string { return e.Message }
func (e *AdapterError) Unwrap() error { return e.Err }

// adapterEngine is an engine that loads adapters; *engine.Client is one.
type adapterEngine interface {
	LoadAdapter(ctx context.Context, name, path string) error
	UnloadAdapter(ctx context.Context, name string) error
}

// adapterSet is the state of one replica's adapters. It has a mutex of its own, since
// adapters are loaded from the callers' goroutines.
type adapterSet struct {
	mu         sync.Mutex
	replicaCtx context.Context // of the replica; nil outside of Run
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
	s.mu.Lock()
	s.replicaCtx, s.eng = nil, nil
	s.mu.Unlock()
	s.loads.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, release := range s.leases {
		release()
	}
	s.leases, s.loaded = nil, nil
}

func (s *adapterSet) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.loaded)
	slices.Sort(out)
	return out
}

// noteMap returns the warnings about adapters by name, nil for none.
func (s *adapterSet) noteMap() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.notes) == 0 {
		return nil
	}
	return maps.Clone(s.notes)
}

// unloadedAll records that the engine has dropped its adapters.
func (s *adapterSet) unloadedAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, release := range s.leases {
		release()
	}
	clear(s.leases)
	s.loaded = nil
}

// LoadAdapter stages, validates and loads one of the model's adapters. For a loaded
// one it only records the use: the least recently used adapter is unloaded when all
// slots are taken. The replica must be READY. Errors are *AdapterError or ctx's cause.
func (r *Replica) LoadAdapter(ctx context.Context, name string) error {
	i := slices.IndexFunc(r.o.Spec.Adapters, func(a functions.Adapter) bool { return a.Name == name })
	if i < 0 {
		return &AdapterError{Code: AdapterNotFound, Message: fmt.Sprintf("model %s has no adapter %q", r.o.Model, name)}
	}
	if can, _ := engine.Supports(r.o.Spec.Engine); !can {
		return &AdapterError{Code: AdapterInvalid, Message: fmt.Sprintf("adapter %s: engine %s loads no adapters", name, r.o.Spec.Engine)}
	}
	s := &r.adapters
	for {
		s.mu.Lock()
		if j := slices.Index(s.loaded, name); j >= 0 {
			s.loaded = append(slices.Delete(s.loaded, j, j+1), name)
			s.mu.Unlock()
			return nil
		}
		eng, replicaCtx := s.eng, s.replicaCtx
		if eng == nil || replicaCtx == nil {
			s.mu.Unlock()
			return &AdapterError{Code: AdapterUnavailable, Message: fmt.Sprintf("adapter %s: the replica is not ready", name)}
		}
		other := s.busy[name]
		if other == nil {
			done := make(chan struct{})
			s.busy[name] = done
			s.loads.Add(1)
			s.mu.Unlock()
			err := r.loadAdapter(ctx, replicaCtx, eng, r.o.Spec.Adapters[i])
			s.mu.Lock()
			delete(s.busy, name)
			s.mu.Unlock()
			close(done)
			s.loads.Done()
			r.command(func(c *commands) { c.changed = true })
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

// loadAdapter stages, validates and loads one adapter.
func (r *Replica) loadAdapter(ctx, replicaCtx context.Context, eng adapterEngine, a functions.Adapter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(replicaCtx, func() { cancel(errors.New("the replica has ended")) })()
	fail := func(code string, err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return &AdapterError{Code: code, Message: fmt.Sprintf("adapter %s: %v", a.Name, err), Err: err}
	}
	sctx, stop := context.WithTimeoutCause(ctx, r.o.Spec.Deadlines.Stage.Std(), fmt.Errorf("not staged within %s", r.o.Spec.Deadlines.Stage))
	defer stop()
	c, err := r.o.Stager.Stage(sctx, StageRequest{Source: a.Source, Dir: r.o.Dir, Files: a.Files}, func(_, _ functions.Bytes) {})
	if err != nil {
		return fail(AdapterUnavailable, fmt.Errorf("stage: %w", err))
	}
	release := c.Release
	if release == nil {
		release = func() {}
	}
	note, err := inspectAdapter(c.Path, a.Rank, engine.MaxRank(r.o.Spec))
	if err != nil {
		release()
		return fail(AdapterInvalid, err)
	}
	if note != "" {
		r.log.Warn("adapter", "adapter", a.Name, "note", note)
	}
	if err := r.freeAdapterSlot(ctx, eng); err != nil {
		release()
		return fail(AdapterUnavailable, err)
	}
	path := c.Path
	if r.o.AdapterDir != "" {
		if path, err = linkFolder(c.Path, filepath.Join(r.o.AdapterDir, a.Name)); err != nil {
			release()
			return fail(AdapterUnavailable, err)
		}
	}
	if err := eng.LoadAdapter(ctx, a.Name, path); err != nil {
		if se, ok := errors.AsType[*engine.StatusError](err); !ok || se.Status != http.StatusBadRequest || !engine.AdapterLoaded(se) {
			release()
			return fail(adapterErrorCode(err), err)
		}
	}
	s := &r.adapters
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

// freeAdapterSlot unloads the least recently used adapters until a slot is free. One that the
// engine does not unload stays in the list.
func (r *Replica) freeAdapterSlot(ctx context.Context, eng adapterEngine) error {
	s := &r.adapters
	for {
		s.mu.Lock()
		if len(s.loaded) < engine.AdapterSlots(r.o.Spec) {
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
