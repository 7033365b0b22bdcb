package orchestrator

import (
	"encoding/json"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// world is the loop's: everything it knows.
type world struct {
	teams     map[string]*account
	payers    []*account // of teams, in the order in which they came
	accounted placement.Instant
	fenced    bool // some team has a share of the stores
	rebar     bool // a team's budget is used up, or is there again
	ghosts    placement.Ghosts

	sched   placement.World // as the core knows it
	plan    *placement.Planner
	fns     map[functions.Name]*fn
	list    []*fn // of sched.Functions, in the same order
	nodes   map[string]*node
	reps    map[string]*rep
	orphans map[string]placement.Instant // unknown replicas, since when
	stirred []*fn                        // of which there is news for the core
	dirty   []*fn                        // pictures that changed
	busy    crowd[*fn]                   // functions that had demand in the last turn
	drains  crowd[*rep]
	again   crowd[*rep]           // an unload is to be repeated
	wanted  crowd[functions.Name] // adapters to be loaded ahead
	sinks   crowd[*rep]           // to be sent to sleep
	rising  crowd[*rep]           // told to wake

	settling []*fn                      // memory of stirred, used again
	starting crowd[*fn]                 // a cold start of it is under way
	copies   map[string]int             // nodes that have a source's bytes
	sizes    map[string]functions.Bytes // of checkpoints, by source
	colds    coldStarts

	last   placement.Instant // of the last turn
	ticked placement.Instant // of the last turn that looked at everybody who is busy
	turns  uint64
	showed placement.Instant // progress was published
	silent placement.Instant // when a node may be lost, at the earliest
	shrunk placement.Instant // since when the catalogue looks suspiciously small
	loaded bool              // the catalogue was read once
	graced bool              // agents that were there before have had their time to be heard

	superseded bool // a newer server commands the agents
}

func newWorld(p placement.Policy) world {
	return world{
		plan: p.Planner(), teams: map[string]*account{}, copies: map[string]int{},
		fns: map[functions.Name]*fn{}, nodes: map[string]*node{}, reps: map[string]*rep{},
		orphans: map[string]placement.Instant{}, colds: coldStarts{byID: map[string]*cold{}},
	}
}

// fn is a function in the loop.
type fn struct {
	placement.Function
	charged  charged
	model    *functions.Model
	recipe   uint64
	load     *placement.Load // its windows; nil at rest
	reps     []*rep
	failures int               // starts in a row that failed
	refused  int               // loads in a row that no agent took
	deaths   int               // deaths in a row soon after READY
	failure  *snapshot.Failure // told to waiters until its back-off is over
	blocked  *snapshot.Blocked
	cold     *cold // the newest cold start
	history  history
	prospect prospect
	turn     uint64            // last turn that saw demand
	retry    placement.Instant // lease of wakes, until nobody waits
	held     placement.Instant // lease somebody took
	once     bool              // somebody wants it READY once, waiting or not
	soiled   bool              // its picture is to be published
	stirred  bool              // the core is to be told of it

	past struct { // of its last replica that ended
		at     placement.Instant
		reason string
	}
}

// node is an agent in the loop.
type node struct {
	*placement.Node
	id    string
	to    Node
	hb    functions.Heartbeat
	at    time.Time
	stale bool   // it refuses us: a newer server has spoken
	reps  []*rep // that are, or are to be, on it
	beats uint64 // taken in
	looks uint64 // looked at
	named []*rep // by the last of them, nil where unknown
	spare []*rep
	extra map[string]bool // sources that are here because a READY replica is, and in no list

	life    string // of the agent, and the number of the last heartbeat of it
	seq     uint64
	before  []string // its earlier lives
	change  uint64
	settled int               // replicas on it when all was as both sides thought; -1 it was not
	doubt   placement.Instant // since when what it says is hard to believe; 0 it is not
	doubted bool              // its silence was, and it was given more time

	link, disk gauge
}

// rep is a replica in the loop, from the decision to start it.
type rep struct {
	id     string
	fn     *fn
	node   string
	recipe uint64
	take   functions.Resources
	gpus   []int
	status functions.ReplicaStatus
	cold   *cold // the cold start it is, nil for an adopted one

	asked     placement.Instant // the load was sent
	accepted  placement.Instant // the agent took it
	seen      bool              // in a heartbeat
	listed    uint64            // the last heartbeat of its node that told of it
	looked    uint64            // that named it, believed or not
	forgotten bool              // it is in no book any more
	readyAt   placement.Instant

	cause     string // why it was started
	stopping  bool
	reason    string
	drainEnd  placement.Instant
	unloading bool
	calledOff bool
	again     placement.Instant // when an unload that had no effect is repeated
	nap       nap
}

// serves reports whether requests are sent to it.
func (r *rep) serves() bool {
	return r.status.State == functions.Ready && !r.stopping && !r.calledOff && !r.nap.sinking
}

const quickDeath = time.Minute // a replica that dies sooner after READY counts as a failing one

// recipe is what a replica is made from. Scale, queue and deadlines are not in
// it: changing them restarts nothing.
func recipe(spec functions.ModelSpec, dir string) uint64 {
	spec.Scale, spec.Queue, spec.Deadlines = functions.Scale{}, functions.Queue{}, functions.Deadlines{}
	spec.Resources.CPU, spec.Pod = 0, functions.Pod{} // how it is placed makes no other replica
	h := fnv.New64a()
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err) // a ModelSpec is plain data
	}
	h.Write(b)
	if isLocal(spec.Source) {
		h.Write([]byte(dir))
	}
	return h.Sum64()
}

