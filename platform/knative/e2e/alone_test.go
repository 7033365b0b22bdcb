package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
)

// pending watches for pods that wait for a GPU while no pod is terminating. The returned
// function ends the watch and lists such pods.
func (s *space) pending() (ended func() []string) {
	w, err := s.watching.CoreV1().Pods(s.ns).Watch(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var bad []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		pods := map[string]*corev1.Pod{}
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			pods[p.Name] = p
			if e.Type == "DELETED" {
				delete(pods, p.Name)
			}
			leaving := 0
			for _, p := range pods {
				if p.DeletionTimestamp != nil {
					leaving++
				}
			}
			for _, c := range p.Status.Conditions {
				if p.DeletionTimestamp == nil && c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
					c.Reason == corev1.PodReasonUnschedulable && leaving == 0 {
					bad = append(bad, p.Name+": "+c.Message)
				}
			}
		}
	}()
	return func() []string {
		w.Stop()
		<-done
		return bad
	}
}

// gpuPods lists the pods of a namespace that hold GPUs, also terminating ones.
func (s *space) gpuPods() (held int64, names []string) {
	list, err := s.core.CoreV1().Pods(s.ns).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, c := range p.Spec.Containers {
			if q, ok := c.Resources.Limits[knative.GPU]; ok {
				held += q.Value()
				names = append(names, p.Name)
			}
		}
	}
	return held, names
}

// eviction calls three models of one GPU each in turn, on two GPUs.
func eviction(s *space) {
	for _, name := range []string{"a", "b", "c"} {
		s.deployed(s.tiny(name, gpu(1), "scale: {idle: 10m}", "deadlines: {drain: 5s}"))
	}
	ended := s.pending()
	warm := []string{}
	for i, name := range []string{"a", "b", "c", "a", "b", "c"} {
		a := s.must("a call of "+name, s.byModel(name, 8, false))
		s.Logf("call %d, of %s: %s", i+1, name, a.took.Round(time.Millisecond))
		if warm = append(warm, name); len(warm) > gpus {
			s.atZero(s.revision(warm[0])) // only the least recently used model is evicted
			warm = warm[1:]
		}
		for _, other := range warm {
			if want, _, saw := s.scale(s.revision(other)); want != 1 {
				s.Fatalf("%s was called later and has gone: %s", other, saw)
			}
		}
	}
	for _, bad := range ended() {
		s.Errorf("a pod waits for a GPU without an eviction: %s", bad)
	}
	s.until("an event tells of an eviction", func() (bool, string) {
		out := s.events("Service", "")
		return strings.Contains(strings.ToLower(out), "evict"), out
	})
}

