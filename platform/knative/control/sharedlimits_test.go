package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
)

var activatorLabels = map[string]string{"app.kubernetes.io/part-of": "thaw", "app.kubernetes.io/component": "activator"}

// TestLimitsAfterNewLeader: a new leader deals out limits of teams once every ready activator
// has connected, and without one that does not connect after ten seconds.
func TestLimitsAfterNewLeader(t *testing.T) {
	for _, x := range []struct {
		name      string
		connected []string
		after     time.Duration
	}{
		{"all have connected", []string{"a", "b"}, 0},
		{"one does not connect", []string{"a"}, gatherFor},
	} {
		synctest.Test(t, func(t *testing.T) {
			pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			for _, name := range []string{"a", "b"} {
				pods.Add(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "thaw-system", Name: name, Labels: activatorLabels},
					Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
				})
			}
			s := &sharedLimits{
				pods:      corelisters.NewPodLister(pods).Pods("thaw-system"),
				connected: func() []string { return x.connected }, ready: func() bool { return true },
				Coordinator: ratelimit.NewCoordinator(ratelimit.CoordinatorOptions{
					Recovering: true, Dead: func(string) bool { return false }, Send: func(string, ratelimit.Allotments) {},
				}),
			}
			red := functions.Team{}
			red.Metadata.Name, red.Spec.Limits.ColdStartsPerHour = "red", 100
			s.setTeams([]functions.Team{red})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			left := func() float64 {
				return s.Use(ratelimit.Key{Team: "red", Kind: ratelimit.ColdStarts}, time.Now()).Left
			}
			if time.Sleep(max(0, x.after-time.Second)); x.after > 0 && left() != 0 {
				t.Errorf("%s: %v cold starts before the activators are known", x.name, left())
			}
			if time.Sleep(2 * time.Second); left() != 100 {
				t.Errorf("%s: %v cold starts, want 100", x.name, left())
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDeadActivator: an activator is dead where its pod has ended or is gone; where activators
// are no pods, none is known to be.
func TestDeadActivator(t *testing.T) {
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	s := &sharedLimits{pods: corelisters.NewPodLister(pods).Pods("thaw-system")}
	if s.isDead("a") {
		t.Error("dead, and no activator is a pod")
	}
	for name, phase := range map[string]corev1.PodPhase{"runs": corev1.PodRunning, "failed": corev1.PodFailed, "ended": corev1.PodSucceeded} {
		pods.Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "thaw-system", Name: name, Labels: activatorLabels},
			Status:     corev1.PodStatus{Phase: phase},
		})
	}
	for name, want := range map[string]bool{"runs": false, "failed": true, "ended": true, "gone": true} {
		if got := s.isDead(name); got != want {
			t.Errorf("%s: dead is %v", name, got)
		}
	}
}
