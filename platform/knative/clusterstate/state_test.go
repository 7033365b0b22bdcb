package clusterstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/slim"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// stage is a State whose writer records its calls.
type stage struct {
	*testing.T
	*State
	clock time.Time

	mu     sync.Mutex
	scales []string
	least  []string
	hurry  []string
	tells  []controlstream.Update
	beats  map[string]functions.Heartbeat
	refuse error
}

func (s *stage) Scale(_ context.Context, r functions.Name, d string, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return s.refuse
	}
	s.scales = append(s.scales, fmt.Sprintf("%s %s %d", r, d, n))
	return nil
}

func (s *stage) set(refuse error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

func (s *stage) scaled() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.scales)
}

func (s *stage) DeleteFirst(_ context.Context, ns, pod string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.least = append(s.least, ns+"/"+pod)
	return nil
}

func (s *stage) ForceDelete(ns, pod string, _ types.UID) { s.hurry = append(s.hurry, pod) }

var web = functions.Name{Team: "a", Name: "web-00001"}

func newTestCluster(t *testing.T, shim bool) *stage {
	s := &stage{T: t, clock: time.Unix(1e9, 0), beats: map[string]functions.Heartbeat{}}
	s.State = New(Options{
		Epoch: 7, Life: "x", Log: slog.New(slog.DiscardHandler), Writer: s,
		SendHeartbeat: func(hb functions.Heartbeat, _ orchestrator.Node) { s.beats[hb.AgentID] = hb },
		Send:          func(_ string, d controlstream.Update) bool { s.tells = append(s.tells, d); return true },
		Now:           func() time.Time { return s.clock },
	})
	for _, n := range []string{"n1", "n2"} {
		s.SetNode(aNode(n))
	}
	s.SetRevision(web, "web-00001-deployment", shim)
	s.SetDeployment(web, 0, "")
	return s
}

func aNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		Allocatable: corev1.ResourceList{knative.GPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi")},
	}}
}

// TestEndpoint: a shim reports its port; its address is taken from Kubernetes.
func TestEndpoint(t *testing.T) {
	pods := podSet{"victim": {ip: "10.0.0.7"}, "gone": {ip: "10.0.0.8", ended: true}}
	for _, x := range []struct{ ip, said, want string }{
		{"10.0.0.9", "http://10.0.0.9:8080", "http://10.0.0.9:8080"},
		{"10.0.0.9", "http://10.0.0.7:8080", "http://10.0.0.9:8080"},
		{"fd00::9", "http://10.0.0.9:8080", "http://[fd00::9]:8080"},
		{"", "http://10.0.0.9:8080", "http://10.0.0.9:8080"},
		{"", "http://10.0.0.8:8080", "http://10.0.0.8:8080"},
		{"", "http://10.0.0.7:8080", ""},
		{"", "http://[::ffff:10.0.0.7]:8080", ""},
		{"", "http://127.0.0.1:8080", ""},
		{"", "http://169.254.169.254:80", ""},
		{"", "http://0.0.0.0:80", ""},
		{"", "http://victim.a.svc:80", ""},
		{"", "http://10.0.0.9:8080/admin?x", "http://10.0.0.9:8080"},
		{"10.0.0.9", "https://10.0.0.9:8080", ""},
		{"10.0.0.9", "http://10.0.0.9", ""},
		{"10.0.0.9", "://", ""},
	} {
		if got := pods.endpoint(&pod{ip: x.ip}, x.said); got != x.want {
			t.Errorf("%q says %q: %q, want %q", x.ip, x.said, got, x.want)
		}
	}
}

// aPod returns a pod of the revision web, as the API server describes it.
func aPod(uid, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-00001-deployment-" + uid, Namespace: "a", UID: types.UID(uid), Labels: map[string]string{serving.RevisionLabelKey: "web-00001"}}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "model", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{knative.GPU: resource.MustParse("1")}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func runs(p *corev1.Pod) {
	p.Status.PodIP = "10.0.0.9"
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

func isReady(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func ends(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)} }

