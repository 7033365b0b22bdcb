package functions

import (
	"reflect"
	"strings"
	"testing"
)

func TestValidatePod(t *testing.T) {
	for _, x := range []struct {
		name     string
		pod      Pod
		path     string // "" when nothing is wrong
		wantText string
	}{
		{"nothing", Pod{}, "", ""},
		{"all of it", Pod{
			NodeSelector:     map[string]string{"kubernetes.azure.com/agentpool": "gpu", "tier": ""},
			Tolerations:      []Toleration{{Key: "sku", Operator: "Equal", Value: "gpu", Effect: "NoSchedule"}, {Operator: "Exists"}, {Key: "nvidia.com/gpu", Operator: "Exists"}, {Key: "a"}},
			RuntimeClassName: "nvidia", ImagePullSecrets: []Reference{{"mine"}, {"their.registry"}}, ServiceAccountName: "models", PriorityClassName: "high",
			Annotations: map[string]string{"karpenter.sh/do-not-disrupt": "true", "a": "any text, such as {\"b\": 1}"},
		}, "", ""},
		{"a selector's key", Pod{NodeSelector: map[string]string{"a b": "c"}}, "spec.pod.nodeSelector", "no key of a label"},
		{"a selector's domain", Pod{NodeSelector: map[string]string{"A_/b": "c"}}, "spec.pod.nodeSelector", "no key of a label"},
		{"a selector's empty name", Pod{NodeSelector: map[string]string{"example.com/": "c"}}, "spec.pod.nodeSelector", "no key of a label"},
		{"a selector's value", Pod{NodeSelector: map[string]string{"a": "b c"}}, "spec.pod.nodeSelector.a", "no value of a label"},
		{"a long value", Pod{NodeSelector: map[string]string{"a": strings.Repeat("x", 64)}}, "spec.pod.nodeSelector.a", "no value of a label"},
		{"an operator", Pod{Tolerations: []Toleration{{Key: "a", Operator: "exists"}}}, "spec.pod.tolerations[0].operator", "Equal or Exists"},
		{"exists with a value", Pod{Tolerations: []Toleration{{Key: "a", Operator: "Exists", Value: "b"}}}, "spec.pod.tolerations[0].value", "any value is tolerated"},
		{"no key", Pod{Tolerations: []Toleration{{Key: "a"}, {Value: "b"}}}, "spec.pod.tolerations[1].key", "a key is needed"},
		{"a key", Pod{Tolerations: []Toleration{{Key: "a b"}}}, "spec.pod.tolerations[0].key", "no key of a taint"},
		{"a value", Pod{Tolerations: []Toleration{{Key: "a", Value: "b c"}}}, "spec.pod.tolerations[0].value", "no value of a taint"},
		{"an effect", Pod{Tolerations: []Toleration{{Key: "a", Effect: "Noschedule"}}}, "spec.pod.tolerations[0].effect", "NoSchedule, PreferNoSchedule or NoExecute"},
		{"a secret without a name", Pod{ImagePullSecrets: []Reference{{}}}, "spec.pod.imagePullSecrets[0].name", "a name is needed"},
		{"a secret", Pod{ImagePullSecrets: []Reference{{"a/b"}}}, "spec.pod.imagePullSecrets[0].name", "no name of an object"},
		{"a runtime", Pod{RuntimeClassName: "Nvidia"}, "spec.pod.runtimeClassName", "no name of an object"},
		{"an account", Pod{ServiceAccountName: "a..b"}, "spec.pod.serviceAccountName", "no name of an object"},
		{"a priority", Pod{PriorityClassName: strings.Repeat("a.", 127) + "a"}, "spec.pod.priorityClassName", "no name of an object"},
		{"the cluster's priority", Pod{PriorityClassName: "system-node-critical"}, "spec.pod.priorityClassName", "parts of the cluster itself"},
		{"an annotation's key", Pod{Annotations: map[string]string{"a b": "c"}}, "spec.pod.annotations", "no key of an annotation"},
		{"an annotation of Knative", Pod{Annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}}, "spec.pod.annotations", "is written by thaw"},
		{"an annotation of thaw", Pod{Annotations: map[string]string{"thaw.dev/model": "{}"}}, "spec.pod.annotations", "is written by thaw"},
		{"too many", Pod{Tolerations: make([]Toleration, 65)}, "spec.pod.tolerations", "65 are too many"},
	} {
		t.Run(x.name, func(t *testing.T) {
			m := validModel()
			m.Spec.Pod = x.pod
			got := Validate(m)
			if x.path == "" {
				if len(got) != 0 {
					t.Fatalf("unexpected %v", got)
				}
				return
			}
			if len(got) == 0 || got[0].Path != x.path || !strings.Contains(got[0].String(), x.wantText) {
				t.Fatalf("got %v, want %s at %s", got, x.wantText, x.path)
			}
		})
	}
}

