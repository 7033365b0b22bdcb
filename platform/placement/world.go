package placement

import (
	"fmt"
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/autoscale"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
	"github.com/thaw-dev/thaw/platform/placement/starttime"
)

// Instant is a moment, as the span since the caller's loop began on a monotonic clock.
// 0 means never; the caller starts its clock above 0.
type Instant = time.Duration

// Policy holds the settings of the platform, as opposed to those of models. They are
// values so that a simulator can vary them.
type Policy struct {
	Lease     time.Duration // a node silent for longer is lost
	Residency time.Duration // a replica READY for less is not evicted
	Surplus   time.Duration // a replica READY for less is not scaled down

	// A function that is never idle would keep its GPUs for ever. Once a request of
	// another function has waited for Patience, a replica that was READY for TimeSlice
	// leaves the routes; its requests in flight may finish within TimeSliceDrain.
	// TimeSlice 0: never.
	TimeSlice, Patience, TimeSliceDrain time.Duration

	// Requests of priority low finish with the model that is loaded, before those for
	// another model get its room: for at most LowSlice while they wait. 0: without limit.
	LowSlice time.Duration

	Autoscale autoscale.Settings // replicas per load; zero: its defaults
	Eviction  eviction.Policy    // the order of eviction
	KeepAlive KeepAlive          // how long an idle replica stays

	// NoMinResidency ignores Function.MinResidency, so that an eviction policy can be
	// measured by itself.
	NoMinResidency bool
}

// AppliesMinResidency reports whether functions that thrash keep their replicas for a
// while. LRU and LFU evict in circles without that. Policies that weigh the next use
// against the reload time do not, and lose by it: on the first hours of a public trace
// of 990 functions, 0.42 of the uses were cold for next-use with it and 0.28 without.
func (p *Policy) AppliesMinResidency() bool {
	return !p.NoMinResidency && (p.Eviction == eviction.LRU || p.Eviction == eviction.LFU)
}

// KeepAlive selects the source of a function's idle time.
type KeepAlive uint8

const (
	Fixed   KeepAlive = iota // Scale.Idle
	Learned                  // Function.KeepFor if known, at most maxKeepFactor times Scale.Idle
)

// DefaultPolicy: a lease of three heartbeats of 2 s, a short residency against
// thrashing, and time slices long enough to be worth a cold start of a minute.
var DefaultPolicy = Policy{
	Lease: 6 * time.Second, Residency: time.Second, Surplus: 30 * time.Second,
	TimeSlice: 2 * time.Minute, Patience: 30 * time.Second, TimeSliceDrain: 10 * time.Minute,
	LowSlice: 15 * time.Minute,
}

// World is the state of nodes, functions and teams. Decide only reads it.
type World struct {
	Nodes     []*Node
	Functions []*Function
	Teams     map[string]Team
}

// Node is a host that can hold replicas.
type Node struct {
	ID         string
	Machine    string          // identity of the host, for sources that are its folders
	Borrows    bool            // it can stage folders of other machines from there
	Here       bool            // the agent in this process: it cannot be lost alone
	Seen       Instant         // last heartbeat
	AvoidUntil Instant         // nothing is placed here before this moment
	GPUs       []rooms.GPU     // by index in the node's own numbering
	Memory     functions.Bytes // host memory that replicas may reserve
	CPU        functions.CPU   // processors that replicas may reserve; 0: unlimited
	Pods       int             // replicas that it may hold; 0: unlimited
	Cached     map[string]bool // sources whose bytes are here
	Rejects    map[string]bool // Function.Requires values that this node does not meet

	Tiers map[string]functions.Tier // the fastest tier that holds all bytes of a cached source
	Link  float64                   // bytes a second from sources, measured; 0 unknown
	Disk  float64                   // bytes a second from its store, measured; 0 unknown
	Store functions.StoreUse        // NVMe: capacity for checkpoints, and use; 0 unknown
	Sleep functions.Bytes           // part of Memory that sleepers may hold; 0: all of it

	NoSleep bool // its replicas cannot sleep, whatever their engine can
}

