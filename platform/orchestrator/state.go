package orchestrator

import (
	"cmp"
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
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
	"github.com/thaw-dev/thaw/platform/quota"
	"github.com/thaw-dev/thaw/platform/setbacks"
	"github.com/thaw-dev/thaw/runtime/engine"
)

type functionState struct {
	placement.Function
	charged    quota.Holdings
	model      *functions.Model
	specHash   uint64
	load       *autoscale.Load // its load windows; nil at rest
	replicas   []*replicaState
	failures   setbacks.StartFailures
	refusals   int               // consecutive refused loads
	failedOn   string            // the node of its last failed start, until one succeeds
	deaths     int               // consecutive deaths soon after READY
	failure    *snapshot.Failure // the error of its waiters until the backoff is over
	blocked    *snapshot.Blocked
	unplaced   string     // why it was blocked last
	coldStart  *coldStart // the newest cold start
	starts     forecast.StartTimes
	usage      foresight.Usage
	demandTurn uint64            // last turn that applied reported demand
	inFlight   map[string]int    // requests of each replica that has any, as reported
	wakeLease  placement.Instant // lease of Wake, only while requests wait
	userLease  placement.Instant // lease of WakeFor
	untilReady bool              // it must become READY once, with or without waiters
	toPublish  bool              // it is in unpublished
	enqueued   bool              // it is in pending

	lastEnd struct { // its last replica that ended
		at     placement.Instant
		reason string
	}
}

type nodeState struct {
	*placement.Node
	id           string
	commands     Node
	last         functions.Heartbeat
	heardAt      time.Time
	stale        bool            // it obeys a newer server and refuses our commands
	replicas     []*replicaState // its replicas, from the decision to start them
	heartbeats   uint64          // number of applied heartbeats
	matches      uint64          // number of matched heartbeats
	matched      []*replicaState // replicas of the last matched heartbeat, nil for unknown ones
	spareMatched []*replicaState
	fromReady    map[string]bool // sources of READY replicas that the node does not list

	life             string // Life and Seq of the last heartbeat
	seq              uint64
	pastLives        []string // earlier values of life
	change           uint64
	settledCount     int               // its replicas when a heartbeat listed exactly the known ones; -1: the last did not
	implausibleSince placement.Instant // time of the first implausible heartbeat; 0: none
	leaseExtended    bool              // extendSilentNodes extended its lease

	linkRate, diskRate forecast.RateGauge
}

// replicaState is the state of a replica, from the decision to start it.
type replicaState struct {
	// As the planner reads it. copyReplicas sets State, InFlight, Spawned, StoppedByUser,
	// Stale, Deep and GoingToSleep from the fields below; only the planner reads these.
	placement.Replica
	function  *functionState
	specHash  uint64
	status    functions.ReplicaStatus
	coldStart *coldStart // its cold start, nil for an adopted replica

	requestedAt placement.Instant // the load was sent
	acceptedAt  placement.Instant // the agent accepted the load
	seen        bool              // it was in a heartbeat
	listed      uint64            // number of the last applied heartbeat that lists it
	matched     uint64            // number of the last matched heartbeat that lists it
	forgotten   bool              // removeReplica was called

	cause         string // why it was started
	reason        string
	drainEnd      placement.Instant
	unloading     bool
	retryUnloadAt placement.Instant // when an unload without effect is repeated
	sleep         sleepState
}

func (r *replicaState) serves() bool {
	return r.status.State == functions.Ready && !r.Stopping && !r.Cancelled && !r.sleep.goingToSleep
}

const earlyDeath = time.Minute // a death within this time of READY counts as a failed start

