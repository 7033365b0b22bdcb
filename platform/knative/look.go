package knative

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
)

// Finding is one thing that was looked at.
type Finding struct {
	What string `json:"what"`
	Good bool   `json:"good"`
	Note bool   `json:"note,omitempty"` // not good, but keeps no model from running
	Hint string `json:"hint,omitempty"` // ends with the command that mends it, where there is one

}

// Bad reports whether it keeps a model from running.
func (f Finding) Bad() bool { return !f.Good && !f.Note }

func good(format string, args ...any) Finding {
	return Finding{What: fmt.Sprintf(format, args...), Good: true}
}

func bad(hint, format string, args ...any) Finding {
	return Finding{What: fmt.Sprintf(format, args...), Hint: hint}
}

func note(hint, format string, args ...any) Finding {
	return Finding{What: fmt.Sprintf(format, args...), Note: true, Hint: hint}
}

// The versions that the suite of this project runs on; what is less than oldest has
// not what an installation is made of (policies of admission, version v1).
const (
	testedKubernetes = 35 // 1.35
	oldestKubernetes = 30
	testedKnative    = 23 // 1.23
)

const (
	servingNamespace = "knative-serving" // where Knative keeps its settings
	podSecurity      = "pod-security.kubernetes.io/enforce"
	placeWebhook     = "thaw-place"
	controllerName   = "thaw-controller" // Deployment, and lease of who leads
	leadsFor         = time.Minute       // a lease that nobody has renewed for so long is nobody's, whatever clocks say
)

const unchecked = "; --skip-preflight deploys all the same"

