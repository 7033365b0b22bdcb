// Package words has a fixed English phrase for each reason word in the control loop's events and
// decisions (such as idle, evicted, node_lost), and formats spans of time for people; it records
// and decides nothing.
package words

import (
	"strings"
	"time"
)

// reasons maps reason words of events and decisions to sentences. A word without a
// sentence is shown unchanged.
var reasons = map[string]string{
	"start demand":      "requests wait for it",
	"start min":         "its model file sets a minimum",
	"start lease":       "a lease keeps it ready",
	"start prewarm":     "requests are expected soon",
	"start low":         "requests of priority low wait for it, and there is free room",
	"wake_up low":       "requests of priority low wait for it, and there is free room",
	"scale low":         "requests of priority low wait for it",
	"priority":          "it served requests of priority low only, and another function needs the room",
	"asleep priority":   "its GPUs were given to another function",
	"wake_up demand":    "requests wait for it",
	"wake_up min":       "its model file sets a minimum",
	"wake_up lease":     "a lease keeps it ready",
	"wake_up prewarm":   "requests are expected soon",
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
	"sleep_failed":      "it did not fall asleep, or did not wake",
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
	"invalid":           "its file has a mistake, and is not used as it is now",
	"stale_epoch":       "a newer server commands",
}

// Sentence is the sentence for a reason of an event of this kind.
func Sentence(kind, reason string) string {
	for _, k := range [...]string{kind + " " + reason, reason, kind} {
		if s := reasons[k]; s != "" && k != "" {
			return s
		}
	}
	return ""
}

// Suffix appends a reason to a sentence.
func Suffix(kind, reason string) string {
	if s := Sentence(kind, reason); s != "" && reason != "" {
		return ": " + s
	}
	return ""
}

// Age formats a span for people.
func Age(d time.Duration) string {
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
