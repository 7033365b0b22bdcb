package autoscale

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	discoverylist "k8s.io/client-go/listers/discovery/v1"
	netapi "knative.dev/networking/pkg/apis/networking"
	netv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	netlist "knative.dev/networking/pkg/client/listers/networking/v1alpha1"

	"github.com/thaw-dev/thaw/platform/knative"
)

const (
	// Knative's activators, and the port of their metrics: Knative's defaults.
	activatorService = "activator-service"
	metricsPort      = "9090"

	// The counters of requests in an activator's hands, per revision: waiting for a
	// replica, sent on to one, and answered ever since it started. The last tells of
	// those that came and went between two looks.
	queuedMetric = "kn_revision_request_queued"
	activeMetric = "kn_revision_request_active"
	doneMetric   = "http_server_request_duration_seconds_count"

	pollReached = 250 * time.Millisecond // while an ingress of another class leads to a revision
	pollIdle    = time.Second            // while one could be called by its own Service's name
	pollSilent  = 5 * time.Second        // while no activator has such a page
	pageFor     = 2 * time.Second        // bounds one look
	believed    = 3 * time.Second        // how long an activator that does not answer is believed
	pageOf      = 16 << 20               // bytes of a page that are read
)

// held is the requests for one revision in Knative's activators. Where some came and
// went since the look before, at least one is active.
type held struct{ active, queued int }

// count is what one activator's page says of a revision.
type count struct{ active, queued, done int }

// outside looks at the demand that does not pass our activators.
type outside struct {
	log       *slog.Logger
	system    string
	slices    discoverylist.EndpointSliceLister // of Knative's activators
	ingresses netlist.IngressLister
	ours      func(types.NamespacedName) bool // there is such a revision of our class
	any       func() bool                     // there is any
	page      func(ctx context.Context, address string) (io.ReadCloser, error)
	demand    func(namespace, revision string, active, queued int)
	reached   func(types.NamespacedName) // foreign has changed of it
	now       func() time.Time

	foreign atomic.Pointer[map[types.NamespacedName]string] // revision → class of the ingress that leads to it
	silent  atomic.Bool                                     // there are activators, and none can be read

	// Of run alone.
	seen  map[string]look // by the activator's address
	given map[types.NamespacedName]held
}

// look is what one activator said last.
type look struct {
	at     time.Time
	held   map[types.NamespacedName]held
	counts map[types.NamespacedName]count
}

// since is a look after another; none may have been before it.
func (l look) since(before look, known bool) look {
	l.held = make(map[types.NamespacedName]held, len(l.counts))
	for key, c := range l.counts {
		h := held{c.active, c.queued}
		if known && c.done > before.counts[key].done {
			h.active = max(h.active, 1)
		}
		l.held[key] = h
	}
	return l
}

// routes takes in which revisions ingresses of other classes lead to. The handlers
// of one informer call it, one at a time.
func (o *outside) routes() {
	all, err := o.ingresses.List(labels.Everything())
	if err != nil {
		return // a lister of memory has no errors
	}
	next := map[types.NamespacedName]string{}
	for _, in := range all {
		class := in.Annotations[netapi.IngressClassAnnotationKey]
		if class == knative.IngressClass || in.DeletionTimestamp != nil {
			continue
		}
		for key := range backends(in) {
			next[key] = class
		}
	}
	before := map[types.NamespacedName]string{}
	if p := o.foreign.Swap(&next); p != nil {
		before = *p
	}
	for key := range next {
		if _, ok := before[key]; !ok {
			o.reached(key)
		}
	}
	for key := range before {
		if _, ok := next[key]; !ok {
			o.reached(key)
		}
	}
}

// backends are the Services that an ingress leads to; that of a revision has its
// name.
func backends(in *netv1alpha1.Ingress) map[types.NamespacedName]bool {
	out := map[types.NamespacedName]bool{}
	for _, rule := range in.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			for _, s := range p.Splits {
				out[types.NamespacedName{Namespace: s.ServiceNamespace, Name: s.ServiceName}] = true
			}
		}
	}
	return out
}

// class is the class of another ingress that leads to a revision, or "".
func (o *outside) class(namespace, revision string) (string, bool) {
	if p := o.foreign.Load(); p != nil {
		class, ok := (*p)[types.NamespacedName{Namespace: namespace, Name: revision}]
		return class, ok
	}
	return "", false
}

// reachedAny reports whether such an ingress leads to any revision of ours.
func (o *outside) reachedAny() bool {
	if p := o.foreign.Load(); p != nil {
		for key := range *p {
			if o.ours(key) {
				return true
			}
		}
	}
	return false
}

// run looks until ctx ends.
func (o *outside) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next := pollIdle
		switch {
		case !o.any():
			o.give(map[types.NamespacedName]held{})
		default:
			reached := o.reachedAny()
			o.give(o.look(ctx))
			switch {
			case o.silent.Load():
				next = pollSilent
			case reached:
				next = pollReached
			}
		}
		timer.Reset(next)
	}
}

