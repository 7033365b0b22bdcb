package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	kube "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/lru"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
	"github.com/thaw-dev/thaw/platform/knative/election"
	"github.com/thaw-dev/thaw/platform/knative/ingress"
	"github.com/thaw-dev/thaw/platform/knative/schedulerhint"
	"github.com/thaw-dev/thaw/platform/knative/slim"
	"github.com/thaw-dev/thaw/platform/knative/team"
	"github.com/thaw-dev/thaw/platform/orchestrator"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// leaderTerm is what exists only while this controller leads.
type leaderTerm struct {
	c            *control
	epoch        int64
	log          *slog.Logger
	hub          *controlstream.Hub
	orchestrator *orchestrator.Orchestrator
	cluster      *clusterstate.State
	writer       *kubeWriter
	catalog      *revisionCatalog
	dataPath     *dataPath
	autoscale    *autoscale.Reconciler
	ingress      *ingress.Controller
	teams        *team.Watcher
	events       record.EventRecorder
	api          http.Handler
	metrics      *telemetry.Registry
	settled      atomic.Bool // activators get snapshots
	peering      *peerAnnouncer
	podOwners    *podOwners
	firstTokens  firstTokens
	evictions    pendingEvictions
	limits       *sharedLimits
	usage        *usageStore
	hints        *schedulerhint.Webhook // nil: Options.WebhookAddr is empty
}

