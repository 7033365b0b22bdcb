package knative

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	servingfake "knative.dev/serving/pkg/client/clientset/versioned/fake"

	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// healthy returns the objects of a cluster without any problem, by KIND NAME.
func healthy() map[string]runtime.Object {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	deployment := func(name string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: meta(System, name)}
		d.Spec.Replicas, d.Status.AvailableReplicas = new(int32(2)), 2
		d.Spec.Template.Spec.Containers = []corev1.Container{{Image: "example.com/thaw:1"}}
		return d
	}
	loader := &appsv1.DaemonSet{ObjectMeta: meta(System, "thaw-loader")}
	loader.Spec.Template.Spec = corev1.PodSpec{NodeSelector: map[string]string{"nvidia.com/gpu.present": "true"}, Containers: []corev1.Container{{Image: "example.com/thaw:1"}}}
	loader.Status.DesiredNumberScheduled, loader.Status.NumberAvailable = 1, 1
	knativeController := &appsv1.Deployment{ObjectMeta: meta(servingNamespace, "controller")}
	knativeController.Labels = map[string]string{"app.kubernetes.io/version": "1.23.0"}
	slice := func(service string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: System, Name: service, Labels: map[string]string{"kubernetes.io/service-name": service}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
	}
	gpus := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", Labels: map[string]string{"pool": "gpu", "nvidia.com/gpu.present": "true"}}}
	gpus.Spec.Taints = []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: "NoSchedule"}, {Key: "node.kubernetes.io/unschedulable", Effect: "NoSchedule"}}
	gpus.Status.Allocatable = corev1.ResourceList{GPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourceCPU: resource.MustParse("64")}
	plain := &corev1.Node{ObjectMeta: meta("", "plain-1")}
	plain.Labels = map[string]string{"nvidia.com/gpu.present": "true"} // it has a loader as well
	plain.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourceCPU: resource.MustParse("4")}
	all := []runtime.Object{
		deployment("thaw-controller"), deployment("thaw-activator"), loader, knativeController, slice("thaw"), slice("thaw-scheduler-hint"), gpus, plain,
		&coordinationv1.Lease{ObjectMeta: meta(System, "thaw-controller"), Spec: coordinationv1.LeaseSpec{HolderIdentity: new("c-1@10.0.0.1:8090"), RenewTime: &metav1.MicroTime{Time: time.Now()}}},
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: meta("", "thaw-scheduler-hint"), Webhooks: []admissionv1.MutatingWebhook{{ClientConfig: admissionv1.WebhookClientConfig{CABundle: []byte("x")}}}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta("", "thaw-pods")},
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta("", "thaw-pods-of-teams")}, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta("", "thaw-pods-of-services")},
		&corev1.Namespace{ObjectMeta: meta("", "ml")},
		&corev1.ConfigMap{ObjectMeta: meta(servingNamespace, "config-features"), Data: map[string]string{
			"kubernetes.podspec-init-containers": "enabled", "kubernetes.podspec-volumes-hostpath": "enabled", "kubernetes.podspec-nodeselector": "enabled",
			"kubernetes.podspec-tolerations": "enabled", "kubernetes.podspec-runtimeclassname": "enabled", "kubernetes.podspec-priorityclassname": "enabled"}},
		&corev1.ConfigMap{ObjectMeta: meta(servingNamespace, "config-autoscaler"), Data: map[string]string{"allow-zero-initial-scale": "true"}},
		&corev1.ConfigMap{ObjectMeta: meta(servingNamespace, "config-observability"), Data: map[string]string{"metrics-protocol": "prometheus"}},
		&corev1.ResourceQuota{ObjectMeta: meta("ml", "thaw"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse("4"), "requests.cpu": resource.MustParse("100"), "pods": resource.MustParse("10"), team.ServicesQuota: resource.MustParse("5")}}},
		&nodev1.RuntimeClass{ObjectMeta: meta("", "nvidia")}, &schedulingv1.PriorityClass{ObjectMeta: meta("", "interactive")},
		&corev1.ServiceAccount{ObjectMeta: meta("ml", "models")}, &corev1.Secret{ObjectMeta: meta("ml", "registry")},
	}
	out := map[string]runtime.Object{}
	for _, o := range all {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
		out[kind[strings.IndexByte(kind, '.')+1:]+" "+o.(metav1.Object).GetName()] = o
	}
	return out
}

