package orchestrator

import (
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/words"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/explain"
)

// Explain returns the state of a function with its reason, and the candidates of the
// last decision of a kind (place, evict, cold, scale). It is false for an unknown
// function or kind.
func (o *Orchestrator) Explain(kind string, name functions.Name) (functions.Explanation, bool) {
	o.loop.Lock()
	defer o.loop.Unlock()
	f := o.loop.functions[name.WithoutAdapter()]
	if f == nil || !slices.Contains(explain.Kinds, kind) {
		return functions.Explanation{}, false
	}
	x, at, ok := o.loop.planner.Explain(f.Name, kind)
	x.Kind, x.Function, x.State, x.Now = kind, f.Name.String(), f.state(),
		f.summary(o.loop.now(), o.loop.timeNow(), o.loop.bytesAtHand(f), &o.inbox)
	if !ok {
		return x, true
	}
	x.Decided = o.loop.wallTime(at)
	kindWord := "start"
	switch kind {
	case explain.Evict, explain.Cold:
		kindWord = "stop"
	case explain.Scale:
		kindWord = "scale"
	}
	if w := words.Sentence(kindWord, x.Reason); w != "" {
		x.Reason = w
	}
	return x, true
}

// summary returns a sentence about the state of f and its reason.
func (f *functionState) summary(now placement.Instant, wall time.Time, atHand bool, reported *inbox) string {
	var ready, asleep, leaving, flight int
	var start, last *replicaState
	for _, r := range f.replicas {
		switch {
		case r.Stopping || r.Cancelled:
			leaving++
			last = r
		case r.serves():
			ready++
			if r.ReadyAt > 0 {
				flight += reported.inFlightOf(f, r.ID)
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
		return fmt.Sprintf("It did not start: %s; it is not tried again before %s have passed.", f.failure.Reason,
			words.Age(f.failure.Until.Sub(wall)))
	case f.blocked != nil && f.OnlyLow():
		return fmt.Sprintf("It is not started: %s%s.", f.blocked.Message, waitingSuffix(f.Queued))
	case f.blocked != nil:
		eta := ""
		if left := f.blocked.Remaining(wall); left > 0 {
			eta = ", it may be ready in about " + words.Age(left)
		}
		return fmt.Sprintf("It cannot be placed: %s%s%s.", f.blocked.Message, waitingSuffix(f.Queued), eta)
	case asleep > 0:
		rise := ""
		if d := f.starts.WakeTime(false, 50); d >= 0 {
			rise = "; to wake takes about " + words.Age(d)
		}
		return fmt.Sprintf("It sleeps on %s: its weights are in host memory and its GPUs are free%s%s.", last.Node,
			words.Suffix("asleep", last.reason), rise)
	case leaving > 0:
		return fmt.Sprintf("It is on its way out on %s%s.", last.Node, words.Suffix("stop", last.reason))
	case f.Active+f.Queued > 0 || f.Lease > now:
		return fmt.Sprintf("It is wanted%s, and no place has been looked for yet.", waitingSuffix(f.Queued))
	}
	why := "it had no requests since this server started"
	if f.lastEnd.at > 0 {
		why = fmt.Sprintf("its last replica ended %s ago", words.Age(now-f.lastEnd.at)) + words.Suffix("stop", f.lastEnd.reason)
	} else if f.unplaced != "" {
		why = "its last requests found no place: " + f.unplaced
	}
	cost := ""
	if p := f.forecastStart(atHand).P50; p >= 0 {
		cost = fmt.Sprintf("; to start takes about %s", words.Age(p))
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
		return fmt.Sprintf(" A lease keeps it ready for %s more.", words.Age(f.Lease-now))
	case f.Scale.Min > 0:
		return fmt.Sprintf(" Its model file keeps %d running.", f.Scale.Min)
	case f.LastEnd > 0:
		return fmt.Sprintf(" The last request ended %s ago; its idle time is %s.", words.Age(now-f.LastEnd), words.Age(f.Scale.Idle.Std()))
	}
	return fmt.Sprintf(" Its idle time is %s.", words.Age(f.Scale.Idle.Std()))
}

func (f *functionState) startSummary(r *replicaState, now placement.Instant) string {
	state := r.status.State
	if r.WakingUp {
		state = functions.Loading
	}
	how := "It is being started"
	if r.WakingUp {
		how = "It is being woken"
	}
	text := fmt.Sprintf("%s on %s (%s)", how, r.Node, state.Word())
	if c := r.coldStart; c != nil && !c.Over {
		if p := c.At(now).Progress; p.ETA >= 0 {
			text += ", ready in about " + words.Age(p.ETA)
		}
	}
	return text + words.Suffix("start", r.cause) + waitingSuffix(f.Queued) + "."
}
