package orchestrator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// AdapterLoader is a Node whose replicas load adapters. LoadAdapter returns when
// the replica has it or ctx has ended; a *functions.AdapterError says that it
// cannot be had. Again is cheap, and says that the adapter is in use.
type AdapterLoader interface {
	LoadAdapter(ctx context.Context, req functions.AdapterRequest) error
}

// fetch is an adapter on its way into a replica. Whoever is first asks the
// node; who comes meanwhile waits for the same answer.
type fetch struct{ replica, adapter string }

type fetching struct {
	done chan struct{}
	err  error // set before done is closed
	left bool  // the one who asked left before there was an answer
}

// LoadAdapter has a replica load an adapter of its function (the adapter is the
// name's). It returns when the replica has it, or with ctx.
func (s *Steer) LoadAdapter(ctx context.Context, name functions.Name, replica string) error {
	key := fetch{replica, name.Adapter}
	for {
		s.fetchMu.Lock()
		f, other := s.fetches[key]
		if !other {
			f = &fetching{done: make(chan struct{})}
			put(&s.fetches, key, f)
		}
		s.fetchMu.Unlock()
		if other {
			select {
			case <-f.done:
				if f.left {
					continue
				}
				return f.err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		f.err = s.askAdapter(ctx, replica, name.Adapter)
		f.left = f.err != nil && ctx.Err() != nil
		s.fetchMu.Lock()
		delete(s.fetches, key)
		s.fetchMu.Unlock()
		close(f.done)
		return f.err
	}
}

func (s *Steer) askAdapter(ctx context.Context, replica, adapter string) error {
	to := s.NodeOf(replica)
	if to == nil {
		return fmt.Errorf("replica %s is gone", replica)
	}
	l, ok := to.(AdapterLoader)
	if !ok {
		return &functions.AdapterError{Code: "adapter_unavailable", Message: "the agent of this replica loads no adapters"}
	}
	began := s.clock()
	err := l.LoadAdapter(ctx, functions.AdapterRequest{ID: replica, Epoch: s.epoch, Name: adapter})
	if ctx.Err() == nil {
		s.mu.Lock()
		if r := s.reps[replica]; r != nil && !slices.Contains(r.status.Adapters, adapter) {
			if err != nil {
				s.event("adapter_failed", r.fn.Name, replica, r.node, adapter, err.Error())
			} else {
				s.event("adapter_loaded", r.fn.Name, replica, r.node, adapter, s.clock().Sub(began).Round(time.Millisecond).String())
			}
		}
		s.mu.Unlock()
	}
	return err
}

// UseAdapter says that requests use an adapter of a replica, so that another
// makes way where there is no room for all.
func (s *Steer) UseAdapter(name functions.Name, replica string) {
	s.inboxMu.Lock()
	s.inbox.uses.put(fetch{replica, name.Adapter}, struct{}{})
	s.inboxMu.Unlock()
	s.ring()
}

// ahead loads the adapters that somebody wants before a request does, into every
// replica that is READY; where none is, later.
func (s *Steer) ahead(ctx context.Context) {
	s.wanted.each(func(name functions.Name) {
		f := s.fns[name.Base()]
		if f == nil || f.Gone || f.cold != nil && f.cold.over && len(f.reps) == 0 {
			s.wanted.drop(name)
			return
		}
		for _, r := range f.reps {
			if r.readyAt == 0 || r.stopping {
				continue
			}
			s.wanted.drop(name)
			if slices.Contains(r.status.Adapters, name.Adapter) {
				continue
			}
			s.within(ctx, f.model.Spec.Deadlines.Stage.Std(), func(ctx context.Context) { s.LoadAdapter(ctx, name, r.id) })
		}
	})
}
