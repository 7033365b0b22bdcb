package orchestrator

import "github.com/thaw-dev/thaw/platform/placement"

// weigh tells the windows of f what is under way now, and takes from them how
// many replicas that asks for. It reports whether f is busy: whether there is
// anything to remember of it. Functions at rest have no windows.
func (s *Steer) weigh(f *fn, now placement.Instant) bool {
	n := f.Active + f.Queued
	if f.load == nil {
		if n == 0 {
			return false
		}
		f.load = placement.NewLoad(s.policy.Autoscale)
	}
	f.load.Observe(now, n)
	f.Needed, f.Desired = f.load.Scale(now, f.serving(), f.Scale.Target)
	if f.load.Over(now) {
		f.load, f.Needed, f.Desired = nil, 0, 0
	}
	return f.load != nil
}

// adopted keeps replicas that were READY before this loop began: what is asked of
// them is not known until a window has seen it.
func (s *Steer) adopted(f *fn, now placement.Instant) {
	ready := f.serving()
	if ready < 2 {
		return
	}
	if f.load == nil {
		f.load = placement.NewLoad(s.policy.Autoscale)
	}
	f.load.Adopt(now, ready)
	s.busy.add(f)
}

func (f *fn) serving() (n int) {
	for _, r := range f.reps {
		if r.serves() {
			n++
		}
	}
	return n
}
