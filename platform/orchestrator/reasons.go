package orchestrator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// reasons say for people what the words of events and decisions mean. A word that
// is not here is told as it is.
var reasons = map[string]string{
	"start demand":   "somebody waits for it",
	"start min":      "its model file keeps some running",
	"start lease":    "somebody asked to have it ready",
	"start prewarm":  "it is likely to be asked for soon",
	"rise demand":    "somebody waits for it",
	"rise min":       "its model file keeps some running",
	"rise lease":     "somebody asked to have it ready",
	"rise prewarm":   "it is likely to be asked for soon",
	"idle":           "nobody has asked for it for its idle time",
	"surplus":        "fewer replicas are enough",
	"evicted":        "it was idle, and another function needs the room",
	"turn":           "it has had its turn, and another function has waited for long",
	"share":          "its team has had more than its share, and another team waits",
	"unused":         "it was started ahead of requests that did not come",
	"pressure":       "its node is short of host memory",
	"budget":         "its team has used up its budget",
	"changed":        "its model file has changed",
	"removed":        "its model file is gone",
	"gpu_unhealthy":  "a GPU under it is unhealthy",
	"asked":          "somebody stopped it",
	"sleepless":      "it did not fall asleep, or did not wake",
	"called_off":     "nobody waits for it any more",
	"vanished":       "its node no longer has it",
	"node_lost":      "its node was lost",
	"load_refused":   "its node did not take it",
	"failed":         "it broke",
	"silent":         "it has said nothing for too long",
	"adopted READY":  "it ran already when this server came to know of it",
	"asleep evicted": "its GPUs were given to another function",
	"asleep turn":    "its GPUs were given to another function",
	"asleep idle":    "nobody has asked for it for its idle time",
	"ready":          "it has answered a request",
	"node_joined":    "the node has said that it is there",
	"adopted":        "it was there already when this server came to know of it",
	"scale demand":   "it has more requests than its replicas are meant to serve at once",
	"second_look":    "it is hard to believe and is looked at again",
	"stale_epoch":    "a newer server commands",
}

// sentence is what a word means where it is said of something that happened.
func sentence(kind, reason string) string {
	for _, k := range [...]string{kind + " " + reason, reason, kind} {
		if s := reasons[k]; s != "" && k != "" {
			return s
		}
	}
	return ""
}

// because is the end of a sentence.
func because(kind, reason string) string {
	if s := sentence(kind, reason); s != "" && reason != "" {
		return ": " + s
	}
	return ""
}