// look asks all activators at once and adds up what they hold.
func (o *outside) look(ctx context.Context) map[types.NamespacedName]held {
	ctx, cancel := context.WithTimeout(ctx, pageFor)
	defer cancel()
	addresses := o.addresses()
	looks := make([]look, len(addresses))
	errs := make([]error, len(addresses))
	var wg sync.WaitGroup
	for i, a := range addresses {
		wg.Go(func() {
			body, err := o.page(ctx, net.JoinHostPort(a, metricsPort))
			if err != nil {
				errs[i] = err
				return
			}
			defer body.Close()
			looks[i].counts, errs[i] = read(io.LimitReader(body, pageOf), o.ours)
		})
	}
	wg.Wait()

	now := o.now()
	there := make(map[string]bool, len(addresses))
	good := 0
	for i, a := range addresses {
		there[a] = true
		if errs[i] == nil {
			before, known := o.seen[a]
			looks[i].at = now
			o.seen[a] = looks[i].since(before, known)
			good++
		}
	}
	maps.DeleteFunc(o.seen, func(a string, l look) bool { return !there[a] || now.Sub(l.at) > believed })
	blind := len(addresses) > 0 && good == 0 && len(o.seen) == 0
	if o.silent.Swap(blind) != blind {
		level := slog.LevelDebug
		if o.reachedAny() {
			level = slog.LevelWarn
		}
		if blind {
			o.log.Log(ctx, level, "Knative's activators cannot be read, so requests that come through other ingresses wake nothing: set metrics-protocol: prometheus in config-observability of "+o.system+" and restart the activator", "err", errors.Join(errs...))
		} else {
			o.log.Log(ctx, level, "Knative's activators are read", "activators", good)
		}
		if p := o.foreign.Load(); p != nil {
			for key := range *p {
				o.reached(key)
			}
		}
	}
	sum := map[types.NamespacedName]held{}
	for _, l := range o.seen {
		for key, h := range l.held {
			s := sum[key]
			sum[key] = held{s.active + h.active, s.queued + h.queued}
		}
	}
	return sum
}

// give tells what has changed since the last time.
func (o *outside) give(next map[types.NamespacedName]held) {
	for key, h := range next {
		if o.given[key] != h {
			o.demand(key.Namespace, key.Name, h.active, h.queued)
		}
	}
	for key, h := range o.given {
		if _, ok := next[key]; !ok && h != (held{}) {
			o.demand(key.Namespace, key.Name, 0, 0)
		}
	}
	o.given = next
}

// addresses are Knative's activators, as its Service has them.
func (o *outside) addresses() []string {
	all, err := o.slices.EndpointSlices(o.system).List(labels.Everything())
	if err != nil {
		return nil
	}
	var out []string
	seen := map[string]bool{}
	for _, s := range all {
		if s.Labels[discoveryv1.LabelServiceName] != activatorService {
			continue
		}
		for _, e := range s.Endpoints {
			// One that ends may hold requests still, and is left out once it is gone.
			for _, a := range e.Addresses {
				if !seen[a] {
					seen[a] = true
					out = append(out, a)
				}
			}
		}
	}
	return out
}

// pages gets an activator's page of metrics.
func pages(client *http.Client) func(context.Context, string) (io.ReadCloser, error) {
	return func(ctx context.Context, address string) (io.ReadCloser, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		answer, err := client.Do(r)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode != http.StatusOK {
			answer.Body.Close()
			return nil, fmt.Errorf("%s answers %s", address, answer.Status)
		}
		return answer.Body, nil
	}
}

// read takes the requests per revision out of a page of metrics, of the revisions
// that are wanted. A line that it does not understand it leaves.
func read(page io.Reader, want func(types.NamespacedName) bool) (map[types.NamespacedName]count, error) {
	out := map[types.NamespacedName]count{}
	lines := bufio.NewScanner(page)
	lines.Buffer(make([]byte, 0, 64<<10), 1<<20)
	for lines.Scan() {
		line := lines.Text()
		name, _, _ := strings.Cut(line, "{")
		if name != queuedMetric && name != activeMetric && name != doneMetric {
			continue
		}
		key, n, ok := sample(line)
		if !ok || n < 0 || !want(key) {
			continue
		}
		c := out[key]
		switch name {
		case queuedMetric:
			c.queued += n
		case activeMetric:
			c.active += n
		case doneMetric:
			c.done += n
		}
		out[key] = c
	}
	return out, lines.Err()
}

// sample is one line of the page: NAME{LABEL="VALUE",…} NUMBER.
func sample(line string) (types.NamespacedName, int, bool) {
	var key types.NamespacedName
	_, rest, ok := strings.Cut(line, "{")
	for ok && !strings.HasPrefix(rest, "}") {
		var name, value string
		if name, rest, ok = strings.Cut(rest, `="`); !ok {
			return key, 0, false
		}
		end := 0
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(rest) {
			return key, 0, false
		}
		value, rest = rest[:end], strings.TrimPrefix(rest[end+1:], ",")
		switch strings.Trim(name, `" `) {
		case "k8s_namespace_name":
			key.Namespace = value
		case "kn_revision_name":
			key.Name = value
		}
	}
	number, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(rest, "}")), " ")
	f, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || f != f || f > 1e15 || f < -1e15 || key.Namespace == "" || key.Name == "" {
		return key, 0, false
	}
	return key, int(f), true
}
