package orchestrator

import (
	"fmt"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// readCatalog applies the catalogue. If it lost most of its functions, it is read a
// second time before it is applied.
func (o *Orchestrator) readCatalog(now placement.Instant) {
	models := o.catalog.Models()
	next := make(map[functions.Name]*functions.Model, len(models))
	for _, m := range models {
		next[m.FullName()] = m
	}
	missing, known := 0, 0
	for _, f := range o.functionList {
		if f.Gone {
			continue
		}
		known++
		if next[f.Name] == nil {
			missing++
		}
	}
	if o.catalogRead && missing > 1 && 2*missing > known {
		if o.catalogShrunkAt == 0 {
			o.catalogShrunkAt = now
			o.event("catalog_recheck", functions.Name{}, "", "", "recheck", fmt.Sprintf("%d of %d functions are gone; looking again", missing, known))
		}
		if now-o.catalogShrunkAt < recheckAfter {
			return
		}
	}
	o.catalogShrunkAt, o.catalogRead = 0, true
	for _, m := range models {
		name := m.FullName()
		if next[name] != m {
			continue // of two with one name the later is ignored
		}
		f := o.functions[name]
		if f == nil {
			f = &functionState{}
			o.functions[name] = f
			o.functionList = append(o.functionList, f)
		} else if f.model == m && !f.Gone {
			continue
		}
		was, patience := f.specHash, f.model == nil || f.model.Spec.Deadlines == m.Spec.Deadlines
		f.setModel(m, o.machine)
		if was != f.specHash || !patience {
			f.endPause()
		}
		if was != f.specHash {
			f.starts.Clear()
			o.forecaster.restoreStarts(f)
		}
		o.markChanged(f)
	}
	o.maxSizes = 2*len(o.functions) + 1000
	for _, f := range o.functionList {
		if next[f.Name] != nil || f.Gone {
			continue
		}
		f.Gone = true
		f.wakeLease, f.userLease, f.untilReady = 0, 0, false
		f.clearDemand()
		o.enqueue(f)
		o.path.Remove(f.Name)
		o.event("removed", f.Name, "", "", "", "")
	}
	for _, t := range o.teams.All() {
		t.Spec = functions.TeamSpec{}
	}
	for _, m := range models {
		o.teams.account(m.FullName().Team)
	}
	for _, t := range o.catalog.Teams() {
		o.teams.account(t.Metadata.Name).Spec = t.Spec
	}
	o.teams.settle(now, true)
}

// deleteFunctions drops functions that left the catalogue and have no replicas.
func (o *Orchestrator) deleteFunctions(dead []*functionState) {
	for _, f := range dead {
		o.finishColdStart(f.coldStart, functions.Unloaded, "removed")
		o.busyFunctions.Drop(f)
		o.coldStarts.starting.Drop(f)
		o.planner.Drop(f.Name)
		delete(o.functions, f.Name)
		o.forecaster.forget(f)
	}
	o.maxSizes = 2*len(o.functions) + 1000
	o.functionList = slices.DeleteFunc(o.functionList, func(f *functionState) bool { return o.functions[f.Name] != f })
}
