package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/install"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

const (
	image = "dev.local/thaw:test"
	gpus  = 2
	// blobsAt is the address of the blob server: one of the node's that every cluster of
	// deploy/cluster has.
	blobsAt = "10.88.0.1:10000"
)

// suite is the cluster with thaw installed.
type suite struct {
	kubeconfig string
	programs   string // folder with thaw and thaw-knative
	domain     string // of Knative's routes
	config     *rest.Config
	dynamic    dynamic.Interface
	core       kubernetes.Interface
	watching   kubernetes.Interface // without a request timeout
	blobs      *azuretest.Server
	stalls     *stalls
	gateway    string // http://ADDRESS of the Service thaw
}

// TestCluster runs the tests of a cluster in order.
func TestCluster(t *testing.T) {
	s := open(t)
	s.install(t)
	together := []struct {
		name string
		run  func(*space)
	}{
		{"life", life},
		{"load", load},
		{"canary", canary},
		{"rollout", rollout},
		{"by-hand", byHand},
		{"bad-image", badImage},
		{"bad-source", badSource},
		{"never-ready", neverReady},
		{"called-off", calledOff},
		{"evicted-pod", evictedPod},
		{"verbs", verbs},
	}
	t.Run("together", func(t *testing.T) {
		for _, test := range together {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				test.run(s.space(t))
			})
		}
	})
	s.told(t)
	alone := []struct {
		name string
		run  func(*space)
	}{
		{"eviction", eviction},
		{"quota", quota},
		{"guarantee", guarantee},
		{"turns", turns},
		{"bounds", bounds},
		{"policy", policy},
		{"limits", limits},
		{"warm-image", warmImage},
		{"loader-killed", loaderKilled},
		{"activator-killed", activatorKilled},
		{"controller-killed", controllerKilled},
		{"server-away", serverAway},
	}
	t.Run("alone", func(t *testing.T) {
		for _, test := range alone {
			t.Run(test.name, func(t *testing.T) { test.run(s.space(t)) })
		}
	})
	s.told(t) // before the controller is removed
	t.Run("uninstall", func(t *testing.T) { s.uninstall(t) })
}

// open connects to the cluster, or skips the test if none is named.
func open(t *testing.T) *suite {
	s := &suite{kubeconfig: os.Getenv("THAW_CLUSTER_KUBECONFIG"), programs: os.Getenv("THAW_PROGRAMS"), domain: os.Getenv("THAW_ROUTE_DOMAIN")}
	if s.kubeconfig == "" {
		testkit.Missing(t, "THAW_CLUSTER_KUBECONFIG names no cluster: make cluster e2e")
	}
	if s.programs == "" || s.domain == "" {
		t.Fatal("THAW_PROGRAMS or THAW_ROUTE_DOMAIN is not set: make e2e")
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst, config.Timeout = -1, 0, 30*time.Second
	s.config = config
	if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if s.core, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	endless := rest.CopyConfig(config)
	endless.Timeout = 0
	if s.watching, err = kubernetes.NewForConfig(endless); err != nil {
		t.Fatal(err)
	}
	return s
}

// kinds maps kubectl's names of kinds to their resources.
var kinds = map[string]schema.GroupVersionResource{
	"ksvc":       {Group: "serving.knative.dev", Version: "v1", Resource: "services"},
	"revision":   {Group: "serving.knative.dev", Version: "v1", Resource: "revisions"},
	"route":      {Group: "serving.knative.dev", Version: "v1", Resource: "routes"},
	"kingress":   {Group: "networking.internal.knative.dev", Version: "v1alpha1", Resource: "ingresses"},
	"pa":         {Group: "autoscaling.internal.knative.dev", Version: "v1alpha1", Resource: "podautoscalers"},
	"sks":        {Group: "networking.internal.knative.dev", Version: "v1alpha1", Resource: "serverlessservices"},
	"deployment": {Group: "apps", Version: "v1", Resource: "deployments"},
	"daemonset":  {Group: "apps", Version: "v1", Resource: "daemonsets"},
	"pod":        {Version: "v1", Resource: "pods"},
	"node":       {Version: "v1", Resource: "nodes"},
	"namespace":  {Version: "v1", Resource: "namespaces"},
	"service":    {Version: "v1", Resource: "services"},
	"secret":     {Version: "v1", Resource: "secrets"},
	"event":      {Version: "v1", Resource: "events"},
	"configmap":  {Version: "v1", Resource: "configmaps"},
	"quota":      {Version: "v1", Resource: "resourcequotas"},
	"lease":      {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
}

func (s *suite) of(kind, namespace string) dynamic.ResourceInterface {
	gvr, ok := kinds[kind]
	if !ok {
		panic("no kind " + kind)
	}
	if namespace == "" {
		return s.dynamic.Resource(gvr)
	}
	return s.dynamic.Resource(gvr).Namespace(namespace)
}

// field returns a value within an object by its path, such as status.conditions; nil if
// absent.
func field(o *unstructured.Unstructured, path string) any {
	if o == nil {
		return nil
	}
	v, _, _ := unstructured.NestedFieldNoCopy(o.Object, strings.Split(path, ".")...)
	return v
}

// condition returns a condition's status, with its reason and message.
func condition(o *unstructured.Unstructured, kind string) (status, why string) {
	list, _ := field(o, "status.conditions").([]any)
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return fmt.Sprint(m["status"]), fmt.Sprint(m["reason"], ": ", m["message"])
		}
	}
	return "", "no condition " + kind
}