// quota calls the models of a team with a quota of one GPU, and of one without a quota.
func quota(s *space) {
	s.patch(s.T, "namespace", "", s.ns, map[string]any{"metadata": map[string]any{"annotations": map[string]string{"thaw.dev/requests-per-minute": "1000"}}})
	if _, err := s.core.CoreV1().ResourceQuotas(s.ns).Create(s.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests." + knative.GPU: resource.MustParse("1")}},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	other := s.team(s.T, "free")
	file := []string{gpu(2), "scale: {idle: 2s}"}
	s.deployed(s.tiny("two", file...), "--skip-preflight") // the check would refuse it
	s.deployed(s.tiny("one", gpu(1), "scale: {idle: 2s}"))
	other.deployed(other.tiny("two", file...))
	a := s.byModel("two", 8, false)
	if a.err != nil || a.status != http.StatusTooManyRequests || a.code() != string(openai.GPUQuotaExceeded) ||
		!strings.Contains(a.body, "it needs 2 GPUs and team "+s.ns+" may hold 1") {
		s.Fatalf("two GPUs of one: %s", a)
	}
	s.Logf("refused: %s", a)
	if want, _, saw := s.scale(s.revision("two")); want != 0 {
		s.Errorf("what may not run is scaled: %s", saw)
	}
	s.must("one GPU of one", s.byModel("one", 8, false))
	s.atZero(s.revision("one"))
	other.must("two GPUs of another team", other.byModel("two", 8, false))
}

// loaderKilled kills the node's loader while it stages.
func loaderKilled(s *space) {
	file := s.tiny("tiny", "deadlines: {start: 2m, stage: 2m}")
	s.deployed(file)
	open := s.stall(s.ns + "/tiny/model.safetensors")
	defer open()
	call := make(chan answer, 1)
	go func() { call <- s.byModel("tiny", 8, false) }()
	s.until("the fetch is under way", func() (bool, string) {
		return s.stalled(s.ns + "/tiny/model.safetensors"), "no request for the weights"
	})
	was := s.killPods("loader", 1)
	s.until("another loader", func() (bool, string) {
		now := s.thawPods("loader")
		for _, p := range now {
			if p.UID != was[0].UID && ready(p) {
				return true, ""
			}
		}
		return false, fmt.Sprint(len(now), " pods")
	})
	open()
	s.must("the call that was held", <-call)
}

// activatorKilled kills one of two activators while both hold requests.
func activatorKilled(s *space) {
	s.deployed(s.tiny("tiny", "args: [--ready-delay, 10s]", "deadlines: {start: 1m}"))
	pods := s.thawPods("activator")
	if len(pods) != 2 {
		s.Fatalf("%d activators", len(pods))
	}
	calls := make([]chan answer, 2)
	for i := range calls {
		calls[i] = make(chan answer, 1)
		direct := s.through(pods[i])
		go func() { calls[i] <- direct.byModel("tiny", 8, false) }()
	}
	s.until("a start", func() (bool, string) {
		want, _, saw := s.scale(s.revision("tiny"))
		return want == 1, saw
	})
	began := time.Now()
	if err := s.core.CoreV1().Pods(install.Namespace).Delete(s.Context(), pods[0].Name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		s.Fatal(err)
	}
	lost := <-calls[0]
	if lost.whole() {
		s.Fatalf("the activator that was killed has answered: %s", lost)
	}
	if lost.err == nil && lost.status < 500 {
		s.Errorf("no error that a client retries: %s", lost)
	}
	s.Logf("%s after the end of its activator: %s", time.Since(began).Round(time.Millisecond), lost)
	s.until("Kubernetes knows of its end", func() (bool, string) { // until then Kubernetes routes requests to it
		list, err := s.core.DiscoveryV1().EndpointSlices(install.Namespace).List(s.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=thaw"})
		if err != nil {
			return false, err.Error()
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if slices.Contains(e.Addresses, pods[0].Status.PodIP) {
					return false, fmt.Sprint(e.Addresses)
				}
			}
		}
		return true, ""
	})
	var again answer
	s.until("the node routes no request there", func() (bool, string) { // kube-proxy's rules follow a moment later
		again = s.byModel("tiny", 8, false)
		return again.err == nil, again.String()
	})
	s.must("the same again", again)
	s.must("the one that the other activator held", <-calls[1])
	s.until("two activators again", func() (bool, string) {
		n := 0
		for _, p := range s.thawPods("activator") {
			if ready(p) {
				n++
			}
		}
		return n == 2, fmt.Sprint(n)
	})
}

// controllerKilled kills the leading controller in the middle of an eviction.
func controllerKilled(s *space) {
	for _, name := range []string{"a", "b", "c"} {
		s.deployed(s.tiny(name, gpu(1), "args: [--token-delay, 20ms]", "scale: {idle: 10m}", "deadlines: {drain: 10s}"))
	}
	s.must("a call of a", s.byModel("a", 8, false))
	s.must("a call of b", s.byModel("b", 8, false))
	s.must("another call of a", s.byModel("a", 8, false)) // so b is the least recently used
	long := make(chan answer, 1)
	go func() { long <- s.byModel("a", 200, true) }()
	// SIGSTOP holds the shim of b, so that its drain lasts until the test continues it.
	victim := s.pods("b")[0].Name
	shim := 0
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range all {
		line, _ := os.ReadFile(f)
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "environ"))
		args := strings.Split(string(line), "\x00")
		if len(args) > 1 && args[1] == "runtime" && slices.Contains(strings.Split(string(env), "\x00"), "HOSTNAME="+victim) {
			shim, _ = strconv.Atoi(filepath.Base(filepath.Dir(f)))
		}
	}
	if shim == 0 {
		s.Fatalf("no shim in %s", victim)
	}
	ended := s.pending()
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		s.Fatal(err)
	}
	goes := sync.OnceFunc(func() { syscall.Kill(shim, syscall.SIGCONT) })
	defer goes()
	call := make(chan answer, 1)
	go func() { call <- s.byModel("c", 8, false) }()
	s.until("b makes way", func() (bool, string) {
		b, _, saw := s.scale(s.revision("b"))
		return b == 0, saw
	})
	lease, err := s.of("lease", install.Namespace).Get(s.Context(), "thaw-controller", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	holder, _, _ := strings.Cut(fmt.Sprint(field(lease, "spec.holderIdentity")), "_") // POD_RANDOM@ADDRESS
	if err := s.core.CoreV1().Pods(install.Namespace).Delete(s.Context(), holder,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		s.Fatal(err)
	}
	if held, names := s.gpuPods(); held != gpus || !slices.Contains(names, victim) {
		s.Fatalf("the eviction of %s was over when the controller was killed: %d GPUs are held by %v", victim, held, names)
	}
	goes()
	s.must("the call that an eviction was for", <-call)
	<-long // complete, or cut at the end of the drain
	if held, names := s.gpuPods(); held > gpus {
		s.Errorf("%d GPUs are held by %v", held, names)
	}
	s.until("one has gone, and two are there", func() (bool, string) {
		sum, all := int64(0), ""
		for _, name := range []string{"a", "b", "c"} {
			want, _, saw := s.scale(s.revision(name))
			sum += want
			all += name + ": " + saw + "; "
		}
		return sum == gpus, all
	})
	for _, bad := range ended() {
		s.Errorf("a pod waits for a GPU without an eviction: %s", bad)
	}
}