// hashSpec is the hash of the settings whose change restarts a replica.
// Scale, queue and deadlines are not part of it.
func hashSpec(spec functions.ModelSpec, dir string) uint64 {
	spec.Scale, spec.Queue, spec.Deadlines = functions.Scale{}, functions.Queue{}, functions.Deadlines{}
	spec.Resources.CPU, spec.Pod = 0, functions.Pod{} // settings of placement only
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

// sourceLocation is the canonical spelling of a source, as stores list it.
func sourceLocation(source, dir string) string {
	if _, l, err := loader.Locate(source, dir); err == nil {
		return l
	}
	return source
}

// isLocalFolder reports whether a source is a folder of the machine that read the model
// file.
func isLocalFolder(source string) bool {
	return source != "" && (strings.HasPrefix(source, "file:") || !strings.Contains(source, "://"))
}

func (f *functionState) setModel(m *functions.Model, machine string) {
	f.model = m
	hash := hashSpec(m.Spec, m.Dir)
	f.SetResources(m.Spec.Resources, hash == f.specHash)
	f.specHash = hash
	f.Name = m.FullName()
	f.Scale, f.Drain = m.Spec.Scale, m.Spec.Deadlines.Drain.Std()
	f.Requires = m.Spec.Pod.Requires()
	f.Source = sourceLocation(m.Spec.Source, m.Dir)
	f.Sleeps = engine.Sleeps(m.Spec)
	f.Machine, f.RunsOn = "", ""
	if m.Spec.Folder != "" {
		f.RunsOn = machine
	}
	if isLocalFolder(m.Spec.Source) {
		f.Machine = machine
	}
	f.Gone = false
}

// copyReplicas copies the replicas into the form that the planner reads.
func (f *functionState) copyReplicas(reported *inbox) {
	f.Replicas = f.Replicas[:0]
	for _, r := range f.replicas {
		r.State, r.Spawned, r.Stale = r.status.State, hasProcess(r.status), r.specHash != f.specHash
		r.StoppedByUser = r.Stopping && r.reason == reasonUser
		r.Deep = r.sleep.level == deepLevel
		// Its GPU memory is taken until the node reports the sleep level.
		r.GoingToSleep = r.sleep.goingToSleep || r.State == functions.Sleeping && r.status.SleepLevel == 0 && !r.WakingUp
		r.InFlight = 0
		if r.ReadyAt > 0 {
			r.InFlight = reported.inFlightOf(f, r.ID)
		}
		f.Replicas = append(f.Replicas, r.Replica)
	}
}

// hasProcess reports whether a replica has, or has had, a process.
func hasProcess(st functions.ReplicaStatus) bool {
	switch st.State {
	case functions.Loading, functions.Ready, functions.Sleeping, functions.Draining:
		return true
	}
	return slices.ContainsFunc(st.Phases, func(p functions.Span) bool {
		return p.Phase == functions.PhaseSpawn || p.Phase == functions.PhaseLoad
	})
}

// setFrom applies a heartbeat. It reports whether fields that the planner reads changed.
func (n *nodeState) setFrom(b heartbeat, now placement.Instant) (changed bool) {
	hb := &b.message
	n.commands, n.heardAt, n.Seen = b.node, b.at, now
	setIfChanged(&changed, &n.Machine, hb.Machine)
	setIfChanged(&changed, &n.Borrows, hb.Borrows)
	memory := cmp.Or(hb.Memory.Total, math.MaxInt64/4) // not reported: unlimited
	for _, w := range hb.Warm {
		if w.Reserved {
			memory = max(memory-w.Memory, 0)
		}
	}
	setIfChanged(&changed, &n.Memory, memory)
	setIfChanged(&changed, &n.CPU, hb.CPU)
	setIfChanged(&changed, &n.Pods, hb.Pods)
	if len(n.Rejects) != len(hb.UnmetRequirements) || slices.ContainsFunc(hb.UnmetRequirements, func(b string) bool { return !n.Rejects[b] }) {
		n.Rejects, changed = functions.SetOf(hb.UnmetRequirements, func(b string) string { return b }), true
	}
	setIfChanged(&changed, &n.Sleep, hb.Sleep)
	_, sleeps := b.node.(Sleeper)
	setIfChanged(&changed, &n.NoSleep, !sleeps)
	if !slices.EqualFunc(n.GPUs, hb.GPUs, func(a rooms.GPU, b functions.GPU) bool { return a == placementGPU(b) }) {
		n.GPUs, changed = functions.ConvertAll(hb.GPUs, placementGPU), true
	}
	changed = n.setStore(hb.Store) || changed
	n.last = *hb
	return changed
}

func placementGPU(g functions.GPU) rooms.GPU {
	// A GPU that no agent reads is dealt out by Kubernetes, whole.
	return rooms.GPU{Index: g.Index, Memory: max(g.MemoryTotal-g.Foreign, 0), Unhealthy: gpuUnhealthy(g), Group: g.Group,
		Whole: g.Health == functions.GPUUnknown}
}

// setIfChanged sets *to to v, and *changed if they differ.
func setIfChanged[T comparable](changed *bool, to *T, v T) {
	if *to != v {
		*to, *changed = v, true
	}
}

// state is the state of f's best replica; without replicas, whether f is being
// placed, has failed, or is at rest.
func (f *functionState) state() functions.State {
	best, rank := functions.Unloaded, -1
	for _, r := range f.replicas {
		st := r.status.State
		switch {
		case r.WakingUp && st == functions.Sleeping:
			st = functions.Loading
		case r.sleep.goingToSleep && st == functions.Ready:
			st = functions.Sleeping
		}
		if k := slices.Index(liveStates, st); k > rank && !r.Stopping && !r.Cancelled {
			best, rank = st, k
		}
	}
	switch {
	case rank >= 0:
	case f.coldStart != nil && !f.coldStart.Over && f.blocked == nil:
		return functions.Downloading
	case f.failure != nil:
		return functions.Failed
	}
	return best
}

// forecastStart is the forecast of f's next start: a wake-up if a replica sleeps.
func (f *functionState) forecastStart(atHand bool) functions.Forecast {
	if i := slices.IndexFunc(f.replicas, func(r *replicaState) bool { return r.asleep() && !r.Stopping }); i >= 0 {
		deep := f.replicas[i].sleep.level == deepLevel
		return functions.Forecast{P50: f.starts.WakeTime(deep, 50), P90: f.starts.WakeTime(deep, 90)}
	}
	return f.starts.Forecast(atHand)
}

// liveStates are the states of live replicas, the best last.
var liveStates = []functions.State{functions.Downloading, functions.Loading, functions.Sleeping, functions.Ready}

// setRateIfChanged sets a rate that differs by more than a tenth. Smaller changes are
// noise, and each change makes the planner evaluate waiting functions again.
func setRateIfChanged(changed *bool, to *float64, rate float64) {
	if rate > 1.1**to || rate < 0.9**to {
		*to, *changed = rate, true
	}
}

// recordRates derives the rates of a node's link and disk from a start that reached
// READY. It reports whether the planner must know.
func (n *nodeState) recordRates(tier functions.Tier, bytes functions.Bytes, phases map[functions.Phase]time.Duration) (changed bool) {
	switch tier {
	case functions.TierRemote:
		if n.linkRate.AddTransfer(bytes, phases[functions.PhaseStage]) {
			setRateIfChanged(&changed, &n.Link, n.linkRate.Peak())
		}
	case functions.TierNVMe:
		if n.diskRate.AddTransfer(bytes, phases[functions.PhaseLoad]) {
			setRateIfChanged(&changed, &n.Disk, n.diskRate.Peak())
		}
	}
	return changed
}

// setStore sets the use of a node's store from a heartbeat. It reports whether the
// planner must know, which is once for each 64th of the store.
func (n *nodeState) setStore(u functions.StoreUse) (changed bool) {
	if l := u.Loader; l != nil && l.Stagings > 0 && l.Rate > n.Link {
		n.linkRate.Add(l.Rate)
		setRateIfChanged(&changed, &n.Link, n.linkRate.Peak())
	}
	if d := u.Used - n.Store.Used; u.Bytes != n.Store.Bytes || max(d, -d) > u.Bytes/64 {
		n.Store, changed = functions.StoreUse{Bytes: u.Bytes, Used: u.Used}, true
	}
	return changed
}

// updateLoad records the current requests of f in its load windows, and sets f.Needed
// and f.Desired from them. It reports whether f is busy: whether its windows hold any
// load. Functions at rest have no windows.
func (f *functionState) updateLoad(p autoscale.Settings, now placement.Instant) bool {
	n := f.Active + f.Queued
	if f.load == nil {
		if n == 0 {
			return false
		}
		f.load = autoscale.NewLoad(p)
	}
	f.load.Observe(now, n)
	f.Needed, f.Desired = f.load.Scale(now, f.serving(), f.Scale.Target)
	if f.load.Over(now) {
		f.load, f.Needed, f.Desired = nil, 0, 0
	}
	return f.load != nil
}

// adoptLoad keeps replicas that were READY before this loop began: their load is not
// known until a window has passed. It reports whether f is busy then.
func (f *functionState) adoptLoad(p autoscale.Settings, now placement.Instant) bool {
	ready := f.serving()
	if ready < 2 {
		return false
	}
	if f.load == nil {
		f.load = autoscale.NewLoad(p)
	}
	f.load.Adopt(now, ready)
	return true
}

func (f *functionState) serving() (n int) {
	for _, r := range f.replicas {
		if r.serves() {
			n++
		}
	}
	return n
}