// clusterOf returns a Cluster on a fake API server with these objects.
func clusterOf(objects map[string]runtime.Object, forbidden ...string) *Cluster {
	var all []runtime.Object
	for _, o := range objects {
		all = append(all, o)
	}
	kube := fake.NewClientset(all...)
	kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{Major: "1", Minor: "35", GitVersion: "v1.35.4"}
	serving := servingfake.NewSimpleClientset()
	refuse := func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.GetResource().Resource
		return slices.Contains(forbidden, r) ||
			slices.Contains(forbidden, "*"), nil, status.NewForbidden(schema.GroupResource{Resource: r}, "", errors.New("no"))
	}
	kube.PrependReactor("*", "*", refuse)
	serving.PrependReactor("*", "*", refuse)
	return &Cluster{kube: kube, serving: serving.ServingV1(), namespace: "ml", host: "here"}
}

// limitRange adds a LimitRange to the namespace ml.
func limitRange(item corev1.LimitRangeItem) func(map[string]runtime.Object) {
	return func(o map[string]runtime.Object) {
		r := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "bounds"}}
		r.Spec.Limits = []corev1.LimitRangeItem{item}
		o["LimitRange bounds"] = r
	}
}

// asks renders a model with this spec.
func asks(t *testing.T, spec string) *servingv1.Service {
	t.Helper()
	m := models(t, "a", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen, namespace: ml}\nspec: {source: 'hf://a/b', engine: "+
		"vllm, "+spec+"}\n")[0]
	s, err := Render(m, Settings{Thaw: thawImage})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const everything = `resources: {gpus: 2, memory: 64Gi, cpu: 8}, pod: {nodeSelector: {pool: gpu}, tolerations: [{key: a, operator: Exists}], runtimeClassName: nvidia, priorityClassName: interactive, serviceAccountName: models, imagePullSecrets: [{name: registry}]}`

// TestCheck: each usual mistake before a first model is reported with a hint that repairs
// it.
func TestCheck(t *testing.T) {
	features := func(o map[string]runtime.Object) map[string]string {
		return o["ConfigMap config-features"].(*corev1.ConfigMap).Data
	}
	quota := func(key corev1.ResourceName, amount string) func(map[string]runtime.Object) {
		return func(o map[string]runtime.Object) {
			o["ResourceQuota thaw"].(*corev1.ResourceQuota).Spec.Hard[key] = resource.MustParse(amount)
		}
	}
	for _, x := range []struct {
		name, spec string
		edit       func(map[string]runtime.Object)
		what, hint string // "": nothing is wrong
	}{
		{name: "nothing", spec: everything},
		{name: "no GPU at all", spec: ""},
		{name: "thaw is not installed", edit: func(o map[string]runtime.Object) { delete(o, "Deployment thaw-controller") }, what: "thaw is not installed", hint: "thaw-knative install --image IMAGE --wait; --skip-preflight skips this check"},
		{name: "a setting of every model", edit: func(o map[string]runtime.Object) {
			features(o)["kubernetes.podspec-init-containers"] = "disabled"
		}, what: "kubernetes.podspec-init-containers is disabled", hint: `kubectl patch configmap config-features -n knative-serving --type merge -p '{"data":{"kubernetes.podspec-init-containers":"enabled"}}'`},
		{name: "a feature that the Knative Operator writes", edit: func(o map[string]runtime.Object) {
			features(o)["kubernetes.podspec-init-containers"] = "disabled"
			o["ConfigMap config-features"].(*corev1.ConfigMap).OwnerReferences = []metav1.OwnerReference{{Kind: "KnativeServing", Name: "serving"}}
		}, what: "config-features: kubernetes.podspec-init-containers is disabled", hint: `kubectl patch knativeserving serving -n knative-serving --type merge -p '{"spec":{"config":{"features":{"kubernetes.podspec-init-containers":"enabled"}}}}'`},
		{name: "a setting of this model", spec: everything,
			edit: func(o map[string]runtime.Object) { delete(features(o), "kubernetes.podspec-tolerations") },
			what: "kubernetes.podspec-tolerations is disabled", hint: `-p '{"data":{"kubernetes.podspec-tolerations":"enabled"}}'`},
		{name: "a setting that this model has no use for", edit: func(o map[string]runtime.Object) { delete(features(o), "kubernetes.podspec-tolerations") }},
		{name: "no settings at all", edit: func(o map[string]runtime.Object) { delete(o, "ConfigMap config-autoscaler") }, what: "allow-zero-initial-scale is false", hint: "kubectl patch configmap config-autoscaler"},
		{name: "a namespace that forbids host paths", edit: func(o map[string]runtime.Object) {
			o["Namespace ml"].(*corev1.Namespace).Labels = map[string]string{podSecurity: "baseline"}
		}, what: "enforce is baseline", hint: "kubectl label namespace ml"},
		{name: "no node with a GPU", spec: "resources: {gpus: 1}", edit: func(o map[string]runtime.Object) { delete(o, "Node gpu-1") }, what: "qwen needs 1 GPU, 1 processor, and no node of the cluster has one", hint: "device plugin"},
		{name: "more GPUs than any node", spec: "resources: {gpus: 8}", edit: func(o map[string]runtime.Object) { delete(o, "ResourceQuota thaw") }, what: "qwen needs 8 GPUs, 8 processors on one node, and the largest usable nodes have 4 GPUs", hint: "lower spec.resources"},
		{name: "more memory than any node", spec: "resources: {gpus: 1, memory: 1Ti}", what: "of memory, 1 processor on one node", hint: "lower spec.resources"},
		{name: "more processors than any node", spec: "resources: {cpu: 65}", what: "65 processors on one node, and the largest", hint: "lower spec.resources"},
		{name: "a taint", spec: "resources: {gpus: 1}", edit: func(o map[string]runtime.Object) {
			n := o["Node gpu-1"].(*corev1.Node)
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "sku", Value: "gpu", Effect: "NoSchedule"})
		}, what: "none of 1 nodes accepts qwen: of gpu-1 its taint sku=gpu:NoSchedule is not tolerated", hint: `tolerations: [{key: sku, operator: Equal, value: "gpu", effect: NoSchedule}]`},
		{name: "a selector that no node has", spec: "resources: {gpus: 1}, pod: {nodeSelector: {pool: big}}", what: "of gpu-1 its label is not pool=big", hint: "kubectl get nodes --show-labels"},
		{name: "more than the quota", spec: "resources: {gpus: 3}", edit: func(o map[string]runtime.Object) {
			o["ResourceQuota thaw"].(*corev1.ResourceQuota).Spec.Hard["requests.nvidia.com/gpu"] = resource.MustParse("2")
		}, what: "a replica requests 3 of requests.nvidia.com/gpu, and the quota thaw of namespace ml allows 2 in all",
			hint: "kubectl edit resourcequota thaw -n ml"},
		{name: "those that stay are more than the quota", spec: "resources: {gpus: 2}, scale: {min: 3, max: 3}", what: "the minimum of 3 replicas requests 6 of requests.nvidia.com/gpu", hint: "spec.scale.min"},
		{name: "a quota of something else", spec: "resources: {gpus: 3}", edit: func(o map[string]runtime.Object) {
			q := o["ResourceQuota thaw"].(*corev1.ResourceQuota)
			q.Spec.Hard["requests.nvidia.com/gpu"], q.Spec.Scopes = resource.MustParse("2"), []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		}},
		{name: "a quota of limits of processors", edit: quota("limits.cpu", "100"), what: "counts limits.cpu, and these containers name none, so Kubernetes would create no pod: thaw, model, Knative's queue-proxy (queue-sidecar-cpu-limit in config-deployment)", hint: "put a LimitRange with a default for cpu into the namespace, or leave limits.cpu out of the quota: kubectl edit resourcequota thaw -n ml"},
		{name: "a quota of memory, of which the model requests none", edit: quota("requests.memory", "100Gi"), what: "counts requests.memory, and these containers name none, so Kubernetes would create no pod: model, Knative's queue-proxy", hint: "write spec.resources.memory; or put a LimitRange with a defaultRequest for memory"},
		{name: "a quota of memory, and a proxy without", spec: "resources: {memory: 4Gi}", edit: quota("memory", "100Gi"), what: "name none, so Kubernetes would create no pod: Knative's queue-proxy (queue-sidecar-memory-request in config-deployment)", hint: "put a LimitRange"},
		{name: "a quota of memory, and a proxy that requests some", spec: "resources: {memory: 4Gi}", edit: func(o map[string]runtime.Object) {
			quota("memory", "100Gi")(o)
			o["ConfigMap config-deployment"] = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: servingNamespace, Name: "config-deployment"}, Data: map[string]string{"queue-sidecar-memory-request": "100Mi"}}
		}},
		{name: "a quota, and a limit range that fills in", edit: func(o map[string]runtime.Object) {
			quota("limits.cpu", "100")(o)
			limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{"cpu": resource.MustParse("4")}})(o)
		}},
		{name: "a limit range below the model", spec: "resources: {memory: 12Gi}", edit: limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{"memory": resource.MustParse("8Gi")}}), what: "qwen: container model requests 12352Mi of memory, and the LimitRange bounds of namespace ml allows from 0 to 8Gi", hint: "kubectl edit limitrange bounds -n ml"},
		{name: "a limit range's default below the model's processors", spec: "resources: {cpu: 2}", edit: limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{"cpu": resource.MustParse("500m")}}), what: "qwen requests 2 of cpu, and gets a limit of 500m from the LimitRange bounds of namespace ml, so Kubernetes would create no pod", hint: "write spec.resources.cpu of at most 500m; kubectl edit limitrange bounds -n ml"},
		{name: "a limit range above a container", spec: "resources: {memory: 12Gi}", edit: limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Min: corev1.ResourceList{"memory": resource.MustParse("100Mi")}}), what: "qwen: container thaw requests 64Mi of memory, and the LimitRange bounds of namespace ml allows at least 100Mi", hint: "kubectl edit limitrange bounds -n ml"},
		{name: "no loader at all", edit: func(o map[string]runtime.Object) {
			delete(o, "DaemonSet thaw-loader")
			delete(o, "Deployment thaw-controller")
		}, what: "thaw is not installed", hint: "thaw-knative install"},
		{name: "no loader where it may run", edit: func(o map[string]runtime.Object) { o["Node plain-1"].(*corev1.Node).Labels = nil }, what: "no node that qwen may run on has a loader: plain-1 lacks the label nvidia.com/gpu.present=true", hint: "thaw-knative install --loaders all; or kubectl label node plain-1 nvidia.com/gpu.present=true"},
		{name: "loaders where it may run", spec: "resources: {gpus: 1}", edit: func(o map[string]runtime.Object) { o["Node plain-1"].(*corev1.Node).Labels = nil }},
		{name: "GPUs of another maker", spec: "resources: {gpus: 1}", edit: func(o map[string]runtime.Object) {
			o["Node gpu-1"].(*corev1.Node).Status.Allocatable = corev1.ResourceList{"amd.com/gpu": resource.MustParse("8"),
				"nvidia.com/mig-1g.10gb": resource.MustParse("7"), "memory": resource.MustParse("1Ti"), "hugepages-1Gi": resource.MustParse("1Gi")}
		}, what: "; they have amd.com/gpu, nvidia.com/mig-1g.10gb, and thaw asks for nvidia.com/gpu alone", hint: "device plugin"},
		{name: "no such runtime", spec: everything, edit: func(o map[string]runtime.Object) { delete(o, "RuntimeClass nvidia") }, what: "there is no RuntimeClass nvidia", hint: "kubectl get runtimeclasses"},
		{name: "no such priority", spec: everything, edit: func(o map[string]runtime.Object) { delete(o, "PriorityClass interactive") }, what: "there is no PriorityClass interactive", hint: "kubectl get priorityclasses"},
		{name: "no such account", spec: everything, edit: func(o map[string]runtime.Object) { delete(o, "ServiceAccount models") }, what: "there is no ServiceAccount models", hint: "kubectl create serviceaccount models -n ml"},
		{name: "no such secret", spec: everything, edit: func(o map[string]runtime.Object) { delete(o, "Secret registry") }, what: "there is no Secret registry", hint: "kubectl create secret docker-registry registry -n ml"},
		{name: "two at once", spec: everything, edit: func(o map[string]runtime.Object) {
			delete(o, "Secret registry")
			delete(o, "RuntimeClass nvidia")
		}, what: "there is no RuntimeClass nvidia (leave spec.pod.runtimeClassName out", hint: "mend each"},
	} {
		t.Run(x.name, func(t *testing.T) {
			objects := healthy()
			if x.edit != nil {
				x.edit(objects)
			}
			s := asks(t, x.spec)
			err := clusterOf(objects).Check(t.Context(), s)
			if x.what == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			e, is := errors.AsType[*kit.Error](err)
			if !is || e.Exit != kit.ExitUsage || !strings.Contains(e.What, x.what) || !strings.Contains(e.Hint, x.hint) ||
				!strings.HasSuffix(e.Hint, skipPreflightHint) {
				t.Fatalf("got %+v\nwant %s (%s)", err, x.what, x.hint)
			}
			// Doctor reports the same findings, and no more.
			found, err := clusterOf(objects).Doctor(t.Context(), "ml", s)
			if err != nil {
				t.Fatal(err)
			}
			bad := slices.DeleteFunc(found, func(f Finding) bool { return !f.Bad() })
			if len(bad) != strings.Count(e.What, "\n")+1 ||
				!strings.Contains(x.what, bad[0].What) && !strings.Contains(bad[0].What, x.what) && !strings.Contains(e.What, bad[0].What) {
				t.Errorf("doctor says %+v", bad)
			}
		})
	}
}

