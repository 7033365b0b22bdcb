package autoscale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kube "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/reconciler"
	classes "knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	serving "knative.dev/serving/pkg/client/clientset/versioned"
	kinds "knative.dev/serving/pkg/client/clientset/versioned/scheme"
	servinginformers "knative.dev/serving/pkg/client/informers/externalversions"
	servingclient "knative.dev/serving/pkg/client/injection/client"
	painformer "knative.dev/serving/pkg/client/injection/informers/autoscaling/v1alpha1/podautoscaler"
	podautoscaler "knative.dev/serving/pkg/client/injection/reconciler/autoscaling/v1alpha1/podautoscaler"
	palist "knative.dev/serving/pkg/client/listers/autoscaling/v1alpha1"
	scaling "knative.dev/serving/pkg/reconciler/autoscaling"

	"github.com/thaw-dev/thaw/platform/knative"
)

const (
	reconcileTimeout = 20 * time.Second // bounds the requests of one reconcile
	workers          = 8
	resync           = 10 * time.Minute // what was missed, if ever anything is
	component        = "thaw"           // who tells Events
)

// Options of New.
type Options struct {
	Config *rest.Config // of the API server; it is copied
	Scales ScaleSource
	Log    *slog.Logger
	System string // Knative's namespace; "" is knative-serving

	// Demand is told of requests for a revision that are in Knative's own
	// activators: sent on to a replica, and waiting for one. It is told when they
	// change, also to none, and must return at once. nil: nobody looks.
	Demand func(namespace, revision string, active, queued int)
}

// clients are the ways to the API server.
type clients struct {
	kube       kubernetes.Interface
	serving    serving.Interface
	networking networking.Interface
}

// Note is one thing that happened to a revision and that no Scale says.
type Note struct {
	Reason  string // one word in CamelCase
	Message string
	Warning bool
}

// Reconciler keeps what Kubernetes says of revisions of class thaw.dev up to what
// the controller does. All of it may be called at any time, from any goroutine.
type Reconciler struct {
	o     Options
	class string

	mu  sync.Mutex
	now *running // while Run runs
}

// running is what there is of one Run.
type running struct {
	queue  *controller.Impl
	list   palist.PodAutoscalerLister
	events *events
}

// New checks the options and starts nothing.
func New(o Options) (*Reconciler, error) {
	if o.Config == nil || o.Scales == nil || o.Log == nil {
		return nil, errors.New("autoscale: Config, Pictures and Log are needed")
	}
	if o.System == "" {
		o.System = "knative-serving"
	}
	return &Reconciler{o: o, class: knative.AutoscalerClass}, nil
}

// Changed says that Pictures has something new of a revision.
func (r *Reconciler) Changed(namespace, revision string) {
	if now := r.running(); now != nil {
		now.queue.EnqueueKey(types.NamespacedName{Namespace: namespace, Name: revision})
	}
}

// RecordNote makes an Event of the Knative Service that a revision is of. It does not
// wait, and is lost while Run does not run.
func (r *Reconciler) RecordNote(namespace, revision string, n Note) {
	now := r.running()
	if now == nil {
		return
	}
	if pa, err := now.list.PodAutoscalers(namespace).Get(revision); err == nil {
		now.events.recordNote(pa, n)
	}
}

