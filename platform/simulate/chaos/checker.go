package chaos

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

func newWatch(p *run) *checker {
	return &checker{
		p: p, states: map[uint64]struct{}{}, ends: map[uint64]int{}, lastEnd: map[functions.Name]time.Duration{}, expected: map[functions.Name]bool{},
		reps: map[string]*replicaRecord{}, blocked: map[functions.Name]bool{}, startCounts: map[functions.Name]startCount{}, touched: map[string]bool{}, nodes: map[string]time.Duration{},
		touchedFunction: map[functions.Name]time.Duration{}, removed: map[functions.Name]bool{}, since: map[string]time.Duration{},
	}
}

func (w *checker) fail(invariant int, format string, args ...any) {
	if w.broken == nil {
		w.broken = fmt.Errorf("seed %d at %v: invariant %d: %s", w.p.experiment.Seed, w.now(), invariant, fmt.Sprintf(format, args...))
	}
}

func (w *checker) now() time.Duration {
	if w.p.st == nil {
		return 0
	}
	return w.p.st.Now()
}

// viewUncertain reports whether the orchestrator's view may be wrong.
func (w *checker) viewUncertain() bool { return w.now() < w.uncertainUntil }

func (w *checker) loopBroken(until time.Duration) { w.uncertainUntil = max(w.uncertainUntil, until) }

func (w *checker) nodeBroken(node string) { w.nodes[node] = w.now() }

// recentlyBroken reports whether a node is broken, or was within a duration.
func (w *checker) recentlyBroken(node string, within time.Duration) bool {
	n, ok := w.p.st.Node(node)
	at, was := w.nodes[node]
	return !ok || n.Dead || n.Mute || was && w.now()-at < within || w.now() < w.heartbeatsLostUntil
}

// reset clears the derived state: another orchestrator instance started.
func (w *checker) reset() {
	clear(w.reps)
	clear(w.blocked)
	clear(w.since)
	clear(w.lastEnd)
}

// excuse returns why a model may be unable to run; "" if it must run.
func (w *checker) excuse(i int) string {
	m := &w.p.experiment.Models[i]
	for k := range w.p.experiment.Models {
		if k != i && w.p.experiment.Models[k].Min > 0 {
			return "a function with a minimum of replicas may occupy its node"
		}
	}
	if w.p.experiment.Learn {
		for _, t := range w.p.experiment.Teams {
			if t.Name != m.Team && t.Guaranteed > 0 {
				return "another team may keep its guaranteed GPUs for longer than a request waits"
			}
		}
	}
	if t := w.p.experiment.team(m.Team); t.Max > 0 && m.GPUs > t.Max {
		return "quota"
	}
	for _, h := range w.p.experiment.Hosts {
		if h.GPUs >= m.GPUs && h.Store >= m.Size {
			return ""
		}
	}
	return "size"
}

// expect requires that the next request to f is answered.
func (w *checker) expect(f functions.Name) {
	w.expected[f] = true
}

func (w *checker) index(f functions.Name) int {
	for i := range w.p.experiment.Models {
		if w.p.experiment.name(i) == f {
			return i
		}
	}
	return -1
}

// onRequestEnd handles the end of a request.
func (w *checker) onRequestEnd(f simulate.RequestEnd) {
	if w.ends[f.ID]++; w.ends[f.ID] > 1 {
		w.fail(1, "request %d of %s has ended twice, now as %q", f.ID, f.Function, f.Code)
	}
	if f.First > 0 { // a request that only waited did not use the replica
		w.lastEnd[f.Function] = w.now()
	}
	if f.Code == "" {
		w.answered++
		delete(w.expected, f.Function)
		return
	}
	if w.expected[f.Function] && f.Arrived >= w.p.experiment.FaultsEnd.Std()+finalPause {
		w.fail(6, "request %d of %s, after the last fault, ended as %s: %s", f.ID, f.Function, f.Code, f.Message)
	}
	switch f.Code {
	case simulate.EndBroken, "engine_crashed":
		r := f.Replica
		if w.touched[r] || w.viewUncertain() {
			return
		}
		if b := w.reps[r]; b != nil && w.recentlyBroken(b.node, time.Minute) {
			return
		}
		if v, ok := w.p.st.Replica(r); ok && w.recentlyBroken(v.Node, time.Minute) {
			return
		}
		if b := w.reps[r]; b == nil { // its node is unknown: any broken one explains it
			for _, n := range w.p.st.Nodes() {
				if w.recentlyBroken(n, time.Minute) {
					return
				}
			}
		}
		w.fail(5, "request %d of %s failed on %s, which nothing had broken: %s %s", f.ID, f.Function, r, f.Code, f.Message)
	}
}

