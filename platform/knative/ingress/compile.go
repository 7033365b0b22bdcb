package ingress

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	netapi "knative.dev/networking/pkg/apis/networking"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/networking/pkg/ingress"
	"knative.dev/serving/pkg/apis/serving"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// Class is the Ingress class that this package serves.
const Class = "thaw.ingress.networking.knative.dev"

// Lookup is the cluster state that Compile reads.
type Lookup struct {
	Revision func(namespace, name string) bool            // reports whether it is a revision of class thaw.dev
	Service  func(namespace, name string) *corev1.Service // nil: it does not exist
	Public   string                                       // name of the Service of the public listener
	Private  string                                       // name of the Service of the private one
}

// Problem is why an object is not served, or only partly.
type Problem struct {
	Reason  string // of the condition
	Message string
	Wait    bool // it may pass: something does not exist yet
}

func (p *Problem) Error() string { return p.Message }

const (
	reasonInvalid   = "Invalid"
	reasonHostTaken = "HostTaken"
	reasonCircle    = "Circle"
	reasonService   = "ServiceMissing"
	reasonPort      = "PortMissing"
	reasonTLS       = "InternalTLS"
	reasonTooLarge  = "TooManyRoutes"
)

// Compile turns the objects of Class into a table of routes, whose Version is 0, and
// returns the problems of objects that are not fully served.
func Compile(objects []*v1alpha1.Ingress, known Lookup) (controlstream.Table, map[types.NamespacedName]*Problem) {
	c := compiler{lookup: known, hosts: map[hostKey]*pendingHost{}, models: map[functions.Name]bool{},
		problems: map[types.NamespacedName]*Problem{}, used: routeBytes{of: map[string]int{}}}
	objects = slices.DeleteFunc(slices.Clone(objects),
		func(in *v1alpha1.Ingress) bool { return !isOurClass(in) || in.DeletionTimestamp != nil })
	slices.SortFunc(objects, func(a, b *v1alpha1.Ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, in := range objects {
		name := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
		c.protect(name, func() { c.addIngress(in) })
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.hosts), compareKeys) {
		c.protect(c.hosts[key].owner, func() { c.finishHost(c.hosts[key]) })
	}
	slices.SortFunc(c.table.Hosts, func(a, b controlstream.Host) int { return compareKeys(keyOf(a), keyOf(b)) })
	return c.table, c.problems
}

// protect makes a problem of one object of a panic while it is compiled.
func (c *compiler) protect(name types.NamespacedName, f func()) {
	defer func() {
		if p := recover(); p != nil {
			c.setProblem(name, &Problem{Reason: reasonInvalid, Message: "it cannot be read: " + functions.Clip(fmt.Sprint(p))})
		}
	}()
	f()
}

func isOurClass(in *v1alpha1.Ingress) bool {
	return in.Annotations[netapi.IngressClassAnnotationKey] == Class
}

type compiler struct {
	lookup   Lookup
	hosts    map[hostKey]*pendingHost
	models   map[functions.Name]bool
	table    controlstream.Table
	problems map[types.NamespacedName]*Problem
	used     routeBytes
}

// hostKey is a host name and who reaches it: a cluster-local name such as llama.io, of the
// Service llama in the namespace io, and a public domain that reads the same are two hosts.
type hostKey struct {
	name     string // in lower case
	internal bool
}

func keyOf(h controlstream.Host) hostKey { return hostKey{h.Name, h.Internal} }

// compareKeys orders by name, the external host first.
func compareKeys(a, b hostKey) int {
	switch c := cmp.Compare(a.name, b.name); {
	case c != 0 || a.internal == b.internal:
		return c
	case b.internal:
		return -1
	}
	return 1
}

type pendingHost struct {
	controlstream.Host
	owner      types.NamespacedName
	done       bool // its paths are sorted and refer to no other host
	inProgress bool // finishHost is working on it
}

// setProblem keeps the first problem of an object, but a lasting one replaces one that may
// pass.
func (c *compiler) setProblem(name types.NamespacedName, p *Problem) {
	if old := c.problems[name]; old == nil || (old.Wait && !p.Wait) {
		c.problems[name] = p
	}
}

func (c *compiler) addIngress(in *v1alpha1.Ingress) {
	name := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
	if err := validate(in); err != nil {
		c.setProblem(name, &Problem{Reason: reasonInvalid, Message: err.Error()})
		return
	}
	if err := c.used.add(in.Namespace, 2*sizeOfRules(in.Spec.Rules)); err != nil { // each route has one for probes
		c.setProblem(name, &Problem{Reason: reasonTooLarge, Message: err.Error()})
		return
	}
	probed := in.DeepCopy()
	if _, err := ingress.InsertProbe(probed); err != nil { // needed for the hash of the routes as well
		c.setProblem(name, &Problem{Reason: reasonInvalid, Message: err.Error()})
		return
	}
	for i, rule := range probed.Spec.Rules {
		paths := functions.ConvertAll(rule.HTTP.Paths, func(p v1alpha1.HTTPIngressPath) controlstream.Path { return c.compilePath(name, &p) })
		internal := rule.Visibility == v1alpha1.IngressVisibilityClusterLocal
		for _, h := range rule.Hosts {
			h = strings.ToLower(h)
			at := c.hosts[hostKey{h, internal}]
			if at == nil {
				at = &pendingHost{owner: name,
					Host: controlstream.Host{Name: h, Internal: internal, Secure: !internal && in.Spec.HTTPOption == v1alpha1.HTTPOptionRedirected}}
				c.hosts[hostKey{h, internal}] = at
			}
			if at.owner != name {
				owner := "an older ingress of another namespace"
				if at.owner.Namespace == in.Namespace {
					owner = fmt.Sprintf("the ingress %s, which is older", at.owner)
				}
				c.setProblem(name, &Problem{Reason: reasonHostTaken, Message: fmt.Sprintf("the host %s belongs to %s", h, owner)})
				continue
			}
			at.Paths = append(at.Paths, paths...)
		}
		c.addModel(in, &in.Spec.Rules[i])
	}
}

// validate checks an object by itself.
func validate(in *v1alpha1.Ingress) error {
	if err := in.Validate(context.Background()); err != nil {
		return err
	}
	inside := map[string]bool{}
	for i, rule := range in.Spec.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		if len(rule.Hosts) == 0 {
			return fmt.Errorf("%s names no host: rules for all hosts are not supported", at)
		}
		switch rule.Visibility {
		case "", v1alpha1.IngressVisibilityExternalIP, v1alpha1.IngressVisibilityClusterLocal:
		default:
			return fmt.Errorf("%s: there is no visibility %q", at, rule.Visibility)
		}
		internal := rule.Visibility == v1alpha1.IngressVisibilityClusterLocal
		for _, h := range rule.Hosts {
			if h = strings.ToLower(h); h == "" || strings.ContainsAny(h, "*:/ ") || !httpguts.ValidHostHeader(h) {
				return fmt.Errorf("%s: %q is not a host name", at, h)
			}
			if was, ok := inside[h]; ok && was != internal {
				return fmt.Errorf("%s: the host %s is cluster-local in one rule and external in another", at, h)
			}
			if parts := strings.Split(h, "."); len(parts) > 2 && parts[2] == "svc" || len(parts) == 2 && internal {
				// Cluster DNS names belong to the namespace in them.
				if parts[1] != in.Namespace {
					return fmt.Errorf("%s: the host %s belongs to the namespace %s", at, h, parts[1])
				}
			}
			inside[h] = internal
		}
		for j, p := range rule.HTTP.Paths {
			at := fmt.Sprintf("%s.http.paths[%d]", at, j)
			if p.Path != "" && p.Path[0] != '/' {
				return fmt.Errorf("%s: the path %q does not begin with /", at, p.Path)
			}
			if p.RewriteHost != "" && !httpguts.ValidHostHeader(p.RewriteHost) {
				return fmt.Errorf("%s: %q is not a host name", at, p.RewriteHost)
			}
			fields := []map[string]string{exactValues(p.Headers), p.AppendHeaders}
			for _, s := range p.Splits {
				fields = append(fields, s.AppendHeaders)
			}
			for _, f := range fields {
				for k, v := range f {
					if !httpguts.ValidHeaderFieldName(k) || !httpguts.ValidHeaderFieldValue(v) {
						return fmt.Errorf("%s: %q: %q is not a valid header field", at, k, v)
					}
				}
			}
		}
	}
	return nil
}

