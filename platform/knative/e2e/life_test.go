package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// life deploys a model, calls it cold by name and by host, scales to zero, and removes it.
func life(s *space) {
	s.deployed(s.tiny("tiny", "scale: {idle: 10s}")) // longer than one poll of the scale
	revision := s.revision("tiny")
	if pods := s.pods("tiny"); len(pods) > 0 {
		s.Fatalf("%d pods before the first request", len(pods))
	}
	for i, ask := range []func(string, int, bool) answer{s.byModel, s.byHost, s.byModel} {
		a := s.must("a cold call", ask("tiny", 8, i < 2))
		s.Logf("cold call %d: %s", i+1, a.took)
		if want, _, saw := s.scale(revision); want < 1 {
			s.Fatalf("answered at %s", saw)
		}
		s.must("a warm call", ask("tiny", 8, false))
		s.atZero(revision)
		s.ready("tiny") // a model at zero is ready as well
	}
	if _, errs, code := s.program(s.Context(), "thaw-knative", "rm", "--namespace", s.ns, "tiny"); code != 0 {
		s.Fatalf("rm: %s", errs)
	}
	s.until("no such model", func() (bool, string) {
		a := s.byModel("tiny", 8, false)
		return a.status == http.StatusNotFound, a.String()
	})
}

// load runs many clients for a while: the model scales up, and back.
func load(s *space) {
	s.deployed(s.tiny("tiny", "args: [--token-delay, 20ms]", "scale: {max: 3, target: 2, idle: 3s}"))
	revision := s.revision("tiny")
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	var bad atomic.Pointer[answer]
	var clients sync.WaitGroup
	for range 6 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if a := s.byModel("tiny", 40, true); !a.whole() {
					bad.Store(&a)
					return
				}
			}
		})
	}
	s.until("three replicas for six clients at two each", func() (bool, string) {
		if a := bad.Load(); a != nil {
			s.Fatalf("a client: %s", a)
		}
		want, ready, saw := s.scale(revision)
		if want > 3 {
			s.Fatalf("more than scale.max: %s", saw)
		}
		return ready == 3, saw
	})
	stop()
	clients.Wait()
	if a := bad.Load(); a != nil {
		s.Fatalf("a client: %s", a)
	}
	s.atZero(revision)
	s.must("a cold call after it", s.byHost("tiny", 8, false))
}

// canary splits traffic between two revisions, by model and by host. The newer one accepts
// shorter requests only, so its refusals show that it was chosen.
func canary(s *space) {
	file := s.tiny("tiny", "scale: {idle: 1m}")
	s.deployed(file)
	first := s.revision("tiny")
	s.deployed(file + "  args: [--max-model-len, \"64\"]\n")
	second := s.revision("tiny")
	if first == second {
		s.Fatalf("other arguments made no new revision than %s", first)
	}
	s.patch(s.T, "ksvc", s.ns, "tiny", map[string]any{"spec": map[string]any{"traffic": []map[string]any{
		{"revisionName": first, "percent": 80}, {"revisionName": second, "percent": 20},
	}}})
	s.ready("tiny")
	ask := map[string]func(string, int, bool) answer{"model": s.byModel, "host": s.byHost}
	refused := func(a answer) bool { return a.err == nil && a.status == http.StatusBadRequest }
	s.until("answers of both revisions", func() (bool, string) {
		a := s.byModel("tiny", 200, false)
		return refused(a), a.String()
	})
	for by, ask := range ask {
		const n = 200
		newer := 0
		for _, a := range many(4, func(int) (sum answer) {
			for range n / 4 {
				a := ask("tiny", 200, false)
				if refused(a) {
					sum.status++
				} else if !a.whole() && sum.err == nil {
					sum.err = fmt.Errorf("%s", a)
				}
			}
			return sum
		}) {
			if a.err != nil {
				s.Errorf("by %s: %v", by, a.err)
			}
			newer += a.status
		}
		// The bound is five standard deviations of a random choice.
		if newer < n*20/100-28 || newer > n*20/100+28 {
			s.Errorf("by %s: %d of %d went to the revision with 20 %%", by, newer, n)
		}
		s.Logf("by %s: %d of %d to the newer", by, newer, n)
	}
}

