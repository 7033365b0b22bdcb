package knative

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
)

// Feature is a setting of Knative Serving that models need and that is off by default.
type Feature struct {
	Map   string `json:"configMap"`
	Key   string `json:"key"`
	Value string `json:"value"`
	Unset string `json:"unset"` // value of a missing key
	Why   string `json:"why"`

	// used reports whether a pod needs the feature; nil: all do.
	used func(*corev1.PodSpec) bool
	// field is the field that Knative's webhook names when the feature is off.
	field string
}

// Features are needed by every model.
var Features = []Feature{
	{Map: "config-features", Key: "kubernetes.podspec-init-containers", Value: "enabled", Unset: "disabled", Why: "an init container copies the shim into the engine's image", field: "initContainers"},
	{Map: "config-features", Key: "kubernetes.podspec-volumes-hostpath", Value: "enabled", Unset: "disabled", Why: "the loader's socket is in a folder of the node", field: "hostPath"},
	{Map: "config-features", Key: "kubernetes.podspec-volumes-emptydir", Value: "enabled", Unset: "enabled", Why: "the shim, /tmp and shared memory are volumes of the pod", field: "emptyDir"},
	{Map: "config-autoscaler", Key: "allow-zero-initial-scale", Value: "true", Unset: "false", Why: "a deployed model costs nothing until the first request"},
}

// PodFeatures are needed by models that set the field under spec.pod. A feature that is on
// is open to every namespace, so no more is asked for than what a file uses.
var PodFeatures = []Feature{
	podFeature("nodeSelector", func(p *corev1.PodSpec) bool { return len(p.NodeSelector) > 0 }),
	podFeature("tolerations", func(p *corev1.PodSpec) bool { return len(p.Tolerations) > 0 }),
	podFeature("runtimeClassName", func(p *corev1.PodSpec) bool { return p.RuntimeClassName != nil }),
	podFeature("priorityClassName", func(p *corev1.PodSpec) bool { return p.PriorityClassName != "" }),
}

func podFeature(field string, used func(*corev1.PodSpec) bool) Feature {
	return Feature{Map: "config-features", Key: "kubernetes.podspec-" + strings.ToLower(field), Value: "enabled", Unset: "disabled",
		Why: "the model uses spec.pod." + field, used: used, field: field}
}

// Needs lists the features that services need: all Features, and the PodFeatures in use.
func Needs(services ...*servingv1.Service) []Feature {
	return slices.Concat(Features, functions.Filter(PodFeatures, func(f Feature) bool {
		return slices.ContainsFunc(services, func(s *servingv1.Service) bool { return f.used(&s.Spec.Template.Spec.PodSpec) })
	}))
}

// On reports the feature's value in its ConfigMap, and whether that means on.
func (f Feature) On(data map[string]string) (has string, on bool) {
	has, set := data[f.Key]
	if !set {
		has = f.Unset
	}
	// Features of the pod are on unless disabled; those of volumes must be enabled.
	word := strings.ToLower(strings.TrimSpace(has))
	return has, word == f.Value || f.used != nil && word == "allowed"
}

// Patch is the command that turns the feature on. Of a ConfigMap that the Knative Operator
// writes it changes the operator's object, which would undo a change of the ConfigMap.
func (f Feature) Patch(owners ...metav1.OwnerReference) string {
	kind, name, change := "configmap", f.Map, map[string]any{"data": map[string]string{f.Key: f.Value}}
	for _, o := range owners {
		if o.Kind == "KnativeServing" {
			config := map[string]any{strings.TrimPrefix(f.Map, "config-"): map[string]string{f.Key: f.Value}}
			kind, name, change = "knativeserving", o.Name, map[string]any{"spec": map[string]any{"config": config}}
		}
	}
	data, _ := json.Marshal(change)
	return fmt.Sprintf("kubectl patch %s %s -n %s --type merge -p '%s'", kind, name, servingNamespace, data)
}

// refusedFeatures lists the features that an error of Knative's webhook is about.
func refusedFeatures(said string) []Feature {
	words := map[string]string{
		"initContainers": "support for init-containers is off", "hostPath": "HostPath volume support is disabled", "emptyDir": "EmptyDir volume support is disabled",
		"": "=0 not allowed by cluster",
	}
	fields := strings.Contains(said, "must not set the field(s)")
	var out []Feature
	for _, f := range slices.Concat(Features, PodFeatures) {
		word := words[f.field]
		if word != "" && strings.Contains(said, word) || fields && f.field != "" && strings.Contains(said, "."+f.field) {
			out = append(out, f)
		}
	}
	return out
}