func exactValues(in map[string]v1alpha1.HeaderMatch) map[string]string {
	out := make(map[string]string, len(in))
	for k, m := range in {
		out[k] = m.Exact
	}
	return out
}

// canonicalFields canonicalises field names; nil if there are none.
func canonicalFields(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		out[http.CanonicalHeaderKey(k)] = v
	}
	return out
}

func (c *compiler) compilePath(owner types.NamespacedName, p *v1alpha1.HTTPIngressPath) controlstream.Path {
	out := controlstream.Path{Prefix: p.Path, Headers: canonicalFields(exactValues(p.Headers)), Rewrite: p.RewriteHost,
		Append: canonicalFields(p.AppendHeaders)}
	for _, s := range p.Splits {
		percent := s.Percent
		if len(p.Splits) == 1 {
			percent = 100
		}
		if percent == 0 {
			continue
		}
		to := controlstream.Split{Percent: percent, Append: canonicalFields(s.AppendHeaders)}
		if c.lookup.Revision(s.ServiceNamespace, s.ServiceName) {
			to.Function = functions.Name{Team: s.ServiceNamespace, Name: s.ServiceName}
		} else {
			var problem *Problem
			if to.Address, to.H2C, problem = c.serviceAddress(&s.IngressBackend); problem != nil {
				c.setProblem(owner, problem)
			}
		}
		out.Splits = append(out.Splits, to)
	}
	return out
}

