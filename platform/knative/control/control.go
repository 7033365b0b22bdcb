package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions"
	"knative.dev/serving/pkg/apis/serving"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned"
	servinginformers "knative.dev/serving/pkg/client/informers/externalversions"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/knative/ingress"
	"github.com/thaw-dev/thaw/platform/knative/schedulerhint"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/platform/orchestrator"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Options of a controller.
type Options struct {
	Config        *rest.Config
	Namespace     string // of thaw itself: its lease
	Knative       string // namespace of Knative Serving; "" is knative-serving
	Name          string // of this controller, for people
	Advertise     string // HOST:PORT at which peers reach it
	Listener      net.Listener
	Token         string                         // that peers show; it opens the control API as well
	Secure        bool                           // links are taken with certificates of the Secret thaw-control-tls only, which the one that leads renews; Token is that Secret's
	Policy        placement.Policy               // zero: placement.DefaultPolicy
	Public        string                         // name of the Service before the activators, in the status of ingresses
	Private       string                         // the same for the cluster alone
	NewForesee    func() *orchestrator.Foresight // of a reign; may be nil
	WebhookAddr   string                         // HOST:PORT at which API servers ask where a pod is wanted; "" nowhere
	AnnotateNodes bool                           // nodes are annotated with the models that are near
	Version       string
	Log           *slog.Logger
	// Settle bounds how long a new leader listens to loaders before it tells
	// activators what runs. 0: 3 s.
	Settle time.Duration
	// EarlyDispatch has activators send the first requests of a line to a pod that is not READY
	// yet, where they wait at its door.
	EarlyDispatch bool
}

// control is one controller process, leading or not.
type control struct {
	o           Options
	kube        kubernetes.Interface
	serving     servingclient.Interface
	networking  networking.Interface
	core        informers.SharedInformerFactory
	deployments informers.SharedInformerFactory
	knative     servinginformers.SharedInformerFactory
	ingress     netinformers.SharedInformerFactory
	election    *election
	registry    *prometheus.Registry
	tls         *controlTLS // nil: links are plain

	term atomic.Pointer[leaderTerm] // nil: another one leads
}

// Run is the controller until ctx ends. It returns nil then, or why it could not
// go on.
func Run(ctx context.Context, o Options) error {
	if o.Token == "" {
		return errors.New("control: a token that peers show is needed")
	}
	if o.Policy == (placement.Policy{}) {
		o.Policy = placement.DefaultPolicy
	}
	if o.Settle == 0 {
		o.Settle = 3 * time.Second
	}
	c := &control{o: o}
	if err := c.open(); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if c.tls != nil {
		c.tls.reload(ctx)
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	life, over := context.WithCancel(context.WithoutCancel(ctx)) // until the last reign has ended
	defer over()
	parts.Go(func() { c.serve(life, func(err error) { stop(err) }) })

	c.core.Start(ctx.Done())
	c.deployments.Start(ctx.Done())
	c.knative.Start(ctx.Done())
	c.ingress.Start(ctx.Done())
	defer func() {
		stop(nil)
		c.core.Shutdown()
		c.deployments.Shutdown()
		c.knative.Shutdown()
		c.ingress.Shutdown()
	}()
	if err := c.synced(ctx); err != nil {
		return err
	}
	err := c.election.Run(ctx, c.lead)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// serve answers at the port until ctx ends. With certificates links come in by them,
// and everything else, which shows a key where it needs one, without.
func (c *control) serve(ctx context.Context, failed func(error)) {
	var all sync.WaitGroup
	defer all.Wait()
	part := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
				failed(err)
			}
		})
	}
	server := func(l net.Listener, h http.Handler) {
		s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(c.o.Log.Handler(), slog.LevelDebug)}
		part(func() error { return s.Serve(l) })
		context.AfterFunc(ctx, func() { s.Close() })
	}
	if c.tls == nil {
		server(c.o.Listener, c.routes(true))
		return
	}
	split := mtls.NewSplit(c.o.Listener, mtls.Server(c.tls.identity, controlstream.NameActivator, controlstream.NameLoader), c.o.Log)
	part(func() error { return split.Run(ctx) })
	part(func() error { return c.tls.Run(ctx) })
	server(split.Secure, c.routes(true))
	server(split.Plain, c.routes(false))
}