// TestServicesQuota: a namespace without a quota of Knative Services is named, with the command
// that makes one.
func TestServicesQuota(t *testing.T) {
	for _, bounded := range []bool{true, false} {
		objects := healthy()
		if !bounded {
			delete(objects["ResourceQuota thaw"].(*corev1.ResourceQuota).Spec.Hard, team.ServicesQuota)
		}
		found, err := clusterOf(objects).Doctor(t.Context(), "ml")
		if err != nil {
			t.Fatal(err)
		}
		notes := slices.DeleteFunc(found, func(f Finding) bool { return !strings.Contains(f.What, "nothing bounds how many") })
		if bounded && len(notes) > 0 ||
			!bounded && (len(notes) != 1 || notes[0].Bad() || !strings.HasSuffix(notes[0].Hint, "--hard=count/services.serving.knative.dev=500")) {
			t.Errorf("bounded %v: %+v", bounded, notes)
		}
	}
}

// TestCheckMany: nodes and quotas are listed once for all services.
func TestCheckMany(t *testing.T) {
	c := clusterOf(healthy())
	var many []*servingv1.Service
	for range 50 {
		many = append(many, asks(t, "resources: {gpus: 1}"))
	}
	if err := c.Check(t.Context(), many...); err != nil {
		t.Fatal(err)
	}
	if n := len(c.kube.(*fake.Clientset).Actions()); n > 9 {
		t.Errorf("%d requests", n)
	}
}

