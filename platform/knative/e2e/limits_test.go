package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/platform/knative/install"
)

// spending counts what a limited team was granted at all activators.
type spending struct {
	*space
	kind  string // kind of limit: requests or tokens
	limit int    // per minute

	mu                        sync.Mutex
	requests, tokens, refused int
	most                      int // largest token count of one request
	began                     time.Time
}

// ask sends one request of the team to one activator.
func (s *spending) ask(at *space) (admitted bool) {
	one := at.as(s.space)
	a := one.byModel("tiny", 16, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case a.whole():
		var said struct {
			Usage struct {
				Total int `json:"total_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(a.body), &said); err != nil || said.Usage.Total == 0 {
			s.Errorf("no usage: %s", a)
		}
		s.requests, s.tokens, s.most = s.requests+1, s.tokens+said.Usage.Total, max(s.most, said.Usage.Total)
	case a.status == http.StatusTooManyRequests && strings.Contains(a.body, fmt.Sprintf("%d %s a minute", s.limit, s.kind)):
		s.refused++
	default:
		s.Errorf("neither an answer nor a limit: %s", a)
	}
	return a.whole()
}

// as returns the space of another team whose requests go to s's activator.
func (s *space) as(team *space) *space {
	one := *team
	one.suite = s.suite
	return &one
}

// spend sends requests through all gates with two clients each, until atLeast was granted
// and every client has been refused three times.
func (s *spending) spend(gates []*space, atLeast int) {
	began := time.Now()
	many(2*len(gates), func(i int) answer {
		pause := time.NewTicker(20 * time.Millisecond)
		defer pause.Stop()
		for refused := 0; !s.Failed() && (refused < 3 || s.given() < atLeast); {
			if !s.ask(gates[i%len(gates)]) {
				refused++
				<-pause.C
			}
			if time.Since(began) > 5*time.Minute {
				s.Errorf("%d of %d %s given within five minutes", s.given(), atLeast, s.kind)
			}
		}
		return answer{}
	})
}

// given returns the granted amount in the limit's unit.
func (s *spending) given() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind == "tokens" {
		return s.tokens
	}
	return s.requests
}

// check compares the grants with the limit: one full bucket plus the refill since, and for
// tokens, which are counted after the answer, those of requests in flight.
func (s *spending) check(when string) {
	s.Helper()
	given, over := s.given(), 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind == "tokens" {
		over = 4 * s.most
	}
	may := s.limit + int(float64(s.limit)*time.Since(s.began).Minutes())
	s.Logf("%s: %d of %d %s given in %s, %d requests, %d refused", when, given, may, s.kind, time.Since(s.began).Round(100*time.Millisecond),
		s.requests, s.refused)
	if given > may+over {
		s.Errorf("%s: %d %s were given, %d a minute are allowed, which is %d by now", when, given, s.kind, s.limit, may)
	}
}

// known waits until the response headers of each activator show the limit.
func (s *spending) known(gates []*space) {
	s.Helper()
	for _, at := range gates {
		s.until("the limit is known", func() (bool, string) {
			a := at.as(s.space).byModel("tiny", 16, false)
			if a.whole() {
				s.mu.Lock()
				s.requests++ // its few tokens are within the tolerance of check
				s.mu.Unlock()
			}
			return a.header.Get("X-Ratelimit-Limit-"+s.kind) == fmt.Sprint(s.limit), a.String()
		})
	}
}

// limits checks teams' requests and tokens per minute: they hold over both activators
// together, for these teams only, and while an activator is replaced.
func limits(s *space) {
	pods := s.thawPods("activator")
	if len(pods) != 2 {
		s.Fatalf("%d activators", len(pods))
	}
	gates := []*space{s.through(pods[0]), s.through(pods[1])}
	requests := &spending{space: s, kind: "requests", limit: 60}
	tokens := &spending{space: s.team(s.T, "tokens"), kind: "tokens", limit: 1200}
	free := s.team(s.T, "free")
	for _, one := range []*space{requests.space, tokens.space, free} {
		one.deployed(one.tiny("tiny", "scale: {idle: 10m}"))
	}
	many(3, func(i int) answer {
		one := []*space{requests.space, tokens.space, free}[i]
		return one.must("a cold call", one.byModel("tiny", 2, false))
	})
	limited := []*spending{requests, tokens}
	for _, x := range limited {
		x.began = time.Now()
		s.patch(s.T, "namespace", "", x.ns, map[string]any{"metadata": map[string]any{"annotations": map[string]string{"thaw.dev/" + x.kind + "-per-minute": fmt.Sprint(x.limit)}}})
	}
	for _, x := range limited {
		x.known(gates)
	}

	var all sync.WaitGroup
	over := make(chan struct{})
	had := 0
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			if a := gates[i%2].as(free).byModel("tiny", 2, false); !a.whole() {
				s.Errorf("a team without a limit: %s", a)
				return
			}
			had++
		}
	})
	many(len(limited), func(i int) answer {
		limited[i].spend(gates, limited[i].limit)
		return answer{}
	})
	close(over)
	all.Wait()
	for _, x := range limited {
		x.check("two activators")
	}
	s.Logf("%d requests of a team without a limit meanwhile", had)

	if err := s.core.CoreV1().Pods(install.Namespace).Delete(s.Context(), pods[0].Name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		s.Fatal(err)
	}
	many(len(limited), func(i int) answer { // the refill is granted by the remaining activator
		limited[i].spend(gates[1:], limited[i].given()+limited[i].limit/20)
		return answer{}
	})
	for _, x := range limited {
		x.check("one killed")
	}
	var now []corev1.Pod
	s.until("two activators again", func() (bool, string) {
		now = now[:0]
		for _, p := range s.thawPods("activator") {
			if ready(p) {
				now = append(now, p)
			}
		}
		return len(now) == 2, fmt.Sprint(len(now))
	})
	gates = []*space{s.through(now[0]), s.through(now[1])}
	many(len(limited), func(i int) answer {
		limited[i].known(gates)
		limited[i].spend(gates, 0)
		return answer{}
	})
	for _, x := range limited {
		x.check("another one")
	}
}