// tokens are those that peers may show, and that open the control API.
func (c *control) tokens() []string {
	if c.tls == nil {
		return []string{c.o.Token}
	}
	return c.tls.tokens()
}

// open makes clients and informers.
func (c *control) open() error {
	config := rest.CopyConfig(c.o.Config)
	if config.QPS == 0 {
		// A burst of wakes is a burst of writes.
		config.QPS, config.Burst = 200, 400
	}
	var err error
	if c.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if c.serving, err = servingclient.NewForConfig(config); err != nil {
		return err
	}
	if c.networking, err = networking.NewForConfig(config); err != nil {
		return err
	}
	lean := informers.WithTransform(slimObject)
	c.core = informers.NewSharedInformerFactoryWithOptions(c.kube, 0, lean)
	c.deployments = informers.NewSharedInformerFactoryWithOptions(c.kube, 0, lean, informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = serving.RevisionLabelKey }))
	c.knative = servinginformers.NewSharedInformerFactoryWithOptions(c.serving, 0, servinginformers.WithTransform(slimObject))
	c.ingress = netinformers.NewSharedInformerFactory(c.networking, 0)
	for _, i := range []cache.SharedIndexInformer{
		c.core.Core().V1().Pods().Informer(), c.core.Core().V1().Nodes().Informer(), c.core.Core().V1().Services().Informer(),
		c.core.Core().V1().Namespaces().Informer(), c.core.Core().V1().ResourceQuotas().Informer(),
		c.deployments.Apps().V1().Deployments().Informer(),
		c.knative.Autoscaling().V1alpha1().PodAutoscalers().Informer(), c.knative.Serving().V1().Revisions().Informer(), c.knative.Serving().V1().Services().Informer(),
		c.ingress.Networking().V1alpha1().Ingresses().Informer(),
	} {
		if err := i.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
			c.o.Log.Warn("the API server cannot be watched", "error", err)
		}); err != nil {
			return err
		}
	}
	c.election = newElection(c.kube, c.o.Namespace, c.o.Name, c.o.Advertise, c.o.Log)
	if c.o.Secure {
		c.tls = &controlTLS{kube: c.kube, namespace: c.o.Namespace, leads: c.election.holdsLease, token: c.o.Token, log: c.o.Log, now: time.Now, changed: func() {
			if r := c.term.Load(); r != nil {
				r.teams.changed()
			}
		}}
	}
	c.registry = prometheus.NewRegistry()
	c.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return nil
}

// synced waits until everything has been listed once.
func (c *control) synced(ctx context.Context) error {
	for _, got := range []map[any]bool{anyKeys(c.core.WaitForCacheSync(ctx.Done())), anyKeys(c.deployments.WaitForCacheSync(ctx.Done())), anyKeys(c.knative.WaitForCacheSync(ctx.Done())), anyKeys(c.ingress.WaitForCacheSync(ctx.Done()))} {
		for kind, ok := range got {
			if !ok && ctx.Err() == nil {
				return fmt.Errorf("control: %v cannot be listed", kind)
			}
		}
	}
	return ctx.Err()
}

