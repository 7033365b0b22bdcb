package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
	"github.com/thaw-dev/thaw/testkit/scenario"
)

// sceneImage is the image of the engine in testdata/scene.
const sceneImage = "dev.local/scene:test"

// sceneNodes maps the scenarios' node names to nodes of the cluster. The first node has
// thaw's own pods and no GPU, so it is never the lost one.
var sceneNodes = map[string]string{"a": "node2", "b": "node3"}

// TestClusterScenes runs the scenarios of testkit/scenario on Kubernetes, as
// they run on one machine and in virtual time: two nodes with their own kubelets, models
// that are Knative Services, requests through thaw's gateway. The bounds of the scenarios
// are the same. Boot is a minute, which is what Kubernetes takes to declare a node lost
// (50 s without heartbeats).
//
// Some scenarios are left out:
//
//	one, two, none                       nine minutes of windows
//	busy functions take turns            a quarter of an hour
//	no crash loop                        a minute of ten requests a second
//	no waiters: called off before        tested by called-off in TestCluster, by stalling staging
//	its process
//	an empty catalogue is looked at      impossible: no file can be misread, and each Service
//	twice                                is deleted by itself and on purpose
func TestClusterScenes(t *testing.T) {
	s := open(t)
	t.Cleanup(func() { nodes(t, "leave") })
	s.install(t)
	if !nodes(t, "join") {
		t.FailNow()
	}
	s.patchGPUs(t, "node1", 0)
	for _, node := range sceneNodes {
		s.patchGPUs(t, node, 1)
		until(t, time.Minute, "a loader on "+node, func() (bool, string) {
			for _, p := range s.thawPods("loader") {
				if p.Spec.NodeName == node && ready(p) {
					return true, ""
				}
			}
			return false, fmt.Sprint(len(s.thawPods("loader")), " loaders")
		})
	}
	t.Run("peers", func(t *testing.T) { peers(s.space(t)) })
	g := s.gatekeeper(t)
	scenario.Run(t, scenario.Options{Boot: time.Minute}, func(t *testing.T, _ time.Duration, story scenario.Story) {
		x := newScene(t, s, g)
		defer x.end()
		story(t, x)
	})
	s.told(t)
	nodes(t, "leave")
	t.Run("uninstall", func(t *testing.T) { s.uninstall(t) })
}

// nodes joins the scenarios' nodes to the cluster or removes them.
func nodes(t *testing.T, verb string) bool {
	var all sync.WaitGroup
	for _, node := range sceneNodes {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if out, err := exec.CommandContext(ctx, "../../../deploy/cluster/node", verb, node).CombinedOutput(); err != nil {
				t.Errorf("node %s %s: %v\n%s", verb, node, err, out)
			}
		})
	}
	all.Wait()
	return !t.Failed()
}

func (s *suite) patchGPUs(t *testing.T, node string, n int) {
	amount := map[string]string{knative.GPU.String(): strconv.Itoa(n)}
	s.patch(t, "node", "", node, map[string]any{"status": map[string]any{"capacity": amount, "allocatable": amount}}, "status")
}

// gatekeeper answers the engines: whether they may start, and when a request ends.
type gatekeeper struct {
	at string

	mu     sync.Mutex
	scenes map[string]*scene // by namespace
}

