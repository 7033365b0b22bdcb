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
	flights  map[string]int
	changed  map[functions.Name]bool
	cuts     []string
	news     newest.Signal // there was a call
}

func newFeed() *feed {
	return &feed{pictures: map[functions.Name]snapshot.Snapshot{}, demand: map[functions.Name]activator.Demand{}, flights: map[string]int{},
		changed: map[functions.Name]bool{}, news: newest.NewSignal()}
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

func (f *feed) Demand(all bool, yield func(activator.Demand)) {
	f.mu.Lock()
	var out []activator.Demand
	for n, d := range f.demand {
		if f.changed[n] || all && d.Active+d.Queued > 0 {
			out = append(out, d)
		}
	}
	clear(f.changed)
	f.mu.Unlock()
	for _, d := range out {
		yield(d)
	}
}

func (f *feed) DemandOf(n functions.Name) (activator.Demand, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := f.demand[n]
	return d, ok
}

func (f *feed) EachInFlight(_ functions.Name, yield func(string, int)) {
	f.mu.Lock()
	flights := maps.Clone(f.flights)
	f.mu.Unlock()
	for replica, n := range flights {
		yield(replica, n)
	}
}

func (f *feed) InFlightOf(_ functions.Name, replica string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flights[replica]
}

func (f *feed) want(d activator.Demand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.demand[d.Name], f.changed[d.Name] = d, true
}

func (f *feed) fly(replica string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flights[replica] = n
}

func (f *feed) has(n functions.Name) (snapshot.Snapshot, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pictures[n]
	return p, ok
}

// wakes is a Waker that records its calls.
type wakes struct {
	mu sync.Mutex
	of map[functions.Name]bool
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

// join dials an activator at addr and attaches f.
func join(t testing.TB, addr, id string, f Feed) (*Activator, func()) {
	t.Helper()
	a := NewActivator(ActivatorOptions{ClientOptions: ClientOptions{Addr: addr, Token: secret, Hello: Hello{ID: id}}})
	a.Attach(f)
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

func gather(h *Hub, all bool) map[functions.Name]activator.Demand {
	out := map[functions.Name]activator.Demand{}
	h.Demand(all, func(d activator.Demand) { out[d.Name] = d })
	return out
}

// TestOneHub: updates of the hub reach an activator, and the activator's demand reaches
// the hub.
func TestOneHub(t *testing.T) {
	w := &wakes{}
	var applied atomic.Int64
	h := NewHub(HubOptions{Token: secret, Waker: w, Applied: func() { applied.Add(1) }})
	h.Publish(ready(name("m")), ready(name("n")))
	h.SetTable(&Table{Version: 7, Hosts: []Host{{Name: "m.example"}}})
	f := newFeed()
	a, _ := join(t, listen(t, h), "one", f)
	<-a.Synced()
	if p, ok := f.has(name("m")); !ok || p.State != functions.Unloaded {
		t.Fatalf("the activator has %+v, %v", p, ok)
	}
	f.want(activator.Demand{Name: name("m"), Queued: 3, Oldest: time.Now().Add(-time.Minute)})
	a.DemandChanged()
	a.Wake(name("m"))
	testkit.Eventually(t, "the wake comes", func() bool { return w.asked(name("m")) })
	d := gather(h, false)[name("m")]
	if age := time.Since(d.Oldest); d.Queued != 3 || age < time.Minute || age > 2*time.Minute {
		t.Fatalf("demand %+v", d)
	}
	if d := gather(h, true)[name("m")]; d.Queued != 3 {
		t.Fatalf("it is not among all: %+v", d)
	}
	testkit.Eventually(t, "the table is applied", func() bool { v, n := h.OldestApplied(); return v == 7 && n == 1 && applied.Load() == 1 })

	h.Publish(ready(name("m"), "r1"))
	testkit.Eventually(t, "READY is told", func() bool { p, _ := f.has(name("m")); return len(p.Replicas) == 1 })
	f.fly("r1", 2)
	f.want(activator.Demand{Name: name("m"), Active: 2})
	a.DemandChanged()
	testkit.Eventually(t, "its requests are counted", func() bool { return h.InFlightOf(name("m"), "r1") == 2 })
	f.fly("r2", 1) // it answered before any snapshot listed it as READY
	f.want(activator.Demand{Name: name("m"), Active: 3})
	a.DemandChanged()
	testkit.Eventually(t, "those of one that no picture names, too",
		func() bool { return h.InFlightOf(name("m"), "r2") == 1 && h.InFlightOf(name("m"), "r1") == 2 })

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
		Token: secret,
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
	h := NewHub(HubOptions{Token: secret})
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