// Function is one model with its settings, demand and replicas.
type Function struct {
	Name      functions.Name
	Source    string // key of Node.Cached
	Machine   string // host whose folder the source is, others must stage it from there; "": any
	RunsOn    string // host with the folder that its engine runs in; "": any
	Requires  string // requirements on a node other than room, a key of Node.Rejects; "": none
	Resources functions.Resources
	Measured  functions.Bytes // GPU memory of Resources, if that was measured; 0: the model file's
	Scale     functions.Scale
	Drain     time.Duration // bound of a drain

	Demand
	Retry
	Sleeping
	History

	Lease Instant // one replica is kept until then without demand; 0 none
	Gone  bool    // it left the catalogue

	ColdStart       time.Duration    // to READY on another node; 0 unknown: assumed long
	Expect          starttime.Expect // time to READY, measured
	Size            functions.Bytes  // size of its checkpoint; 0 unknown
	CachedNodesOnly string           // why no further node may stage it: its team's share of the stores is full; "": any may

	// MinResidency: the function was evicted too early, so its replicas are not evicted
	// before this moment, except for requests that waited for Patience.
	MinResidency Instant

	Released Instant // Policy.Residency does not keep replicas that were READY before; 0 never

	Replicas []Replica
}

// Demand is the requests for a function.
type Demand struct {
	Active  int     // requests at engines
	Queued  int     // waiting requests
	Needed  int     // replicas that its load needs (Load.Scale)
	Desired int     // replicas that must not be scaled down (Load.Scale)
	Oldest  Instant // arrival of the oldest waiting request, of a low one only where no other waits; 0 none
	LastEnd Instant // end of the last request; 0 never

	LowActive, LowQueued int     // of Active and Queued: requests of priority low
	LowSince             Instant // end of the last request that is not, if such ones ended since; 0: none did
}

// Retry says how a function starts after a failure.
type Retry struct {
	RetryAt Instant // no start before: the backoff

	// RetryOn is the node where its last start found too little memory, though the room was
	// reserved: idle replicas are evicted there before the next start. RetryGPUs limits
	// these to replicas on those GPUs; nil: all.
	RetryOn   string
	RetryGPUs []int

	// FailedOn is the node where two starts in a row failed; another that has room is taken
	// before it.
	FailedOn string
}

// Sleeping says what the sleep of a replica costs.
type Sleeping struct {
	Sleeps       bool            // its engine can release its GPUs and keep its weights in host memory
	SleepMemory  functions.Bytes // host memory of a sleeper, in addition to Resources
	WakeTime     time.Duration   // from asleep to READY; 0 unknown: assumed short
	DeepWakeTime time.Duration   // from level 2, which reads the weights again; 0 unknown: assumed below ColdStart
}

// History is the past use of a function, and what is expected from it.
type History struct {
	Uses    float64       // activations (a request ended an idle time), decayed: the count of LFU and GDSF
	UsesAt  Instant       // Uses decays from this moment on (eviction.UsesDecay)
	NextUse Instant       // likely next use; 0 unknown
	KeepFor time.Duration // how long its replica should stay idle; 0 unknown
	Prewarm Instant       // a request is expected before: keep READY if no demand needs the room; 0 none
}

