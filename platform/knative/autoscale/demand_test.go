package autoscale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	discoverylist "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	netapi "knative.dev/networking/pkg/apis/networking"
	netv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	netlist "knative.dev/networking/pkg/client/listers/networking/v1alpha1"

	"github.com/thaw-dev/thaw/platform/knative"
)

// page is a shortened page of metrics of an activator of Knative 0.50.
const page = `# HELP go_goroutines Count of live goroutines.
go_goroutines 41
# HELP kn_revision_request_active Number of requests currently being proxied by the activator
# TYPE kn_revision_request_active gauge
kn_revision_request_active{k8s_namespace_name="a",kn_revision_name="llama-00001",otel_scope_name="knative.dev/serving/pkg/activator",otel_scope_schema_url="",otel_scope_version=""} 2
kn_revision_request_active{k8s_namespace_name="b",kn_revision_name="web-00001",otel_scope_name="knative.dev/serving/pkg/activator"} 9
# TYPE kn_revision_request_queued gauge
kn_revision_request_queued{k8s_namespace_name="a",kn_revision_name="llama-00001",otel_scope_name="knative.dev/serving/pkg/activator"} 3
kn_revision_request_queued{k8s_namespace_name="a",kn_revision_name="qwen-00007"} 1e+00
http_server_request_duration_seconds_bucket{http_request_method="GET",http_response_status_code="200",k8s_namespace_name="a",kn_configuration_name="llama",kn_revision_name="llama-00001",kn_service_name="llama",server_address="llama.a.example.com",url_scheme="http",le="+Inf"} 16
http_server_request_duration_seconds_count{http_request_method="GET",http_response_status_code="200",k8s_namespace_name="a",kn_configuration_name="llama",kn_revision_name="llama-00001",kn_service_name="llama",server_address="llama.a.example.com",url_scheme="http"} 16
http_server_request_duration_seconds_count{http_request_method="POST",http_response_status_code="502",k8s_namespace_name="a",kn_configuration_name="llama",kn_revision_name="llama-00001",kn_service_name="llama",server_address="llama.a.example.com",url_scheme="http"} 4
kn_revision_request_concurrency{k8s_namespace_name="a",kn_revision_name="llama-00001"} 77
`

