package functions

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// State of a replica, as programs see it.
type State string

// The states of a replica. UNLOADED and FAILED are ends.
const (
	Downloading State = "DOWNLOADING"
	Loading     State = "LOADING_TO_GPU"
	Ready       State = "READY"
	Sleeping    State = "SLEEPING"
	Draining    State = "DRAINING"
	Unloaded    State = "UNLOADED"
	Failed      State = "FAILED"
)

// Word is the state as people see it: in comments, ps, progress and metrics.
func (s State) Word() string { return cmp.Or(stateWords[s], "cold") }

var stateWords = map[State]string{
	Downloading: "staging", Loading: "loading", Ready: "ready", Sleeping: "sleeping", Draining: "draining", Failed: "failed",
}

// Over reports whether the replica has ended.
func (s State) Over() bool { return s == Unloaded || s == Failed }

// NodeState is what a node as a whole is doing.
type NodeState string

// The states of a node.
const (
	NodeIdle      NodeState = "IDLE"
	NodeLoading   NodeState = "LOADING_MODEL"
	NodeInferring NodeState = "INFERRING"
	NodeDegraded  NodeState = "DEGRADED"
)

// Tier is how near a model's bytes are on a node.
type Tier string

// The tiers, nearest first.
const (
	TierGPU      Tier = "GPU_RESIDENT"
	TierSleeping Tier = "SLEEPING"
	TierDRAM     Tier = "DRAM_CACHED"
	TierNVMe     Tier = "NVME_CACHED"
	TierRemote   Tier = "REMOTE"
)

// Phase is one stage of a cold start.
type Phase string

// The phases of a cold start, in their order.
const (
	PhaseQueue      Phase = "queue"
	PhasePlace      Phase = "place"
	PhaseStage      Phase = "stage"
	PhaseSpawn      Phase = "spawn"
	PhaseLoad       Phase = "load"
	PhaseWarmup     Phase = "warmup"
	PhaseFirstToken Phase = "first_token"
)

// Phases in their order.
var Phases = []Phase{PhaseQueue, PhasePlace, PhaseStage, PhaseSpawn, PhaseLoad, PhaseWarmup, PhaseFirstToken}

// Span is one phase of one cold start. Start and Duration are seconds; Start
// counts from the wake. Phases may overlap (staging while the engine boots).
type Span struct {
	Phase    Phase   `json:"phase"`
	Start    float64 `json:"start"`
	Duration float64 `json:"duration"`
	// Parts are finer steps inside the phase, as the engine's log reports them.
	Parts []Part `json:"parts,omitempty"`
}

// EngineTime is the part of a start of this length that was the engine's: without the
// placement and the staging of the weights.
func EngineTime(start time.Duration, phases []Span) time.Duration {
	for _, p := range phases {
		if p.Phase == PhasePlace || p.Phase == PhaseStage {
			start -= time.Duration(max(0, min(p.Duration, 1e9)) * float64(time.Second))
		}
	}
	return max(start, 0)
}

// Part is one step inside a phase. Start counts from the wake, like Span's.
type Part struct {
	Name     string  `json:"name"`
	Start    float64 `json:"start"`
	Duration float64 `json:"duration"`
}

// How an engine's process was started.
const (
	StartWarm  = "warm"  // forked from a warm interpreter
	StartPlain = "plain" // executed
)

// SoFar begins the StartNote of an engine that was started and does something else than serve.
const SoFar = "so far "

// Problem is what holds a start up, while it goes on; "" for nothing: its source, or its engine.
func (t *Timeline) Problem() string {
	if t.Start == "" || strings.HasPrefix(t.StartNote, SoFar) {
		return t.StartNote
	}
	return ""
}

// Timeline is one cold start as it went, phase by phase.
type Timeline struct {
	ID       string `json:"id"`
	Function string `json:"function"`
	Replica  string `json:"replica,omitempty"`
	Request  string `json:"request,omitempty"` // the first request that waited for it, once it no longer waits
	// Start is StartWarm or StartPlain, "" before the process is there;
	// StartNote says why it is plain where warm was wanted, or what holds the start up, see Problem.
	Start     string    `json:"start,omitempty"`
	StartNote string    `json:"start_note,omitempty"`
	Node      string    `json:"node,omitempty"`
	Began     time.Time `json:"began"`
	State     State     `json:"state"`
	Tier      Tier      `json:"tier,omitempty"` // where the bytes were when it began
	Bytes     Bytes     `json:"bytes,omitempty"`
	Phases    []Span    `json:"phases"`
	Total     float64   `json:"total"` // seconds from the wake to ready, or until now
	Error     string    `json:"error,omitempty"`
	// Retried is why its first start failed: for want of memory, after which idle replicas
	// were evicted and it was started once more.
	Retried  string   `json:"retried,omitempty"`
	Progress Progress `json:"progress"`
}

// WithFirstToken returns the timeline with the phase of the first token behind the others, if
// the replica is ready and the phase is missing.
func (t Timeline) WithFirstToken(took time.Duration) Timeline {
	if t.State != Ready || slices.ContainsFunc(t.Phases, func(s Span) bool { return s.Phase == PhaseFirstToken }) {
		return t
	}
	t.Phases = append(slices.Clone(t.Phases), Span{Phase: PhaseFirstToken, Start: t.Total, Duration: took.Seconds()})
	return t
}

// Progress of a cold start. Percent and ETA are -1 if unknown.
type Progress struct {
	State   State         `json:"state"`
	Percent int           `json:"percent"`
	Bytes   Bytes         `json:"bytes,omitempty"`
	Total   Bytes         `json:"total,omitempty"`
	ETA     time.Duration `json:"-"`
}

// NoProgress is the progress of a function without a cold start.
var NoProgress = Progress{State: Unloaded, Percent: -1, ETA: -1}

// Forecast is what the platform expects of the next cold start of a function:
// the time to READY at the median and at the ninth decile, -1 where nothing is
// known, and the median of each phase.
type Forecast struct {
	P50    time.Duration
	P90    time.Duration
	Phases map[Phase]time.Duration
}

// NoForecast is an unknown forecast; admission lets the request wait.
var NoForecast = Forecast{P50: -1, P90: -1}