// location is the one spelling of a source, as stores list it.
func location(source, dir string) string {
	if _, l, err := loader.Locate(source, dir); err == nil {
		return l
	}
	return source
}

// isLocal reports whether a source is a folder of the machine that read the file.
func isLocal(source string) bool {
	return source != "" && (strings.HasPrefix(source, "file:") || !strings.Contains(source, "://"))
}

func (f *fn) set(m *functions.Model, machine string) {
	f.model = m
	f.recipe = recipe(m.Spec, m.Dir)
	f.Name = m.FullName()
	f.Resources, f.Scale, f.Drain = m.Spec.Resources, m.Spec.Scale, m.Spec.Deadlines.Drain.Std()
	f.Requires = m.Spec.Pod.Requires()
	f.Source = location(m.Spec.Source, m.Dir)
	f.Sleeps = engine.Sleeps(m.Spec)
	f.Machine = ""
	if isLocal(m.Spec.Source) {
		f.Machine = machine
	}
	f.Gone = false
}

// sync writes the replicas down as schedule sees them.
func (f *fn) sync(inFlight func(functions.Name, string) int) {
	f.Replicas = f.Replicas[:0]
	for _, r := range f.reps {
		s := placement.Replica{
			ID: r.id, Node: r.node, State: r.status.State, GPUs: r.gpus, Take: r.take, ReadyAt: r.readyAt,
			Spawned: spawned(r.status), Stopping: r.stopping, Dismissed: r.stopping && r.reason == asked, CalledOff: r.calledOff, Stale: r.recipe != f.recipe,
			SleptAt: r.nap.slept, Rising: r.nap.rising, Deep: r.nap.level == deepLevel, Held: r.nap.held,
			// Until it has said that the memory is free, it is not.
			Sinking: r.nap.sinking || r.status.State == functions.Sleeping && r.status.SleepLevel == 0 && !r.nap.rising,
		}
		if r.readyAt > 0 {
			s.InFlight = inFlight(f.Name, r.id)
		}
		f.Replicas = append(f.Replicas, s)
	}
}

// spawned reports whether a replica has, or has had, a process.
func spawned(st functions.ReplicaStatus) bool {
	switch st.State {
	case functions.Loading, functions.Ready, functions.Sleeping, functions.Draining:
		return true
	}
	for _, p := range st.Phases {
		if p.Phase == functions.PhaseSpawn || p.Phase == functions.PhaseLoad {
			return true
		}
	}
	return false
}

