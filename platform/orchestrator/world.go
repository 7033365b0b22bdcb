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
	"github.com/thaw-dev/thaw/platform/autoscale"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/quota"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// world is the state of the loop.
type world struct {
	accounts       *quota.Accounts
	settledAt      placement.Instant
	storeLimited   bool // some team has a share of the stores
	budgetsChanged bool // a team's budget is used up, or is there again
	ghosts         placement.Ghosts

	placementWorld placement.World // as the core knows it
	planner        *placement.Planner
	functions      map[functions.Name]*functionState
	functionList   []*functionState // of sched.Functions, in the same order
	nodes          map[string]*nodeState
	replicas       map[string]*replicaState
	orphans        map[string]placement.Instant // unknown replicas, since when
	pending        []*functionState             // of which there is news for the core
	dirty          []*functionState             // pictures that changed
	busyFunctions  orderedSet[*functionState]   // functions that had demand in the last turn
	draining       orderedSet[*replicaState]
	unloadRetries  orderedSet[*replicaState]  // an unload is to be repeated
	wantedAdapters orderedSet[functions.Name] // adapters to be loaded ahead
	goingToSleep   orderedSet[*replicaState]  // to be sent to sleep
	wakingUp       orderedSet[*replicaState]  // told to wake

	sparePending []*functionState           // memory of stirred, used again
	starting     orderedSet[*functionState] // a cold start of it is under way
	copies       map[string]int             // nodes that have a source's bytes
	sizes        map[string]functions.Bytes // of checkpoints, by source
	coldStarts   coldStartLog

	lastTurn         placement.Instant // of the last turn
	lastTick         placement.Instant // of the last turn that looked at all busy functions
	turns            uint64
	progressAt       placement.Instant // progress was published
	nextSilenceCheck placement.Instant // when a node may be lost, at the earliest
	catalogShrunkAt  placement.Instant // since when the catalogue looks suspiciously small
	catalogRead      bool              // the catalogue was read once
	startGraceOver   bool              // agents that were there before have had their time to be heard

	superseded bool // a newer server commands the agents
}

func newWorld(p placement.Policy) world {
	return world{
		planner: p.Planner(), copies: map[string]int{},
		functions: map[functions.Name]*functionState{}, nodes: map[string]*nodeState{}, replicas: map[string]*replicaState{},
		orphans: map[string]placement.Instant{}, coldStarts: coldStartLog{byID: map[string]*coldStart{}},
	}
}

// functionState is a function in the loop.
type functionState struct {
	placement.Function
	charged    quota.Holdings
	model      *functions.Model
	recipe     uint64
	load       *autoscale.Load // its windows; nil at rest
	replicas   []*replicaState
	failures   int               // starts in a row that failed
	refusals   int               // loads in a row that no agent took
	deaths     int               // deaths in a row soon after READY
	failure    *snapshot.Failure // told to waiters until its back-off is over
	blocked    *snapshot.Blocked
	coldStart  *coldStart // the newest cold start
	starts     forecast.StartTimes
	usage      usageHistory
	demandTurn uint64            // last turn that saw demand
	wakeLease  placement.Instant // lease of wakes, while requests wait
	userLease  placement.Instant // lease of WakeFor
	untilReady bool              // to be READY once, with or without waiters
	toPublish  bool              // its picture is to be published
	enqueued   bool              // the core is to be told of it

	lastEnd struct { // of its last replica that ended
		at     placement.Instant
		reason string
	}
}

// nodeState is an agent in the loop.
type nodeState struct {
	*placement.Node
	id           string
	commands     Node
	last         functions.Heartbeat
	heardAt      time.Time
	stale        bool            // it refuses us: a newer server has spoken
	replicas     []*replicaState // that are, or are to be, on it
	heartbeats   uint64          // taken in
	matches      uint64          // looked at
	matched      []*replicaState // by the last of them, nil where unknown
	spareMatched []*replicaState
	fromReady    map[string]bool // sources that are here because a READY replica is, and in no list

	life             string // of the agent, and the number of the last heartbeat of it
	seq              uint64
	pastLives        []string // its earlier lives
	change           uint64
	settledCount     int               // replicas on it when all was as both sides thought; -1 it was not
	implausibleSince placement.Instant // since when what it says is hard to believe; 0 it is not
	leaseExtended    bool              // its silence was, and it was given more time

	linkRate, diskRate forecast.RateGauge
}

