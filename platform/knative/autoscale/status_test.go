package autoscale

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	yes     = corev1.ConditionTrue
	no      = corev1.ConditionFalse
	unknown = corev1.ConditionUnknown
)

// TestDecideStatus: rows without a reason of the controller are those of Knative's own table
// (KPA's computeActiveCondition), for scales that it knows.
func TestDecideStatus(t *testing.T) {
	up := func(n int32) *int32 { return &n }
	for name, c := range map[string]struct {
		scale  Scale
		unseen bool
		bounds scaleBounds
		before scaleStatus

		active      corev1.ConditionStatus
		reason      string
		message     string
		initialized bool
		desired     int32 // -1: none
	}{
		"at zero from the start":       {bounds: scaleBounds{hasService: true}, active: no, reason: "NoTraffic", message: noTrafficMessage, initialized: true},
		"at zero, no Service yet":      {bounds: scaleBounds{}, active: no, reason: "NoTraffic", message: noTrafficMessage},
		"unseen, at zero":              {unseen: true, bounds: scaleBounds{hasService: true}, active: no, reason: "NoTraffic", message: noTrafficMessage, initialized: true, desired: -1},
		"unseen, to be one":            {unseen: true, bounds: scaleBounds{hasService: true, initial: 1}, active: unknown, reason: "Queued", message: unseenMessage, desired: -1},
		"unseen, said before":          {unseen: true, bounds: scaleBounds{hasService: true}, before: scaleStatus{desired: up(2), active: unknown, reason: "Waiting", message: "for a GPU", initialized: true}, active: unknown, reason: "Waiting", message: "for a GPU", initialized: true, desired: 2},
		"unseen keeps what was active": {unseen: true, bounds: scaleBounds{hasService: true, initial: 1}, before: scaleStatus{desired: up(1), active: yes, initialized: true}, active: yes, initialized: true, desired: 1},
		"first replica on its way":     {scale: Scale{Desired: 1}, bounds: scaleBounds{hasService: true, initial: 1}, active: unknown, reason: "Queued", message: queuedMessage, desired: 1},
		"first replica is there":       {scale: Scale{Desired: 1, Ready: 1}, bounds: scaleBounds{hasService: true, initial: 1}, active: yes, initialized: true, desired: 1},
		"there, but no Service":        {scale: Scale{Desired: 1, Ready: 1}, bounds: scaleBounds{initial: 1}, active: yes, desired: 1},
		"fewer than initial":           {scale: Scale{Desired: 3, Ready: 2}, bounds: scaleBounds{hasService: true, initial: 3}, active: yes, desired: 3},
		"min scale, none up":           {scale: Scale{Desired: 2}, bounds: scaleBounds{hasService: true, min: 2}, active: unknown, reason: "Queued", message: queuedMessage, desired: 2},
		"min scale, one of two":        {scale: Scale{Desired: 2, Ready: 1}, bounds: scaleBounds{hasService: true, min: 2}, active: unknown, reason: "Queued", message: queuedMessage, desired: 2},
		"min scale, all":               {scale: Scale{Desired: 2, Ready: 2}, bounds: scaleBounds{hasService: true, min: 2}, active: yes, initialized: true, desired: 2},
		"woken":                        {scale: Scale{Desired: 1}, bounds: scaleBounds{hasService: true}, before: scaleStatus{active: no, initialized: true}, active: unknown, reason: "Queued", message: queuedMessage, initialized: true, desired: 1},
		"drains to zero":               {scale: Scale{Ready: 1}, bounds: scaleBounds{hasService: true}, before: scaleStatus{active: yes, initialized: true}, active: no, reason: "NoTraffic", message: noTrafficMessage, initialized: true},
		"waits for GPUs": {
			scale:  Scale{Desired: 1, Active: unknown, Reason: "WaitingForGPUs", Message: "waiting for 2 GPUs; evicting team-b/llama, idle 14 min"},
			bounds: scaleBounds{hasService: true}, before: scaleStatus{initialized: true},
			active: unknown, reason: "WaitingForGPUs", message: "waiting for 2 GPUs; evicting team-b/llama, idle 14 min", initialized: true,
			desired: 1,
		},
		"a percent sign is a format to Knative":    {scale: Scale{Desired: 1, Active: unknown, Reason: "Staging", Message: "40% of it"}, bounds: scaleBounds{hasService: true}, active: unknown, reason: "Staging", message: "40 percent of it", initialized: true, desired: 1},
		"not looked at is not failed":              {scale: Scale{Active: no, Reason: ReasonNoTraffic}, bounds: scaleBounds{hasService: true, initial: 1}, active: unknown, reason: "Queued", message: queuedMessage},
		"Knative's first pod is stopped":           {scale: Scale{Actual: 1, Active: no, Reason: ReasonStopping}, bounds: scaleBounds{hasService: true, initial: 1}, active: unknown, reason: "Queued", message: queuedMessage},
		"made way before it was up":                {scale: Scale{Active: no, Reason: ReasonEvicted, Message: "for team-a/big"}, bounds: scaleBounds{hasService: true, initial: 1}, active: unknown, reason: "Evicted", message: "for team-a/big"},
		"given up before it was up":                {scale: Scale{Active: no, Reason: "StartFailed", Message: "exit code 3"}, bounds: scaleBounds{hasService: true, initial: 1}, active: no, reason: "StartFailed", message: "exit code 3"},
		"unreachable before it was up":             {scale: Scale{}, bounds: scaleBounds{hasService: true, initial: 1, unreachable: true}, active: no, reason: "NoTraffic", message: noTrafficMessage},
		"True keeps a message":                     {scale: Scale{Desired: 3, Ready: 1, Active: yes, Reason: "QuotaReached", Message: "no GPU for 2 more"}, bounds: scaleBounds{hasService: true}, active: yes, reason: "QuotaReached", message: "no GPU for 2 more", initialized: true, desired: 3},
		"initialized stays so":                     {scale: Scale{Desired: 1}, bounds: scaleBounds{hasService: true, initial: 1}, before: scaleStatus{active: yes, initialized: true}, active: unknown, reason: "Queued", message: queuedMessage, initialized: true, desired: 1},
		"failed after it was up once":              {scale: Scale{Active: no, Reason: "StartFailed", Message: "exit code 3"}, bounds: scaleBounds{hasService: true, initial: 1}, before: scaleStatus{active: yes, initialized: true}, active: no, reason: "StartFailed", message: "exit code 3", initialized: true},
		"a reason of its own has its own words":    {scale: Scale{Desired: 1, Active: unknown, Reason: "Staging"}, bounds: scaleBounds{hasService: true}, active: unknown, reason: "Staging", initialized: true, desired: 1},
		"down from what was seen, unseen later on": {unseen: true, bounds: scaleBounds{hasService: true}, before: scaleStatus{desired: up(0), active: no, reason: "Evicted", message: "for team-a/big", initialized: true}, active: no, reason: "Evicted", message: "for team-a/big", initialized: true},
	} {
		v := decideStatus(c.scale, !c.unseen, c.bounds, c.before)
		desired := int32(-1)
		if v.desired != nil {
			desired = *v.desired
		}
		if v.active != c.active || v.reason != c.reason || v.message != c.message || v.initialized != c.initialized || desired != c.desired ||
			v.ready != c.scale.Ready {
			t.Errorf("%s: %+v (desired %d), want %s %s %q, initialized %v, desired %d", name, v, desired, c.active, c.reason, c.message,
				c.initialized, c.desired)
		}
	}
}