// until polls until ok returns true.
func until(t *testing.T, bound time.Duration, what string, ok func() (good bool, saw string)) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for {
		good, saw := ok()
		if good {
			return
		}
		if time.Since(began) > bound {
			t.Fatalf("%s: not within %s; last seen: %s", what, bound, saw)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s: the test ended; last seen: %s", what, saw)
		case <-tick.C:
		}
	}
}

// program runs thaw or thaw-knative.
func (s *suite) program(ctx context.Context, name string, args ...string) (stdout, stderr string, code int) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig, "THAW_IMAGE="+image, "NO_COLOR=1")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		return "", err.Error(), -1
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// patch merges into an object.
func (s *suite) patch(t *testing.T, kind, namespace, name string, merge any, sub ...string) {
	t.Helper()
	b, err := json.Marshal(merge)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.of(kind, namespace).Patch(t.Context(), name, types.MergePatchType, b, metav1.PatchOptions{}, sub...); err != nil {
		t.Fatalf("%s %s: %v", kind, name, err)
	}
}

// install installs thaw as an operator does.
func (s *suite) install(t *testing.T) {
	s.serveBlobs(t)
	for _, f := range knative.Features {
		s.patch(t, "configmap", "knative-serving", f.Map, map[string]any{"data": map[string]string{f.Key: f.Value}})
	}
	nodes, err := s.of("node", "").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("this suite is for a cluster of one node: %v", err)
	}
	amount := map[string]string{string(knative.GPU): fmt.Sprint(gpus)}
	s.patch(t, "node", "", nodes.Items[0].GetName(), map[string]any{"status": map[string]any{"capacity": amount, "allocatable": amount}}, "status")

	if _, errs, code := s.program(t.Context(), "thaw-knative", "install", "--image", image, "--loaders", "all",
		"--keep-free", "0"); code != 0 {
		t.Fatalf("install: exit %d\n%s", code, errs)
	}
	// For tests only: the loaders' address of the blob server.
	account := s.blobs.Getenv("AZURE_STORAGE_CONNECTION_STRING")
	patch := fmt.Sprintf(`{"spec": {"template": {"spec": {"containers": [{"name": "loader", "env": [{"name": "AZURE_STORAGE_CONNECTION_STRING", "value": %q}]}]}}}}`, account)
	if _, err := s.core.AppsV1().DaemonSets(install.Namespace).Patch(t.Context(), "thaw-loader", types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.told(t) })
	if out, errs, code := s.program(t.Context(), "thaw-knative", "install", "--image", image, "--loaders", "all", "--keep-free", "0", "--wait",
		"--timeout", "3m"); code != 0 {
		t.Fatalf("install: exit %d\n%s%s", code, out, errs)
	}
	until(t, time.Minute, "a loader with its account", func() (bool, string) {
		d, err := s.core.AppsV1().DaemonSets(install.Namespace).Get(t.Context(), "thaw-loader", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, e := range d.Spec.Template.Spec.Containers[0].Env {
			if e.Value == account {
				st := d.Status
				return st.ObservedGeneration == d.Generation && st.UpdatedNumberScheduled == 1 && st.NumberReady == 1, fmt.Sprintf("%+v", st)
			}
		}
		return false, "install took the account away again"
	})
	service, err := s.core.CoreV1().Services(install.Namespace).Get(t.Context(), "thaw", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.gateway = "http://" + service.Spec.ClusterIP
	until(t, time.Minute, "an answer of the gateway", func() (bool, string) {
		r, err := http.Get(s.gateway + "/v1/models")
		if err != nil {
			return false, err.Error()
		}
		r.Body.Close()
		return r.StatusCode < 500, r.Status
	})
}

// serveBlobs runs the blob server that holds the weights.
func (s *suite) serveBlobs(t *testing.T) {
	l, err := net.Listen("tcp", blobsAt)
	if err != nil {
		t.Fatal(err)
	}
	s.blobs, s.stalls = azuretest.Of("http://"+blobsAt), &stalls{blobs: map[string]*stalling{}}
	s.blobs.Fault(s.stalls.fault)
	server := &http.Server{Handler: s.blobs}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
}

// uninstall removes thaw and checks what is left of it.
func (s *suite) uninstall(t *testing.T) {
	// Tests do not wait for the deletion of their namespaces, and Knative's controllers take
	// a minute to recover from the test that stops the API server.
	until(t, 5*time.Minute, "the tests' own models are gone", func() (bool, string) {
		list, err := s.dynamic.Resource(kinds["ksvc"]).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		var left []string
		for _, m := range list.Items {
			if strings.HasPrefix(m.GetNamespace(), "e2e-") {
				left = append(left, m.GetNamespace()+"/"+m.GetName())
			}
		}
		return len(left) == 0, strings.Join(left, " ")
	})
	if _, errs, code := s.program(t.Context(), "thaw-knative", "install", "--uninstall", "--image", image, "--loaders", "all", "--timeout",
		"2m"); code != 0 {
		// Models of failed tests block the removal. The next suite must find no thaw.
		s.program(t.Context(), "thaw-knative", "install", "--uninstall", "--force", "--image", image, "--loaders", "all", "--timeout", "2m")
		t.Fatalf("uninstall: exit %d\n%s", code, errs)
	}
	until(t, 90*time.Second, "nothing of thaw's is left", func() (bool, string) {
		var left []string
		for _, gvr := range []schema.GroupVersionResource{
			kinds["namespace"], {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
			{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
			kinds["deployment"], kinds["daemonset"], kinds["service"], kinds["secret"], kinds["lease"], kinds["configmap"], {Version: "v1", Resource: "serviceaccounts"},
			{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
			{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}, {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
		} {
			list, err := s.dynamic.Resource(gvr).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			for i := range list.Items {
				o := &list.Items[i]
				if strings.HasPrefix(o.GetNamespace(), "e2e-") || strings.HasPrefix(o.GetName(), "e2e-") {
					continue // belongs to a test that just ended
				}
				if strings.Contains(o.GetName(), "thaw") || o.GetNamespace() == install.Namespace ||
					o.GetLabels()["app.kubernetes.io/part-of"] == "thaw" {
					left = append(left, gvr.Resource+" "+o.GetNamespace()+"/"+o.GetName())
				}
			}
		}
		nodes, err := s.of("node", "").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for i := range nodes.Items {
			for _, m := range []map[string]string{nodes.Items[i].GetLabels(), nodes.Items[i].GetAnnotations()} {
				for k := range m {
					if strings.Contains(k, "thaw") {
						left = append(left, "node "+nodes.Items[i].GetName()+": "+k)
					}
				}
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})
}

// told fails the suite if a process of thaw ended by itself, with the log of that
// process: Kubernetes restarts it and most tests would not notice. If the suite failed,
// it prints the logs of all of them.
func (s *suite) told(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pods, err := s.core.CoreV1().Pods(install.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Errorf("thaw's pods: %v", err)
		return
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			end := c.LastTerminationState.Terminated
			if c.Name == "warm" {
				continue // warm-image uses an image without an engine
			}
			if end == nil || end.ExitCode == 0 || end.ExitCode == 128+int32(syscall.SIGKILL) || end.ExitCode == 128+int32(syscall.SIGTERM) {
				continue // ended by a test or by Kubernetes
			}
			b, err := s.core.CoreV1().Pods(p.Namespace).GetLogs(p.Name,
				&corev1.PodLogOptions{Container: c.Name, Previous: true, TailLines: new(int64(60))}).DoRaw(ctx)
			t.Errorf("%s: %s ended with exit code %d (%s %s):\n%s%v", p.Name, c.Name, end.ExitCode, end.Reason, end.Message, b, err)
		}
	}
	if !t.Failed() {
		return
	}
	for _, p := range pods.Items {
		t.Logf("-- %s: %s", p.Name, s.logs(ctx, install.Namespace, p.Name, p.Spec.Containers[0].Name, 40))
	}
}
