package knative

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// checkServices checks for each service its nodes, its quotas and the objects it names.
func (d *doctor) checkServices(ctx context.Context) error {
	bounds := map[string]*bounds{} // by namespace
	var loaders labels.Set         // what their nodes have
	if len(d.services) > 0 {
		loader, err := d.c.kube.AppsV1().DaemonSets(System).Get(ctx, loaderName, metav1.GetOptions{})
		if err == nil {
			loaders = loader.Spec.Template.Spec.NodeSelector
			for _, s := range d.services {
				d.add(folderFindings(s, &loader.Spec.Template.Spec)...)
			}
		} else if !isNotFound(err) && d.ignoreForbidden(err, System+"/"+loaderName) != nil {
			return d.c.WithHint(err, System+"/"+loaderName)
		}
	}
	for _, s := range d.services {
		if err := d.listNodes(ctx); err != nil {
			return err
		}
		spec := &s.Spec.Template.Spec.PodSpec
		if d.visible {
			d.add(nodeFinding(s.Name, spec, d.nodes))
			if f, lacks := loaderFinding(s.Name, spec, d.nodes, loaders); lacks {
				d.add(f)
			}
		}
		if bounds[s.Namespace] == nil {
			b, err := d.boundsOf(ctx, s.Namespace)
			if err != nil {
				return err
			}
			bounds[s.Namespace] = b
		}
		least, _ := strconv.Atoi(s.Spec.Template.Annotations[minAnnotation])
		d.add(bounds[s.Namespace].findings(s.Name, spec, max(least, 1))...)
		if err := d.checkReferences(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// checkReferences checks that the objects a pod names exist.
func (d *doctor) checkReferences(ctx context.Context, s *servingv1.Service) (err error) {
	spec := &s.Spec.Template.Spec.PodSpec
	look := func(kind, name, hint string, get func(context.Context, string) error) {
		if name == "" || err != nil {
			return
		}
		failed := get(ctx, name)
		if isNotFound(failed) {
			d.add(badFinding(hint, "%s: there is no %s %s", s.Name, kind, name))
			return
		}
		err = d.ignoreForbidden(failed, kind+" "+name)
	}
	look("RuntimeClass", ptr.Deref(spec.RuntimeClassName, ""),
		"leave spec.pod.runtimeClassName out where the node's default runtime serves GPUs; kubectl get runtimeclasses",
		getter(d.c.kube.NodeV1().RuntimeClasses().Get))
	look("PriorityClass", spec.PriorityClassName, "kubectl get priorityclasses", getter(d.c.kube.SchedulingV1().PriorityClasses().Get))
	look("ServiceAccount", spec.ServiceAccountName, "kubectl create serviceaccount "+spec.ServiceAccountName+" -n "+s.Namespace,
		getter(d.c.kube.CoreV1().ServiceAccounts(s.Namespace).Get))
	for _, x := range spec.ImagePullSecrets {
		look("Secret", x.Name, "kubectl create secret docker-registry "+x.Name+" -n "+s.Namespace, getter(d.c.Secrets(s.Namespace).Get))
	}
	return err
}

// getter asks for an object by its name and returns only the error.
func getter[T any](get func(context.Context, string, metav1.GetOptions) (T, error)) func(context.Context, string) error {
	return func(ctx context.Context, name string) error {
		_, err := get(ctx, name, metav1.GetOptions{})
		return err
	}
}

// nodeFinding looks for a node that would hold the pod if it were empty.
func nodeFinding(name string, spec *corev1.PodSpec, nodes []corev1.Node) Finding {
	c := spec.Containers[0].Resources
	gpus := c.Limits[GPU]
	pod := PodOf(spec)
	var gpu, may, fit int
	most := corev1.ResourceList{}
	why, taint := "", functions.Taint{}
	for i := range nodes {
		n := &nodes[i]
		has := n.Status.Allocatable[GPU]
		if gpus.Value() > 0 && has.Value() == 0 {
			continue
		}
		gpu++
		taints := taintsOf(n, gpus.Value() > 0)
		if refusal := pod.Refuses(n.Labels, taints); refusal != "" {
			if why == "" {
				why = "of " + n.Name + " " + refusal
				if j := slices.IndexFunc(taints,
					func(t functions.Taint) bool { return t.Effect != functions.TaintPreferNoSchedule && !pod.Tolerates(t) }); j >= 0 &&
					strings.Contains(refusal, "taint") {
					taint = taints[j]
				}
			}
			continue
		}
		may++
		fits := true
		for _, r := range []corev1.ResourceName{GPU, corev1.ResourceMemory, corev1.ResourceCPU} {
			asked, has := c.Requests[r], n.Status.Allocatable[r]
			if asked.Cmp(has) > 0 {
				fits = false
			}
			if was := most[r]; has.Cmp(was) > 0 {
				most[r] = has
			}
		}
		if fits {
			fit++
		}
	}
	asks := describeResources(c.Requests)
	switch {
	case gpu == 0 && gpus.Value() > 0:
		return badFinding(devicePluginHint, "%s needs %s, and no node of the cluster has one%s", name, asks, otherDevices(nodes))
	case may == 0 && taint.Key != "":
		return badFinding(fmt.Sprintf("spec: {pod: {tolerations: [{key: %s, operator: Equal, value: %q, effect: %s}]}}, or %s of the namespace",
			taint.Key, taint.Value, taint.Effect, team.PodAnnotation),
			"none of %[2]d nodes accepts %[1]s: %[3]s", name, gpu, why)
	case may == 0 && why != "":
		return badFinding("kubectl get nodes --show-labels", "none of %[2]d nodes accepts %[1]s: %[3]s", name, gpu, why)
	case fit == 0:
		return badFinding("lower spec.resources, or add larger nodes; kubectl describe nodes",
			"%s needs %s on one node, and the largest usable nodes have %s", name, asks, describeResources(most))
	}
	return goodFinding("%s fits %d of %d nodes", name, fit, len(nodes))
}

// loaderFinding finds that no node that a pod may run on has a loader, which runs where these
// labels are.
func loaderFinding(name string, spec *corev1.PodSpec, nodes []corev1.Node, loaders labels.Set) (Finding, bool) {
	gpus, pod, without := spec.Containers[0].Resources.Limits[GPU], PodOf(spec), ""
	for i := range nodes {
		n := &nodes[i]
		has := n.Status.Allocatable[GPU]
		if gpus.Value() > 0 && has.Value() == 0 || pod.Refuses(n.Labels, taintsOf(n, gpus.Value() > 0)) != "" {
			continue
		}
		if loaders.AsSelector().Matches(labels.Set(n.Labels)) {
			return Finding{}, false
		}
		without = n.Name
	}
	return badFinding("thaw-knative install --loaders all; or kubectl label node "+without+" "+strings.ReplaceAll(loaders.String(), ",", " "),
		"no node that %s may run on has a loader: %s lacks the label %s", name, without, loaders), without != ""
}

func describeResources(list corev1.ResourceList) string {
	var out []string
	if q := list[GPU]; q.Value() == 1 {
		out = append(out, "1 GPU")
	} else if !q.IsZero() {
		out = append(out, q.String()+" GPUs")
	}
	if q := list[corev1.ResourceMemory]; !q.IsZero() {
		out = append(out, functions.Bytes(q.Value()).Human()+" of memory")
	}
	if q := list[corev1.ResourceCPU]; !q.IsZero() {
		out = append(out, functions.CPU(q.MilliValue()).Human())
	}
	return cmp.Or(strings.Join(out, ", "), "nothing")
}

// taintsOf lists the permanent taints of a node. Pods with GPUs are assumed to tolerate
// the GPU taint, which ExtendedResourceToleration adds.
func taintsOf(n *corev1.Node, gpus bool) (out []functions.Taint) {
	for _, t := range n.Spec.Taints {
		if strings.HasPrefix(t.Key, "node.kubernetes.io/") || gpus && t.Key == string(GPU) {
			continue
		}
		out = append(out, functions.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return out
}
