package control

import (
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	kubecore "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	autoscaling "knative.dev/serving/pkg/apis/autoscaling"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	servingfake "knative.dev/serving/pkg/client/clientset/versioned/fake"
	servinginformers "knative.dev/serving/pkg/client/informers/externalversions"
	palisters "knative.dev/serving/pkg/client/listers/autoscaling/v1alpha1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
	"github.com/thaw-dev/thaw/platform/knative/team"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// tenantMemory is what reading the objects of one revision may allocate.
const tenantMemory = 10 << 20

// deepLists is a text of 11 KB that once took 606 MB to decode.
var deepLists = "{\t\"x\":" + strings.Repeat("[", 5500) + strings.Repeat("]", 5500) + "}"

// tenantObjects are the objects of a revision as a tenant may write them.
func tenantObjects(name, env, annotation string, annotations map[string]string) (*autoscalingv1alpha1.PodAutoscaler, *servingv1.Revision,
	*servingv1.Service) {
	own := map[string]string{autoscaling.ClassAnnotationKey: knative.AutoscalerClass}
	for k, v := range annotations {
		own[k] = v
	}
	pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a", Annotations: own, Labels: map[string]string{serving.ServiceLabelKey: "service-" + name}}}
	pa.Spec.ScaleTargetRef.Name = name + "-deployment"
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}}
	rev.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "THAW_MODEL", Value: env}}}}
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "service-" + name, Namespace: "a"}}
	if annotation != "" {
		service.Annotations = map[string]string{knative.ModelAnnotation: annotation}
	}
	return pa, rev, service
}

const goodModel = "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: m}\nspec: {source: 'https://x/y', engine: vllm}\n"

// panicking is a lister that panics for one object.
type panicking struct{ palisters.PodAutoscalerLister }

type panickingNames struct {
	palisters.PodAutoscalerNamespaceLister
}

func (p panicking) PodAutoscalers(namespace string) palisters.PodAutoscalerNamespaceLister {
	return panickingNames{p.PodAutoscalerLister.PodAutoscalers(namespace)}
}

func (p panickingNames) Get(name string) (*autoscalingv1alpha1.PodAutoscaler, error) {
	if name == "panics" {
		panic("a nil map")
	}
	return p.PodAutoscalerNamespaceLister.Get(name)
}

// TestBadObjects: objects of a tenant that cannot be read get a condition or an Event, cost
// no memory, and leave their neighbours alone.
func TestBadObjects(t *testing.T) {
	var objects []k8sruntime.Object
	for name, x := range map[string][2]string{
		"good": {goodModel, ""}, "last": {goodModel, `{"spec":{"queue":{"requests":9}}}`},
		"deep": {deepLists, ""}, "large": {goodModel + strings.Repeat("#", 40<<10), ""},
		"panics": {goodModel, ""}, "annotation": {goodModel, "{" + strings.Repeat(" ", 40<<10) + "}"}, "queue": {goodModel, `{"spec":{"queue":{"requests":-1}}}`},
	} {
		pa, rev, service := tenantObjects(name, x[0], x[1], nil)
		objects = append(objects, pa, rev, service)
	}
	client := servingfake.NewSimpleClientset(objects...)
	factory := servinginformers.NewSharedInformerFactory(client, 0)
	kube := fake.NewClientset()
	events := make(chan *corev1.Event, 8)
	kube.PrependReactor("create", "events", func(a k8stesting.Action) (bool, k8sruntime.Object, error) {
		e := a.(k8stesting.CreateAction).GetObject().(*corev1.Event)
		events <- e
		return true, e, nil
	})
	log := slog.New(slog.DiscardHandler)
	cores := informers.NewSharedInformerFactory(kube, 0)
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&kubecore.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	r := &leaderTerm{log: log, cluster: newTestCluster(nil), events: broadcaster.NewRecorder(eventScheme(), corev1.EventSource{})}
	r.catalog = &revisionCatalog{
		pas: panicking{factory.Autoscaling().V1alpha1().PodAutoscalers().Lister()}, revs: factory.Serving().V1().Revisions().Lister(),
		services: factory.Serving().V1().Services().Lister(),
		cluster:  r.cluster, log: log, changed: func() {}, revisionsChanged: func() {},
		revisions: map[functions.Name]*revision{}, resources: map[functions.Name]functions.Resources{},
	}
	r.orchestrator = orchestrator.New(orchestrator.Options{Catalog: r.catalog, Log: log})
	r.dataPath = &dataPath{queued: map[functions.Name]bool{}}
	r.settled.Store(true)
	r.teams = team.NewWatcher(team.WatcherOptions{
		Client: kube, Namespaces: cores.Core().V1().Namespaces().Lister(), Quotas: cores.Core().V1().ResourceQuotas().Lister(),
		Tokens: func() []string { return []string{"x"} }, Apply: func(controlstream.Keys) {}, Events: r.events, Log: log,
	})
	done := make(chan struct{})
	go func() { defer close(done); _ = r.teams.Run(t.Context()) }()
	t.Cleanup(func() { <-done })

	factory.Autoscaling().V1alpha1().PodAutoscalers().Informer()
	factory.Serving().V1().Revisions().Informer()
	factory.Serving().V1().Services().Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	again := func(o *autoscalingv1alpha1.PodAutoscaler) { r.catalog.updateRevision(o.Namespace, o.Name) }
	handle, err := factory.Autoscaling().V1alpha1().PodAutoscalers().Informer().AddEventHandler(objectHandler(r, again, again))
	if err != nil {
		t.Fatal(err)
	}
	cache.WaitForCacheSync(t.Context().Done(), handle.HasSynced)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > tenantMemory {
		t.Errorf("%d KiB allocated", n>>10)
	}
	for name, want := range map[string]string{
		"good": "", "last": "",
		"deep":       "cannot decode THAW_MODEL of revision deep: deep:1:",
		"large":      "larger than 32 KiB",
		"annotation": "larger than 32 KiB",
		"queue":      "spec.queue.requests",
		"panics":     "revision a/panics cannot be read: a nil map",
	} {
		own := r.catalog.get(functions.Name{Team: "a", Name: name})
		if own == nil {
			t.Errorf("%s is not known", name)
			continue
		}
		s, ok := r.Scale("a", name)
		switch {
		case !ok:
			t.Errorf("%s has no scale", name)
		case want == "" && (own.problem != "" || own.model.Spec.Engine != functions.EngineVLLM || s.Reason == autoscale.ReasonBadModel):
			t.Errorf("%s: %+v %+v", name, own, s)
		case want != "" && (s.Reason != autoscale.ReasonBadModel || s.Active == corev1.ConditionTrue || !strings.Contains(s.Message, want) ||
			len(s.Message) > 600):
			t.Errorf("%s: %+v", name, s)
		}
	}

	// A panic of another handler becomes an Event of its object.
	pods := objectHandler(r, func(p *corev1.Pod) {
		if p.Name == "bad" {
			panic("no such label")
		}
		r.cluster.SetPod(p)
	}, func(*corev1.Pod) {})
	pods.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad", Namespace: "a"}}, false)
	pods.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-00001-deployment-p1", Namespace: "a", UID: "p1", Labels: map[string]string{serving.RevisionLabelKey: web.Name}}, Spec: corev1.PodSpec{NodeName: "n1"}}, false)
	select {
	case e := <-events:
		if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != "bad" || e.Reason != "BadObject" || e.Type != corev1.EventTypeWarning ||
			!strings.Contains(e.Message, "no such label") {
			t.Errorf("%+v", e)
		}
	case <-time.After(30 * time.Second):
		t.Error("no Event of the pod that cannot be read")
	}
	if _, _, ok := r.cluster.PodOf("web-00001-deployment-p1"); !ok {
		t.Error("the pod after the bad one is not recorded")
	}
}