// TestForbiddenChecks: an account that may not read the cluster's objects can still deploy.
func TestForbiddenChecks(t *testing.T) {
	objects := healthy()
	delete(objects, "Deployment thaw-controller")
	c := clusterOf(objects, "*")
	if err := c.Check(t.Context(), asks(t, everything)); err != nil {
		t.Error(err)
	}
	found, err := c.Doctor(t.Context(), "ml", asks(t, everything))
	if err != nil || slices.ContainsFunc(found, Finding.Bad) {
		t.Error(found, err)
	}
	last := found[len(found)-1]
	for _, what := range []string{"not checked, because this account may not look at them", "knative-serving/config-features", "nodes", "thaw-system/thaw-controller", "ml/resourcequotas"} {
		if !last.Note || !strings.Contains(last.What, what) {
			t.Errorf("no %q in %+v", what, last)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := clusterOf(objects).Wait(ctx, "ml", "qwen"); err == nil {
		t.Error("waited for an absent Service")
	}
}

// TestDoctor compares the findings for each broken part of thaw.
func TestDoctor(t *testing.T) {
	find := func(o map[string]runtime.Object, part string) Finding {
		t.Helper()
		found, err := clusterOf(o).Doctor(t.Context(), "ml")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if strings.Contains(f.What, part) {
				return f
			}
		}
		t.Fatalf("nothing is said of %s: %+v", part, found)
		return Finding{}
	}
	found, err := clusterOf(healthy()).Doctor(t.Context(), "ml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if !f.Good || f.Hint != "" {
			t.Errorf("of a healthy cluster: %+v", f)
		}
	}
	if len(found) < 14 {
		t.Errorf("only %d things are looked at", len(found))
	}
	for _, x := range []struct {
		name, part string
		edit       func(map[string]runtime.Object)
		bad        bool
		hint       string
	}{
		{"Knative's activator cannot be seen", "metrics-protocol is none", func(o map[string]runtime.Object) { delete(o, "ConfigMap config-observability") }, false, `'{"data":{"metrics-protocol":"prometheus"}}' && kubectl rollout restart deployment activator -n knative-serving`},
		{"another version of Knative", "Knative Serving is 1.20.1", func(o map[string]runtime.Object) {
			o["Deployment controller"].(*appsv1.Deployment).Labels["app.kubernetes.io/version"] = "1.20.1"
		}, false, "tested with 1.23"},
		{"no controller runs", "thaw-controller: 0 of 2 pods available, example.com/thaw:1", func(o map[string]runtime.Object) {
			o["Deployment thaw-controller"].(*appsv1.Deployment).Status.AvailableReplicas = 0
		}, true, "kubectl get pods -n thaw-system"},
		{"one of two", "thaw-activator: 1 of 2 pods available", func(o map[string]runtime.Object) {
			o["Deployment thaw-activator"].(*appsv1.Deployment).Status.AvailableReplicas = 1
		}, false, "kubectl get pods"},
		{"two images", "use 2 different images", func(o map[string]runtime.Object) {
			o["Deployment thaw-activator"].(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image = "example.com/thaw:0"
		}, false, "install"},
		{"no loader", "no node has a loader", func(o map[string]runtime.Object) {
			o["DaemonSet thaw-loader"].(*appsv1.DaemonSet).Status.DesiredNumberScheduled = 0
		}, true, "kubectl label node NODE nvidia.com/gpu.present=true"},
		{"a warm host that is not available", "thaw-warm: 0 of 1 pods available, example.com/vllm:1", func(o map[string]runtime.Object) {
			warm := o["DaemonSet thaw-loader"].(*appsv1.DaemonSet).DeepCopy()
			warm.Name, warm.Status.NumberAvailable, warm.Spec.Template.Spec.Containers[0].Image = "thaw-warm", 0, "example.com/vllm:1"
			o["DaemonSet thaw-warm"] = warm
		}, false, "starts work without it"},
		{"no leader is known", "class thaw.dev: no controller leads", func(o map[string]runtime.Object) {
			o["Lease thaw-controller"].(*coordinationv1.Lease).Spec.HolderIdentity = new("")
		}, true, "kubectl logs"},
		{"who led is gone", "class thaw.dev: the leader's lease was renewed 1h0m0s ago", func(o map[string]runtime.Object) {
			o["Lease thaw-controller"].(*coordinationv1.Lease).Spec.RenewTime.Time = time.Now().Add(-time.Hour)
		}, true, "kubectl logs"},
		{"no activator", "no activator is ready", func(o map[string]runtime.Object) {
			o["EndpointSlice thaw"].(*discoveryv1.EndpointSlice).Endpoints[0].Conditions.Ready = new(false)
		}, true, "component=activator"},
		{"no webhook", "the webhook thaw-scheduler-hint is not registered", func(o map[string]runtime.Object) { delete(o, "MutatingWebhookConfiguration thaw-scheduler-hint") }, false, "thaw-knative install"},
		{"a webhook without an authority", "API servers do not trust the webhook thaw-scheduler-hint", func(o map[string]runtime.Object) {
			o["MutatingWebhookConfiguration thaw-scheduler-hint"].(*admissionv1.MutatingWebhookConfiguration).Webhooks[0].ClientConfig.CABundle = nil
		}, false, "kubectl patch mutatingwebhookconfiguration thaw-scheduler-hint"},
		{"a webhook that is not served", "the webhook thaw-scheduler-hint is not served", func(o map[string]runtime.Object) {
			o["EndpointSlice thaw-scheduler-hint"].(*discoveryv1.EndpointSlice).Endpoints = nil
		}, false, "kubectl logs"},
		{"no policy of pods", "the policy thaw-pods is missing", func(o map[string]runtime.Object) { delete(o, "ValidatingAdmissionPolicy thaw-pods") }, false, "thaw-knative install"},
		{"no binding of the policy for teams", "binding thaw-pods-of-teams is missing", func(o map[string]runtime.Object) { delete(o, "ValidatingAdmissionPolicyBinding thaw-pods-of-teams") }, false, "thaw-knative install"},
		{"no binding of the policy for Services", "binding thaw-pods-of-services is missing", func(o map[string]runtime.Object) { delete(o, "ValidatingAdmissionPolicyBinding thaw-pods-of-services") }, false, "thaw-knative install"},
		{"a namespace without the policy", "other has the label thaw.dev/pod-policy=off", func(o map[string]runtime.Object) {
			o["Namespace other"] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"thaw.dev/pod-policy": "off"}}}
			o["Namespace team"] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"thaw.dev/pod-policy": "off", "thaw.dev/team": "team"}}}
		}, false, "kubectl label namespace other thaw.dev/pod-policy-"},
		{"no GPUs", "none of 1 nodes has a GPU", func(o map[string]runtime.Object) { delete(o, "Node gpu-1") }, false, "device plugin"},
		{"a namespace's pods that do not read", "tolerations[0].kee: unknown key (did you mean key?)", func(o map[string]runtime.Object) {
			o["Namespace ml"].(*corev1.Namespace).Annotations = map[string]string{team.PodAnnotation: `{"tolerations": [{"kee": "a"}]}`}
		}, true, "kubectl annotate namespace ml thaw.dev/pod-"},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := healthy()
			x.edit(o)
			if f := find(o, x.part); f.Good || f.Bad() != x.bad || !strings.Contains(f.Hint, x.hint) {
				t.Errorf("%+v", f)
			}
		})
	}
	for _, x := range []struct {
		major, minor string
		good, bad    bool
	}{{"1", "35", true, false}, {"1", "35+", true, false}, {"1", "31", false, false}, {"1", "29", false, true}, {"2", "0", false, false}, {"", "", false, false}} {
		if f := kubernetesFinding(x.major, x.minor, "v"); f.Good != x.good || f.Bad() != x.bad {
			t.Errorf("%+v: %+v", x, f)
		}
	}
}

