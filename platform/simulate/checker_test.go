package simulate_test

import (
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate"
)

// checker checks the invariants.
type checker struct {
	p          *run
	broken     error
	steps      int
	recordedAt time.Duration
	states     map[uint64]struct{}

	asked, answered int
	ends            map[uint64]int
	lastEnd         map[functions.Name]time.Duration
	expected        map[functions.Name]bool // requested after the last fault, not answered yet

	// The orchestrator's state, derived from its events.
	reps        map[string]*replicaRecord
	blocked     map[functions.Name]bool
	startCounts map[functions.Name]startCount

	// What faults affected: failures there are no violations.
	touched             map[string]bool          // replicas
	nodes               map[string]time.Duration // when a node was last broken or returned
	touchedFunction     map[functions.Name]time.Duration
	uncertainUntil      time.Duration // the orchestrator's view may be wrong until then
	heartbeatsLostUntil time.Duration
	jumpedUntil         time.Duration // durations the orchestrator measured may be wrong until then
	removed             map[functions.Name]bool

	refusedForSpace int64
	since           map[string]time.Duration // start of each condition that may last only for a bounded time
}

// startCount counts the starts of a function since a time.
type startCount struct {
	since  time.Duration
	starts int
}

// replicaRecord is a replica as the orchestrator knows it.
type replicaRecord struct {
	id, node  string
	f         functions.Name
	gpus      int
	ready     bool
	readyAt   time.Duration
	stopping  bool
	cancelled bool // cancelled; if the cancellation came too late, the start goes on
	asleep    bool
	adopted   bool
}

func newChecker(p *run) *checker {
	return &checker{
		p: p, states: map[uint64]struct{}{}, ends: map[uint64]int{}, lastEnd: map[functions.Name]time.Duration{},
		expected: map[functions.Name]bool{},
		reps:     map[string]*replicaRecord{}, blocked: map[functions.Name]bool{}, startCounts: map[functions.Name]startCount{},
		touched: map[string]bool{}, nodes: map[string]time.Duration{},
		touchedFunction: map[functions.Name]time.Duration{}, removed: map[functions.Name]bool{}, since: map[string]time.Duration{},
	}
}

func (c *checker) fail(invariant int, format string, args ...any) {
	if c.broken == nil {
		c.broken = fmt.Errorf("seed %d at %v: invariant %d: %s", c.p.experiment.Seed, c.now(), invariant, fmt.Sprintf(format, args...))
	}
}

func (c *checker) now() time.Duration {
	if c.p.st == nil {
		return 0
	}
	return c.p.st.Now()
}

// viewUncertain reports whether the orchestrator's view may be wrong.
func (c *checker) viewUncertain() bool { return c.now() < c.uncertainUntil }

func (c *checker) loopBroken(until time.Duration) { c.uncertainUntil = max(c.uncertainUntil, until) }

func (c *checker) nodeBroken(node string) { c.nodes[node] = c.now() }

// recentlyBroken reports whether a node is broken, or was within a duration.
func (c *checker) recentlyBroken(node string, within time.Duration) bool {
	n, ok := c.p.st.Node(node)
	at, was := c.nodes[node]
	return !ok || n.Dead || n.Mute || was && c.now()-at < within || c.now() < c.heartbeatsLostUntil
}

// reset clears the derived state: another orchestrator instance started.
func (c *checker) reset() {
	clear(c.reps)
	clear(c.blocked)
	clear(c.since)
	clear(c.lastEnd)
}

// excuse returns why a model may be unable to run; "" if it must run.
func (c *checker) excuse(i int) string {
	m := &c.p.experiment.Models[i]
	for k := range c.p.experiment.Models {
		if k != i && c.p.experiment.Models[k].Min > 0 {
			return "a function with a minimum of replicas may occupy its node"
		}
	}
	if c.p.experiment.Learn {
		for _, t := range c.p.experiment.Teams {
			if t.Name != m.Team && t.Guaranteed > 0 {
				return "another team may keep its guaranteed GPUs for longer than a request waits"
			}
		}
	}
	if t := c.p.experiment.team(m.Team); t.Max > 0 && m.GPUs > t.Max {
		return "quota"
	}
	for _, h := range c.p.experiment.Hosts {
		if h.GPUs >= m.GPUs && h.Store >= m.Size {
			return ""
		}
	}
	return "size"
}

// expect requires that the next request to f is answered.
func (c *checker) expect(f functions.Name) {
	c.expected[f] = true
}

func (c *checker) index(f functions.Name) int {
	for i := range c.p.experiment.Models {
		if c.p.experiment.name(i) == f {
			return i
		}
	}
	return -1
}

