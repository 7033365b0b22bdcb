package autoscale

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	acts "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	netv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	netfake "knative.dev/networking/pkg/client/clientset/versioned/fake"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions"
	netlist "knative.dev/networking/pkg/client/listers/networking/v1alpha1"
	"knative.dev/pkg/controller"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	serving "knative.dev/serving/pkg/client/clientset/versioned"
	servingfake "knative.dev/serving/pkg/client/clientset/versioned/fake"
	servinginformers "knative.dev/serving/pkg/client/informers/externalversions"
	scaling "knative.dev/serving/pkg/reconciler/autoscaling"

	"github.com/thaw-dev/thaw/platform/knative"
)

// said is a ScaleSource with the scales that a test sets.
type said struct {
	mu sync.Mutex
	of map[string]Scale
}

func (s *said) Scale(namespace, revision string) (Scale, bool) {
	if revision == "panics" {
		panic("no such revision")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.of[namespace+"/"+revision]
	return x, ok
}

func (s *said) say(key string, x Scale) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[key] = x
}

// fakes is an API server with the objects of a reconcile, and the writes to it.
type fakes struct {
	kube     *fake.Clientset
	serving  *servingfake.Clientset
	nets     *netfake.Clientset
	statuses chan *v1alpha1.PodAutoscaler
	skss     chan *netv1alpha1.ServerlessService
	events   chan *corev1.Event
	late     <-chan struct{}
}

func autoscaler(name, class string, annotations map[string]string) *v1alpha1.PodAutoscaler {
	a := map[string]string{knative.ClassAnnotation: class}
	for k, v := range annotations {
		a[k] = v
	}
	return &v1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: name, UID: "pa-1", Generation: 1, Annotations: a,
			Labels: map[string]string{"serving.knative.dev/service": "llama", "serving.knative.dev/serviceUID": "ksvc-1"},
		},
		Spec: v1alpha1.PodAutoscalerSpec{ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
			Name: name + "-deployment"}, ProtocolType: "http1"},
	}
}

func faked(t *testing.T, pas ...runtime.Object) *fakes {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	f := &fakes{late: ctx.Done(),
		kube: fake.NewClientset(), serving: servingfake.NewSimpleClientset(pas...), nets: netfake.NewSimpleClientset(),
		statuses: make(chan *v1alpha1.PodAutoscaler, 64), skss: make(chan *netv1alpha1.ServerlessService, 64),
		events: make(chan *corev1.Event, 64),
	}
	f.serving.PrependReactor("update", "podautoscalers", func(a acts.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "status" {
			t.Errorf("a PodAutoscaler is written: %v", a)
		}
		f.statuses <- a.(acts.UpdateAction).GetObject().(*v1alpha1.PodAutoscaler).DeepCopy()
		return false, nil, nil
	})
	take := func(a acts.Action) (bool, runtime.Object, error) {
		f.skss <- a.(acts.CreateAction).GetObject().(*netv1alpha1.ServerlessService).DeepCopy()
		return false, nil, nil
	}
	f.nets.PrependReactor("create", "serverlessservices", take)
	f.nets.PrependReactor("update", "serverlessservices", func(a acts.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() == "" {
			f.skss <- a.(acts.UpdateAction).GetObject().(*netv1alpha1.ServerlessService).DeepCopy()
		}
		return false, nil, nil
	})
	f.kube.PrependReactor("create", "events", func(a acts.Action) (bool, runtime.Object, error) {
		f.events <- a.(acts.CreateAction).GetObject().(*corev1.Event).DeepCopy()
		return false, nil, nil
	})
	return f
}