// set takes a heartbeat in. It reports whether anything of it matters to the core.
func (n *node) set(b beat, now placement.Instant) (changed bool) {
	hb := &b.hb
	n.to, n.at, n.Seen = b.node, b.at, now
	note(&changed, &n.Machine, hb.Machine)
	note(&changed, &n.Borrows, hb.Borrows)
	memory := hb.Memory.Total
	if memory == 0 {
		memory = math.MaxInt64 / 4 // it does not say: not ours to limit
	}
	for _, w := range hb.Warm {
		if w.Kept {
			memory = max(memory-w.Memory, 0)
		}
	}
	note(&changed, &n.Memory, memory)
	note(&changed, &n.CPU, hb.CPU)
	note(&changed, &n.Pods, hb.Pods)
	if len(n.Bars) != len(hb.Bars) || slices.ContainsFunc(hb.Bars, func(b string) bool { return !n.Bars[b] }) {
		n.Bars, changed = make(map[string]bool, len(hb.Bars)), true
		for _, b := range hb.Bars {
			n.Bars[b] = true
		}
	}
	note(&changed, &n.Sleep, hb.Sleep)
	same := len(n.GPUs) == len(hb.GPUs)
	for i := 0; same && i < len(hb.GPUs); i++ {
		same = n.GPUs[i] == gpu(hb.GPUs[i])
	}
	if !same {
		gpus := make([]placement.GPU, 0, len(hb.GPUs))
		for _, g := range hb.GPUs {
			gpus = append(gpus, gpu(g))
		}
		n.GPUs, changed = gpus, true
	}
	changed = n.stored(hb.Store) || changed
	n.hb = *hb
	return changed
}

func gpu(g functions.GPU) placement.GPU {
	return placement.GPU{Index: g.Index, Memory: g.MemoryTotal, Sick: sick(g), Group: g.Group}
}

// note writes v down where it was not known.
func note[T comparable](changed *bool, to *T, v T) {
	if *to != v {
		*to, *changed = v, true
	}
}

// picture is what the data path is told of a function.
func (s *Steer) picture(f *fn) snapshot.Snapshot {
	p := snapshot.Snapshot{
		Name: f.Name, Model: f.model, Progress: functions.NoProgress,
		Forecast: s.forecast(f), Failure: f.failure, Blocked: f.blocked,
	}
	for _, r := range f.reps {
		if r.stopping || r.calledOff {
			continue
		}
		st := r.status.State
		if r.serves() && r.status.Endpoint != "" {
			p.Replicas = append(p.Replicas, snapshot.Replica{
				ID: r.id, Node: r.node, Endpoint: r.status.Endpoint, Token: s.bearer(r), Key: r.status.Key, Adapters: r.status.Adapters,
			})
		}
		p.Sleeping = p.Sleeping || st == functions.Sleeping
	}
	p.State = s.state(f)
	if f.cold != nil {
		t := s.timeline(f.cold)
		p.ColdStart = &t
		if !f.cold.over {
			p.Progress = t.Progress
		}
	}
	return p
}

// state is that of f's best replica; without one, whether it is being placed,
// has failed, or rests.
func (s *Steer) state(f *fn) functions.State {
	best, rank := functions.Unloaded, 0
	for _, r := range f.reps {
		st := r.status.State
		switch {
		case r.nap.rising && st == functions.Sleeping:
			st = functions.Loading
		case r.nap.sinking && st == functions.Ready:
			st = functions.Sleeping
		}
		if k := order(st); k > rank && !r.stopping && !r.calledOff {
			best, rank = st, k
		}
	}
	switch {
	case rank > 0:
	case f.cold != nil && !f.cold.over && f.blocked == nil:
		return functions.Downloading
	case f.failure != nil:
		return functions.Failed
	}
	return best
}

// forecast of the next start of f: a rise, where one of it sleeps.
func (s *Steer) forecast(f *fn) functions.Forecast {
	if i := slices.IndexFunc(f.reps, func(r *rep) bool { return r.asleep() && !r.stopping }); i >= 0 {
		deep := f.reps[i].nap.level == deepLevel
		return functions.Forecast{P50: f.history.rises(deep, 50), P90: f.history.rises(deep, 90)}
	}
	return f.history.forecast(s.atHand(f))
}

// atHand reports whether a node has the bytes of f.
func (s *Steer) atHand(f *fn) bool {
	if f.Machine != "" || f.Source == "" {
		return true
	}
	return s.copies[f.Source] > 0
}

func order(st functions.State) int {
	switch st {
	case functions.Ready:
		return 4
	case functions.Sleeping:
		return 3
	case functions.Loading:
		return 2
	case functions.Downloading:
		return 1
	}
	return 0
}

// bearer of a replica: only one behind its agent's own door wants it.
func (s *Steer) bearer(r *rep) string {
	if n := s.nodes[r.node]; n != nil && n.hb.URL != "" && strings.HasPrefix(r.status.Endpoint, strings.TrimRight(n.hb.URL, "/")+"/") {
		return s.token
	}
	return ""
}
