package control

import (
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// inside is a hub without activators.
type inside struct {
	orchestrator.DataPath
	got []snapshot.Snapshot
}

func (i *inside) Publish(fs ...snapshot.Snapshot) { i.got = append(i.got, fs...) }

func (i *inside) Remove(...functions.Name) {}

// listener is a loop that keeps what was reported.
type listener struct {
	activator.Waker
	reported map[functions.Name]orchestrator.Demand // since taken
	nudges   int
}

func (l *listener) Demand(ds ...orchestrator.Demand) {
	if l.reported == nil {
		l.reported = map[functions.Name]orchestrator.Demand{}
	}
	for _, d := range ds {
		l.reported[d.Name] = d
	}
}

func (l *listener) Nudge(functions.Name) { l.nudges++ }

func (l *listener) take() map[functions.Name]orchestrator.Demand {
	ds := l.reported
	l.reported = nil
	return ds
}

func newDataPath(loop activator.Waker, serviceOf func(functions.Name) (string, bool), moved func(functions.Name),
	now func() time.Time) *dataPath {
	return &dataPath{
		DataPath: &inside{}, Waker: loop, serviceOf: serviceOf, published: moved, now: now,
		inside: map[functions.Name]orchestrator.Demand{}, outside: map[functions.Name]outsideDemand{}, queued: map[functions.Name]bool{},
	}
}

func TestDemandFromOutside(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := &listener{}
	moved := 0
	p := newDataPath(l, func(functions.Name) (string, bool) { return "web", true }, func(functions.Name) { moved++ },
		func() time.Time { return now })
	p.SetOutsideDemand(web, 1, 2)
	d := l.take()[web]
	if d.Active != 1 || d.Queued != 2 || !d.Oldest.Equal(now) || l.nudges != 1 || moved != 1 || !p.hasQueued(web) {
		t.Errorf("%+v, %d nudges, %d changes of the status", d, l.nudges, moved)
	}
	p.SetOutsideDemand(web, 1, 2) // unchanged, so not reported again
	if l.take() != nil || l.nudges != 1 {
		t.Errorf("what did not change is told again, %d nudges", l.nudges)
	}
	// Outside demand is added to that of our activators.
	p.Demand(orchestrator.Demand{Name: web, Active: 3, Queued: 1, Oldest: now.Add(-time.Second), InFlight: map[string]int{"r": 3}})
	d = l.take()[web]
	if d.Active != 4 || d.Queued != 3 || !d.Oldest.Equal(now.Add(-time.Second)) || d.InFlight["r"] != 3 {
		t.Errorf("%+v", d)
	}
	if d := p.demandOf(web); d.Active != 3 || d.Queued != 1 {
		t.Errorf("at our activators: %+v", d)
	}
	p.Demand(orchestrator.Demand{Name: web})
	if d := l.take()[web]; d.Active != 1 || d.Queued != 2 || moved != 1 {
		t.Errorf("%+v, %d changes of the status", d, moved)
	}
	now = now.Add(time.Minute)
	p.SetOutsideDemand(web, 0, 0)
	if d := l.take()[web]; d.Active+d.Queued != 0 || !d.LastEnd.Equal(now) || moved != 2 || p.hasQueued(web) {
		t.Errorf("%+v, %d changes of the status", d, moved)
	}
	// Unchanged demand of our activators is still included.
	p.Demand(orchestrator.Demand{Name: web, Active: 5})
	p.SetOutsideDemand(web, 2, 0)
	if d := l.take()[web]; d.Active != 7 {
		t.Errorf("%+v", d)
	}
	p.Publish(snapshot.Snapshot{Name: web})
	if f := p.DataPath.(*inside).got[0]; !f.Hidden || !f.External || f.ServedModelName != "web" {
		t.Errorf("%+v", f)
	}
}
