package functions

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Pod holds Kubernetes pod settings of a replica beside its resources, spelled as in a
// pod spec; other backends ignore it. Settings that raise a pod's privileges (host
// namespaces, privileges, volumes) are left out.
type Pod struct {
	NodeSelector       map[string]string `json:"nodeSelector,omitempty"`
	Tolerations        []Toleration      `json:"tolerations,omitempty"`
	RuntimeClassName   string            `json:"runtimeClassName,omitempty"`
	ImagePullSecrets   []Reference       `json:"imagePullSecrets,omitempty"`
	ServiceAccountName string            `json:"serviceAccountName,omitempty"`
	PriorityClassName  string            `json:"priorityClassName,omitempty"`
	Annotations        map[string]string `json:"annotations,omitempty"`
}

// Toleration allows a pod on nodes with a taint. Operator is Equal unless it says
// Exists; an empty key with Exists is every taint; an empty effect every effect.
type Toleration struct {
	Key      string `json:"key,omitempty"`
	Operator string `json:"operator,omitempty"`
	Value    string `json:"value,omitempty"`
	Effect   string `json:"effect,omitempty"`
}

// Reference names an object of the model's namespace.
type Reference struct {
	Name string `json:"name"`
}

// Taint keeps replicas that do not tolerate it off a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// The words of tolerations and taints.
const (
	TolerationEqual  = "Equal"
	TolerationExists = "Exists"

	TaintNoSchedule       = "NoSchedule"
	TaintPreferNoSchedule = "PreferNoSchedule"
	TaintNoExecute        = "NoExecute"
)

func (p Pod) IsZero() bool {
	return len(p.NodeSelector) == 0 && len(p.Tolerations) == 0 && len(p.ImagePullSecrets) == 0 && len(p.Annotations) == 0 &&
		p.RuntimeClassName == "" && p.ServiceAccountName == "" && p.PriorityClassName == ""
}

// Tolerates reports whether one of p's tolerations is for t.
func (p *Pod) Tolerates(t Taint) bool {
	return slices.ContainsFunc(p.Tolerations, func(x Toleration) bool { return x.covers(t) })
}

func (t Toleration) covers(taint Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Operator == TolerationExists ||
		t.Key != "" && (t.Operator == "" || t.Operator == TolerationEqual) && t.Value == taint.Value
}

// Refuses returns why a node with these labels and taints cannot hold p; "" if it can.
// PreferNoSchedule refuses no pod.
func (p *Pod) Refuses(labels map[string]string, taints []Taint) string {
	for _, k := range slices.Sorted(maps.Keys(p.NodeSelector)) {
		if v, has := labels[k]; !has || v != p.NodeSelector[k] {
			return fmt.Sprintf("its label is not %s=%s", k, p.NodeSelector[k])
		}
	}
	for _, t := range taints {
		if t.Effect != TaintPreferNoSchedule && !p.Tolerates(t) {
			return fmt.Sprintf("its taint %s is not tolerated", t)
		}
	}
	return ""
}

