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

	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/knative"
)

const (
	// Service of Knative's activators and port of their metrics, both Knative's defaults.
	activatorService = "activator-service"
	metricsPort      = "9090"

	// Counters of an activator per revision: requests waiting for a replica, forwarded
	// ones, and all answered ones. The last reveals requests that came and went between
	// two polls.
	queuedMetric = "kn_revision_request_queued"
	activeMetric = "kn_revision_request_active"
	doneMetric   = "http_server_request_duration_seconds_count"

	pollForeign    = 250 * time.Millisecond // while an Ingress of another class routes to a revision of ours
	pollIdle       = time.Second            // while revisions could be called by their Services' names
	pollUnreadable = 5 * time.Second        // while no activator serves the metrics
	pageTimeout    = 2 * time.Second        // bounds one poll
	sampleTTL      = 3 * time.Second        // how long the last sample of an activator that does not answer counts
	maxPageBytes   = 16 << 20
)

// demand is the requests for one revision in Knative's activators; active is at least 1 if
// some ended since the last poll.
type demand struct{ active, queued int }

// requestCounts is one activator's counters for a revision.
type requestCounts struct{ active, queued, done int }

// demandWatcher polls the demand that bypasses our activators.
type demandWatcher struct {
	log            *slog.Logger
	system         string
	slices         discoverylist.EndpointSliceLister // of Knative's activators
	ingresses      netlist.IngressLister
	isOurs         func(types.NamespacedName) bool // a revision of class thaw.dev
	anyOurs        func() bool                     // any such revision exists
	fetch          func(ctx context.Context, address string) (io.ReadCloser, error)
	report         func(namespace, revision string, active, queued int)
	foreignChanged func(types.NamespacedName) // foreignRoutes changed for the revision

	foreignRoutes atomic.Pointer[map[types.NamespacedName]string] // revision → class of the Ingress that routes to it
	unreadable    atomic.Bool                                     // there are activators, and none serves metrics

	// owned by poll
	samples  map[string]activatorSample // by the activator's address
	reported map[types.NamespacedName]demand
}

// activatorSample is an activator's last metrics.
type activatorSample struct {
	at     time.Time
	demand map[types.NamespacedName]demand
	counts map[types.NamespacedName]requestCounts
}

// countedSince computes the demand of a sample from the previous one, if known.
func (s activatorSample) countedSince(before activatorSample, known bool) activatorSample {
	s.demand = make(map[types.NamespacedName]demand, len(s.counts))
	for key, c := range s.counts {
		h := demand{c.active, c.queued}
		if known && c.done > before.counts[key].done {
			h.active = max(h.active, 1)
		}
		s.demand[key] = h
	}
	return s
}

// updateForeign updates foreignRoutes. It is called by one informer handler only.
func (w *demandWatcher) updateForeign() {
	all, err := w.ingresses.List(labels.Everything())
	if err != nil {
		return // a lister of a cache returns no errors
	}
	next := map[types.NamespacedName]string{}
	for _, in := range all {
		class := in.Annotations[netapi.IngressClassAnnotationKey]
		if class == knative.IngressClass || in.DeletionTimestamp != nil {
			continue
		}
		_ = knative.Protect(w.log, "Ingress "+in.Namespace+"/"+in.Name, func() { // it is in the log
			for key := range backends(in) {
				next[key] = class
			}
		})
	}
	before := map[types.NamespacedName]string{}
	if p := w.foreignRoutes.Swap(&next); p != nil {
		before = *p
	}
	for key := range next {
		if _, ok := before[key]; !ok {
			w.foreignChanged(key)
		}
	}
	for key := range before {
		if _, ok := next[key]; !ok {
			w.foreignChanged(key)
		}
	}
}

// backends lists the Services that an Ingress routes to; a revision's Service has its
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

// foreignClass is the class of another Ingress that routes to a revision.
func (w *demandWatcher) foreignClass(namespace, revision string) (string, bool) {
	if p := w.foreignRoutes.Load(); p != nil {
		class, ok := (*p)[types.NamespacedName{Namespace: namespace, Name: revision}]
		return class, ok
	}
	return "", false
}

// anyForeign reports whether such an Ingress routes to any revision of ours.
func (w *demandWatcher) anyForeign() bool {
	if p := w.foreignRoutes.Load(); p != nil {
		for key := range *p {
			if w.isOurs(key) {
				return true
			}
		}
	}
	return false
}