func waits(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

// states returns a node's replicas as reported in its next heartbeat.
func (s *stage) states(node string) map[string]functions.ReplicaStatus {
	s.Helper()
	s.State.mu.Lock()
	s.due.nodes[node] = true
	s.State.mu.Unlock()
	s.SendHeartbeats(false)
	out := map[string]functions.ReplicaStatus{}
	for _, m := range s.beats[node].Models {
		out[m.ID] = m
	}
	return out
}

func (s *stage) load(node, id string) {
	s.Helper()
	if _, err := s.nodes[node].Load(s.Context(), functions.LoadRequest{ID: id, Team: "a", Model: "web-00001", GPUs: []int{0}, Spec: functions.ModelSpec{Source: "https://x/y"}}); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) want(node, id string, state functions.State) functions.ReplicaStatus {
	s.Helper()
	st, ok := s.states(node)[id]
	if !ok || st.State != state {
		s.Errorf("replica %s on %s: %v %q %q, want %q", id, node, ok, st.State, st.Error, state)
	}
	return st
}

func TestReplicaOfAPod(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	s.load("n1", "r1") // loading the same id again changes nothing
	if len(s.scales) != 1 || s.scales[0] != "a/web-00001 web-00001-deployment 1" {
		t.Errorf("scales %q", s.scales)
	}
	if len(s.tells) == 0 || len(s.tells[0].Prefetch) != 1 {
		t.Error("the bytes are not asked for ahead of the pod")
	}
	if node, ok := s.PreferredNode(web); !ok || node != "n1" {
		t.Errorf("hint %q", node)
	}
	s.SetDeployment(web, 1, "")
	s.want("n1", "r1", functions.Downloading)
	s.SetPod(aPod("p1", ""))
	if _, ok := s.PreferredNode(web); ok {
		t.Error("a hint for a pod that is there")
	}
	s.SetPod(aPod("p1", "n1", runs))
	s.want("n1", "r1", functions.Loading)
	s.OnPodStatus("n1", false, []controlstream.Pod{{UID: "p1", Status: functions.ReplicaStatus{State: functions.Ready, Endpoint: "http://10.0.0.9:8080"}}})
	if st := s.want("n1", "r1", functions.Ready); st.Endpoint != "http://10.0.0.9:8080" || st.Team != "a" || st.Model != "web-00001" ||
		len(st.GPUs) != 1 {
		t.Errorf("%+v", st)
	}
	if d, a, r := s.State.ReplicaCounts(web); d != 1 || a != 1 || r != 1 {
		t.Errorf("scale %d %d %d", d, a, r)
	}
	// Unload stops the shim, shrinks the Deployment, and deletes the pod at once.
	if err := s.nodes["n1"].Unload(t.Context(), functions.UnloadRequest{ID: "r1", Reason: "idle"}); err != nil {
		t.Fatal(err)
	}
	s.want("n1", "r1", functions.Draining)
	if s.scales[len(s.scales)-1] != "a/web-00001 web-00001-deployment 0" || len(s.least) != 0 {
		t.Errorf("scales %q, first to go %q", s.scales, s.least)
	}
	if last := s.tells[len(s.tells)-1]; len(last.Stop) != 1 || last.Stop[0].UID != "p1" {
		t.Errorf("%+v", last)
	}
	s.SetPod(aPod("p1", "n1", runs, ends))
	if len(s.hurry) != 0 {
		t.Error("a pod is forgotten whose engine is there")
	}
	for range 2 {
		s.OnPodStatus("n1", false, []controlstream.Pod{{UID: "p1", Status: functions.ReplicaStatus{State: functions.Unloaded}}})
		s.SetPod(aPod("p1", "n1", runs, ends))
	}
	if len(s.hurry) != 1 {
		t.Errorf("hurried %q", s.hurry)
	}
	s.want("n1", "r1", functions.Draining) // its resources are occupied until it is gone
	s.DropPod("p1")
	if st := s.states("n1"); len(st) != 0 {
		t.Errorf("left: %v", st)
	}
}

func TestPodElsewhere(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	s.SetPod(aPod("p1", "n2", runs))
	if st := s.states("n1"); len(st) != 0 {
		t.Errorf("still on n1: %v", st)
	}
	s.want("n2", "web-00001-deployment-p1", functions.Loading)
	if d, _, _ := s.State.ReplicaCounts(web); d != 1 {
		t.Errorf("%d are wanted", d)
	}
}

func TestUnloadDeletesItsPod(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	s.load("n2", "r2")
	s.SetPod(aPod("p2", "n2", runs))
	s.SetPod(aPod("p1", "n1", runs))
	s.want("n1", "r1", functions.Loading)
	s.want("n2", "r2", functions.Loading)
	if err := s.nodes["n2"].Unload(t.Context(), functions.UnloadRequest{ID: "r2"}); err != nil {
		t.Fatal(err)
	}
	if len(s.least) != 1 || s.least[0] != "a/web-00001-deployment-p2" {
		t.Errorf("first to go: %q", s.least)
	}
}

// TestEvictedPod: the Deployment replaces a pod that was deleted by others. The new pod
// is another replica, and the size of the Deployment stays for that moment.
func TestEvictedPod(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	s.SetDeployment(web, 1, "")
	s.SetPod(aPod("p1", "n1", runs))
	s.SetPod(aPod("p1", "n1", runs, ends))
	s.want("n1", "r1", functions.Draining)
	if r := s.outdatedScales(true); len(r) != 0 {
		t.Error("the Deployment is made smaller at once")
	}
	s.SetPod(aPod("p2", "n1", runs))
	s.want("n1", "web-00001-deployment-p2", functions.Loading)
	s.DropPod("p1")
	s.clock = s.clock.Add(time.Minute)
	s.SendHeartbeats(true)
	if r := s.outdatedScales(true); len(r) != 0 {
		t.Error("the replacement is taken back")
	}

	// A replica without a replacement pod is given up after replacementWait.
	s.SetPod(aPod("p2", "n1", runs, ends))
	s.DropPod("p2")
	s.clock = s.clock.Add(time.Minute)
	s.SendHeartbeats(true)
	if r := s.outdatedScales(true); len(r) != 1 {
		t.Error("a pod that went is kept for")
	}
}

// TestLoadDuringUnload: a replica is wanted at the moment the last one is told to stop. The
// Deployment grows only once that one's pod is terminating: earlier it would keep that
// pod and create no other.
func TestLoadDuringUnload(t *testing.T) {
	deployment := "a/web-00001 web-00001-deployment "
	for _, c := range []struct {
		what   string
		pods   int // READY ones, of which one ends
		during int // size until that one is terminating
	}{{"the only one", 1, 0}, {"one of two", 2, 1}} {
		t.Run(c.what, func(t *testing.T) {
			s := newTestCluster(t, true)
			for i := range c.pods {
				id := fmt.Sprint(i)
				s.load("n1", "r"+id)
				s.SetPod(aPod("p"+id, "n1", runs, isReady))
			}
			s.SetDeployment(web, c.pods, "")
			before := len(s.scaled())
			if err := s.nodes["n1"].Unload(t.Context(), functions.UnloadRequest{ID: "r0", Reason: "idle"}); err != nil {
				t.Fatal(err)
			}
			s.load("n2", "again")
			for range 3 { // other writes in between
				for _, r := range s.outdatedScales(true) {
					s.writeScale(t.Context(), r)
				}
				s.clock = s.clock.Add(time.Second)
			}
			if got := s.scaled()[before:]; !slices.Equal(got, []string{deployment + fmt.Sprint(c.during)}) {
				t.Fatalf("before it has begun to end: %q", got)
			}
			s.SetPod(aPod("p0", "n1", runs, isReady, ends))
			for _, r := range s.outdatedScales(false) {
				s.writeScale(t.Context(), r)
			}
			if got := s.scaled()[before+1:]; !slices.Equal(got, []string{deployment + fmt.Sprint(c.pods)}) {
				t.Fatalf("after: %q", got)
			}
			s.SetPod(aPod("new", "n2", runs))
			s.want("n2", "again", functions.Loading)
		})
	}
}

// TestLoadBeforeUnload: a replica Requested before another is stopped already has its
// pod; the Deployment then shrinks by the stopped one.
func TestLoadBeforeUnload(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r0")
	s.SetPod(aPod("p0", "n1", runs, isReady))
	s.SetDeployment(web, 1, "")
	s.load("n2", "r1")
	if err := s.nodes["n1"].Unload(t.Context(), functions.UnloadRequest{ID: "r0", Reason: "idle"}); err != nil {
		t.Fatal(err)
	}
	got := s.scaled()
	if got = got[len(got)-2:]; !slices.Equal(got, []string{"a/web-00001 web-00001-deployment 2", "a/web-00001 web-00001-deployment 1"}) {
		t.Errorf("%q", got)
	}
}

// TestPodsOfADroppedRevision: if a revision is deleted before its pods, their GPUs are
// still released as soon as their engines have exited.
func TestPodsOfADroppedRevision(t *testing.T) {
	s := newTestCluster(t, true)
	for _, id := range []string{"1", "2", "3"} {
		s.load("n1", "r"+id)
		s.SetPod(aPod("p"+id, "n1", runs))
	}
	s.OnPodStatus("n1", true, []controlstream.Pod{{UID: "p1", Status: functions.ReplicaStatus{State: functions.Ready}}})
	s.DropRevision(web)
	s.SetPod(aPod("p1", "n1", runs))
	s.SetPod(aPod("p1", "n1", runs, ends))
	s.OnPodStatus("n1", false, []controlstream.Pod{{UID: "p1", Gone: true}})
	if want := []string{"web-00001-deployment-p1"}; !slices.Equal(s.hurry, want) {
		t.Errorf("hurried %q", s.hurry)
	}
	s.SetPod(aPod("p2", "n1", runs))
	if err := s.nodes["n1"].Unload(t.Context(), functions.UnloadRequest{ID: "r2", Reason: functions.ReasonCalledOff}); err != nil {
		t.Error(err)
	}
	for _, p := range []types.UID{"p1", "p2", "p3"} {
		s.DropPod(p)
	}
	if len(s.bindings.replicas)+len(s.bindings.pods) != 0 {
		t.Errorf("%d replicas of %d pods are left", len(s.bindings.replicas), len(s.bindings.pods))
	}
}

// TestClusterStateInAnyOrder: the state stays consistent and ends empty, in whatever
// order events of the API server, loaders and orchestrator arrive.
func TestClusterStateInAnyOrder(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 4))
		s := newTestCluster(t, seed%2 == 0)
		var log []string
		did := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
		node := func() string { return fmt.Sprint("n", 1+r.IntN(2)) }
		pod := func() string { return fmt.Sprint("p", r.IntN(4)) }
		changes := []func(*corev1.Pod){runs, ends, isReady,
			func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
			func(p *corev1.Pod) { p.Spec.NodeName = "" },
			waits("ImagePullBackOff", "no such image")}
		states := []functions.State{functions.Downloading, functions.Loading, functions.Ready, functions.Draining, functions.Unloaded, functions.Failed}
		check := func() {
			for id, w := range s.bindings.replicas {
				if w.id != id || w.pod != nil && (w.pod.replica != w || s.bindings.pods[w.pod.uid] != w.pod) {
					t.Fatalf("seed %d: replica %s and its pod do not know each other, after\n%s", seed, id, strings.Join(log, "\n"))
				}
			}
			for _, p := range s.bindings.pods {
				if p.replica != nil && (s.bindings.replicas[p.replica.id] != p.replica || p.replica.pod != p) {
					t.Fatalf("seed %d: pod %s and its replica do not know each other, after\n%s", seed, p.name, strings.Join(log, "\n"))
				}
			}
		}
		step := func() {
			defer func() {
				if x := recover(); x != nil {
					t.Fatalf("seed %d: %v after\n%s\n%s", seed, x, strings.Join(log, "\n"), debug.Stack())
				}
			}()
			switch r.IntN(14) {
			case 0:
				did("revision")
				s.SetRevision(web, "web-00001-deployment", seed%2 == 0)
			case 1:
				did("no revision")
				s.DropRevision(web)
			case 2, 3, 4:
				p := aPod(pod(), node())
				for _, c := range changes {
					if r.IntN(3) == 0 {
						c(p)
					}
				}
				did("pod %s on %q ends %v phase %s", p.UID, p.Spec.NodeName, p.DeletionTimestamp != nil, p.Status.Phase)
				s.SetPod(p)
			case 5:
				p := pod()
				did("no pod %s", p)
				s.DropPod(types.UID(p))
			case 6:
				n := r.IntN(4)
				did("a Deployment of %d", n)
				s.SetDeployment(web, n, []string{"", "exceeded quota"}[r.IntN(2)])
			case 7, 8:
				n, said := node(), controlstream.Pod{UID: pod(), Gone: r.IntN(4) == 0,
					Status: functions.ReplicaStatus{State: states[r.IntN(len(states))], Endpoint: "http://10.0.0.9:8080"}}
				did("%s says %s is %s, gone %v", n, said.UID, said.Status.State, said.Gone)
				s.OnPodStatus(n, r.IntN(2) == 0, []controlstream.Pod{said})
			case 9, 10:
				n, id := node(), fmt.Sprint("r", r.IntN(4))
				did("load %s on %s", id, n)
				if n := s.nodes[n]; n != nil {
					n.Load(t.Context(), functions.LoadRequest{ID: id, Team: "a", Model: web.Name, GPUs: []int{r.IntN(2)}})
				}
			case 11:
				n, id, reason := node(), fmt.Sprint("r", r.IntN(4)), []string{functions.ReasonCalledOff, "idle"}[r.IntN(2)]
				did("unload %s: %s", id, reason)
				if n := s.nodes[n]; n != nil {
					n.Unload(t.Context(), functions.UnloadRequest{ID: id, Reason: reason})
				}
			case 12:
				n := node()
				did("%s goes and comes", n)
				s.DropNode(n)
				s.SetNode(aNode(n))
			case 13:
				did("time")
				s.clock = s.clock.Add(time.Duration(r.IntN(20)) * time.Second)
				s.onProbeSuccess(types.UID(pod()))
				s.SendHeartbeats(true)
				for _, x := range s.outdatedScales(true) {
					s.writeScaleAsLeader(t.Context(), x)
				}
				s.EarlyReplicas(&snapshot.Snapshot{Name: web})
			}
		}
		for range 120 {
			step()
			check()
		}
		for i := range 4 {
			s.DropPod(types.UID(fmt.Sprint("p", i)))
		}
		s.DropRevision(web)
		if replicas, pods := len(s.bindings.replicas), len(s.bindings.pods); replicas+pods != 0 {
			t.Fatalf("seed %d: %d replicas and %d pods are left, after\n%s", seed, replicas, pods, strings.Join(log, "\n"))
		}
	}
}