// serviceAddress is the address of a Service; with a problem, an address that refuses
// connections.
func (c *compiler) serviceAddress(b *v1alpha1.IngressBackend) (serviceAddress string, h2c bool, _ *Problem) {
	name := b.ServiceName + "." + b.ServiceNamespace + ".svc"
	refuse := func(p Problem) (string, bool, *Problem) { return name + ":0", false, &p } // refused by every machine
	s := c.lookup.Service(b.ServiceNamespace, b.ServiceName)
	if s == nil {
		return refuse(Problem{Reason: reasonService, Wait: true,
			Message: fmt.Sprintf("there is no Service %s/%s", b.ServiceNamespace, b.ServiceName)})
	}
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Name == b.ServicePort.StrVal && b.ServicePort.Type == intstr.String ||
			p.Port == b.ServicePort.IntVal && b.ServicePort.Type == intstr.Int
	})
	external := s.Spec.Type == corev1.ServiceTypeExternalName
	port := corev1.ServicePort{Port: b.ServicePort.IntVal}
	switch {
	case i >= 0:
		port = s.Spec.Ports[i]
	case external && port.Port > 0: // an ExternalName Service need not list its ports
	default:
		return refuse(Problem{Reason: reasonPort, Wait: true,
			Message: fmt.Sprintf("the Service %s/%s has no port %s", s.Namespace, s.Name, b.ServicePort.String())})
	}
	if port.Name == netapi.ServicePortNameHTTPS {
		return refuse(Problem{Reason: reasonTLS, Message: fmt.Sprintf(
			"port %s of the Service %s/%s speaks TLS: system-internal-tls is not supported", b.ServicePort.String(), s.Namespace, s.Name)})
	}
	h2c = port.Name == netapi.ServicePortNameH2C || port.Name == "h2c"
	if port.AppProtocol != nil {
		h2c = *port.AppProtocol == netapi.AppProtocolH2C
	}
	number := strconv.Itoa(int(port.Port))
	switch {
	case external:
		to := strings.TrimSuffix(strings.ToLower(s.Spec.ExternalName), ".")
		if net.ParseIP(to) != nil || to == "localhost" || strings.HasSuffix(to, ".localhost") {
			// An ExternalName is a DNS name. An IP address could bypass rules for names
			// and reach this machine.
			return refuse(Problem{Reason: reasonInvalid,
				Message: fmt.Sprintf("the Service %s/%s leads to %s, which is not a DNS name", s.Namespace, s.Name, to)})
		}
		return net.JoinHostPort(to, number), h2c, nil
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		// headless: the pods answer on their own port
		if n := port.TargetPort.IntVal; n > 0 {
			number = strconv.Itoa(int(n))
		}
		return net.JoinHostPort(name, number), h2c, nil
	case s.Spec.ClusterIP == "":
		return refuse(Problem{Reason: reasonService, Wait: true,
			Message: fmt.Sprintf("the Service %s/%s has no address yet", s.Namespace, s.Name)})
	}
	return net.JoinHostPort(s.Spec.ClusterIP, number), h2c, nil
}

