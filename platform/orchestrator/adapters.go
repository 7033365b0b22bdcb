package orchestrator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
)

// AdapterLoader is a Node whose replicas load adapters. LoadAdapter returns when the
// replica has the adapter or ctx has ended; a *functions.AdapterError means that it
// cannot be loaded. A repeated call is cheap and marks the adapter as used.
type AdapterLoader interface {
	LoadAdapter(ctx context.Context, req functions.AdapterRequest) error
}

type adapterKey struct{ replica, adapter string }

// adapters loads adapters into replicas.
type adapters struct {
	*world
	commands *commander
	loads    singleflight.Group
	wanted   orderedset.Set[functions.Name] // adapters to load before any request
}

// LoadAdapter makes a replica load the adapter that name includes. It returns when the
// replica has the adapter, or when ctx ends. Concurrent calls share one command.
func (o *Orchestrator) LoadAdapter(ctx context.Context, name functions.Name, replica string) error {
	return o.loop.adapters.load(ctx, name, replica)
}

func (a *adapters) load(ctx context.Context, name functions.Name, replica string) error {
	for {
		load := a.loads.DoChan(replica+"/"+name.Adapter, func() (cancelled any, err error) {
			err = a.request(ctx, replica, name.Adapter)
			return err != nil && ctx.Err() != nil, err
		})
		select {
		case r := <-load:
			if r.Val == true && ctx.Err() == nil {
				continue // the call that sent the command was cancelled
			}
			return r.Err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (a *adapters) request(ctx context.Context, replica, adapter string) error {
	to := a.nodeOf(replica)
	if to == nil {
		return fmt.Errorf("replica %s is gone", replica)
	}
	l, ok := to.(AdapterLoader)
	if !ok {
		return &functions.AdapterError{Code: "adapter_unavailable", Message: "the agent of this replica loads no adapters"}
	}
	began := a.timeNow()
	err := l.LoadAdapter(ctx, functions.AdapterRequest{ID: replica, Epoch: a.commands.epoch, Name: adapter})
	if ctx.Err() == nil {
		a.Lock()
		if r := a.replicas[replica]; r != nil && !slices.Contains(r.status.Adapters, adapter) {
			if err != nil {
				a.event("adapter_failed", r.function.Name, replica, r.Node, adapter, err.Error())
			} else {
				a.event("adapter_loaded", r.function.Name, replica, r.Node, adapter, a.timeNow().Sub(began).Round(time.Millisecond).String())
			}
		}
		a.Unlock()
	}
	return err
}

// loadWanted loads the adapters named to WakeFor into every READY replica, once
// there is one.
func (a *adapters) loadWanted(ctx context.Context) {
	a.wanted.Each(func(name functions.Name) {
		f := a.functions[name.WithoutAdapter()]
		if f == nil || f.Gone || f.coldStart != nil && f.coldStart.Over && len(f.replicas) == 0 {
			a.wanted.Drop(name)
			return
		}
		for _, r := range f.replicas {
			if r.ReadyAt == 0 || r.Stopping {
				continue
			}
			a.wanted.Drop(name)
			if slices.Contains(r.status.Adapters, name.Adapter) {
				continue
			}
			a.commands.runWithin(ctx, f.model.Spec.Deadlines.Stage.Std(), func(ctx context.Context) { a.load(ctx, name, r.ID) })
		}
	})
}

// nodeOf returns the Node of a replica; nil for an unknown replica.
func (a *adapters) nodeOf(replica string) Node {
	a.Lock()
	defer a.Unlock()
	if r := a.replicas[replica]; r != nil {
		if n := a.nodes[r.Node]; n != nil {
			return n.commands
		}
	}
	return nil
}
