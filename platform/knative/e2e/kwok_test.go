package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
	"github.com/thaw-dev/thaw/platform/mtls"
)

var (
	kwokNodes  = flag.Int("kwok-nodes", 120, "simulated nodes of TestClusterKwok")
	kwokModels = flag.Int("kwok-models", 4, "models of each of its four teams")
)

const (
	// sampled is the number of feasible nodes at which Kubernetes' scheduler stops looking.
	// With more nodes it may not see a preferred one.
	sampled = 100

	// The pod network of KWOK's nodes, as in deploy/cluster/kwok.
	farPods = "10.245.0.0/16"
	farGPUs = 8
)

// far is a cluster of nodes simulated by KWOK. The test plays each node's loader, which
// has a real control stream to the controller and reports for the shims of its pods, and
// one engine that answers at the addresses of all pods.
type far struct {
	*testing.T
	*suite
	controller string // HOST:PORT of the controller's Service
	token      string
	tls        *tls.Config // for a loader's control stream

	mu      sync.Mutex
	loaders map[string]*kwokLoader
	pods    map[types.UID]*kwokPod
	closed  map[string]time.Time // cordoned nodes, and since when
	wrong   []string             // violations of what must always hold
	byIP    map[string]*kwokPod
	answers map[string]int // by pod name

	rest  kwokCost // the controller's cost while nothing happens
	waves []kwokWave
}

// kwokPod is a pod as last observed, and when it was first observed.
type kwokPod struct {
	uid             types.UID
	namespace, name string
	model           string
	node, ip        string
	wanted          string // its preferred node; "": none
	gpus            int
	shim            bool
	made, scheduled time.Time
	gone, stopping  bool
	toldAt          time.Time // when it was told to stop
	unschedulable   string
}

// stop records that the pod was told to stop. far's mu must be held.
func (p *kwokPod) stop() {
	if !p.stopping {
		p.stopping, p.toldAt = true, time.Now()
	}
}

// kwokLoader plays the loader of a node.
type kwokLoader struct {
	f      *far
	node   string
	client *controlstream.Client
	stop   context.CancelFunc

	mu     sync.Mutex
	cached []functions.CachedModel
	said   map[string]functions.ReplicaStatus // last reported status by pod uid
	peers  int
}

// newKwokCluster starts KWOK, which ends with the test.
func newKwokCluster(t *testing.T, s *suite) *far {
	f := &far{T: t, suite: s, loaders: map[string]*kwokLoader{}, pods: map[types.UID]*kwokPod{}, closed: map[string]time.Time{},
		byIP: map[string]*kwokPod{}, answers: map[string]int{}}
	program, err := exec.LookPath("kwok")
	if err != nil {
		t.Fatalf("%v: deploy/cluster/build makes it", err)
	}
	stages, err := filepath.Abs("../../../deploy/cluster/fake/stages.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "route", "replace", "local", farPods, "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "route", "del", "local", farPods, "dev", "lo").Run() })
	said, err := os.Create(filepath.Join(t.TempDir(), "kwok.log"))
	if err != nil {
		t.Fatal(err)
	}
	kwok := exec.Command(program, "--kubeconfig", s.kubeconfig, "--config", stages, "--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-ip", "10.88.0.1", "--cidr", farPods,
		"--node-lease-duration-seconds", "80")
	kwok.Stdout, kwok.Stderr = said, said
	kwok.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := kwok.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kwok.Process.Kill()
		kwok.Wait()
		if b, _ := os.ReadFile(said.Name()); t.Failed() {
			for line := range strings.Lines(string(b)) {
				if strings.Contains(line, `"level":"ERROR"`) {
					t.Logf("KWOK: %s", line)
				}
			}
		}
		said.Close()
	})

	f.engine()
	f.watch()
	f.link()
	return f
}

// grow creates the nodes and waits for them and their loaders.
func (f *far) grow(nodes int) {
	t, s := f.T, f.suite
	t.Helper()
	began := time.Now()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.core.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "type=kwok"})
	})
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("fake-%d", i+1))
	}
	each(16, names, func(name string) {
		if err := f.node(name); err != nil {
			t.Errorf("node %s: %v", name, err)
		}
	})
	until(t, 5*time.Minute, "all nodes are ready, and their loaders linked", func() (bool, string) {
		list, err := s.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "type=kwok", ResourceVersion: "0"})
		if err != nil {
			return false, err.Error()
		}
		ready, linked := 0, 0
		for i := range list.Items {
			if nodeReady(&list.Items[i]) {
				ready++
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, l := range f.loaders {
			if l.client.Connected() {
				linked++
			}
		}
		return ready == nodes && linked == nodes, fmt.Sprintf("%d ready, %d linked", ready, linked)
	})
	t.Logf("%d nodes and their loaders after %s", nodes, time.Since(began).Round(time.Millisecond))
}

// each calls f for all items, at most lanes at a time.
func each[T any](lanes int, all []T, f func(T)) {
	var wg sync.WaitGroup
	free := make(chan struct{}, lanes)
	for _, x := range all {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			f(x)
		})
	}
	wg.Wait()
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (f *far) until(what string, ok func() (bool, string)) {
	f.Helper()
	until(f.T, 2*time.Minute, what, ok)
}