func anyKeys[K comparable](m map[K]bool) map[any]bool {
	out := map[any]bool{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// slimObject takes out of objects what nobody here reads: caches of a large cluster are
// mostly that.
func slimObject(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
		if a := o.GetAnnotations(); a[lastApplied] != "" {
			delete(a, lastApplied)
		}
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		o.Spec = slimPodSpec(&o.Spec)
		o.Annotations = nil
	case *corev1.Node:
		o.Status.Images, o.Status.VolumesInUse, o.Status.VolumesAttached = nil, nil, nil
	case *appsv1.Deployment:
		o.Spec = appsv1.DeploymentSpec{Replicas: o.Spec.Replicas, Template: corev1.PodTemplateSpec{Spec: slimPodSpec(&o.Spec.Template.Spec)}}
	}
	return obj, nil
}

// slimPodSpec is what is read of a pod: where it is and what it takes.
func slimPodSpec(spec *corev1.PodSpec) corev1.PodSpec {
	few := func(cs []corev1.Container) (out []corev1.Container) {
		for i := range cs {
			out = append(out, corev1.Container{Name: cs[i].Name, Resources: cs[i].Resources})
		}
		return out
	}
	return corev1.PodSpec{NodeName: spec.NodeName, InitContainers: few(spec.InitContainers), Containers: few(spec.Containers), Overhead: spec.Overhead}
}

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// leaderTerm is what there is while this controller leads.
type leaderTerm struct {
	c            *control
	epoch        int64
	hub          *controlstream.Hub
	steer        *orchestrator.Orchestrator
	cluster      *clusterState
	catalog      *revisionCatalog
	dataPath     *dataPath
	autoscale    *autoscale.Reconciler
	ingress      *ingress.Controller
	teams        *teamWatcher
	api          http.Handler
	metrics      http.Handler
	settled      atomic.Bool
	end          context.CancelCauseFunc
	tasks        sync.WaitGroup
	forceDeletes chan func(context.Context)
	probes       *prober
	peering      *peerAnnouncer
	podOwners    *podOwners
	firstTokens  firstTokens
	evictions    pendingEvictions
	limits       *sharedLimits
	watches      []watchHandle
}

// lead is one reign. It returns when ctx ends, and has then written its last word.
func (c *control) lead(ctx context.Context, epoch int64) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := &leaderTerm{c: c, epoch: epoch, end: end, forceDeletes: make(chan func(context.Context), 1024)}
	log := c.o.Log.With("epoch", epoch)
	r.probes = newProber(r.onProbeSuccess, func(uid types.UID) bool { return r.cluster.NeedsProbe(uid) })
	r.cluster = newClusterState(clusterStateOptions{
		epoch: epoch, life: fmt.Sprintf("%s-%d", c.election.identity, epoch), log: log, now: time.Now,
		sendHeartbeat: func(hb functions.Heartbeat, n orchestrator.Node) { r.steer.Heartbeat(hb, n) },
		send:          func(node string, d controlstream.Down) bool { return r.hub.Tell(node, d) },
		writer:        &kubeWriter{kube: c.kube, deployments: c.deployments.Apps().V1().Deployments().Lister(), epoch: epoch, leading: c.election.holdsLease, superseded: func() { end(errLost) }},
		probe:         r.probes.add, changed: r.revisionChanged, forceDelete: r.forceDelete,
	})
	r.peering = newPeerAnnouncer(r.cluster.BlockServers, func(node string, d controlstream.Down) bool { return r.hub.Tell(node, d) })
	r.podOwners = newPodOwners(c, func(node string, d controlstream.Down) bool { return r.hub.Tell(node, d) }, log)
	r.catalog = &revisionCatalog{
		pas: c.knative.Autoscaling().V1alpha1().PodAutoscalers().Lister(), revs: c.knative.Serving().V1().Revisions().Lister(), services: c.knative.Serving().V1().Services().Lister(),
		cluster: r.cluster, log: log, revisions: map[functions.Name]*revision{}, resources: map[functions.Name]functions.Resources{},
		changed: func() { r.steer.Changed() }, revisionsChanged: func() { r.ingress.Changed() },
	}
	kept := newUsageStore(c.kube.CoreV1().ConfigMaps(c.o.Namespace), epoch, log)
	ledger, err := kept.load(ctx)
	if err != nil {
		log.Error("what teams have used is not known", "error", err)
	}
	var foresee *orchestrator.Foresight
	if c.o.NewForesee != nil {
		foresee = c.o.NewForesee()
	}
	r.steer = orchestrator.New(orchestrator.Options{
		Epoch: epoch, Catalog: r.catalog, Policy: c.o.Policy, Foresight: foresee, Ledger: ledger, Log: log,
		Hooks: orchestrator.Hooks{Event: r.onEvent},
	})
	r.limits = &sharedLimits{
		pods: c.core.Core().V1().Pods().Lister().Pods(c.o.Namespace), ready: r.settled.Load,
		connected: func() []string { return r.hub.Activators() },
	}
	r.limits.Coordinator = ratelimit.NewCoordinator(ratelimit.CoordinatorOptions{
		Recovering: true, Dead: r.limits.isDead,
		Send: func(id string, g ratelimit.Allotments) { r.hub.Grant(id, g) },
	})
	r.hub = controlstream.NewHub(controlstream.HubOptions{
		Tokens: c.tokens, Quiet: true, Waker: r.steer, Coordinator: r.limits, Log: log,
		Node: r.onHeartbeat, Pods: r.onPodStatus, Joined: r.onConnect, Left: r.onDisconnect, FirstToken: r.firstTokens.record,
		Applied: func() { r.ingress.Changed() },
	})
	defer r.hub.Close()
	r.dataPath = &dataPath{activatorHub: r.hub, serviceOf: r.catalog.serviceAndKind, outside: map[functions.Name]outsideDemand{}, dirty: map[functions.Name]bool{}, queued: map[functions.Name]bool{}, wake: r.steer.Nudge, now: time.Now}
	r.dataPath.published = r.revisionChanged
	if c.o.EarlyDispatch {
		r.dataPath.notReady = r.cluster.NotReadyEndpoints
	}
	if r.autoscale, err = autoscale.New(autoscale.Options{Config: c.o.Config, Scales: r, Demand: r.onOutsideDemand, System: c.o.Knative, Log: log}); err != nil {
		return err
	}
	r.ingress = ingress.New(ingress.Options{
		Client: c.networking, Ingresses: c.ingress.Networking().V1alpha1().Ingresses(), Services: c.core.Core().V1().Services(),
		Revision: r.catalog.has, Push: r.hub.SetTable, Applied: r.hub.Applied, Public: c.o.Public, Private: c.o.Private, Log: log,
	})
	r.teams = newTeamWatcher(c, r)
	var hints *schedulerhint.Webhook
	if c.o.WebhookAddr != "" {
		at, _, _ := net.SplitHostPort(c.o.Advertise)
		if hints, err = schedulerhint.New(schedulerhint.Options{
			Client: c.kube, Namespace: c.o.Namespace, Address: c.o.WebhookAddr, Advertise: at, Log: log,
			Hint: func(namespace, revision string) (string, bool) {
				return r.cluster.PreferredNode(functions.Name{Team: namespace, Name: revision})
			},
		}); err != nil {
			return err
		}
	}

	if err = r.watch(ctx); err != nil {
		return err
	}
	defer r.stopWatching()
	if err = r.catalog.readAll(); err != nil {
		return err
	}
	r.steer.Attach(r.dataPath)
	if r.api, err = r.control(); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.steer, r.hub, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "thaw_reconcile_queue", Help: "PodAutoscalers that wait to be looked at.",
	}, func() float64 { return float64(r.autoscale.Queued()) }))
	r.metrics = promhttp.HandlerFor(prometheus.Gatherers{c.registry, registry}, promhttp.HandlerOpts{})
	c.term.Store(r)
	defer c.term.Store(nil)

	part := func(f func(context.Context) error) {
		r.tasks.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				end(err)
			}
		})
	}
	part(r.steer.Run)
	part(r.cluster.Run)
	part(r.probes.Run)
	part(r.peering.Run)
	part(r.autoscale.Run)
	part(r.ingress.Run)
	part(r.teams.Run)
	part(r.limits.Run)
	part(kept.Run)
	if hints != nil {
		part(hints.Run)
	}
	if c.o.AnnotateNodes {
		part((&cacheAnnotator{kube: c.kube, nodes: c.core.Core().V1().Nodes().Lister(), models: r.catalog.ModelSources, stores: r.cluster.Stores, log: log}).Run)
	}
	part(r.podOwners.Run)
	part(r.runForceDeletes)
	part(r.openWhenComplete)
	<-ctx.Done()
	r.tasks.Wait()
	kept.flush(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// openWhenComplete waits until the loaders of all nodes with pods of ours have been heard,
// for a bounded time, and then lets activators know what runs. Before, it would
// look as if nothing did.
func (r *leaderTerm) openWhenComplete(ctx context.Context) error {
	late := time.NewTimer(r.c.o.Settle)
	defer late.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return nil
		case <-late.C:
			over = true
		case <-look.C:
			over = r.cluster.AllPodsReported()
		}
	}
	r.cluster.sendHeartbeats(true)
	// One turn takes all of it in before the first picture goes out.
	r.steer.Changed()
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
	// Whoever has just begun takes requests once it was told of models: it should
	// know the hosts and the keys by then. No longer: with the API server away there
	// would be nothing at all.
	bounded, cancel := context.WithTimeout(ctx, r.c.o.Settle)
	defer cancel()
	for _, told := range []<-chan struct{}{r.ingress.Pushed(), r.teams.firstSent} {
		select {
		case <-told:
		case <-bounded.Done():
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	r.settled.Store(true)
	r.hub.Open()
	r.c.o.Log.Info("settled", "revisions", len(r.catalog.Models()))
	return nil
}

// onHeartbeat is a node's loader speaking of its node.
func (r *leaderTerm) onHeartbeat(node string, hb functions.Heartbeat) {
	if r.cluster.OnHeartbeat(node, hb) {
		r.peering.changed()
	}
}

func (r *leaderTerm) onPodStatus(node string, whole bool, pods []controlstream.Pod) {
	r.cluster.OnPodStatus(node, whole, pods)
}

func (r *leaderTerm) onConnect(kind controlstream.Kind, id string) {
	r.c.o.Log.Info("joined", "kind", string(kind), "id", id)
	if kind == controlstream.KindNode {
		r.peering.changed()
		r.podOwners.loaderChanged(id, true)
		return
	}
	r.ingress.Changed()
}

func (r *leaderTerm) onDisconnect(kind controlstream.Kind, id string) {
	r.c.o.Log.Warn("left", "kind", string(kind), "id", id)
	if kind == controlstream.KindNode {
		r.cluster.SetConnected(id, false)
		r.podOwners.loaderChanged(id, false)
		return
	}
	r.ingress.Changed()
}

// revisionChanged is told that a revision stands otherwise than it did.
func (r *leaderTerm) revisionChanged(name functions.Name) {
	if r.autoscale != nil {
		r.autoscale.Changed(name.Team, name.Name)
	}
}

// onOutsideDemand is told of requests for a revision that are at Knative's own activators.
func (r *leaderTerm) onOutsideDemand(namespace, revision string, active, queued int) {
	r.dataPath.Outside(functions.Name{Team: namespace, Name: revision}, active, queued)
}

// forceDelete has a pod that is terminating end soon.
func (r *leaderTerm) forceDelete(namespace, pod string, uid types.UID) {
	select {
	case r.forceDeletes <- func(ctx context.Context) {
		if err := r.cluster.o.writer.ForceDelete(ctx, namespace, pod, uid); err != nil {
			r.c.o.Log.Warn("a pod takes its time to end", "pod", namespace+"/"+pod, "error", err)
		}
	}:
	default: // it ends by itself, later
	}
}

func (r *leaderTerm) runForceDeletes(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	lanes := make(chan struct{}, 16)
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-r.forceDeletes:
			lanes <- struct{}{}
			all.Go(func() {
				defer func() { <-lanes }()
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				f(ctx)
			})
		}
	}
}

