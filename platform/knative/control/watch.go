package control

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"knative.dev/serving/pkg/apis/serving"

	"github.com/thaw-dev/thaw/functions"
)

// watching is a handler of a reign on an informer that outlives it.
type watching struct {
	informer cache.SharedIndexInformer
	handle   cache.ResourceEventHandlerRegistration
}

// on has set called for each object of an informer that comes or changes, and drop
// for each that goes.
func on[T metav1.Object](set, drop func(T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o, ok := obj.(T); ok {
				set(o)
			}
		},
		UpdateFunc: func(_, obj any) {
			if o, ok := obj.(T); ok {
				set(o)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(T); ok {
				drop(o)
			}
		},
	}
}

// watch listens to the cluster. When it returns all there is has been taken in:
// revisions first, since pods and Deployments are somebody's.
func (r *reign) watch(ctx context.Context) error {
	c := r.c
	again := func(o metav1.Object) { r.books.autoscaler(o.GetNamespace(), o.GetName()) }
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{c.knative.Autoscaling().V1alpha1().PodAutoscalers().Informer(), on(again, again)},
		{c.knative.Serving().V1().Revisions().Informer(), on(again, again)},
		{c.knative.Serving().V1().Services().Informer(), on(
			func(o metav1.Object) { r.books.service(o.GetNamespace(), o.GetName()) },
			func(o metav1.Object) { r.books.service(o.GetNamespace(), o.GetName()) })},
		{c.core.Core().V1().Nodes().Informer(), on(r.fleet.SetNode, func(n *corev1.Node) { r.fleet.DropNode(n.Name) })},
		{c.deploys.Apps().V1().Deployments().Informer(), on(r.deployment, r.noDeployment)},
		{c.core.Core().V1().Pods().Informer(), on(r.fleet.SetPod, func(p *corev1.Pod) { r.fleet.DropPod(p.UID) })},
		{c.core.Core().V1().Namespaces().Informer(), on(func(*corev1.Namespace) { r.teams.changed() }, func(*corev1.Namespace) { r.teams.changed() })},
		{c.core.Core().V1().ResourceQuotas().Informer(), on(func(*corev1.ResourceQuota) { r.teams.changed() }, func(*corev1.ResourceQuota) { r.teams.changed() })},
	} {
		handle, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return err
		}
		r.watches = append(r.watches, watching{w.informer, handle})
		if !cache.WaitForCacheSync(ctx.Done(), handle.HasSynced) {
			return ctx.Err()
		}
	}
	return nil
}

func (r *reign) unwatch() {
	for _, w := range r.watches {
		if err := w.informer.RemoveEventHandler(w.handle); err != nil {
			r.c.o.Log.Warn("a watch stays", "error", err)
		}
	}
}

// deployment takes in what a revision is scaled by.
func (r *reign) deployment(d *appsv1.Deployment) {
	name := d.Labels[serving.RevisionLabelKey]
	if name == "" || d.DeletionTimestamp != nil {
		return
	}
	refuse := ""
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			refuse = fmt.Sprintf("Kubernetes takes no pod of it: %s", line(c.Message))
		}
	}
	replicas := 1 // what Kubernetes takes where nothing is said
	if d.Spec.Replicas != nil {
		replicas = int(*d.Spec.Replicas)
	}
	key := functions.Name{Team: d.Namespace, Name: name}
	r.books.template(key, takes(&d.Spec.Template.Spec))
	r.fleet.SetDeployment(key, replicas, refuse)
	r.moved(key)
}

func (r *reign) noDeployment(d *appsv1.Deployment) {
	if name := d.Labels[serving.RevisionLabelKey]; name != "" {
		r.books.untemplated(functions.Name{Team: d.Namespace, Name: name})
	}
}