// Doctor looks whether the cluster takes what Render makes and runs it: Knative
// Serving with the settings of it that are off unless somebody turns them on, thaw's
// own parts, the nodes, and what pods of the namespace may be. With services it looks
// at what those need as well. What the person who asks may not see is left out.
func (c *Cluster) Doctor(ctx context.Context, namespace string, services ...*servingv1.Service) ([]Finding, error) {
	if _, err := c.serving.Services(c.namespace).List(ctx, metav1.ListOptions{Limit: 1}); err != nil && !status.IsForbidden(err) {
		return nil, c.explain(err, "Knative Services")
	}
	found := []Finding{good("Knative Serving answers on %s", c.host)}
	looks := []func(context.Context) ([]Finding, error){
		c.versions,
		func(ctx context.Context) ([]Finding, error) { return c.features(ctx, Needs(services...)) },
		c.otherWays, c.parts, c.alive,
		func(ctx context.Context) ([]Finding, error) { return c.gpus(ctx) },
		func(ctx context.Context) ([]Finding, error) { return c.space(ctx, namespace) },
	}
	fit := fitting{c: c}
	for _, s := range services {
		looks = append(looks, func(ctx context.Context) ([]Finding, error) { return fit.look(ctx, s) })
	}
	for _, look := range looks {
		more, err := look(ctx)
		if err != nil {
			return found, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// Check looks, before services are applied, whether they could run: the first things
// that a new cluster lacks, and what no node and no quota will ever have room for.
// What the person who asks may not see is not looked at: it is told where it fails.
func (c *Cluster) Check(ctx context.Context, services ...*servingv1.Service) error {
	var found []Finding
	looks := []func() ([]Finding, error){
		func() ([]Finding, error) { return c.features(ctx, Needs(services...)) },
		func() ([]Finding, error) { return c.installed(ctx) },
	}
	seen, fit := map[string]bool{}, fitting{c: c}
	for _, s := range services {
		if !seen[s.Namespace] {
			seen[s.Namespace] = true
			looks = append(looks, func() ([]Finding, error) { return c.secure(ctx, s.Namespace) })
		}
		looks = append(looks, func() ([]Finding, error) { return fit.look(ctx, s) })
	}
	for _, look := range looks {
		more, err := look()
		if err != nil {
			return err
		}
		found = append(found, more...)
	}
	found = slices.DeleteFunc(found, func(f Finding) bool { return !f.Bad() })
	switch len(found) {
	case 0:
		return nil
	case 1:
		return &Error{Kind: Refused, What: found[0].What, Hint: found[0].Hint + unchecked}
	}
	lines := make([]string, len(found))
	for i, f := range found {
		lines[i] = f.What + " (" + f.Hint + ")"
	}
	return &Error{Kind: Refused, What: strings.Join(lines, "\n"), Hint: "one after the other" + unchecked}
}

// blind makes of an error nothing where it says that who asks may not look.
func (c *Cluster) blind(err error, what string) error {
	if err == nil || status.IsForbidden(err) {
		return nil
	}
	return c.explain(err, what)
}

func (c *Cluster) versions(ctx context.Context) ([]Finding, error) {
	v, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		return nil, c.blind(err, "its version")
	}
	found := []Finding{release(v.Major, v.Minor, v.GitVersion)}
	d, err := c.kube.AppsV1().Deployments(servingNamespace).Get(ctx, "controller", metav1.GetOptions{})
	if err != nil {
		if absent(err) {
			return append(found, note("kubectl get deployments -A -l app.kubernetes.io/name=knative-serving", "Knative's controller is not in namespace %s", servingNamespace)), nil
		}
		return found, c.blind(err, servingNamespace+"/controller")
	}
	return append(found, serving(d.Labels["app.kubernetes.io/version"])), nil
}

// release is what is known of a version of Kubernetes.
func release(major, minor, version string) Finding {
	n, err := strconv.Atoi(strings.TrimRight(minor, "+"))
	switch {
	case err != nil || major != "1":
		return note(fmt.Sprintf("thaw is tested with 1.%d", testedKubernetes), "Kubernetes calls itself %s", version)
	case n < oldestKubernetes:
		return bad(fmt.Sprintf("at least 1.%d: older ones have no ValidatingAdmissionPolicy; tested is 1.%d", oldestKubernetes, testedKubernetes), "Kubernetes is %s", version)
	case n == testedKubernetes:
		return good("Kubernetes is %s", version)
	}
	return note(fmt.Sprintf("thaw is tested with 1.%d", testedKubernetes), "Kubernetes is %s", version)
}

// serving is what is known of a version of Knative.
func serving(version string) Finding {
	var major, minor int
	n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	if n == 2 && major == 1 && minor == testedKnative {
		return good("Knative Serving is %s", version)
	}
	return note(fmt.Sprintf("thaw is tested with 1.%d", testedKnative), "Knative Serving is %s", cmp.Or(version, "of no version that it says"))
}

// features looks at settings of Knative.
func (c *Cluster) features(ctx context.Context, needs []Feature) (found []Finding, err error) {
	read := map[string]map[string]string{}
	for _, f := range needs {
		data, seen := read[f.Map]
		if !seen {
			m, err := c.core.ConfigMaps(servingNamespace).Get(ctx, f.Map, metav1.GetOptions{})
			if status.IsForbidden(err) {
				return found, nil // Knative's webhook looks as well
			}
			if err != nil && !absent(err) {
				return found, c.explain(err, servingNamespace+"/"+f.Map)
			}
			if err == nil {
				data = m.Data
			}
			read[f.Map] = data
		}
		has, on := f.On(data)
		finding := good("%s: %s is %s", f.Map, f.Key, has)
		if !on {
			finding = bad(f.Why+"; "+f.Patch(), "%s", finding.What)
		}
		found = append(found, finding)
	}
	return found, nil
}

// otherWays looks whether requests that come by way of Knative's own activator can be
// seen.
func (c *Cluster) otherWays(ctx context.Context) ([]Finding, error) {
	const name, key = "config-observability", "metrics-protocol"
	m, err := c.core.ConfigMaps(servingNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !absent(err) {
		return nil, c.blind(err, servingNamespace+"/"+name)
	}
	has := "none"
	if err == nil {
		has = cmp.Or(strings.TrimSpace(m.Data[key]), has)
	}
	if has == "prometheus" {
		return []Finding{good("%s: %s is %s", name, key, has)}, nil
	}
	data, _ := json.Marshal(map[string]any{"data": map[string]string{key: "prometheus"}})
	return []Finding{note(fmt.Sprintf("requests by way of another ingress than thaw's wake nothing until they can be seen; kubectl patch configmap %s -n %s --type merge -p '%s' && kubectl rollout restart deployment activator -n %s",
		name, servingNamespace, data, servingNamespace), "%s: %s is %s", name, key, has)}, nil
}

const install = "thaw-knative install --image IMAGE --wait"

// installed looks whether there is somebody who would start a model.
func (c *Cluster) installed(ctx context.Context) ([]Finding, error) {
	_, err := c.kube.AppsV1().Deployments(System).Get(ctx, controllerName, metav1.GetOptions{})
	if absent(err) {
		return []Finding{bad("thaw's image is made by deploy/images; "+install, "thaw is not installed on the cluster, so nothing would start a model")}, nil
	}
	return nil, c.blind(err, System+"/"+controllerName)
}

// parts looks whether thaw's parts run, and what.
func (c *Cluster) parts(ctx context.Context) ([]Finding, error) {
	missing, err := c.installed(ctx)
	if err != nil || len(missing) > 0 {
		return missing, err
	}
	var found []Finding
	images := map[string]bool{}
	for _, name := range []string{controllerName, "thaw-activator"} {
		d, err := c.kube.AppsV1().Deployments(System).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !absent(err) {
			return found, c.blind(err, System+"/"+name)
		}
		if err != nil {
			found = append(found, bad(install, "%s is not there", name))
			continue
		}
		image := imageOf(&d.Spec.Template.Spec)
		images[image] = true
		asked := int32(1)
		if d.Spec.Replicas != nil {
			asked = *d.Spec.Replicas
		}
		found = append(found, runs(name, d.Status.AvailableReplicas, asked, image))
	}
	d, err := c.kube.AppsV1().DaemonSets(System).Get(ctx, "thaw-loader", metav1.GetOptions{})
	switch {
	case absent(err):
		found = append(found, bad(install, "thaw-loader is not there"))
	case err != nil:
		return found, c.blind(err, System+"/thaw-loader")
	case d.Status.DesiredNumberScheduled == 0:
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(d.Spec.Template.Spec.NodeSelector)) {
			labels = append(labels, k+"="+d.Spec.Template.Spec.NodeSelector[k])
		}
		found = append(found, bad("install --loaders LABEL=VALUE takes other nodes; kubectl label node NODE "+strings.Join(labels, " "), "no node has a loader: none has the label %s", strings.Join(labels, ", ")))
	default:
		image := imageOf(&d.Spec.Template.Spec)
		images[image] = true
		found = append(found, runs("thaw-loader", d.Status.NumberAvailable, d.Status.DesiredNumberScheduled, image))
	}
	switch warm, err := c.kube.AppsV1().DaemonSets(System).Get(ctx, "thaw-warm", metav1.GetOptions{}); {
	case absent(err): // as it mostly is
	case err != nil:
		return found, c.blind(err, System+"/thaw-warm")
	case warm.Status.DesiredNumberScheduled > 0: // with no loader it has no node either, which is said
		f := runs("thaw-warm", warm.Status.NumberAvailable, warm.Status.DesiredNumberScheduled, imageOf(&warm.Spec.Template.Spec))
		if !f.Good { // models run all the same
			f = note("starts are plain meanwhile; kubectl logs -n "+System+" daemonset/thaw-warm -c warm", "%s", f.What)
		}
		found = append(found, f)
	}
	if len(images) > 1 {
		found = append(found, note(install, "thaw's parts are of %d images: %s", len(images), strings.Join(slices.Sorted(maps.Keys(images)), ", ")))
	}
	return found, nil
}

func imageOf(spec *corev1.PodSpec) string {
	if len(spec.Containers) == 0 {
		return "no image"
	}
	return spec.Containers[0].Image
}

// runs tells of pods that are available, of those that are to be.
func runs(name string, are, asked int32, image string) Finding {
	what := fmt.Sprintf("%s: %d of %d run, %s", name, are, asked, image)
	hint := "kubectl get pods -n " + System
	switch {
	case are == 0:
		return bad(hint, "%s", what)
	case are < asked:
		return note(hint, "%s", what)
	}
	return good("%s", what)
}

// alive looks whether somebody answers for the two classes and for the webhook.
func (c *Cluster) alive(ctx context.Context) ([]Finding, error) {
	logs := "kubectl logs -n " + System + " deployment/" + controllerName
	l, err := c.kube.CoordinationV1().Leases(System).Get(ctx, controllerName, metav1.GetOptions{})
	if err != nil && !absent(err) {
		return nil, c.blind(err, System+"/"+controllerName)
	}
	var found []Finding
	switch {
	case err != nil && len(found) == 0:
		if missing, err := c.installed(ctx); err != nil || len(missing) > 0 {
			return nil, err // said already
		}
		found = append(found, bad(logs, "class %s: no controller leads", AutoscalerClass))
	case l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil:
		found = append(found, bad(logs, "class %s: no controller leads", AutoscalerClass))
	case time.Since(l.Spec.RenewTime.Time) > leadsFor:
		found = append(found, bad(logs, "class %s: who led last was heard %s ago, by the clock of this machine", AutoscalerClass, time.Since(l.Spec.RenewTime.Time).Round(time.Second)))
	default:
		who, _, _ := strings.Cut(*l.Spec.HolderIdentity, "@")
		found = append(found, good("class %s: %s leads", AutoscalerClass, who))
	}
	ready, err := c.addresses(ctx, "thaw")
	switch {
	case err != nil:
		return found, c.blind(err, System+"/thaw")
	case ready == 0:
		found = append(found, bad("kubectl get pods -n "+System+" -l app.kubernetes.io/component=activator", "class %s: no activator takes requests", IngressClass))
	default:
		found = append(found, good("class %s: %d activators take requests", IngressClass, ready))
	}
	w, err := c.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, placeWebhook, metav1.GetOptions{})
	if err != nil && !absent(err) {
		return found, c.blind(err, placeWebhook)
	}
	ready, failed := c.addresses(ctx, placeWebhook)
	const without = "pods are made all the same, and the scheduler alone says where; "
	switch {
	case failed != nil:
		return found, c.blind(failed, System+"/"+placeWebhook)
	case err != nil:
		found = append(found, note(without+install, "the webhook %s is not registered", placeWebhook))
	case len(w.Webhooks) == 0 || len(w.Webhooks[0].ClientConfig.CABundle) == 0 || ready == 0:
		found = append(found, note(without+logs, "nobody answers for the webhook %s", placeWebhook))
	default:
		found = append(found, good("the webhook %s is answered for", placeWebhook))
	}
	return found, nil
}

// addresses are how many a Service of thaw's leads to. One that is not there leads to
// none.
func (c *Cluster) addresses(ctx context.Context, service string) (n int, err error) {
	list, err := c.kube.DiscoveryV1().EndpointSlices(System).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return 0, err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				n += len(e.Addresses)
			}
		}
	}
	return n, nil
}

