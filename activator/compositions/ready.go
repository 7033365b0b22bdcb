package compositions

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
)

// Places decides which members of one request are asked together, and which are loaded
// ahead, so that none evicts another of its own Composition. State must be set. Its methods
// may be called concurrently.
type Places struct {
	Packing func() func(functions.Name) bool // see Options
	State   func(member string) Function     // its name is without an adapter

	mu    sync.Mutex
	use   []string       // members that run now, or begin to
	asked map[ahead]bool // what Next has listed
}

// ahead is a model that is started before its request.
type ahead struct {
	name functions.Name
	due  bool
}

// fit places models that are used at the same time. A base and its adapters are one model.
type fit struct {
	place  func(functions.Name) bool // nil: all fit
	full   bool                      // a model that runs already did not fit beside the others
	placed map[functions.Name]bool
}

func (p *Places) newFit(members []string) *fit {
	f := &fit{placed: map[functions.Name]bool{}}
	if p.Packing != nil {
		f.place = p.Packing()
	}
	for _, m := range members {
		f.full = !f.add(p.State(m)) || f.full
	}
	return f
}

// add takes the room of a model; false, and none is taken, where it does not fit.
func (f *fit) add(m Function) bool {
	if f.place == nil || !m.Model || f.placed[m.Name] {
		return true
	}
	if f.full || !f.place(m.Name) {
		return false
	}
	f.placed[m.Name] = true
	return true
}

func (r *run) state(member string) Function {
	f, _ := r.s.o.State(r.q.Caller, r.nameOf(member))
	f.Name = f.Name.WithoutAdapter()
	return f
}

// Ready sorts members into groups that fit onto the machines together: loaded ones are asked
// first, and a member that is not waits until those in use leave it room. It is a
// [compose.Ready].
func (p *Places) Ready(busy, want []string) []compose.Group {
	var warm, cold []string
	for _, m := range want {
		if p.State(m).Ready {
			warm = append(warm, m)
		} else {
			cold = append(cold, m)
		}
	}
	f := p.newFit(append(slices.Clone(busy), warm...))
	groups := []compose.Group{{Warm: warm}}
	groups[0].Cold, groups[0].Wait, cold = p.take(f, cold)
	if len(busy)+len(warm) == 0 && len(groups[0].Cold) == 0 && len(cold) > 0 { // it is larger than all machines: its own request tells
		groups[0].Cold, cold = cold[:1], cold[1:]
	}
	p.Use(slices.Concat(busy, warm, groups[0].Cold))
	for len(cold) > 0 {
		var g compose.Group
		if g.Cold, g.Wait, cold = p.take(p.newFit(nil), cold); len(g.Cold) == 0 {
			g.Cold, cold = cold[:1], cold[1:]
		}
		groups = append(groups, g)
	}
	return groups
}

// take takes the members that still fit, and returns the rest. wait is the longest forecast.
func (p *Places) take(f *fit, cold []string) (taken []string, wait time.Duration, rest []string) {
	for _, m := range cold {
		if s := p.State(m); f.add(s) {
			taken, wait = append(taken, m), max(wait, s.Wait)
		} else {
			rest = append(rest, m)
		}
	}
	return taken, wait, rest
}

// Use sets which members run now.
func (p *Places) Use(busy []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.use = busy
}

// Next lists the models of members that are asked next, are not loaded and fit beside those
// that run: once each, and once more when they are due, because every call before theirs has
// begun.
func (p *Places) Next(members []string, due bool) (models []functions.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.newFit(p.use)
	for _, m := range members {
		s := p.State(m)
		if s.Ready || !s.Model || !f.add(s) || p.asked[ahead{s.Name, due}] {
			continue
		}
		if p.asked == nil {
			p.asked = map[ahead]bool{}
		}
		p.asked[ahead{s.Name, due}] = true
		models = append(models, s.Name)
	}
	return models
}

// stageLater stages the models that are asked later and do not start with the first ones: the
// bytes come while those work.
func (r *run) stageLater() {
	if r.s.o.Stage == nil || r.preparesNothing() {
		return
	}
	first, later := r.plan.Members, []string{r.plan.Coordinator}
	if r.plan.Pattern == compose.Maestro || r.plan.Pattern == compose.Graph {
		first, later = later, slices.Concat(r.plan.Members, slices.Sorted(maps.Values(r.plan.Agents)))
	}
	groups := r.places.Ready(nil, first)
	var ahead []string
	for _, g := range groups[1:] {
		ahead = append(ahead, g.Cold...)
	}
	staged := map[functions.Name]bool{}
	for _, m := range groups[0].Cold {
		staged[r.state(m).Name] = true // its start does
	}
	for _, m := range append(ahead, later...) {
		if f := r.state(m); f.Model && !f.Ready && !staged[f.Name] {
			staged[f.Name] = true
			r.s.o.Stage(f.Name, r.by())
		}
	}
}

// preparesNothing reports whether the request leaves members to their own requests. A bound of
// cold starts does, because those count.
func (r *run) preparesNothing() bool {
	return r.plan.Budget.ColdStarts != 0 || r.q.HTTP.Header("thaw-warm") == "never"
}

// by names the Composition to the platform.
func (r *run) by() string { return "composition " + r.q.Composition.FullName().String() }

// startNext starts members that are asked next and fit beside those that run: on the budget
// of prewarms, which evicts only what is worth less, and once they are due as their requests
// would, which may evict a member that has answered.
func (r *run) startNext(next []string, due bool) {
	if r.preparesNothing() || len(next) == 0 || due && r.q.Low {
		return
	}
	for _, name := range r.places.Next(next, due) {
		switch {
		case due && r.s.o.Wake != nil:
			r.s.o.Wake(name, r.q.Caller.Team)
		case !due && r.s.o.Prewarm != nil:
			r.s.o.Prewarm(name, r.by())
		}
	}
}
