package autoscale

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ScaleSource is the controller's state of revisions. It is called concurrently and must
// answer from memory.
type ScaleSource interface {
	// Scale returns the scale of a revision. Not ok: not known yet, so the last status
	// stays.
	Scale(namespace, revision string) (s Scale, ok bool)
}

// Scale is the state of a revision.
type Scale struct {
	Desired int32 // wanted replicas
	Actual  int32 // pods, ready or not
	Ready   int32 // pods that accept requests

	// Active is True, Unknown (starting) or False (at zero, or failed); empty: derived
	// from the numbers. Reason is one word in CamelCase, Message a sentence such as
	// "waiting for 2 GPUs; evicting team-b/llama, idle 14 min"; both may be empty.
	Active  corev1.ConditionStatus
	Reason  string
	Message string
}

// Reasons without an Event. Other reasons are recorded, as warnings except ReasonEvicted.
const (
	ReasonNoTraffic = "NoTraffic" // no requests: Active is False
	ReasonQueued    = "Queued"    // requests wait for a replica: Active is Unknown
	ReasonStarting  = "Starting"  // a replica is starting
	ReasonStopping  = "Stopping"  // its replicas drain
	ReasonEvicted   = "Evicted"   // evicted for another model
	ReasonBadModel  = "BadModel"  // what its tenant wrote cannot be read: a warning at once
)

const (
	noTrafficMessage = "The target is not receiving traffic."
	queuedMessage    = "Requests to the target are being buffered as resources are provisioned."
	unseenMessage    = "The controller has no state of it yet."
)

// scaleBounds is what annotations and Knative require.
type scaleBounds struct {
	min, initial int32
	unreachable  bool // no route leads to it
	hasService   bool // its Service exists
}

// scaleStatus is the status of a PodAutoscaler, as it was or as it is to be written.
type scaleStatus struct {
	desired     *int32
	ready       int32
	active      corev1.ConditionStatus // "": not set yet
	reason      string
	message     string
	initialized bool
}

// decideStatus derives the status from the previous one and the controller's state by the
// rules of Knative's own class.
func decideStatus(s Scale, known bool, b scaleBounds, v scaleStatus) scaleStatus {
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
	// Knative fails a revision that is False before it was ever ready. A revision without
	// a start attempt, or evicted, has not failed.
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
		v.reason = cmp.Or(v.reason, ReasonNoTraffic)
		if v.message == "" && v.reason == ReasonNoTraffic {
			v.message = noTrafficMessage
		}
	case corev1.ConditionUnknown:
		v.reason = cmp.Or(v.reason, ReasonQueued)
		if v.message == "" && v.reason == ReasonQueued {
			v.message = queuedMessage
		}
	}
	return v
}

// escapePercent replaces percent signs: Knative uses messages as formats when it copies
// them from a PodAutoscaler to a revision.
func escapePercent(message string) string { return strings.ReplaceAll(message, "%", " percent") }