// serverAway stops the API server for a minute.
func serverAway(s *space) {
	s.deployed(s.tiny("tiny", "scale: {idle: 10m}"))
	s.must("a cold call", s.byModel("tiny", 8, false))
	pid := processOf(s, "kube-apiserver")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		s.Fatal(err)
	}
	goes := sync.OnceFunc(func() { syscall.Kill(pid, syscall.SIGCONT) })
	defer goes()
	n, end, tick := 0, time.After(time.Minute), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for away := true; away; {
		select {
		case <-end:
			away = false
		case <-tick.C:
			for _, ask := range []func(string, int, bool) answer{s.byModel, s.byHost} {
				if a := ask("tiny", 8, n%2 == 0); !a.whole() {
					s.Errorf("a call without an API server: %s", a)
					away = false
				}
				n++
			}
		}
	}
	goes()
	s.Logf("%d calls in that minute", n)
	s.until("the API server answers", func() (bool, string) {
		_, err := s.core.Discovery().ServerVersion()
		return err == nil, fmt.Sprint(err)
	})
	s.until("its scale is what it was", func() (bool, string) { // the first requests may fail
		want, _, saw := s.scale(s.revision("tiny"))
		if want >= 0 && want != 1 {
			s.Fatalf("a wrong scale after it: %s", saw)
		}
		return want == 1, saw
	})
	// Kubernetes marks a node whose heartbeats could not reach it as not ready, and with it
	// all pods and Service endpoints; the next heartbeat ends that. It looks at nodes every
	// five seconds, also some seconds after its API server is back: only what holds for ten
	// seconds is over.
	const stable = 10 * time.Second
	var since time.Time
	s.until("Kubernetes believes in the activators again", func() (bool, string) {
		list, err := s.core.DiscoveryV1().EndpointSlices(install.Namespace).List(s.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=thaw"})
		if err != nil {
			return false, err.Error()
		}
		ready, node := 0, ""
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					ready++
				}
			}
		}
		nodes, err := s.core.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		up := true
		for _, n := range nodes.Items {
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					up, node = up && c.Status == corev1.ConditionTrue, node+n.Name+" "+string(c.Status)
				}
			}
		}
		if !up || ready == 0 {
			since = time.Time{}
		} else if since.IsZero() {
			since = time.Now()
		}
		return !since.IsZero() && time.Since(since) >= stable, fmt.Sprintf("%d addresses; %s", ready, node)
	})
	s.deployed(s.tiny("after", "scale: {idle: 2s}"))
	s.must("a model that is new after it", s.byModel("after", 8, false))
	s.atZero(s.revision("after"))
}

// processOf finds a process of the cluster by its first arguments. The test runs in the
// cluster's process namespace.
func processOf(s *space, word string) int {
	s.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		args := strings.Split(string(b), "\x00")
		if len(args) > 1 && args[1] == word {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	s.Fatalf("no process %s", word)
	return 0
}

// thawPods lists the pods of one of thaw's components.
func (s *suite) thawPods(component string) []corev1.Pod {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	list, err := s.core.CoreV1().Pods(install.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=thaw,app.kubernetes.io/component=" + component})
	if err != nil {
		return nil
	}
	var live []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			live = append(live, p)
		}
	}
	return live
}

func ready(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// killPods deletes a component's pods without grace.
func (s *space) killPods(component string, want int) []corev1.Pod {
	s.Helper()
	pods := s.thawPods(component)
	if len(pods) != want {
		s.Fatalf("%d pods of %s", len(pods), component)
	}
	for _, p := range pods {
		if err := s.core.CoreV1().Pods(install.Namespace).Delete(s.Context(), p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			s.Fatal(err)
		}
	}
	return pods
}

// stalls holds blobs whose requests the blob server does not answer yet.
type stalls struct {
	mu    sync.Mutex
	blobs map[string]*stalling
}

type stalling struct {
	asked bool
	open  chan struct{}
}

// stall makes the blob server hold requests for a blob until the returned function is
// called.
func (s *space) stall(blob string) (open func()) {
	x := &stalling{open: make(chan struct{})}
	s.stalls.mu.Lock()
	s.stalls.blobs[blob] = x
	s.stalls.mu.Unlock()
	return sync.OnceFunc(func() {
		s.stalls.mu.Lock()
		delete(s.stalls.blobs, blob)
		s.stalls.mu.Unlock()
		close(x.open)
	})
}

func (s *suite) stalled(blob string) bool {
	s.stalls.mu.Lock()
	defer s.stalls.mu.Unlock()
	x := s.stalls.blobs[blob]
	return x != nil && x.asked
}

// fault is called by the blob server before each answer.
func (s *stalls) fault(_ http.ResponseWriter, r *http.Request, n int) bool {
	if n == 0 { // a listing of blobs
		return false
	}
	s.mu.Lock()
	var at *stalling
	for blob, one := range s.blobs {
		if strings.HasSuffix(r.URL.Path, "/"+blob) {
			one.asked = true
			at = one
		}
	}
	s.mu.Unlock()
	if at != nil {
		select {
		case <-at.open:
		case <-r.Context().Done():
		}
	}
	return false
}