// onRequestEnd handles the end of a request.
func (c *checker) onRequestEnd(f simulate.RequestEnd) {
	if c.ends[f.ID]++; c.ends[f.ID] > 1 {
		c.fail(1, "request %d of %s has ended twice, now as %q", f.ID, f.Function, f.Code)
	}
	if f.First > 0 { // a request that only waited did not use the replica
		c.lastEnd[f.Function] = c.now()
	}
	if f.Code == "" {
		c.answered++
		delete(c.expected, f.Function)
		return
	}
	if c.expected[f.Function] && f.Arrived >= c.p.experiment.FaultsEnd.Std()+finalPause {
		c.fail(6, "request %d of %s, after the last fault, ended as %s: %s", f.ID, f.Function, f.Code, f.Message)
	}
	switch f.Code {
	case simulate.EndBroken, "engine_crashed":
		r := f.Replica
		if c.touched[r] || c.viewUncertain() {
			return
		}
		if b := c.reps[r]; b != nil && c.recentlyBroken(b.node, time.Minute) {
			return
		}
		if v, ok := c.p.st.Replica(r); ok && c.recentlyBroken(v.Node, time.Minute) {
			return
		}
		if b := c.reps[r]; b == nil { // its node is unknown: any broken one explains it
			for _, n := range c.p.st.Nodes() {
				if c.recentlyBroken(n, time.Minute) {
					return
				}
			}
		}
		c.fail(5, "request %d of %s failed on %s, which nothing had broken: %s %s", f.ID, f.Function, r, f.Code, f.Message)
	}
}

// event handles an event of the orchestrator.
func (c *checker) event(e functions.Event) {
	if c.broken != nil || c.p.st == nil {
		return
	}
	name, _ := functions.ParseName(e.Function, "")
	b := c.reps[e.Replica]
	switch e.Kind {
	case "start":
		c.onStart(name, e)
	case "adopted":
		if i := c.index(name); i >= 0 {
			c.reps[e.Replica] = &replicaRecord{id: e.Replica, node: e.Node, f: name, gpus: c.p.experiment.Models[i].GPUs, adopted: true,
				asleep: e.Reason == string(functions.Sleeping)}
		}
	case "ready":
		delete(c.blocked, name)
		if b != nil {
			b.ready, b.readyAt, b.asleep, b.stopping, b.cancelled = true, c.now(), false, false, false
			if v, ok := c.p.st.Replica(b.id); ok && b.adopted {
				b.readyAt = v.Since // it was READY before this orchestrator started
			}
		}
	case "stop", "sleep":
		c.onStop(name, b, e)
		if b != nil {
			b.stopping = true
		}
	case "asleep":
		if b != nil {
			b.asleep, b.stopping, b.ready = true, false, false
		}
	case "wake_up":
		if b != nil {
			b.asleep = false
		}
		c.quota(name, "wake_up")
	case "start_cancelled":
		if b != nil {
			b.cancelled = true
		}
	case "ended", "failed", "load_refused":
		if e.Kind == "ended" || e.Replica != "" {
			delete(c.reps, e.Replica)
		}
	case "blocked":
		c.blocked[name] = true
	case "removed":
		// A single removed model is dropped at once: only a larger loss is distrusted.
		if !c.removed[name] && !c.viewUncertain() && len(c.p.experiment.Models)-len(c.removed) > 1 {
			c.fail(12, "%s is taken for removed, and was only not seen for a moment", name)
		}
	}
}

func (c *checker) onStart(name functions.Name, e functions.Event) {
	i := c.index(name)
	if i < 0 {
		return
	}
	starting, ready := 0, 0
	for _, b := range c.reps {
		switch {
		case b.f != name || b.stopping || b.cancelled || b.asleep:
		case b.ready || b.adopted:
			ready++
		default:
			starting++
		}
	}
	if ready == 0 && starting > 0 && !c.viewUncertain() {
		c.fail(4, "%s has a second start from zero, %s", name, e.Replica)
	}
	c.reps[e.Replica] = &replicaRecord{id: e.Replica, node: e.Node, f: name, gpus: c.p.experiment.Models[i].GPUs}
	c.quota(name, "start")
	if at := c.now(); at-c.startCounts[name].since > 10*time.Second {
		c.startCounts[name] = startCount{at, 1}
	} else if c.startCounts[name] = (startCount{c.startCounts[name].since, c.startCounts[name].starts + 1}); c.startCounts[name].starts > 20 {
		c.fail(4, "%s is started %d times in %v", name, c.startCounts[name].starts, at-c.startCounts[name].since)
	}
	if c.removed[name] {
		c.fail(12, "%s was started and is not in the catalogue", name)
	}
}

