// Package slim cuts Kubernetes and Knative objects down to the fields that the controller reads,
// with a bound on their size, before they go into its caches; it changes none in the cluster.
// Tenants write most of these objects, up to 1.5 MiB each: what is cached of one of them is at most
// 256 KiB, whatever it holds, and of one that another autoscaler scales only its name. The number
// of objects is bounded by the quota of their namespace (package team).
package slim

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	autoscaling "knative.dev/serving/pkg/apis/autoscaling"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/knative"
)

const (
	// maxModel bounds a model file: one byte more than its readers take, so that they say
	// that it is too long.
	maxModel = 2*catalog.MaxTenant + 1
	maxValue = 4 << 10 // bytes of another value
	maxList  = 64      // elements of another list
)

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Object drops the fields that are not read, most of a large cluster's cache. It is the
// transform of informers.
func Object(obj any) (any, error) {
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
	case *corev1.Service:
		o.Annotations = nil
	case *appsv1.Deployment:
		o.Spec = appsv1.DeploymentSpec{Replicas: o.Spec.Replicas, Template: corev1.PodTemplateSpec{Spec: slimPodSpec(&o.Spec.Template.Spec)}}
	case *servingv1.Service:
		o.Annotations, o.Labels = boundedMap(o.Annotations, knative.ModelAnnotation), boundedMap(o.Labels, serving.GroupNamePrefix)
		o.Spec, o.Status, o.Finalizers, o.OwnerReferences = servingv1.ServiceSpec{}, servingv1.ServiceStatus{}, nil, nil
	case *servingv1.Revision:
		spec, labels := servingv1.RevisionSpec{}, map[string]string(nil)
		if !isOtherClass(o) {
			spec = servingv1.RevisionSpec{ContainerConcurrency: o.Spec.ContainerConcurrency, PodSpec: slimRevisionPod(&o.Spec.PodSpec)}
			labels = boundedMap(o.Labels, serving.GroupNamePrefix)
		}
		o.Annotations, o.Labels, o.Spec, o.Status, o.Finalizers, o.OwnerReferences = nil, labels, spec, servingv1.RevisionStatus{}, nil, nil
	case *autoscalingv1alpha1.PodAutoscaler: // its status alone is written back
		if isOtherClass(o) {
			o.Annotations, o.Labels = map[string]string{autoscaling.ClassAnnotationKey: o.Annotations[autoscaling.ClassAnnotationKey]}, nil
			o.Spec, o.Status = autoscalingv1alpha1.PodAutoscalerSpec{}, autoscalingv1alpha1.PodAutoscalerStatus{}
			o.Finalizers, o.OwnerReferences = nil, nil
			break
		}
		o.Annotations, o.Labels = boundedMap(o.Annotations, ".dev/"), boundedMap(o.Labels, serving.GroupNamePrefix)
	}
	return obj, nil
}

// isOtherClass reports whether another autoscaler than thaw's scales a Revision or a
// PodAutoscaler: nothing but its name is read. A Revision without the annotation is of the
// cluster's default class, which may be thaw's.
func isOtherClass(o metav1.Object) bool {
	class := o.GetAnnotations()[autoscaling.ClassAnnotationKey]
	return class != "" && class != knative.AutoscalerClass
}

// boundedMap returns the entries whose names contain a text, without those that are too long
// and beyond maxList.
func boundedMap(in map[string]string, name string) map[string]string {
	var out map[string]string
	for k, v := range in {
		if !strings.Contains(k, name) {
			continue
		}
		switch {
		case k == knative.ModelAnnotation:
			v = v[:min(len(v), maxModel)]
		case len(k) > maxValue || len(v) > maxValue || len(out) >= maxList:
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = strings.Clone(v) // not a part of a longer text
	}
	return out
}

// slimPodSpec keeps the node, container names and resources.
func slimPodSpec(spec *corev1.PodSpec) corev1.PodSpec {
	few := func(cs []corev1.Container) (out []corev1.Container) {
		for i := range cs {
			out = append(out, corev1.Container{Name: cs[i].Name, Resources: cs[i].Resources})
		}
		return out
	}
	return corev1.PodSpec{NodeName: spec.NodeName, InitContainers: few(spec.InitContainers), Containers: few(spec.Containers),
		Overhead: spec.Overhead}
}

// slimRevisionPod keeps what a revision's pods ask of nodes, and the model file in
// THAW_MODEL.
func slimRevisionPod(spec *corev1.PodSpec) corev1.PodSpec {
	out := corev1.PodSpec{ServiceAccountName: spec.ServiceAccountName, PriorityClassName: spec.PriorityClassName,
		RuntimeClassName: spec.RuntimeClassName, NodeSelector: boundedMap(spec.NodeSelector, "")}
	out.Tolerations = append(out.Tolerations, spec.Tolerations[:min(len(spec.Tolerations), maxList)]...)
	out.ImagePullSecrets = append(out.ImagePullSecrets, spec.ImagePullSecrets[:min(len(spec.ImagePullSecrets), maxList)]...)
	for i := range spec.Containers[:min(len(spec.Containers), maxList)] {
		c := &spec.Containers[i]
		lean := corev1.Container{Name: c.Name,
			Resources: corev1.ResourceRequirements{Limits: readResources(c.Resources.Limits), Requests: readResources(c.Resources.Requests)}}
		lean.Ports = append(lean.Ports, c.Ports[:min(len(c.Ports), 1)]...) // Knative's main container has one
		for _, e := range c.Env {
			if e.Name == "THAW_MODEL" { // of several the last one counts
				lean.Env = []corev1.EnvVar{{Name: e.Name, Value: strings.Clone(e.Value[:min(len(e.Value), maxModel)])}}
			}
		}
		out.Containers = append(out.Containers, lean)
	}
	return out
}

func readResources(in corev1.ResourceList) corev1.ResourceList {
	var out corev1.ResourceList
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, knative.GPU} {
		if q, ok := in[name]; ok {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}