// rollout creates a new revision while the old one serves.
func rollout(s *space) {
	file := s.tiny("tiny", "scale: {idle: 3s}")
	s.deployed(file + "  args: [--token-delay, 25ms]\n")
	old := s.revision("tiny")
	s.must("a cold call", s.byModel("tiny", 8, false))
	long := make(chan answer, 1)
	go func() { long <- s.byModel("tiny", 300, true) }()
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	var bad atomic.Pointer[answer]
	var asked atomic.Int64
	var clients sync.WaitGroup
	for i, ask := range []func(string, int, bool) answer{s.byModel, s.byHost} {
		clients.Go(func() {
			for ctx.Err() == nil {
				if a := ask("tiny", 8, i == 0); !a.whole() {
					bad.Store(&a)
					return
				}
				asked.Add(1)
			}
		})
	}
	s.deployed(file + "  args: [--token-delay, 1ms]\n")
	fresh := s.revision("tiny")
	s.until("the new revision serves, and the old one has gone", func() (bool, string) {
		if a := bad.Load(); a != nil {
			s.Fatalf("a request meanwhile: %s", a)
		}
		_, ready, saw := s.scale(fresh)
		want, left, was := s.scale(old)
		return ready > 0 && want == 0 && left == 0, saw + "; old: " + was
	})
	s.must("the answer that was under way", <-long)
	stop()
	clients.Wait()
	if a := bad.Load(); a != nil {
		s.Fatalf("a request meanwhile: %s", a)
	}
	s.Logf("%d requests meanwhile, all answered", asked.Load())
}

// badImage deploys an image that does not exist.
func badImage(s *space) {
	s.deploy(s.tiny("tiny", "deadlines: {start: 20s}"), "--image", "ember=dev.local/missing:1")
	revision := s.revision("tiny")
	s.until("a route", func() (bool, string) {
		a := s.byModel("tiny", 8, false)
		return a.err == nil && a.status >= 500 && strings.Contains(a.body, "dev.local/missing:1"), a.String()
	})
	s.until("the reason is told", func() (bool, string) {
		out, errs, _ := s.program(s.Context(), "thaw-knative", "get", "--namespace", s.ns)
		return strings.Contains(out, "dev.local/missing:1"), out + errs
	})
	s.atZero(revision) // starts are not retried forever
	// The next deploy repairs it.
	s.deployed(s.tiny("tiny"))
	s.must("a call after it is mended", s.byModel("tiny", 8, false))
}

// badSource deploys a source without weights.
func badSource(s *space) {
	missing := s.weights("x")
	missing = missing[:len(missing)-1] + "nothing"
	s.deployed(s.model("tiny", "source: "+missing, "engine: ember"))
	for _, ask := range []func(string, int, bool) answer{s.byModel, s.byHost} {
		a := ask("tiny", 8, false)
		if a.err != nil || a.status < 500 || !strings.Contains(a.body, "nothing") || a.header.Get("X-Should-Retry") == "true" {
			s.Fatalf("%s", a)
		}
	}
	s.atZero(s.revision("tiny"))
	s.deployed(s.tiny("tiny"))
	s.must("a call after it is mended", s.byModel("tiny", 8, false))
}

// neverReady deploys an engine that never finishes loading.
func neverReady(s *space) {
	s.deployed(s.tiny("tiny", "args: [--ready-delay, 1h]", "deadlines: {start: 5s}"))
	revision := s.revision("tiny")
	a := s.byModel("tiny", 8, false)
	if a.err != nil || a.status < 500 || a.code() == "" {
		s.Fatalf("%s", a)
	}
	s.Logf("%s", a)
	s.atZero(revision)
}

// evictedPod evicts a model's pod through the API, as kubectl drain does.
func evictedPod(s *space) {
	s.deployed(s.tiny("tiny", "args: [--token-delay, 20ms]", "scale: {idle: 1m}"))
	s.must("a cold call", s.byModel("tiny", 8, false))
	long := make(chan answer, 1)
	go func() { long <- s.byModel("tiny", 150, true) }()
	pods := s.pods("tiny")
	if len(pods) != 1 {
		s.Fatalf("%d pods", len(pods))
	}
	was := pods[0].Name
	if err := s.core.CoreV1().Pods(s.ns).EvictV1(s.Context(),
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: was, Namespace: s.ns}}); err != nil {
		s.Fatal(err)
	}
	s.until("another pod serves", func() (bool, string) {
		a := s.byModel("tiny", 8, false)
		if !a.whole() {
			s.Fatalf("a call while its pod is evicted: %s", a)
		}
		names := []string{}
		for _, p := range s.pods("tiny") {
			names = append(names, p.Name)
		}
		_, ready, saw := s.scale(s.revision("tiny"))
		return ready > 0 && len(names) > 0 && !slices.Contains(names, was), fmt.Sprint(names, " ", saw)
	})
	s.must("the answer that was under way", <-long)
}
