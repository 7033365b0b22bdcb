package knative

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// PodOf returns the placement fields of a pod spec, however it was written. Tolerations
// with an end count as tolerations; affinities are left to the scheduler.
func PodOf(spec *corev1.PodSpec) functions.Pod {
	pod := functions.Pod{NodeSelector: maps.Clone(spec.NodeSelector), ServiceAccountName: spec.ServiceAccountName,
		PriorityClassName: spec.PriorityClassName, RuntimeClassName: ptr.Deref(spec.RuntimeClassName, "")}
	for _, t := range spec.Tolerations {
		pod.Tolerations = append(pod.Tolerations,
			functions.Toleration{Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect)})
	}
	for _, s := range spec.ImagePullSecrets {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, functions.Reference{Name: s.Name})
	}
	return pod
}

// applyPod copies a model's spec.pod into its pod spec.
func applyPod(pod *corev1.PodSpec, own functions.Pod) {
	pod.NodeSelector, pod.ServiceAccountName, pod.PriorityClassName = own.NodeSelector, own.ServiceAccountName, own.PriorityClassName
	if own.RuntimeClassName != "" {
		pod.RuntimeClassName = &own.RuntimeClassName
	}
	for _, t := range own.Tolerations {
		pod.Tolerations = append(pod.Tolerations,
			corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	for _, s := range own.ImagePullSecrets {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, corev1.LocalObjectReference{Name: s.Name})
	}
}

// ReadPod decodes a spec.pod strictly; file is for messages.
func ReadPod(file string, text []byte) (pod functions.Pod, err error) {
	places, err := catalog.DecodePlaced(file, text, &pod)
	if err != nil {
		return pod, err
	}
	var problems catalog.Problems
	for _, p := range functions.CheckPod("", &pod) {
		x := catalog.Problem{File: file, Path: p.Path[1:], Message: p.Message, Hint: p.Hint}
		x.Line, x.Column = places(x.Path)
		problems = append(problems, x)
	}
	if len(problems) > 0 {
		return pod, problems
	}
	return pod, nil
}

// PodDefaults returns a namespace's default spec.pod; zero if the account may not read the
// namespace.
func (c *Cluster) PodDefaults(ctx context.Context, namespace string) (functions.Pod, error) {
	n, err := c.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return functions.Pod{}, c.ignoreForbidden(err, namespace+"/")
	}
	pod, err := readPodDefaults(n)
	if err != nil {
		return pod, &kit.Error{Exit: kit.ExitUsage, What: err.Error(),
			Hint: "kubectl annotate namespace " + namespace + " " + team.PodAnnotation + "-"}
	}
	return pod, nil
}

func readPodDefaults(n *corev1.Namespace) (functions.Pod, error) {
	text := n.Annotations[team.PodAnnotation]
	if text == "" {
		return functions.Pod{}, nil
	}
	pod, err := ReadPod("annotation "+team.PodAnnotation, []byte(text))
	if err != nil {
		return functions.Pod{}, fmt.Errorf("namespace %s: %w", n.Name, err)
	}
	return pod, nil
}

const (
	// podPolicy is the ValidatingAdmissionPolicy that bounds what pods mount of their node.
	podPolicy = "thaw-pods"

	// PodPolicyLabel on a namespace with the value off: podPolicy does not apply there,
	// unless it is a team's.
	PodPolicyLabel = "thaw.dev/pod-policy"
)

// podPolicyBindings apply podPolicy to teams' namespaces and to Knative Services elsewhere.
var podPolicyBindings = []string{"thaw-pods-of-teams", "thaw-pods-of-services"}

// checkPodPolicy checks that pods can mount no folder of their node but that of the
// loader's socket, and names the namespaces where they can. Knative's hostPath feature is
// on or off for all namespaces.
func (d *doctor) checkPodPolicy(ctx context.Context) error {
	const what = "pods of Knative Services can mount any folder of their node: "
	admission := d.c.kube.AdmissionregistrationV1()
	missing := ""
	_, err := admission.ValidatingAdmissionPolicies().Get(ctx, podPolicy, metav1.GetOptions{})
	if isNotFound(err) {
		missing, err = "the policy "+podPolicy, nil
	}
	for _, name := range podPolicyBindings {
		if err != nil || missing != "" {
			break
		}
		if _, err = admission.ValidatingAdmissionPolicyBindings().Get(ctx, name, metav1.GetOptions{}); isNotFound(err) {
			missing, err = "the policy's binding "+name, nil
		}
	}
	switch {
	case err != nil:
		return d.ignoreForbidden(err, podPolicy)
	case missing != "":
		if is, err := d.installed(ctx); err != nil || !is {
			return err // reported by checkInstalled
		}
		d.add(noteFinding("Knative's hostPath feature is on for all namespaces; "+installCommand, what+"%s is missing", missing))
		return nil
	}
	off, err := d.c.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: PodPolicyLabel + "=off,!" + team.Label})
	if err != nil {
		return d.ignoreForbidden(err, "namespaces")
	}
	if len(off.Items) > 0 {
		names := functions.ConvertAll(off.Items, func(n corev1.Namespace) string { return n.Name })
		d.add(noteFinding("kubectl label namespace "+strings.Join(names, " ")+" "+PodPolicyLabel+"-", what+"%s has the label %s=off",
			strings.Join(names, ", "), PodPolicyLabel))
	} else {
		d.add(goodFinding("pods mount no folder of their node but that of the loader's socket, in all namespaces"))
	}
	return nil
}
