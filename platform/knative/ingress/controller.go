package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"knative.dev/networking/pkg/apis/networking/v1alpha1"
	networking "knative.dev/networking/pkg/client/clientset/versioned"
	netinformers "knative.dev/networking/pkg/client/informers/externalversions/networking/v1alpha1"

	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// Options of a Controller; all are required.
type Options struct {
	Client    networking.Interface
	Ingresses netinformers.IngressInformer // of all namespaces, started by the caller
	Services  coreinformers.ServiceInformer

	// Revision reports whether a name is that of a revision of class thaw.dev. It must
	// know all of them when Run is called; Changed announces new answers.
	Revision func(namespace, name string) bool

	Push    func(*controlstream.Table)              // sends a table to the activators; it is not modified afterwards
	Applied func() (version uint64, activators int) // see controlstream.Hub

	// Names of the activators' Services, such as thaw.thaw-system.svc.cluster.local:
	// external and cluster-local.
	Public, Private string

	Log *slog.Logger
}

// Controller compiles KIngresses of Class into tables and reports in their status when
// they are applied. Only the leader runs one.
type Controller struct {
	o      Options
	wakeup newest.Signal
	pushed chan struct{} // closed with the first table

	// owned by Run
	objects  []*v1alpha1.Ingress // as they were compiled
	problems map[types.NamespacedName]*Problem
	table    *controlstream.Table
	states   map[types.NamespacedName]tableState
}

// tableState is the state of an object in the pushed tables.
type tableState struct {
	uid        types.UID
	generation int64
	version    uint64    // first table with its current generation
	since      time.Time // when that was pushed
	written    string    // ResourceVersion whose status was written
}

// activatorWait is how long activators may take to apply a table before the status says
// so; pollInterval how often that is checked meanwhile; retryPause follows a failed write;
// recompileEvery bounds the effect of a missed event.
const (
	activatorWait  = time.Second
	pollInterval   = 10 * time.Millisecond
	retryPause     = time.Second
	recompileEvery = time.Minute
)

// statusWriters bounds concurrent status writes.
const statusWriters = 8

// New makes a Controller and registers its informers, whose factories are started after
// New.
func New(o Options) *Controller {
	o.Ingresses.Informer()
	o.Services.Informer()
	return &Controller{o: o, wakeup: newest.NewSignal(), pushed: make(chan struct{}), states: map[types.NamespacedName]tableState{}}
}

// Changed announces a new answer of Revision or Applied. It never blocks and is safe for
// concurrent use.
func (c *Controller) Changed() { c.wakeup.Set() }

// Pushed is closed after the first table, even an empty one: before that, an activator
// would deny hosts that exist.
func (c *Controller) Pushed() <-chan struct{} { return c.pushed }

// Run works until ctx ends and then returns nil.
func (c *Controller) Run(ctx context.Context) error {
	informers := []cache.SharedIndexInformer{c.o.Ingresses.Informer(), c.o.Services.Informer()}
	for _, informer := range informers {
		handle, err := informer.AddEventHandler(cache.FilteringResourceEventHandler{
			FilterFunc: isOurObject,
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { c.Changed() },
				DeleteFunc: func(any) { c.Changed() },
				UpdateFunc: func(old, new any) {
					if changesTable(old, new) {
						c.Changed()
					}
				},
			},
		})
		if err != nil {
			return err
		}
		defer informer.RemoveEventHandler(handle)
	}
	if !cache.WaitForCacheSync(ctx.Done(), informers[0].HasSynced, informers[1].HasSynced) {
		return nil
	}
	var compiled, free time.Time
	rang := false
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wakeup:
			rang = true
		case <-wait.C:
		}
		now := time.Now()
		if rang && now.Before(free) {
			wait.Reset(free.Sub(now))
			continue
		}
		if rang || now.Sub(compiled) >= recompileEvery {
			rang, compiled = false, now
			if err := c.compile(now); err != nil {
				c.o.Log.Error("cannot list Ingresses", "err", err)
			}
			// bounds a burst of changes to half a core
			free = now.Add(2 * time.Since(now))
		}
		next, err := c.updateStatuses(ctx, now)
		if err != nil && ctx.Err() == nil {
			c.o.Log.Warn("cannot write the status of Ingresses", "err", err)
		}
		wait.Reset(min(next, recompileEvery-now.Sub(compiled)))
	}
}

// isOurObject filters out Ingresses of other classes; Services pass.
func isOurObject(x any) bool {
	if gone, ok := x.(cache.DeletedFinalStateUnknown); ok {
		x = gone.Obj
	}
	in, ok := x.(*v1alpha1.Ingress)
	return !ok || isOurClass(in)
}

// changesTable reports whether an update affects the table. Most change only the status.
func changesTable(old, new any) bool {
	switch b := new.(type) {
	case *v1alpha1.Ingress:
		a, ok := old.(*v1alpha1.Ingress)
		return !ok || a.UID != b.UID || a.Generation != b.Generation || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
			!maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations)
	case *corev1.Service:
		a, ok := old.(*corev1.Service)
		return !ok || !equality.Semantic.DeepEqual(a.Spec, b.Spec)
	}
	return true
}

