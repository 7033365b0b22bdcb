package e2e

import (
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// peers checks that a second node stages a model from the first node: the source is read
// only once.
func peers(s *space) {
	source := s.tiny("tiny", gpu(1), "args: [--token-delay, 50ms]", "scale: {max: 2, target: 1, idle: 10m}", "deadlines: {drain: 5s}")
	s.deployed(source)
	began := len(s.blobs.Gets())
	fetched := func() (gets []string) {
		for _, get := range s.blobs.Gets()[began:] {
			if strings.HasPrefix(get, s.ns+"/tiny/") {
				gets = append(gets, get)
			}
		}
		return gets
	}
	s.must("a cold call", s.byModel("tiny", 8, false))
	first := s.pods("tiny")
	if len(first) != 1 {
		s.Fatalf("%d pods after one call", len(first))
	}
	once := fetched()
	if !slices.ContainsFunc(once, func(get string) bool { return strings.Contains(get, "model.safetensors") }) {
		s.Fatalf("the weights came from elsewhere: %v", once)
	}

	// Two requests at once need two pods, and each node has one GPU, so the nodes differ.
	calls := make(chan []answer, 1)
	go func() { calls <- many(2, func(int) answer { return s.byModel("tiny", 200, true) }) }()
	var both []corev1.Pod
	s.until("a pod on each node", func() (bool, string) {
		both = s.pods("tiny")
		return len(both) == 2 && ready(both[0]) && ready(both[1]), stateOf(both)
	})
	for _, a := range <-calls {
		s.must("one of two calls", a)
	}
	if both[0].Spec.NodeName == both[1].Spec.NodeName {
		s.Fatalf("both are on %s", both[0].Spec.NodeName)
	}
	if again := fetched()[len(once):]; len(again) > 0 {
		s.Errorf("the source was asked again: %v", again)
	}
	for _, p := range both {
		if p.Name == first[0].Name {
			continue
		}
		for _, loader := range s.thawPods("loader") {
			if loader.Spec.NodeName != p.Spec.NodeName {
				continue
			}
			at := *s.suite
			at.gateway = "http://" + loader.Status.PodIP + ":9091"
			s.until("the loader of "+p.Spec.NodeName+" tells what it had from another node", func() (bool, string) {
				a := (&space{T: s.T, suite: &at, ns: s.ns}).do(s.Context(), "", "/metrics", "")
				return a.status == http.StatusOK && strings.Contains(a.body, `thaw_nodeloader_bytes_total{source="peer"} 1.7`), a.String()
			})
		}
	}
}

func stateOf(pods []corev1.Pod) string {
	var b strings.Builder
	for _, p := range pods {
		b.WriteString(p.Name + " on " + p.Spec.NodeName + " " + string(p.Status.Phase) + "; ")
	}
	return b.String()
}