func (r *Reconciler) running() *running {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Queued is how many PodAutoscalers wait to be looked at; 0 while nothing runs.
func (r *Reconciler) Queued() int {
	if now := r.running(); now != nil {
		return now.queue.WorkQueue().Len()
	}
	return 0
}

// Run reconciles until ctx ends; after that nothing is written any more. It may be
// called again, but only one runs at a time: who leads runs it.
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

// leaderTransport lets nothing out once its context has ended. The reconciler of Knative's
// finishes what it has in hand after its own has, and somebody else may lead then.
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

func (r *Reconciler) run(ctx context.Context, c clients) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := logging.WithLogger(ctx, quietLogger(r.o.Log))

	broadcaster := record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{BurstSize: 20, QPS: 1. / 15})
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&kube.EventSinkImpl{Interface: c.kube.CoreV1().Events("")})
	told := &events{
		recorder: broadcaster.NewRecorder(kinds.Scheme, corev1.EventSource{Component: component}),
		now:      time.Now, last: map[types.NamespacedName]lastTold{},
	}

	ours := reconciler.AnnotationFilterFunc(classes.ClassAnnotationKey, r.class, false)
	servings := servinginformers.NewSharedInformerFactoryWithOptions(c.serving, resync, servinginformers.WithTransform(slim))
	nets := netinformers.NewSharedInformerFactoryWithOptions(c.networking, resync, netinformers.WithTransform(slim))
	pas, skss := servings.Autoscaling().V1alpha1().PodAutoscalers(), nets.Networking().V1alpha1().ServerlessServices()

	var impl *controller.Impl
	routes := nets.Networking().V1alpha1().Ingresses()
	slices := informers.NewSharedInformerFactoryWithOptions(c.kube, resync, informers.WithNamespace(r.o.System), informers.WithTransform(slim),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = discoveryv1.LabelServiceName + "=" + activatorService
		}))
	out := &demandWatcher{
		log: r.o.Log, system: r.o.System,
		slices: slices.Discovery().V1().EndpointSlices().Lister(), ingresses: routes.Lister(),
		isOurs: func(key types.NamespacedName) bool {
			pa, err := pas.Lister().PodAutoscalers(key.Namespace).Get(key.Name)
			return err == nil && ours(pa)
		},
		anyOurs: func() bool {
			for _, x := range pas.Informer().GetStore().List() {
				if ours(x) {
					return true
				}
			}
			return false
		},
		report:         r.o.Demand,
		foreignChanged: func(key types.NamespacedName) { impl.EnqueueKey(key) },
		now:            time.Now,
		samples:        map[string]activatorSample{}, reported: map[types.NamespacedName]demand{},
	}
	k := &classReconciler{
		base: &scaling.Base{
			Client: c.serving, NetworkingClient: c.networking, SKSLister: skss.Lister(),
		},
		source: r.o.Scales,
		demand: out,
		events: told,
	}
	// What Knative's generated code looks for in its context.
	inject := context.WithValue(context.WithValue(log, painformer.Key{}, pas), servingclient.Key{}, c.serving)
	inject = controller.WithEventRecorder(inject, told.recorder)
	impl = podautoscaler.NewImpl(inject, k, r.class)
	impl.Concurrency = workers

	owned := controller.FilterController(&v1alpha1.PodAutoscaler{})
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{pas.Informer(), cache.FilteringResourceEventHandler{FilterFunc: ours, Handler: controller.HandleAll(impl.Enqueue)}},
		{skss.Informer(), cache.FilteringResourceEventHandler{FilterFunc: reconciler.ChainFilterFuncs(ours, owned), Handler: controller.HandleAll(impl.EnqueueControllerOf)}},
	} {
		if _, err := w.informer.AddEventHandler(w.handler); err != nil {
			return fmt.Errorf("autoscale: %w", err)
		}
	}

	synced := []cache.InformerSynced{pas.Informer().HasSynced, skss.Informer().HasSynced}
	if r.o.Demand != nil {
		look := controller.HandleAll(func(any) { out.updateForeign() })
		if _, err := routes.Informer().AddEventHandler(look); err != nil {
			return fmt.Errorf("autoscale: %w", err)
		}
		synced = append(synced, routes.Informer().HasSynced)
	}

	servings.Start(ctx.Done())
	nets.Start(ctx.Done())
	slices.Start(ctx.Done())
	var wg sync.WaitGroup
	defer func() {
		cancel() // Shutdown waits for the informers
		wg.Wait()
		servings.Shutdown()
		nets.Shutdown()
		slices.Shutdown()
	}()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	r.mu.Lock()
	r.now = &running{queue: impl, list: pas.Lister(), events: told}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.now = nil
		r.mu.Unlock()
	}()
	if r.o.Demand != nil {
		transport := &http.Transport{DialContext: (&net.Dialer{Timeout: pageTimeout}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}
		defer transport.CloseIdleConnections()
		out.fetch = pageFetcher(&http.Client{Transport: transport})
		wg.Go(func() { out.poll(ctx) })
	}
	return impl.Run(log)
}

// slim drops what nobody here reads: who wrote which field is half of an object.
func slim(x any) (any, error) {
	if o, ok := x.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return x, nil
}