// node creates a node with its loader.
func (f *far) node(name string) error {
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"),
		corev1.ResourcePods: resource.MustParse("110"), knative.GPU: *resource.NewQuantity(farGPUs, resource.DecimalSI),
	}
	_, err := f.core.CoreV1().Nodes().Create(f.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			Labels: map[string]string{"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"},
		},
		// As on cloud GPU nodes, only pods that request a GPU are admitted.
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: string(knative.GPU), Value: "present", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: has, Allocatable: has},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	f.loader(name)
	return nil
}

// link reads the controller's address, token and certificates for the loaders.
func (f *far) link() {
	secret, err := f.core.CoreV1().Secrets(install.Namespace).Get(f.Context(), knative.ControlTLSSecret, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.token = strings.TrimSpace(string(secret.Data[knative.TokenKey]))
	id, err := mtls.Read(secret.Data["ca.crt"], mtls.Leaf{Cert: secret.Data["loader.crt"], Key: secret.Data["loader.key"]})
	if err != nil {
		f.Fatal(err)
	}
	f.tls = mtls.Client(id, controlstream.NameController)
	f.controller = "thaw-controller." + install.Namespace + ".svc.cluster.local:8090"
}

// loader starts the loader of a node.
func (f *far) loader(name string) {
	ctx, stop := context.WithCancel(f.Context())
	l := &kwokLoader{f: f, node: name, stop: stop, said: map[string]functions.ReplicaStatus{}}
	l.client = controlstream.NewClient(controlstream.ClientOptions{
		Addr: f.controller, Token: f.token, TLS: func() (*tls.Config, error) { return f.tls.Clone(), nil },
		Hello: controlstream.Hello{Kind: controlstream.KindNode, ID: name, Version: "far"},
		First: l.first, Down: l.hear,
	})
	f.mu.Lock()
	f.loaders[name] = l
	f.mu.Unlock()
	var parts sync.WaitGroup
	parts.Go(func() { l.client.Run(ctx) })
	parts.Go(func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				hb := l.heartbeat()
				l.client.Send(controlstream.Report{Node: &hb})
			}
		}
	})
	f.Cleanup(func() {
		stop()
		parts.Wait()
	})
}

func (l *kwokLoader) heartbeat() functions.Heartbeat {
	l.mu.Lock()
	defer l.mu.Unlock()
	return functions.Heartbeat{
		AgentID: l.node, State: functions.NodeIdle, Version: "far", Life: "1", Memory: functions.Capacity{Total: 512 << 30},
		Cached: slices.Clone(l.cached), PeerURL: "https://" + l.node + ":8091", GPUs: []functions.GPU{}, Models: []functions.ReplicaStatus{},
	}
}

func (l *kwokLoader) first() controlstream.Report {
	hb := l.heartbeat()
	up := controlstream.Report{Node: &hb}
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, st := range l.said {
		up.Pods = append(up.Pods, controlstream.Pod{UID: uid, Status: st})
	}
	return up
}

// say reports a pod's status as its shim would.
func (l *kwokLoader) say(p types.UID, st functions.ReplicaStatus) {
	l.mu.Lock()
	l.said[string(p)] = st
	l.mu.Unlock()
	l.client.Send(controlstream.Report{Pods: []controlstream.Pod{{UID: string(p), Status: st}}})
}

// hear handles an update of the controller: models are staged and engines end at once.
func (l *kwokLoader) hear(m controlstream.Update) {
	if m.Peers != nil {
		l.mu.Lock()
		l.peers = len(*m.Peers)
		l.mu.Unlock()
	}
	for _, r := range m.Prefetch {
		l.mu.Lock()
		has := slices.ContainsFunc(l.cached, func(c functions.CachedModel) bool { return c.Source == r.Spec.Source })
		if !has {
			l.cached = append(l.cached,
				functions.CachedModel{Source: r.Spec.Source, Digest: r.Spec.Source, Tier: functions.TierNVMe, Bytes: 16 << 30})
		}
		l.mu.Unlock()
		if !has {
			hb := l.heartbeat()
			l.client.Send(controlstream.Report{Node: &hb})
		}
	}
	for _, stop := range m.Stop {
		l.f.mu.Lock()
		p := l.f.pods[types.UID(stop.UID)]
		if p != nil {
			p.stop()
		}
		l.f.mu.Unlock()
		if p != nil {
			l.say(p.uid, functions.ReplicaStatus{State: functions.Unloaded, Percent: -1})
		}
	}
}

// watch observes all pods of models.
func (f *far) watch() {
	ctx, stop := context.WithCancel(f.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(f.watching, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "serving.knative.dev/revision" }))
	pods := factory.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.seen(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { f.seen(o.(*corev1.Pod)) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			f.left(o.(*corev1.Pod))
		},
	}); err != nil {
		f.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	f.Cleanup(func() {
		stop()
		factory.Shutdown()
	})
}

