package orchestrator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// TestUnloadAfterPublication: a request that came just before its replica left the routes, and that
// only the publication reports, holds the replica until it has ended or the drain is over; the
// turn that publishes may unload a replica without one.
func TestUnloadAfterPublication(t *testing.T) {
	const drain = 10 * time.Second
	for _, x := range []struct {
		name string
		ends time.Duration // of the request after the stop; negative: there is none
		want time.Duration // from the stop to the unload
	}{
		{"none", -1, 0},
		{"ends before the drain", 3 * time.Second, 3 * time.Second},
		{"outlasts the drain", time.Minute, drain},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := newPlay(t, 1, model("x", func(s *functions.ModelSpec) { s.Deadlines.Drain = functions.Duration(drain) }))
			a := p.agent("n", 1)
			p.path.ask("x", 1)
			p.pass(10 * time.Second)
			p.path.done("x")
			p.pass(2 * time.Second)
			p.want("idle", p.states("x"), "[READY@n]")
			l := p.path.queueOf(fname("x"))
			p.path.onPublish = func(f snapshot.Snapshot) {
				if len(f.Replicas) == 0 && len(l.pic.Replicas) == 1 && x.ends >= 0 {
					l.active[0]++ // no report but that of the publication has it
					l.changed = true
					p.after(x.ends, func() { p.path.end(l, 0) })
				}
			}
			stopped := p.at
			p.s.Stop(fname("x"))
			for len(a.ends) == 0 && p.at.Sub(stopped) < time.Minute {
				p.pass(10 * time.Millisecond)
			}
			if took := p.at.Sub(stopped); took < x.want || took > x.want+100*time.Millisecond {
				t.Errorf("it is unloaded after %v, want %v", took, x.want)
			}
		})
	}
}

// TestWakeWithDemand: a turn works on the demand that was reported before the wake, and the newest
// report of a function is the one that counts.
func TestWakeWithDemand(t *testing.T) {
	p := newPlay(t, 1, model("x"))
	a := p.agent("n", 1)
	p.pass(7 * time.Second)
	p.s.Demand(Demand{Name: fname("x"), Active: 1, InFlight: map[string]int{"gone": 1}})
	p.s.Demand(Demand{Name: fname("x"), Queued: 2, Oldest: p.at})
	p.s.Wake(fname("x"))
	f := p.s.loop.functions[fname("x")]
	if n := p.s.inbox.inFlightOf(f, "gone"); n != 0 {
		t.Errorf("%d in flight by an earlier report", n)
	}
	p.s.Turn(context.Background())
	if f.Queued != 2 || f.Active != 0 || fmt.Sprint(p.states("x")) != "[DOWNLOADING@n]" {
		t.Errorf("%d queued, %d active, %s, %v", f.Queued, f.Active, p.states("x"), a.loads)
	}
}
