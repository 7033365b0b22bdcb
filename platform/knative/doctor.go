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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative/schedulerhint"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

// Finding is the result of one check.
type Finding struct {
	What string `json:"what"`
	Good bool   `json:"good"`
	Note bool   `json:"note,omitempty"` // not good, but models run
	Hint string `json:"hint,omitempty"` // ends with the command that mends it, if there is one
}

// Bad reports whether the finding keeps models from running.
func (f Finding) Bad() bool { return !f.Good && !f.Note }

func goodFinding(format string, args ...any) Finding {
	return Finding{What: fmt.Sprintf(format, args...), Good: true}
}

func badFinding(hint, format string, args ...any) Finding {
	return Finding{What: fmt.Sprintf(format, args...), Hint: hint}
}

func noteFinding(hint, format string, args ...any) Finding {
	return Finding{What: fmt.Sprintf(format, args...), Note: true, Hint: hint}
}

// The versions that this project's suite runs on. Below the oldest,
// ValidatingAdmissionPolicy v1 is missing, which an installation needs.
const (
	testedKubernetes = 35 // 1.35
	oldestKubernetes = 30
	testedKnative    = 23 // 1.23
)

const (
	servingNamespace = "knative-serving" // Knative's settings are there
	podSecurity      = "pod-security.kubernetes.io/enforce"
	webhookName      = schedulerhint.Name
	controllerName   = "thaw-controller" // Deployment and Lease
	leaseExpiry      = time.Minute       // a lease not renewed for this long is free, even if clocks differ
)

const skipPreflightHint = "; --skip-preflight skips this check"

// doctor makes one run of checks and collects what they find. What the account may not
// look at is left out.
type doctor struct {
	c        *Cluster
	services []*servingv1.Service // what must run
	found    []Finding

	nodes   []corev1.Node // listed once
	visible bool          // the account may list nodes
	listed  bool

	hidden []string // what the account may not look at
}

type check = func(context.Context) error