const plugin = "a node has GPUs once a device plugin says so (nvidia.com/gpu under allocatable); kubectl describe nodes"

// nodes are those of the cluster; none where who asks may not see them.
func (c *Cluster) nodes(ctx context.Context) (nodes []corev1.Node, seen bool, err error) {
	for o := (metav1.ListOptions{Limit: pageOf}); ; {
		page, err := c.core.Nodes().List(ctx, o)
		if err != nil {
			return nil, false, c.blind(err, "nodes")
		}
		nodes = append(nodes, page.Items...)
		if o.Continue = page.Continue; o.Continue == "" {
			return nodes, true, nil
		}
	}
}

// gpus tells how many the nodes have.
func (c *Cluster) gpus(ctx context.Context) ([]Finding, error) {
	nodes, seen, err := c.nodes(ctx)
	if err != nil || !seen {
		return nil, err
	}
	with, all := 0, int64(0)
	for _, n := range nodes {
		if q := n.Status.Allocatable[GPU]; q.Value() > 0 {
			with, all = with+1, all+q.Value()
		}
	}
	if all == 0 {
		return []Finding{note(plugin, "none of %d nodes has a GPU", len(nodes))}, nil
	}
	return []Finding{good("%d of %d nodes have GPUs, %d in all", with, len(nodes), all)}, nil
}