// compile compiles a table and pushes it if it differs.
func (c *Controller) compile(now time.Time) error {
	all, err := c.o.Ingresses.Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(in *v1alpha1.Ingress) bool { return !isOurClass(in) || in.DeletionTimestamp != nil })
	services := c.o.Services.Lister()
	table, problems := Compile(all, Lookup{
		Revision: c.o.Revision,
		Service: func(namespace, name string) *corev1.Service {
			s, err := services.Services(namespace).Get(name)
			if err != nil {
				return nil // a lister only fails with not found
			}
			return s
		},
		Public: c.o.Public, Private: c.o.Private,
	})
	c.objects, c.problems = all, problems
	c.pushTable(&table, now)
	was := c.states
	c.states = make(map[types.NamespacedName]tableState, len(all))
	for _, in := range all {
		name := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
		s := was[name]
		if problems[name] != nil {
			s.version = 0 // once the problem passes, the table pushed then counts
		} else if s.uid != in.UID || s.generation != in.Generation || s.version == 0 {
			s.version, s.since = c.table.Version, now
		}
		s.uid, s.generation = in.UID, in.Generation
		c.states[name] = s
	}
	return nil
}

// updateStatuses writes the changed statuses. It returns when to check again without an
// event.
func (c *Controller) updateStatuses(ctx context.Context, now time.Time) (time.Duration, error) {
	applied, activators := c.o.Applied()
	next := recompileEvery
	var changed []*v1alpha1.Ingress
	for _, in := range c.objects {
		// the newest: its status may have changed since
		in, err := c.o.Ingresses.Lister().Ingresses(in.Namespace).Get(in.Name)
		if err != nil || !isOurClass(in) {
			continue // deleted: an event follows
		}
		name := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
		s := c.states[name]
		if s.uid != in.UID || s.generation != in.Generation || (s.written != "" && s.written == in.ResourceVersion) {
			continue // not compiled yet, or written and not observed yet
		}
		out, wait := c.statusOf(in, c.problems[name], s, applied, activators, now)
		if wait > 0 {
			next = min(next, wait)
		}
		if out != nil && !equality.Semantic.DeepEqual(in.Status, out.Status) {
			changed = append(changed, out)
			s.written = in.ResourceVersion
			c.states[name] = s
		}
	}
	var errs []error
	for i, err := range c.writeStatuses(ctx, changed) {
		if err == nil {
			continue
		}
		name := types.NamespacedName{Namespace: changed[i].Namespace, Name: changed[i].Name}
		s := c.states[name]
		s.written = ""
		c.states[name] = s
		next = min(next, retryPause)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // a newer version follows
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return next, errors.Join(errs...)
}

// pushTable pushes a table that differs from the last. Versions are microseconds, or
// follow the activators' version if another controller's clock was ahead, so they grow
// from term to term.
func (c *Controller) pushTable(table *controlstream.Table, now time.Time) {
	if c.table != nil {
		if table.Version = c.table.Version; reflect.DeepEqual(table, c.table) {
			return
		}
	}
	applied, _ := c.o.Applied()
	table.Version = max(table.Version+1, applied+1, uint64(now.UnixMicro()))
	first := c.table == nil
	c.table = table
	c.o.Push(table)
	if first {
		close(c.pushed)
	}
	c.o.Log.Debug("a new table of routes", "version", table.Version, "hosts", len(table.Hosts), "models", len(table.Models))
}

// statusOf returns in with its new status, nil if that is not known yet, and how soon it
// may change by itself (0: not).
func (c *Controller) statusOf(in *v1alpha1.Ingress, problem *Problem, s tableState, applied uint64, activators int,
	now time.Time) (*v1alpha1.Ingress, time.Duration) {
	pending := !in.IsReady() && (activators == 0 || applied < s.version)
	if problem == nil && pending && now.Sub(s.since) < activatorWait {
		return nil, pollInterval // most are ready before this wait is over
	}
	in = in.DeepCopy()
	in.Status.InitializeConditions()
	in.Status.ObservedGeneration = in.Generation
	conditions := in.GetConditionSet().Manage(&in.Status)
	if problem != nil {
		mark := conditions.MarkFalse
		if problem.Wait {
			mark = conditions.MarkUnknown
		}
		mark(v1alpha1.IngressConditionNetworkConfigured, problem.Reason, "%s", problem.Message)
		return in, 0
	}
	in.Status.MarkNetworkConfigured()
	if pending {
		message := fmt.Sprintf("not all of the %d activators have applied its routes yet", activators)
		if activators == 0 {
			message = "no activator is connected to the controller"
		}
		conditions.MarkUnknown(v1alpha1.IngressConditionLoadBalancerReady, "Activators", "%s", message)
		return in, activatorWait / 10
	}
	in.Status.MarkLoadBalancerReady(
		[]v1alpha1.LoadBalancerIngressStatus{{DomainInternal: c.o.Public}},
		[]v1alpha1.LoadBalancerIngressStatus{{DomainInternal: c.o.Private}})
	return in, 0
}

// writeStatuses writes statuses concurrently and returns the error of each.
func (c *Controller) writeStatuses(ctx context.Context, changed []*v1alpha1.Ingress) []error {
	errs := make([]error, len(changed))
	var group errgroup.Group
	group.SetLimit(statusWriters)
	for i, in := range changed {
		group.Go(func() error {
			_, errs[i] = c.o.Client.NetworkingV1alpha1().Ingresses(in.Namespace).UpdateStatus(ctx, in, metav1.UpdateOptions{})
			return nil
		})
	}
	_ = group.Wait() // each error is in errs
	return errs
}
