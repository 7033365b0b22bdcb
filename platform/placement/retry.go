package placement

import "slices"

// placeRetry places f on the node where its last start found too little memory: it evicts
// the idle replicas that share that memory, and starts f once they are gone. It reports
// whether f starts or waits for that.
func (a *attempt) placeRetry(f *Function, reason string) bool {
	at, ok := a.world.index[f.RetryOn]
	if !ok || !a.eligible(&a.world.rooms[at], f) {
		return false
	}
	m := &a.world.rooms[at]
	leaving := a.leavingForRetry(f)
	for i := range m.idle {
		if v := &m.idle[i]; f.sharesMemory(v.r) && a.mayEvict(v, f, 0, reasonIdle) {
			a.evict(v, f, reasonIdle, f.Resources)
			leaving = true
		}
	}
	if leaving {
		if gpus, ok := m.soon.Choose(f.Resources); ok {
			a.reserve(m, f, gpus)
		}
		return true
	}
	if !m.now.Fits(f.Resources) {
		return false
	}
	a.startOn(m, f, reason)
	return true
}

// leavingForRetry reports whether replicas without requests are leaving the memory that f
// found too small.
func (a *attempt) leavingForRetry(f *Function) bool {
	for other := range a.aliveFunctions() {
		for i := range other.Replicas {
			r := &other.Replicas[i]
			if r.Node == f.RetryOn && (r.Stopping || r.Cancelled || r.GoingToSleep) && r.InFlight == 0 && f.sharesMemory(r) {
				return true
			}
		}
	}
	return false
}

// sharesMemory reports whether r may hold memory that f's last start found too little of.
func (f *Function) sharesMemory(r *Replica) bool {
	return len(f.RetryGPUs) == 0 || slices.ContainsFunc(r.GPUs, func(g int) bool { return slices.Contains(f.RetryGPUs, g) })
}

// MayRetry reports whether idle replicas may be evicted from f.RetryOn for f, as of the last
// plan.
func (p *Planner) MayRetry(f *Function) bool {
	at, ok := p.decision.world.index[f.RetryOn]
	return ok && slices.ContainsFunc(p.decision.world.rooms[at].idle,
		func(v victim) bool { return f.sharesMemory(v.r) && p.decision.mayEvict(&v, f, 0, reasonIdle) })
}
