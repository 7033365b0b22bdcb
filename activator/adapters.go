package activator

import (
	"context"
	"errors"
	"slices"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// adapterLoad returns what loads the adapter at a replica before the request is sent; nil
// where nothing must be loaded.
func (a *attempt) adapterLoad(replica *snapshot.Replica) func(context.Context) error {
	r, adapters := a.req, a.req.a.o.Adapters
	if r.adapter == "" || adapters == nil {
		return nil
	}
	name, id := r.fn.Name, replica.ID
	name.Adapter = r.adapter
	if slices.Contains(replica.Adapters, r.adapter) && !a.adapterRetried {
		if r.fn.Data.uses.Due(id, r.adapter, r.a.o.Now()) {
			adapters.UseAdapter(name, id)
		}
		return nil
	}
	// Loading an adapter is bounded by the same deadline as waiting in the queue.
	until := a.wait.deadline
	if until.IsZero() {
		a.wait.timeouts = admission.ParseTimeouts(r.source.header, r.stream)
		until = a.wait.bound()
	}
	a.loadingAdapter.Store(true)
	return func(ctx context.Context) error {
		defer a.loadingAdapter.Store(false)
		ctx, cancel := context.WithDeadlineCause(ctx, until, errAdapterLate)
		defer cancel()
		err := adapters.LoadAdapter(ctx, name, id)
		if err != nil && context.Cause(ctx) == errAdapterLate {
			err = errAdapterLate
		}
		return err
	}
}

var errAdapterLate = errors.New("the adapter was not loaded within the request's time")

// adapterFailure is the answer to a request whose adapter cannot be loaded; nil where
// another replica may load it.
func (a *attempt) adapterFailure(err error) *openai.Error {
	if errors.Is(err, errAdapterLate) {
		return openai.New(openai.ModelLoading, "The adapter `"+a.req.adapter+"` is not loaded yet.")
	}
	var e *functions.AdapterError
	if !errors.As(err, &e) {
		return nil
	}
	code := openai.Code(e.Code)
	if code != openai.AdapterNotFound && code != openai.AdapterInvalid {
		if !a.wait.queued.Retried {
			return nil
		}
		code = openai.AdapterUnavailable
	}
	return openai.New(code, "The adapter `"+a.req.adapter+"` cannot be used: "+e.Message)
}