// quota checks that the GPUs the orchestrator holds for a team, stopping replicas
// included, do not exceed its maximum.
func (c *checker) quota(name functions.Name, text string) {
	maximum := c.p.experiment.team(name.Team).Max
	if maximum == 0 {
		return
	}
	if n := c.held(name.Team, true); n > maximum {
		c.fail(3, "a %s of %s gives team %s %d GPUs of at most %d", text, name, name.Team, n, maximum)
	}
}

// held returns the number of GPUs a team holds, with or without stopping replicas.
func (c *checker) held(team string, all bool) (n int) {
	for _, b := range c.reps {
		if b.f.Team == team && !b.asleep && (all || !b.stopping) {
			n += b.gpus
		}
	}
	return n
}

// idleReasons are the stop reasons that apply only to idle replicas.
var idleReasons = []string{"evicted", "idle", "surplus"}

func (c *checker) onStop(name functions.Name, b *replicaRecord, e functions.Event) {
	if b == nil {
		return
	}
	if slices.Contains(idleReasons, e.Reason) {
		c.p.st.Functions(func(f simulate.FunctionView) bool {
			if f.Name != name {
				return true
			}
			if n := f.InFlight[b.id]; n > 0 {
				c.fail(5, "%s of %s has %d requests in flight and got the command %s: %s", b.id, name, n, e.Kind, e.Reason)
			}
			if e.Reason == "idle" && !c.viewUncertain() && b.ready && c.now() > c.jumpedUntil && !c.p.experiment.Learn {
				i := c.index(name)
				last := max(c.lastEnd[name], b.readyAt)
				if idle := c.p.experiment.Models[i].Idle.Std(); i >= 0 && c.now()-last < idle-10*time.Millisecond {
					c.fail(11, "%s is idle since %v and ends at %v, its time is %v", name, last, c.now(), idle)
				}
			}
			return false
		})
	}
	if e.For == "" || b.asleep {
		return
	}
	evictor, err := functions.ParseName(e.For, "")
	if err != nil || evictor.Team == name.Team {
		return
	}
	i := c.index(evictor)
	if i < 0 {
		return
	}
	owner, borrower := c.p.experiment.team(name.Team), c.p.experiment.team(evictor.Team)
	if c.held(name.Team, false)-b.gpus < owner.Guaranteed && c.held(evictor.Team, false)+c.p.experiment.Models[i].GPUs > borrower.Guaranteed {
		c.fail(3, "%s of %s is taken for %s, which borrows: team %s is owed %d GPUs and keeps %d", b.id, name, evictor, name.Team,
			owner.Guaranteed, c.held(name.Team, false)-b.gpus)
	}
}

// step runs after every event.
func (c *checker) step() error {
	c.steps++
	if c.broken != nil {
		return c.broken
	}
	now := c.now()
	c.p.st.Requests(func(q simulate.RequestView) bool {
		if q.Waits && q.Deadline > 0 && now > q.Deadline+time.Millisecond {
			c.fail(2, "request %d of %s waits at %v, its deadline was %v", q.ID, q.Function, now, q.Deadline)
		}
		return c.broken == nil
	})
	for _, id := range c.p.st.Nodes() {
		n, _ := c.p.st.Node(id)
		for g, x := range n.Taken {
			if x > 1+1e-6 {
				c.fail(3, "GPU %d of %s is held %v times", g, id, x)
			}
		}
		if n.Memory.Used > n.Memory.Total {
			c.fail(3, "%s of host memory of %s are held, it has %s", n.Memory.Used, id, n.Memory.Total)
		}
	}
	if n := c.p.st.RefusedForSpace(); n > c.refusedForSpace {
		c.refusedForSpace = n
		certain := !c.viewUncertain()
		for _, id := range c.p.st.Nodes() {
			certain = certain && !c.recentlyBroken(id, time.Minute)
			n, _ := c.p.st.Node(id)
			for _, r := range n.Replicas {
				// A replica of a function that left the catalogue while the loop was
				// replaced is unknown to the new one until that one stops it.
				certain = certain && (r.State.Over() || c.reps[r.ID] != nil)
			}
		}
		if certain {
			c.fail(3, "a node got a start or wake-up for which it has no memory left")
		}
	}
	if now-c.recordedAt >= 250*time.Millisecond {
		c.recordedAt = now
		c.checkAndRecord()
	}
	return c.broken
}

// lasts reports whether condition key has held for longer than d.
func (c *checker) lasts(key string, holds bool, d time.Duration) bool {
	if !holds {
		delete(c.since, key)
		return false
	}
	at, ok := c.since[key]
	if !ok {
		c.since[key] = c.now()
		return false
	}
	return c.now()-at > d
}