// lead runs one term. It returns when ctx ends, after the last write of the term.
func (c *control) lead(ctx context.Context, epoch int64) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := &leaderTerm{c: c, epoch: epoch, firstTokens: firstTokens{lru.New(maxFirstTokens)}, log: c.o.Log.With("epoch", epoch)}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&kube.EventSinkImpl{Interface: c.kube.CoreV1().Events("")})
	r.events = broadcaster.NewRecorder(eventScheme(), corev1.EventSource{Component: "thaw"})
	r.makeState(end)
	r.makeOrchestrator(ctx)
	r.makeStreams()
	defer r.hub.Close()
	if err := r.makeReconcilers(); err != nil {
		return err
	}
	unwatch, err := r.watch(ctx)
	defer unwatch() // also of a term that ended before it had seen every object
	if err != nil {
		return err
	}
	if err := r.catalog.readAll(); err != nil {
		return err
	}
	r.orchestrator.Attach(r.dataPath)
	r.metrics = c.metrics.Extend(r.orchestrator.Samples, r.hub.Samples,
		telemetry.Gauge("thaw_reconcile_queue", func() float64 { return float64(r.autoscale.Queued()) }))
	r.api = r.control()
	c.term.Store(r)
	defer c.term.Store(nil)

	var tasks sync.WaitGroup
	for _, run := range r.parts() {
		tasks.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				end(err)
			}
		})
	}
	<-ctx.Done()
	tasks.Wait()
	r.usage.flush(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// makeState makes the nodes, pods, revisions and teams of the cluster; end ends the term.
func (t *leaderTerm) makeState(end context.CancelCauseFunc) {
	c := t.c
	send := func(node string, d controlstream.Update) bool { return t.hub.SendToNode(node, d) }
	t.writer = &kubeWriter{
		kube: c.kube, deployments: c.deployments.Apps().V1().Deployments().Lister(), epoch: t.epoch,
		leading: c.election.HoldsLease, superseded: func() { end(election.ErrLost) },
		log: c.o.Log, forceDeletes: make(chan terminatingPod, maxForceDeletes),
	}
	t.cluster = clusterstate.New(clusterstate.Options{
		Epoch: t.epoch, Life: fmt.Sprintf("%s-%d", c.election.Identity(), t.epoch), Log: t.log, Now: time.Now,
		SendHeartbeat: func(hb functions.Heartbeat, n orchestrator.Node) { t.orchestrator.Heartbeat(hb, n) },
		Send:          send, Writer: t.writer, Changed: t.revisionChanged,
	})
	t.peering = &peerAnnouncer{servers: t.cluster.BlockServers, send: send, wakeup: newest.NewSignal()}
	t.podOwners = newPodOwners(c, send, t.log)
	t.catalog = &revisionCatalog{
		pas: c.knative.Autoscaling().V1alpha1().PodAutoscalers().Lister(), revs: c.knative.Serving().V1().Revisions().Lister(),
		services: c.knative.Serving().V1().Services().Lister(),
		cluster:  t.cluster, log: t.log, revisions: map[functions.Name]*revision{}, resources: map[functions.Name]functions.Resources{},
		changed: func() { t.orchestrator.Changed() }, revisionsChanged: func() { t.ingress.Changed() },
	}
}

// makeOrchestrator makes the orchestrator with the stored usage of teams.
func (t *leaderTerm) makeOrchestrator(ctx context.Context) {
	c := t.c
	t.usage = newUsageStore(c.kube.CoreV1().ConfigMaps(c.o.Namespace), t.epoch, t.log)
	ledger, err := t.usage.load(ctx)
	if err != nil {
		t.log.Error("the usage of teams is not known", "error", err)
	}
	t.orchestrator = orchestrator.New(orchestrator.Options{
		Epoch: t.epoch, Catalog: t.catalog, Policy: c.o.Policy, Foresight: c.o.NewForesee(), Ledger: ledger, Log: t.log,
		Event: t.onEvent,
	})
}

// makeStreams makes what connects activators and loaders to the orchestrator.
func (t *leaderTerm) makeStreams() {
	c := t.c
	t.limits = &sharedLimits{
		pods: c.core.Core().V1().Pods().Lister().Pods(c.o.Namespace), ready: t.settled.Load,
		connected: func() []string { return t.hub.Activators() },
	}
	t.limits.Coordinator = ratelimit.NewCoordinator(ratelimit.CoordinatorOptions{
		Recovering: true, Dead: t.limits.isDead,
		Send: func(id string, g ratelimit.Allotments) { t.hub.Grant(id, g) },
	})
	t.dataPath = &dataPath{
		Waker: t.orchestrator, serviceOf: t.catalog.serviceOf, published: t.revisionChanged, now: time.Now,
		inside: map[functions.Name]orchestrator.Demand{}, outside: map[functions.Name]outsideDemand{}, queued: map[functions.Name]bool{},
	}
	t.hub = controlstream.NewHub(controlstream.HubOptions{
		Tokens: c.tokens, Quiet: true, Waker: t.dataPath, Coordinator: t.limits, Log: t.log,
		Node: t.onHeartbeat, Pods: t.cluster.OnPodStatus, Joined: t.onConnect, Left: t.onDisconnect, FirstToken: t.firstTokens.record,
		Applied: func() { t.ingress.Changed() },
	})
	t.dataPath.DataPath = t.hub
	if c.o.EarlyDispatch {
		t.dataPath.notReady = t.cluster.EarlyReplicas
	}
}

// makeReconcilers makes what writes Kubernetes objects of other kinds than Deployments
// and pods. They borrow the controller's informers.
func (t *leaderTerm) makeReconcilers() (err error) {
	c := t.c
	ingresses := c.ingress.Networking().V1alpha1().Ingresses()
	t.autoscale = autoscale.New(autoscale.Options{
		Config: c.o.Config, Scales: t, System: c.o.Knative, Log: t.log,
		Demand: func(namespace, revision string, active, queued int) {
			t.dataPath.SetOutsideDemand(functions.Name{Team: namespace, Name: revision}, active, queued)
		},
		PodAutoscalers: c.knative.Autoscaling().V1alpha1().PodAutoscalers(), Ingresses: ingresses,
	})
	t.ingress = ingress.New(ingress.Options{
		Client: c.networking, Ingresses: ingresses, Services: c.core.Core().V1().Services(),
		Revision: t.catalog.has, Push: t.hub.SetTable, Applied: t.hub.OldestApplied, Public: c.o.Public, Private: c.o.Private, Log: t.log,
	})
	t.teams = team.NewWatcher(team.WatcherOptions{
		Client: c.kube, Namespaces: c.core.Core().V1().Namespaces().Lister(), Quotas: c.core.Core().V1().ResourceQuotas().Lister(),
		Transform: slim.Object, Tokens: c.secrets.AdminTokens, Events: t.events, Log: c.o.Log,
		Apply: func(k controlstream.Keys) {
			t.catalog.setTeams(k.Teams)
			t.limits.setTeams(k.Teams)
			t.hub.SetKeys(k)
		},
	})
	if c.o.WebhookAddr == "" {
		return nil
	}
	at, _, _ := net.SplitHostPort(c.o.Advertise)
	t.hints, err = schedulerhint.New(schedulerhint.Options{
		Client: c.kube, Namespace: c.o.Namespace, Address: c.o.WebhookAddr, Advertise: at, Log: t.log,
		Hint: t.hint,
	})
	return err
}

// hint is the node for the next pod of a revision, for callers that know its uid.
func (t *leaderTerm) hint(namespace, revision, uid string) (string, bool) {
	rev, err := t.catalog.revs.Revisions(namespace).Get(revision)
	if err != nil || uid == "" || string(rev.UID) != uid {
		return "", false
	}
	return t.cluster.PreferredNode(functions.Name{Team: namespace, Name: revision})
}

// parts lists what runs for the length of a term.
func (t *leaderTerm) parts() []func(context.Context) error {
	parts := []func(context.Context) error{
		t.orchestrator.Run, t.cluster.Run, t.peering.Run, t.autoscale.Run, t.ingress.Run, t.teams.Run, t.limits.Run, t.usage.Run,
		t.podOwners.Run, t.writer.Run, t.openWhenComplete,
	}
	if t.hints != nil {
		parts = append(parts, t.hints.Run)
	}
	return parts
}

// openWhenComplete waits, up to settleWait, until all pods have reported, and then
// opens the hub to activators. Before, they would see no replicas.
func (t *leaderTerm) openWhenComplete(ctx context.Context) error {
	for end, over := time.Now().Add(settleWait), false; !over && time.Now().Before(end); over = t.cluster.AllPodsReported() {
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return nil
		}
	}
	t.cluster.SendHeartbeats(true)
	// one turn takes in all reports before the first snapshot is published
	t.orchestrator.Changed()
	backoff.Sleep(ctx, 50*time.Millisecond)
	// A starting activator serves once it knows the models, so it should know routes and
	// keys by then. The wait is bounded: with the API server away they may never come.
	bounded, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	for _, done := range []<-chan struct{}{t.ingress.Pushed(), t.teams.Applied()} {
		select {
		case <-done:
		case <-bounded.Done():
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	t.settled.Store(true)
	t.hub.StartSending()
	t.c.o.Log.Info("settled", "revisions", len(t.catalog.Models()))
	return nil
}

func (t *leaderTerm) onHeartbeat(node string, hb functions.Heartbeat) {
	if t.cluster.OnHeartbeat(node, hb) {
		t.peering.wakeup.Set()
	}
}

func (t *leaderTerm) onConnect(kind controlstream.Kind, id string) {
	t.c.o.Log.Info("joined", "kind", string(kind), "id", id)
	if kind == controlstream.KindNode {
		t.peering.wakeup.Set()
		t.podOwners.loaderChanged(id, true)
		return
	}
	t.ingress.Changed()
}

func (t *leaderTerm) onDisconnect(kind controlstream.Kind, id string) {
	t.c.o.Log.Warn("left", "kind", string(kind), "id", id)
	if kind == controlstream.KindNode {
		t.cluster.SetConnected(id, false)
		t.podOwners.loaderChanged(id, false)
		return
	}
	t.ingress.Changed()
}

// revisionChanged has the PodAutoscaler of a revision reconciled.
func (t *leaderTerm) revisionChanged(name functions.Name) {
	if t.autoscale != nil {
		t.autoscale.Changed(name.Team, name.Name)
	}
}
