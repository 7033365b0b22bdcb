package controlstream

import (
	"context"
	"maps"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "a-token-of-the-cluster"

// listen serves a hub on loopback and returns its address.
func listen(t testing.TB, h *Hub) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	Configure(s.Config)
	s.Start()
	t.Cleanup(func() {
		h.Close()
		s.Close()
	})
	return s.Listener.Addr().String()
}

// start runs f until the test ends.
func start(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(stop)
	return stop
}

func name(s string) functions.Name { return functions.Name{Team: "a", Name: s} }

// feed is a data path that records its calls.
type feed struct {
	mu       sync.Mutex
	pictures map[functions.Name]snapshot.Snapshot
	demand   map[functions.Name]activator.Demand
	flights  map[functions.Name]map[string]int
	to       *Activator // nil before bind
	cuts     []string
	news     newest.Signal // there was a call
}

func newFeed() *feed {
	return &feed{pictures: map[functions.Name]snapshot.Snapshot{}, demand: map[functions.Name]activator.Demand{},
		flights: map[functions.Name]map[string]int{}, news: newest.NewSignal()}
}

func (f *feed) Publish(fs ...snapshot.Snapshot) {
	f.mu.Lock()
	for _, x := range fs {
		f.pictures[x.Name] = x
	}
	f.mu.Unlock()
	f.news.Set()
}

func (f *feed) Remove(names ...functions.Name) {
	f.mu.Lock()
	for _, n := range names {
		delete(f.pictures, n)
		delete(f.demand, n)
		f.report(n)
	}
	f.mu.Unlock()
	f.news.Set()
}

func (f *feed) AbortThrough(agent string) {
	f.mu.Lock()
	f.cuts = append(f.cuts, agent)
	f.mu.Unlock()
	f.news.Set()
}

// bind has the demand reported to a from now on.
func (f *feed) bind(a *Activator) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = a
	for n := range f.demand {
		f.report(n)
	}
}

// report reports the demand for a function; mu must be held.
func (f *feed) report(n functions.Name) {
	d := f.demand[n]
	d.Name, d.InFlight = n, maps.Clone(f.flights[n])
	if f.to != nil {
		f.to.Demand(d)
	}
}

// want sets and reports the demand for a function.
func (f *feed) want(d activator.Demand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.demand[d.Name] = d
	f.report(d.Name)
}

// fly sets and reports the requests in flight at a replica of a function.
func (f *feed) fly(of functions.Name, replica string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flights[of] == nil {
		f.flights[of] = map[string]int{}
	}
	if f.flights[of][replica] = n; n == 0 {
		delete(f.flights[of], replica)
	}
	f.report(of)
}

func (f *feed) has(n functions.Name) (snapshot.Snapshot, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pictures[n]
	return p, ok
}

// wakes is a Waker that records its calls.
type wakes struct {
	mu   sync.Mutex
	of   map[functions.Name]bool
	last map[functions.Name]activator.Demand // as last reported
	news map[functions.Name]activator.Demand // reported since takeNews
}

// watched returns a hub with a Waker that records its calls.
// tokens is HubOptions.Tokens of a fixed list.
func tokens(list ...string) func() []string { return func() []string { return list } }

func watched(o HubOptions) (*Hub, *wakes) {
	w := &wakes{}
	o.Tokens, o.Waker = tokens(secret), w
	return NewHub(o), w
}

func (w *wakes) Demand(ds ...activator.Demand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[functions.Name]activator.Demand{}
	}
	if w.news == nil {
		w.news = map[functions.Name]activator.Demand{}
	}
	for _, d := range ds {
		w.last[d.Name], w.news[d.Name] = d, d
	}
}

func (w *wakes) demand(n functions.Name) activator.Demand {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last[n]
}

func (w *wakes) takeNews() map[functions.Name]activator.Demand {
	w.mu.Lock()
	defer w.mu.Unlock()
	news := w.news
	w.news = nil
	return news
}

func (w *wakes) Wake(n functions.Name) string {
	w.mu.Lock()
	if w.of == nil {
		w.of = map[functions.Name]bool{}
	}
	w.of[n] = true
	w.mu.Unlock()
	return ""
}
func (w *wakes) Nudge(functions.Name)                         {}
func (w *wakes) ReportFailure(functions.Name, string, string) {}

func (w *wakes) asked(n functions.Name) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[n]
}

// attach attaches f to a, and has a feed report to a.
func attach(a *Activator, f Feed) {
	a.Attach(f)
	if b, ok := f.(interface{ bind(*Activator) }); ok {
		b.bind(a)
	}
}

// join dials an activator at addr and attaches f.
func join(t testing.TB, addr, id string, f Feed) (*Activator, func()) {
	t.Helper()
	a := NewActivator(ActivatorOptions{ClientOptions: ClientOptions{Addr: addr, Token: secret, Hello: Hello{ID: id}}})
	attach(a, f)
	return a, start(t, a.Run)
}

func ready(n functions.Name, replicas ...string) snapshot.Snapshot {
	f := snapshot.Snapshot{Name: n, State: functions.Unloaded, Progress: functions.NoProgress, Forecast: functions.NoForecast}
	for _, id := range replicas {
		f.State = functions.Ready
		f.Replicas = append(f.Replicas, snapshot.Replica{ID: id, Endpoint: "http://10.0.0.1:8080"})
	}
	return f
}