func TestAdoptedPods(t *testing.T) {
	s := newTestCluster(t, false)
	s.SetDeployment(web, 2, "")
	s.SetPod(aPod("p1", "n1", runs))
	s.SetPod(aPod("p2", "n2", runs))
	st := s.want("n1", "web-00001-deployment-p1", functions.Loading)
	if len(st.GPUs) != 1 {
		t.Errorf("%+v", st)
	}
	if n := len(s.probes.queue); n != 2 {
		t.Fatalf("%d probes", n)
	}
	if first := <-s.probes.queue; first != (probe{"p1", "10.0.0.9"}) {
		t.Errorf("probes %+v", first)
	}
	if !s.needsProbe("p1") {
		t.Error("not worth asking")
	}
	s.onProbeSuccess("p1")
	if st := s.want("n1", "web-00001-deployment-p1", functions.Ready); st.Endpoint != "http://10.0.0.9:8012" {
		t.Errorf("%+v", st)
	}
	if s.needsProbe("p1") || s.needsProbe("gone") {
		t.Error("asked for ever")
	}
	if r := s.outdatedScales(true); len(r) != 0 {
		t.Error("what runs is not as it should be")
	}
}

func TestFailedPods(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"image":  {aPod("p", "n1", waits("ImagePullBackOff", "no such image")), "its image cannot be pulled (a private registry wants spec.pod.imagePullSecrets): no such image"},
		"config": {aPod("p", "n1", waits("CreateContainerConfigError", "")), "its container cannot be created"},
		"crash": {aPod("p", "n1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "a\nno weights at all\n"}}}}
		}), "no weights at all"},
		"memory": {aPod("p", "n1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}}
		}), "its container ran out of memory (raise resources.memory)"},
		"memory, with the end of the log": {aPod("p", "n1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", Message: "Loading weights\n 50%\n"}}}}
		}), "its container ran out of memory (raise resources.memory); its last line:  50%"},
		"a signal, with the end of the log": {aPod("p", "n1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 135, Message: "Loading weights"}}}}
		}), "its container ended with exit code 135: signal 7, bus error; its last line: Loading weights"},
		"signal": {aPod("p", "n1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 139}}}}
		}), "its container ended with exit code 139: signal 11, segmentation fault"},
		"no program": {aPod("p", "n1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "model", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 127}}}}
		}), "its container ended with exit code 127: its program cannot be run, or is not in the image"},
		"registry": {aPod("p", "n1", waits("RegistryUnavailable", "")), "the registry of its image does not answer"},
		"evicted": {aPod("p", "n1", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Message = corev1.PodFailed, "The node was low on resource: memory."
		}), "The node was low on resource: memory."},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestCluster(t, true)
			s.load("n1", "r1")
			s.SetPod(tc.pod)
			if tc.pod.Status.Phase == corev1.PodFailed {
				// Its pod ended before it was bound: the replica waits for the next pod.
				s.want("n1", "r1", functions.Downloading)
				return
			}
			if st := s.want("n1", "r1", functions.Failed); st.Error != tc.want {
				t.Errorf("%q", st.Error)
			}
		})
	}
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	lost := aPod("p", "", func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes: 2 Insufficient cpu."}}
	})
	s.SetPod(lost)
	s.want("n1", "r1", functions.Downloading) // free room may still be in the act of being released
	s.clock = s.clock.Add(unschedulable)
	if st := s.want("n1", "r1", functions.Failed); st.Error != "Kubernetes finds no node for it: 0/2 nodes: 2 Insufficient cpu." {
		t.Errorf("%q", st.Error)
	}
	lost.Status.Conditions[0].Message = "0/2 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: present}."
	s.SetPod(lost)
	if st := s.want("n1", "r1", functions.Failed); !strings.Contains(st.Error, "present}. (tolerations are written in spec.pod") {
		t.Errorf("%q", st.Error)
	}

	s = newTestCluster(t, true)
	s.load("n1", "r1")
	s.SetPod(aPod("p", "", func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, Message: "Scheduling is blocked due to non-empty scheduling gates"}}
	}))
	s.clock = s.clock.Add(unschedulable)
	if st := s.want("n1", "r1", functions.Failed); !strings.Contains(st.Error, "scheduling gates") {
		t.Errorf("%q", st.Error)
	}

	for _, loader := range []bool{false, true} { // without one the pod waits for its volume for ever
		s = newTestCluster(t, true)
		if loader {
			s.OnHeartbeat("n1", functions.Heartbeat{AgentID: "n1"})
		}
		s.load("n1", "r1")
		s.SetPod(aPod("p", "n1", waits("ContainerCreating", "")))
		s.want("n1", "r1", functions.Downloading)
		s.clock = s.clock.Add(loaderSilence)
		if loader {
			s.want("n1", "r1", functions.Downloading)
		} else if st := s.want("n1", "r1", functions.Failed); !strings.Contains(st.Error, "no loader of thaw runs on its node n1") {
			t.Errorf("%q", st.Error)
		}
	}

	s = newTestCluster(t, true)
	s.load("n1", "r1")
	s.SetDeployment(web, 1, "Kubernetes takes no pod of it: exceeded quota")
	s.want("n1", "r1", functions.Downloading)
	s.clock = s.clock.Add(2 * time.Second)
	if st := s.want("n1", "r1", functions.Failed); st.Error != "Kubernetes takes no pod of it: exceeded quota" {
		t.Errorf("%q", st.Error)
	}
}

