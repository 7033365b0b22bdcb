package orchestrator

import (
	"github.com/thaw-dev/thaw/platform/autoscale"
	"github.com/thaw-dev/thaw/platform/placement"
)

// updateLoad records the current requests of f in its load windows, and sets f.Needed
// and f.Desired from them. It reports whether f is busy: whether its windows hold any
// load. Functions at rest have no windows.
func (f *functionState) updateLoad(p autoscale.Settings, now placement.Instant) bool {
	n := f.Active + f.Queued
	if f.load == nil {
		if n == 0 {
			return false
		}
		f.load = autoscale.NewLoad(p)
	}
	f.load.Observe(now, n)
	f.Needed, f.Desired = f.load.Scale(now, f.serving(), f.Scale.Target)
	if f.load.Over(now) {
		f.load, f.Needed, f.Desired = nil, 0, 0
	}
	return f.load != nil
}

// adoptLoad keeps replicas that were READY before this loop began: their load is not
// known until a window has passed. It reports whether f is busy then.
func (f *functionState) adoptLoad(p autoscale.Settings, now placement.Instant) bool {
	ready := f.serving()
	if ready < 2 {
		return false
	}
	if f.load == nil {
		f.load = autoscale.NewLoad(p)
	}
	f.load.Adopt(now, ready)
	return true
}

func (f *functionState) serving() (n int) {
	for _, r := range f.replicas {
		if r.serves() {
			n++
		}
	}
	return n
}
