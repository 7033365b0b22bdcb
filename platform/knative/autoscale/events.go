package autoscale

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/apis/serving"

	"github.com/thaw-dev/thaw/platform/knative"
)

// eventRepeat is how long an unchanged reason is not repeated although its message
// changed.
const eventRepeat = 5 * time.Minute

// events records Events of the Knative Service of a revision. The recorder counts repeated
// ones and limits their rate.
type events struct {
	recorder record.EventRecorder

	mu   sync.Mutex
	last map[types.NamespacedName]lastReported
}

// lastReported is what was last recorded for a revision.
type lastReported struct {
	desired int32
	reason  string
	message string
	at      time.Time
	unseen  bool // DemandUnseen was recorded
}

// recordScale records changes since the last call. The first call records only a model
// that cannot be read: a new controller has seen no change.
func (e *events) recordScale(pa *v1alpha1.PodAutoscaler, s Scale) {
	key := types.NamespacedName{Namespace: pa.Namespace, Name: pa.Name}
	e.mu.Lock()
	before, known := e.last[key]
	next, lines := compareScale(before, known, s, time.Now())
	next.unseen = before.unseen
	e.last[key] = next
	e.mu.Unlock()
	for _, l := range lines {
		e.recorder.Event(eventTarget(pa), l.kind, l.reason, "revision "+pa.Name+": "+l.text)
	}
}

func (e *events) recordNote(pa *v1alpha1.PodAutoscaler, n Note) {
	sort := corev1.EventTypeNormal
	if n.Warning {
		sort = corev1.EventTypeWarning
	}
	e.recorder.Event(eventTarget(pa), sort, n.Reason, "revision "+pa.Name+": "+n.Message)
}

// recordUnseen records once that the demand for a revision cannot be read, until it can be
// again. It is called after recordScale.
func (e *events) recordUnseen(pa *v1alpha1.PodAutoscaler, is bool, class string) {
	key := types.NamespacedName{Namespace: pa.Namespace, Name: pa.Name}
	e.mu.Lock()
	m := e.last[key]
	was := m.unseen
	if m.unseen = is; is || was {
		e.last[key] = m
	}
	e.mu.Unlock()
	if is && !was {
		e.recordNote(pa, Note{Reason: "DemandUnseen", Warning: true, Message: fmt.Sprintf(
			"ingress class %s leads to it, and its requests cannot be counted, so they do not start it: set metrics-protocol: prometheus in "+
				"config-observability of Knative, or use ingress class %s", class, knative.IngressClass)})
	}
}

func (e *events) forget(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.last, key)
}

// normalReasons cause no Event.
var normalReasons = []string{"", ReasonNoTraffic, ReasonQueued, ReasonStarting, ReasonStopping}

type pendingEvent struct{ kind, reason, text string }

func compareScale(before lastReported, known bool, s Scale, now time.Time) (lastReported, []pendingEvent) {
	next := lastReported{desired: s.Desired, reason: s.Reason, message: s.Message, at: before.at}
	if !known {
		next.at = now
		if s.Reason == ReasonBadModel {
			return next, []pendingEvent{{corev1.EventTypeWarning, s.Reason, s.Message}}
		}
		return next, nil
	}
	var lines []pendingEvent
	usual := slices.Contains(normalReasons, s.Reason)
	if s.Desired != before.desired {
		text := fmt.Sprintf("from %d to %d replicas", before.desired, s.Desired)
		if usual && s.Message != "" {
			text += ": " + s.Message
		}
		lines = append(lines, pendingEvent{corev1.EventTypeNormal, "Scaled", text})
	}
	if usual {
		return next, lines
	}
	// Messages that differ only in numbers are equal.
	if s.Reason == before.reason && (withoutNumbers(s.Message) == withoutNumbers(before.message) || now.Sub(before.at) < eventRepeat) {
		next.message = before.message
		return next, lines
	}
	next.at = now
	sort := corev1.EventTypeWarning
	if s.Reason == ReasonEvicted || s.Active == corev1.ConditionTrue && s.Reason != ReasonBadModel {
		sort = corev1.EventTypeNormal
	}
	return next, append(lines, pendingEvent{sort, s.Reason, cmp.Or(s.Message, s.Reason)})
}

// withoutNumbers removes digits and dots.
func withoutNumbers(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' {
			return -1
		}
		return r
	}, s)
}

// eventTarget is the object of a revision's Events: its Service, or the revision if it has
// none.
func eventTarget(pa *v1alpha1.PodAutoscaler) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{APIVersion: "serving.knative.dev/v1", Namespace: pa.Namespace}
	if name := pa.Labels[serving.ServiceLabelKey]; name != "" {
		ref.Kind, ref.Name, ref.UID = "Service", name, types.UID(pa.Labels[serving.ServiceUIDLabelKey])
		return ref
	}
	ref.Kind, ref.Name = "Revision", pa.Name
	if owner := metav1.GetControllerOf(pa); owner != nil {
		ref.UID = owner.UID
	}
	return ref
}
