package autoscale

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kube "k8s.io/client-go/kubernetes/typed/core/v1"
	discoverylist "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions"
	ingressinformers "knative.dev/networking/pkg/client/informers/externalversions/networking/v1alpha1"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/reconciler"
	classes "knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	serving "knative.dev/serving/pkg/client/clientset/versioned"
	kinds "knative.dev/serving/pkg/client/clientset/versioned/scheme"
	painformers "knative.dev/serving/pkg/client/informers/externalversions/autoscaling/v1alpha1"
	servingclient "knative.dev/serving/pkg/client/injection/client"
	painformer "knative.dev/serving/pkg/client/injection/informers/autoscaling/v1alpha1/podautoscaler"
	podautoscaler "knative.dev/serving/pkg/client/injection/reconciler/autoscaling/v1alpha1/podautoscaler"
	palist "knative.dev/serving/pkg/client/listers/autoscaling/v1alpha1"
	scaling "knative.dev/serving/pkg/reconciler/autoscaling"

	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/slim"
)

const (
	reconcileTimeout = 20 * time.Second // bounds the requests of one reconcile
	workers          = 8
	component        = "thaw" // source of Events
)

// Resync is how often every PodAutoscaler is reconciled without a change.
const Resync = 10 * time.Minute

type Options struct {
	Config *rest.Config // of the API server; Run copies it for clients that write only while it runs
	Scales ScaleSource
	Log    *slog.Logger
	System string // Knative's namespace; "": knative-serving

	// Informers of all namespaces that the caller has started; Run adds handlers and
	// removes them at its end. Their resync period is Resync.
	PodAutoscalers painformers.PodAutoscalerInformer
	Ingresses      ingressinformers.IngressInformer

	// Demand is called when the requests for a revision in Knative's own activators
	// change, also to 0: forwarded to a replica, and waiting for one. It must return at
	// once.
	Demand func(namespace, revision string, active, queued int)
}

// clients write to the API server.
type clients struct {
	kube       kubernetes.Interface
	serving    serving.Interface
	networking networking.Interface
}

// Note is an Event of a revision that no Scale expresses.
type Note struct {
	Reason  string // one word in CamelCase
	Message string
	Warning bool
}

// Reconciler keeps the Kubernetes status of revisions of class thaw.dev up to date. It is
// safe for concurrent use.
type Reconciler struct {
	o     Options
	class string

	now atomic.Pointer[running] // while Run runs
}

// running is the state of one Run.
type running struct {
	queue  *controller.Impl
	list   palist.PodAutoscalerLister
	events *events
}

// New starts nothing.
func New(o Options) *Reconciler {
	o.System = cmp.Or(o.System, "knative-serving")
	return &Reconciler{o: o, class: knative.AutoscalerClass}
}

// Changed enqueues a revision whose Scale has changed.
func (r *Reconciler) Changed(namespace, revision string) {
	if now := r.now.Load(); now != nil {
		now.queue.EnqueueKey(types.NamespacedName{Namespace: namespace, Name: revision})
	}
}

// RecordNote records an Event of a revision's Knative Service. It does not wait, and does
// nothing while Run does not run.
func (r *Reconciler) RecordNote(namespace, revision string, n Note) {
	now := r.now.Load()
	if now == nil {
		return
	}
	if pa, err := now.list.PodAutoscalers(namespace).Get(revision); err == nil {
		now.events.recordNote(pa, n)
	}
}

// Queued is the length of the work queue; 0 while Run does not run.
func (r *Reconciler) Queued() int {
	if now := r.now.Load(); now != nil {
		return now.queue.WorkQueue().Len()
	}
	return 0
}

// Run reconciles until ctx ends; nothing is written afterwards. The leader calls it, once
// per term.
func (r *Reconciler) Run(ctx context.Context) error {
	config := rest.CopyConfig(r.o.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return leaderTransport{ctx, next} })
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS, config.Burst = 200, 400 // a burst of wakes is a burst of writes
	}
	var c clients
	var err error
	if c.kube, err = kubernetes.NewForConfig(config); err == nil {
		if c.serving, err = serving.NewForConfig(config); err == nil {
			c.networking, err = networking.NewForConfig(config)
		}
	}
	if err != nil {
		return fmt.Errorf("autoscale: %w", err)
	}
	return r.run(ctx, c)
}

// leaderTransport refuses requests once its context has ended: Knative's reconciler
// finishes its current work later, when another controller may lead.
type leaderTransport struct {
	ctx  context.Context
	next http.RoundTripper
}

func (l leaderTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := l.ctx.Err(); err != nil {
		return nil, err
	}
	return l.next.RoundTrip(r)
}

// WrappedRoundTripper lets client-go cancel requests.
func (l leaderTransport) WrappedRoundTripper() http.RoundTripper { return l.next }