// event handles an event of the orchestrator.
func (w *checker) event(e functions.Event) {
	if w.broken != nil || w.p.st == nil {
		return
	}
	name, _ := functions.ParseName(e.Function, "")
	b := w.reps[e.Replica]
	switch e.Kind {
	case "start":
		w.onStart(name, e)
	case "adopted":
		if i := w.index(name); i >= 0 {
			w.reps[e.Replica] = &replicaRecord{id: e.Replica, node: e.Node, f: name, gpus: w.p.experiment.Models[i].GPUs, adopted: true, asleep: e.Reason == string(functions.Sleeping)}
		}
	case "ready":
		delete(w.blocked, name)
		if b != nil {
			b.ready, b.readyAt, b.asleep, b.stopping, b.cancelled = true, w.now(), false, false, false
			if v, ok := w.p.st.Replica(b.id); ok && b.adopted {
				b.readyAt = v.Since // it was READY before this orchestrator started
			}
		}
	case "stop", "sleep":
		w.onStop(name, b, e)
		if b != nil {
			b.stopping = true
		}
	case "asleep":
		if b != nil {
			b.asleep, b.stopping, b.ready = true, false, false
		}
	case "rise":
		if b != nil {
			b.asleep = false
		}
		w.quota(name, "rise")
	case "call_off":
		if b != nil {
			b.cancelled = true
		}
	case "ended", "failed", "load_refused":
		if e.Kind == "ended" || e.Replica != "" {
			delete(w.reps, e.Replica)
		}
	case "blocked":
		w.blocked[name] = true
	case "removed":
		// A single removed model is dropped at once: only a larger loss is distrusted.
		if !w.removed[name] && !w.viewUncertain() && len(w.p.experiment.Models)-len(w.removed) > 1 {
			w.fail(12, "%s is taken for removed, and was only not seen for a moment", name)
		}
	}
}

func (w *checker) onStart(name functions.Name, e functions.Event) {
	i := w.index(name)
	if i < 0 {
		return
	}
	starting, ready := 0, 0
	for _, b := range w.reps {
		switch {
		case b.f != name || b.stopping || b.cancelled || b.asleep:
		case b.ready || b.adopted:
			ready++
		default:
			starting++
		}
	}
	if ready == 0 && starting > 0 && !w.viewUncertain() {
		w.fail(4, "%s has a second start from zero, %s", name, e.Replica)
	}
	w.reps[e.Replica] = &replicaRecord{id: e.Replica, node: e.Node, f: name, gpus: w.p.experiment.Models[i].GPUs}
	w.quota(name, "start")
	if at := w.now(); at-w.startCounts[name].since > 10*time.Second {
		w.startCounts[name] = startCount{at, 1}
	} else if w.startCounts[name] = (startCount{w.startCounts[name].since, w.startCounts[name].starts + 1}); w.startCounts[name].starts > 20 {
		w.fail(4, "%s is started %d times in %v", name, w.startCounts[name].starts, at-w.startCounts[name].since)
	}
	if w.removed[name] {
		w.fail(12, "%s was started and is not in the catalogue", name)
	}
}

// quota checks that the GPUs the orchestrator holds for a team, stopping replicas
// included, do not exceed its maximum.
func (w *checker) quota(name functions.Name, text string) {
	maximum := w.p.experiment.team(name.Team).Max
	if maximum == 0 {
		return
	}
	if n := w.held(name.Team, true); n > maximum {
		w.fail(3, "a %s of %s gives team %s %d GPUs of at most %d", text, name, name.Team, n, maximum)
	}
}

