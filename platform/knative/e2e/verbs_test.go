package e2e

import (
	"fmt"
	"net/http"
	"strings"
)

// says runs a verb of thaw on the cluster and checks its exit code and part of its
// output.
func (s *space) says(exit int, part string, args ...string) string {
	s.Helper()
	out, errs, code := s.program(s.Context(), "thaw", append(args, "--to", "knative")...)
	if code != exit || !strings.Contains(out+errs, part) {
		s.Fatalf("thaw %s: exit %d, not %d with %q:\n%s%s", strings.Join(args, " "), code, exit, part, out, errs)
	}
	return out
}

// verbs checks the verbs for models and teams, on existing and missing objects, with the
// right key and with another team's.
func verbs(s *space) {
	other := s.team(s.T, "other")
	me := s.ns + "/a"
	s.says(3, "is not on the cluster", "get", me)
	s.deployed(s.tiny("a", "args: [--token-delay, 60ms]", "scale: {idle: 10m}", "deadlines: {drain: 1m}"))
	revision := s.revision("a")
	s.until("the controller knows it", func() (bool, string) {
		out, errs, code := s.program(s.Context(), "thaw", "describe", me, "--to", "knative")
		return code == 0, out + errs
	})

	for _, verb := range []string{"wake", "stop", "describe", "logs"} {
		s.says(3, "does not exist", verb, s.ns+"/b")
		s.says(3, "does not exist", verb, "no-such-team/a")
		s.says(2, "", verb)
	}
	s.says(3, "is not on the cluster", "rm", s.ns+"/b")
	s.says(3, "is not on the cluster", "rm", "a", "--namespace", other.ns)
	s.says(3, "there is no team", "describe", "team", s.ns+"-b")
	s.says(0, me, "get", me)
	s.says(0, "cold", "models")
	s.says(3, "thaw wake "+me, "logs", me)
	if out := s.says(0, "", "ps"); strings.Contains(out, me) {
		s.Errorf("it runs before the first request:\n%s", out)
	}

	// Another team's key does not find it; the team's own key does.
	for _, verb := range []string{"describe", "logs"} {
		s.says(3, "does not exist", verb, me, "--key", other.key)
	}
	for _, verb := range []string{"wake", "stop"} {
		s.says(4, "may not", verb, me, "--key", other.key)
	}
	s.says(3, "there is no team", "describe", "team", s.ns, "--key", other.key)
	s.says(0, me, "describe", "a", "--key", s.key)
	s.says(0, s.ns, "describe", "team", s.ns, "--key", s.key)
	s.says(4, "Incorrect API key", "ps", "--key", s.key+"x")

	s.says(0, me+" ready", "wake", me, "--wait")
	if want, _, saw := s.scale(revision); want != 1 {
		s.Errorf("awake: %s", saw)
	}
	s.says(0, me, "ps")
	s.says(0, "ready", "describe", me)
	s.until("its words", func() (bool, string) { // the node serves a container's log a little after it runs
		out, errs, _ := s.program(s.Context(), "thaw", "logs", me, "--to", "knative")
		return strings.Contains(out, "state=READY"), out + errs
	})
	s.says(0, "a lease keeps it ready", "events", me)
	s.says(0, "Functions:      1", "describe", "team", s.ns)

	// A stopped model finishes its running requests, and a later request starts it again.
	long := make(chan answer, 1)
	go func() { long <- s.byModel("a", 500, true) }() // 30 s: two programs start meanwhile
	s.until("a request is under way", func() (bool, string) {
		out := s.says(0, "", "describe", me)
		return strings.Contains(out, "1 active"), out
	})
	s.says(0, "draining", "stop", me)
	s.must("the request of one that is stopped", <-long)
	s.says(0, "", "stop", me, "--wait", "--timeout", "90s")
	s.atZero(revision)
	s.says(0, "a user stopped it", "events", me)
	s.must("a call of one that was stopped", s.byHost("a", 8, false))

	s.says(0, me+" removed", "rm", "a", "-n", s.ns)
	s.until("no such model, and no pod of it", func() (bool, string) {
		a := s.byModel("a", 8, false)
		return a.status == http.StatusNotFound && len(s.pods("a")) == 0, a.String()
	})
	s.until("the controller has forgotten it", func() (bool, string) { // its gateway gets the deleted route earlier
		out, errs, code := s.program(s.Context(), "thaw", "wake", me, "--to", "knative")
		return code == 3 && strings.Contains(out+errs, "does not exist"), fmt.Sprint(code, " ", out, errs)
	})
	s.says(3, "is not on the cluster", "rm", me)
}
