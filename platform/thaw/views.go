package main

import (
	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/functions"
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
