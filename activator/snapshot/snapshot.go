package snapshot

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Snapshot is one immutable picture of a function. Whoever publishes it must
// not change it, nor anything it points at, afterwards.
type Snapshot struct {
	Name              functions.Name
	Model             *functions.Model
	State             functions.State     // of its best replica; Unloaded (or "") when at rest
	Replicas          []Replica           // READY ones only; draining ones are absent
	NotReadyEndpoints []Replica           // not READY, but the shim at their door takes requests ahead (see Ahead)
	Progress          functions.Progress  // of the cold start under way
	ColdStart         *functions.Timeline // the newest cold start, under way or last; nil if there was none
	Forecast          functions.Forecast
	Failure           *Failure // the breaker is open: refuse at once, until Until
	Blocked           *Blocked // cannot be placed now
	Sleeping          bool

	// ServedModelName is what its engines call the model where that is not the function's own
	// name: a revision of a service goes by the service's, to its engine as to those
	// who ask. "" is the name.
	ServedModelName string
	// Hidden keeps it out of lists and suggestions: it is asked for by an alias. Its
	// own name works all the same.
	Hidden bool
	// External says that its replicas run a program that is no engine of ours. A request
	// that came by host goes to it as it is, whatever its path, and with whom it is
	// from is the program's affair.
	External bool
}

// PublicName is the name that people ask for it by, and that they are to read.
func (f *Snapshot) PublicName() functions.Name {
	if f.ServedModelName == "" {
		return f.Name
	}
	return functions.Name{Team: f.Name.Team, Name: f.ServedModelName}
}

// EarlyHeader is the field of a request for a replica that may not be READY: the shim at
// its door keeps the request until it is, or answers that it does not.
const EarlyHeader = "thaw-early"

// HeldHeader is the field of its answer: for how many microseconds it was kept.
const HeldHeader = "thaw-held-us"

// Replica is one place where a READY engine answers.
type Replica struct {
	ID       string
	Node     string
	Endpoint string   // http://127.0.0.1:PORT, or http://host:port/replicas/ID
	Token    string   // bearer token of a remote agent, "" on this machine
	Key      string   // what the engine itself wants, where it is reached without its agent
	Adapters []string // loaded now
	Slots    int      // how many requests it is meant to serve at once; 0 unknown
}

// Failure is an open breaker: the last start failed.
type Failure struct {
	Reason string    // first root cause, one line
	Until  time.Time // no new start before
	At     time.Time
}

// Reasons why a function cannot be placed.
const (
	QuotaExceeded = "gpu_quota_exceeded" // its team holds all the GPUs it may
	BudgetSpent   = "insufficient_quota" // its team has used up what it may use
	NoCapacity    = "no_capacity"        // nothing can be evicted for it now
)

// Blocked says why a function cannot be placed now. ETA is until it may be READY
// all the same, as it was at the moment At; negative where nothing is known.
type Blocked struct {
	Code    string
	Message string
	ETA     time.Duration
	At      time.Time
}

// Remaining is what is left of ETA: never nothing, because the function is still
// blocked; negative where nothing is known. A nil Blocked knows nothing.
func (b *Blocked) Remaining(now time.Time) time.Duration {
	switch {
	case b == nil || b.ETA <= 0:
		return -1
	case b.At.IsZero():
		return b.ETA
	}
	// What is overdue is not about to happen: the later it is, the later it may be.
	late := now.Sub(b.At)
	return max(b.ETA-late, late/10, time.Second)
}

// Unknown slots are taken as twice the model's target: target is where the
// platform scales out, and a burst in between is better batched by an engine
// than held by a gate.
const unknownSlots = 2

// SlotsOf is how many requests the replica may be given at once, at least one.
func (f *Snapshot) SlotsOf(r *Replica) int {
	if r.Slots > 0 {
		return r.Slots
	}
	if f.Model != nil && f.Model.Spec.Scale.Target > 0 {
		return unknownSlots * f.Model.Spec.Scale.Target
	}
	return unknownSlots * 8
}

// Capacity is how many requests the READY replicas may be given at once.
func (f *Snapshot) Capacity() int {
	n := 0
	for i := range f.Replicas {
		n += f.SlotsOf(&f.Replicas[i])
	}
	return n
}

// HasReplica reports whether the replica takes traffic.
func (f *Snapshot) HasReplica(replica string) bool { return f.ReplicaIndex(replica) >= 0 }

// TakesEarly reports whether the replica takes requests ahead.
func (f *Snapshot) TakesEarly(replica string) bool {
	return slices.ContainsFunc(f.NotReadyEndpoints, func(r Replica) bool { return r.ID == replica })
}

// ReplicaIndex of a replica that takes traffic, -1 for any other.
func (f *Snapshot) ReplicaIndex(replica string) int {
	for i := range f.Replicas {
		if f.Replicas[i].ID == replica {
			return i
		}
	}
	return -1
}

// Starting reports whether a cold start is under way.
func (f *Snapshot) Starting() bool {
	return len(f.Replicas) == 0 && (f.State == functions.Downloading || f.State == functions.Loading)
}

// AdapterLoaded reports whether a replica that takes traffic has it loaded.
func (f *Snapshot) AdapterLoaded(name string) bool {
	for i := range f.Replicas {
		if slices.Contains(f.Replicas[i].Adapters, name) {
			return true
		}
	}
	return false
}

// DeclaresAdapter reports whether the model declares the adapter.
func (f *Snapshot) DeclaresAdapter(name string) bool {
	if f.Model == nil {
		return false
	}
	for i := range f.Model.Spec.Adapters {
		if f.Model.Spec.Adapters[i].Name == name {
			return true
		}
	}
	return false
}