// TestOneHub: updates of the hub reach an activator, and the activator's demand reaches
// the hub.
func TestOneHub(t *testing.T) {
	w := &wakes{}
	var applied atomic.Int64
	h := NewHub(HubOptions{Tokens: tokens(secret), Waker: w, Applied: func() { applied.Add(1) }})
	h.Publish(ready(name("m")), ready(name("n")))
	h.SetTable(&Table{Version: 7, Hosts: []Host{{Name: "m.example"}}})
	f := newFeed()
	a, _ := join(t, listen(t, h), "one", f)
	<-a.Synced()
	if p, ok := f.has(name("m")); !ok || p.State != functions.Unloaded {
		t.Fatalf("the activator has %+v, %v", p, ok)
	}
	f.want(activator.Demand{Name: name("m"), Queued: 3, Oldest: time.Now().Add(-time.Minute)})
	a.Wake(name("m"))
	testkit.Eventually(t, "the wake comes", func() bool { return w.asked(name("m")) })
	d := w.demand(name("m")) // it came with the wake
	if age := time.Since(d.Oldest); d.Queued != 3 || age < time.Minute || age > 2*time.Minute {
		t.Fatalf("demand %+v", d)
	}
	testkit.Eventually(t, "the table is applied", func() bool { v, n := h.OldestApplied(); return v == 7 && n == 1 && applied.Load() == 1 })

	h.Publish(ready(name("m"), "r1"))
	testkit.Eventually(t, "READY is told", func() bool { p, _ := f.has(name("m")); return len(p.Replicas) == 1 })
	f.fly(name("m"), "r1", 2)
	f.want(activator.Demand{Name: name("m"), Active: 2})
	testkit.Eventually(t, "its requests are counted", func() bool { return w.demand(name("m")).InFlight["r1"] == 2 })
	f.fly(name("m"), "r2", 1) // it answered before any snapshot listed it as READY
	f.want(activator.Demand{Name: name("m"), Active: 3})
	testkit.Eventually(t, "those of one that no picture names, too",
		func() bool { return w.demand(name("m")).InFlight["r2"] == 1 && w.demand(name("m")).InFlight["r1"] == 2 })

	h.Remove(name("n"))
	testkit.Eventually(t, "n is gone", func() bool { _, ok := f.has(name("n")); return !ok })
	h.AbortThrough("http://10.0.0.9:1")
	testkit.Eventually(t, "cut", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.cuts) == 1 })
}

// TestNodes: a loader's connection carries its heartbeat and pods, and the controller's
// updates to it.
func TestNodes(t *testing.T) {
	var mu sync.Mutex
	var beats []string
	var pods []Pod
	h := NewHub(HubOptions{
		Tokens: tokens(secret),
		Node: func(id string, hb functions.Heartbeat) {
			mu.Lock()
			defer mu.Unlock()
			beats = append(beats, id+hb.Version)
		},
		Pods: func(_ string, _ bool, ps []Pod) { mu.Lock(); defer mu.Unlock(); pods = append(pods, ps...) },
	})
	addr := listen(t, h)
	if h.SendToNode("node", Update{}) {
		t.Fatal("a node that is not there was told something")
	}
	told := make(chan Update, 16)
	c := NewClient(ClientOptions{
		Addr: addr, Token: secret, Hello: Hello{Kind: KindNode, ID: "node"},
		First: func() Report { return Report{Node: &functions.Heartbeat{Version: "v1"}, Pods: []Pod{{UID: "p"}}} },
		Down:  func(d Update) { told <- d },
	})
	start(t, c.Run)
	if d := <-told; !d.FullSync {
		t.Fatalf("the first message is %+v", d)
	}
	c.Send(Report{Pods: []Pod{{UID: "q", Status: functions.ReplicaStatus{State: functions.Ready}}}})
	testkit.Eventually(t, "both pods", func() bool { mu.Lock(); defer mu.Unlock(); return len(pods) == 2 && len(beats) == 1 })
	if !h.SendToNode("node", Update{Peers: &[]functions.Peer{}, Stop: []Stop{{UID: "p", Seconds: 3}}}) {
		t.Fatal("the node is there")
	}
	if d := <-told; d.Peers == nil || len(*d.Peers) != 0 || len(d.Stop) != 1 || d.Stop[0].Seconds != 3 {
		t.Fatalf("told %+v", d)
	}
	if c.Leader() != addr {
		t.Fatalf("the leader is %q, want %q", c.Leader(), addr)
	}
}

// TestMetrics: connected peers show in the metrics.
func TestMetrics(t *testing.T) {
	h := NewHub(HubOptions{Tokens: tokens(secret)})
	addr := listen(t, h)
	a, stop := join(t, addr, "one", newFeed())
	<-a.Synced()
	value := func(metric, label string) float64 {
		found := -1.0
		h.Samples(func(m string, v float64, labels ...string) {
			if m == metric && (label == "" || labels[0] == label) {
				found = v
			}
		})
		return found
	}
	if n, m := value("thaw_control_streams", "activator"), value("thaw_control_streams", "node"); n != 1 || m != 0 {
		t.Errorf("%v activators, %v nodes", n, m)
	}
	stop()
	testkit.Eventually(t, "it is gone, and believed", func() bool {
		return value("thaw_control_streams", "activator") == 0 && value("thaw_activators_in_grace", "") == 1
	})
}
