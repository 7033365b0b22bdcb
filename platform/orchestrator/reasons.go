package orchestrator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// reasons maps reason words of events and decisions to sentences. A word without a
// sentence is shown unchanged.
var reasons = map[string]string{
	"start demand":      "requests wait for it",
	"start min":         "its model file sets a minimum",
	"start lease":       "a lease keeps it ready",
	"start prewarm":     "requests are expected soon",
	"rise demand":       "requests wait for it",
	"rise min":          "its model file sets a minimum",
	"rise lease":        "a lease keeps it ready",
	"rise prewarm":      "requests are expected soon",
	"idle":              "it had no requests for its idle time",
	"surplus":           "fewer replicas are enough",
	"evicted":           "it was idle, and another function needs the room",
	"time_slice":        "its time slice is over, and another function has waited for long",
	"share":             "its team has had more than its share, and another team waits",
	"unused":            "it was started ahead of requests that did not come",
	"pressure":          "its node is short of host memory",
	"budget":            "its team has used up its budget",
	"changed":           "its model file has changed",
	"removed":           "its model file is gone",
	"gpu_unhealthy":     "a GPU under it is unhealthy",
	"asked":             "a user stopped it",
	"sleepless":         "it did not fall asleep, or did not wake",
	"called_off":        "no requests wait for it any more",
	"vanished":          "its node no longer has it",
	"node_lost":         "its node was lost",
	"load_refused":      "its node did not take it",
	"failed":            "it broke",
	"silent":            "its heartbeats are missing",
	"adopted READY":     "it ran already when this server came to know of it",
	"asleep evicted":    "its GPUs were given to another function",
	"asleep time_slice": "its GPUs were given to another function",
	"asleep idle":       "it had no requests for its idle time",
	"ready":             "it has answered a request",
	"ready unprobed":    "its health answered, and its model file lets no request be sent (unprobed)",
	"node_joined":       "its first heartbeat arrived",
	"adopted":           "it was there already when this server came to know of it",
	"scale demand":      "it has more requests than its replicas are meant to serve at once",
	"recheck":           "it is implausible and is checked again",
	"stale_epoch":       "a newer server commands",
}

// reasonSentence is the sentence for a reason of an event of this kind.
func reasonSentence(kind, reason string) string {
	for _, k := range [...]string{kind + " " + reason, reason, kind} {
		if s := reasons[k]; s != "" && k != "" {
			return s
		}
	}
	return ""
}

// reasonSuffix appends a reason to a sentence.
func reasonSuffix(kind, reason string) string {
	if s := reasonSentence(kind, reason); s != "" && reason != "" {
		return ": " + s
	}
	return ""
}

// formatAge formats a span for people.
func formatAge(d time.Duration) string {
	switch {
	case d < 0:
		return "some time"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	}
	text := strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	if strings.HasSuffix(text, "h0m") {
		return strings.TrimSuffix(text, "0m")
	}
	return text
}

// kinds are the kinds of decisions that Explain accepts.
var kinds = []string{placement.KindPlace, placement.KindEvict, placement.KindCold, placement.KindScale}

// Explain returns the state of a function with its reason, and the candidates of the
// last decision of a kind (place, evict, cold, scale). It is false for an unknown
// function or kind.
func (s *Orchestrator) Explain(kind string, name functions.Name) (functions.Explanation, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.functions[name.WithoutAdapter()]
	if f == nil || !slices.Contains(kinds, kind) {
		return functions.Explanation{}, false
	}
	x, at, ok := s.planner.Explain(f.Name, kind)
	x.Kind, x.Function, x.State, x.Now = kind, f.Name.String(), f.state(), f.summary(s.now(), s.timeNow(), s.bytesAtHand(f), s.path.InFlightOf)
	if !ok {
		return x, true
	}
	x.Decided = s.wallTime(at)
	kindWord := "start"
	switch kind {
	case placement.KindEvict, placement.KindCold:
		kindWord = "stop"
	case placement.KindScale:
		kindWord = "scale"
	}
	if w := reasonSentence(kindWord, x.Reason); w != "" {
		x.Reason = w
	}
	return x, true
}