// space looks at a namespace.
func (c *Cluster) space(ctx context.Context, namespace string) ([]Finding, error) {
	n, err := c.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, c.blind(err, namespace+"/") // a team need not see its namespace to deploy into it
	}
	found := []Finding{security(n)}
	if _, err := podDefaults(n); err != nil {
		found = append(found, bad("kubectl annotate namespace "+namespace+" "+PodAnnotation+"-", "%v", err))
	} else if n.Annotations[PodAnnotation] != "" {
		found = append(found, good("namespace %s: models with GPUs are given its annotation %s", namespace, PodAnnotation))
	}
	limits, err := c.limits(ctx, n)
	return append(found, limits...), err
}

func (c *Cluster) secure(ctx context.Context, namespace string) ([]Finding, error) {
	n, err := c.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, c.blind(err, namespace+"/")
	}
	return []Finding{security(n)}, nil
}

// security looks whether pods of a namespace may have a folder of their node: Knative
// takes the Service all the same, and no pod of it is ever made.
func security(n *corev1.Namespace) Finding {
	level := cmp.Or(n.Labels[podSecurity], "privileged")
	what := fmt.Sprintf("namespace %s: %s is %s", n.Name, podSecurity, level)
	if level == "privileged" {
		return good("%s", what)
	}
	return bad(fmt.Sprintf("it forbids the host path that the store is; kubectl label namespace %s %s=privileged --overwrite", n.Name, podSecurity), "%s", what)
}