// FuzzReadRevision: whatever a tenant writes into the objects of a revision, reading it
// stays within tenantMemory and yields a scale that can be planned.
func FuzzReadRevision(f *testing.F) {
	f.Add(goodModel, `{"spec":{"queue":{"requests":9}}}`, "1", "3", "2.5", "40s", "0", "1Gi", "1")
	f.Add(deepLists, `{"spec":`+strings.Repeat(`{"a":`, 9000), "-1", "1e30", "NaN", "-5s", "x", "9223372036854775807", "9223372036854775807")
	f.Add("a: &a [*a]\nb: !!binary x\n", `{"spec":{"queue":{"requests":-1,"bytes":"1Ei"},"scale":{"idle":"-1s"}}}`, "2147483647", "0", "1e-300", "999999h", "2147483647", "1e18", "1e18")
	f.Add(strings.Repeat("[a],", 8000), strings.Repeat("[", 20_000), "", "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, env, annotation, least, most, target, idle, initial, memory, gpus string) {
		pa, rev, service := tenantObjects("m-00001", env, annotation, map[string]string{
			autoscaling.MinScaleAnnotationKey: least, autoscaling.MaxScaleAnnotationKey: most, autoscaling.TargetAnnotationKey: target,
			autoscaling.ScaleToZeroPodRetentionPeriodKey: idle, autoscaling.InitialScaleAnnotationKey: initial,
		})
		c := &rev.Spec.Containers[0]
		if q, err := resource.ParseQuantity(memory); err == nil {
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: q, corev1.ResourceCPU: q}
		}
		if q, err := resource.ParseQuantity(gpus); err == nil {
			c.Resources.Limits = corev1.ResourceList{knative.GPU: q}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := readRevision(pa, rev, service)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > tenantMemory {
			t.Errorf("%d KiB allocated", n>>10)
		}
		s := r.model.Spec
		if s.Scale.Min < 0 || s.Scale.Max < max(1, s.Scale.Min) || s.Scale.Target < 1 || s.Scale.Idle < 0 || s.Queue.Requests < 1 ||
			s.Queue.Bytes < 1 || s.Queue.Wait < 0 {
			t.Errorf("%+v %+v", s.Scale, s.Queue)
		}
		if s.Resources.GPUs < 0 || s.Resources.Memory < 0 || s.Resources.CPU < 0 {
			t.Errorf("%+v", s.Resources)
		}
		if len(r.problem) > maxProblem+8 {
			t.Errorf("a problem of %d bytes", len(r.problem))
		}
		pod := corev1.PodSpec{Containers: []corev1.Container{*c, *c}, InitContainers: []corev1.Container{*c}}
		if sum := clusterstate.PodResources(&pod); sum.GPUs < 0 || sum.Memory < 0 || sum.CPU < 0 {
			t.Errorf("two containers request %+v", sum)
		}
		for _, p := range allowList(annotation) {
			if len(p) > maxAllowed || !strings.Contains(p, "://") {
				t.Errorf("%q", p)
			}
		}
	})
}
