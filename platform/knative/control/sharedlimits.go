package control

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
)

// sharedLimits enforces the limits of teams over all activators together.
type sharedLimits struct {
	*ratelimit.Coordinator
	pods      corelisters.PodNamespaceLister // of thaw's own namespace
	connected func() []string                // ids of connected activators
	ready     func() bool                    // activators get snapshots
}

// gatherFor bounds the wait for activators of the previous term.
const gatherFor = 10 * time.Second

var activatorPods = labels.SelectorFromSet(labels.Set{"app.kubernetes.io/part-of": "thaw", "app.kubernetes.io/component": "activator"})

// Run deals out units as they accrue, until ctx ends.
func (s *sharedLimits) Run(ctx context.Context) error {
	began, gathered := time.Now(), false
	for backoff.Sleep(ctx, 100*time.Millisecond) {
		now := time.Now()
		if !gathered && s.ready() && (s.allConnected() || now.Sub(began) >= gatherFor) {
			gathered = true
			s.Recovered(now)
		}
		s.Tick(now)
	}
	return nil
}

// allConnected reports whether all ready activators are connected, so that the coordinator
// knows all allotments.
func (s *sharedLimits) allConnected() bool {
	pods, err := s.pods.List(activatorPods)
	if err != nil {
		return false
	}
	connected := s.connected()
	return !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return podIsReady(p) && !slices.Contains(connected, p.Name) })
}

func podIsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// isDead reports whether a disconnected activator's pod is gone. An activator that is no
// pod is never known to be dead.
func (s *sharedLimits) isDead(id string) bool {
	p, err := s.pods.Get(id)
	if err != nil {
		all, err := s.pods.List(activatorPods)
		return err == nil && len(all) > 0 // activators are pods here, and this one does not exist
	}
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (s *sharedLimits) setTeams(teams []functions.Team) {
	limits := map[ratelimit.Key]int64{}
	for i := range teams {
		for k, n := range ratelimit.Sizes(teams[i].Spec.Limits) {
			if n > 0 {
				limits[ratelimit.Key{Team: teams[i].Metadata.Name, Kind: ratelimit.Kind(k)}] = int64(n)
			}
		}
	}
	s.SetLimits(limits, time.Now())
}

// usage is a team's use of its limits at all activators.
func (s *sharedLimits) usage(team string, now time.Time) ratelimit.Usage {
	left := func(k ratelimit.Kind) int { return int(s.Use(ratelimit.Key{Team: team, Kind: k}, now).Left + 1e-6) }
	used := func(k ratelimit.Kind) int { return int(s.Use(ratelimit.Key{Team: team, Kind: k}, now).Used) }
	return ratelimit.Usage{
		Active: used(ratelimit.Concurrent), Held: used(ratelimit.Held),
		Requests: left(ratelimit.Requests), Tokens: left(ratelimit.Tokens), ColdStarts: left(ratelimit.ColdStarts),
	}
}
