package api

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
)

// List is every list.
type List[T any] struct {
	Items []T `json:"items"`
}

// Function is a model as it is now. State, percent and ETA are those of its
// best replica; percent and eta_s are left out where nothing is known.
type Function struct {
	Name      string               `json:"name"` // TEAM/NAME
	Team      string               `json:"team"`
	Model     string               `json:"model"` // what the team's own requests say
	State     functions.State      `json:"state"`
	Engine    functions.Engine     `json:"engine"`
	Source    string               `json:"source,omitempty"`
	Replicas  int                  `json:"replicas"` // READY ones
	Active    int                  `json:"active"`   // requests at engines
	Queued    int                  `json:"queued"`   // requests held
	Percent   *int                 `json:"percent,omitempty"`
	ETA       *float64             `json:"eta_s,omitempty"`
	Expected  *float64             `json:"expected_s,omitempty"` // of a cold start, the median
	ColdStart string               `json:"cold_start,omitempty"` // the newest one's id
	Problem   string               `json:"problem,omitempty"`    // why it cannot be served now
	Origin    string               `json:"origin,omitempty"`     // file and line it was read from
	Spec      *functions.ModelSpec `json:"spec,omitempty"`       // of a single function only
}

// Replica is one engine instance on one node.
type Replica struct {
	ID       string          `json:"id"`
	Function string          `json:"function"`
	Node     string          `json:"node"`
	State    functions.State `json:"state"`
	Tier     functions.Tier  `json:"tier"`
	Endpoint string          `json:"endpoint,omitempty"`
	Since    time.Time       `json:"since"` // of the state
	InFlight int             `json:"in_flight"`
	Percent  *int            `json:"percent,omitempty"` // of the present phase
	Bytes    functions.Bytes `json:"bytes,omitempty"`   // of the checkpoint, so far
	Total    functions.Bytes `json:"total_bytes,omitempty"`
	GPUs     []int           `json:"gpus,omitempty"`
	Error    string          `json:"error,omitempty"`
	// Start is how its process came to be, "warm" or "plain"; StartNote says why
	// it is plain where warm was wanted.
	Start      string   `json:"start,omitempty"`
	StartNote  string   `json:"start_note,omitempty"`
	SleepLevel int      `json:"sleep_level,omitempty"` // 0 awake or on its way
	Adapters   []string `json:"adapters,omitempty"`    // loaded now
	// Notes are what is to be known of its adapters, by name.
	Notes map[string]string `json:"adapter_notes,omitempty"`
}

// Node is one machine with an agent.
type Node struct {
	NodeReport
	Near []Near `json:"near,omitempty"` // of the models that who asks may see
}

// NodeReport is what is known of a node from itself.
type NodeReport struct {
	ID       string                  `json:"id"`
	State    functions.NodeState     `json:"state"`
	Lost     bool                    `json:"lost,omitempty"` // it has missed its heartbeats
	Seen     time.Time               `json:"seen"`
	Version  string                  `json:"version,omitempty"`
	URL      string                  `json:"url,omitempty"` // "" in the server's own process
	GPUs     []functions.GPU         `json:"gpus"`
	Memory   functions.Capacity      `json:"memory"`
	Store    functions.StoreUse      `json:"store"`
	Replicas int                     `json:"replicas"`
	Cached   []functions.CachedModel `json:"cached,omitempty"`
	Warm     []functions.WarmParent  `json:"warm,omitempty"` // warm interpreters, whose memory is in Memory
}

// Team is a namespace, its bounds and what it has of them.
type Team struct {
	Name      string             `json:"name"`
	GPUs      functions.TeamGPUs `json:"gpus"`
	Limits    functions.Limits   `json:"limits"`
	Functions int                `json:"functions"`
	Active    int                `json:"active"`
	// What remains; left out where there is no limit.
	Requests   *int `json:"requests_left,omitempty"`
	Tokens     *int `json:"tokens_left,omitempty"`
	ColdStarts *int `json:"cold_starts_left,omitempty"`
	Held       int  `json:"held"` // requests that wait

	TeamUse
}

