package autoscale

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ScaleSource is what the controller knows of revisions. It is asked from several
// goroutines at once and must answer from memory.
type ScaleSource interface {
	// Scale is how a revision stands. Not ok: the controller has not looked yet,
	// and what was said of the revision stays.
	Scale(namespace, revision string) (s Scale, ok bool)
}

// Scale is how a revision stands.
type Scale struct {
	Desired int32 // replicas that are wanted
	Actual  int32 // pods that there are, ready or not
	Ready   int32 // of them, those that take requests

	// Active is True, Unknown (on the way up) or False (at zero, or given up);
	// empty: it follows from the numbers. Reason is one word in CamelCase, Message
	// a sentence for a person, such as "waiting for 2 GPUs; evicting team-b/llama,
	// idle 14 min"; either may be empty.
	Active  corev1.ConditionStatus
	Reason  string
	Message string
}

// Reasons that are the usual course of things: no Event tells of them. Any other
// reason is told, as a warning but for ReasonEvicted.
const (
	ReasonNoTraffic = "NoTraffic" // nobody asks: Active is False
	ReasonQueued    = "Queued"    // requests wait for a replica: Active is Unknown
	ReasonStarting  = "Starting"  // a replica is on its way
	ReasonStopping  = "Stopping"  // its replicas drain
	ReasonEvicted   = "Evicted"   // it made way for another model
)

const (
	noTrafficMessage = "The target is not receiving traffic."
	queuedMessage    = "Requests to the target are being buffered as resources are provisioned."
	unseenMessage    = "The controller has not looked at it yet."
)

// statusBefore is what a PodAutoscaler said before.
type statusBefore struct {
	desired     *int32
	active      corev1.ConditionStatus // "" not yet
	reason      string
	message     string
	initialized bool
}

// scaleBounds are what its annotations and Knative's settings ask of it.
type scaleBounds struct {
	min, initial int32
	unreachable  bool // no route leads to it
	hasService   bool // its Service is there
}

// newStatus is what it is to say.
type newStatus struct {
	desired     *int32
	ready       int32
	active      corev1.ConditionStatus
	reason      string
	message     string
	initialized bool
}

// decideStatus makes a PodAutoscaler's word of the controller's. It is Knative's own table,
// with the controller's reasons.
func decideStatus(s Scale, known bool, b scaleBounds, before statusBefore) newStatus {
	v := newStatus{desired: before.desired, active: before.active, reason: before.reason, message: before.message, initialized: before.initialized}
	first := max(b.min, b.initial)
	if !known {
		if !v.initialized && first == 0 && b.hasService {
			v.initialized = true
		}
		switch {
		case v.active == "" && first == 0:
			v.active, v.reason, v.message = corev1.ConditionFalse, ReasonNoTraffic, noTrafficMessage
		case v.active == "":
			v.active, v.reason, v.message = corev1.ConditionUnknown, ReasonQueued, unseenMessage
		}
		return v
	}
	v.desired, v.ready = &s.Desired, s.Ready
	if s.Ready >= first && b.hasService {
		v.initialized = true
	}
	v.active, v.reason, v.message = s.Active, s.Reason, escapePercent(s.Message)
	if v.active == "" {
		switch {
		case s.Desired == 0:
			v.active = corev1.ConditionFalse
		case s.Ready < max(b.min, 1):
			v.active = corev1.ConditionUnknown
		default:
			v.active = corev1.ConditionTrue
		}
	}
	// Knative fails a revision that says False before it was ever up. One that nobody
	// has tried to start, or that made way, has not failed.
	if v.active == corev1.ConditionFalse && !v.initialized && first > 0 && !b.unreachable {
		switch {
		case v.reason == ReasonEvicted:
			v.active = corev1.ConditionUnknown
		case slices.Contains(normalReasons, v.reason):
			v.active, v.reason, v.message = corev1.ConditionUnknown, "", ""
		}
	}
	switch v.active {
	case corev1.ConditionFalse:
		if v.reason == "" {
			v.reason = ReasonNoTraffic
		}
		if v.message == "" && v.reason == ReasonNoTraffic {
			v.message = noTrafficMessage
		}
	case corev1.ConditionUnknown:
		if v.reason == "" {
			v.reason = ReasonQueued
		}
		if v.message == "" && v.reason == ReasonQueued {
			v.message = queuedMessage
		}
	}
	return v
}

// escapePercent is a message that Knative can carry: it takes messages for formats on the
// way from a PodAutoscaler to a revision.
func escapePercent(message string) string { return strings.ReplaceAll(message, "%", " percent") }
