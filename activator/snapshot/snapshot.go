package snapshot

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Snapshot is the state of a function as the platform published it. Neither it nor
// anything it points at may be changed after Publish.
type Snapshot struct {
	Name          functions.Name
	Model         *functions.Model
	Remote        *functions.Remote   // set where another party runs the function; then Model is nil
	State         functions.State     // of its best replica; Unloaded (or "") when at rest
	Replicas      []Replica           // READY ones only; draining ones are absent
	EarlyReplicas []Replica           // not READY, but their shim takes requests already (see EarlyHeader)
	Progress      functions.Progress  // of the cold start under way
	ColdStart     *functions.Timeline // the newest cold start, under way or last; nil if there was none
	Forecast      functions.Forecast
	Failure       *Failure // the breaker is open: refuse at once, until Until
	Blocked       *Blocked // cannot be placed now
	Sleeping      bool

	// ServedModelName is what the engines call the model where that is not the
	// function's own name: a revision has its service's name. "" is the function's.
	ServedModelName string
	// Hidden keeps the function out of lists and suggestions: it is requested by an
	// alias. Its own name works all the same.
	Hidden bool
	// External is set where the replicas run a program that is not one of our engines.
	// A request that came by host is proxied unchanged, whatever its path, and
	// authentication is the program's.
	External bool
}

// PublicName is the name that clients use and read.
func (s *Snapshot) PublicName() functions.Name {
	if s.ServedModelName == "" {
		return s.Name
	}
	return functions.Name{Team: s.Name.Team, Name: s.ServedModelName}
}

// EarlyHeader marks a request for a replica that may not be READY: its shim keeps the
// request until it is, or answers that it does not.
const EarlyHeader = "thaw-early"

// HeldHeader is in the answer to such a request: how many microseconds the shim kept
// it.
const HeldHeader = "thaw-held-us"

// Replica is one endpoint of a function.
type Replica struct {
	ID       string
	Endpoint string   // http://127.0.0.1:PORT, or https://HOST:PORT/replicas/ID
	Key      string   // API key of an engine that is reached without its agent
	Adapters []string // loaded now
	Slots    int      // how many requests it serves at once; 0 unknown
	Weights  string   // identifies the bytes of the checkpoint that its engine loaded; "" unknown

	// As its engine reported last; 0 where it reports none.

	EngineQueue int     // requests that wait inside the engine, of all that send it any
	HitRate     float64 // share of prompt tokens found in its KV cache, 0 to 1
}

// Failure is an open circuit breaker: the last start failed.
type Failure struct {
	Reason string    // first root cause, one line
	Until  time.Time // no new start before
	At     time.Time
}

// Reasons why a function cannot be placed.
const (
	QuotaExceeded = string(openai.GPUQuotaExceeded)  // its team holds all the GPUs that it may
	BudgetSpent   = string(openai.InsufficientQuota) // its team has used up its budget
)

// Blocked is why a function cannot be placed now. ETA is the expected time to READY as
// of At; negative if unknown.
type Blocked struct {
	Code    string
	Message string
	ETA     time.Duration
	At      time.Time
	Final   bool // no node could hold it even if it were empty, and no other is known: waiting does not help
}

// Remaining is what is left of ETA: never 0, because the function is still blocked;
// negative if unknown. b may be nil.
func (b *Blocked) Remaining(now time.Time) time.Duration {
	switch {
	case b == nil || b.ETA <= 0:
		return -1
	case b.At.IsZero():
		return b.ETA
	}
	// An overdue start is not about to happen: the later it is, the more time is
	// expected.
	elapsed := now.Sub(b.At)
	return max(b.ETA-elapsed, elapsed/10, time.Second)
}

// unknownSlots times the model's target are the slots of a replica whose slots are
// unknown: target is where the platform scales out, and an engine batches a burst
// better than a queue holds it.
const unknownSlots = 2

// SlotsOf is how many requests the replica may have at once, at least one.
func (s *Snapshot) SlotsOf(r *Replica) int {
	if r.Slots > 0 {
		return r.Slots
	}
	if s.Model != nil && s.Model.Spec.Scale.Target > 0 {
		return unknownSlots * s.Model.Spec.Scale.Target
	}
	return unknownSlots * 8
}

// HasReplica reports whether the replica takes requests.
func (s *Snapshot) HasReplica(replica string) bool { return s.ReplicaIndex(replica) >= 0 }

// ReplicaIndex of a replica that takes requests, -1 for any other.
func (s *Snapshot) ReplicaIndex(replica string) int {
	return slices.IndexFunc(s.Replicas, func(r Replica) bool { return r.ID == replica })
}

// Starting reports whether a cold start is under way.
func (s *Snapshot) Starting() bool {
	return len(s.Replicas) == 0 && (s.State == functions.Downloading || s.State == functions.Loading)
}

// AdapterLoaded reports whether a replica that takes requests has the adapter loaded.
func (s *Snapshot) AdapterLoaded(name string) bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return slices.Contains(r.Adapters, name) })
}

func (s *Snapshot) DeclaresAdapter(name string) bool {
	if s.Model == nil {
		return false
	}
	return slices.ContainsFunc(s.Model.Spec.Adapters, func(a functions.Adapter) bool { return a.Name == name })
}