// seen records an observed pod.
func (f *far) seen(k *corev1.Pod) {
	now := time.Now()
	f.mu.Lock()
	p := f.pods[k.UID]
	if p == nil {
		p = &kwokPod{uid: k.UID, namespace: k.Namespace, name: k.Name, model: k.Labels["serving.knative.dev/service"], made: now}
		if a := k.Spec.Affinity; a != nil && a.NodeAffinity != nil {
			for _, term := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
				for _, m := range term.Preference.MatchFields {
					p.wanted = m.Values[0]
				}
			}
		}
		for _, c := range k.Spec.Containers {
			if q, ok := c.Resources.Limits[knative.GPU]; ok {
				p.gpus += int(q.Value())
			}
			p.shim = p.shim || slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "THAW_MODEL" })
		}
		f.pods[k.UID] = p
	}
	if p.node == "" && k.Spec.NodeName != "" {
		p.node, p.scheduled = k.Spec.NodeName, now
		if since := f.closed[p.node]; !since.IsZero() && k.CreationTimestamp.Time.After(since.Add(3*time.Second)) {
			f.wrong = append(f.wrong, fmt.Sprintf("pod %s/%s came to %s, which was closed %s before", p.namespace, p.name, p.node, now.Sub(since)))
		}
		f.add(p.node)
	}
	for _, c := range k.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			p.unschedulable = c.Message
		}
	}
	l := f.loaders[p.node]
	came := p.ip == "" && k.Status.PodIP != "" && k.DeletionTimestamp == nil
	if came {
		p.ip = k.Status.PodIP
		f.byIP[p.ip] = p
	}
	stopping := k.DeletionTimestamp != nil && !p.stopping
	if stopping {
		p.stop()
	}
	f.mu.Unlock()
	if l == nil || !p.shim {
		return
	}
	if came {
		l.say(p.uid, functions.ReplicaStatus{State: functions.Ready, Percent: -1, Endpoint: "http://" + net.JoinHostPort(k.Status.PodIP, "8012")})
	}
	if stopping {
		l.say(p.uid, functions.ReplicaStatus{State: functions.Unloaded, Percent: -1})
	}
}

// add checks that no GPU of a node is used twice. mu must be held.
func (f *far) add(node string) {
	if f.loaders[node] == nil {
		return
	}
	held := 0
	var who []string
	for _, p := range f.pods {
		if p.node == node && !p.gone && p.gpus > 0 {
			held += p.gpus
			who = append(who, fmt.Sprintf("%s (%d)", p.name, p.gpus))
		}
	}
	if held > farGPUs {
		f.wrong = append(f.wrong, fmt.Sprintf("%d GPUs of %s are held by %s", held, node, strings.Join(who, ", ")))
	}
}

func (f *far) left(k *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pods[k.UID]
	if p == nil {
		return
	}
	p.gone = true
	if f.byIP[p.ip] == p {
		delete(f.byIP, p.ip)
	}
	if l := f.loaders[p.node]; l != nil && p.shim {
		l.mu.Lock()
		delete(l.said, string(p.uid))
		l.mu.Unlock()
		l.client.Send(controlstream.Report{Pods: []controlstream.Pod{{UID: string(p.uid), Gone: true}}})
	}
}

// engine answers for all pods: API requests, Knative's probes, and everything else with
// the pod's name.
func (f *far) engine() {
	l, err := net.Listen("tcp", ":8012")
	if err != nil {
		f.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("K-Network-Probe") != "" {
			io.WriteString(w, "queue")
			return
		}
		io.Copy(io.Discard, r.Body)
		at, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		f.mu.Lock()
		p := f.byIP[at]
		name := ""
		if p != nil {
			name = p.name
			f.answers[name]++
		}
		f.mu.Unlock()
		if p == nil { // refuse as an address without a pod would
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path != "/v1/chat/completions" {
			fmt.Fprintln(w, name)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"chatcmpl-1","object":"chat.completion","created":%d,"model":"far","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, time.Now().Unix(), name)
	})}
	var ended sync.WaitGroup
	ended.Go(func() { server.Serve(l) })
	f.Cleanup(func() {
		server.Close()
		ended.Wait()
	})
}

// check fails the test if a violation was recorded.
func (f *far) check(when string) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.wrong {
		f.Errorf("%s: %s", when, w)
	}
	f.wrong = nil
}

// live lists the pods of a model that were not told to stop.
func (f *far) live(team, model string) []kwokPod {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []kwokPod
	for _, p := range f.pods {
		if p.namespace == team && p.model == model && !p.gone && !p.stopping {
			out = append(out, *p)
		}
	}
	return out
}

// cordon cordons or uncordons nodes.
func (f *far) cordon(names []string, is bool) {
	each(16, names, func(name string) {
		f.patch(f.T, "node", "", name, map[string]any{"spec": map[string]any{"unschedulable": is}})
		f.mu.Lock()
		defer f.mu.Unlock()
		if is {
			f.closed[name] = time.Now()
		} else {
			delete(f.closed, name)
		}
	})
}

// kwokModel is one model of the test.
type kwokModel struct {
	sp   *space
	name string
	gpus int
	hand bool   // a Service written by hand, without the shim
	disk string // its ephemeral storage, which thaw does not consider
}

func (m kwokModel) String() string { return m.sp.ns + "/" + m.name }