// run makes the checks in order, up to the first that fails.
func (d *doctor) run(ctx context.Context, checks ...check) error {
	for _, check := range checks {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *doctor) add(found ...Finding) { d.found = append(d.found, found...) }

// Doctor checks whether the cluster accepts and runs what Render makes: Knative Serving
// and its settings, thaw's own parts, the nodes and the namespace; with services, also
// what those need.
func (c *Cluster) Doctor(ctx context.Context, namespace string, services ...*servingv1.Service) ([]Finding, error) {
	if _, err := c.serving.Services(c.namespace).List(ctx, metav1.ListOptions{Limit: 1}); err != nil && !status.IsForbidden(err) {
		return nil, c.WithHint(err, "Knative Services")
	}
	d := &doctor{c: c, services: services}
	d.add(goodFinding("Knative Serving answers on %s", c.host))
	err := d.run(ctx, d.checkVersions, d.checkFeatures, d.checkMetrics, d.checkInstalled, d.checkParts, d.checkClasses, d.checkPodPolicy,
		d.checkGPUs, func(ctx context.Context) error { return d.checkNamespace(ctx, namespace) }, d.checkServices, d.checkSources)
	if err == nil && len(d.hidden) > 0 {
		slices.Sort(d.hidden)
		d.add(noteFinding("an administrator's thaw doctor --to knative checks them",
			"not checked, because this account may not look at them: %s", strings.Join(slices.Compact(d.hidden), ", ")))
	}
	return d.found, err
}

// Check checks before services are applied whether they could run: what a new cluster
// lacks, and whether any node and quota could ever hold them.
func (c *Cluster) Check(ctx context.Context, services ...*servingv1.Service) error {
	d := &doctor{c: c, services: services}
	if err := d.run(ctx, d.checkFeatures, d.checkInstalled, d.checkPodSecurity, d.checkServices); err != nil {
		return err
	}
	found := slices.DeleteFunc(d.found, func(f Finding) bool { return !f.Bad() })
	switch len(found) {
	case 0:
		return nil
	case 1:
		return &kit.Error{Exit: kit.ExitUsage, What: found[0].What, Hint: found[0].Hint + skipPreflightHint}
	}
	lines := functions.ConvertAll(found, func(f Finding) string { return f.What + " (" + f.Hint + ")" })
	return &kit.Error{Exit: kit.ExitUsage, What: strings.Join(lines, "\n"), Hint: "mend each" + skipPreflightHint}
}

// ignoreForbidden returns nil for an error that only says that the account may not look.
func (c *Cluster) ignoreForbidden(err error, what string) error {
	if err == nil || status.IsForbidden(err) {
		return nil
	}
	return c.WithHint(err, what)
}

// ignoreForbidden is that of the Cluster, and notes what was not checked.
func (d *doctor) ignoreForbidden(err error, what string) error {
	if status.IsForbidden(err) {
		d.hidden = append(d.hidden, strings.TrimSuffix(what, "/"))
	}
	return d.c.ignoreForbidden(err, what)
}

func (d *doctor) checkVersions(ctx context.Context) error {
	v, err := d.c.kube.Discovery().ServerVersion()
	if err != nil {
		return d.ignoreForbidden(err, "its version")
	}
	d.add(kubernetesFinding(v.Major, v.Minor, v.GitVersion))
	controller, err := d.c.kube.AppsV1().Deployments(servingNamespace).Get(ctx, "controller", metav1.GetOptions{})
	switch {
	case isNotFound(err):
		d.add(noteFinding("kubectl get deployments -A -l app.kubernetes.io/name=knative-serving",
			"Knative's controller is not in namespace %s", servingNamespace))
	case err != nil:
		return d.ignoreForbidden(err, servingNamespace+"/controller")
	default:
		d.add(servingFinding(controller.Labels["app.kubernetes.io/version"]))
	}
	return nil
}

func kubernetesFinding(major, minor, version string) Finding {
	n, err := strconv.Atoi(strings.TrimRight(minor, "+"))
	switch {
	case err != nil || major != "1":
		return noteFinding(fmt.Sprintf("thaw is tested with 1.%d", testedKubernetes), "Kubernetes reports version %s", version)
	case n < oldestKubernetes:
		return badFinding(fmt.Sprintf("at least 1.%d: older ones have no ValidatingAdmissionPolicy; tested is 1.%d", oldestKubernetes,
			testedKubernetes), "Kubernetes is %s", version)
	case n == testedKubernetes:
		return goodFinding("Kubernetes is %s", version)
	}
	return noteFinding(fmt.Sprintf("thaw is tested with 1.%d", testedKubernetes), "Kubernetes is %s", version)
}

func servingFinding(version string) Finding {
	var major, minor int
	n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	if n == 2 && major == 1 && minor == testedKnative {
		return goodFinding("Knative Serving is %s", version)
	}
	return noteFinding(fmt.Sprintf("thaw is tested with 1.%d", testedKnative), "Knative Serving is %s", cmp.Or(version, "of unknown version"))
}

// checkFeatures checks the settings of Knative that the services need.
func (d *doctor) checkFeatures(ctx context.Context) error {
	read := map[string]*corev1.ConfigMap{}
	for _, f := range Needs(d.services...) {
		known, seen := read[f.Map]
		if !seen {
			m, err := d.c.kube.CoreV1().ConfigMaps(servingNamespace).Get(ctx, f.Map, metav1.GetOptions{})
			if status.IsForbidden(err) {
				return d.ignoreForbidden(err, servingNamespace+"/"+f.Map) // Knative's webhook checks them as well
			}
			if err != nil && !isNotFound(err) {
				return d.c.WithHint(err, servingNamespace+"/"+f.Map)
			}
			if known = m; err != nil {
				known = &corev1.ConfigMap{}
			}
			read[f.Map] = known
		}
		has, on := f.On(known.Data)
		finding := goodFinding("%s: %s is %s", f.Map, f.Key, has)
		if !on {
			finding = badFinding(f.Why+"; "+f.Patch(known.OwnerReferences...), "%s", finding.What)
		}
		d.add(finding)
	}
	return nil
}

// checkMetrics checks whether requests through Knative's own activators can be counted.
func (d *doctor) checkMetrics(ctx context.Context) error {
	const name, key = "config-observability", "metrics-protocol"
	m, err := d.c.kube.CoreV1().ConfigMaps(servingNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !isNotFound(err) {
		return d.ignoreForbidden(err, servingNamespace+"/"+name)
	}
	has := "none"
	if err == nil {
		has = cmp.Or(strings.TrimSpace(m.Data[key]), has)
	}
	if has == "prometheus" {
		d.add(goodFinding("%s: %s is %s", name, key, has))
		return nil
	}
	data, _ := json.Marshal(map[string]any{"data": map[string]string{key: "prometheus"}})
	d.add(noteFinding(fmt.Sprintf("requests through other ingresses start no model until they can be counted; kubectl patch "+
		"configmap %s -n %s --type merge -p '%s' && kubectl rollout restart deployment activator -n %s",
		name, servingNamespace, data, servingNamespace), "%s: %s is %s", name, key, has))
	return nil
}

const installCommand = "thaw-knative install --image IMAGE --wait"

// installed reports whether thaw is on the cluster, or the account may not look.
func (d *doctor) installed(ctx context.Context) (bool, error) {
	_, err := d.c.kube.AppsV1().Deployments(System).Get(ctx, controllerName, metav1.GetOptions{})
	if isNotFound(err) {
		return false, nil
	}
	return true, d.ignoreForbidden(err, System+"/"+controllerName)
}

func (d *doctor) checkInstalled(ctx context.Context) error {
	is, err := d.installed(ctx)
	if !is {
		d.add(badFinding("thaw's image is made by deploy/images; "+installCommand,
			"thaw is not installed on the cluster, so no model would start"))
	}
	return err
}

// checkParts checks thaw's Deployments and DaemonSets.
func (d *doctor) checkParts(ctx context.Context) error {
	if is, err := d.installed(ctx); err != nil || !is {
		return err // reported by checkInstalled
	}
	images := map[string]bool{}
	for _, name := range []string{controllerName, "thaw-activator"} {
		part, err := d.c.kube.AppsV1().Deployments(System).Get(ctx, name, metav1.GetOptions{})
		if isNotFound(err) {
			d.add(badFinding(installCommand, "%s is not there", name))
			continue
		} else if err != nil {
			return d.ignoreForbidden(err, System+"/"+name)
		}
		image := imageOf(&part.Spec.Template.Spec)
		images[image] = true
		d.add(partFinding(name, part.Status.AvailableReplicas, ptr.Deref(part.Spec.Replicas, 1), image))
	}
	loader, err := d.c.kube.AppsV1().DaemonSets(System).Get(ctx, loaderName, metav1.GetOptions{})
	switch {
	case isNotFound(err):
		d.add(badFinding(installCommand, "thaw-loader is not there"))
	case err != nil:
		return d.ignoreForbidden(err, System+"/"+loaderName)
	case loader.Status.DesiredNumberScheduled == 0:
		selected := labels.Set(loader.Spec.Template.Spec.NodeSelector).String() // parted by commas
		d.add(badFinding("install --loaders LABEL=VALUE selects other nodes; kubectl label node NODE "+strings.ReplaceAll(selected, ",", " "),
			"no node has a loader: none has the label %s", strings.ReplaceAll(selected, ",", ", ")))
	default:
		image := imageOf(&loader.Spec.Template.Spec)
		images[image] = true
		d.add(partFinding(loaderName, loader.Status.NumberAvailable, loader.Status.DesiredNumberScheduled, image))
	}
	switch warm, err := d.c.kube.AppsV1().DaemonSets(System).Get(ctx, "thaw-warm", metav1.GetOptions{}); {
	case isNotFound(err): // optional
	case err != nil:
		return d.ignoreForbidden(err, System+"/thaw-warm")
	case warm.Status.DesiredNumberScheduled > 0: // without a loader it has no node either, which is reported above
		f := partFinding("thaw-warm", warm.Status.NumberAvailable, warm.Status.DesiredNumberScheduled, imageOf(&warm.Spec.Template.Spec))
		if !f.Good { // models still run
			f = noteFinding("starts work without it; kubectl logs -n "+System+" daemonset/thaw-warm -c warm", "%s", f.What)
		}
		d.add(f)
	}
	if len(images) > 1 {
		d.add(noteFinding(installCommand, "thaw's parts use %d different images: %s", len(images),
			strings.Join(slices.Sorted(maps.Keys(images)), ", ")))
	}
	return nil
}

func imageOf(spec *corev1.PodSpec) string {
	if len(spec.Containers) == 0 {
		return "no image"
	}
	return spec.Containers[0].Image
}

// partFinding compares available with desired pods.
func partFinding(name string, are, asked int32, image string) Finding {
	what := fmt.Sprintf("%s: %d of %d pods available, %s", name, are, asked, image)
	hint := "kubectl get pods -n " + System
	switch {
	case are == 0:
		return badFinding(hint, "%s", what)
	case are < asked:
		return noteFinding(hint, "%s", what)
	}
	return goodFinding("%s", what)
}

// checkClasses checks the leader, the activators and the webhook.
func (d *doctor) checkClasses(ctx context.Context) error {
	logs := "kubectl logs -n " + System + " deployment/" + controllerName
	l, err := d.c.kube.CoordinationV1().Leases(System).Get(ctx, controllerName, metav1.GetOptions{})
	if err != nil && !isNotFound(err) {
		return d.ignoreForbidden(err, System+"/"+controllerName)
	}
	if err != nil {
		if is, err := d.installed(ctx); err != nil || !is {
			return err // reported by checkInstalled
		}
	}
	switch {
	case err != nil || ptr.Deref(l.Spec.HolderIdentity, "") == "" || l.Spec.RenewTime == nil:
		d.add(badFinding(logs, "class %s: no controller leads", AutoscalerClass))
	case time.Since(l.Spec.RenewTime.Time) > leaseExpiry:
		d.add(badFinding(logs, "class %s: the leader's lease was renewed %s ago, by the clock of this machine", AutoscalerClass,
			time.Since(l.Spec.RenewTime.Time).Round(time.Second)))
	default:
		holder, _, _ := strings.Cut(*l.Spec.HolderIdentity, "@")
		d.add(goodFinding("class %s: %s leads", AutoscalerClass, holder))
	}
	ready, err := d.readyAddresses(ctx, "thaw")
	switch {
	case err != nil:
		return d.ignoreForbidden(err, System+"/thaw")
	case ready == 0:
		d.add(badFinding("kubectl get pods -n "+System+" -l app.kubernetes.io/component=activator",
			"class %s: no activator is ready", IngressClass))
	default:
		d.add(goodFinding("class %s: %d activators are ready", IngressClass, ready))
	}
	w, err := d.c.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, webhookName, metav1.GetOptions{})
	if err != nil && !isNotFound(err) {
		return d.ignoreForbidden(err, webhookName)
	}
	ready, failed := d.readyAddresses(ctx, webhookName)
	const without = "pods are still created, placed by the scheduler alone; "
	switch {
	case failed != nil:
		return d.ignoreForbidden(failed, System+"/"+webhookName)
	case err != nil:
		d.add(noteFinding(without+installCommand, "the webhook %s is not registered", webhookName))
	case len(w.Webhooks) > 0 && len(w.Webhooks[0].ClientConfig.CABundle) == 0:
		d.add(noteFinding(without+"thaw-knative install, or "+schedulerhint.TrustCommand, "API servers do not trust the webhook %s", webhookName))
	case len(w.Webhooks) == 0 || ready == 0:
		d.add(noteFinding(without+logs, "the webhook %s is not served", webhookName))
	default:
		d.add(goodFinding("the webhook %s is served", webhookName))
	}
	return nil
}

// readyAddresses counts the ready addresses of one of thaw's Services.
func (d *doctor) readyAddresses(ctx context.Context, service string) (n int, err error) {
	list, err := d.c.kube.DiscoveryV1().EndpointSlices(System).List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return 0, err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) {
				n += len(e.Addresses)
			}
		}
	}
	return n, nil
}