// fitting looks whether what services ask of the cluster could ever be had. It asks
// for nodes and quotas once, for all of them.
type fitting struct {
	c      *Cluster
	nodes  []corev1.Node
	seen   bool // nodes may be looked at
	asked  bool // they were asked for
	quotas map[string][]corev1.ResourceQuota
}

// look at one service: room on one node, within the namespace's quotas, and what it
// names.
func (f *fitting) look(ctx context.Context, s *servingv1.Service) ([]Finding, error) {
	spec := &s.Spec.Template.Spec.PodSpec
	if !f.asked {
		var err error
		if f.nodes, f.seen, err = f.c.nodes(ctx); err != nil {
			return nil, err
		}
		f.asked, f.quotas = true, map[string][]corev1.ResourceQuota{}
	}
	var found []Finding
	if f.seen {
		found = append(found, room(s.Name, spec, f.nodes))
	}
	quotas, known := f.quotas[s.Namespace]
	if !known {
		list, err := f.c.core.ResourceQuotas(s.Namespace).List(ctx, metav1.ListOptions{})
		if err := f.c.blind(err, s.Namespace+"/"); err != nil {
			return nil, err
		}
		if err == nil {
			quotas = list.Items
		}
		f.quotas[s.Namespace] = quotas
	}
	least, _ := strconv.Atoi(s.Spec.Template.Annotations[minAnnotation])
	for i := range quotas {
		if over, is := quota(s.Name, spec, max(least, 1), &quotas[i]); is {
			found = append(found, over)
		}
	}
	names, err := f.c.named(ctx, s)
	return append(found, names...), err
}

// named looks for the objects that a pod names.
func (c *Cluster) named(ctx context.Context, s *servingv1.Service) (found []Finding, err error) {
	spec := &s.Spec.Template.Spec.PodSpec
	look := func(kind, name, hint string, get func() error) {
		if name == "" || err != nil {
			return
		}
		failed := get()
		if absent(failed) {
			found = append(found, bad(hint, "%s: there is no %s %s", s.Name, kind, name))
			return
		}
		err = c.blind(failed, kind+" "+name)
	}
	if spec.RuntimeClassName != nil {
		look("RuntimeClass", *spec.RuntimeClassName, "leave spec.pod.runtimeClassName out where the node's default runtime serves GPUs; kubectl get runtimeclasses", func() error {
			_, err := c.kube.NodeV1().RuntimeClasses().Get(ctx, *spec.RuntimeClassName, metav1.GetOptions{})
			return err
		})
	}
	look("PriorityClass", spec.PriorityClassName, "kubectl get priorityclasses", func() error {
		_, err := c.kube.SchedulingV1().PriorityClasses().Get(ctx, spec.PriorityClassName, metav1.GetOptions{})
		return err
	})
	look("ServiceAccount", spec.ServiceAccountName, "kubectl create serviceaccount "+spec.ServiceAccountName+" -n "+s.Namespace, func() error {
		_, err := c.core.ServiceAccounts(s.Namespace).Get(ctx, spec.ServiceAccountName, metav1.GetOptions{})
		return err
	})
	for _, x := range spec.ImagePullSecrets {
		look("Secret", x.Name, "kubectl create secret docker-registry "+x.Name+" -n "+s.Namespace, func() error {
			_, err := c.core.Secrets(s.Namespace).Get(ctx, x.Name, metav1.GetOptions{})
			return err
		})
	}
	return found, err
}