func (r *leaderTerm) onProbeSuccess(uid types.UID) { r.cluster.OnProbeSuccess(uid) }

// routes is what the controller's port answers, to links too or not.
func (c *control) routes(links bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := c.term.Load()
		switch {
		case r == nil && c.election.Leader() == "":
			http.Error(w, "nobody leads", http.StatusServiceUnavailable)
		case r != nil && !r.settled.Load():
			http.Error(w, "finding out what runs", http.StatusServiceUnavailable)
		default:
			json.NewEncoder(w).Encode(map[string]any{"leads": r != nil, "leader": c.election.Leader()})
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, req *http.Request) {
		if r := c.term.Load(); r != nil {
			r.metrics.ServeHTTP(w, req)
			return
		}
		promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{}).ServeHTTP(w, req)
	})
	idle := controlstream.NewHub(controlstream.HubOptions{Tokens: c.tokens, Leads: func() (bool, string) { return false, c.election.Leader() }, Log: c.o.Log})
	mux.HandleFunc(controlstream.Endpoint, func(w http.ResponseWriter, req *http.Request) {
		if !links {
			http.Error(w, "links are taken with a certificate only", http.StatusForbidden)
			return
		}
		if r := c.term.Load(); r != nil {
			r.hub.ServeHTTP(w, req)
			return
		}
		idle.ServeHTTP(w, req)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		if r := c.term.Load(); r != nil {
			r.api.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Thaw-Leader", c.election.Leader())
		w.Header().Set("Retry-After", "1")
		http.Error(w, `{"error":{"message":"This controller does not lead; another one does.","type":"server_error","code":"not_leading"}}`, http.StatusMisdirectedRequest)
	})
	return mux
}