// knative plays Knative's own controller, which creates the Service of a revision.
func (f *fakes) knative(t *testing.T, s *netv1alpha1.ServerlessService, ready bool) {
	t.Helper()
	s = s.DeepCopy()
	s.Status.InitializeConditions()
	s.Status.ServiceName, s.Status.PrivateServiceName = s.Name, s.Name+"-private"
	if ready {
		s.Status.MarkEndpointsReady()
	} else {
		s.Status.MarkEndpointsNotReady("NoHealthyBackends")
	}
	if _, err := f.nets.NetworkingV1alpha1().ServerlessServices(s.Namespace).UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// until reads written statuses until one is as wanted; the ones before are unspecified.
func (f *fakes) until(t *testing.T, what string, ok func(st *v1alpha1.PodAutoscalerStatus) bool) *v1alpha1.PodAutoscaler {
	t.Helper()
	for {
		select {
		case <-f.late:
			t.Fatal(what)
		case pa := <-f.statuses:
			if ok(&pa.Status) {
				return pa
			}
		}
	}
}

func (f *fakes) event(t *testing.T) *corev1.Event {
	t.Helper()
	select {
	case <-f.late:
		t.Fatal("no Event")
		return nil
	case e := <-f.events:
		return e
	}
}

// mode waits until a written ServerlessService has the wanted mode. A created one may be
// created again before the cache has it.
func (f *fakes) mode(t *testing.T, want netv1alpha1.ServerlessServiceOperationMode) *netv1alpha1.ServerlessService {
	t.Helper()
	for {
		select {
		case <-f.late:
			t.Fatal("no mode", want)
		case s := <-f.skss:
			if s.Spec.Mode == want {
				return s
			}
		}
	}
}

// lend adds to o informers such as the controller's, started until ctx ends.
func lend(ctx context.Context, t *testing.T, o Options, s serving.Interface, n networking.Interface) Options {
	servings := servinginformers.NewSharedInformerFactory(s, Resync)
	nets := netinformers.NewSharedInformerFactory(n, Resync)
	o.PodAutoscalers, o.Ingresses = servings.Autoscaling().V1alpha1().PodAutoscalers(), nets.Networking().V1alpha1().Ingresses()
	o.PodAutoscalers.Informer()
	o.Ingresses.Informer()
	servings.Start(ctx.Done())
	nets.Start(ctx.Done())
	t.Cleanup(func() {
		servings.Shutdown()
		nets.Shutdown()
	})
	return o
}

func start(t *testing.T, f *fakes, p ScaleSource) (*Reconciler, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := New(lend(ctx, t, Options{Config: &rest.Config{}, Scales: p, Log: slog.New(slog.DiscardHandler)}, f.serving, f.nets))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.run(ctx, clients{f.kube, f.serving, f.nets}); err != nil {
			t.Error(err)
		}
	})
	return r, sync.OnceFunc(func() { cancel(); wg.Wait() })
}

