package control

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	autoscaling "knative.dev/serving/pkg/apis/autoscaling"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/slim"
)

// rendered returns a model as read from the cluster: what thaw deploy rendered, with
// what Knative derives from it.
func rendered(t *testing.T, m *functions.Model, name string) (*autoscalingv1alpha1.PodAutoscaler, *servingv1.Revision, *servingv1.Service) {
	t.Helper()
	m.SetDefaults()
	s, err := knative.Render(m, knative.Settings{Thaw: "dev.local/thaw:test"})
	if err != nil {
		t.Fatal(err)
	}
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.Namespace, Annotations: s.Spec.Template.Annotations},
		Spec: s.Spec.Template.Spec}
	pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: s.Namespace, Annotations: s.Spec.Template.Annotations,
		Labels: map[string]string{serving.ServiceLabelKey: s.Name, serving.RevisionLabelKey: name},
	}}
	pa.Spec.ScaleTargetRef.Name = name + "-deployment"
	for _, o := range []any{pa, rev, s} { // as informers have them
		if _, err := slim.Object(o); err != nil {
			t.Fatal(err)
		}
	}
	return pa, rev, s
}

func TestReadRendered(t *testing.T) {
	m := &functions.Model{Metadata: functions.Metadata{Name: "tiny", Namespace: "a", Labels: map[string]string{"tier": "1"}}}
	m.Spec = functions.ModelSpec{
		Source: "https://example.org/m", Engine: functions.EngineVLLM, Args: []string{"--x", "$HOME"},
		Resources: functions.Resources{GPUs: 2, Memory: 1 << 30, CPU: 1500},
		Scale:     functions.Scale{Min: 1, Max: 3, Target: 5, Idle: functions.Duration(7 * time.Minute)},
		Queue:     functions.Queue{Requests: 9, Bytes: 10, Wait: functions.Duration(time.Minute)},
	}
	m.Spec.Pod = functions.Pod{
		NodeSelector: map[string]string{"pool": "gpu"}, Tolerations: []functions.Toleration{{Key: "sku", Operator: "Equal", Value: "gpu", Effect: "NoSchedule"}, {Operator: "Exists"}},
		RuntimeClassName: "nvidia", ImagePullSecrets: []functions.Reference{{Name: "mine"}}, ServiceAccountName: "models", PriorityClassName: "high",
	}
	pa, rev, s := rendered(t, m, "tiny-00001")
	r := readRevision(pa, rev, s)
	got := r.model
	if r.problem != "" || r.service != "tiny" || r.deployment != "tiny-00001-deployment" || !r.shim {
		t.Errorf("%+v", r)
	}
	if got.FullName() != (functions.Name{Team: "a", Name: "tiny-00001"}) || got.Metadata.Labels["tier"] != "1" {
		t.Errorf("metadata %+v", got.Metadata)
	}
	want := m.Spec
	want.Resources.Pods = 1
	spec := got.Spec
	if spec.Source != want.Source || spec.Engine != want.Engine || spec.Args[1] != "$HOME" || spec.Resources != want.Resources ||
		spec.Scale != want.Scale || spec.Queue != want.Queue || spec.Deadlines != want.Deadlines {
		t.Errorf("%+v\nwant %+v", spec, want)
	}
	if !reflect.DeepEqual(spec.Pod, want.Pod) {
		t.Errorf("%+v\nwant %+v", spec.Pod, want.Pod)
	}
	if again := readRevision(pa, rev, s); !reflect.DeepEqual(r, again) {
		t.Error("the same is read otherwise")
	}

	// Scaling follows the Service; everything else belongs to the revision.
	pa.Spec.Reachability = autoscalingv1alpha1.ReachabilityUnreachable
	if r := readRevision(pa, rev, s); r.model.Spec.Scale.Min != 0 || r.model.Spec.Scale.Idle.Std() > time.Second {
		t.Errorf("a revision that no route leads to keeps replicas: %+v", r.model.Spec.Scale)
	}
}

func TestReadByHand(t *testing.T) {
	pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{
		Name: "web-00001", Namespace: "b", Labels: map[string]string{serving.ServiceLabelKey: "web"},
		Annotations: map[string]string{autoscaling.ClassAnnotationKey: knative.AutoscalerClass, autoscaling.TargetAnnotationKey: "2.5", autoscaling.ScaleToZeroPodRetentionPeriodKey: "40s"},
	}}
	rev := &servingv1.Revision{Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{knative.GPU: resource.MustParse("1")},
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
	}}}}}
	r := readRevision(pa, rev, nil)
	s := r.model.Spec
	if r.shim || r.problem != "" || s.Engine != functions.EngineCommand || s.Resources.GPUs != 1 || s.Resources.Memory != 1<<30 ||
		s.Scale != (functions.Scale{Min: 1, Max: unboundedReplicas, Target: 3, Idle: functions.Duration(40 * time.Second)}) {
		t.Errorf("%+v %+v", r, s)
	}
	if !r.model.Spec.Pod.IsZero() {
		t.Errorf("%+v", r.model.Spec.Pod)
	}
	rev.Spec.NodeSelector, rev.Spec.RuntimeClassName, rev.Spec.ServiceAccountName = map[string]string{"pool": "gpu"}, new("nvidia"), "models"
	rev.Spec.Tolerations = []corev1.Toleration{{Key: "sku", Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(5))}}
	rev.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}}
	if p := readRevision(pa, rev, nil).model.Spec.Pod; p.NodeSelector["pool"] != "gpu" || p.RuntimeClassName != "nvidia" ||
		p.ServiceAccountName != "models" ||
		len(p.Tolerations) != 1 || p.Tolerations[0] != (functions.Toleration{Key: "sku", Operator: "Exists"}) || len(p.ImagePullSecrets) != 1 ||
		p.ImagePullSecrets[0].Name != "mine" {
		t.Errorf("by hand: %+v", p)
	}
	// Without an initial scale it must have had one replica, as with Knative's own class.
	pa.Status.MarkScaleTargetInitialized()
	if r := readRevision(pa, rev, nil); r.model.Spec.Scale.Min != 0 {
		t.Errorf("a revision that has run once keeps %d replicas", r.model.Spec.Scale.Min)
	}
	if !isOurClass(pa) || isOurClass(&autoscalingv1alpha1.PodAutoscaler{}) {
		t.Error("class")
	}
	for _, bad := range []string{"-1", "NaN", "x", "1e30"} {
		pa.Annotations[autoscaling.MaxScaleAnnotationKey] = bad
		if r := readRevision(pa, rev, nil); r.model.Spec.Scale.Max != unboundedReplicas {
			t.Errorf("max-scale %q gives %d", bad, r.model.Spec.Scale.Max)
		}
	}
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{knative.ModelAnnotation: "{"}}}
	if r := readRevision(pa, rev, service); r.problem == "" {
		t.Error("an annotation that does not read is not told")
	}
	rev.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "THAW_MODEL", Value: "kind: Modell"}}
	if r := readRevision(pa, rev, nil); r.problem == "" || !r.shim {
		t.Errorf("%+v", r)
	}
	if r := readRevision(pa, nil, nil); r.model == nil {
		t.Error("no revision yet")
	}
}
