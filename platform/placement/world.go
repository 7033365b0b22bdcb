package placement

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/autoscale"
)

// Instant is a moment as the span since the caller's loop began, on a monotonic
// clock. 0 means never; the caller starts its clock above 0.
type Instant = time.Duration

// Policy holds the times that are the platform's own and no model's. They are
// values so that a simulator can move them.
type Policy struct {
	Lease     time.Duration // a node silent for longer is lost
	Residency time.Duration // a replica READY for less is not evicted
	Surplus   time.Duration // a replica READY for less is not scaled down

	// A function that is never idle would keep its GPUs for ever. Once a request of
	// another one has waited for Patience, a replica that has been READY for TimeSlice
	// leaves the routes; its requests in flight may finish within TimeSliceDrain.
	// TimeSlice 0: never.
	TimeSlice, Patience, TimeSliceDrain time.Duration

	Autoscale autoscale.Settings // how many replicas a load asks for; zero: its defaults
	Eviction  Eviction           // the order of eviction
	KeepAlive KeepAlive          // how long an idle replica stays

	// NoMinResidency ignores Function.MinResidency, so that an eviction policy can be
	// measured by itself.
	NoMinResidency bool
}

// AppliesMinResidency reports whether functions that thrash keep their replicas for a
// while. Recency and frequency alone go round in circles without that. Policies that
// weigh the next use against the way back do not, and lose by it: on the first hours
// of a public day of 990 functions next-use made 0.42 cold with it and 0.28 without.
func (p *Policy) AppliesMinResidency() bool {
	return !p.NoMinResidency && (p.Eviction == LRU || p.Eviction == LFU)
}

// Eviction orders idle replicas for eviction.
type Eviction uint8

// The eviction policies.
const (
	LRU     Eviction = iota // the least recently used
	LFU                     // the least often used, uses of long ago counting less
	GDSF                    // Greedy-Dual-Size-Frequency: frequency times reload cost over size, aged (Cherkasova 1998)
	NextUse                 // predicted next use, later first, weighed with the measured reload cost per byte
)

// KeepAlive says where a function's idle time comes from.
type KeepAlive uint8

// The keep-alive policies.
const (
	Fixed   KeepAlive = iota // Scale.Idle
	Learned                  // Function.KeepFor where history knows it, never above the policy's bound
)

// DefaultPolicy: three heartbeats of 2 s, short stays that stop thrashing, and
// turns long enough to be worth a cold start of a minute.
var DefaultPolicy = Policy{
	Lease: 6 * time.Second, Residency: time.Second, Surplus: 30 * time.Second,
	TimeSlice: 2 * time.Minute, Patience: 30 * time.Second, TimeSliceDrain: 10 * time.Minute,
}

// World is what is known. Decide only reads it.
type World struct {
	Nodes     []*Node
	Functions []*Function
	Teams     map[string]Team
}

// Node is a host that can hold replicas.
type Node struct {
	ID         string
	Machine    string          // identity of the host, for sources that live on it
	Borrows    bool            // it can stage folders of other machines, which lend them
	Here       bool            // the agent in this process: it cannot be lost alone
	Seen       Instant         // last heartbeat
	AvoidUntil Instant         // nothing is placed here before
	GPUs       []GPU           // by index in the node's own numbering
	Memory     functions.Bytes // host memory that replicas may reserve
	CPU        functions.CPU   // processors that replicas may reserve; 0: unlimited
	Pods       int             // replicas that it may hold; 0: unlimited
	Cached     map[string]bool // sources whose bytes are here
	Rejects    map[string]bool // Function.Requires values that this node does not meet

	Tiers map[string]functions.Tier // of those, the nearest tier that holds all their bytes
	Link  float64                   // bytes a second from sources, measured; 0 unknown
	Disk  float64                   // bytes a second from its store, measured; 0 unknown
	Store functions.StoreUse        // NVMe: what checkpoints may take and take; 0 unknown
	Sleep functions.Bytes           // of Memory, what replicas may hold asleep; 0: all of it
}

// GPU is one GPU of a node. Memory 0 is unknown: such a GPU is given whole.
type GPU struct {
	Index     int
	Memory    functions.Bytes
	Unhealthy bool // falls out of placement, and what runs on it is moved
	Group     int  // GPUs of one group reach each other fastest (NVLink, one socket)
}