const devicePluginHint = "GPUs appear once a device plugin reports them (nvidia.com/gpu under allocatable): kubectl describe nodes; " +
	"a pool that an autoscaler adds nodes to has to keep one, since thaw starts models on nodes that are there"

// nodes lists the cluster's nodes; seen is false if the account may not.
func (c *Cluster) nodes(ctx context.Context) (nodes []corev1.Node, seen bool, err error) {
	if err := eachItem(ctx, c.kube.CoreV1().Nodes().List, func(n *corev1.Node) { nodes = append(nodes, *n) }); err != nil {
		return nil, false, c.ignoreForbidden(err, "nodes")
	}
	return nodes, true, nil
}

// otherDevices names the devices of nodes that are no GPUs to thaw, such as those of other makers
// and slices; "" for none.
func otherDevices(nodes []corev1.Node) string {
	found := map[string]bool{}
	for _, n := range nodes {
		for name, q := range n.Status.Allocatable {
			if strings.Contains(string(name), "/") && name != GPU && q.Value() > 0 {
				found[string(name)] = true
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprintf("; they have %s, and thaw asks for %s alone", strings.Join(slices.Sorted(maps.Keys(found)), ", "), GPU)
}

// GPUsOf returns how many GPUs a node has, and the name and memory of each by the labels of
// NVIDIA's GPU feature discovery, in MiB; memory 0 is not known. A share of a time-sliced GPU
// counts as a GPU with its part of the memory.
func GPUsOf(node *corev1.Node) (count int, name string, memory functions.Bytes) {
	q := node.Status.Allocatable[GPU]
	if m, err := strconv.ParseInt(node.Labels["nvidia.com/gpu.memory"], 10, 64); err == nil && m > 0 && m < 1<<30 {
		memory = functions.Bytes(m << 20)
		shares, err := strconv.ParseInt(node.Labels["nvidia.com/gpu.replicas"], 10, 64)
		if err == nil && shares > 1 && node.Labels["nvidia.com/gpu.sharing-strategy"] != "mps" {
			memory /= functions.Bytes(shares)
		}
	}
	return int(min(max(q.Value(), 0), 1024)), node.Labels["nvidia.com/gpu.product"], memory
}

// GPUNodes returns the nodes that have GPUs; none, where the account may not look.
func (c *Cluster) GPUNodes(ctx context.Context) (found []functions.Node, err error) {
	nodes, _, err := c.nodes(ctx)
	for i := range nodes {
		if count, name, memory := GPUsOf(&nodes[i]); count > 0 {
			found = append(found, functions.Node{ID: nodes[i].Name, GPUs: slices.Repeat([]functions.GPU{{Name: name, MemoryTotal: memory}}, count)})
		}
	}
	return found, err
}

// listNodes lists the nodes, once.
func (d *doctor) listNodes(ctx context.Context) (err error) {
	if !d.listed {
		d.nodes, d.visible, err = d.c.nodes(ctx)
		if d.listed = err == nil; d.listed && !d.visible {
			d.hidden = append(d.hidden, "nodes")
		}
	}
	return err
}

func (d *doctor) checkGPUs(ctx context.Context) error {
	if err := d.listNodes(ctx); err != nil || !d.visible {
		return err
	}
	with, all := 0, int64(0)
	for _, n := range d.nodes {
		if q := n.Status.Allocatable[GPU]; q.Value() > 0 {
			with, all = with+1, all+q.Value()
		}
	}
	if all == 0 {
		d.add(noteFinding(devicePluginHint, "none of %d nodes has a GPU%s", len(d.nodes), otherDevices(d.nodes)))
	} else {
		d.add(goodFinding("%d of %d nodes have GPUs, %d in all", with, len(d.nodes), all))
	}
	return nil
}

// checkNamespace checks a namespace's pod security, annotations and quotas.
func (d *doctor) checkNamespace(ctx context.Context, namespace string) error {
	n, err := d.c.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return d.ignoreForbidden(err, namespace+"/") // a team may deploy without the right to read its namespace
	}
	d.add(podSecurityFinding(n))
	if _, err := readPodDefaults(n); err != nil {
		d.add(badFinding("kubectl annotate namespace "+namespace+" "+team.PodAnnotation+"-", "%v", err))
	} else if n.Annotations[team.PodAnnotation] != "" {
		d.add(goodFinding("namespace %s: models with GPUs get its annotation %s", namespace, team.PodAnnotation))
	}
	list, err := d.c.kube.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return d.ignoreForbidden(err, namespace+"/")
	}
	quotas := functions.ConvertAll(list.Items, func(q corev1.ResourceQuota) *corev1.ResourceQuota { return &q })
	if !slices.ContainsFunc(quotas, func(q *corev1.ResourceQuota) bool { _, bounded := q.Spec.Hard[team.ServicesQuota]; return bounded }) {
		hint := fmt.Sprintf("kubectl create quota thaw-services -n %s --hard=%s=%d", namespace, team.ServicesQuota, team.DefaultServices)
		d.add(noteFinding(hint,
			"namespace %s: nothing bounds how many Knative Services it has, all of which thaw's controller caches", namespace))
	}
	_, problems := team.FromNamespace(n, quotas)
	for _, p := range problems {
		d.add(badFinding("until then it is no limit", "namespace %s: %s", namespace, p))
	}
	if len(problems) == 0 {
		d.add(goodFinding("namespace %s: its limits read", namespace))
	}
	return nil
}

// checkPodSecurity checks the namespaces of the services.
func (d *doctor) checkPodSecurity(ctx context.Context) error {
	seen := map[string]bool{}
	for _, s := range d.services {
		if seen[s.Namespace] {
			continue
		}
		seen[s.Namespace] = true
		n, err := d.c.kube.CoreV1().Namespaces().Get(ctx, s.Namespace, metav1.GetOptions{})
		if err == nil {
			d.add(podSecurityFinding(n))
		} else if err = d.ignoreForbidden(err, s.Namespace+"/"); err != nil {
			return err
		}
	}
	return nil
}

// podSecurityFinding checks whether pods of a namespace may mount a host path. Otherwise
// Knative accepts the Service and its pods are never created.
func podSecurityFinding(n *corev1.Namespace) Finding {
	level := cmp.Or(n.Labels[podSecurity], "privileged")
	what := fmt.Sprintf("namespace %s: %s is %s", n.Name, podSecurity, level)
	if level == "privileged" {
		return goodFinding("%s", what)
	}
	return badFinding(fmt.Sprintf("it forbids the store's host path; kubectl label namespace %s %s=privileged --overwrite", n.Name,
		podSecurity), "%s", what)
}