// room looks for a node that would do for a pod if it were empty.
func room(name string, spec *corev1.PodSpec, nodes []corev1.Node) Finding {
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
				if j := slices.IndexFunc(taints, func(t functions.Taint) bool { return t.Effect != functions.TaintPreferNoSchedule && !pod.Tolerates(t) }); j >= 0 && strings.Contains(refusal, "taint") {
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
	asks := spelled(c.Requests)
	switch {
	case gpu == 0 && gpus.Value() > 0:
		return bad(plugin, "%s needs %s, and no node of the cluster has one", name, asks)
	case may == 0 && taint.Key != "":
		return bad(fmt.Sprintf("spec: {pod: {tolerations: [{key: %s, operator: Equal, value: %q, effect: %s}]}}, or %s of the namespace", taint.Key, taint.Value, taint.Effect, PodAnnotation),
			"%s may have no node of %d: %s", name, gpu, why)
	case may == 0 && why != "":
		return bad("kubectl get nodes --show-labels", "%s may have no node of %d: %s", name, gpu, why)
	case fit == 0:
		return bad("lower spec.resources, or add larger nodes; kubectl describe nodes", "%s needs %s on one node, and the largest it may have have %s", name, asks, spelled(most))
	}
	return good("%s fits %d of %d nodes", name, fit, len(nodes))
}

// spelled is a list of resources as a person says it.
func spelled(list corev1.ResourceList) string {
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

// taintsOf are the taints of a node that stay. What asks for GPUs tolerates theirs,
// where the cluster adds that (ExtendedResourceToleration), as clusters with such
// taints do.
func taintsOf(n *corev1.Node, gpus bool) (out []functions.Taint) {
	for _, t := range n.Spec.Taints {
		if strings.HasPrefix(t.Key, "node.kubernetes.io/") || gpus && t.Key == string(GPU) {
			continue
		}
		out = append(out, functions.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return out
}

// quota finds what of a quota so many replicas of a pod would exceed, if nobody else
// had anything.
func quota(name string, spec *corev1.PodSpec, replicas int, q *corev1.ResourceQuota) (Finding, bool) {
	if q.Spec.ScopeSelector != nil || len(q.Spec.Scopes) > 0 {
		return Finding{}, false // it may not be about this pod
	}
	c := spec.Containers[0].Resources
	for _, r := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		hard := q.Spec.Hard[r]
		var one resource.Quantity
		switch key := string(r); {
		case key == "cpu" || key == "memory":
			one = c.Requests[r]
		case strings.HasPrefix(key, "requests."):
			one = c.Requests[corev1.ResourceName(strings.TrimPrefix(key, "requests."))]
		case strings.HasPrefix(key, "limits."):
			one = c.Limits[corev1.ResourceName(strings.TrimPrefix(key, "limits."))]
		case key == "pods":
			one = *resource.NewQuantity(1, resource.DecimalSI)
		}
		if one.IsZero() {
			continue
		}
		hint := fmt.Sprintf("lower spec.resources or spec.scale.min; kubectl edit resourcequota %s -n %s", q.Name, q.Namespace)
		if one.Cmp(hard) > 0 {
			return bad(hint, "%s: a replica takes %s of %s, and the quota %s of namespace %s allows %s to all", name, &one, r, q.Name, q.Namespace, &hard), true
		}
		all := one.DeepCopy()
		if all.Mul(int64(replicas)); all.Cmp(hard) > 0 {
			return bad(hint, "%s: the %d replicas that stay take %s of %s, and the quota %s of namespace %s allows %s to all", name, replicas, &all, r, q.Name, q.Namespace, &hard), true
		}
	}
	return Finding{}, false
}

// Wait returns when a model can be asked for, which for one at rest means that
// Knative has taken it and routes to it. The error says why it cannot: an image that
// is not there, a quota, a controller that does not run.
func (c *Cluster) Wait(ctx context.Context, namespace, name string) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var last Model
	for {
		s, err := c.service(ctx, namespace, name)
		if err == nil && s.Status.ObservedGeneration == s.Generation {
			last = told(s)
			switch {
			case last.Ready == "True":
				return nil
			case last.Ready == "False" && last.Reason != "":
				e := &Error{Kind: Failed, What: fmt.Sprintf("%s/%s: %s: %s", namespace, name, last.Reason, last.Message), Hint: "thaw-knative get " + name + " -n " + namespace}
				if strings.Contains(last.Reason, "ContainerMissing") || strings.Contains(last.Message, "Unable to fetch image") {
					e.Hint = "--image ENGINE=IMAGE or --thaw-image IMAGE names another; spec.pod.imagePullSecrets one that is behind a password"
				}
				return e
			}
		} else if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return &Error{Kind: Late, What: fmt.Sprintf("%s/%s cannot be asked for yet (%s)", namespace, name, cmp.Or(last.Reason, "nobody has looked at it")), Hint: "thaw-knative doctor says whether thaw runs; a longer --timeout waits on"}
		case <-tick.C:
		}
	}
}
