package ingress

import (
	"fmt"

	"knative.dev/networking/pkg/apis/networking/v1alpha1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// Bounds of a table. Teams write the objects that it is compiled from, and every activator
// gets the whole of it in one message of a control stream, which has at most 64 MiB.
const (
	maxTeamRoutes = 10 << 20 // bytes of the routes of a namespace
	maxRoutes     = 40 << 20 // bytes of all routes
	perRoute      = 96       // bytes of a host, a path or a split beside its texts
)

type routeBytes struct {
	of  map[string]int // by namespace
	all int
}

// add counts the routes of an object; the error says which bound they would exceed, and then
// they count for nothing.
func (r *routeBytes) add(namespace string, n int) error {
	switch {
	case r.of[namespace]+n > maxTeamRoutes:
		return fmt.Errorf("the routes of the namespace %s take more than %s: older ones are served, this one is not", namespace,
			functions.Bytes(maxTeamRoutes).Human())
	case r.all+n > maxRoutes:
		return fmt.Errorf("the routes of the cluster take more than %s: older ones are served, this one is not",
			functions.Bytes(maxRoutes).Human())
	}
	r.of[namespace] += n
	r.all += n
	return nil
}

// sizeOfRules estimates the bytes of rules in a table, in which each host has its own paths.
func sizeOfRules(rules []v1alpha1.IngressRule) (n int) {
	for _, rule := range rules {
		if rule.HTTP == nil {
			continue
		}
		paths := 0
		for _, p := range rule.HTTP.Paths {
			paths += perRoute + len(p.Path) + len(p.RewriteHost) + sizeOfFields(p.AppendHeaders)
			for name, match := range p.Headers {
				paths += perRoute + len(name) + len(match.Exact)
			}
			for _, s := range p.Splits {
				paths += perRoute + len(s.ServiceNamespace) + len(s.ServiceName) + sizeOfFields(s.AppendHeaders)
			}
		}
		for _, host := range rule.Hosts {
			n += perRoute + len(host) + paths
		}
		n += paths // the model of the rule
	}
	return n
}

// sizeOfPaths estimates the bytes of paths that are in a table.
func sizeOfPaths(paths []controlstream.Path) (n int) {
	for _, p := range paths {
		n += perRoute + len(p.Prefix) + len(p.Rewrite) + sizeOfFields(p.Headers) + sizeOfFields(p.Append)
		for _, s := range p.Splits {
			n += perRoute + len(s.Function.Team) + len(s.Function.Name) + len(s.Address) + sizeOfFields(s.Append)
		}
	}
	return n
}

func sizeOfFields(fields map[string]string) (n int) {
	for name, value := range fields {
		n += perRoute + len(name) + len(value)
	}
	return n
}