// Function is one model with what is asked of it.
type Function struct {
	Name      functions.Name
	Source    string // key of Node.Cached
	Machine   string // where the source lies in place, others must borrow it; empty: anywhere
	Requires  string // what it asks of a node beside room, in words that nodes know (Node.Rejects); "" nothing
	Resources functions.Resources
	Scale     functions.Scale
	Drain     time.Duration // bound of a drain

	Active  int     // requests at engines
	Queued  int     // requests held
	Needed  int     // replicas that its load asks for (Load.Scale)
	Desired int     // replicas that are not to be scaled down (Load.Scale)
	Oldest  Instant // since when the oldest held request waits; 0 none
	LastEnd Instant // end of the last request; 0 never
	Lease   Instant // wanted until then without demand; 0 none
	RetryAt Instant // no start before: the back-off of a failure
	Gone    bool    // no longer in the catalogue

	Sleeps       bool            // its engine can give its GPUs back and keep its weights in host memory
	SleepMemory  functions.Bytes // host memory a replica holds asleep, beside what it reserved awake
	WakeTime     time.Duration   // from asleep to READY; 0 unknown: taken for short
	DeepWakeTime time.Duration   // the same from level 2, where its weights are read again; 0 unknown: taken for shorter than a cold start
	ColdStart    time.Duration   // to READY on another node; 0 unknown: taken for long

	Size            functions.Bytes // of its checkpoint; 0 unknown
	CachedNodesOnly string          // why its bytes may not be brought to one more node: its team's share of the stores is used up; "": they may
	Expect          Expect          // time to READY, measured
	Uses            float64         // activations (an idle time ended by a request), decayed: what lfu and gdsf count
	UsesAt          Instant         // when Uses was counted: it decays from then on (UsesDecay)
	NextUse         Instant         // when it is likely to be asked for next; 0 unknown
	KeepFor         time.Duration   // how long its replica should stay idle, from history; 0 unknown
	Prewarm         Instant         // a request is expected until then: wanted READY if no demand needs the room; 0 none

	// MinResidency: it was evicted and needed again soon after, so its replicas are not
	// evicted before this moment, except for requests that waited for Patience.
	MinResidency Instant

	Replicas []Replica
}

// Expect is the median time from a decision to READY by where the bytes are, and
// on nodes where that has been measured. Absent is unknown.
type Expect struct {
	Tier map[functions.Tier]time.Duration
	Node map[string]map[functions.Tier]time.Duration
}

// Replica is one engine of a function, from the decision to start it until the
// node has said that it is gone: until then its room is taken.
type Replica struct {
	ID            string
	Node          string
	State         functions.State
	GPUs          []int
	Reserved      functions.Resources // what it reserved when it was started
	ReadyAt       Instant             // 0 until READY
	InFlight      int
	Spawned       bool // an engine process exists: too late to call it off
	Stopping      bool // told to stop; its room is still taken
	StoppedByUser bool // by a user: requests still on it do not start another replica
	Cancelled     bool // told to call off; the node has not answered yet
	Stale         bool // made from an older recipe of the function

	// A SLEEPING replica holds no GPU. One that was told to sleep holds what it
	// held, and host memory already, until it sleeps (Sinking); one that was
	// told to rise holds its GPUs again from then on (Rising).
	SleptAt      Instant // 0 until SLEEPING
	GoingToSleep bool
	WakingUp     bool
	Deep         bool            // it sleeps, or is about to, at level 2: no weights in host memory, and the way back is longer
	SleepMemory  functions.Bytes // host memory for its sleep, counted while it sinks, sleeps and rises
}

// asleep reports whether r holds no GPU.
func (r *Replica) asleep() bool {
	down := r.State == functions.Sleeping || r.State == functions.Draining && r.SleptAt > 0 // told to end in its sleep
	return down && !r.GoingToSleep && !r.WakingUp
}

// Kind of an Action.
type Kind uint8

// What a plan can ask for.
const (
	Start        Kind = iota + 1 // a replica of Function on Node with GPUs
	Stop                         // drain Replica for at most Drain, then end it
	CancelStart                  // end Replica if it has no process yet
	MarkNodeLost                 // Node is lost: forget it and its replicas
	Sleep                        // drain Replica for at most Drain, then send it to sleep
	WakeUp                       // wake Replica, which sleeps, on the GPUs it had
)

func (k Kind) String() string {
	switch k {
	case Start:
		return "start"
	case Stop:
		return "stop"
	case CancelStart:
		return "call off"
	case MarkNodeLost:
		return "lose"
	case Sleep:
		return "sleep"
	case WakeUp:
		return "rise"
	}
	return "nothing"
}

// Action is one thing to do.
type Action struct {
	Kind     Kind
	Function functions.Name
	Node     string
	Replica  string
	GPUs     []int
	Drain    time.Duration
	Level    int    // of a Sleep: 1 keeps the weights in host memory, 2 drops them
	Reason   string // a word for metrics: demand, min, lease, idle, surplus, evicted, pressure, …
	For      string // of an eviction: the function that gets the room
}

// Codes of a Verdict, as clients see them.
const (
	CodeQuota    = "gpu_quota_exceeded"
	CodeCapacity = "no_capacity"
)

// Verdict says why a function that is wanted cannot be started now.
type Verdict struct {
	Code    string
	Message string
	ETA     time.Duration // until it may be READY, as of the plan that said it first; -1 unknown
}

// Plan is what Decide wants done, what it could not place, and when it wants to
// be called again at the latest (0: nothing is due).
type Plan struct {
	Actions []Action
	Blocked map[functions.Name]Verdict
	Changed []functions.Name // whose verdict changed since the planner's last plan
	Next    Instant
}

// Backoff is the pause before the next start after n failures in a row: 1 s,
// doubled each time, at most a minute. Backoff(0) is none.
func Backoff(n int) time.Duration {
	switch {
	case n <= 0:
		return 0
	case n > 6:
		return time.Minute
	}
	return min(time.Second<<(n-1), time.Minute)
}