func (s *suite) gatekeeper(t *testing.T) *gatekeeper {
	host, _, _ := net.SplitHostPort(blobsAt)
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	g := &gatekeeper{at: "http://" + l.Addr().String(), scenes: map[string]*scene{}}
	server := &http.Server{Handler: http.HandlerFunc(g.serve)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
	return g
}

func (g *gatekeeper) serve(w http.ResponseWriter, r *http.Request) {
	ns, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	g.mu.Lock()
	x := g.scenes[ns]
	g.mu.Unlock()
	if x == nil {
		http.Error(w, "that story is over", http.StatusGone)
		return
	}
	q := r.URL.Query()
	switch verb {
	case "start":
		if cause := x.begun(q.Get("model"), q.Get("pod")); cause != "" {
			http.Error(w, cause, http.StatusConflict)
		}
	case "hold":
		if id, err := strconv.Atoi(q.Get("id")); err == nil {
			x.hold(r.Context(), id)
		}
	}
}

// scene implements the scenarios' world in a namespace of the cluster.
type scene struct {
	*space
	keeper   *gatekeeper
	api      *api.Client
	deployed map[string]bool
	ending   func()

	mu     sync.Mutex
	asks   []*asked
	causes map[string]string
	pods   map[string]string // pod name to model
	starts map[string]int    // engine starts by pod
	told   map[string]string
	all    sync.WaitGroup
}

// asked is one request.
type asked struct {
	model      string
	cancel     context.CancelFunc
	free       chan struct{} // closed when the request is to end
	held, over bool
}

func newScene(t *testing.T, s *suite, g *gatekeeper) *scene {
	x := &scene{space: s.space(t), keeper: g, deployed: map[string]bool{}, causes: map[string]string{}, pods: map[string]string{},
		starts: map[string]int{}, told: map[string]string{}}
	g.mu.Lock()
	g.scenes[x.ns] = x
	g.mu.Unlock()
	x.api = s.controller(t)
	w, err := s.watching.CoreV1().Pods(x.ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Added {
				x.mu.Lock()
				x.pods[p.Name] = p.Labels["serving.knative.dev/service"]
				x.mu.Unlock()
			}
		}
	}()
	x.ending = func() {
		w.Stop()
		<-done
	}
	x.until("every node is what it was before the first story", x.whole)
	return x
}