// replicaState is a replica in the loop, from the decision to start it.
type replicaState struct {
	id        string
	function  *functionState
	node      string
	recipe    uint64
	reserved  functions.Resources
	gpus      []int
	status    functions.ReplicaStatus
	coldStart *coldStart // the cold start it is, nil for an adopted one

	requestedAt placement.Instant // the load was sent
	acceptedAt  placement.Instant // the agent took it
	seen        bool              // in a heartbeat
	listed      uint64            // the last heartbeat of its node that told of it
	matched     uint64            // that named it, believed or not
	forgotten   bool              // it is in no book any more
	readyAt     placement.Instant

	cause         string // why it was started
	stopping      bool
	reason        string
	drainEnd      placement.Instant
	unloading     bool
	cancelled     bool
	retryUnloadAt placement.Instant // when an unload that had no effect is repeated
	sleep         sleepState
}

// serves reports whether requests are sent to it.
func (r *replicaState) serves() bool {
	return r.status.State == functions.Ready && !r.stopping && !r.cancelled && !r.sleep.goingToSleep
}

const earlyDeath = time.Minute // a replica that dies sooner after READY counts as a failing one

// recipeHash identifies what a replica is made from. Scale, queue and deadlines are
// not part of it: changing them restarts nothing.
func recipeHash(spec functions.ModelSpec, dir string) uint64 {
	spec.Scale, spec.Queue, spec.Deadlines = functions.Scale{}, functions.Queue{}, functions.Deadlines{}
	spec.Resources.CPU, spec.Pod = 0, functions.Pod{} // how it is placed makes no other replica
	h := fnv.New64a()
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err) // a ModelSpec is plain data
	}
	h.Write(b)
	if isLocalFolder(spec.Source) {
		h.Write([]byte(dir))
	}
	return h.Sum64()
}

// sourceLocation is the one spelling of a source, as stores list it.
func sourceLocation(source, dir string) string {
	if _, l, err := loader.Locate(source, dir); err == nil {
		return l
	}
	return source
}

// isLocalFolder reports whether a source is a folder of the machine that read the file.
func isLocalFolder(source string) bool {
	return source != "" && (strings.HasPrefix(source, "file:") || !strings.Contains(source, "://"))
}

func (f *functionState) setModel(m *functions.Model, machine string) {
	f.model = m
	f.recipe = recipeHash(m.Spec, m.Dir)
	f.Name = m.FullName()
	f.Resources, f.Scale, f.Drain = m.Spec.Resources, m.Spec.Scale, m.Spec.Deadlines.Drain.Std()
	f.Requires = m.Spec.Pod.Requires()
	f.Source = sourceLocation(m.Spec.Source, m.Dir)
	f.Sleeps = engine.Sleeps(m.Spec)
	f.Machine = ""
	if isLocalFolder(m.Spec.Source) {
		f.Machine = machine
	}
	f.Gone = false
}

// copyReplicas writes the replicas as the planner reads them.
func (f *functionState) copyReplicas(inFlight func(functions.Name, string) int) {
	f.Replicas = f.Replicas[:0]
	for _, r := range f.replicas {
		s := placement.Replica{
			ID: r.id, Node: r.node, State: r.status.State, GPUs: r.gpus, Reserved: r.reserved, ReadyAt: r.readyAt,
			Spawned: hasProcess(r.status), Stopping: r.stopping, StoppedByUser: r.stopping && r.reason == reasonUser, Cancelled: r.cancelled, Stale: r.recipe != f.recipe,
			SleptAt: r.sleep.asleepSince, WakingUp: r.sleep.wakingUp, Deep: r.sleep.level == deepLevel, SleepMemory: r.sleep.hostMemory,
			// Until it has said that the memory is free, it is not.
			GoingToSleep: r.sleep.goingToSleep || r.status.State == functions.Sleeping && r.status.SleepLevel == 0 && !r.sleep.wakingUp,
		}
		if r.readyAt > 0 {
			s.InFlight = inFlight(f.Name, r.id)
		}
		f.Replicas = append(f.Replicas, s)
	}
}

