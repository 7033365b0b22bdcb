package orchestrator

import (
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
)

// inbox collects updates for the next turn and signals it. It also owns the ids of
// current cold starts: Wake returns one before a turn has begun the start. Its methods never
// block.
type inbox struct {
	wallClock func() time.Time
	newID     func(prefix string) string
	signal    func()

	mu       sync.Mutex
	demand   newest.Map[functions.Name, Demand] // reported since readDemand
	updates  updates
	spare    updates // of the current turn; empty between turns
	startIDs map[functions.Name]string
}

// updates are the updates since the last turn, one entry per subject.
type updates struct {
	wakes          newest.Map[functions.Name, wakeRequest]
	nudges         newest.Map[functions.Name, struct{}]
	releases       newest.Map[functions.Name, struct{}]
	heartbeats     newest.Map[string, heartbeat]
	healthReports  newest.Map[string, healthReport] // by replica
	loaded         newest.Map[string, commandResult]
	unloaded       newest.Map[string, commandResult]
	stops          newest.Map[functions.Name, struct{}]
	adapterUses    newest.Map[adapterKey, struct{}]
	wantedAdapters newest.Map[functions.Name, struct{}] // adapters to load before any request
	sleepRefusals  newest.Map[string, commandResult]    // refused sleeps and wake-ups
	changed        bool
}

func (u *updates) clear() {
	u.wakes.Clear()
	u.nudges.Clear()
	u.releases.Clear()
	u.heartbeats.Clear()
	u.healthReports.Clear()
	u.loaded.Clear()
	u.unloaded.Clear()
	u.stops.Clear()
	u.adapterUses.Clear()
	u.wantedAdapters.Clear()
	u.sleepRefusals.Clear()
	u.changed = false
}

type wakeRequest struct {
	id           string
	at           time.Time
	waitersLease time.Duration // lease that lasts only while requests wait
	userLease    time.Duration // lease independent of requests
	untilReady   bool          // lease until READY or failed
}

type heartbeat struct {
	message functions.Heartbeat
	node    Node
	at      time.Time
}

type healthReport struct {
	name    functions.Name
	problem string
}

type commandResult struct {
	node string
	at   time.Time
	err  error
}

func (i *inbox) put(add func(*updates)) {
	i.mu.Lock()
	add(&i.updates)
	i.mu.Unlock()
	i.signal()
}

// take returns the updates since the last take. The caller clears them.
func (i *inbox) take() *updates {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.updates, i.spare = i.spare, i.updates
	return &i.spare
}

// Demand reports the demand for functions, which a later report replaces. It does not signal: a
// wake, a nudge or the next tick has it read.
func (o *Orchestrator) Demand(ds ...Demand) {
	i := &o.inbox
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, d := range ds {
		i.demand.Put(d.Name.WithoutAdapter(), d)
	}
}

// takeDemand returns the demand that was reported since the last call.
func (i *inbox) takeDemand() []Demand {
	i.mu.Lock()
	defer i.mu.Unlock()
	ds := i.demand.Values()
	i.demand.Clear()
	return ds
}

// inFlightOf returns how many requests a replica of f has by the last report.
func (i *inbox) inFlightOf(f *functionState, replica string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if d, ok := i.demand.Get(f.Name); ok {
		return d.InFlight[replica]
	}
	return f.inFlight[replica]
}

// Wake requests a replica of a function and returns the id of its cold start, the same
// for all callers.
func (o *Orchestrator) Wake(name functions.Name) string {
	return o.inbox.requestWake(name.WithoutAdapter(), wakeLease, 0)
}

// requestWake requests a replica, and the adapter in name if it has one.
func (i *inbox) requestWake(name functions.Name, waitersLease, userLease time.Duration) (id string) {
	i.put(func(u *updates) {
		if name.Adapter != "" {
			u.wantedAdapters.Put(name, struct{}{})
			name = name.WithoutAdapter()
		}
		var ok bool
		if id, ok = i.startIDs[name]; !ok {
			id = i.newID("cs")
			i.startIDs[name] = id
		}
		w, asked := u.wakes.Get(name)
		if !asked {
			w = wakeRequest{id: id, at: i.wallClock()}
		}
		w.waitersLease, w.userLease = max(w.waitersLease, waitersLease), max(w.userLease, userLease)
		w.untilReady = w.untilReady || waitersLease == 0
		u.wakes.Put(name, w)
	})
	return id
}

// startID returns the id of name's next cold start: the one that Wake returned, unless
// a cold start used it already.
func (i *inbox) startID(name functions.Name, used func(id string) bool) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if id, ok := i.startIDs[name]; ok && !used(id) {
		return id
	}
	id := i.newID("cs")
	i.startIDs[name] = id
	return id
}

// dropStartID makes the next wake of name begin another cold start than id.
func (i *inbox) dropStartID(name functions.Name, id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.startIDs[name] == id {
		delete(i.startIDs, name)
	}
}

// Nudge reports a change of demand that needs a turn now: a queue outgrew its replicas,
// or the last waiter left.
func (o *Orchestrator) Nudge(name functions.Name) {
	o.inbox.put(func(u *updates) { u.nudges.Put(name.WithoutAdapter(), struct{}{}) })
}

// Release reports that a function has answered the request that it was started for, and gets
// no other one from there soon: the policy's residency does not keep its replicas.
func (o *Orchestrator) Release(name functions.Name) {
	o.inbox.put(func(u *updates) { u.releases.Put(name.WithoutAdapter(), struct{}{}) })
}

// ReportFailure reports that a replica failed on the data path. Its agent then verifies
// it.
func (o *Orchestrator) ReportFailure(name functions.Name, replica, problem string) {
	o.inbox.put(func(u *updates) { u.healthReports.Put(replica, healthReport{name.WithoutAdapter(), problem}) })
}

// Heartbeat reports an agent's heartbeat, with the Node for commands to it.
func (o *Orchestrator) Heartbeat(hb functions.Heartbeat, node Node) {
	o.inbox.put(func(u *updates) { u.heartbeats.Put(hb.AgentID, heartbeat{hb, node, o.inbox.wallClock()}) })
}

func (o *Orchestrator) Changed() {
	o.inbox.put(func(u *updates) { u.changed = true })
}

// Stop drains the replicas of a function and ends its leases. Demand or its minimum starts it again.
func (o *Orchestrator) Stop(name functions.Name) {
	o.inbox.put(func(u *updates) { u.stops.Put(name.WithoutAdapter(), struct{}{}) })
}

// UseAdapter records that requests use an adapter of a replica, so that another one is
// evicted if there is no room for all.
func (o *Orchestrator) UseAdapter(name functions.Name, replica string) {
	o.inbox.put(func(u *updates) { u.adapterUses.Put(adapterKey{replica, name.Adapter}, struct{}{}) })
}
