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

	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/knative/election"
	"github.com/thaw-dev/thaw/platform/knative/ingress"
	"github.com/thaw-dev/thaw/platform/knative/schedulerhint"
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
	cluster      *clusterState
	catalog      *revisionCatalog
	dataPath     *dataPath
	autoscale    *autoscale.Reconciler
	ingress      *ingress.Controller
	teams        *team.Watcher
	api          http.Handler
	metrics      *telemetry.Registry
	settled      atomic.Bool // activators get snapshots
	end          context.CancelCauseFunc
	tasks        sync.WaitGroup
	forceDeletes chan func(context.Context)
	probes       *prober
	peering      *peerAnnouncer
	podOwners    *podOwners
	firstTokens  firstTokens
	evictions    pendingEvictions
	limits       *sharedLimits
	usage        *usageStore
	hints        *schedulerhint.Webhook // nil: Options.WebhookAddr is empty
	watches      []watchHandle
}

// lead runs one term. It returns when ctx ends, after the last write of the term.
func (c *control) lead(ctx context.Context, epoch int64) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := &leaderTerm{
		c: c, epoch: epoch, end: end, log: c.o.Log.With("epoch", epoch),
		forceDeletes: make(chan func(context.Context), 1024),
	}
	r.makeState()
	r.makeOrchestrator(ctx)
	r.makeStreams()
	defer r.hub.Close()
	if err := r.makeReconcilers(); err != nil {
		return err
	}
	if err := r.watch(ctx); err != nil {
		return err
	}
	defer r.stopWatching()
	if err := r.catalog.readAll(); err != nil {
		return err
	}
	r.orchestrator.Attach(r.dataPath)
	r.metrics = c.metrics.Extend(r.orchestrator.Samples, r.hub.Samples, telemetry.Gauge("thaw_reconcile_queue", func() float64 { return float64(r.autoscale.Queued()) }))
	r.api = r.control()
	c.term.Store(r)
	defer c.term.Store(nil)

	for _, run := range r.parts() {
		r.tasks.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				end(err)
			}
		})
	}
	<-ctx.Done()
	r.tasks.Wait()
	r.usage.flush(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// makeState makes the nodes, pods, revisions and teams of the cluster.
func (r *leaderTerm) makeState() {
	c := r.c
	send := func(node string, d controlstream.Update) bool { return r.hub.Tell(node, d) }
	r.probes = newProber(r.onProbeSuccess, func(uid types.UID) bool { return r.cluster.NeedsProbe(uid) })
	r.cluster = newClusterState(clusterStateOptions{
		epoch: r.epoch, life: fmt.Sprintf("%s-%d", c.election.Identity(), r.epoch), log: r.log, now: time.Now,
		sendHeartbeat: func(hb functions.Heartbeat, n orchestrator.Node) { r.orchestrator.Heartbeat(hb, n) },
		send:          send,
		writer: &kubeWriter{
			kube: c.kube, deployments: c.deployments.Apps().V1().Deployments().Lister(), epoch: r.epoch,
			leading: c.election.HoldsLease, superseded: func() { r.end(election.ErrLost) },
		},
		probe: r.probes.add, changed: r.revisionChanged, forceDelete: r.forceDelete,
	})
	r.peering = newPeerAnnouncer(r.cluster.BlockServers, send)
	r.podOwners = newPodOwners(c, send, r.log)
	r.catalog = &revisionCatalog{
		pas: c.knative.Autoscaling().V1alpha1().PodAutoscalers().Lister(), revs: c.knative.Serving().V1().Revisions().Lister(), services: c.knative.Serving().V1().Services().Lister(),
		cluster: r.cluster, log: r.log, revisions: map[functions.Name]*revision{}, resources: map[functions.Name]functions.Resources{},
		changed: func() { r.orchestrator.Changed() }, revisionsChanged: func() { r.ingress.Changed() },
	}
}

// makeOrchestrator makes the orchestrator with the stored usage of teams.
func (r *leaderTerm) makeOrchestrator(ctx context.Context) {
	c := r.c
	r.usage = newUsageStore(c.kube.CoreV1().ConfigMaps(c.o.Namespace), r.epoch, r.log)
	ledger, err := r.usage.load(ctx)
	if err != nil {
		r.log.Error("the usage of teams is not known", "error", err)
	}
	var foresight *orchestrator.Foresight
	if c.o.NewForesee != nil {
		foresight = c.o.NewForesee()
	}
	r.orchestrator = orchestrator.New(orchestrator.Options{
		Epoch: r.epoch, Catalog: r.catalog, Policy: c.o.Policy, Foresight: foresight, Ledger: ledger, Log: r.log,
		Hooks: orchestrator.Hooks{Event: r.onEvent},
	})
}

// makeStreams makes what connects activators and loaders to the orchestrator.
func (r *leaderTerm) makeStreams() {
	c := r.c
	r.limits = &sharedLimits{
		pods: c.core.Core().V1().Pods().Lister().Pods(c.o.Namespace), ready: r.settled.Load,
		connected: func() []string { return r.hub.Activators() },
	}
	r.limits.Coordinator = ratelimit.NewCoordinator(ratelimit.CoordinatorOptions{
		Recovering: true, Dead: r.limits.isDead,
		Send: func(id string, g ratelimit.Allotments) { r.hub.Grant(id, g) },
	})
	r.hub = controlstream.NewHub(controlstream.HubOptions{
		Tokens: c.tokens, Quiet: true, Waker: r.orchestrator, Coordinator: r.limits, Log: r.log,
		Node: r.onHeartbeat, Pods: r.onPodStatus, Joined: r.onConnect, Left: r.onDisconnect, FirstToken: r.firstTokens.record,
		Applied: func() { r.ingress.Changed() },
	})
	r.dataPath = &dataPath{
		activatorHub: r.hub, serviceOf: r.catalog.serviceAndKind, published: r.revisionChanged, wake: r.orchestrator.Nudge, now: time.Now,
		outside: map[functions.Name]outsideDemand{}, dirty: map[functions.Name]bool{}, queued: map[functions.Name]bool{},
	}
	if c.o.EarlyDispatch {
		r.dataPath.notReady = r.cluster.NotReadyEndpoints
	}
}

// makeReconcilers makes what writes Kubernetes objects of other kinds than Deployments
// and pods. They borrow the controller's informers.
func (r *leaderTerm) makeReconcilers() (err error) {
	c := r.c
	ingresses := c.ingress.Networking().V1alpha1().Ingresses()
	if r.autoscale, err = autoscale.New(autoscale.Options{
		Config: c.o.Config, Scales: r, Demand: r.onOutsideDemand, System: c.o.Knative, Log: r.log,
		PodAutoscalers: c.knative.Autoscaling().V1alpha1().PodAutoscalers(), Ingresses: ingresses, Transform: slimObject,
	}); err != nil {
		return err
	}
	r.ingress = ingress.New(ingress.Options{
		Client: c.networking, Ingresses: ingresses, Services: c.core.Core().V1().Services(),
		Revision: r.catalog.has, Push: r.hub.SetTable, Applied: r.hub.Applied, Public: c.o.Public, Private: c.o.Private, Log: r.log,
	})
	r.teams = team.NewWatcher(team.WatcherOptions{
		Client: c.kube, Namespaces: c.core.Core().V1().Namespaces().Lister(), Quotas: c.core.Core().V1().ResourceQuotas().Lister(),
		Transform: slimObject, Tokens: c.secrets.AdminTokens, Log: c.o.Log,
		Apply: func(k controlstream.Keys) {
			r.catalog.setTeams(k.Teams)
			r.limits.setTeams(k.Teams)
			r.hub.SetKeys(k)
		},
	})
	if c.o.WebhookAddr == "" {
		return nil
	}
	at, _, _ := net.SplitHostPort(c.o.Advertise)
	r.hints, err = schedulerhint.New(schedulerhint.Options{
		Client: c.kube, Namespace: c.o.Namespace, Address: c.o.WebhookAddr, Advertise: at, Log: r.log,
		Hint: r.hint,
	})
	return err
}

// hint is the node for the next pod of a revision, for callers that know its uid.
func (r *leaderTerm) hint(namespace, revision, uid string) (string, bool) {
	rev, err := r.catalog.revs.Revisions(namespace).Get(revision)
	if err != nil || uid == "" || string(rev.UID) != uid {
		return "", false
	}
	return r.cluster.PreferredNode(functions.Name{Team: namespace, Name: revision})
}

// parts lists what runs for the length of a term.
func (r *leaderTerm) parts() []func(context.Context) error {
	parts := []func(context.Context) error{
		r.orchestrator.Run, r.cluster.Run, r.probes.Run, r.peering.Run, r.autoscale.Run, r.ingress.Run, r.teams.Run, r.limits.Run, r.usage.Run,
		r.podOwners.Run, r.runForceDeletes, r.openWhenComplete,
	}
	if r.hints != nil {
		parts = append(parts, r.hints.Run)
	}
	if r.c.o.AnnotateNodes {
		annotator := &cacheAnnotator{kube: r.c.kube, nodes: r.c.core.Core().V1().Nodes().Lister(), models: r.catalog.ModelSources, stores: r.cluster.Stores, log: r.log}
		parts = append(parts, annotator.Run)
	}
	return parts
}

// openWhenComplete waits, up to Options.Settle, until all pods have reported, and then
// opens the hub to activators. Before, they would see no replicas.
func (r *leaderTerm) openWhenComplete(ctx context.Context) error {
	late := time.NewTimer(r.c.o.Settle)
	defer late.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return nil
		case <-late.C:
			over = true
		case <-poll.C:
			over = r.cluster.AllPodsReported()
		}
	}
	r.cluster.sendHeartbeats(true)
	// one turn takes in all reports before the first snapshot is published
	r.orchestrator.Changed()
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
	// A starting activator serves once it knows the models, so it should know routes and
	// keys by then. The wait is bounded: with the API server away they may never come.
	bounded, cancel := context.WithTimeout(ctx, r.c.o.Settle)
	defer cancel()
	for _, done := range []<-chan struct{}{r.ingress.Pushed(), r.teams.Applied()} {
		select {
		case <-done:
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

// onHeartbeat takes a heartbeat of a node's loader.
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

// revisionChanged has the PodAutoscaler of a revision reconciled.
func (r *leaderTerm) revisionChanged(name functions.Name) {
	if r.autoscale != nil {
		r.autoscale.Changed(name.Team, name.Name)
	}
}

// onOutsideDemand takes the requests for a revision in Knative's own activators.
func (r *leaderTerm) onOutsideDemand(namespace, revision string, active, queued int) {
	r.dataPath.Outside(functions.Name{Team: namespace, Name: revision}, active, queued)
}

// forceDelete queues the removal of a terminating pod.
func (r *leaderTerm) forceDelete(namespace, pod string, uid types.UID) {
	select {
	case r.forceDeletes <- func(ctx context.Context) {
		if err := r.cluster.o.writer.ForceDelete(ctx, namespace, pod, uid); err != nil {
			r.c.o.Log.Warn("cannot force the deletion of a pod", "pod", namespace+"/"+pod, "error", err)
		}
	}:
	default: // full: the pod ends by itself, later
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