func TestRead(t *testing.T) {
	ours := func(key types.NamespacedName) bool { return key.Namespace == "a" }
	got, err := parsePage(strings.NewReader(page), ours)
	want := map[types.NamespacedName]requestCounts{{Namespace: "a", Name: "llama-00001"}: {2, 3, 20}, {Namespace: "a", Name: "qwen-00007"}: {0, 1, 0}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	for _, c := range []struct {
		line string
		ok   bool
		n    int
	}{
		{`m{k8s_namespace_name="a",kn_revision_name="r"} 4`, true, 4},
		{`m{kn_revision_name="r",k8s_namespace_name="a"} 4 1700000000000`, true, 4},
		{`m{kn_revision_name="r",k8s_namespace_name="a",} 4`, true, 4},
		{`m{x="a\"}\\",kn_revision_name="r",k8s_namespace_name="a"} 0`, true, 0},
		{`m{"kn_revision_name"="r","k8s_namespace_name"="a"} 1`, true, 1},
		{`m{kn_revision_name="r",k8s_namespace_name="a"}`, false, 0},
		{`m{kn_revision_name="r",k8s_namespace_name="a"} x`, false, 0},
		{`m{kn_revision_name="r",k8s_namespace_name="a"} NaN`, false, 0},
		{`m{kn_revision_name="r",k8s_namespace_name="a"} +Inf`, false, 0},
		{`m{kn_revision_name="r",k8s_namespace_name="a`, false, 0},
		{`m{kn_revision_name="r",k8s_namespace_name="a\`, false, 0},
		{`m{kn_revision_name="r"} 1`, false, 0},
		{`m{k8s_namespace_name="a"} 1`, false, 0},
		{`m{kn_revision_name} 1`, false, 0},
		{`m{} 1`, false, 0},
		{`m 1`, false, 0},
		{``, false, 0},
	} {
		key, n, ok := parseSample(c.line)
		if ok != c.ok || ok && (n != c.n || key != types.NamespacedName{Namespace: "a", Name: "r"}) {
			t.Errorf("%s: %v %d %v, want %d %v", c.line, key, n, ok, c.n, c.ok)
		}
	}
	if _, err := parsePage(strings.NewReader(strings.Repeat("x", 2<<20)), ours); err == nil {
		t.Error("a line without an end is read")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(page)
	f.Add(`kn_revision_request_queued{k8s_namespace_name="a",kn_revision_name="r"} 1`)
	f.Add(`kn_revision_request_queued{k8s_namespace_name="a\",kn_revision_name="} 1`)
	f.Fuzz(func(t *testing.T, text string) {
		got, _ := parsePage(strings.NewReader(text), func(types.NamespacedName) bool { return true })
		for key, h := range got {
			if key.Name == "" || key.Namespace == "" || h.active < 0 || h.queued < 0 || h.done < 0 {
				t.Fatalf("%v %+v", key, h)
			}
		}
	})
}

func TestPageFetcher(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, r.URL.Path)
	}))
	defer s.Close()
	get := pageFetcher(s.Client())
	body, err := get(t.Context(), s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(body)
	body.Close()
	if string(b) != "/metrics" {
		t.Errorf("%s was asked", b)
	}
	status = http.StatusNotFound
	if _, err := get(t.Context(), s.Listener.Addr().String()); err == nil {
		t.Error("what is not there is read")
	}
}

// knativeActivators plays Knative's activators and Ingresses.
type knativeActivators struct {
	*demandWatcher
	activators cache.Indexer
	routesOf   cache.Indexer

	mu     sync.Mutex
	says   map[string]string // metrics by the activator's address; "" refuses
	asked  int
	told   []string
	woken  []string
	models bool
}

func has(t *testing.T) *knativeActivators {
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	k := &knativeActivators{activators: index(), routesOf: index(), says: map[string]string{}, models: true}
	k.demandWatcher = &demandWatcher{
		log: slog.New(slog.DiscardHandler), system: "knative-serving",
		slices: discoverylist.NewEndpointSliceLister(k.activators), ingresses: netlist.NewIngressLister(k.routesOf),
		isOurs:  func(key types.NamespacedName) bool { return key.Namespace == "a" },
		anyOurs: func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.models },
		fetch: func(_ context.Context, address string) (io.ReadCloser, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.asked++
			text := k.says[strings.TrimSuffix(address, ":9090")]
			if text == "" {
				return nil, errors.New("refused")
			}
			return io.NopCloser(strings.NewReader(text)), nil
		},
		report: func(ns, rev string, active, queued int) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.told = append(k.told, fmt.Sprintf("%s/%s %d %d", ns, rev, active, queued))
		},
		foreignChanged: func(key types.NamespacedName) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.woken = append(k.woken, key.String())
		},
		samples: map[string]activatorSample{}, reported: map[types.NamespacedName]demand{},
	}
	return k
}

func (k *knativeActivators) pods(t *testing.T, addresses ...string) {
	t.Helper()
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: "activator-service-x", Labels: map[string]string{discoveryv1.LabelServiceName: activatorService}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	if err := k.activators.Add(s); err != nil {
		t.Fatal(err)
	}
}

func (k *knativeActivators) say(address, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.says[address] = text
}

func (k *knativeActivators) lead(t *testing.T, name, class, namespace string, backends ...string) {
	t.Helper()
	in := &netv1alpha1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{netapi.IngressClassAnnotationKey: class}}}
	var splits []netv1alpha1.IngressBackendSplit
	for _, b := range backends {
		splits = append(splits,
			netv1alpha1.IngressBackendSplit{IngressBackend: netv1alpha1.IngressBackend{ServiceNamespace: namespace, ServiceName: b}})
	}
	in.Spec.Rules = []netv1alpha1.IngressRule{{}, {HTTP: &netv1alpha1.HTTPIngressRuleValue{Paths: []netv1alpha1.HTTPIngressPath{{Splits: splits}}}}}
	if err := k.routesOf.Add(in); err != nil {
		t.Fatal(err)
	}
	k.updateForeign()
}

// heard returns and clears the reported changes.
func (k *knativeActivators) heard() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer func() { k.told, k.woken, k.asked = nil, nil, 0 }()
	return strings.Join(k.told, "; ")
}

func (k *knativeActivators) looks() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

func TestOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := has(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		line := func(revision string, queued, active int) string {
			l := fmt.Sprintf(`{k8s_namespace_name="a",kn_revision_name=%q}`, revision)
			return fmt.Sprintf("%s%s %d\n%s%s %d\n", queuedMetric, l, queued, activeMetric, l, active)
		}
		wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		expect := func(what, told string) {
			t.Helper()
			if got := k.heard(); got != told {
				t.Errorf("%s: told %q, want %q", what, got, told)
			}
		}
		k.pods(t, "10.0.0.1", "10.0.0.2")
		k.say("10.0.0.1", line("llama-00001", 2, 1))
		k.say("10.0.0.2", line("llama-00001", 1, 0)+line("qwen-00001", 0, 1))
		wg.Go(func() { k.poll(ctx) })
		synctest.Wait()
		got := k.heard()
		if got != "a/llama-00001 1 3; a/qwen-00001 1 0" && got != "a/qwen-00001 1 0; a/llama-00001 1 3" {
			t.Errorf("told %q", got)
		}
		wait(10 * time.Second)
		if n := k.looks(); n != 20 {
			t.Errorf("%d looks at two activators in 10 s that no other ingress leads through", n)
		}
		expect("nothing has changed", "")

		// An Ingress of another class routes to a revision: polls are more frequent.
		k.lead(t, "llama", "edge", "a", "llama-00001")
		k.lead(t, "qwen", knative.IngressClass, "a", "qwen-00001")
		if class, ok := k.foreignClass("a", "llama-00001"); !ok || class != "edge" {
			t.Error("who leads to it is not known")
		}
		if _, ok := k.foreignClass("a", "qwen-00001"); ok {
			t.Error("our own ingress is another's")
		}
		k.mu.Lock()
		if len(k.woken) != 1 || k.woken[0] != "a/llama-00001" {
			t.Errorf("woken: %v", k.woken)
		}
		k.mu.Unlock()
		wait(time.Second)
		k.heard()
		wait(2 * time.Second)
		if n := k.looks(); n != 16 {
			t.Errorf("%d looks at two activators in 2 s", n)
		}
		k.say("10.0.0.1", line("llama-00001", 0, 3))
		wait(pollForeign)
		expect("it went on", "a/llama-00001 3 1")

		// Requests that came and went between two polls count, but not those before the first
		// poll.
		done := func(n int) string {
			return line("llama-00001", 0, 0) + fmt.Sprintf("%s{k8s_namespace_name=\"a\",kn_revision_name=\"llama-00001\"} %d\n", doneMetric, n)
		}
		k.pods(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		k.say("10.0.0.3", done(70))
		wait(pollForeign)
		expect("before the first look", "")
		k.say("10.0.0.1", done(0))
		wait(pollForeign)
		expect("no replica", "a/llama-00001 0 1")
		k.say("10.0.0.3", done(71))
		wait(pollForeign)
		expect("one came and went", "a/llama-00001 1 1")
		wait(pollForeign)
		expect("that was all", "a/llama-00001 0 1")
		k.say("10.0.0.3", done(3))
		wait(pollForeign)
		expect("it counts anew", "")
		k.pods(t, "10.0.0.1", "10.0.0.2")
		k.say("10.0.0.1", line("llama-00001", 0, 3))
		wait(pollForeign)
		k.heard()

		// An activator that does not answer counts with its last sample for a moment.
		k.say("10.0.0.1", "")
		wait(sampleTTL - pollForeign)
		expect("one hiccup", "")
		wait(2 * pollForeign)
		expect("it is gone", "a/llama-00001 0 1")
		if k.unreadable.Load() {
			t.Error("one of two answers, and demand is unseen")
		}
		// A removed activator stops counting at once.
		k.pods(t, "10.0.0.1")
		k.say("10.0.0.1", "x 1\n")
		wait(pollForeign)
		got = k.heard()
		if got != "a/llama-00001 0 0; a/qwen-00001 0 0" && got != "a/qwen-00001 0 0; a/llama-00001 0 0" {
			t.Errorf("told %q", got)
		}

		// No activator can be read, and later one can again.
		k.say("10.0.0.1", "")
		wait(sampleTTL + 2*pollForeign)
		if !k.unreadable.Load() || len(k.woken) != 1 {
			t.Errorf("no revision is enqueued when demand is unseen: %v", k.woken)
		}
		k.heard()
		wait(20 * time.Second)
		if n := k.looks(); n != 4 {
			t.Errorf("%d looks in 20 s at what has no page", n)
		}
		k.say("10.0.0.1", line("llama-00001", 1, 0))
		wait(pollUnreadable)
		expect("it is back", "a/llama-00001 0 1")
		if k.unreadable.Load() {
			t.Error("demand is still unseen")
		}

		// Without a revision of our class nothing is polled.
		k.mu.Lock()
		k.models = false
		k.mu.Unlock()
		wait(pollIdle)
		expect("no model is there", "a/llama-00001 0 0")
		wait(10 * time.Second)
		if n := k.looks(); n != 0 {
			t.Errorf("%d polls without a revision", n)
		}
		if err := k.routesOf.Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
		k.updateForeign()
		if _, ok := k.foreignClass("a", "llama-00001"); ok || k.woken[len(k.woken)-1] != "a/llama-00001" {
			t.Error("the deletion of the other ingress is not noticed")
		}
	})
}