// TestRefuses is Kubernetes' own table of tolerations, and the selector.
func TestRefuses(t *testing.T) {
	gpu := Taint{"sku", "gpu", TaintNoSchedule}
	for _, x := range []struct {
		name   string
		pod    Pod
		labels map[string]string
		taints []Taint
		want   string
	}{
		{"nothing asked, nothing there", Pod{}, nil, nil, ""},
		{"a taint", Pod{}, nil, []Taint{gpu}, "its taint sku=gpu:NoSchedule is not tolerated"},
		{"that only discourages", Pod{}, nil, []Taint{{"a", "", TaintPreferNoSchedule}}, ""},
		{"tolerated", Pod{Tolerations: []Toleration{{"sku", "Equal", "gpu", TaintNoSchedule}}}, nil, []Taint{gpu}, ""},
		{"without words that are meant", Pod{Tolerations: []Toleration{{Key: "sku", Value: "gpu"}}}, nil, []Taint{gpu}, ""},
		{"another value", Pod{Tolerations: []Toleration{{Key: "sku", Value: "cpu"}}}, nil, []Taint{gpu}, "is not tolerated"},
		{"any value", Pod{Tolerations: []Toleration{{Key: "sku", Operator: "Exists"}}}, nil, []Taint{gpu}, ""},
		{"another effect", Pod{Tolerations: []Toleration{{"sku", "Exists", "", TaintNoExecute}}}, nil, []Taint{gpu}, "is not tolerated"},
		{"everything", Pod{Tolerations: []Toleration{{Operator: "Exists"}}}, nil, []Taint{gpu, {"b", "", TaintNoExecute}}, ""},
		{"one of two", Pod{Tolerations: []Toleration{{Key: "sku", Operator: "Exists"}}}, nil, []Taint{gpu, {"b", "", TaintNoExecute}}, "its taint b:NoExecute is not tolerated"},
		{"a key without an operator", Pod{Tolerations: []Toleration{{}}}, nil, []Taint{{"", "", TaintNoExecute}}, "is not tolerated"},
		{"labels", Pod{NodeSelector: map[string]string{"a": "1", "b": "2"}}, map[string]string{"a": "1", "b": "2", "c": "3"}, nil, ""},
		{"a label that is not there", Pod{NodeSelector: map[string]string{"a": ""}}, nil, nil, "its label is not a="},
		{"another label", Pod{NodeSelector: map[string]string{"a": "1"}}, map[string]string{"a": "2"}, nil, "its label is not a=1"},
	} {
		if got := x.pod.Refuses(x.labels, x.taints); got != x.want && (x.want == "" || !strings.Contains(got, x.want)) {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}

func TestPodOver(t *testing.T) {
	under := Pod{
		NodeSelector: map[string]string{"pool": "gpu", "zone": "1"}, Tolerations: []Toleration{{Key: "sku", Value: "gpu"}, {Key: "a"}},
		RuntimeClassName: "nvidia", ImagePullSecrets: []Reference{{"all"}}, ServiceAccountName: "models", PriorityClassName: "low",
		Annotations: map[string]string{"a": "under", "b": "under"},
	}
	own := Pod{NodeSelector: map[string]string{"zone": "2"}, Tolerations: []Toleration{{Key: "a"}, {Key: "b"}}, PriorityClassName: "high", ImagePullSecrets: []Reference{{"own"}},
		Annotations: map[string]string{"a": "own"}}
	want := Pod{
		NodeSelector: map[string]string{"pool": "gpu", "zone": "2"}, Tolerations: []Toleration{{Key: "a"}, {Key: "b"}, {Key: "sku", Value: "gpu"}},
		RuntimeClassName: "nvidia", ImagePullSecrets: []Reference{{"own"}, {"all"}}, ServiceAccountName: "models", PriorityClassName: "high",
		Annotations: map[string]string{"a": "own", "b": "under"},
	}
	if got := own.Over(under); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if len(under.NodeSelector) != 2 || under.NodeSelector["zone"] != "1" || len(own.NodeSelector) != 1 || len(own.Tolerations) != 2 {
		t.Errorf("one of the two was changed: %+v %+v", own, under)
	}
	if got := (Pod{}).Over(under); !reflect.DeepEqual(got, under) {
		t.Errorf("%+v", got)
	}
	if !(Pod{}).IsZero() || !(Pod{}).Over(Pod{}).IsZero() || own.IsZero() {
		t.Error("zero")
	}
}

// Those that ask the same of a node say it in the same word.
func TestPodRequires(t *testing.T) {
	for _, tt := range []struct {
		p    Pod
		want string
	}{
		{Pod{}, ""},
		{Pod{RuntimeClassName: "nvidia", ServiceAccountName: "x"}, ""},
		{Pod{NodeSelector: map[string]string{"zone": "b", "disk": "nvme"}}, "disk=nvme, zone=b"},
		{Pod{Tolerations: []Toleration{{Key: "sku", Value: "gpu", Effect: TaintNoSchedule}, {Operator: TolerationExists}}}, "tolerates any taint, tolerates sku=gpu:NoSchedule"},
		{Pod{Tolerations: []Toleration{{Key: "b", Operator: TolerationExists}, {Key: "a"}, {Key: "b", Operator: TolerationExists}}}, "tolerates a=, tolerates b"},
	} {
		if got := tt.p.Requires(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.p, got, tt.want)
		}
	}
}
