package control

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slimObject drops the fields that are not read, most of a large cluster's cache.
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

// slimPodSpec keeps the node, container names and resources.
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