// controller returns a client of the controller's API with all rights.
func (s *suite) controller(t *testing.T) *api.Client {
	t.Helper()
	cluster, err := knative.Open(knative.Access{Kubeconfig: s.kubeconfig, Warn: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	way, err := cluster.Controller()
	if err != nil {
		t.Fatal(err)
	}
	key, err := cluster.Admin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := api.NewClientOver(way, "http://thaw-controller", key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// whole reports whether thaw and Kubernetes consider every node ready and empty. After a
// scenario that lost a node Kubernetes is slow to take it back, and pods still ending
// there would change where the next ones are placed.
func (s *scene) whole() (bool, string) {
	nodes, err := api.GetItems[api.Node](s.Context(), s.api, "/api/v1/nodes")
	if err != nil {
		return false, err.Error()
	}
	for _, name := range sceneNodes {
		k, err := s.core.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, t := range k.Spec.Taints {
			if strings.HasPrefix(t.Key, "node.kubernetes.io/") {
				return false, name + " has the taint " + t.ToString()
			}
		}
		left, err := s.core.CoreV1().Pods("").List(s.Context(),
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + name, LabelSelector: "serving.knative.dev/revision"})
		if err != nil {
			return false, err.Error()
		}
		if len(left.Items) > 0 {
			return false, fmt.Sprintf("%s still has %s/%s", name, left.Items[0].Namespace, left.Items[0].Name)
		}
		known := slices.ContainsFunc(nodes, func(n api.Node) bool { return n.ID == name && !n.Lost && len(n.GPUs) > 0 && n.Replicas == 0 })
		if !known {
			return false, fmt.Sprintf("%s is not whole among %+v", name, nodes)
		}
	}
	return true, ""
}

// end removes the models, so that the GPUs are free for the next scenario.
func (s *scene) end() {
	for node := range sceneNodes {
		s.Return(node)
	}
	for _, m := range []string{"x", "y", "z"} {
		s.Leave(m)
	}
	s.all.Wait()
	if s.Failed() {
		if events, err := s.api.Events(context.Background(), "", ""); err == nil {
			for _, e := range events {
				if strings.HasPrefix(e.Function, s.ns+"/") {
					s.Logf("  %s %s %s %s %s %s %s", e.At.Format("05.000"), e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message)
				}
			}
		}
		s.space.told(context.Background())
	}
	s.ending()
	s.api.Close()
	s.keeper.mu.Lock()
	delete(s.keeper.scenes, s.ns)
	s.keeper.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.core.CoreV1().Namespaces().Delete(ctx, s.ns, metav1.DeleteOptions{})
	until(s.T, 90*time.Second, "nothing of it runs", func() (bool, string) {
		s.core.CoreV1().Pods(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{})
		list, err := s.core.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{})
		left, known := s.api.Replicas(ctx)
		n := 0
		for _, r := range left {
			if strings.HasPrefix(r.Function, s.ns+"/") {
				n++
			}
		}
		return err == nil && known == nil && len(list.Items) == 0 && n == 0, fmt.Sprint(err, known, n)
	})
}

func (s *scene) named(m string) functions.Name { return functions.Name{Team: s.ns, Name: m} }

func (s *scene) Deploy(models ...*functions.Model) {
	s.Helper()
	var docs []string
	gone := s.deployed
	s.deployed = map[string]bool{}
	for _, m := range models {
		doc, err := catalog.EncodeYAML(m)
		if err != nil {
			s.Fatal(err)
		}
		docs = append(docs, string(doc))
		s.deployed[m.Metadata.Name] = true
		delete(gone, m.Metadata.Name)
	}
	for m := range gone {
		if _, errs, code := s.program(s.Context(), "thaw-knative", "rm", "--namespace", s.ns, m); code != 0 {
			s.Fatal(errs)
		}
	}
	if len(docs) == 0 {
		return
	}
	s.deploy(strings.Join(docs, "---\n"), "--image", "command="+sceneImage, "--skip-preflight") // some models never fit
	for _, m := range models {
		s.ready(m.Metadata.Name)
		s.until("the controller knows "+m.Metadata.Name, func() (bool, string) {
			_, err := s.api.Function(s.Context(), s.named(m.Metadata.Name))
			return err == nil, fmt.Sprint(err)
		})
	}
}

func (s *scene) Ask(m string, n int) {
	s.Helper()
	s.mu.Lock()
	delete(s.told, m)
	for range n {
		ctx, cancel := context.WithTimeout(s.Context(), 3*time.Minute)
		a := &asked{model: m, cancel: cancel, free: make(chan struct{})}
		id := len(s.asks)
		s.asks = append(s.asks, a)
		s.all.Go(func() {
			defer cancel()
			got := s.do(ctx, "", "/v1/completions", fmt.Sprintf(`{"model":"%s/%s","prompt":"hold %d","max_tokens":1}`, s.ns, m, id))
			s.mu.Lock()
			defer s.mu.Unlock()
			a.over = true
			if got.err != nil {
				s.told[m] = got.err.Error()
			} else if got.status != http.StatusOK {
				s.told[m] = got.body
			}
		})
	}
	s.mu.Unlock()
	s.until("the requests have come", func() (bool, string) {
		f, err := s.api.Function(s.Context(), s.named(m))
		if err != nil {
			return false, err.Error()
		}
		left := s.count(m, func(a *asked) bool { return !a.over })
		return f.Active+f.Queued >= left, fmt.Sprintf("%d active, %d queued of %d", f.Active, f.Queued, left)
	})
}

// count returns the number of requests for a model that satisfy so.
func (s *scene) count(m string, so func(*asked) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asks {
		if a.model == m && so(a) {
			n++
		}
	}
	return n
}

// hold keeps a request at an engine.
func (s *scene) hold(ctx context.Context, id int) {
	s.mu.Lock()
	if id < 0 || id >= len(s.asks) {
		s.mu.Unlock()
		return
	}
	a := s.asks[id]
	a.held = true
	s.mu.Unlock()
	select {
	case <-a.free:
	case <-ctx.Done():
		s.mu.Lock()
		a.held = false
		s.mu.Unlock()
	}
}

// begun records an engine start and returns the error with which it is to fail; "": none.
func (s *scene) begun(m, pod string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[pod] = m
	s.starts[pod]++
	return s.causes[m]
}

func (s *scene) Leave(m string) {
	s.mu.Lock()
	for _, a := range s.asks {
		if a.model == m {
			a.cancel()
		}
	}
	s.mu.Unlock()
	s.until("they have left", func() (bool, string) {
		n := s.count(m, func(a *asked) bool { return !a.over })
		return n == 0, fmt.Sprint(n)
	})
}

func (s *scene) Finish(m string) {
	s.Helper()
	var freed []*asked
	s.mu.Lock()
	for _, a := range s.asks {
		if a.model == m && a.held && !a.over {
			freed = append(freed, a)
			close(a.free)
		}
	}
	s.mu.Unlock()
	s.until("its requests end", func() (bool, string) {
		n := 0
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, a := range freed {
			if !a.over {
				n++
			}
		}
		return n == 0, fmt.Sprint(n)
	})
}

func (s *scene) Waiting(m string) int {
	return s.count(m, func(a *asked) bool { return !a.over && !a.held })
}

func (s *scene) Running(m string) int {
	return s.count(m, func(a *asked) bool { return !a.over && a.held })
}

func (s *scene) Refusal(m string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[m]
}

func (s *scene) Replicas(m string) (out []string) {
	list, err := s.api.Replicas(s.Context())
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range list {
		if r.Function != s.named(m).String() || r.State == functions.Draining || r.State.Over() {
			continue
		}
		node := r.Node
		for name, real := range sceneNodes {
			if real == node {
				node = name
			}
		}
		out = append(out, string(r.State)+"@"+node)
	}
	slices.Sort(out)
	return out
}

// Starts counts pods, and further engine starts within a pod.
func (s *scene) Starts(m string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pod, of := range s.pods {
		if of == m {
			n += max(1, s.starts[pod])
		}
	}
	return n
}

func (s *scene) Break(m, cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.causes[m] = cause
}

// Vanish stops a node's kubelet and loader. The node reports nothing, and its engines
// continue.
func (s *scene) Vanish(n string) { s.signal(n, syscall.SIGSTOP) }
func (s *scene) Return(n string) { s.signal(n, syscall.SIGCONT) }

// signal sends a signal to the kubelet and the loader of a node. All of a node's processes
// descend from its first one.
func (s *scene) signal(n string, sig syscall.Signal) {
	s.Helper()
	first := strings.Fields(string(s.read(filepath.Join(os.Getenv("CLUSTER_INSIDE"), sceneNodes[n], "first"))))
	if len(first) == 0 {
		s.Fatalf("node %s has no first process", sceneNodes[n])
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	parent, program := map[string]string{}, map[string]string{}
	for _, dir := range all {
		pid := filepath.Base(dir)
		if args := strings.Split(string(s.read(dir+"/cmdline")), "\x00"); len(args) > 1 {
			program[pid] = args[1]
		}
		stat := string(s.read(dir + "/stat"))
		if after := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]); len(after) > 1 {
			parent[pid] = after[1]
		}
	}
	found := 0
	for pid, what := range program {
		if what != "kubelet" && what != "loader" {
			continue
		}
		up := pid
		for up != "" && up != first[0] {
			up = parent[up]
		}
		if up == "" {
			continue
		}
		number, _ := strconv.Atoi(pid)
		if err := syscall.Kill(number, sig); err != nil {
			s.Fatalf("%s of %s: %v", what, sceneNodes[n], err)
		}
		found++
	}
	if found != 2 {
		s.Fatalf("%d of a kubelet and a loader on %s", found, sceneNodes[n])
	}
}

// read returns the contents of a file; nil if it no longer exists.
func (s *scene) read(file string) []byte {
	b, _ := os.ReadFile(file)
	return b
}

// Restart kills the leading controller with SIGKILL; the other one takes over.
func (s *scene) Restart() {
	s.Helper()
	holder := func() string {
		lease, err := s.of("lease", install.Namespace).Get(s.Context(), "thaw-controller", metav1.GetOptions{})
		if err != nil {
			return ""
		}
		pod, _, _ := strings.Cut(fmt.Sprint(field(lease, "spec.holderIdentity")), "_")
		return pod
	}
	was := holder()
	if err := s.core.CoreV1().Pods(install.Namespace).Delete(s.Context(), was,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		s.Fatal(err)
	}
	s.until("another controller leads, and knows what runs", func() (bool, string) {
		now := holder()
		for _, p := range s.thawPods("controller") {
			if p.Name == now && now != was {
				direct := s.through(p)
				direct.gateway = "http://" + net.JoinHostPort(p.Status.PodIP, "8090")
				a := direct.do(s.Context(), "", "/readyz", "")
				return a.status == http.StatusOK && strings.Contains(a.body, `"leads":true`), a.String()
			}
		}
		return false, now
	})
}

func (s *scene) Pass(d time.Duration) { <-time.After(d) }

func (s *scene) Model(name string, edit func(*functions.ModelSpec)) *functions.Model {
	m := functions.NewModel()
	m.Metadata.Name = name
	m.Spec.Engine, m.Spec.Health = functions.EngineCommand, "/health"
	m.Spec.Args = []string{"/scene", "{port}", name, s.keeper.at + "/" + s.ns}
	m.Spec.Resources.Memory, m.Spec.Resources.GPUs = 64<<20, 1
	m.Spec.Deadlines.Start = functions.Duration(30 * time.Second)
	if edit != nil {
		edit(&m.Spec)
	}
	return m
}
