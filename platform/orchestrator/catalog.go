package orchestrator

import (
	"fmt"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// readCatalog applies the catalogue. If it lost most of its functions, it is read a
// second time before it is applied.
func (s *Orchestrator) readCatalog(now placement.Instant) {
	models := s.catalog.Models()
	next := make(map[functions.Name]*functions.Model, len(models))
	for _, m := range models {
		next[m.FullName()] = m
	}
	missing, known := 0, 0
	for _, f := range s.functionList {
		if f.Gone {
			continue
		}
		known++
		if next[f.Name] == nil {
			missing++
		}
	}
	if s.catalogRead && missing > 1 && 2*missing > known {
		if s.catalogShrunkAt == 0 {
			s.catalogShrunkAt = now
			s.event("catalog_suspicious", functions.Name{}, "", "", "recheck", fmt.Sprintf("%d of %d functions are gone; looking again", missing, known))
		}
		if now-s.catalogShrunkAt < recheckAfter {
			return
		}
	}
	s.catalogShrunkAt, s.catalogRead = 0, true
	for _, m := range models {
		name := m.FullName()
		if next[name] != m {
			continue // of two with one name the later is ignored
		}
		f := s.functions[name]
		if f == nil {
			f = &functionState{}
			s.functions[name] = f
			s.functionList = append(s.functionList, f)
		} else if f.model == m && !f.Gone {
			continue
		}
		was, patience := f.recipe, f.model == nil || f.model.Spec.Deadlines == m.Spec.Deadlines
		f.setModel(m, s.machine)
		if was != f.recipe || !patience {
			f.endPause()
		}
		if was != f.recipe {
			f.starts.Clear()
			s.forecaster.restoreStarts(f)
		}
		s.markDirty(f)
	}
	s.maxSizes = 2*len(s.functions) + 1000
	for _, f := range s.functionList {
		if next[f.Name] != nil || f.Gone {
			continue
		}
		f.Gone = true
		f.wakeLease, f.userLease, f.untilReady = 0, 0, false
		f.clearDemand()
		s.enqueue(f)
		s.path.Remove(f.Name)
		s.event("removed", f.Name, "", "", "", "")
	}
	for _, t := range s.teams.All() {
		t.Spec = functions.TeamSpec{}
	}
	for _, m := range models {
		s.teams.account(m.FullName().Team)
	}
	for _, t := range s.catalog.Teams() {
		s.teams.account(t.Metadata.Name).Spec = t.Spec
	}
	s.teams.settle(now, true)
}

// deleteFunctions drops functions that left the catalogue and have no replicas.
func (s *Orchestrator) deleteFunctions(dead []*functionState) {
	for _, f := range dead {
		s.finishColdStart(f.coldStart, functions.Unloaded, "removed")
		s.busyFunctions.Drop(f)
		s.coldStarts.starting.Drop(f)
		s.planner.Drop(f.Name)
		delete(s.functions, f.Name)
		s.forecaster.forget(f)
	}
	s.maxSizes = 2*len(s.functions) + 1000
	s.functionList = slices.DeleteFunc(s.functionList, func(f *functionState) bool { return s.functions[f.Name] != f })
}
