package autoscale

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	netv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	"knative.dev/pkg/apis"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	knserving "knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	serving "knative.dev/serving/pkg/client/clientset/versioned"

	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/testkit"
)

// cluster is a real cluster with a namespace for the test, a reconciler, and a stand-in
// for the controller.
type cluster struct {
	*testing.T
	clients
	config *rest.Config
	space  string
	*standIn
}

// class differs from thaw's own, so a controller of thaw in the cluster ignores the test's
// objects.
const class = "autoscale.thaw.test"

// open connects to the cluster, or skips the test if none is named.
func open(t *testing.T) *cluster {
	file := os.Getenv("THAW_CLUSTER_KUBECONFIG")
	if file == "" {
		testkit.Missing(t, "THAW_CLUSTER_KUBECONFIG names no cluster: make cluster e2e")
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	c := &cluster{T: t, config: config, space: "autoscale-" + strings.ReplaceAll(time.Now().UTC().Format("0102-150405.000"), ".", "-")}
	c.kube = kubernetes.NewForConfigOrDie(config)
	c.serving = serving.NewForConfigOrDie(config)
	c.networking = networking.NewForConfigOrDie(config)
	if _, err := c.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.space}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.standIn = &standIn{api: c.kube, space: c.space, want: map[string]Scale{}, last: map[string]Scale{}, held: map[string]demand{}}
	c.r = New(lend(ctx, t,
		Options{Config: config, Scales: c.standIn, Demand: c.demanded, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, c.serving,
		c.networking))
	c.r.class = class
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() { c.standIn.run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := c.kube.CoreV1().Namespaces().Delete(context.Background(), c.space, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return c
}

// standIn does what the test wants: it writes the scale of Deployments and reports it.
type standIn struct {
	api   kubernetes.Interface
	space string
	r     *Reconciler

	mu   sync.Mutex
	want map[string]Scale // by revision; Ready is ignored
	last map[string]Scale
	held map[string]demand
	seen time.Time // first request that bypassed thaw's activators
	wake bool      // one replica for requests that bypass thaw's activators
}

func (s *standIn) Scale(namespace, revision string) (Scale, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.last[revision]
	return x, ok && namespace == s.space
}

func (s *standIn) demanded(namespace, revision string, active, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if namespace != s.space {
		return
	}
	s.held[revision] = demand{active, queued}
	if s.seen.IsZero() && queued > 0 {
		s.seen = time.Now()
	}
	if s.wake && active+queued > 0 {
		s.want[revision] = Scale{Desired: 1}
	}
}

func (s *standIn) scale(revision string, x Scale) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want[revision] = x
}

func (s *standIn) run(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all, err := s.api.AppsV1().Deployments(s.space).List(ctx, metav1.ListOptions{LabelSelector: knserving.RevisionLabelKey})
		if err != nil {
			continue
		}
		for i := range all.Items {
			s.one(ctx, &all.Items[i])
		}
	}
}

func (s *standIn) one(ctx context.Context, d *appsv1.Deployment) {
	name := d.Labels[knserving.RevisionLabelKey]
	s.mu.Lock()
	x := s.want[name]
	x.Actual, x.Ready = d.Status.Replicas, min(d.Status.ReadyReplicas, x.Desired)
	before, known := s.last[name]
	s.last[name] = x
	s.mu.Unlock()
	if d.Spec.Replicas != nil && *d.Spec.Replicas != x.Desired && d.Annotations["thaw.test/class"] != "" {
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, x.Desired)
		_, _ = s.api.AppsV1().Deployments(s.space).Patch(ctx, d.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	}
	if !known || before != x {
		s.r.Changed(s.space, name)
	}
}

// deploy creates a Service. Class "" is Knative's own.
func (c *cluster) deploy(name, class, image string, annotations map[string]string) {
	c.Helper()
	a := map[string]string{}
	if class != "" {
		a[knative.ClassAnnotation], a["thaw.test/class"] = class, "1"
	}
	for k, v := range annotations {
		a[k] = v
	}
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{
			Template: servingv1.RevisionTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: a},
				Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
					Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				}}}},
			},
		}}}
	if _, err := c.serving.ServingV1().Services(c.space).Create(c.Context(), s, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

// eventually polls until ok returns true.
func (c *cluster) eventually(what string, within time.Duration, ok func() (bool, string)) {
	c.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); ; <-tick.C {
		good, saw := ok()
		if good {
			return
		}
		if time.Now().After(end) {
			c.Fatalf("%s: not within %v; last: %s", what, within, saw)
		}
	}
}

// conditions formats conditions on one line, sorted by name, with the object's own names
// removed.
func conditions(all []apis.Condition, names ...string) string {
	var out []string
	for _, x := range all {
		s := fmt.Sprintf("%s=%s %s %s", x.Type, x.Status, x.Reason, x.Message)
		for _, n := range names {
			s = strings.ReplaceAll(s, n, "NAME")
		}
		out = append(out, strings.TrimSpace(s))
	}
	return strings.Join(out, "; ")
}

