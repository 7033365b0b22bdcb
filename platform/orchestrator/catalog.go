package orchestrator

import (
	"fmt"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
)

// catalogReader applies the catalogue to the functions and teams.
type catalogReader struct {
	*world
	catalog    Catalog
	machine    string
	publisher  *publisher
	teams      *teamAccounts
	forecaster *foresight.Forecaster
	coldStarts *coldStartLog
	shrunkAt   placement.Instant // when the catalogue became implausibly small; 0: it is not
	wasRead    bool
}

// read applies the catalogue. If it lost most of its functions, it is read a
// second time before it is applied.
func (c *catalogReader) read(now placement.Instant) {
	models := c.catalog.Models()
	next := make(map[functions.Name]*functions.Model, len(models))
	for _, m := range models {
		next[m.FullName()] = m
	}
	missing, known := 0, 0
	for _, f := range c.functionList {
		if f.Gone {
			continue
		}
		known++
		if next[f.Name] == nil {
			missing++
		}
	}
	if c.wasRead && missing > 1 && 2*missing > known {
		if c.shrunkAt == 0 {
			c.shrunkAt = now
			c.event("catalog_recheck", functions.Name{}, "", "", "recheck",
				fmt.Sprintf("%d of %d functions are gone; looking again", missing, known))
		}
		if now-c.shrunkAt < recheckAfter {
			return
		}
	}
	c.shrunkAt, c.wasRead = 0, true
	for _, m := range models {
		name := m.FullName()
		if next[name] != m {
			continue // of two with one name the later is ignored
		}
		f := c.functions[name]
		if f == nil {
			f = &functionState{}
			c.functions[name] = f
			c.functionList = append(c.functionList, f)
		} else if f.model == m && !f.Gone {
			continue
		}
		was, patience := f.specHash, f.model == nil || f.model.Spec.Deadlines == m.Spec.Deadlines
		f.setModel(m, c.machine)
		if was != f.specHash || !patience {
			f.endPause()
		}
		if was != f.specHash {
			f.starts, f.failedOn, f.FailedOn = forecast.StartTimes{}, "", ""
			c.forecaster.RestoreStarts(f)
		}
		c.markChanged(f)
	}
	c.maxSizes = 2*len(c.functions) + 1000
	for _, f := range c.functionList {
		if next[f.Name] != nil || f.Gone {
			continue
		}
		f.Gone = true
		f.wakeLease, f.userLease, f.untilReady = 0, 0, false
		f.Active, f.Queued, f.Oldest, f.LowActive, f.LowQueued = 0, 0, 0, 0, 0
		c.enqueue(f)
		c.publisher.path.Remove(f.Name)
		c.event("removed", f.Name, "", "", "", "")
	}
	for _, t := range c.teams.All() {
		t.Spec = functions.TeamSpec{}
	}
	for _, m := range models {
		c.teams.account(m.FullName().Team)
	}
	for _, t := range c.catalog.Teams() {
		c.teams.account(t.Metadata.Name).Spec = t.Spec
	}
	c.teams.settle(now, true)
}

// deleteFunctions drops functions that left the catalogue and have no replicas.
func (c *catalogReader) deleteFunctions(dead []*functionState) {
	for _, f := range dead {
		c.coldStarts.finish(f.coldStart, functions.Unloaded, "removed")
		c.busyFunctions.Drop(f)
		c.coldStarts.starting.Drop(f)
		c.planner.Drop(f.Name)
		delete(c.functions, f.Name)
		c.forecaster.Forget(f)
	}
	c.maxSizes = 2*len(c.functions) + 1000
	c.functionList = slices.DeleteFunc(c.functionList, func(f *functionState) bool { return c.functions[f.Name] != f })
}
