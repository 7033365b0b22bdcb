package functions

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The records below are what the orchestrator reports and the control API sends:
// one struct per noun, with the JSON of the API.

// Replica is one engine instance on one node.
type Replica struct {
	ID       string    `json:"id"`
	Function string    `json:"function"`
	Node     string    `json:"node"`
	State    State     `json:"state"`
	Tier     Tier      `json:"tier"`
	Endpoint string    `json:"endpoint,omitempty"`
	Since    time.Time `json:"since"` // of the state
	InFlight int       `json:"in_flight"`
	// QueueLength and KVCacheHitRate are the engine's own: requests that wait in it, and
	// the share of prompt tokens that it found in its prefix cache, 0 to 1.
	QueueLength    int     `json:"queue_length,omitempty"`
	KVCacheHitRate float64 `json:"kv_cache_hit_rate,omitempty"`
	Percent        *int    `json:"percent,omitempty"` // of the current phase
	Bytes          Bytes   `json:"bytes,omitempty"`   // of the checkpoint, staged so far
	Total          Bytes   `json:"total_bytes,omitempty"`
	GPUs           []int   `json:"gpus,omitempty"`
	GPUMemory      Bytes   `json:"gpu_memory,omitempty"` // of each of its GPUs: measured, else reserved
	Memory         Bytes   `json:"memory,omitempty"`     // reserved of the host's
	Error          string  `json:"error,omitempty"`
	// IdleEnd is when it stops or sleeps unless a request comes; absent: not for idleness.
	IdleEnd time.Time `json:"idle_end,omitzero"`
	// Start is "warm" for a process forked from a warm interpreter, else "plain";
	// StartNote says why it is plain where warm was configured.
	Start      string   `json:"start,omitempty"`
	StartNote  string   `json:"start_note,omitempty"`
	SleepLevel int      `json:"sleep_level,omitempty"` // 0: awake or waking up
	Unprobed   bool     `json:"unprobed,omitempty"`    // READY means that its health answered, see Probe
	Adapters   []string `json:"adapters,omitempty"`    // loaded now
	// Notes are remarks about adapters, by adapter name.
	Notes map[string]string `json:"adapter_notes,omitempty"`
}

// Node is one machine with an agent.
type Node struct {
	ID       string        `json:"id"`
	State    NodeState     `json:"state"`
	Lost     bool          `json:"lost,omitempty"` // it has missed heartbeats
	Seen     time.Time     `json:"seen"`
	Version  string        `json:"version,omitempty"`
	URL      string        `json:"url,omitempty"` // "" for the agent in the server's process
	GPUs     []GPU         `json:"gpus"`
	Memory   Capacity      `json:"memory"`
	Store    StoreUse      `json:"store"`
	Replicas int           `json:"replicas"`
	Cached   []CachedModel `json:"cached,omitempty"`
	Warm     []WarmParent  `json:"warm,omitempty"` // warm interpreters; Memory counts theirs
}

// TeamUse is what a team holds and has used of the fleet.
type TeamUse struct {
	GPUs               int        `json:"gpus_held"`   // by replicas that start, serve or stop
	RecentGPUs         float64    `json:"gpus_lately"` // moving average of GPUs in use
	Today              float64    `json:"gpu_seconds_today"`
	Total              float64    `json:"gpu_seconds"`
	Left               *float64   `json:"gpu_seconds_left,omitempty"`  // of today; nil: no limit
	Resets             *time.Time `json:"gpu_seconds_reset,omitempty"` // midnight UTC; nil: no limit
	OverBudget         bool       `json:"over_budget,omitempty"`       // the GPU-seconds of today are used up
	EvictionsInflicted uint64     `json:"evictions_inflicted"`         // replicas of other teams evicted for this one
	EvictionsSuffered  uint64     `json:"evictions_suffered"`          // replicas of this team evicted for others
	Thrash             uint64     `json:"thrash"`                      // functions evicted and started again soon after
}

// Event is something that happened to a function, a replica or a node.
type Event struct {
	Seq      uint64    `json:"seq"`
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"` // start, ready, stop, start_cancelled, ended, failed, blocked, node_joined, node_lost, adopted, …
	Function string    `json:"function,omitempty"`
	Replica  string    `json:"replica,omitempty"`
	Node     string    `json:"node,omitempty"`
	Reason   string    `json:"reason,omitempty"`  // a word: demand, idle, evicted, …
	Message  string    `json:"message,omitempty"` // the reason as a sentence
	For      string    `json:"for,omitempty"`     // the function that the replica was evicted for
}