// TeamUse is what a team has had and has of the fleet.
type TeamUse struct {
	GPUs       int        `json:"gpus_held"`   // by what starts, serves and stops
	Lately     float64    `json:"gpus_lately"` // in use on average, what is longer ago counting less
	Today      float64    `json:"gpu_seconds_today"`
	Total      float64    `json:"gpu_seconds"`
	Left       *float64   `json:"gpu_seconds_left,omitempty"` // of today, where there is a limit
	Resets     *time.Time `json:"gpu_seconds_reset,omitempty"`
	OverBudget bool       `json:"barred,omitempty"`    // its GPU-seconds of today are used up
	Inflicted  uint64     `json:"evictions_inflicted"` // of other teams' replicas for its own
	Suffered   uint64     `json:"evictions_suffered"`  // of its replicas for other teams'
	Thrash     uint64     `json:"thrash"`              // its functions that were evicted and missed soon after
}

// ColdStart is a timeline with what is told of it to people.
type ColdStart struct {
	functions.Timeline
	ETA      *float64 `json:"eta_s,omitempty"`
	Position int      `json:"position,omitempty"` // of the request asked about, while it waits
}

// Event is something that happened.
type Event struct {
	Seq      uint64    `json:"seq"`
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"`
	Function string    `json:"function,omitempty"`
	Replica  string    `json:"replica,omitempty"`
	Node     string    `json:"node,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
	For      string    `json:"for,omitempty"`
}

// Explanation is why a function is as it is, and how the last decision of a kind
// about it came to be.
type Explanation struct {
	Kind     string          `json:"explains"` // place, evict, cold or scale
	Function string          `json:"function"`
	State    functions.State `json:"state"`
	Now      string          `json:"now"` // what it does now and why, in a sentence

	// The last decision of this kind; absent where none is remembered.
	Decided    time.Time   `json:"decided_at,omitzero"`
	Chosen     string      `json:"chosen,omitempty"` // a node or a replica; absent: none
	Reason     string      `json:"reason,omitempty"`
	For        string      `json:"for,omitempty"` // the function that got the room
	Candidates []Candidate `json:"candidates"`    // the best first
	Others     int         `json:"others"`        // candidates that are not listed

	Events []Event `json:"events"` // the last ones about the function, oldest first
}

// Candidate is one choice of a decision. The least score was taken; one that
// could not be taken has none and says why.
type Candidate struct {
	Node     string   `json:"node,omitempty"`
	Replica  string   `json:"replica,omitempty"`
	Function string   `json:"function,omitempty"`
	Score    *float64 `json:"score,omitempty"`
	Parts    []Part   `json:"parts,omitempty"`
	Why      string   `json:"why,omitempty"`
}

// Part of a score; they add up to it.
type Part struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

var explainKinds = []string{"place", "evict", "cold", "scale"}

// ExplainKinds are what can be explained of a function.
func ExplainKinds() []string { return slices.Clone(explainKinds) }

// Woken answers a wake.
type Woken struct {
	Function  string          `json:"function"`
	State     functions.State `json:"state"`
	ColdStart string          `json:"cold_start,omitempty"` // "" when a replica is READY
}

// Deployed answers a PUT.
type Deployed struct {
	Function
	Created bool `json:"created"`
	DryRun  bool `json:"dry_run,omitempty"`
}

// NewKey is a key with its secret, which is shown once.
type NewKey struct {
	auth.Key
	Secret string `json:"key"`
}

// KeyRequest asks for a key.
type KeyRequest struct {
	Team  string `json:"team"`
	Name  string `json:"name,omitempty"`
	Admin bool   `json:"admin,omitempty"`
}

// WakeRequest holds the function for a while though nobody asks for it: Lease
// from now, or Until a time. Neither: for its idle time, at least a minute. A
// start whose lease is over before its engine runs is called off, so whoever
// waits for one asks again from time to time.
type WakeRequest struct {
	Lease functions.Duration `json:"lease,omitempty"`
	Until time.Time          `json:"until,omitzero"`
	// Adapter, one of the model's, is loaded ahead of any request for it.
	Adapter string `json:"adapter,omitempty"`
}

// Readiness answers /readyz.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons,omitempty"` // why not
}

func known(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

func seconds(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Round(time.Millisecond).Seconds()
	return &s
}
