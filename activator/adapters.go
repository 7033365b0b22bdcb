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

// adapterLoad returns what loads the adapter at r before the request is sent; nil
// where nothing must be loaded.
func (p *proxyRequest) adapterLoad(r *snapshot.Replica) func(context.Context) error {
	adapters := p.a.o.Adapters
	if p.req.adapter == "" || adapters == nil {
		return nil
	}
	name := p.req.fn.Name
	name.Adapter = p.req.adapter
	if slices.Contains(r.Adapters, p.req.adapter) && !p.attempt.adapterRetried {
		if p.req.fn.Data.uses.Due(r.ID, p.req.adapter, p.a.o.Now()) {
			adapters.UseAdapter(name, r.ID)
		}
		return nil
	}
	// Loading an adapter is bounded by the same deadline as waiting in the queue.
	until := p.wait.deadline
	if until.IsZero() {
		p.wait.timeouts = admission.ParseTimeouts(p.req.source.header, p.req.stream)
		until = p.waitDeadline()
	}
	p.attempt.loadingAdapter.Store(true)
	return func(ctx context.Context) error {
		defer p.attempt.loadingAdapter.Store(false)
		ctx, cancel := context.WithDeadlineCause(ctx, until, errAdapterLate)
		defer cancel()
		err := adapters.LoadAdapter(ctx, name, r.ID)
		if err != nil && context.Cause(ctx) == errAdapterLate {
			err = errAdapterLate
		}
		return err
	}
}

var errAdapterLate = errors.New("the adapter was not loaded within the request's time")

// adapterFailure is the answer to a request whose adapter cannot be loaded; nil where
// another replica may load it.
func (p *proxyRequest) adapterFailure(err error) *openai.Error {
	if errors.Is(err, errAdapterLate) {
		return openai.New(openai.ModelLoading, "The adapter `"+p.req.adapter+"` is not loaded yet.")
	}
	var e *functions.AdapterError
	if !errors.As(err, &e) {
		return nil
	}
	code := openai.Code(e.Code)
	switch code {
	case openai.AdapterNotFound, openai.AdapterInvalid:
	default:
		if !p.queued.Retried {
			return nil
		}
		code = openai.AdapterUnavailable
	}
	return openai.New(code, "The adapter `"+p.req.adapter+"` cannot be used: "+e.Message)
}