// TestForeignPods: resources of foreign pods are not offered to replicas.
func TestForeignPods(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	s.SetPod(aPod("p1", "n1", runs))
	foreign := aPod("f", "n1", func(p *corev1.Pod) {
		p.Labels = nil
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("3Gi")}
	})
	s.SetPod(foreign)
	s.states("n1")
	hb := s.beats["n1"]
	if len(hb.GPUs) != 1 || hb.GPUs[0].Index != 0 || hb.Memory.Total != 5<<30 || hb.Epoch != 7 {
		t.Errorf("%+v", hb)
	}
	change, seq := hb.Change, hb.Seq
	s.states("n1")
	if hb := s.beats["n1"]; hb.Change != change || hb.Seq <= seq {
		t.Errorf("nothing has changed, and yet %d, %d", hb.Change, hb.Seq)
	}
	s.DropPod("f")
	s.states("n1")
	if hb := s.beats["n1"]; len(hb.GPUs) != 2 || hb.Change == change {
		t.Errorf("%+v", hb)
	}
	// A cordoned node gets no new replicas and keeps its own.
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: true}, Status: corev1.NodeStatus{
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		Allocatable: corev1.ResourceList{knative.GPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi")},
	}})
	s.states("n1")
	if hb := s.beats["n1"]; len(hb.GPUs) != 1 || hb.Memory.Total > 1 || len(hb.Models) != 1 {
		t.Errorf("%+v", hb)
	}
}

