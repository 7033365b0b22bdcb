package control

import (
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// inside is the part of the activators that a dataPath uses.
type inside struct {
	orchestrator.DataPath
	demand []orchestrator.Demand // changed since the last call
	held   []orchestrator.Demand // unchanged
	got    []snapshot.Snapshot
}

func (i *inside) Publish(fs ...snapshot.Snapshot) { i.got = append(i.got, fs...) }

func (i *inside) Demand(_ bool, yield func(orchestrator.Demand)) {
	for _, d := range i.demand {
		yield(d)
	}
}

func (i *inside) DemandOf(name functions.Name) orchestrator.Demand {
	for _, d := range i.held {
		if d.Name == name {
			return d
		}
	}
	return orchestrator.Demand{Name: name}
}

func TestDemandFromOutside(t *testing.T) {
	now := time.Unix(1e9, 0)
	in := &inside{}
	rang := 0
	p := &dataPath{
		activatorHub: in, outside: map[functions.Name]outsideDemand{}, dirty: map[functions.Name]bool{}, queued: map[functions.Name]bool{},
		serviceOf: func(functions.Name) (string, bool) { return "web", true }, published: func(functions.Name) {},
		notReady: func(*snapshot.Snapshot) []snapshot.Replica { return nil },
		wake:     func(functions.Name) { rang++ }, now: func() time.Time { return now },
	}
	all := func(all bool) map[string]orchestrator.Demand {
		out := map[string]orchestrator.Demand{}
		p.Demand(all, func(d orchestrator.Demand) { out[d.Name.Name] = d })
		return out
	}
	p.SetOutsideDemand(web, 1, 2)
	p.SetOutsideDemand(web, 1, 2) // unchanged, so not reported again
	if rang != 1 {
		t.Errorf("rang %d times", rang)
	}
	d := all(false)[web.Name]
	if d.Active != 1 || d.Queued != 2 || !d.Oldest.Equal(now) {
		t.Errorf("%+v", d)
	}
	if len(all(false)) != 0 || len(all(true)) != 1 {
		t.Error("what did not change is told again, or what is there is not")
	}
	// Outside demand is added to that of our activators.
	in.demand = []orchestrator.Demand{{Name: web, Active: 3, Queued: 1, Oldest: now.Add(-time.Second)}}
	d = all(true)[web.Name]
	if d.Active != 4 || d.Queued != 3 || !d.Oldest.Equal(now.Add(-time.Second)) {
		t.Errorf("%+v", d)
	}
	in.demand = nil
	now = now.Add(time.Minute)
	p.SetOutsideDemand(web, 0, 0)
	if d := all(false)[web.Name]; d.Active+d.Queued != 0 || !d.LastEnd.Equal(now) {
		t.Errorf("%+v", d)
	}
	// Unchanged demand of our activators is still included.
	in.held = []orchestrator.Demand{{Name: web, Active: 5}}
	p.SetOutsideDemand(web, 2, 0)
	if d := all(false)[web.Name]; d.Active != 7 {
		t.Errorf("%+v", d)
	}
	p.Publish(snapshot.Snapshot{Name: web})
	if f := in.got[0]; !f.Hidden || !f.External || f.ServedModelName != "web" {
		t.Errorf("%+v", f)
	}
}