// summary returns a sentence about the state of f and its reason.
func (f *functionState) summary(now placement.Instant, wall time.Time, atHand bool, inFlight func(functions.Name, string) int) string {
	var ready, asleep, leaving, flight int
	var start, last *replicaState
	for _, r := range f.replicas {
		switch {
		case r.stopping || r.cancelled:
			leaving++
			last = r
		case r.serves():
			ready++
			if r.readyAt > 0 {
				flight += inFlight(f.Name, r.id)
			}
		case r.asleep():
			asleep++
			last = r
		default:
			start = r
		}
	}
	count := func(n int, what string) string {
		if n == 1 {
			return "1 " + what
		}
		return fmt.Sprintf("%d %ss", n, what)
	}
	also := ""
	if start != nil && ready > 0 {
		also = "; one more is on its way"
	}
	switch {
	case f.Gone:
		return "Its model file is gone, and what runs of it is ending."
	case ready > 0 && flight+f.Queued > 0:
		return fmt.Sprintf("It serves %s with %s%s%s.", count(flight, "request"), count(ready, "replica"), waitingSuffix(f.Queued), also)
	case ready > 0:
		return fmt.Sprintf("It is ready and idle, with %s%s.%s", count(ready, "replica"), also, f.idleSummary(now))
	case start != nil:
		return f.startSummary(start, now)
	case f.failure != nil && wall.Before(f.failure.Until):
		return fmt.Sprintf("It did not start: %s; it is not tried again before %s have passed.", f.failure.Reason, formatAge(f.failure.Until.Sub(wall)))
	case f.blocked != nil:
		eta := ""
		if left := f.blocked.Remaining(wall); left > 0 {
			eta = ", it may be ready in about " + formatAge(left)
		}
		return fmt.Sprintf("It cannot be placed: %s%s%s.", f.blocked.Message, waitingSuffix(f.Queued), eta)
	case asleep > 0:
		rise := ""
		if d := f.starts.WakeTime(false, 50); d >= 0 {
			rise = "; to wake takes about " + formatAge(d)
		}
		return fmt.Sprintf("It sleeps on %s: its weights are in host memory and its GPUs are free%s%s.", last.node, reasonSuffix("asleep", last.reason), rise)
	case leaving > 0:
		return fmt.Sprintf("It is on its way out on %s%s.", last.node, reasonSuffix("stop", last.reason))
	case f.Active+f.Queued > 0 || f.Lease > now:
		return fmt.Sprintf("It is wanted%s, and no place has been looked for yet.", waitingSuffix(f.Queued))
	}
	why := "it had no requests since this server started"
	if f.lastEnd.at > 0 {
		why = fmt.Sprintf("its last replica ended %s ago", formatAge(now-f.lastEnd.at)) + reasonSuffix("stop", f.lastEnd.reason)
	}
	cost := ""
	if p := f.forecastStart(atHand).P50; p >= 0 {
		cost = fmt.Sprintf("; to start takes about %s", formatAge(p))
	}
	return fmt.Sprintf("It is cold: %s%s.", why, cost)
}

func waitingSuffix(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 request waits"
	}
	return fmt.Sprintf(", %d requests wait", n)
}

// idleSummary returns until when an idle function stays READY.
func (f *functionState) idleSummary(now placement.Instant) string {
	switch {
	case f.Lease >= forever:
		return ""
	case f.Lease > now:
		return fmt.Sprintf(" A lease keeps it ready for %s more.", formatAge(f.Lease-now))
	case f.Scale.Min > 0:
		return fmt.Sprintf(" Its model file keeps %d running.", f.Scale.Min)
	case f.LastEnd > 0:
		return fmt.Sprintf(" The last request ended %s ago; its idle time is %s.", formatAge(now-f.LastEnd), formatAge(f.Scale.Idle.Std()))
	}
	return fmt.Sprintf(" Its idle time is %s.", formatAge(f.Scale.Idle.Std()))
}

// startSummary returns the progress of a start of f.
func (f *functionState) startSummary(r *replicaState, now placement.Instant) string {
	state := r.status.State
	if r.sleep.wakingUp {
		state = functions.Loading
	}
	how := "It is being started"
	if r.sleep.wakingUp {
		how = "It is being woken"
	}
	text := fmt.Sprintf("%s on %s (%s)", how, r.node, state.Word())
	if c := r.coldStart; c != nil && !c.over {
		if p := c.timeline(now).Progress; p.ETA >= 0 {
			text += ", ready in about " + formatAge(p.ETA)
		}
	}
	return text + reasonSuffix("start", r.cause) + waitingSuffix(f.Queued) + "."
}