// TestNamespacePods: a namespace's pod annotation is decoded as strictly as a model file.
func TestNamespacePods(t *testing.T) {
	o := healthy()
	n := o["Namespace ml"].(*corev1.Namespace)
	for text, want := range map[string]string{
		"": "", `{"tolerations": [{"key": "sku", "operator": "Exists"}]}`: "", "tolerations:\n- {key: sku, operator: Exists}\n": "",
		`{"hostNetwork": true}`:             "hostNetwork: unknown key",
		`{"tolerations": [{"value": "a"}]}`: "tolerations[0].key: a key is needed",
		`[]`:                                "where keys and values are wanted",
	} {
		n.Annotations = map[string]string{team.PodAnnotation: text}
		pod, err := clusterOf(o).PodDefaults(t.Context(), "ml")
		if want == "" {
			if err != nil || len(pod.Tolerations) != min(len(text), 1) {
				t.Errorf("%s: %+v %v", text, pod, err)
			}
			continue
		}
		if e, is := errors.AsType[*kit.Error](err); !is || !strings.Contains(e.What, want) || !strings.Contains(e.What, "namespace ml") ||
			e.Hint == "" {
			t.Errorf("%s: %+v", text, err)
		}
	}
	_, err := clusterOf(o).PodDefaults(t.Context(), "gone")
	if e, is := errors.AsType[*kit.Error](err); !is || e.Exit != kit.ExitNotFound || !strings.Contains(e.What, "no namespace gone") ||
		!strings.Contains(e.Hint, "thaw-knative team create gone") {
		t.Errorf("%+v", err)
	}
	if pod, err := clusterOf(o, "namespaces").PodDefaults(t.Context(), "ml"); err != nil || !pod.IsZero() {
		t.Error(pod, err)
	}
}

