package main

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/door"
	"github.com/thaw-dev/thaw/platform/link"
)

// front is where requests come in: the API, by the name of a model.
type front struct {
	data    *activator.Activator
	servers [2]door.Server // public and private
}

func newFront(data *activator.Activator, _ *link.Activator, most int64, log *slog.Logger) *front {
	f := &front{data: data}
	for i := range f.servers {
		f.servers[i] = door.NewFiber(door.Options{Handler: data.Serve, MaxBody: most, Logger: log})
	}
	return f
}

// route takes a new table over.
func (f *front) route(t *link.Table) {
	aliases := make([]activator.Alias, 0, len(t.Models))
	for _, m := range t.Models {
		a := activator.Alias{Name: m.Name}
		for _, s := range m.Splits {
			a.Shares = append(a.Shares, activator.Share{Function: s.Function, Percent: s.Percent})
		}
		aliases = append(aliases, a)
	}
	f.data.SetAliases(aliases)
}

func (f *front) serve(public, private net.Listener) error {
	ended := make(chan error, 2)
	for i, l := range []net.Listener{public, private} {
		go func() { ended <- f.servers[i].Serve(l) }()
	}
	if err := <-ended; err != nil {
		return err
	}
	return <-ended
}

func (f *front) shutdown(ctx context.Context) error {
	return errors.Join(f.servers[0].Shutdown(ctx), f.servers[1].Shutdown(ctx))
}
