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

// watchHandle is a term's handler on an informer, which outlives the term.
type watchHandle struct {
	informer cache.SharedIndexInformer
	handle   cache.ResourceEventHandlerRegistration
}

// objectHandler calls set for each added or updated object and drop for each deleted one.
func objectHandler[T metav1.Object](set, drop func(T)) cache.ResourceEventHandler {
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

// watch adds the term's handlers and returns when they have seen every object: revisions
// first, since pods and Deployments refer to them.
func (r *leaderTerm) watch(ctx context.Context) error {
	c := r.c
	again := func(o metav1.Object) { r.catalog.updateRevision(o.GetNamespace(), o.GetName()) }
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{c.knative.Autoscaling().V1alpha1().PodAutoscalers().Informer(), objectHandler(again, again)},
		{c.knative.Serving().V1().Revisions().Informer(), objectHandler(again, again)},
		{c.knative.Serving().V1().Services().Informer(), objectHandler(
			func(o metav1.Object) { r.catalog.updateService(o.GetNamespace(), o.GetName()) },
			func(o metav1.Object) { r.catalog.updateService(o.GetNamespace(), o.GetName()) })},
		{c.core.Core().V1().Nodes().Informer(), objectHandler(r.cluster.SetNode, func(n *corev1.Node) { r.cluster.DropNode(n.Name) })},
		{c.deployments.Apps().V1().Deployments().Informer(), objectHandler(r.setDeployment, r.dropDeployment)},
		{c.core.Core().V1().Pods().Informer(), objectHandler(r.cluster.SetPod, func(p *corev1.Pod) { r.cluster.DropPod(p.UID) })},
		{c.core.Core().V1().Namespaces().Informer(), objectHandler(func(*corev1.Namespace) { r.teams.Changed() }, func(*corev1.Namespace) { r.teams.Changed() })},
		{c.core.Core().V1().ResourceQuotas().Informer(), objectHandler(func(*corev1.ResourceQuota) { r.teams.Changed() }, func(*corev1.ResourceQuota) { r.teams.Changed() })},
	} {
		handle, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return err
		}
		r.watches = append(r.watches, watchHandle{w.informer, handle})
		if !cache.WaitForCacheSync(ctx.Done(), handle.HasSynced) {
			return ctx.Err()
		}
	}
	return nil
}

func (r *leaderTerm) stopWatching() {
	for _, w := range r.watches {
		if err := w.informer.RemoveEventHandler(w.handle); err != nil {
			r.c.o.Log.Warn("cannot remove an informer handler", "error", err)
		}
	}
}

// setDeployment takes the Deployment of a revision.
func (r *leaderTerm) setDeployment(d *appsv1.Deployment) {
	name := d.Labels[serving.RevisionLabelKey]
	if name == "" || d.DeletionTimestamp != nil {
		return
	}
	refuse := ""
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			refuse = fmt.Sprintf("Kubernetes refuses its pods: %s", lastLine(c.Message))
		}
	}
	replicas := 1 // Kubernetes' default
	if d.Spec.Replicas != nil {
		replicas = int(*d.Spec.Replicas)
	}
	key := functions.Name{Team: d.Namespace, Name: name}
	r.catalog.setResources(key, podResources(&d.Spec.Template.Spec))
	r.cluster.SetDeployment(key, replicas, refuse)
	r.revisionChanged(key)
}

func (r *leaderTerm) dropDeployment(d *appsv1.Deployment) {
	if name := d.Labels[serving.RevisionLabelKey]; name != "" {
		r.catalog.dropResources(functions.Name{Team: d.Namespace, Name: name})
	}
}