// TestLimitRangeDefault: a limit that a limit range gives an engine is said.
func TestLimitRangeDefault(t *testing.T) {
	o := healthy()
	limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer,
		Default: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("512Mi")}})(o)
	for spec, want := range map[string]bool{"": true, "resources: {memory: 4Gi}": false} {
		found, err := clusterOf(o).Doctor(t.Context(), "ml", asks(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		if is := slices.ContainsFunc(found, func(f Finding) bool {
			return f.Note && strings.Contains(f.What, "qwen gets a limit of 512Mi of memory from the LimitRange bounds") &&
				strings.Contains(f.Hint, "spec.resources.memory")
		}); is != want {
			t.Errorf("%q: %+v", spec, found)
		}
		if !slices.ContainsFunc(found, func(f Finding) bool {
			return f.Note && strings.Contains(f.What, "qwen gets a limit of 8 of cpu from") && strings.Contains(f.Hint, "slowed down to that limit")
		}) {
			t.Errorf("%q says nothing of processors: %+v", spec, found)
		}
	}
}

// TestSharedGPUs: a share of a time-sliced GPU has its part of the GPU's memory.
func TestSharedGPUs(t *testing.T) {
	for _, x := range []struct {
		replicas, strategy string
		want               string
	}{{"", "", "80Gi"}, {"1", "none", "80Gi"}, {"4", "time-slicing", "20Gi"}, {"4", "", "20Gi"}, {"4", "mps", "80Gi"}, {"many", "", "80Gi"}} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.replicas": x.replicas, "nvidia.com/gpu.sharing-strategy": x.strategy}}}
		n.Status.Allocatable = corev1.ResourceList{GPU: resource.MustParse("4")}
		if count, _, memory := GPUsOf(n); count != 4 || memory.String() != x.want {
			t.Errorf("%+v: %d of %s", x, count, memory)
		}
	}
}

// TestInstalledStore: the folder of the loader is that of the cluster, unless one is given.
func TestInstalledStore(t *testing.T) {
	o := healthy()
	o["DaemonSet thaw-loader"].(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Args = []string{"loader", "--store=/mnt/thaw", "--node=a"}
	for _, x := range []struct {
		c           *Cluster
		given, want string
	}{
		{clusterOf(o), "", "/mnt/thaw"}, {clusterOf(o), "/srv", "/srv"}, {clusterOf(healthy()), "", ""},
		{clusterOf(nil), "", ""}, {clusterOf(o, "daemonsets"), "", ""},
	} {
		if got, err := x.c.InstalledStore(t.Context(), x.given); got != x.want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, x.want)
		}
	}
}
