package compositions

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
)

// fit counts the GPUs of models that are used at the same time. A base and its adapters are
// one model.
type fit struct {
	left   int // -1: unknown, all fit
	placed map[functions.Name]bool
}

func (r *run) newFit(members []string) *fit {
	f := &fit{left: r.gpus, placed: map[functions.Name]bool{}}
	if f.left <= 0 {
		f.left = -1
	}
	for _, m := range members {
		f.add(r.state(m), true)
	}
	return f
}

// add takes the GPUs of a model; false, and none are taken, where they do not fit. force
// takes them all the same: the model runs already.
func (f *fit) add(m Function, force bool) bool {
	if f.left < 0 || !m.Model || m.GPUs == 0 || f.placed[m.Name] {
		return true
	}
	if m.GPUs > f.left && !force {
		return false
	}
	f.left = max(0, f.left-m.GPUs)
	f.placed[m.Name] = true
	return true
}

func (r *run) state(member string) Function {
	f, _ := r.s.o.State(r.q.Caller, r.nameOf(member))
	f.Name = f.Name.WithoutAdapter()
	return f
}

// ready sorts members into groups that fit onto the GPUs together: loaded ones are asked
// first, and a member that is not waits until those in use leave it room, so that none
// evicts another of its own Composition. It is the Ready of the run.
func (r *run) ready(busy, want []string) []compose.Group {
	var warm, cold []string
	for _, m := range want {
		if r.state(m).Ready {
			warm = append(warm, m)
		} else {
			cold = append(cold, m)
		}
	}
	f := r.newFit(append(slices.Clone(busy), warm...))
	groups := []compose.Group{{Warm: warm}}
	groups[0].Cold, groups[0].Wait, cold = r.take(f, cold)
	if len(busy)+len(warm) == 0 && len(groups[0].Cold) == 0 && len(cold) > 0 { // it is larger than all GPUs: its own request tells
		groups[0].Cold, cold = cold[:1], cold[1:]
	}
	r.mu.Lock()
	r.use = slices.Concat(busy, warm, groups[0].Cold)
	r.mu.Unlock()
	for len(cold) > 0 {
		var g compose.Group
		if g.Cold, g.Wait, cold = r.take(r.newFit(nil), cold); len(g.Cold) == 0 {
			g.Cold, cold = cold[:1], cold[1:]
		}
		groups = append(groups, g)
	}
	return groups
}

// take takes the members that still fit, and returns the rest. wait is the longest forecast.
func (r *run) take(f *fit, cold []string) (taken []string, wait time.Duration, rest []string) {
	for _, m := range cold {
		if s := r.state(m); f.add(s, false) {
			taken, wait = append(taken, m), max(wait, s.Wait)
		} else {
			rest = append(rest, m)
		}
	}
	return taken, wait, rest
}

// prewarm starts members that are asked next and fit beside those that run. A bound of cold
// starts leaves them to their own requests, which count.
func (r *run) prewarm(next []string) {
	if r.s.o.Prewarm == nil || r.plan.Budget.ColdStarts != 0 || len(next) == 0 || r.q.HTTP.Header("thaw-warm") == "never" {
		return
	}
	r.mu.Lock()
	use := slices.Clone(r.use)
	r.mu.Unlock()
	f := r.newFit(use)
	for _, m := range next {
		s := r.state(m)
		if s.Ready || !s.Model || !f.add(s, false) {
			continue
		}
		r.mu.Lock()
		asked := r.prewarms[s.Name]
		r.prewarms[s.Name] = true
		r.mu.Unlock()
		if !asked {
			r.s.o.Prewarm(s.Name, "composition "+r.q.Composition.FullName().String())
		}
	}
}