// ask sends one request, which a pod of the model must answer.
func (f *far) ask(m kwokModel) answer {
	var a answer
	if m.hand {
		a = m.sp.do(f.Context(), m.sp.host(m.name), "/", "")
	} else {
		a = m.sp.byModel(m.name, 1, false)
	}
	if a.err == nil && (a.status != http.StatusOK || !strings.Contains(a.body, m.name+"-")) {
		a.err = errors.New("not an answer of " + m.String())
	}
	return a
}

// hand creates a Knative Service written by hand, without a model file.
func (f *far) hand(m kwokModel) error {
	limits := map[string]any{string(knative.GPU): fmt.Sprint(m.gpus)}
	if m.disk != "" {
		limits[string(corev1.ResourceEphemeralStorage)] = m.disk
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service",
		"metadata": map[string]any{"name": m.name, "namespace": m.sp.ns, "annotations": map[string]string{knative.IngressAnnotation: knative.IngressClass}},
		"spec": map[string]any{"template": map[string]any{
			// With the label, the webhook is called for its pods, as for those of models.
			"metadata": map[string]any{"labels": map[string]string{knative.ModelLabel: m.name}, "annotations": map[string]string{
				knative.ClassAnnotation: knative.AutoscalerClass, "autoscaling.knative.dev/initial-scale": "0", "autoscaling.knative.dev/min-scale": "0",
				"autoscaling.knative.dev/max-scale": "1", "autoscaling.knative.dev/scale-to-zero-pod-retention-period": "10m",
			}},
			"spec": map[string]any{"containers": []any{map[string]any{"image": "dev.local/hello:test", "resources": map[string]any{"limits": limits}}}},
		}},
	})
	if err != nil {
		return err
	}
	return f.core.Discovery().RESTClient().Post().AbsPath("/apis/serving.knative.dev/v1/namespaces", m.sp.ns, "services").
		SetHeader("Content-Type", "application/json").Body(body).Do(f.Context()).Error()
}

