package api

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

type List[T any] struct {
	Items []T `json:"items"`
}

// Function is a function as it is now. State, percent and ETA of a model are those of its
// best replica; percent and eta_s are left out where nothing is known. A Remote is READY or
// FAILED, a Router and a Composition READY; their spec is in the key of their kind.
type Function struct {
	Name      string               `json:"name"` // TEAM/NAME
	Team      string               `json:"team"`
	Model     string               `json:"model"` // what the team's own requests say
	Kind      string               `json:"type"`  // Model, Router, Remote or Composition
	State     functions.State      `json:"state"`
	Engine    functions.Engine     `json:"engine,omitempty"`
	Source    string               `json:"source,omitempty"`        // of a Remote its URL
	Replicas  int                  `json:"replicas"`                // READY ones
	Active    int                  `json:"active"`                  // requests at engines
	Queued    int                  `json:"queued"`                  // requests held
	Waiting   *time.Time           `json:"waiting_since,omitempty"` // arrival of the one held longest
	Percent   *int                 `json:"percent,omitempty"`
	ETA       *float64             `json:"eta_s,omitempty"`
	Bytes     functions.Bytes      `json:"bytes,omitempty"`       // of its checkpoint, as its newest cold start found it
	Expected  *float64             `json:"expected_s,omitempty"`  // of a cold start, the median
	ColdStart string               `json:"cold_start,omitempty"`  // the newest one's id
	Blocked   string               `json:"blocked,omitempty"`     // why no node takes it: capacity, quota or budget; the sentence is problem
	Final     bool                 `json:"final,omitempty"`       // blocked for good: no node could hold it even if it were empty, and none may join
	Problem   string               `json:"problem,omitempty"`     // why it cannot be served now, or served as its file is
	Origin    string               `json:"origin,omitempty"`      // file and line it was read from
	Spent     float64              `json:"spent_today,omitempty"` // of a Remote: money, since midnight UTC
	Spec      *functions.ModelSpec `json:"spec,omitempty"`        // of a single function only

	Router      *functions.RouterSpec      `json:"router,omitempty"`      // likewise
	Remote      *functions.RemoteSpec      `json:"remote,omitempty"`      // likewise
	Composition *functions.CompositionSpec `json:"composition,omitempty"` // likewise
}

// Node is one machine with an agent.
type Node struct {
	functions.Node
	Near []NodeModel `json:"near,omitempty"` // of the models that who asks may see
}

// Team is a namespace, its bounds and what it has of them.
type Team struct {
	Name      string              `json:"name"`
	GPUs      functions.TeamGPUs  `json:"gpus"`
	Limits    functions.Limits    `json:"limits"`
	Data      functions.DataClass `json:"data,omitempty"` // of its requests, unless a Router says another
	Functions int                 `json:"functions"`
	Active    int                 `json:"active"`
	// What remains; left out where there is no limit.
	Requests   *int `json:"requests_left,omitempty"`
	Tokens     *int `json:"tokens_left,omitempty"`
	ColdStarts *int `json:"cold_starts_left,omitempty"`
	Held       int  `json:"held"` // requests that wait

	Spent float64 `json:"spent_today,omitempty"` // at Remotes: money, since midnight UTC

	functions.TeamUse
}

// ColdStart is a timeline as the API shows it.
type ColdStart struct {
	functions.Timeline
	ETA      *float64 `json:"eta_s,omitempty"`
	Position int      `json:"position,omitempty"` // of the request asked about, while it waits
}

var explainKinds = []string{"place", "evict", "cold", "scale"}

func ExplainKinds() []string { return slices.Clone(explainKinds) }

type WakeReply struct {
	Function  string          `json:"function"`
	State     functions.State `json:"state"`
	ColdStart string          `json:"cold_start,omitempty"` // "" when a replica is READY
}

type DeployReply struct {
	Function
	Created bool `json:"created"`
	DryRun  bool `json:"dry_run,omitempty"`
	// Unchanged: the function was there just so, and nothing was written.
	Unchanged bool `json:"unchanged,omitempty"`
	// Warnings are about targets of a Router, and members of a Composition, that can never
	// be chosen, and about folders that a model names and that are not there.
	Warnings catalog.Problems `json:"warnings,omitempty"`
	// Sized says how spec.resources was worked out, or why not, of a model whose file
	// leaves it out.
	Sized string `json:"sized,omitempty"`
	// Unmet is why none of the nodes that are there could ever hold the model.
	Unmet string `json:"unmet,omitempty"`
}

// NewKey is a key with its secret, which is shown once.
type NewKey struct {
	auth.Key
	Secret string `json:"key"`
}

type KeyRequest struct {
	Team  string `json:"team"`
	Name  string `json:"name,omitempty"`
	Admin bool   `json:"admin,omitempty"`
}

// JoinTokenRequest asks for a join token: for one agent, or with "" for any whose name is not
// taken. Expiry 0 is an hour.
type JoinTokenRequest struct {
	Agent  string             `json:"agent,omitempty"`
	Expiry functions.Duration `json:"expiry,omitempty"`
}

// JoinToken is a join token, which is shown this once.
type JoinToken struct {
	Token   string    `json:"token"`
	Agent   string    `json:"agent,omitempty"` // "": any
	Expires time.Time `json:"expires"`
	Server  string    `json:"server"` // the URL for thaw agent --server
}

// WakeRequest keeps a function without requests: for Lease, or Until a time; with
// neither for its idle time, at least a minute. A start whose lease ends before its
// engine runs is cancelled, so a client that waits for one renews the wake.
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

func positivePtr(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

func optionalSeconds(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	return new(d.Round(time.Millisecond).Seconds())
}