// Replica is one engine of a function, from the decision to start it until its node
// reports that it is gone. Until then its room is taken.
type Replica struct {
	ID            string
	Node          string
	State         functions.State
	GPUs          []int
	Reserved      functions.Resources // reserved at its start
	ReadyAt       Instant             // 0 until READY
	InFlight      int
	Spawned       bool // an engine process exists: too late to cancel the start
	Stopping      bool // a stop was sent; its room is still taken
	StoppedByUser bool // stopped by a user: its requests in flight do not start another replica
	Cancelled     bool // a cancel was sent; the node has not acknowledged it yet
	Stale         bool // made from an older recipe of the function

	// A SLEEPING replica holds no GPU. A replica going to sleep holds its GPUs and
	// also its SleepMemory until it sleeps; one that is waking up holds its GPUs again.
	SleptAt      Instant // 0 until SLEEPING
	GoingToSleep bool
	WakingUp     bool
	Deep         bool            // sleep level 2: no weights in host memory, and waking takes longer
	SleepMemory  functions.Bytes // host memory for its sleep, reserved also while it falls asleep and wakes up
}

// Asleep reports whether r holds no GPU.
func (r *Replica) Asleep() bool {
	down := r.State == functions.Sleeping || r.State == functions.Draining && r.SleptAt > 0 // stopped while asleep
	return down && !r.GoingToSleep && !r.WakingUp
}

// Kind of an Action.
type Kind uint8

const (
	Start        Kind = iota + 1 // start a replica of Function on Node with GPUs
	Stop                         // drain Replica for at most Drain, then stop it
	CancelStart                  // cancel Replica if it has no process yet
	MarkNodeLost                 // Node is lost: remove it and its replicas
	Sleep                        // drain Replica for at most Drain, then put it to sleep
	WakeUp                       // wake the sleeping Replica on the GPUs it had
)

// Action is one step of a plan.
type Action struct {
	Kind     Kind
	Function functions.Name
	Node     string
	Replica  string
	GPUs     []int
	Drain    time.Duration
	Level    int    // for Sleep: 1 keeps the weights in host memory, 2 drops them
	Reason   string // label for metrics: demand, min, lease, idle, surplus, evicted, pressure, …
	For      string // for an eviction: the function that gets the room
}

// Codes of a Verdict, as clients see them.
const (
	CodeQuota    = string(openai.GPUQuotaExceeded)
	CodeCapacity = "no_capacity"
)

// Verdict is the reason why a function with demand cannot be started now.
type Verdict struct {
	Code    string
	Message string
	ETA     time.Duration // until it may be READY, from the plan that set it; -1 unknown
}

// Plan holds the actions to perform, the functions that could not be placed, and the
// latest time of the next plan (0: nothing is due).
type Plan struct {
	Actions []Action
	Blocked map[functions.Name]Verdict
	Changed []functions.Name // functions whose verdict changed since the planner's last plan
	Next    Instant
}

// SetResources sets what the model file of f asks for. What f's replicas were measured to
// hold is kept if its engine is started as before.
func (f *Function) SetResources(asked functions.Resources, sameEngine bool) {
	if !sameEngine || asked.GPUMemory == 0 {
		f.Measured = 0
	}
	f.Resources = asked
	f.Resources.GPUMemory = max(asked.GPUMemory, f.Measured)
}

// RecordGPUMemory records the memory that a replica of f on n holds of a GPU. If that is
// clearly more than f reserves (a tenth: measurements differ), the next starts reserve it,
// but no more than the node's smallest GPU has, so that f still fits. A model that holds
// less reserves what it asks for: its engine may take that later. It reports whether f
// reserves more now.
func (f *Function) RecordGPUMemory(held functions.Bytes, n *Node) bool {
	smallest := functions.Bytes(math.MaxInt64)
	for _, g := range n.GPUs {
		if g.Memory > 0 {
			smallest = min(smallest, g.Memory)
		}
	}
	held = min(held, smallest)
	if f.Resources.GPUMemory == 0 || held <= f.Resources.GPUMemory/10*11 {
		return false
	}
	f.Measured, f.Resources.GPUMemory = held, held
	return true
}

// FootprintText says that f reserves more than its model file asks for.
func (f *Function) FootprintText(asked functions.Bytes) string {
	return fmt.Sprintf("it holds %s of a GPU, and its model file asks for %s: its next starts reserve what it holds", f.Measured.Human(),
		asked.Human())
}