// TestNodeCapacity: a heartbeat has the node's resources without those of foreign pods.
func TestNodeCapacity(t *testing.T) {
	s := newTestCluster(t, true)
	node := func(name, cpu, pods string, labels map[string]string, taints ...corev1.Taint) {
		s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{Taints: taints},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse(pods),
					corev1.ResourceMemory: resource.MustParse("8Gi"),
				},
			}})
	}
	asks := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels = nil // a foreign pod
			p.Spec.Containers = []corev1.Container{
				{Name: "a", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}},
				{Name: "b", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}},
			}
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}}}}
		}
	}
	node("n1", "2", "3", nil)
	s.states("n1")
	if hb := s.beats["n1"]; hb.CPU != 2000 || hb.Pods != 3 {
		t.Errorf("an empty node has %s and %d pods", hb.CPU, hb.Pods)
	}
	s.SetPod(aPod("x1", "n1", asks("400m")))
	s.states("n1")
	if hb := s.beats["n1"]; hb.CPU != 1500 || hb.Pods != 2 {
		t.Errorf("beside a stranger it has %s and %d pods", hb.CPU, hb.Pods)
	}
	s.SetPod(aPod("x2", "n1", asks("4")))
	s.SetPod(aPod("x3", "n1", asks("0")))
	s.states("n1")
	if hb := s.beats["n1"]; hb.CPU != 1 || hb.Pods != -1 {
		t.Errorf("a full node has %s and %d pods", hb.CPU, hb.Pods)
	}

	// Constraints are reported as the pod's own selector and taints.
	s.Require(web, functions.Pod{NodeSelector: map[string]string{"zone": "b"}})
	node("n1", "2", "3", map[string]string{"zone": "a"})
	node("n2", "2", "3", map[string]string{"zone": "b"}, corev1.Taint{Key: "sku", Value: "gpu", Effect: corev1.TaintEffectNoSchedule})
	for name, want := range map[string]int{"n1": 1, "n2": 1} {
		s.states(name)
		if hb := s.beats[name]; len(hb.UnmetRequirements) != want || hb.UnmetRequirements[0] != "zone=b" {
			t.Errorf("%s has %q", name, hb.UnmetRequirements)
		}
	}
	s.Require(web, functions.Pod{NodeSelector: map[string]string{"zone": "b"}, Tolerations: []functions.Toleration{{Key: "sku", Operator: "Exists"}}})
	s.states("n2")
	if hb := s.beats["n2"]; len(hb.UnmetRequirements) != 0 {
		t.Errorf("it tolerates that taint, and is kept off: %q", hb.UnmetRequirements)
	}
	s.DropRevision(web)
	if len(s.constraints) != 0 {
		t.Errorf("%d constraints without a revision", len(s.constraints))
	}
}