func (w *demandWatcher) poll(ctx context.Context) {
	for next := time.Duration(0); backoff.Sleep(ctx, next); {
		next = pollIdle
		switch {
		case !w.anyOurs():
			w.reportChanges(map[types.NamespacedName]demand{})
		default:
			reached := w.anyForeign()
			w.reportChanges(w.sampleAll(ctx))
			switch {
			case w.unreadable.Load():
				next = pollUnreadable
			case reached:
				next = pollForeign
			}
		}
	}
}

// sampleAll reads all activators at once and adds up their demand.
func (w *demandWatcher) sampleAll(ctx context.Context) map[types.NamespacedName]demand {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	addresses := w.addresses()
	looks := make([]activatorSample, len(addresses))
	errs := make([]error, len(addresses))
	var wg sync.WaitGroup
	for i, a := range addresses {
		wg.Go(func() {
			body, err := w.fetch(ctx, net.JoinHostPort(a, metricsPort))
			if err != nil {
				errs[i] = err
				return
			}
			defer body.Close()
			looks[i].counts, errs[i] = parsePage(io.LimitReader(body, maxPageBytes), w.isOurs)
		})
	}
	wg.Wait()

	now := time.Now()
	there := make(map[string]bool, len(addresses))
	good := 0
	for i, a := range addresses {
		there[a] = true
		if errs[i] == nil {
			before, known := w.samples[a]
			looks[i].at = now
			w.samples[a] = looks[i].countedSince(before, known)
			good++
		}
	}
	maps.DeleteFunc(w.samples, func(a string, l activatorSample) bool { return !there[a] || now.Sub(l.at) > sampleTTL })
	blind := len(addresses) > 0 && good == 0 && len(w.samples) == 0
	if w.unreadable.Swap(blind) != blind {
		level := slog.LevelDebug
		if w.anyForeign() {
			level = slog.LevelWarn
		}
		if blind {
			w.log.Log(ctx, level, "cannot read the metrics of Knative's activators, so requests through other ingresses start no model: set "+
				"metrics-protocol: prometheus in config-observability of "+w.system+" and restart the activator", "err", errors.Join(errs...))
		} else {
			w.log.Log(ctx, level, "reading the metrics of Knative's activators", "activators", good)
		}
		if p := w.foreignRoutes.Load(); p != nil {
			for key := range *p {
				w.foreignChanged(key)
			}
		}
	}
	sum := map[types.NamespacedName]demand{}
	for _, l := range w.samples {
		for key, h := range l.demand {
			s := sum[key]
			sum[key] = demand{s.active + h.active, s.queued + h.queued}
		}
	}
	return sum
}

func (w *demandWatcher) reportChanges(next map[types.NamespacedName]demand) {
	for key, h := range next {
		if w.reported[key] != h {
			w.report(key.Namespace, key.Name, h.active, h.queued)
		}
	}
	for key, h := range w.reported {
		if _, ok := next[key]; !ok && h != (demand{}) {
			w.report(key.Namespace, key.Name, 0, 0)
		}
	}
	w.reported = next
}

// addresses lists Knative's activators.
func (w *demandWatcher) addresses() []string {
	all, err := w.slices.EndpointSlices(w.system).List(labels.Everything())
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
			// a terminating activator may still hold requests
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

func pageFetcher(client *http.Client) func(context.Context, string) (io.ReadCloser, error) {
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

// parsePage extracts the counters of wanted revisions and skips lines it does not
// understand.
func parsePage(page io.Reader, want func(types.NamespacedName) bool) (map[types.NamespacedName]requestCounts, error) {
	out := map[types.NamespacedName]requestCounts{}
	lines := bufio.NewScanner(page)
	lines.Buffer(make([]byte, 0, 64<<10), 1<<20)
	for lines.Scan() {
		line := lines.Text()
		name, _, _ := strings.Cut(line, "{")
		if name != queuedMetric && name != activeMetric && name != doneMetric {
			continue
		}
		key, n, ok := parseSample(line)
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

// parseSample parses one line: NAME{LABEL="VALUE",…} NUMBER.
func parseSample(line string) (types.NamespacedName, int, bool) {
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
