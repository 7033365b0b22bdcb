package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/platform/local"
)

// history completes the backend's timelines with the first token, which only the
// activator sees.
type history struct {
	*local.Local
	act *activator.Activator
}

func (h history) ColdStart(id string) (functions.Timeline, bool) {
	t, ok := h.Local.ColdStart(id)
	return h.act.WithFirstTokenPhase(t), ok
}

func (h history) ColdStarts(limit int) []functions.Timeline {
	list := h.Local.ColdStarts(limit)
	for i := range list {
		list[i] = h.act.WithFirstTokenPhase(list[i])
	}
	return list
}

func openLogs(l *local.Local) func(context.Context, string, int, bool) (io.ReadCloser, error) {
	return func(ctx context.Context, replica string, tail int, follow bool) (io.ReadCloser, error) {
		r, err := l.Logs(ctx, replica, tail, follow)
		if errors.Is(err, agent.ErrNoLog) {
			return nil, fmt.Errorf("%w: %s", functions.ErrNotFound, strings.TrimPrefix(err.Error(), agent.ErrNoLog.Error()+": "))
		}
		return r, err
	}
}