func (c *cluster) said(name string) (service, revision, pa string) {
	s, err := c.serving.ServingV1().Services(c.space).Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error(), "", ""
	}
	service = conditions(s.Status.Conditions, name)
	r, err := c.serving.ServingV1().Revisions(c.space).Get(c.Context(), name+"-00001", metav1.GetOptions{})
	if err == nil {
		revision = conditions(r.Status.Conditions, name)
	}
	p, err := c.serving.AutoscalingV1alpha1().PodAutoscalers(c.space).Get(c.Context(), name+"-00001", metav1.GetOptions{})
	if err == nil {
		pa = conditions(p.Status.Conditions, name) +
			fmt.Sprintf("; desired %d actual %d service %q metrics %q", p.Status.GetDesiredScale(), p.Status.GetActualScale(),
				strings.ReplaceAll(p.Status.ServiceName, name, "NAME"), strings.ReplaceAll(p.Status.MetricsServiceName, name, "NAME"))
	}
	return service, revision, pa
}

func (c *cluster) active(name string, status corev1.ConditionStatus) (bool, string) {
	p, err := c.serving.AutoscalingV1alpha1().PodAutoscalers(c.space).Get(c.Context(), name+"-00001", metav1.GetOptions{})
	if err != nil {
		return false, err.Error()
	}
	x := p.Status.GetCondition(v1alpha1.PodAutoscalerConditionActive)
	return x != nil && x.Status == status, fmt.Sprintf("%+v desired %d actual %d", x, p.Status.GetDesiredScale(), p.Status.GetActualScale())
}

func (c *cluster) mode(name string, want netv1alpha1.ServerlessServiceOperationMode) func() (bool, string) {
	return func() (bool, string) {
		s, err := c.networking.NetworkingV1alpha1().ServerlessServices(c.space).Get(c.Context(), name+"-00001", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return s.Spec.Mode == want, string(s.Spec.Mode)
	}
}

// ask sends one request through Knative's own ingress and returns the status.
func (c *cluster) ask(ctx context.Context, name string) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, os.Getenv("THAW_CLUSTER_INGRESS"), nil)
	if err != nil {
		return 0, err.Error()
	}
	r.Host = name + "." + c.space + "." + os.Getenv("THAW_ROUTE_DOMAIN")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	b, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b)
}

// patience bounds waits on a busy machine.
const patience = 5 * time.Minute

const (
	hello  = "dev.local/hello:test"
	absent = "dev.local/absent:test"
)

// TestClusterZero: a Service of our class has the same conditions, word for word, as one
// of Knative's own class: at zero from the first moment on, with one replica, and at zero
// again.
func TestClusterZero(t *testing.T) {
	c := open(t)
	zero := map[string]string{"autoscaling.knative.dev/initial-scale": "0"}
	c.deploy("ours", class, hello, zero)
	c.deploy("theirs", "", hello, zero)
	ready := func(want string) func(s, r, p string) bool {
		return func(s, _, p string) bool { return strings.Contains(s, "Ready=True") && strings.Contains(p, want) }
	}
	within := patience
	// Knative's own autoscaler has no desired scale before the first request.
	c.eventually("ready at zero", within, func() (bool, string) {
		s, r, p := c.said("ours")
		ks, kr, kp := c.said("theirs")
		kp = strings.ReplaceAll(kp, "desired -1", "desired 0")
		return s == ks && r == kr && p == kp &&
				ready("Active=False NoTraffic")(s, r, p),
			fmt.Sprintf("\nours:    %s\nknative: %s\nours:    %s\nknative: %s\nours:    %s\nknative: %s", s, ks, r, kr, p, kp)
	})
	s, r, p := c.said("ours")
	t.Logf("at zero:\n%s\n%s\n%s", s, r, p)

	c.scale("ours-00001",
		Scale{Desired: 1, Active: corev1.ConditionUnknown, Reason: "WaitingForGPUs",
			Message: "waiting for 2 GPUs; evicting team-b/llama, idle 14 min"})
	c.eventually("the reason reaches the revision", within, func() (bool, string) {
		_, r, _ := c.said("ours")
		return strings.Contains(r, "Active=Unknown WaitingForGPUs waiting for 2 GPUs; evicting team-b/llama, idle 14 min"), r
	})
	c.scale("ours-00001", Scale{Desired: 1})
	c.eventually("one", within, func() (bool, string) { return c.active("ours", corev1.ConditionTrue) })
	if status, said := c.ask(t.Context(), "ours"); status != http.StatusOK {
		t.Errorf("a warm request: %d %s", status, said)
	}
	c.scale("ours-00001", Scale{})
	c.eventually("zero again", within, func() (bool, string) { return c.active("ours", corev1.ConditionFalse) })
	s, _, _ = c.said("ours")
	if !strings.Contains(s, "Ready=True") {
		t.Errorf("a model that was used is not ready at zero: %s", s)
	}
	c.eventually("Events of the Service", within, func() (bool, string) {
		all, err := c.kube.CoreV1().Events(c.space).List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=Service,involvedObject.name=ours,source=thaw"})
		if err != nil {
			return false, err.Error()
		}
		var told []string
		for _, e := range all.Items {
			told = append(told, e.Type+" "+e.Reason+" "+e.Message)
		}
		text := strings.Join(told, "\n")
		for _, want := range []string{
			"Warning WaitingForGPUs revision ours-00001: waiting for 2 GPUs; evicting team-b/llama, idle 14 min",
			"Normal Scaled revision ours-00001: from 0 to 1 replicas",
			"Normal Scaled revision ours-00001: from 1 to 0 replicas",
		} {
			if !strings.Contains(text, want) {
				return false, text
			}
		}
		return len(all.Items) == 4, text // and DemandUnseen, once
	})
}

