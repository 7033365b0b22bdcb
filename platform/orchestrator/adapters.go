package orchestrator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// AdapterLoader is a Node whose replicas load adapters. LoadAdapter returns when the
// replica has the adapter or ctx has ended; a *functions.AdapterError means that it
// cannot be loaded. A repeated call is cheap and marks the adapter as used.
type AdapterLoader interface {
	LoadAdapter(ctx context.Context, req functions.AdapterRequest) error
}

// adapterKey identifies an adapter of a replica.
type adapterKey struct{ replica, adapter string }

// LoadAdapter makes a replica load the adapter that name includes. It returns when the
// replica has the adapter, or when ctx ends. Concurrent calls share one command.
func (o *Orchestrator) LoadAdapter(ctx context.Context, name functions.Name, replica string) error {
	for {
		load := o.adapterLoads.DoChan(replica+"/"+name.Adapter, func() (cancelled any, err error) {
			err = o.requestAdapter(ctx, replica, name.Adapter)
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

func (o *Orchestrator) requestAdapter(ctx context.Context, replica, adapter string) error {
	to := o.NodeOf(replica)
	if to == nil {
		return fmt.Errorf("replica %s is gone", replica)
	}
	l, ok := to.(AdapterLoader)
	if !ok {
		return &functions.AdapterError{Code: "adapter_unavailable", Message: "the agent of this replica loads no adapters"}
	}
	began := o.timeNow()
	err := l.LoadAdapter(ctx, functions.AdapterRequest{ID: replica, Epoch: o.commands.epoch, Name: adapter})
	if ctx.Err() == nil {
		o.mu.Lock()
		if r := o.replicas[replica]; r != nil && !slices.Contains(r.status.Adapters, adapter) {
			if err != nil {
				o.event("adapter_failed", r.function.Name, replica, r.node, adapter, err.Error())
			} else {
				o.event("adapter_loaded", r.function.Name, replica, r.node, adapter, o.timeNow().Sub(began).Round(time.Millisecond).String())
			}
		}
		o.mu.Unlock()
	}
	return err
}

// loadWantedAdapters loads the adapters named to WakeFor into every READY replica, once
// there is one.
func (o *Orchestrator) loadWantedAdapters(ctx context.Context) {
	o.wantedAdapters.Each(func(name functions.Name) {
		f := o.functions[name.WithoutAdapter()]
		if f == nil || f.Gone || f.coldStart != nil && f.coldStart.over && len(f.replicas) == 0 {
			o.wantedAdapters.Drop(name)
			return
		}
		for _, r := range f.replicas {
			if r.readyAt == 0 || r.stopping {
				continue
			}
			o.wantedAdapters.Drop(name)
			if slices.Contains(r.status.Adapters, name.Adapter) {
				continue
			}
			o.commands.runWithin(ctx, f.model.Spec.Deadlines.Stage.Std(), func(ctx context.Context) { o.LoadAdapter(ctx, name, r.id) })
		}
	})
}
