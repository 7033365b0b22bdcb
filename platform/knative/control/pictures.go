package control

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/steer"
)

// Scale is how a revision stands, for its PodAutoscaler.
func (r *reign) Scale(namespace, revision string) (autoscale.Scale, bool) {
	name := functions.Name{Team: namespace, Name: revision}
	if !r.settled.Load() || !r.books.is(namespace, revision) {
		return autoscale.Scale{}, false
	}
	desired, actual, ready := r.fleet.Scale(name)
	s := autoscale.Scale{Desired: int32(desired), Actual: int32(actual), Ready: int32(ready)}
	f, known := r.steer.Function(name)
	switch {
	case ready > 0:
		s.Active = corev1.ConditionTrue
	case known && f.Failure != nil:
		s.Active, s.Reason, s.Message = corev1.ConditionFalse, "Failed", f.Failure.Reason
	case known && f.Blocked != nil:
		s.Active, s.Reason, s.Message = corev1.ConditionUnknown, camel(f.Blocked.Code), f.Blocked.Message
	case desired > 0:
		s.Active, s.Reason = corev1.ConditionUnknown, autoscale.ReasonStarting
		s.Message = starting(f.State)
	case actual > 0:
		s.Active, s.Reason = corev1.ConditionFalse, autoscale.ReasonStopping
	default:
		s.Active, s.Reason = corev1.ConditionFalse, autoscale.ReasonNoTraffic
	}
	return s, true
}

// starting says how far a start is, in words: a percentage would be a write each.
func starting(state functions.State) string {
	what := "a replica is starting"
	switch state {
	case functions.Downloading:
		what = "a replica is on its way: its pod starts, its weights arrive"
	case functions.Loading:
		what = "a replica is loading its model"
	}
	return what
}

// camel is a word of ours as reasons of conditions are written.
func camel(code string) string {
	var b strings.Builder
	for _, w := range strings.FieldsFunc(code, func(r rune) bool { return r == '_' || r == ' ' }) {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return cmp.Or(b.String(), "Blocked")
}

// event tells the Service of a revision what happened to it.
func (r *reign) event(e steer.Event) {
	if r.autoscale == nil {
		return
	}
	name, err := functions.ParseName(e.Function, functions.DefaultTeam)
	if err != nil || e.Function == "" {
		return
	}
	tell := func(reason, message string, warning bool) {
		r.autoscale.Tell(name.Team, name.Name, autoscale.Note{Reason: reason, Message: message, Warning: warning})
	}
	switch {
	case e.Kind == "stop" && (e.Reason == "evicted" || e.Reason == "turn" || e.Reason == "share"):
		tell("Evicted", fmt.Sprintf("Its replica on %s makes way for %s: %s.", e.Node, cmp.Or(e.For, "another model"), e.Message), false)
	case e.Kind == "failed":
		tell("ReplicaFailed", e.Message, true)
	}
	r.moved(name)
}
