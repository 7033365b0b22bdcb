package slim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	autoscaling "knative.dev/serving/pkg/apis/autoscaling"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/platform/knative"
)

// maxObject is the bound that the package promises, of the objects that tenants write.
const maxObject = 256 << 10

// large has 1.5 MiB in everything that a tenant may write into an object.
func large(t *testing.T) []metav1.Object {
	t.Helper()
	long := strings.Repeat("x", 100_000)
	texts := map[string]string{knative.ModelAnnotation: long}
	for i := range 4000 {
		texts[fmt.Sprintf("serving.knative.dev/%d", i)] = strings.Repeat("y", 300)
	}
	meta := func() metav1.ObjectMeta {
		m := metav1.ObjectMeta{Name: "a", Namespace: "t", UID: "u", Annotations: map[string]string{}, Labels: map[string]string{}}
		for k, v := range texts {
			m.Annotations[k], m.Labels[k] = v, v
		}
		for i := range 4000 {
			m.Finalizers = append(m.Finalizers, fmt.Sprintf("example.com/%d", i))
			m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{Name: long[:50]})
		}
		return m
	}
	pod := corev1.PodSpec{NodeSelector: texts, ServiceAccountName: "models"}
	for i := range 2000 {
		pod.Tolerations = append(pod.Tolerations, corev1.Toleration{Key: fmt.Sprint(i)})
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, corev1.LocalObjectReference{Name: fmt.Sprint(i)})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: long[:100]})
	}
	limits := corev1.ResourceList{knative.GPU: resource.MustParse("2")}
	for i := range 2000 {
		limits[corev1.ResourceName(fmt.Sprintf("example.com/%d", i))] = resource.MustParse("1")
	}
	c := corev1.Container{Name: "user-container", Image: long, Args: []string{long, long}, Resources: corev1.ResourceRequirements{Limits: limits},
		Env: []corev1.EnvVar{{Name: "THAW_MODEL", Value: "first"}, {Name: "OTHER", Value: long}, {Name: "THAW_MODEL", Value: long}}}
	for i := range 1000 {
		c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: int32(i)})
	}
	pod.Containers = []corev1.Container{c}
	rev := &servingv1.Revision{ObjectMeta: meta(), Spec: servingv1.RevisionSpec{PodSpec: pod}}
	service := &servingv1.Service{ObjectMeta: meta()}
	service.Spec.Template.Spec.PodSpec = pod
	pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: meta()}
	pa.Finalizers, pa.OwnerReferences = nil, nil // of Knative's own
	return []metav1.Object{rev, service, pa}
}

// TestBounded: what is cached of an object does not grow with what its tenant writes.
func TestBounded(t *testing.T) {
	for _, o := range large(t) {
		before, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Object(o); err != nil {
			t.Fatal(err)
		}
		after, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if len(before) < 1<<20 || len(after) > maxObject {
			t.Errorf("%T: of %d bytes %d are kept, and %d may be", o, len(before), len(after), maxObject)
		}
		if o.GetName() != "a" || o.GetNamespace() != "t" || o.GetUID() != "u" {
			t.Errorf("%T lost who it is", o)
		}
	}
}

// TestOtherClass: of what another autoscaler scales only the name is cached.
func TestOtherClass(t *testing.T) {
	for _, o := range large(t) {
		_, isService := o.(*servingv1.Service)
		o.GetAnnotations()[autoscaling.ClassAnnotationKey] = autoscaling.KPA
		if _, err := Object(o); err != nil {
			t.Fatal(err)
		}
		after, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if !isService && len(after) > 4<<10 || o.GetName() != "a" || o.GetUID() != "u" {
			t.Errorf("%T: %d bytes are kept: %.300s", o, len(after), after)
		}
		if pa, ok := o.(*autoscalingv1alpha1.PodAutoscaler); ok && pa.Annotations[autoscaling.ClassAnnotationKey] != autoscaling.KPA {
			t.Errorf("its class is lost: %v", pa.Annotations)
		}
	}
}

// TestKept: a model that is too long stays too long, so that its reader says so, and what is
// read of a revision is there.
func TestKept(t *testing.T) {
	objects := large(t)
	for _, o := range objects {
		if _, err := Object(o); err != nil {
			t.Fatal(err)
		}
	}
	rev, service := objects[0].(*servingv1.Revision), objects[1].(*servingv1.Service)
	c := rev.Spec.GetContainer()
	if len(c.Env) != 1 || len(c.Env[0].Value) != maxModel || len(service.Annotations[knative.ModelAnnotation]) != maxModel {
		t.Errorf("%d variables", len(c.Env))
	}
	if _, err := knative.DecodeStarted("a", c.Env[0].Value); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a long THAW_MODEL: %v", err)
	}
	if _, err := knative.DecodeAnnotation(service.Annotations[knative.ModelAnnotation]); err == nil {
		t.Error("a long annotation is taken")
	}
	if q := c.Resources.Limits[knative.GPU]; q.Value() != 2 || rev.Spec.ServiceAccountName != "models" ||
		len(rev.Spec.Tolerations) != maxList {
		t.Errorf("%+v", rev.Spec)
	}
}