// TestClusterFailures: a broken image has the same conditions as in Knative's own class.
func TestClusterFailures(t *testing.T) {
	c := open(t)
	a := map[string]string{"serving.knative.dev/progress-deadline": "10s"}
	c.deploy("ours", class, absent, a)
	c.deploy("theirs", "", absent, a)
	c.scale("ours-00001", Scale{Desired: 1})
	// Knative's own class then scales to zero and loses part of the reason.
	var ours, theirs bool
	c.eventually("a broken image", patience, func() (bool, string) {
		s, r, _ := c.said("ours")
		ks, kr, _ := c.said("theirs")
		broken := func(s, r string) bool {
			return (strings.Contains(r, "ResourcesAvailable=False ImagePullBackOff") ||
				strings.Contains(r, "ResourcesAvailable=False ErrImagePull")) &&
				strings.Contains(s, "Ready=False") && strings.Contains(s, "ConfigurationsReady=False RevisionFailed")
		}
		ours, theirs = ours || broken(s, r), theirs || broken(ks, kr)
		return ours && theirs, fmt.Sprintf("\nours %v:    %s\n%s\nknative %v: %s\n%s", ours, s, r, theirs, ks, kr)
	})
	s, r, p := c.said("ours")
	t.Logf("a broken image:\n%s\n%s\n%s", s, r, p)
	c.scale("ours-00001", Scale{Active: corev1.ConditionFalse, Reason: "ImagePullBackOff", Message: "no node can pull it"})
	c.eventually("given up", patience, func() (bool, string) {
		_, r, _ := c.said("ours")
		return strings.Contains(r, "Active=False ImagePullBackOff no node can pull it") && strings.Contains(r, "Ready=False"), r
	})
}

// TestClusterOutside: a request through another ingress wakes a revision of our class.
// Knative's activator is restarted with metrics, and afterwards restored.
func TestClusterOutside(t *testing.T) {
	c := open(t)
	system := c.kube.CoreV1().ConfigMaps("knative-serving")
	set := func(ctx context.Context, value string) {
		t.Helper()
		if _, err := system.Patch(ctx, "config-observability", types.MergePatchType, fmt.Appendf(nil, `{"data":{"metrics-protocol":%s}}`, value), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		d := c.kube.AppsV1().Deployments("knative-serving")
		patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"thaw.test/restarted":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
		if _, err := d.Patch(ctx, "activator", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set(t.Context(), `"prometheus"`)
	t.Cleanup(func() { set(context.Background(), "null") })
	c.eventually("the activator with its metrics", patience, func() (bool, string) {
		d, err := c.kube.AppsV1().Deployments("knative-serving").Get(t.Context(), "activator", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		st := d.Status
		return st.ObservedGeneration >= d.Generation && st.UpdatedReplicas == st.Replicas && st.AvailableReplicas == st.Replicas &&
			st.Replicas > 0, fmt.Sprintf("%+v", st)
	})
	c.mu.Lock()
	c.wake = true
	c.mu.Unlock()
	c.deploy("ours", class, hello, map[string]string{"autoscaling.knative.dev/initial-scale": "0"})
	c.eventually("ready", patience, func() (bool, string) { s, _, _ := c.said("ours"); return strings.Contains(s, "Ready=True"), s })
	began := time.Now()
	c.eventually("a cold request by another ingress", patience, func() (bool, string) {
		status, said := c.ask(t.Context(), "ours")
		if status == http.StatusNotFound { // the ingress does not have the route yet
			began = time.Now()
		}
		return status == http.StatusOK, fmt.Sprintf("%d %s", status, said)
	})
	c.mu.Lock()
	t.Logf("woken by another ingress in %v; it was seen after %v", time.Since(began), c.seen.Sub(began))
	c.mu.Unlock()
	c.eventually("its activator stays in the path", patience, c.mode("ours", netv1alpha1.SKSOperationModeProxy))
	c.eventually("no requests any more", patience, func() (bool, string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.held["ours-00001"] == demand{}, fmt.Sprintf("%+v", c.held)
	})
}