// TestClusterKwok runs thaw on simulated nodes: 500 of them in make bench-kwok, on an
// otherwise idle machine.
func TestClusterKwok(t *testing.T) {
	s := open(t)
	for _, f := range knative.Features {
		s.patch(t, "configmap", "knative-serving", f.Map, map[string]any{"data": map[string]string{f.Key: f.Value}})
	}
	// Only the node with a kubelet runs a real loader; the others are played.
	if out, errs, code := s.program(t.Context(), "thaw-knative", "install", "--image", image, "--keep-free", "0",
		"--loaders", "kubernetes.io/hostname=node1",
		"--wait", "--timeout", "3m"); code != 0 {
		t.Fatalf("install: exit %d\n%s%s", code, out, errs)
	}
	t.Cleanup(func() { s.told(t) })
	service, err := s.core.CoreV1().Services(install.Namespace).Get(t.Context(), "thaw", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.gateway = "http://" + service.Spec.ClusterIP
	until(t, time.Minute, "an answer of the gateway", func() (bool, string) {
		r, err := client.Get(s.gateway + "/v1/models")
		if err != nil {
			return false, err.Error()
		}
		r.Body.Close()
		return r.StatusCode < 500, r.Status
	})
	t.Run("fleet", func(t *testing.T) { fleet(newKwokCluster(t, s)) })
	t.Run("uninstall", func(t *testing.T) { s.uninstall(t) })
}

// fleet runs the steps of the test in order.
func fleet(f *far) {
	t, s := f.T, f.suite
	began := time.Now()
	told := func(format string, args ...any) {
		t.Helper()
		t.Logf("%5.1f s  %s", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	const teams = 4
	sizes := []int{1, 8, 2, 1, 4, 1}
	var models, late []kwokModel
	var of []*space
	for i := range teams {
		sp := s.team(t, fmt.Sprintf("far-%d", i))
		of = append(of, sp)
		sum := 0
		for j := range *kwokModels {
			m := kwokModel{sp: sp, name: fmt.Sprintf("m%d", j), gpus: sizes[j%len(sizes)], hand: i == 0}
			sum += m.gpus
			models = append(models, m)
		}
		// The quota includes the late models, and the pods of a lost node, which Kubernetes
		// still counts.
		f.quota(sp, sum+16+farGPUs)
	}
	// One team has a smaller quota than its models need, and the late models are requested
	// when the nodes are full.
	tight := s.team(t, "tight")
	f.quota(tight, 2)
	var few []kwokModel
	for j := range 3 {
		few = append(few, kwokModel{sp: tight, name: fmt.Sprintf("t%d", j), gpus: 1})
	}
	for j := range 4 {
		late = append(late, kwokModel{sp: of[1], name: fmt.Sprintf("late%d", j), gpus: 4})
	}
	picky := kwokModel{sp: of[0], name: "picky", gpus: 1, hand: true, disk: "1Gi"}
	all := slices.Concat(models, few, late, []kwokModel{picky})
	f.grow(*kwokNodes)
	told("nodes")
	f.deploy(all)
	told("%d Services are made", len(all))
	f.atRest(all)
	told("Services are ready")
	f.check("at rest")
	f.cost("at rest", 3*time.Second)

	// Wakes half of the models at once.
	var first, second []kwokModel
	for i, m := range models {
		if i%2 == 0 {
			first = append(first, m)
		} else {
			second = append(second, m)
		}
	}
	f.check("before the first half")
	w := f.wave("woken at once", first)
	if w.Hinted*4 < w.Asked*3 {
		t.Errorf("the API server asked where %d of %d pods are wanted", w.Hinted, w.Asked)
	}
	if *kwokNodes <= sampled && w.AsChosen < w.Hinted {
		t.Errorf("%d of %d pods are where the orchestrator placed them", w.AsChosen, w.Hinted)
	}
	f.check("after the first half")
	told("%d woken", len(first))

	// Wakes the rest while the leading controller is deleted. Running replicas stay.
	before := f.standing(first)
	f.wave("woken at once, and the controller restarts", second, func() {
		pod, _, err := s.leader(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		if err := s.core.CoreV1().Pods(install.Namespace).Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	f.check("after the restart")
	f.same("a controller that has restarted", first, before)
	told("%d woken, and the controller restarted", len(second))

	// A team with a quota of two GPUs requests three models: the oldest is evicted.
	for _, m := range few {
		if a := f.ask(m); a.err != nil {
			t.Errorf("%s: %s", m, a)
		}
	}
	held := 0
	for _, m := range few {
		held += len(f.live(m.sp.ns, m.name))
	}
	if held > 2 {
		t.Errorf("a team with a quota of 2 GPUs has %d pods", held)
	}
	f.check("after the quota")
	told("quota")

	f.pick(picky)
	told("where the orchestrator did not know")
	f.near(first)
	told("back to where the weights are")
	f.full(models, late)
	told("full")
	f.lost(models)
	told("a node lost")
	f.peers()
	f.check("at the end")
	told("done")
	if *benchOut != "" && !t.Failed() {
		f.report(len(all))
	}
}

// kwokResult is the result that make bench-kwok writes.
type kwokResult struct {
	report.Provenance
	Nodes  int          `json:"nodes"`
	Models int          `json:"models"`
	Rest   kwokCost     `json:"at_rest"`
	Waves  []kwokWave   `json:"waves"`
	Goals  report.Goals `json:"goals"`
}

const aboutKwok = "A real control plane of deploy/cluster with real Knative and thaw on this machine; the nodes are KWOK's, with 8 GPUs " +
	"each, their loaders and engines are played by the test, which shares the cores"

func (f *far) report(models int) {
	f.Helper()
	m := kwokResult{Provenance: report.NewProvenance("KwokBench", nil, time.Now()), Nodes: *kwokNodes, Models: models, Rest: f.rest,
		Waves: f.waves}
	m.Command, m.Commit = fmt.Sprintf("make bench-kwok KWOK_NODES=%d KWOK_MODELS=%d", *kwokNodes, *kwokModels), *benchCommit
	memory := f.rest.Memory
	t := &report.Table{Head: []string{"models asked at once", "pod made p50", "p99", "scheduled p50", "p99", "answered p50", "p99", "pods where the orchestrator placed them", "queue at most", "controller's processor time", "its memory"}}
	for _, w := range f.waves {
		memory = max(memory, w.Cost.Memory)
		cpu := "(another leads)"
		if w.Cost.Processor > 0 {
			cpu = fmt.Sprintf("%.1f s of %.1f s", w.Cost.Processor, w.Cost.Over)
		}
		t.Add(fmt.Sprintf("%d, %s", w.Asked, w.What), report.Millis(w.Made.P50), report.Millis(w.Made.P99), report.Millis(w.Scheduled.P50),
			report.Millis(w.Scheduled.P99),
			report.Millis(w.Answered.P50), report.Millis(w.Answered.P99), fmt.Sprintf("%d of %d", w.AsChosen, w.Asked), fmt.Sprint(w.Queue), cpu,
			fmt.Sprintf("%d MiB", w.Cost.Memory>>20))
	}
	rest := &report.Table{Head: []string{"at rest", ""}}
	rest.Add("nodes, each with a loader that speaks every 2 s", fmt.Sprint(m.Nodes))
	rest.Add("models", fmt.Sprint(models))
	rest.Add("controller's share of a core", fmt.Sprintf("%.1f %%", 100*f.rest.Processor/f.rest.Over))
	rest.Add("controller's memory", fmt.Sprintf("%d MiB", f.rest.Memory>>20))
	m.Goals.Add(memory < 200<<20, "controller's memory", "under 200 MiB", fmt.Sprintf("%d MiB", memory>>20))
	parts := append(m.Goals.Parts(), report.Part{Heading: "Asked at once", Table: t}, report.Part{Heading: "At rest", Table: rest})
	if err := report.Write(*benchOut, "kwok", m, m.Page("Many nodes", aboutKwok, nil, parts)); err != nil {
		f.Fatal(err)
	}
	for _, p := range parts {
		fmt.Printf("%s\n\n", p.Heading)
		p.Table.Text(os.Stdout)
		fmt.Println()
	}
}

// quota bounds the GPUs of a team.
func (f *far) quota(sp *space, gpus int) {
	f.Helper()
	if _, err := f.core.CoreV1().ResourceQuotas(sp.ns).Create(f.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests." +
			knative.GPU: *resource.NewQuantity(int64(gpus), resource.DecimalSI)}},
	}, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

// deploy creates the Services of all models.
func (f *far) deploy(models []kwokModel) {
	f.Helper()
	files := map[*space]*strings.Builder{}
	var hand []kwokModel
	for _, m := range models {
		if m.hand {
			hand = append(hand, m)
			continue
		}
		if files[m.sp] == nil {
			files[m.sp] = &strings.Builder{}
		}
		fmt.Fprintf(files[m.sp], "---\n%s",
			m.sp.model(m.name, "source: az://far/models/"+m.sp.ns+"/"+m.name, "engine: ember", "scale: {max: 1, idle: 30m}", gpu(m.gpus)))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		each(4, hand, func(m kwokModel) {
			if err := f.hand(m); err != nil {
				f.Errorf("%s: %v", m, err)
			}
		})
	})
	for sp, text := range files {
		wg.Go(func() {
			at := filepath.Join(f.TempDir(), "models.yaml")
			if err := os.WriteFile(at, []byte(strings.TrimPrefix(text.String(), "---\n")), 0o600); err != nil {
				f.Error(err)
				return
			}
			if out, errs, code := f.program(f.Context(), "thaw", "deploy", "--to", "knative", "-f", at, "--namespace", sp.ns, "--thaw-image", image,
				"--skip-preflight", "--timeout", "10m"); code != 0 { // the loaders that it looks for are played
				f.Errorf("deploy: exit %d\n%s%s", code, out, errs)
			}
		})
	}
	wg.Wait()
	if f.Failed() {
		f.FailNow()
	}
}

// atRest waits until all Services are ready.
func (f *far) atRest(models []kwokModel) {
	f.Helper()
	spaces := map[string]bool{}
	for _, m := range models {
		spaces[m.sp.ns] = true
	}
	until(f.T, 15*time.Minute, "all Services are ready", func() (bool, string) {
		ready := 0
		for ns := range spaces {
			list, err := f.of("ksvc", ns).List(f.Context(), metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			for i := range list.Items {
				if st, _ := condition(&list.Items[i], "Ready"); st == "True" {
					ready++
				}
			}
		}
		return ready == len(models), fmt.Sprintf("%d of %d", ready, len(models))
	})
}

// wave sends one request to each model at once and measures; beside runs while they wait.
func (f *far) wave(what string, models []kwokModel, beside ...func()) kwokWave {
	f.Helper()
	asked := time.Now()
	done := make(chan struct{})
	var meanwhile sync.WaitGroup
	for _, do := range beside {
		meanwhile.Go(do)
	}
	deep := 0
	meanwhile.Go(func() { deep = f.depth(done) })
	stopped := f.meter()
	answers := many(len(models), func(i int) answer { return f.ask(models[i]) })
	took := time.Since(asked)
	close(done)
	meanwhile.Wait()
	for i, a := range answers {
		if a.err != nil {
			f.Errorf("%s: %s: %s", what, models[i], a)
		}
	}
	var made, scheduled, answered []float64
	as, hinted := 0, 0
	for i, m := range models {
		answered = append(answered, answers[i].took.Seconds())
		pods := f.live(m.sp.ns, m.name)
		if len(pods) != 1 {
			f.Errorf("%s: %s has %d pods", what, m, len(pods))
			continue
		}
		p := pods[0]
		made, scheduled = append(made, p.made.Sub(asked).Seconds()), append(scheduled, p.scheduled.Sub(asked).Seconds())
		if p.wanted != "" {
			hinted++
		}
		if p.wanted == p.node {
			as++
		} else {
			f.Logf("%s was to come to %q and is on %s: %s", m, p.wanted, p.node, p.unschedulable)
		}
	}
	w := kwokWave{
		What: what, Asked: len(models), Hinted: hinted, AsChosen: as, Queue: deep, Made: report.Summarize(made),
		Scheduled: report.Summarize(scheduled),
		Answered:  report.Summarize(answered), All: took.Seconds(), Cost: stopped(),
	}
	for _, x := range []struct {
		name string
		of   report.Summary
	}{{"pod made", w.Made}, {"scheduled", w.Scheduled}, {"answered", w.Answered}} {
		f.Logf("%s, %d: %s p50 %s, p99 %s", what, w.Asked, x.name, report.Millis(x.of.P50), report.Millis(x.of.P99))
	}
	f.Logf("%s: %d of %d pods on the node that the orchestrator chose; at most %d in the controller's queue; %+v", what, as, len(models), deep,
		w.Cost)
	f.waves = append(f.waves, w)
	return w
}

// depth returns the largest number of queued PodAutoscalers until done is closed.
func (f *far) depth(done chan struct{}) (most int) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return most
		case <-tick.C:
		}
		_, url, err := f.leader(f.Context())
		if err != nil {
			continue
		}
		if n, err := f.metric(url, "thaw_reconcile_queue"); err == nil {
			most = max(most, int(n))
		}
	}
}

// metric returns one metric of the controller.
func (f *far) metric(url, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
	defer cancel()
	text, err := f.readMetrics(ctx, url)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, errors.New("no " + name)
}

// kwokWave is the result of many models requested at once.
type kwokWave struct {
	What      string         `json:"what"`
	Asked     int            `json:"asked"`
	Made      report.Summary `json:"pod_made"`  // seconds since all were requested
	Scheduled report.Summary `json:"scheduled"` // until the pod was scheduled
	Answered  report.Summary `json:"answered"`
	All       float64        `json:"all_answered_seconds"`
	Hinted    int            `json:"pods_with_a_preferred_node"`
	AsChosen  int            `json:"pods_where_steer_placed_them"`
	Queue     int            `json:"reconcile_queue_at_most"`
	Cost      kwokCost       `json:"controller"`
}

// kwokCost is the resource use of the leading controller. Processor is 0 if the leader
// changed during the measurement.
type kwokCost struct {
	Processor float64 `json:"processor_seconds"`
	Over      float64 `json:"over_seconds"`
	Memory    int64   `json:"bytes"`
}

// meter starts measuring the leading controller; the returned function ends it.
func (f *far) meter() func() kwokCost {
	read := func() (pod string, cpu, bytes int64) {
		name, _, err := f.leader(f.Context())
		if err != nil {
			return "", 0, 0
		}
		p, err := f.core.CoreV1().Pods(install.Namespace).Get(f.Context(), name, metav1.GetOptions{})
		if err != nil || len(p.Status.ContainerStatuses) == 0 {
			return "", 0, 0
		}
		id := p.Status.ContainerStatuses[0].ContainerID
		cpu, _ = groupTime(string(p.UID), id[strings.LastIndexByte(id, '/')+1:])
		bytes, _ = memory(p)
		return name, cpu, bytes
	}
	pod, from, _ := read()
	began := time.Now()
	return func() kwokCost {
		now, cpu, bytes := read()
		c := kwokCost{Over: time.Since(began).Seconds(), Memory: bytes}
		if now == pod {
			c.Processor = float64(cpu-from) / 1e9
		}
		return c
	}
}

// cost records the controller's resource use while nothing happens.
func (f *far) cost(what string, over time.Duration) {
	f.Helper()
	stop := f.meter()
	select {
	case <-time.After(over):
	case <-f.Context().Done():
	}
	f.rest = stop()
	f.Logf("%s: %+v", what, f.rest)
}

// standing returns the uids of the models' pods by name.
func (f *far) standing(models []kwokModel) map[string]types.UID {
	out := map[string]types.UID{}
	for _, m := range models {
		for _, p := range f.live(m.sp.ns, m.name) {
			out[m.String()] = p.uid
		}
	}
	return out
}

// same fails the test unless the models still have these pods.
func (f *far) same(who string, models []kwokModel, before map[string]types.UID) {
	f.Helper()
	now := f.standing(models)
	for _, m := range models {
		if now[m.String()] != before[m.String()] {
			f.Errorf("%s has %s replaced or ended", who, m)
		}
	}
}

// pick requests a model that only one node can hold, for a reason unknown to the
// orchestrator: the scheduler decides and the controller follows.
func (f *far) pick(m kwokModel) {
	f.Helper()
	const only = "fake-17"
	f.patch(f.T, "node", "", only, map[string]any{"status": map[string]any{
		"capacity": map[string]string{"ephemeral-storage": "10Gi"}, "allocatable": map[string]string{"ephemeral-storage": "10Gi"}}}, "status")
	if a := f.ask(m); a.err != nil {
		f.Errorf("%s: %s", m, a)
		return
	}
	pods := f.live(m.sp.ns, m.name)
	if len(pods) != 1 || pods[0].node != only {
		f.Errorf("%s: %+v", m, pods)
		return
	}
	f.Logf("%s was to come to %q and came to %s", m, pods[0].wanted, only)
}

// near stops a model and requests it again: it must be placed on the only node that has
// its weights.
func (f *far) near(models []kwokModel) {
	f.Helper()
	var m kwokModel
	var was kwokPod
	for _, m = range models {
		if pods := f.live(m.sp.ns, m.name); !m.hand && len(pods) == 1 && pods[0].wanted == pods[0].node {
			was = pods[0]
			break
		}
	}
	if was.node == "" {
		f.Error("no model is where it was wanted")
		return
	}
	for range 3 {
		f.stop(m)
		if a := f.ask(m); a.err != nil {
			f.Errorf("%s: %s", m, a)
			return
		}
		again := f.live(m.sp.ns, m.name)
		if len(again) == 1 && again[0].wanted == "" {
			continue // the webhook was not called in time, so nothing is promised
		}
		if len(again) != 1 || again[0].uid == was.uid || again[0].wanted != was.node || *kwokNodes <= sampled && again[0].node != was.node {
			f.Errorf("%s was on %s, where its weights are, and is now %+v", m, was.node, again)
		}
		return
	}
	f.Errorf("the API server makes three pods of %s in a row without asking where", m)
}

// stop ends a model's replicas and waits until they are gone.
func (f *far) stop(m kwokModel) {
	f.Helper()
	_, url, err := f.leader(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	secret, err := f.core.CoreV1().Secrets(install.Namespace).Get(f.Context(), knative.AdminSecret, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	r, err := http.NewRequestWithContext(f.Context(), http.MethodPost,
		strings.Replace(url, "http://", "https://", 1)+"/api/v1/functions/"+m.String()+"/stop", nil)
	if err != nil {
		f.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(secret.Data[knative.TokenKey])))
	secure := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: f.tls}}
	res, err := secure.Do(r)
	if err != nil {
		f.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusAccepted {
		f.Fatalf("stop %s: %s %s", m, res.Status, body)
	}
	f.until(m.String()+" has ended", func() (bool, string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range f.pods {
			if p.namespace == m.sp.ns && p.model == m.name && !p.gone {
				return false, fmt.Sprintf("%+v", p)
			}
		}
		return true, ""
	})
}

// full cordons all nodes but two, which are full of idle models, and requests more: only
// the idle models on these two may be evicted.
func (f *far) full(models, late []kwokModel) {
	f.Helper()
	open := map[string]bool{}
	f.mu.Lock()
	for _, p := range f.pods {
		if p.gpus == farGPUs && !p.gone && !p.stopping && len(open) < 2 {
			open[p.node] = true
		}
	}
	var shut []string
	for name := range f.loaders {
		if !open[name] {
			shut = append(shut, name)
		}
	}
	f.mu.Unlock()
	if len(open) < 2 {
		f.Fatal("no two nodes are full")
	}
	f.cordon(shut, true)
	// The orchestrator sees it in its next turn. Starts placed earlier on a node that is
	// cordoned now would fail, which is not tested here.
	select {
	case <-time.After(5 * time.Second):
	case <-f.Context().Done():
	}
	var rest, full []kwokModel
	for _, m := range models {
		pods := f.live(m.sp.ns, m.name)
		if len(pods) == 1 && open[pods[0].node] {
			full = append(full, m)
		} else {
			rest = append(rest, m)
		}
	}
	before := f.standing(rest)
	f.wave("all nodes are full or closed", late)
	f.check("when full")
	f.same("who wanted room on other nodes", rest, before)
	for _, m := range full {
		if pods := f.live(m.sp.ns, m.name); len(pods) > 0 {
			f.Errorf("%s is on %s still, which four models were to share", m, pods[0].node)
		}
	}
	f.cordon(shut, false)
	for _, m := range full {
		if a := f.ask(m); a.err != nil {
			f.Errorf("%s, which made way: %s", m, a)
		}
	}
}

// lost makes a node not ready and stops its loader: its models must start on other nodes.
func (f *far) lost(models []kwokModel) {
	f.Helper()
	var node string
	var on []kwokModel
	byNode := map[string][]kwokModel{}
	for _, m := range models {
		if pods := f.live(m.sp.ns, m.name); len(pods) == 1 {
			byNode[pods[0].node] = append(byNode[pods[0].node], m)
		}
	}
	for name, list := range byNode {
		if len(list) > len(on) || len(list) == len(on) && name < node {
			node, on = name, list
		}
	}
	f.mu.Lock()
	loader := f.loaders[node]
	for _, p := range f.pods { // its pods become unreachable
		if p.node == node {
			delete(f.byIP, p.ip)
		}
	}
	f.mu.Unlock()
	loader.stop()
	f.patch(f.T, "node", "", node, map[string]any{"metadata": map[string]any{"labels": map[string]string{"lost": "yes"}}}) // KWOK stops updating a node with this label
	now := metav1.Now()
	f.patch(f.T, "node", "", node, map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastHeartbeatTime: now, LastTransitionTime: now}}}}, "status")
	f.until("the scheduler is kept off "+node, func() (bool, string) {
		n, err := f.core.CoreV1().Nodes().Get(f.Context(), node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoSchedule
		}), fmt.Sprint(n.Spec.Taints)
	})
	answers := many(len(on), func(i int) answer {
		var a answer
		// Requests before the node is known to be lost may get a retryable error.
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(time.Minute); ; {
			if a = f.ask(on[i]); a.err == nil || time.Now().After(end) || f.Context().Err() != nil {
				break
			}
			<-tick.C
		}
		return a
	})
	for i, a := range answers {
		if a.err != nil {
			f.Errorf("%s, whose node was lost: %s", on[i], a)
		}
	}
	for _, m := range on {
		elsewhere := 0
		for _, p := range f.live(m.sp.ns, m.name) {
			if p.node != node {
				elsewhere++
			}
		}
		if elsewhere != 1 {
			f.Errorf("%s, whose node was lost, has %d pods elsewhere", m, elsewhere)
		}
	}
	f.Logf("%s is lost, with %d models", node, len(on))
}

// peers waits until each loader has the addresses of all others.
func (f *far) peers() {
	f.Helper()
	f.until("each loader knows its peers", func() (bool, string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		few := 0
		for _, l := range f.loaders {
			l.mu.Lock()
			if l.client.Connected() && l.peers < len(f.loaders)-2 {
				few++
			}
			l.mu.Unlock()
		}
		return few == 0, fmt.Sprintf("%d of %d know fewer", few, len(f.loaders))
	})
}