// TestSlimTakes: slimmed pods and Deployments keep their resource requests.
func TestSlimTakes(t *testing.T) {
	one := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		Limits:   corev1.ResourceList{knative.GPU: resource.MustParse("2")},
	}
	spec := corev1.PodSpec{
		Containers:     []corev1.Container{{Name: "a", Resources: one, Image: "x"}, {Name: "queue-proxy", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("25m")}}}},
		InitContainers: []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("3Gi")}}}},
		Overhead:       corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")},
	}
	want := functions.Resources{GPUs: 2, Memory: 3 << 30, CPU: 375, Pods: 1}
	p, err := slim.Object(&corev1.Pod{Spec: *spec.DeepCopy()})
	if err != nil || PodResources(&p.(*corev1.Pod).Spec) != want || p.(*corev1.Pod).Spec.Containers[0].Image != "" {
		t.Errorf("a pod: %+v, %v", PodResources(&p.(*corev1.Pod).Spec), err)
	}
	d, err := slim.Object(&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: spec}}})
	if err != nil || PodResources(&d.(*appsv1.Deployment).Spec.Template.Spec) != want {
		t.Errorf("a Deployment: %+v, %v", PodResources(&d.(*appsv1.Deployment).Spec.Template.Spec), err)
	}
}

// TestCordonedBeforeScheduling: a replica placed on a node that is cordoned before its pod is
// scheduled there is placed again, and gets the unscheduled pod.
func TestCordonedBeforeScheduling(t *testing.T) {
	s := newTestCluster(t, true)
	load := func(id, node string) {
		t.Helper()
		if _, err := s.nodes[node].Load(t.Context(), functions.LoadRequest{ID: id, Team: "a", Model: "web-00001"}); err != nil {
			t.Fatal(err)
		}
	}
	load("r1", "n1")
	load("r2", "n1")
	s.SetPod(aPod("p1", "n1", runs))
	s.SetPod(aPod("p2", "", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock) }))
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: true}, Status: corev1.NodeStatus{
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		Allocatable: corev1.ResourceList{knative.GPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi")},
	}})
	if st := s.states("n1"); len(st) != 1 {
		t.Errorf("on the closed node: %v", st)
	}
	if r := s.outdatedScales(true); len(r) != 0 {
		t.Error("the pod that looks for a node is taken back")
	}
	load("r3", "n2")
	if n, p := len(s.bindings.pods), s.bindings.replicas["r3"].pod; n != 2 || p == nil || p.name != "web-00001-deployment-p2" {
		t.Errorf("%d pods; r3 has %+v", n, p)
	}
}