func TestRevisionLifecycle(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	f := faked(t, autoscaler("llama-00001", knative.AutoscalerClass, map[string]string{"autoscaling.knative.dev/initial-scale": "0"}), autoscaler("other-00001", "kpa.autoscaling.knative.dev", nil))
	p := &said{of: map[string]Scale{"a/llama-00001": {}}}
	r, stop := start(t, f, p)
	defer stop()

	sks := f.mode(t, netv1alpha1.SKSOperationModeProxy)
	owner := metav1.GetControllerOf(sks)
	if sks.Name != "llama-00001" || sks.Spec.Mode != netv1alpha1.SKSOperationModeProxy || sks.Spec.NumActivators != activatorSubset ||
		sks.Spec.ObjectRef.Name != "llama-00001-deployment" ||
		owner == nil || owner.Kind != "PodAutoscaler" || owner.UID != "pa-1" ||
		sks.Annotations[knative.ClassAnnotation] != knative.AutoscalerClass {
		t.Fatalf("%+v", sks)
	}
	f.knative(t, sks, false)
	pa := f.until(t, "ready at zero", func(st *v1alpha1.PodAutoscalerStatus) bool { return st.IsScaleTargetInitialized() })
	if st := &pa.Status; !st.IsInactive() || st.ServiceName != "llama-00001" || st.MetricsServiceName != "llama-00001-private" ||
		st.GetDesiredScale() != 0 || st.GetActualScale() != 0 ||
		st.GetCondition(v1alpha1.PodAutoscalerConditionSKSReady).IsTrue() ||
		st.GetCondition(v1alpha1.PodAutoscalerConditionActive).Reason != ReasonNoTraffic || st.ObservedGeneration != 1 {
		t.Errorf("%+v", st)
	}

	const why = "waiting for 2 GPUs; evicting team-b/llama, idle 14 min"
	p.say("a/llama-00001", Scale{Desired: 1, Active: corev1.ConditionUnknown, Reason: "WaitingForGPUs", Message: why})
	r.Changed("a", "llama-00001")
	f.until(t, "why it waits", func(st *v1alpha1.PodAutoscalerStatus) bool {
		return st.IsActivating() && st.GetDesiredScale() == 1 && st.GetCondition(v1alpha1.PodAutoscalerConditionActive).Message == why
	})
	for _, want := range []string{"Normal Scaled revision llama-00001: from 0 to 1 replicas", "Warning WaitingForGPUs revision llama-00001: " + why} {
		if e := f.event(t); e.Type+" "+e.Reason+" "+e.Message != want || e.InvolvedObject.Kind != "Service" || e.InvolvedObject.Name != "llama" ||
			e.InvolvedObject.UID != "ksvc-1" || e.Source.Component != component {
			t.Errorf("%+v, want %s", e, want)
		}
	}

	p.say("a/llama-00001", Scale{Desired: 1, Actual: 1, Ready: 1})
	r.Changed("a", "llama-00001")
	sks = f.mode(t, netv1alpha1.SKSOperationModeServe)
	f.knative(t, sks, true)
	f.until(t, "warm", func(st *v1alpha1.PodAutoscalerStatus) bool {
		return st.IsActive() && st.GetActualScale() == 1 && st.GetCondition(v1alpha1.PodAutoscalerConditionReady).IsTrue()
	})

	p.say("a/llama-00001", Scale{Actual: 1, Active: corev1.ConditionFalse, Reason: ReasonStopping})
	r.Changed("a", "llama-00001")
	f.mode(t, netv1alpha1.SKSOperationModeProxy)
	f.until(t, "cold again", func(st *v1alpha1.PodAutoscalerStatus) bool {
		return st.IsInactive() && st.GetActualScale() == 0 && st.GetCondition(v1alpha1.PodAutoscalerConditionReady).IsFalse() &&
			st.IsScaleTargetInitialized()
	})

	r.RecordNote("a", "llama-00001", Note{Reason: ReasonEvicted, Message: "for team-a/big"})
	r.RecordNote("a", "absent", Note{Reason: ReasonEvicted})
	for {
		if e := f.event(t); e.Reason == ReasonEvicted {
			if e.Message != "revision llama-00001: for team-a/big" || e.Type != "Normal" {
				t.Errorf("%+v", e)
			}
			break
		}
	}

	// The next leader continues from the written status: no Event is repeated.
	stop()
	if r.Changed("a", "llama-00001"); r.now.Load() != nil {
		t.Error("it runs on")
	}
	f.kube.ClearActions()
	_, again := start(t, f, p)
	p.say("a/llama-00001", Scale{})
	f.until(t, "the next one looked", func(st *v1alpha1.PodAutoscalerStatus) bool {
		return st.GetCondition(v1alpha1.PodAutoscalerConditionActive).Reason == ReasonNoTraffic
	})
	again()
	for _, a := range f.kube.Actions() {
		if a.Matches("create", "events") {
			t.Errorf("told again: %+v", a)
		}
	}
	for _, a := range append(f.serving.Actions(), f.nets.Actions()...) {
		if w, ok := a.(acts.UpdateAction); ok && strings.HasPrefix(w.GetObject().(metav1.Object).GetName(), "other") {
			t.Errorf("another class's is written: %+v", a)
		}
	}
}

