package e2e

import (
	"fmt"
	"strings"

	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/platform/knative/install"
)

// warmImage installs thaw with a warm host image, without it, and with it again, so that
// the removal at the end of the suite covers it.
func warmImage(s *space) {
	installed := func(args ...string) string {
		s.Helper()
		out, errs, code := s.program(s.Context(), "thaw-knative", append([]string{"install", "--image", image, "--loaders", "all", "--keep-free", "0"}, args...)...)
		if code != 0 {
			s.Fatalf("install %v: exit %d\n%s%s", args, code, out, errs)
		}
		return out
	}
	objects := []string{"daemonset thaw-warm", "networkpolicy thaw-warm"}
	there := func() (n int) {
		s.Helper()
		_, one := s.core.AppsV1().DaemonSets(install.Namespace).Get(s.Context(), "thaw-warm", metav1.GetOptions{})
		_, other := s.core.NetworkingV1().NetworkPolicies(install.Namespace).Get(s.Context(), "thaw-warm", metav1.GetOptions{})
		for _, err := range []error{one, other} {
			if err == nil {
				n++
			} else if !status.IsNotFound(err) {
				s.Fatal(err)
			}
		}
		return n
	}
	tells := func(out, word string) {
		s.Helper()
		for _, o := range objects {
			if !strings.Contains(out, o+" "+word+"\n") {
				s.Errorf("%s is not said to be %s:\n%s", o, word, out)
			}
		}
		if rest := strings.Count(out, "thaw-warm"); rest != len(objects) {
			s.Errorf("%d lines of thaw-warm:\n%s", rest, out)
		}
	}
	none := func(out string) {
		s.Helper()
		if strings.Contains(out, "thaw-warm") {
			s.Errorf("it tells of what is not asked for:\n%s", out)
		}
		for line := range strings.Lines(out) {
			if !strings.HasSuffix(line, " unchanged\n") && !strings.HasSuffix(line, " would stay as it is\n") {
				s.Errorf("changed by an installation that is the same: %s", line)
			}
		}
	}
	const lent = "dev.local/hello:test" // without an interpreter: it never becomes ready
	none(installed())
	tells(installed("--warm-image", lent, "--dry-run"), "would be created")
	if n := there(); n != 0 {
		s.Fatalf("%d objects after --dry-run", n)
	}
	tells(installed("--warm-image", lent), "created")
	s.until("a pod of each node with a loader", func() (bool, string) {
		pods := s.thawPods("warm")
		return len(pods) == len(s.thawPods("loader")), fmt.Sprint(len(pods))
	})
	tells(installed("--warm-image", lent), "unchanged")
	s.until("doctor tells of it", func() (bool, string) { // Kubernetes updates a DaemonSet's counts after a while
		out, errs, _ := s.program(s.Context(), "thaw", "doctor", "--to", "knative")
		return strings.Contains(out, "note thaw-warm: 0 of 1 pods available, "+lent), out + errs
	})

	// Other changes of the installation keep it.
	if out, errs, code := s.program(s.Context(), "thaw-knative", "team", "create", s.ns); code != 0 || there() != len(objects) {
		s.Errorf("team create: exit %d, and of %v there are %d\n%s%s", code, objects, there(), out, errs)
	}

	tells(installed("--dry-run"), "would be removed")
	if n := there(); n != len(objects) {
		s.Fatalf("%d objects after --dry-run", n)
	}
	tells(installed(), "removed")
	if n := there(); n != 0 {
		s.Errorf("%d objects are left", n)
	}
	s.until("no pod of it is left", func() (bool, string) {
		pods := s.thawPods("warm")
		return len(pods) == 0, fmt.Sprint(len(pods))
	})
	none(installed())
	none(installed("--dry-run"))
	tells(installed("--warm-image", lent), "created")
}