// ago is how long something has been so.
func ago(d time.Duration) string {
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

// Explained is why something of a function is as it is.
type Explained struct {
	Kind     string // place, evict, cold or scale
	Function functions.Name
	State    functions.State
	Now      string // what it does now and why, in a sentence

	// The last decision of this kind. Decided is zero where none is remembered.
	Decided    time.Time
	Chosen     string // a node or a replica; "": none
	Reason     string
	For        string // the function that got the room
	Candidates []placement.Candidate
	Others     int // candidates that are not listed
}

// Kinds of what can be explained.
var kinds = []string{placement.KindPlace, placement.KindEvict, placement.KindCold, placement.KindScale}

// Explain says why a function is as it is, and how the last decision of a kind
// (place, evict, cold, scale) about it came to be. It is false where there is no
// such function or kind.
func (s *Steer) Explain(kind string, name functions.Name) (Explained, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fns[name.Base()]
	if f == nil || !slices.Contains(kinds, kind) {
		return Explained{}, false
	}
	x := Explained{Kind: kind, Function: f.Name, State: s.state(f), Now: s.told(f)}
	d, ok := s.plan.Explain(f.Name, kind)
	if !ok {
		return x, true
	}
	x.Decided = s.began.Add(d.At)
	x.Chosen, x.Reason, x.For, x.Candidates, x.Others = d.Chosen, d.Reason, d.For, d.Candidates, d.Others
	told := "start"
	switch kind {
	case placement.KindEvict, placement.KindCold:
		told = "stop"
	case placement.KindScale:
		told = "scale"
	}
	if w := sentence(told, d.Reason); w != "" {
		x.Reason = w
	}
	return x, true
}

// told is what f does now and why, in a sentence.
func (s *Steer) told(f *fn) string {
	now := s.now()
	var ready, asleep, leaving, flight int
	var start, last *rep
	for _, r := range f.reps {
		switch {
		case r.stopping || r.calledOff:
			leaving++
			last = r
		case r.serves():
			ready++
			if r.readyAt > 0 {
				flight += s.path.InFlightOf(f.Name, r.id)
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
		return fmt.Sprintf("It serves %s with %s%s%s.", count(flight, "request"), count(ready, "replica"), waiting(f.Queued), also)
	case ready > 0:
		return fmt.Sprintf("It is ready and idle, with %s%s.%s", count(ready, "replica"), also, s.staying(f, now))
	case start != nil:
		return s.coming(f, start, now)
	case f.failure != nil && s.clock().Before(f.failure.Until):
		return fmt.Sprintf("It did not start: %s; it is not tried again before %s have passed.", f.failure.Reason, ago(f.failure.Until.Sub(s.clock())))
	case f.blocked != nil:
		eta := ""
		if left := f.blocked.Remaining(s.clock()); left > 0 {
			eta = ", it may be ready in about " + ago(left)
		}
		return fmt.Sprintf("It cannot be placed: %s%s%s.", f.blocked.Message, waiting(f.Queued), eta)
	case asleep > 0:
		rise := ""
		if d := f.history.rise(50); d >= 0 {
			rise = "; to wake takes about " + ago(d)
		}
		return fmt.Sprintf("It sleeps on %s: its weights are in host memory and its GPUs are free%s%s.", last.node, because("asleep", last.reason), rise)
	case leaving > 0:
		return fmt.Sprintf("It is on its way out on %s%s.", last.node, because("stop", last.reason))
	case f.Active+f.Queued > 0 || f.Lease > now:
		return fmt.Sprintf("It is wanted%s, and no place has been looked for yet.", waiting(f.Queued))
	}
	why := "nobody has asked for it since this server began"
	if f.past.at > 0 {
		why = fmt.Sprintf("its last replica ended %s ago", ago(now-f.past.at)) + because("stop", f.past.reason)
	}
	cost := ""
	if p := s.forecast(f).P50; p >= 0 {
		cost = fmt.Sprintf("; to start takes about %s", ago(p))
	}
	return fmt.Sprintf("It is cold: %s%s.", why, cost)
}

func waiting(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 request waits"
	}
	return fmt.Sprintf(", %d requests wait", n)
}

// staying is until when an idle function stays ready.
func (s *Steer) staying(f *fn, now placement.Instant) string {
	switch {
	case f.Lease >= always:
		return ""
	case f.Lease > now:
		return fmt.Sprintf(" Somebody asked to have it ready for %s more.", ago(f.Lease-now))
	case f.Scale.Min > 0:
		return fmt.Sprintf(" Its model file keeps %d running.", f.Scale.Min)
	case f.LastEnd > 0:
		return fmt.Sprintf(" The last request ended %s ago; its idle time is %s.", ago(now-f.LastEnd), ago(f.Scale.Idle.Std()))
	}
	return fmt.Sprintf(" Its idle time is %s.", ago(f.Scale.Idle.Std()))
}

// coming is how far a start of f is.
func (s *Steer) coming(f *fn, r *rep, now placement.Instant) string {
	state := r.status.State
	if r.nap.rising {
		state = functions.Loading
	}
	how := "It is being started"
	if r.nap.rising {
		how = "It is being woken"
	}
	text := fmt.Sprintf("%s on %s (%s)", how, r.node, state.Word())
	if c := r.cold; c != nil && !c.over {
		if p := s.timeline(c).Progress; p.ETA >= 0 {
			text += ", ready in about " + ago(p.ETA)
		}
	}
	return text + because("start", r.cause) + waiting(f.Queued) + "."
}