// run reconciles with the clients c. Its own informers and all handlers that it adds to
// borrowed ones end with it.
func (r *Reconciler) run(ctx context.Context, c clients) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := logging.WithLogger(ctx, quietLogger(r.o.Log))

	broadcaster := record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{BurstSize: 20, QPS: 1. / 15})
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&kube.EventSinkImpl{Interface: c.kube.CoreV1().Events("")})
	told := &events{
		recorder: broadcaster.NewRecorder(kinds.Scheme, corev1.EventSource{Component: component}),
		last:     map[types.NamespacedName]lastReported{},
	}

	nets := netinformers.NewSharedInformerFactoryWithOptions(c.networking, Resync, netinformers.WithTransform(slim.Object))
	endpoints := informers.NewSharedInformerFactoryWithOptions(c.kube, Resync, informers.WithNamespace(r.o.System),
		informers.WithTransform(slim.Object),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = discoveryv1.LabelServiceName + "=" + activatorService
		}))
	skss := nets.Networking().V1alpha1().ServerlessServices()

	var impl *controller.Impl
	watcher := r.newDemandWatcher(endpoints.Discovery().V1().EndpointSlices().Lister(),
		func(key types.NamespacedName) { impl.EnqueueKey(key) })
	k := &classReconciler{
		base:   &scaling.Base{Client: c.serving, NetworkingClient: c.networking, SKSLister: skss.Lister()},
		source: r.o.Scales, demand: watcher, events: told, log: r.o.Log,
	}
	// The values that Knative's generated code reads from its context.
	inject := context.WithValue(context.WithValue(log, painformer.Key{}, r.o.PodAutoscalers), servingclient.Key{}, c.serving)
	impl = podautoscaler.NewImpl(controller.WithEventRecorder(inject, told.recorder), k, r.class)
	impl.Concurrency = workers

	synced, remove, err := r.addHandlers(skss.Informer(), impl, watcher)
	defer remove()
	if err != nil {
		return fmt.Errorf("autoscale: %w", err)
	}
	nets.Start(ctx.Done())
	endpoints.Start(ctx.Done())
	var wg sync.WaitGroup
	defer func() {
		cancel() // Shutdown waits for the informers
		wg.Wait()
		nets.Shutdown()
		endpoints.Shutdown()
	}()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	r.now.Store(&running{queue: impl, list: r.o.PodAutoscalers.Lister(), events: told})
	defer r.now.Store(nil)
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: pageTimeout}).DialContext, MaxIdleConnsPerHost: 1,
		IdleConnTimeout: time.Minute}
	defer transport.CloseIdleConnections()
	watcher.fetch = pageFetcher(&http.Client{Transport: transport})
	wg.Go(func() { watcher.poll(ctx) })
	return impl.Run(log)
}

func (r *Reconciler) isOurs(x any) bool {
	return reconciler.AnnotationFilterFunc(classes.ClassAnnotationKey, r.class, false)(x)
}

// newDemandWatcher makes the watcher of Knative's activators in endpoints.
func (r *Reconciler) newDemandWatcher(endpoints discoverylist.EndpointSliceLister, changed func(types.NamespacedName)) *demandWatcher {
	pas := r.o.PodAutoscalers
	return &demandWatcher{
		log: r.o.Log, system: r.o.System, slices: endpoints, ingresses: r.o.Ingresses.Lister(),
		isOurs: func(key types.NamespacedName) bool {
			pa, err := pas.Lister().PodAutoscalers(key.Namespace).Get(key.Name)
			return err == nil && r.isOurs(pa)
		},
		anyOurs:        func() bool { return slices.ContainsFunc(pas.Informer().GetStore().List(), r.isOurs) },
		report:         r.o.Demand,
		foreignChanged: changed,
		samples:        map[string]activatorSample{}, reported: map[types.NamespacedName]demand{},
	}
}

// addHandlers has the informers fill the queue of impl and the routes of watcher.
// remove takes the handlers off again, also after an error.
func (r *Reconciler) addHandlers(skss cache.SharedIndexInformer, impl *controller.Impl,
	watcher *demandWatcher) (synced []cache.InformerSynced, remove func(), err error) {
	var removers []func()
	remove = func() {
		for _, f := range removers {
			f()
		}
	}
	add := func(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
		if err != nil {
			return
		}
		var handle cache.ResourceEventHandlerRegistration
		if handle, err = informer.AddEventHandler(handler); err == nil {
			synced = append(synced, handle.HasSynced)
			removers = append(removers, func() { informer.RemoveEventHandler(handle) })
		}
	}
	owned := controller.FilterController(&v1alpha1.PodAutoscaler{})
	add(r.o.PodAutoscalers.Informer(), cache.FilteringResourceEventHandler{FilterFunc: r.isOurs, Handler: controller.HandleAll(impl.Enqueue)})
	add(skss, cache.FilteringResourceEventHandler{FilterFunc: reconciler.ChainFilterFuncs(r.isOurs, owned),
		Handler: controller.HandleAll(impl.EnqueueControllerOf)})
	add(r.o.Ingresses.Informer(), controller.HandleAll(func(any) { watcher.updateForeign() }))
	return synced, remove, err
}