// TestScaleWithoutLease: while the lease is in doubt a replica is neither started nor refused.
// A refusal would reject all waiting requests, which the next term can serve.
func TestScaleWithoutLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestCluster(t, true)
		s.refuse = functions.ErrStaleEpoch
		done := make(chan error, 1)
		go func() {
			_, err := s.nodes["n1"].Load(t.Context(), functions.LoadRequest{ID: "r1", Team: "a", Model: "web-00001"})
			done <- err
		}()
		time.Sleep(3 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("refused in doubt: %v", err)
		default:
		}
		s.set(nil)
		if err := <-done; err != nil || len(s.scaled()) != 1 {
			t.Errorf("%v, %v", err, s.scaled())
		}

		s.set(functions.ErrStaleEpoch)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := s.nodes["n1"].Load(ctx, functions.LoadRequest{ID: "r2", Team: "a", Model: "web-00001"})
			done <- err
		}()
		time.Sleep(time.Second)
		cancel() // the term ends
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a term that ends says %v", err)
		}
	})
}

func TestScaleRefused(t *testing.T) {
	s := newTestCluster(t, true)
	s.refuse = errors.New("forbidden")
	_, err := s.nodes["n1"].Load(t.Context(), functions.LoadRequest{ID: "r1", Team: "a", Model: "web-00001"})
	if err == nil || len(s.states("n1")) != 0 {
		t.Errorf("%v %v", err, s.states("n1"))
	}
	if _, err := s.nodes["n1"].Load(t.Context(), functions.LoadRequest{ID: "r2", Team: "a", Model: "gone"}); err == nil {
		t.Error("a revision that is not there")
	}
	if err := s.nodes["n1"].Unload(t.Context(), functions.UnloadRequest{ID: "never"}); err != nil {
		t.Error(err)
	}
}

// TestLoaderAway: without reports of a loader, Kubernetes' Ready condition counts.
func TestLoaderAway(t *testing.T) {
	s := newTestCluster(t, true)
	s.SetPod(aPod("p1", "n1", runs, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}))
	if s.AllPodsReported() {
		t.Error("nothing is known of it, and that is called complete")
	}
	s.clock = s.clock.Add(shimSilence + time.Second)
	if st := s.want("n1", "web-00001-deployment-p1", functions.Ready); st.Endpoint != "http://10.0.0.9:8012" {
		t.Errorf("%+v", st)
	}
	s.OnPodStatus("n1", true, []controlstream.Pod{{UID: "p1", Status: functions.ReplicaStatus{State: functions.Ready, Endpoint: "http://10.0.0.9:8080"}}})
	if !s.AllPodsReported() {
		t.Error("all has been heard")
	}
}

// TestAdoptStartingPods: a new controller adopts the starts that the previous one began.
func TestAdoptStartingPods(t *testing.T) {
	s := newTestCluster(t, true)
	s.SetDeployment(web, 1, "")
	if r := s.outdatedScales(true); len(r) != 0 {
		t.Error("a size that others set is reverted at once")
	}
	s.clock = s.clock.Add(adoptDelay)
	s.SetPod(aPod("p1", "", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock) }))
	if r := s.outdatedScales(true); len(r) != 0 {
		t.Error("a pod that looks for its node is taken back")
	}
	s.SetPod(aPod("p1", "n2", runs))
	s.want("n2", "web-00001-deployment-p1", functions.Loading)
	if r := s.outdatedScales(true); len(r) != 0 {
		t.Error("a pod that was adopted is taken back")
	}

	s = newTestCluster(t, true)
	s.SetDeployment(web, 1, "")
	s.clock = s.clock.Add(adoptDelay)
	if r := s.outdatedScales(true); len(r) != 1 {
		t.Error("an unwanted pod stays")
	}
}