// Requires describes p's node constraints for people; pods with equal constraints have
// the same text. "" means none.
func (p *Pod) Requires() string {
	var all []string
	for k, v := range p.NodeSelector {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	bears := make([]string, 0, len(p.Tolerations))
	for _, t := range p.Tolerations {
		word := cmp.Or(t.Key, "any taint")
		if t.Operator != TolerationExists {
			word += "=" + t.Value
		}
		if t.Effect != "" {
			word += ":" + t.Effect
		}
		bears = append(bears, "tolerates "+word)
	}
	slices.Sort(bears)
	return strings.Join(slices.Compact(append(all, bears...)), ", ")
}

// String is as kubectl writes it: KEY=VALUE:EFFECT.
func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// Over merges p with defaults from under: node selector keys and annotations missing in p,
// all tolerations and secrets, and each name that p leaves empty.
func (p Pod) Over(under Pod) Pod {
	p.NodeSelector, p.Annotations = mergeMaps(p.NodeSelector, under.NodeSelector), mergeMaps(p.Annotations, under.Annotations)
	p.Tolerations = union(p.Tolerations, under.Tolerations)
	p.ImagePullSecrets = union(p.ImagePullSecrets, under.ImagePullSecrets)
	p.RuntimeClassName = cmp.Or(p.RuntimeClassName, under.RuntimeClassName)
	p.ServiceAccountName = cmp.Or(p.ServiceAccountName, under.ServiceAccountName)
	p.PriorityClassName = cmp.Or(p.PriorityClassName, under.PriorityClassName)
	return p
}

// mergeMaps is over with the entries of under that it lacks.
func mergeMaps(over, under map[string]string) map[string]string {
	if len(under) == 0 {
		return over
	}
	both := maps.Clone(under)
	maps.Copy(both, over)
	return both
}

// union is a and what of b is not in it.
func union[T comparable](a, b []T) []T {
	out := slices.Clip(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// maxPod bounds the lists of a pod.
const maxPod = 64

// CheckPod lists the problems of pod, which is at path in its document.
func CheckPod(path string, pod *Pod) []Problem {
	var p problems
	p.checkFew(path+".nodeSelector", len(pod.NodeSelector))
	p.checkFew(path+".tolerations", len(pod.Tolerations))
	p.checkFew(path+".imagePullSecrets", len(pod.ImagePullSecrets))
	for _, k := range slices.Sorted(maps.Keys(pod.NodeSelector)) {
		if !isLabelKey(k) {
			p.add(path+".nodeSelector", labelKeyHint, "%q is no key of a label", Clip(k))
		} else if v := pod.NodeSelector[k]; !isLabelValue(v) {
			p.add(path+".nodeSelector."+k, labelValueHint, "%q is no value of a label", Clip(v))
		}
	}
	p.checkFew(path+".annotations", len(pod.Annotations))
	for _, k := range slices.Sorted(maps.Keys(pod.Annotations)) {
		domain, _, _ := strings.Cut(k, "/")
		if !isLabelKey(k) {
			p.add(path+".annotations", "such as karpenter.sh/do-not-disrupt", "%q is no key of an annotation", Clip(k))
		} else if domain = "." + domain; strings.HasSuffix(domain, ".knative.dev") || strings.HasSuffix(domain, ".thaw.dev") {
			p.add(path+".annotations", "leave it out: scale and deadlines of the model file say it", "%s is written by thaw", Clip(k))
		}
	}
	for i, t := range pod.Tolerations {
		p.checkToleration(fmt.Sprintf("%s.tolerations[%d]", path, i), t)
	}
	for i, s := range pod.ImagePullSecrets {
		p.checkObjectName(fmt.Sprintf("%s.imagePullSecrets[%d].name", path, i), s.Name, true)
	}
	p.checkObjectName(path+".runtimeClassName", pod.RuntimeClassName, false)
	p.checkObjectName(path+".serviceAccountName", pod.ServiceAccountName, false)
	p.checkObjectName(path+".priorityClassName", pod.PriorityClassName, false)
	if strings.HasPrefix(pod.PriorityClassName, "system-") {
		p.add(path+".priorityClassName", "a class of your own", "%q is for parts of the cluster itself", Clip(pod.PriorityClassName))
	}
	return p
}

const (
	labelKeyHint   = "such as agentpool or kubernetes.azure.com/agentpool: at most 63 letters, digits, '-', '_' and '.' after the '/'"
	labelValueHint = "at most 63 letters, digits, '-', '_' and '.'"
)

func (p *problems) checkFew(path string, n int) {
	if n > maxPod {
		p.add(path, fmt.Sprintf("at most %d", maxPod), "%d are too many", n)
	}
}

func (p *problems) checkToleration(at string, t Toleration) {
	switch {
	case t.Operator != "" && t.Operator != TolerationEqual && t.Operator != TolerationExists:
		p.add(at+".operator", "Equal or Exists", "%q is no operator", Clip(t.Operator))
	case t.Operator == TolerationExists && t.Value != "":
		p.add(at+".value", "leave it out, or write operator: Equal", "with Exists any value is tolerated")
	case t.Key == "" && t.Operator != TolerationExists:
		p.add(at+".key", "such as sku; operator: Exists without a key is for every taint", "a key is needed")
	case t.Key != "" && !isLabelKey(t.Key):
		p.add(at+".key", labelKeyHint, "%q is no key of a taint", Clip(t.Key))
	case !isLabelValue(t.Value):
		p.add(at+".value", labelValueHint, "%q is no value of a taint", Clip(t.Value))
	}
	if !slices.Contains([]string{"", TaintNoSchedule, TaintPreferNoSchedule, TaintNoExecute}, t.Effect) {
		p.add(at+".effect", "NoSchedule, PreferNoSchedule or NoExecute; all of them where it is left out", "%q is no effect", Clip(t.Effect))
	}
}

// checkObjectName checks the name of an object of Kubernetes: labels with dots between.
func (p *problems) checkObjectName(path, name string, needed bool) {
	if name == "" && !needed {
		return
	}
	if name == "" {
		p.add(path, "the name of an object of the model's namespace", "a name is needed")
	} else if !isSubdomain(name) {
		p.add(path, "lower-case letters, digits, '-' and '.'", "%q is no name of an object of Kubernetes", Clip(name))
	}
}

func isSubdomain(s string) bool {
	return len(s) <= 253 && !slices.ContainsFunc(strings.Split(s, "."), func(part string) bool { return !IsLabel(part) })
}

// isLabelKey reports whether s is NAME or DOMAIN/NAME.
func isLabelKey(s string) bool {
	if domain, name, ok := strings.Cut(s, "/"); ok {
		return isSubdomain(domain) && name != "" && isLabelValue(name)
	}
	return s != "" && isLabelValue(s)
}

// isLabelValue reports whether s is empty, or at most 63 letters, digits, '-', '_'
// and '.', with a letter or digit at both ends.
func isLabelValue(s string) bool {
	return s == "" || len(s) <= 63 && strings.Trim(s, lettersAndDigits+"-_.") == "" && !strings.ContainsAny(s[:1]+s[len(s)-1:], "-_.")
}

const lettersAndDigits = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
