package control

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"
	servingscheme "knative.dev/serving/pkg/client/clientset/versioned/scheme"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
)

// objectHandler calls set for each added or updated object and drop for each deleted one.
// A panic for one object is reported as an Event of it, and the others go on.
func objectHandler[T metav1.Object](r *leaderTerm, set, drop func(T)) cache.ResourceEventHandler {
	call := func(obj any, f func(T)) {
		o, ok := obj.(T)
		if !ok {
			return
		}
		if err := knative.Protect(r.log, fmt.Sprintf("%T %s/%s", obj, o.GetNamespace(), o.GetName()), func() { f(o) }); err != nil {
			if about, ok := obj.(runtime.Object); ok && o.GetNamespace() != "" {
				r.events.Event(about, corev1.EventTypeWarning, "BadObject", err.Error())
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { call(obj, set) },
		UpdateFunc: func(_, obj any) { call(obj, set) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			call(obj, drop)
		},
	}
}

// watch adds the term's handlers and returns when they have seen every object: revisions
// first, since pods and Deployments refer to them. unwatch removes them from the
// informers, which outlive the term.
func (t *leaderTerm) watch(ctx context.Context) (unwatch func(), err error) {
	var added []func() error
	unwatch = func() {
		for _, remove := range added {
			if err := remove(); err != nil {
				t.c.o.Log.Warn("cannot remove an informer handler", "error", err)
			}
		}
	}
	c := t.c
	again := func(o metav1.Object) { t.catalog.updateRevision(o.GetNamespace(), o.GetName()) }
	service := func(o metav1.Object) { t.catalog.updateService(o.GetNamespace(), o.GetName()) }
	team := func(metav1.Object) { t.teams.Changed() }
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{c.knative.Autoscaling().V1alpha1().PodAutoscalers().Informer(), objectHandler(t, again, again)},
		{c.knative.Serving().V1().Revisions().Informer(), objectHandler(t, again, again)},
		{c.knative.Serving().V1().Services().Informer(), objectHandler(t, service, service)},
		{c.core.Core().V1().Nodes().Informer(), objectHandler(t, t.cluster.SetNode, func(n *corev1.Node) { t.cluster.DropNode(n.Name) })},
		{c.deployments.Apps().V1().Deployments().Informer(), objectHandler(t, t.setDeployment, t.dropDeployment)},
		{c.core.Core().V1().Pods().Informer(), objectHandler(t, t.cluster.SetPod, func(p *corev1.Pod) { t.cluster.DropPod(p.UID) })},
		{c.core.Core().V1().Namespaces().Informer(), objectHandler(t, team, team)},
		{c.core.Core().V1().ResourceQuotas().Informer(), objectHandler(t, team, team)},
	} {
		handle, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return unwatch, err
		}
		added = append(added, func() error { return w.informer.RemoveEventHandler(handle) })
		if !cache.WaitForCacheSync(ctx.Done(), handle.HasSynced) {
			return unwatch, ctx.Err()
		}
	}
	return unwatch, nil
}

// eventScheme returns the kinds of the objects that Events may be about.
func eventScheme() *runtime.Scheme {
	kinds := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(kinds))
	utilruntime.Must(servingscheme.AddToScheme(kinds))
	return kinds
}

func (t *leaderTerm) setDeployment(d *appsv1.Deployment) {
	name := d.Labels[serving.RevisionLabelKey]
	if name == "" || d.DeletionTimestamp != nil {
		return
	}
	refuse := ""
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			refuse = fmt.Sprintf("Kubernetes refuses its pods: %s", clusterstate.LastLine(c.Message))
		}
	}
	key := functions.Name{Team: d.Namespace, Name: name}
	t.catalog.setResources(key, clusterstate.PodResources(&d.Spec.Template.Spec))
	t.cluster.SetDeployment(key, int(ptr.Deref(d.Spec.Replicas, 1)), refuse) // 1 is Kubernetes' default
	t.revisionChanged(key)
}

func (t *leaderTerm) dropDeployment(d *appsv1.Deployment) {
	if name := d.Labels[serving.RevisionLabelKey]; name != "" {
		t.catalog.dropResources(functions.Name{Team: d.Namespace, Name: name})
	}
}