// TestBadObjects: a revision that cannot be read, and one whose reconcile panics, have a
// condition and an Event each; their neighbour goes on.
func TestBadObjects(t *testing.T) {
	f := faked(t, autoscaler("panics", knative.AutoscalerClass, nil), autoscaler("unread", knative.AutoscalerClass, nil),
		autoscaler("good", knative.AutoscalerClass, nil))
	_, stop := start(t, f, &said{of: map[string]Scale{
		"a/unread": {Active: corev1.ConditionFalse, Reason: ReasonBadModel, Message: "cannot decode 100% of it"},
		"a/good":   {Desired: 1},
	}})
	defer stop()
	want := map[string]string{"panics": "BadModel PodAutoscaler a/panics cannot be read: no such revision", "unread": "BadModel cannot decode 100 percent of it", "good": "Queued " + queuedMessage}
	for len(want) > 0 {
		select {
		case <-f.late:
			t.Fatalf("no status of %q", want)
		case pa := <-f.statuses:
			c := pa.Status.GetCondition(v1alpha1.PodAutoscalerConditionActive)
			if c == nil || want[pa.Name] == "" {
				continue
			}
			if got := c.Reason + " " + c.Message; got != want[pa.Name] {
				t.Errorf("%s: %q", pa.Name, got)
			}
			delete(want, pa.Name)
		}
	}
	told := map[string]bool{}
	for len(told) < 2 {
		e := f.event(t)
		if e.Reason == ReasonBadModel && e.Type == corev1.EventTypeWarning {
			told[e.Message] = true
		}
	}
	if !told["revision panics: PodAutoscaler a/panics cannot be read: no such revision"] ||
		!told["revision unread: cannot decode 100% of it"] {
		t.Errorf("%v", told)
	}
}

// TestForeignRevisions: a ServerlessService that another object owns is not
// changed, and the PodAutoscaler's status has the conflict.
func TestForeignRevisions(t *testing.T) {
	f := faked(t, autoscaler("llama-00001", knative.AutoscalerClass, nil))
	if err := f.nets.Tracker().Add(
		&netv1alpha1.ServerlessService{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "llama-00001"}}); err != nil {
		t.Fatal(err)
	}
	_, stop := start(t, f, &said{of: map[string]Scale{"a/llama-00001": {Desired: 1}}})
	defer stop()
	f.until(t, "it says so", func(st *v1alpha1.PodAutoscalerStatus) bool {
		c := st.GetCondition(v1alpha1.PodAutoscalerConditionActive)
		return c.IsFalse() && c.Reason == "NotOwned"
	})
	if len(f.skss) != 0 {
		t.Error("it was written")
	}
}

// TestNamespaceDeleted: a creation that fails in a terminating namespace is no error.
func TestNamespaceDeleted(t *testing.T) {
	f := faked(t)
	going := status.NewForbidden(schema.GroupResource{Resource: "serverlessservices"}, "llama-00001",
		errors.New("because it is being terminated"))
	going.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	refusal := error(going)
	f.nets.PrependReactor("create", "serverlessservices", func(acts.Action) (bool, runtime.Object, error) { return true, nil, refusal })
	k := &classReconciler{
		base: &scaling.Base{NetworkingClient: f.nets,
			SKSLister: netlist.NewServerlessServiceLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc,
				cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}))},
		source: &said{}, demand: &demandWatcher{}, events: &events{last: map[types.NamespacedName]lastReported{}},
	}
	pa := autoscaler("llama-00001", knative.AutoscalerClass, nil)
	if err := k.ReconcileKind(t.Context(), pa); !controller.IsSkipKey(err) {
		t.Errorf("a namespace that goes: %v", err)
	}
	refusal = status.NewAlreadyExists(schema.GroupResource{Resource: "serverlessservices"}, "llama-00001")
	if err := k.ReconcileKind(t.Context(), pa); err != nil || pa.Status.ServiceName != "" || !pa.Status.IsActivating() {
		t.Errorf("made a moment ago: %v %+v", err, pa.Status)
	}
	refusal = errors.New("away")
	if err := k.ReconcileKind(t.Context(), pa); err == nil || controller.IsSkipKey(err) {
		t.Errorf("away: %v", err)
	}
}

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestNoWriteAfterTerm: Knative's reconciler finishes its work under its own
// context, when another controller may already lead.
func TestNoWriteAfterTerm(t *testing.T) {
	out := 0
	ctx, cancel := context.WithCancel(t.Context())
	l := leaderTransport{ctx, trip(func(*http.Request) (*http.Response, error) { out++; return &http.Response{}, nil })}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPut, "http://127.0.0.1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.RoundTrip(r); err != nil || out != 1 {
		t.Errorf("while it leads: %v, %d", err, out)
	}
	cancel()
	if _, err := l.RoundTrip(r); !errors.Is(err, context.Canceled) || out != 1 {
		t.Errorf("after: %v, %d", err, out)
	}
}