// hasProcess reports whether a replica has, or has had, a process.
func hasProcess(st functions.ReplicaStatus) bool {
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

// setFrom applies a heartbeat. It reports whether the planner must know.
func (n *nodeState) setFrom(b heartbeat, now placement.Instant) (changed bool) {
	hb := &b.message
	n.commands, n.heardAt, n.Seen = b.node, b.at, now
	setIfChanged(&changed, &n.Machine, hb.Machine)
	setIfChanged(&changed, &n.Borrows, hb.Borrows)
	memory := hb.Memory.Total
	if memory == 0 {
		memory = math.MaxInt64 / 4 // it does not say: not ours to limit
	}
	for _, w := range hb.Warm {
		if w.Kept {
			memory = max(memory-w.Memory, 0)
		}
	}
	setIfChanged(&changed, &n.Memory, memory)
	setIfChanged(&changed, &n.CPU, hb.CPU)
	setIfChanged(&changed, &n.Pods, hb.Pods)
	if len(n.Rejects) != len(hb.Bars) || slices.ContainsFunc(hb.Bars, func(b string) bool { return !n.Rejects[b] }) {
		n.Rejects, changed = make(map[string]bool, len(hb.Bars)), true
		for _, b := range hb.Bars {
			n.Rejects[b] = true
		}
	}
	setIfChanged(&changed, &n.Sleep, hb.Sleep)
	same := len(n.GPUs) == len(hb.GPUs)
	for i := 0; same && i < len(hb.GPUs); i++ {
		same = n.GPUs[i] == placementGPU(hb.GPUs[i])
	}
	if !same {
		gpus := make([]placement.GPU, 0, len(hb.GPUs))
		for _, g := range hb.GPUs {
			gpus = append(gpus, placementGPU(g))
		}
		n.GPUs, changed = gpus, true
	}
	changed = n.setStore(hb.Store) || changed
	n.last = *hb
	return changed
}

func placementGPU(g functions.GPU) placement.GPU {
	return placement.GPU{Index: g.Index, Memory: g.MemoryTotal, Unhealthy: gpuUnhealthy(g), Group: g.Group}
}

// setIfChanged writes v down where it was not known.
func setIfChanged[T comparable](changed *bool, to *T, v T) {
	if *to != v {
		*to, *changed = v, true
	}
}

// snapshotOf is f as the data path sees it.
func (s *Orchestrator) snapshotOf(f *functionState) snapshot.Snapshot {
	p := snapshot.Snapshot{
		Name: f.Name, Model: f.model, Progress: functions.NoProgress,
		Forecast: s.forecastStart(f), Failure: f.failure, Blocked: f.blocked,
	}
	for _, r := range f.replicas {
		if r.stopping || r.cancelled {
			continue
		}
		st := r.status.State
		if r.serves() && r.status.Endpoint != "" {
			p.Replicas = append(p.Replicas, snapshot.Replica{
				ID: r.id, Node: r.node, Endpoint: r.status.Endpoint, Token: s.tokenFor(r), Key: r.status.Key, Adapters: r.status.Adapters,
			})
		}
		p.Sleeping = p.Sleeping || st == functions.Sleeping
	}
	p.State = s.stateOf(f)
	if f.coldStart != nil {
		t := s.timeline(f.coldStart)
		p.ColdStart = &t
		if !f.coldStart.over {
			p.Progress = t.Progress
		}
	}
	return p
}

// stateOf is the state of f's best replica; without one, whether it is being placed,
// has failed, or rests.
func (s *Orchestrator) stateOf(f *functionState) functions.State {
	best, rank := functions.Unloaded, 0
	for _, r := range f.replicas {
		st := r.status.State
		switch {
		case r.sleep.wakingUp && st == functions.Sleeping:
			st = functions.Loading
		case r.sleep.goingToSleep && st == functions.Ready:
			st = functions.Sleeping
		}
		if k := stateRank(st); k > rank && !r.stopping && !r.cancelled {
			best, rank = st, k
		}
	}
	switch {
	case rank > 0:
	case f.coldStart != nil && !f.coldStart.over && f.blocked == nil:
		return functions.Downloading
	case f.failure != nil:
		return functions.Failed
	}
	return best
}

// forecastStart is the forecast of f's next start: a wake-up if a replica sleeps.
func (s *Orchestrator) forecastStart(f *functionState) functions.Forecast {
	if i := slices.IndexFunc(f.replicas, func(r *replicaState) bool { return r.asleep() && !r.stopping }); i >= 0 {
		deep := f.replicas[i].sleep.level == deepLevel
		return functions.Forecast{P50: f.starts.WakeTime(deep, 50), P90: f.starts.WakeTime(deep, 90)}
	}
	return f.starts.Forecast(s.bytesAtHand(f))
}

// cachedAtHand reports whether a node has the bytes of f.
func (s *Orchestrator) bytesAtHand(f *functionState) bool {
	if f.Machine != "" || f.Source == "" {
		return true
	}
	return s.copies[f.Source] > 0
}

func stateRank(st functions.State) int {
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

// tokenFor is the bearer token of a replica: only one behind its agent's server needs
// it.
func (s *Orchestrator) tokenFor(r *replicaState) string {
	if n := s.nodes[r.node]; n != nil && n.last.URL != "" && strings.HasPrefix(r.status.Endpoint, strings.TrimRight(n.last.URL, "/")+"/") {
		return s.token
	}
	return ""
}