// held returns the number of GPUs a team holds, with or without stopping replicas.
func (w *checker) held(team string, all bool) (n int) {
	for _, b := range w.reps {
		if b.f.Team == team && !b.asleep && (all || !b.stopping) {
			n += b.gpus
		}
	}
	return n
}

// idleReasons are the stop reasons that apply only to idle replicas.
var idleReasons = []string{"evicted", "idle", "surplus"}

func (w *checker) onStop(name functions.Name, b *replicaRecord, e functions.Event) {
	if b == nil {
		return
	}
	if slices.Contains(idleReasons, e.Reason) {
		w.p.st.Functions(func(f simulate.FunctionView) bool {
			if f.Name != name {
				return true
			}
			if n := f.InFlight[b.id]; n > 0 {
				w.fail(5, "%s of %s has %d requests in flight and got the command %s: %s", b.id, name, n, e.Kind, e.Reason)
			}
			if e.Reason == "idle" && !w.viewUncertain() && b.ready && w.now() > w.jumpedUntil && !w.p.experiment.Learn {
				i := w.index(name)
				last := max(w.lastEnd[name], b.readyAt)
				if idle := w.p.experiment.Models[i].Idle.Std(); i >= 0 && w.now()-last < idle-10*time.Millisecond {
					w.fail(11, "%s is idle since %v and ends at %v, its time is %v", name, last, w.now(), idle)
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
	i := w.index(evictor)
	if i < 0 {
		return
	}
	owner, borrower := w.p.experiment.team(name.Team), w.p.experiment.team(evictor.Team)
	if w.held(name.Team, false)-b.gpus < owner.Guaranteed && w.held(evictor.Team, false)+w.p.experiment.Models[i].GPUs > borrower.Guaranteed {
		w.fail(3, "%s of %s is taken for %s, which borrows: team %s is owed %d GPUs and keeps %d", b.id, name, evictor, name.Team, owner.Guaranteed, w.held(name.Team, false)-b.gpus)
	}
}

// step runs after every event.
func (w *checker) step() error {
	w.steps++
	if w.broken != nil {
		return w.broken
	}
	now := w.now()
	w.p.st.Requests(func(q simulate.RequestView) bool {
		if q.Waits && q.Deadline > 0 && now > q.Deadline+time.Millisecond {
			w.fail(2, "request %d of %s waits at %v, its deadline was %v", q.ID, q.Function, now, q.Deadline)
		}
		return w.broken == nil
	})
	for _, id := range w.p.st.Nodes() {
		n, _ := w.p.st.Node(id)
		for g, x := range n.Taken {
			if x > 1+1e-6 {
				w.fail(3, "GPU %d of %s is held %v times", g, id, x)
			}
		}
		if n.Memory.Used > n.Memory.Total {
			w.fail(3, "%s of host memory of %s are held, it has %s", n.Memory.Used, id, n.Memory.Total)
		}
	}
	if n := w.p.st.RefusedForSpace(); n > w.refusedForSpace {
		w.refusedForSpace = n
		certain := !w.viewUncertain()
		for _, id := range w.p.st.Nodes() {
			certain = certain && !w.recentlyBroken(id, time.Minute)
			n, _ := w.p.st.Node(id)
			for _, r := range n.Replicas {
				// A replica of a function that left the catalogue while the loop was
				// replaced is unknown to the new one until that one stops it.
				certain = certain && (r.State.Over() || w.reps[r.ID] != nil)
			}
		}
		if certain {
			w.fail(3, "a node got a start or wake-up for which it has no memory left")
		}
	}
	if now-w.recordedAt >= 250*time.Millisecond {
		w.recordedAt = now
		w.checkAndRecord()
	}
	return w.broken
}

// lasts reports whether condition key has held for longer than d.
func (w *checker) lasts(key string, holds bool, d time.Duration) bool {
	if !holds {
		delete(w.since, key)
		return false
	}
	at, ok := w.since[key]
	if !ok {
		w.since[key] = w.now()
		return false
	}
	return w.now()-at > d
}

// lostNodeDelay is the longest time until a silent node is given up: its lease, and a second
// look if all nodes are silent at once.
const lostNodeDelay = 20 * time.Second

// checkAndRecord checks conditions that may last only briefly, and records the state.
func (w *checker) checkAndRecord() {
	st := w.p.st
	var h maphash.Hash
	h.SetSeed(hashSeed)
	put := func(n int) { h.WriteByte(byte(min(n, 255))) }
	for _, id := range st.Nodes() {
		n, _ := st.Node(id)
		put(boolToInt(n.Dead)*2 + boolToInt(n.Mute))
		for _, r := range n.Replicas {
			h.WriteString(string(r.State))
			put(w.index(r.Function))
			put(boolToInt(r.Hung))
			put(sizeBucket(r.InFlight))
		}
	}
	st.Functions(func(f simulate.FunctionView) bool {
		put(sizeBucket(f.Queued))
		put(sizeBucket(f.Active))
		put(f.Ready)
		i := w.index(f.Name)
		if i < 0 {
			return true
		}
		m := &w.p.experiment.Models[i]
		if f.Queued > m.Queue {
			w.fail(2, "%d wait for %s, its queue takes %d", f.Queued, f.Name, m.Queue)
		}
		if w.lasts("known "+f.Name.String(), !f.Known && !w.removed[f.Name] && w.now() > time.Second && !w.viewUncertain(), 5*time.Second) {
			w.fail(12, "%s is in the catalogue, but the activator does not know it", f.Name)
		}
		for id := range f.InFlight {
			if b := w.reps[id]; b != nil {
				n, _ := st.Node(b.node)
				if w.lasts(fmt.Sprint("dark ", id, w.nodes[b.node]), (n.Dead || n.Mute) && !w.viewUncertain(), lostNodeDelay) {
					w.fail(10, "%s of %s is in the routes, its node %s has been silent for more than %v", id, f.Name, b.node, lostNodeDelay)
				}
			}
			r, ok := st.Replica(id)
			gone := !ok || r.State.Over()
			node := ""
			if b := w.reps[id]; b != nil {
				node = b.node
			}
			if w.lasts("gone "+id, gone && !w.viewUncertain() && (node == "" || !w.recentlyBroken(node, 15*time.Second)), 8*time.Second) {
				w.fail(10, "%s of %s is gone and still in the routes", id, f.Name)
			}
		}
		w.waiters(f, m)
		return w.broken == nil
	})
	w.states[h.Sum64()] = struct{}{}
}

// waiters checks that waiting requests get a replica, or the reason why not.
func (w *checker) waiters(f simulate.FunctionView, m *Model) {
	key := f.Name.String()
	room := f.Queued > 0 && f.Active < m.Target && f.Ready > 0
	if room {
		room = false
		for id := range f.InFlight {
			if b := w.reps[id]; b != nil && !w.touched[id] && !w.recentlyBroken(b.node, 20*time.Second) {
				room = true
			}
		}
	}
	if w.lasts("room "+key, room && !w.viewUncertain(), 15*time.Second) {
		w.fail(6, "%d wait for %s with %d at its %d replicas, which take %d each", f.Queued, f.Name, f.Active, f.Ready, m.Target)
	}
	alone := f.Queued > 0 && f.Ready == 0 && !w.viewUncertain()
	if alone {
		for _, b := range w.reps {
			if b.f == f.Name && !b.stopping && !b.cancelled {
				alone = false // another replica is starting
			}
		}
	}
	if alone {
		pic, ok := w.p.st.Loop().Function(f.Name)
		alone = ok && pic.Blocked == nil && pic.Failure == nil
	}
	if w.lasts("alone "+key, alone, 20*time.Second) {
		w.fail(6, "%d wait for %s, nothing is done for them and nothing is said", f.Queued, f.Name)
	}
}

// end checks that no request is left after the experiment.
func (w *checker) end() error {
	if w.broken == nil {
		n := 0
		w.p.st.Requests(func(q simulate.RequestView) bool {
			if n++; n == 1 {
				w.fail(1, "request %d of %s, which came at %v, has no end at %v", q.ID, q.Function, q.Arrived, w.now())
			}
			return false
		})
	}
	if w.broken == nil {
		for f := range w.expected {
			w.fail(1, "the last request of %s was never answered", f)
		}
	}
	return w.broken
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