// addModel makes a Route's main rule, known by its cluster-local name, a model: the splits
// for requests without special headers or paths.
func (c *compiler) addModel(in *v1alpha1.Ingress, rule *v1alpha1.IngressRule) {
	route := in.Labels[serving.RouteLabelKey]
	name := functions.Name{Team: in.Namespace, Name: route}
	if route == "" || in.Labels[serving.RouteNamespaceLabelKey] != in.Namespace || c.models[name] ||
		!slices.Contains(rule.Hosts, route+"."+in.Namespace) {
		return
	}
	for _, p := range rule.HTTP.Paths {
		if len(p.Headers) > 0 || p.Path != "" {
			continue
		}
		var splits []controlstream.Split
		for _, s := range c.compilePath(types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, &p).Splits {
			if s.Function == (functions.Name{}) {
				return
			}
			splits = append(splits, s)
		}
		c.models[name] = true
		c.table.Models = append(c.table.Models, controlstream.Model{Name: name, Splits: splits})
		return
	}
}

// finishHost sorts a host's paths and adds it to the table, after the hosts it refers to.
// It returns false within a circle.
func (c *compiler) finishHost(h *pendingHost) bool {
	if h.done || h.inProgress {
		return h.done
	}
	h.inProgress = true
	slices.SortStableFunc(h.Paths, comparePaths)
	var paths []controlstream.Path
	for _, p := range h.Paths {
		if !slices.ContainsFunc(p.Splits, c.isOwnName) {
			paths = append(paths, p)
			continue
		}
		to := c.rewrittenHost(p)
		switch {
		case p.Rewrite == "" || len(p.Splits) > 1:
			c.setProblem(h.owner, &Problem{Reason: reasonCircle,
				Message: fmt.Sprintf("the host %s leads back to the ingress: only one whole path with rewriteHost can", h.Name)})
		case to == nil:
			c.setProblem(h.owner,
				&Problem{Reason: reasonService, Message: fmt.Sprintf("the host %s leads to %s, which no ingress has", h.Name, p.Rewrite), Wait: true})
		case !c.finishHost(to):
			c.setProblem(h.owner, &Problem{Reason: reasonCircle, Message: fmt.Sprintf("the host %s leads to %s and back", h.Name, to.Name)})
		default:
			through := pathsThrough(p, to)
			if err := c.used.add(h.owner.Namespace, sizeOfPaths(through)); err != nil {
				c.setProblem(h.owner, &Problem{Reason: reasonTooLarge, Message: err.Error()})
				continue
			}
			paths = append(paths, through...)
		}
	}
	slices.SortStableFunc(paths, comparePaths)
	h.Paths, h.inProgress, h.done = paths, false, true
	c.table.Hosts = append(c.table.Hosts, h.Host)
	return true
}

// comparePaths puts the longest prefix first, then the most header conditions: Knative's order.
func comparePaths(a, b controlstream.Path) int {
	return cmp.Or(cmp.Compare(len(b.Prefix), len(a.Prefix)), cmp.Compare(len(b.Headers), len(a.Headers)))
}

// isOwnName reports whether a split leads back to thaw's ingress.
func (c *compiler) isOwnName(s controlstream.Split) bool {
	to, _, _ := net.SplitHostPort(s.Address)
	return to != "" && (to == c.lookup.Public || to == c.lookup.Private)
}

// rewrittenHost returns the host whose requests the listener that a path leads back to would
// serve, nil if there is none: the private one serves cluster-local hosts before external ones.
func (c *compiler) rewrittenHost(p controlstream.Path) *pendingHost {
	name := strings.ToLower(p.Rewrite)
	if to, _, _ := net.SplitHostPort(p.Splits[0].Address); to == c.lookup.Private && c.hosts[hostKey{name, true}] != nil {
		return c.hosts[hostKey{name, true}]
	}
	return c.hosts[hostKey{name, false}]
}

// pathsThrough returns the paths of another host as they apply to requests that path p
// rewrites to it.
func pathsThrough(p controlstream.Path, to *pendingHost) []controlstream.Path {
	given := mergeFields(p.Append, p.Splits[0].Append)
	var out []controlstream.Path
next:
	for _, x := range to.Paths {
		switch {
		case strings.HasPrefix(x.Prefix, p.Prefix):
		case strings.HasPrefix(p.Prefix, x.Prefix):
			x.Prefix = p.Prefix
		default:
			continue
		}
		want := mergeFields(p.Headers)
		for k, v := range x.Headers {
			if has, ok := given[k]; ok {
				if has != v {
					continue next
				}
				continue
			}
			if has, ok := p.Headers[k]; ok && has != v {
				continue next
			}
			want = mergeFields(want, map[string]string{k: v})
		}
		x.Headers = want
		x.Append = mergeFields(given, x.Append)
		x.Rewrite = cmp.Or(x.Rewrite, p.Rewrite)
		out = append(out, x)
	}
	return out
}

// mergeFields merges maps, later ones winning; nil if all are empty.
func mergeFields(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