func TestEventsOnce(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var m lastReported
	known := false
	step := func(after time.Duration, s Scale, want ...pendingEvent) {
		t.Helper()
		var got []pendingEvent
		m, got = compareScale(m, known, s, start.Add(after))
		known = true
		if len(got) != len(want) {
			t.Fatalf("%+v: told %v, want %v", s, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%+v: told %v, want %v", s, got, want)
			}
		}
	}
	step(0, Scale{Desired: 1, Active: unknown, Reason: "WaitingForGPUs", Message: "a controller that has just started tells nothing"})
	step(0, Scale{Desired: 1, Ready: 1, Active: yes})
	step(time.Second, Scale{}, pendingEvent{"Normal", "Scaled", "from 1 to 0 replicas"})
	step(time.Second, Scale{Desired: 1, Reason: ReasonQueued, Message: "3 requests wait"},
		pendingEvent{"Normal", "Scaled", "from 0 to 1 replicas: 3 requests wait"})
	step(time.Minute, Scale{Desired: 1, Active: unknown, Reason: "WaitingForGPUs", Message: "evicting b/llama, idle 14 min"},
		pendingEvent{"Warning", "WaitingForGPUs", "evicting b/llama, idle 14 min"})
	step(time.Hour, Scale{Desired: 1, Active: unknown, Reason: "WaitingForGPUs", Message: "evicting b/llama, idle 15.5 min"})
	step(time.Minute+eventRepeat-1, Scale{Desired: 1, Active: unknown, Reason: "WaitingForGPUs", Message: "evicting c/qwen, idle 1 min"})
	step(time.Minute+eventRepeat, Scale{Desired: 1, Active: unknown, Reason: "WaitingForGPUs", Message: "evicting c/qwen, idle 2 min"},
		pendingEvent{"Warning", "WaitingForGPUs", "evicting c/qwen, idle 2 min"})
	step(time.Hour, Scale{Desired: 1, Active: unknown, Reason: ReasonStarting})
	step(time.Hour, Scale{Desired: 0, Active: no, Reason: ReasonEvicted, Message: "for team-a/big"},
		pendingEvent{"Normal", "Scaled", "from 1 to 0 replicas"}, pendingEvent{"Normal", ReasonEvicted, "for team-a/big"})
	step(time.Hour, Scale{Desired: 0, Active: no, Reason: "StartFailed"}, pendingEvent{"Warning", "StartFailed", "StartFailed"})
}
