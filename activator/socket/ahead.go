package socket

import (
	"context"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
)

const (
	// startedBy names sockets as the cause of a start, in events and metrics.
	startedBy     = "socket"
	prewarmLease  = 5 * time.Minute
	loadTimeout   = 5 * time.Minute
	kindModel     = "model"
	kindAdapter   = "adapter"
	resultHit     = "hit"   // it was ready when it was asked for
	resultLate    = "late"  // it was asked for while it became ready
	resultWaste   = "waste" // it was not asked for
	resultRefused = "refused"
)

// plan is what to begin for a decision.
type plan struct {
	kind         string // kindModel or kindAdapter
	target       string // as the Router's rule has it
	router, team string // labels
	caller       auth.Identity
	function     functions.Name
	replica      string
}

// plan returns what would make the target of a decision ready; nil where it is, or where
// the decision is not sure.
func (a *Ahead) plan(id auth.Identity, rec *functions.RouteRecord) *plan {
	if rec.Target == "" {
		return nil
	}
	x := a.Find(id, rec)
	p := &plan{target: rec.Target, router: rec.Router, team: id.Team, caller: id, function: x.Function, replica: x.Replica}
	switch {
	case !x.Sure:
		return nil
	case x.Cold:
		p.kind, p.function = kindModel, x.Function.WithoutAdapter()
	case x.Replica != "":
		p.kind = kindAdapter
	default:
		return nil
	}
	return p
}

// lease is something begun ahead. release ends it, whether it was used or not.
type lease struct {
	*plan
	a      *Ahead
	cancel context.CancelFunc
	began  time.Time
	start  *lease // of the model whose adapter it is; nil: none was begun

	mu       sync.Mutex
	ready    time.Time // of an adapter: when it was loaded
	settled  bool      // its result is counted
	used     bool      // a request went there: the platform ends the start's lease by its use
	released bool
}

// begin begins what a plan says, and does not wait for it. start is the start of the same
// model, which goes on; nil: none was begun.
func (a *Ahead) begin(p *plan, start *lease) *lease {
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	l := &lease{plan: p, a: a, cancel: cancel, began: a.Now(), start: start}
	if p.kind == kindModel {
		a.mu.Lock()
		if a.leases == nil {
			a.leases = map[functions.Name]int{}
		}
		a.leases[p.function]++
		a.mu.Unlock()
	}
	go func() { // ends with ctx, which release ends
		defer cancel()
		var err error
		if p.kind == kindModel {
			err = a.Prewarm(p.function, l.began.Add(prewarmLease), startedBy)
		} else {
			err = a.LoadAdapter(ctx, p.function, p.replica)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ready = a.Now(); err != nil && !l.released {
			l.count(resultRefused)
		}
		if l.released && !l.used && p.kind == kindModel {
			a.endPrewarm(p.function)
		}
	}()
	return l
}

// startFor returns the start that was begun of the model that the target of a decision is of,
// and makes it one for that target; nil: none was.
func (l *lease) startFor(a *Ahead, id auth.Identity, rec *functions.RouteRecord) *lease {
	if l != nil && l.kind != kindModel {
		l = l.start
	}
	if l == nil || rec.Target == "" || a.Find(id, rec).Function.WithoutAdapter() != l.function {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = rec.Target
	return l
}

// releaseBut releases the lease, but not a start that it may include.
func (l *lease) releaseBut(start *lease) {
	if l.start == start {
		l.start = nil
	}
	l.release()
}

// endPrewarm ends the start of a function that no socket wants any more.
func (a *Ahead) endPrewarm(name functions.Name) {
	a.mu.Lock()
	wanted := a.leases[name] > 0
	a.mu.Unlock()
	if !wanted {
		a.EndPrewarm(name, startedBy)
	}
}

// count counts the result of the lease, once. mu must be held.
func (l *lease) count(result string) {
	if l.settled {
		return
	}
	l.settled = true
	l.a.Count("thaw_speculation_total", 1, l.router, l.team, l.kind, result)
}

// settle notes that a request went to a target, which was cold at that time or not.
func (l *lease) settle(target string, cold bool, at time.Time) {
	if l.start != nil {
		l.start.settle(target, cold, at)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled || target != l.target {
		return
	}
	l.used = true
	saved, ready := at.Sub(l.began), !cold
	if l.kind == kindAdapter {
		if ready = !l.ready.IsZero() && !l.ready.After(at); ready {
			saved = l.ready.Sub(l.began)
		}
	} else if x := l.a.Find(l.caller, &functions.RouteRecord{Router: l.router, Target: l.target}); ready && x.Start > 0 {
		saved = min(saved, x.Start)
	}
	if ready {
		l.count(resultHit)
	} else {
		l.count(resultLate)
	}
	l.a.Count("thaw_speculation_saved_seconds_total", max(0, saved.Seconds()), l.router, l.team, l.kind)
}

// release ends what was begun, where no request uses it. It is called once.
func (l *lease) release() {
	if l.start != nil {
		l.start.release()
	}
	l.mu.Lock()
	l.released = true
	l.count(resultWaste)
	unused := !l.ready.IsZero() && !l.used
	l.mu.Unlock()
	l.cancel()
	if l.kind != kindModel {
		return
	}
	l.a.mu.Lock()
	if l.a.leases[l.function]--; l.a.leases[l.function] == 0 {
		delete(l.a.leases, l.function)
	}
	l.a.mu.Unlock()
	if unused {
		l.a.endPrewarm(l.function)
	}
}