// Explanation is why a function is as it is, and how the last decision of one
// kind about it was made.
type Explanation struct {
	Kind     string `json:"explains"` // place, evict, cold or scale
	Function string `json:"function"`
	State    State  `json:"state"`
	Now      string `json:"now"` // what the function does now and why, in a sentence

	// The last decision of this kind; absent where none is remembered.
	Decided    time.Time   `json:"decided_at,omitzero"`
	Chosen     string      `json:"chosen,omitempty"` // a node or a replica; absent: none
	Reason     string      `json:"reason,omitempty"`
	For        string      `json:"for,omitempty"` // the function that the replica was evicted for
	Candidates []Candidate `json:"candidates"`    // best first
	Others     int         `json:"others"`        // candidates that are not listed

	Events []Event `json:"events"` // the last ones about the function, oldest first
}

// Candidate is one choice of a decision. The lowest score wins; a candidate that could not
// be chosen has no score and says why. A score of place is in seconds, as its parts are.
type Candidate struct {
	Node     string      `json:"node,omitempty"`
	Replica  string      `json:"replica,omitempty"`
	Function string      `json:"function,omitempty"`
	Score    *float64    `json:"score,omitempty"`
	Parts    []ScorePart `json:"parts,omitempty"`
	Tier     Tier        `json:"tier,omitempty"` // place: where the weights are nearest to it
	Why      string      `json:"why,omitempty"`
}

// ScorePart is a part of a score; the parts add up to it.
type ScorePart struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Prewarm is a start ahead of demand: a lease that a hint or the history asked for.
type Prewarm struct {
	ID       string    `json:"id"`
	Function string    `json:"function"`
	Tier     string    `json:"tier"`
	State    string    `json:"state"`         // planned, starting, ready, fetching, fetched or failed
	By       string    `json:"by"`            // the key that sent the hint, admin, or history
	Why      string    `json:"why,omitempty"` // of history: rhythm, daily or follows
	Until    time.Time `json:"until"`
	Held     float64   `json:"gpu_seconds"` // GPU time held so far
}

// Tiers that a prewarm may ask for.
const (
	PrewarmGPU    = "gpu"    // READY
	PrewarmMemory = "memory" // the bytes in host memory of a node
	PrewarmDisk   = "nvme"   // the bytes on the disk of a node
)

// Why a prewarm is refused, beside a *PrewarmBudgetError.
var (
	ErrNotFound        = errors.New("not found")
	ErrPrewarmTier     = errors.New("no node brings bytes to this tier")
	ErrTooManyPrewarms = errors.New("too many prewarms hold")
)

// PrewarmBudgetError refuses a prewarm that exceeds the budget of a team, or of
// all teams together.
type PrewarmBudgetError struct {
	Team            string // "": all teams together
	Requested, Left time.Duration
	In              time.Duration // until the budget may suffice; 0: never
}

func (e *PrewarmBudgetError) Error() string {
	budget := "of all teams together"
	if e.Team != "" {
		budget = "of team " + e.Team
	}
	s := fmt.Sprintf("the prewarm would take %s of GPU time and the budget %s has %s left", e.Requested.Round(time.Second), budget,
		e.Left.Round(time.Second))
	if e.In > 0 {
		s += "; in " + e.In.Round(time.Second).String() + " it suffices"
	}
	return s
}

// Store is the checkpoint store of one node, in this process or behind its agent.
// Errors that the caller can act on are *StoreError. Methods may be called
// concurrently.
type Store interface {
	// Cached lists the published checkpoints.
	Cached(ctx context.Context) ([]CacheEntry, error)
	// ChangeCheckpoint removes, pins or unpins a checkpoint.
	ChangeCheckpoint(ctx context.Context, digest string, act StoreAction) error
	// VerifyCheckpoint reads a checkpoint again. It reports progress, whose last line is the
	// result; an error is of a check that never began.
	VerifyCheckpoint(ctx context.Context, digest string, report func(StoreProgress)) error
	// Prefetch stages a source, and reports progress as VerifyCheckpoint does.
	Prefetch(ctx context.Context, r PrefetchRequest, report func(StoreProgress)) error
}

// Stores are the stores of all nodes. Node "" means all nodes, all that hold the
// checkpoint, or the one with the most room. Otherwise each method is that of a
// Store.
type Stores interface {
	// Cached lists checkpoints, last used first; silent are nodes that did not
	// answer.
	Cached(ctx context.Context, node string) (list []CacheEntry, silent []string, err error)
	// ChangeCheckpoint returns the nodes on which it changed the checkpoint.
	ChangeCheckpoint(ctx context.Context, node, digest string, act StoreAction) (nodes []string, err error)
	VerifyCheckpoint(ctx context.Context, node, digest string, report func(StoreProgress)) error
	Prefetch(ctx context.Context, node string, r PrefetchRequest, report func(StoreProgress)) error
}