// lostNodeDelay is the longest time until a silent node is given up: its lease, and a second
// look if all nodes are silent at once.
const lostNodeDelay = 20 * time.Second

// checkAndRecord checks conditions that may last only briefly, and records the state.
func (c *checker) checkAndRecord() {
	st := c.p.st
	var h maphash.Hash
	h.SetSeed(hashSeed)
	put := func(n int) { h.WriteByte(byte(min(n, 255))) }
	for _, id := range st.Nodes() {
		n, _ := st.Node(id)
		put(boolToInt(n.Dead)*2 + boolToInt(n.Mute))
		for _, r := range n.Replicas {
			h.WriteString(string(r.State))
			put(c.index(r.Function))
			put(boolToInt(r.Hung))
			put(sizeBucket(r.InFlight))
		}
	}
	st.Functions(func(f simulate.FunctionView) bool {
		put(sizeBucket(f.Queued))
		put(sizeBucket(f.Active))
		put(f.Ready)
		i := c.index(f.Name)
		if i < 0 {
			return true
		}
		m := &c.p.experiment.Models[i]
		if f.Queued > m.Queue {
			c.fail(2, "%d wait for %s, its queue takes %d", f.Queued, f.Name, m.Queue)
		}
		if c.lasts("known "+f.Name.String(), !f.Known && !c.removed[f.Name] && c.now() > time.Second && !c.viewUncertain(), 5*time.Second) {
			c.fail(12, "%s is in the catalogue, but the activator does not know it", f.Name)
		}
		for id := range f.InFlight {
			if b := c.reps[id]; b != nil {
				n, _ := st.Node(b.node)
				if c.lasts(fmt.Sprint("dark ", id, c.nodes[b.node]), (n.Dead || n.Mute) && !c.viewUncertain(), lostNodeDelay) {
					c.fail(10, "%s of %s is in the routes, its node %s has been silent for more than %v", id, f.Name, b.node, lostNodeDelay)
				}
			}
			r, ok := st.Replica(id)
			gone := !ok || r.State.Over()
			node := ""
			if b := c.reps[id]; b != nil {
				node = b.node
			}
			if c.lasts("gone "+id, gone && !c.viewUncertain() && (node == "" || !c.recentlyBroken(node, 15*time.Second)), 8*time.Second) {
				c.fail(10, "%s of %s is gone and still in the routes", id, f.Name)
			}
		}
		c.waiters(f, m)
		return c.broken == nil
	})
	c.states[h.Sum64()] = struct{}{}
}

// waiters checks that waiting requests get a replica, or the reason why not.
func (c *checker) waiters(f simulate.FunctionView, m *Model) {
	key := f.Name.String()
	room := f.Queued > 0 && f.Active < m.Target && f.Ready > 0
	if room {
		room = false
		for id := range f.InFlight {
			if b := c.reps[id]; b != nil && !c.touched[id] && !c.recentlyBroken(b.node, 20*time.Second) {
				room = true
			}
		}
	}
	if c.lasts("room "+key, room && !c.viewUncertain(), 15*time.Second) {
		c.fail(6, "%d wait for %s with %d at its %d replicas, which take %d each", f.Queued, f.Name, f.Active, f.Ready, m.Target)
	}
	alone := f.Queued > 0 && f.Ready == 0 && !c.viewUncertain()
	if alone {
		for _, b := range c.reps {
			if b.f == f.Name && !b.stopping && !b.cancelled {
				alone = false // another replica is starting
			}
		}
	}
	if alone {
		snapshot, ok := c.p.st.Loop().Function(f.Name)
		alone = ok && snapshot.Blocked == nil && snapshot.Failure == nil
	}
	if c.lasts("alone "+key, alone, 20*time.Second) {
		c.fail(6, "%d wait for %s, nothing is done for them and nothing is said", f.Queued, f.Name)
	}
}

// end checks that no request is left after the experiment.
func (c *checker) end() error {
	if c.broken == nil {
		n := 0
		c.p.st.Requests(func(q simulate.RequestView) bool {
			if n++; n == 1 {
				c.fail(1, "request %d of %s, which came at %v, has no end at %v", q.ID, q.Function, q.Arrived, c.now())
			}
			return false
		})
	}
	if c.broken == nil {
		for f := range c.expected {
			c.fail(1, "the last request of %s was never answered", f)
		}
	}
	return c.broken
}

var hashSeed = maphash.MakeSeed()

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sizeBucket maps a count to 0, 1, some or many.
func sizeBucket(n int) int {
	switch {
	case n <= 1:
		return n
	case n < 8:
		return 2
	}
	return 3
}