// TestGPUFactsAreUnknown: nothing on a node of the cluster reads its GPUs, so their memory is
// what the node's label says, and the rest unknown.
func TestGPUFactsAreUnknown(t *testing.T) {
	gpus := func(labels map[string]string) string {
		k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}}
		k.Status.Allocatable = corev1.ResourceList{knative.GPU: resource.MustParse("1")}
		b, err := json.Marshal(readNodeFacts(k).gpuList(nil, 0))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := gpus(nil); got != `[{"index":0,"health":"unknown"}]` {
		t.Error(got)
	}
	if got := gpus(map[string]string{"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.memory": "81920"}); got != `[{"index":0,"name":"H100","memory_total":85899345920,"health":"unknown"}]` {
		t.Error(got)
	}
}

// TestAdoptEndingPods: a new controller counts the GPU of a terminating pod as occupied.
func TestAdoptEndingPods(t *testing.T) {
	s := newTestCluster(t, true)
	s.SetPod(aPod("p1", "n1", runs, ends))
	if st := s.states("n1"); len(st) != 0 {
		t.Errorf("adopted: %v", st)
	}
	if n := len(s.beats["n1"].GPUs); n != 1 {
		t.Errorf("%d GPUs are free", n)
	}
	s.OnPodStatus("n1", true, []controlstream.Pod{{UID: "p1", Status: functions.ReplicaStatus{State: functions.Unloaded}}})
	if len(s.hurry) != 1 {
		t.Error("its proxy is waited for")
	}
	s.DropPod("p1")
	s.states("n1")
	if n := len(s.beats["n1"].GPUs); n != 2 {
		t.Errorf("%d GPUs are free", n)
	}
}

func TestPhases(t *testing.T) {
	s := newTestCluster(t, true)
	s.load("n1", "r1")
	s.clock = s.clock.Add(300 * time.Millisecond)
	if st := s.want("n1", "r1", functions.Downloading); len(st.Phases) != 1 || st.Phases[0].Phase != functions.PhasePlace ||
		st.Phases[0].Duration != 0.3 {
		t.Errorf("%+v", st.Phases)
	}
	s.SetPod(aPod("p1", "n1", runs))
	s.clock = s.clock.Add(700 * time.Millisecond)
	status := functions.ReplicaStatus{State: functions.Loading, Phases: []functions.Span{{Phase: functions.PhaseStage, Duration: 0.5}, {Phase: functions.PhaseLoad, Start: 0.5, Duration: 0.1, Parts: []functions.Part{{Name: "weights", Start: 0.5}}}}}
	s.OnPodStatus("n1", false, []controlstream.Pod{{UID: "p1", Status: status}})
	s.clock = s.clock.Add(time.Hour)
	st := s.want("n1", "r1", functions.Loading)
	if p := st.Phases; len(p) != 3 || p[0].Duration != 1 || p[1].Start != 1 || p[2].Start != 1.5 || p[2].Parts[0].Start != 1.5 {
		t.Errorf("%+v", p)
	}
	if status.Phases[1].Parts[0].Start != 0.5 {
		t.Error("what the shim said is changed")
	}

	s = newTestCluster(t, false)
	s.load("n1", "r1")
	s.clock = s.clock.Add(time.Second)
	s.SetPod(aPod("p1", "n1", runs))
	s.states("n1")
	s.clock = s.clock.Add(time.Second)
	s.onProbeSuccess("p1")
	s.states("n1")
	s.clock = s.clock.Add(time.Hour)
	if p := s.want("n1", "r1", functions.Ready).Phases; len(p) != 2 || p[0].Duration != 1 || p[1].Phase != functions.PhaseSpawn ||
		p[1].Start != 1 || p[1].Duration != 1 {
		t.Errorf("%+v", p)
	}
}

func TestSlim(t *testing.T) {
	p := aPod("p", "n1", runs)
	p.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "SECRET", Value: "x"}}
	o, err := slim.Object(p)
	got := o.(*corev1.Pod)
	if err != nil || got.ManagedFields != nil || got.Spec.Containers[0].Env != nil || got.Spec.NodeName != "n1" ||
		len(got.Spec.Containers[0].Resources.Limits) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestRequestsDoNotOverflow: requests that add up to more than an int64 stay positive.
func TestRequestsDoNotOverflow(t *testing.T) {
	for _, text := range []string{fmt.Sprint(int64(math.MaxInt64)), "9225872036854773307", "99999999999999999999Ei"} { // the last two are no int64
		most := resource.MustParse(text)
		c := corev1.Container{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: most, corev1.ResourceCPU: most}, Limits: corev1.ResourceList{knative.GPU: most},
		}}
		if sum := PodResources(&corev1.PodSpec{Containers: []corev1.Container{c, c}, Overhead: c.Resources.Requests}); sum.Memory != 3*maxRequest || sum.CPU != 3*maxRequest || sum.GPUs != 2*maxRequest {
			t.Errorf("%s: %+v", text, sum)
		}
	}
}
