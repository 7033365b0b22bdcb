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

// Doctor checks whether the cluster accepts and runs what Render makes: Knative Serving
// and its settings, thaw's own parts, the nodes and the namespace; with services, also
// what those need. Checks that the account may not make are left out.
func (c *Cluster) Doctor(ctx context.Context, namespace string, services ...*servingv1.Service) ([]Finding, error) {
	if _, err := c.serving.Services(c.namespace).List(ctx, metav1.ListOptions{Limit: 1}); err != nil && !status.IsForbidden(err) {
		return nil, c.WithHint(err, "Knative Services")
	}
	checks := []check{
		c.versionFindings,
		func(ctx context.Context) ([]Finding, error) { return c.featureFindings(ctx, Needs(services...)) },
		c.foreignIngress, c.partFindings, c.leaderAndClasses, c.podPolicyFindings, c.gpuFindings,
		func(ctx context.Context) ([]Finding, error) { return c.namespaceFindings(ctx, namespace) },
	}
	fit := fitChecker{c: c}
	for _, s := range services {
		checks = append(checks, func(ctx context.Context) ([]Finding, error) { return fit.checkService(ctx, s) })
	}
	checks = append(checks, func(ctx context.Context) ([]Finding, error) { return c.sourceFindings(ctx, services) })
	found, err := runChecks(ctx, checks)
	return append([]Finding{goodFinding("Knative Serving answers on %s", c.host)}, found...), err
}

type check = func(context.Context) ([]Finding, error)

// runChecks returns what the checks find, up to the first that fails.
func runChecks(ctx context.Context, checks []check) (found []Finding, err error) {
	for _, check := range checks {
		more, err := check(ctx)
		if err != nil {
			return found, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// Check checks before services are applied whether they could run: what a new cluster
// lacks, and whether any node and quota could ever hold them. Checks that the account may
// not make are left out.
func (c *Cluster) Check(ctx context.Context, services ...*servingv1.Service) error {
	checks := []check{
		func(ctx context.Context) ([]Finding, error) { return c.featureFindings(ctx, Needs(services...)) },
		c.notInstalled,
	}
	seen, fit := map[string]bool{}, fitChecker{c: c}
	for _, s := range services {
		if !seen[s.Namespace] {
			seen[s.Namespace] = true
			checks = append(checks, func(ctx context.Context) ([]Finding, error) { return c.podSecurity(ctx, s.Namespace) })
		}
		checks = append(checks, func(ctx context.Context) ([]Finding, error) { return fit.checkService(ctx, s) })
	}
	found, err := runChecks(ctx, checks)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(f Finding) bool { return !f.Bad() })
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

func (c *Cluster) versionFindings(ctx context.Context) ([]Finding, error) {
	v, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		return nil, c.ignoreForbidden(err, "its version")
	}
	found := []Finding{kubernetesFinding(v.Major, v.Minor, v.GitVersion)}
	d, err := c.kube.AppsV1().Deployments(servingNamespace).Get(ctx, "controller", metav1.GetOptions{})
	if err != nil {
		if isNotFound(err) {
			return append(found, noteFinding("kubectl get deployments -A -l app.kubernetes.io/name=knative-serving",
				"Knative's controller is not in namespace %s", servingNamespace)), nil
		}
		return found, c.ignoreForbidden(err, servingNamespace+"/controller")
	}
	return append(found, servingFinding(d.Labels["app.kubernetes.io/version"])), nil
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

func (c *Cluster) featureFindings(ctx context.Context, needs []Feature) (found []Finding, err error) {
	read := map[string]map[string]string{}
	for _, f := range needs {
		data, seen := read[f.Map]
		if !seen {
			m, err := c.core.ConfigMaps(servingNamespace).Get(ctx, f.Map, metav1.GetOptions{})
			if status.IsForbidden(err) {
				return found, nil // Knative's webhook checks them as well
			}
			if err != nil && !isNotFound(err) {
				return found, c.WithHint(err, servingNamespace+"/"+f.Map)
			}
			if err == nil {
				data = m.Data
			}
			read[f.Map] = data
		}
		has, on := f.On(data)
		finding := goodFinding("%s: %s is %s", f.Map, f.Key, has)
		if !on {
			finding = badFinding(f.Why+"; "+f.Patch(), "%s", finding.What)
		}
		found = append(found, finding)
	}
	return found, nil
}

// foreignIngress checks whether requests through Knative's own activators can be counted.
func (c *Cluster) foreignIngress(ctx context.Context) ([]Finding, error) {
	const name, key = "config-observability", "metrics-protocol"
	m, err := c.core.ConfigMaps(servingNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !isNotFound(err) {
		return nil, c.ignoreForbidden(err, servingNamespace+"/"+name)
	}
	has := "none"
	if err == nil {
		has = cmp.Or(strings.TrimSpace(m.Data[key]), has)
	}
	if has == "prometheus" {
		return []Finding{goodFinding("%s: %s is %s", name, key, has)}, nil
	}
	data, _ := json.Marshal(map[string]any{"data": map[string]string{key: "prometheus"}})
	return []Finding{noteFinding(fmt.Sprintf("requests through other ingresses start no model until they can be counted; kubectl patch "+
		"configmap %s -n %s --type merge -p '%s' && kubectl rollout restart deployment activator -n %s",
		name, servingNamespace, data, servingNamespace), "%s: %s is %s", name, key, has)}, nil
}

const installCommand = "thaw-knative install --image IMAGE --wait"

// notInstalled returns a finding if thaw is not installed.
func (c *Cluster) notInstalled(ctx context.Context) ([]Finding, error) {
	_, err := c.kube.AppsV1().Deployments(System).Get(ctx, controllerName, metav1.GetOptions{})
	if isNotFound(err) {
		return []Finding{badFinding("thaw's image is made by deploy/images; "+installCommand, "thaw is not installed on the cluster, so no model would start")}, nil
	}
	return nil, c.ignoreForbidden(err, System+"/"+controllerName)
}

// partFindings checks thaw's Deployments and DaemonSets.
func (c *Cluster) partFindings(ctx context.Context) ([]Finding, error) {
	missing, err := c.notInstalled(ctx)
	if err != nil || len(missing) > 0 {
		return missing, err
	}
	var found []Finding
	images := map[string]bool{}
	for _, name := range []string{controllerName, "thaw-activator"} {
		d, err := c.kube.AppsV1().Deployments(System).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !isNotFound(err) {
			return found, c.ignoreForbidden(err, System+"/"+name)
		}
		if err != nil {
			found = append(found, badFinding(installCommand, "%s is not there", name))
			continue
		}
		image := imageOf(&d.Spec.Template.Spec)
		images[image] = true
		found = append(found, partFinding(name, d.Status.AvailableReplicas, ptr.Deref(d.Spec.Replicas, 1), image))
	}
	d, err := c.kube.AppsV1().DaemonSets(System).Get(ctx, "thaw-loader", metav1.GetOptions{})
	switch {
	case isNotFound(err):
		found = append(found, badFinding(installCommand, "thaw-loader is not there"))
	case err != nil:
		return found, c.ignoreForbidden(err, System+"/thaw-loader")
	case d.Status.DesiredNumberScheduled == 0:
		selected := labels.Set(d.Spec.Template.Spec.NodeSelector).String() // parted by commas
		found = append(found,
			badFinding("install --loaders LABEL=VALUE selects other nodes; kubectl label node NODE "+strings.ReplaceAll(selected, ",", " "),
				"no node has a loader: none has the label %s", strings.ReplaceAll(selected, ",", ", ")))
	default:
		image := imageOf(&d.Spec.Template.Spec)
		images[image] = true
		found = append(found, partFinding("thaw-loader", d.Status.NumberAvailable, d.Status.DesiredNumberScheduled, image))
	}
	switch warm, err := c.kube.AppsV1().DaemonSets(System).Get(ctx, "thaw-warm", metav1.GetOptions{}); {
	case isNotFound(err): // optional
	case err != nil:
		return found, c.ignoreForbidden(err, System+"/thaw-warm")
	case warm.Status.DesiredNumberScheduled > 0: // without a loader it has no node either, which is reported above
		f := partFinding("thaw-warm", warm.Status.NumberAvailable, warm.Status.DesiredNumberScheduled, imageOf(&warm.Spec.Template.Spec))
		if !f.Good { // models still run
			f = noteFinding("starts work without it; kubectl logs -n "+System+" daemonset/thaw-warm -c warm", "%s", f.What)
		}
		found = append(found, f)
	}
	if len(images) > 1 {
		found = append(found,
			noteFinding(installCommand, "thaw's parts use %d different images: %s", len(images),
				strings.Join(slices.Sorted(maps.Keys(images)), ", ")))
	}
	return found, nil
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

// leaderAndClasses checks the leader, the activators and the webhook.
func (c *Cluster) leaderAndClasses(ctx context.Context) ([]Finding, error) {
	logs := "kubectl logs -n " + System + " deployment/" + controllerName
	l, err := c.kube.CoordinationV1().Leases(System).Get(ctx, controllerName, metav1.GetOptions{})
	if err != nil && !isNotFound(err) {
		return nil, c.ignoreForbidden(err, System+"/"+controllerName)
	}
	var found []Finding
	switch {
	case err != nil:
		if missing, err := c.notInstalled(ctx); err != nil || len(missing) > 0 {
			return nil, err // reported by partFindings
		}
		found = append(found, badFinding(logs, "class %s: no controller leads", AutoscalerClass))
	case ptr.Deref(l.Spec.HolderIdentity, "") == "" || l.Spec.RenewTime == nil:
		found = append(found, badFinding(logs, "class %s: no controller leads", AutoscalerClass))
	case time.Since(l.Spec.RenewTime.Time) > leaseExpiry:
		found = append(found,
			badFinding(logs, "class %s: the leader's lease was renewed %s ago, by the clock of this machine", AutoscalerClass,
				time.Since(l.Spec.RenewTime.Time).Round(time.Second)))
	default:
		holder, _, _ := strings.Cut(*l.Spec.HolderIdentity, "@")
		found = append(found, goodFinding("class %s: %s leads", AutoscalerClass, holder))
	}
	ready, err := c.readyAddresses(ctx, "thaw")
	switch {
	case err != nil:
		return found, c.ignoreForbidden(err, System+"/thaw")
	case ready == 0:
		found = append(found,
			badFinding("kubectl get pods -n "+System+" -l app.kubernetes.io/component=activator", "class %s: no activator is ready", IngressClass))
	default:
		found = append(found, goodFinding("class %s: %d activators are ready", IngressClass, ready))
	}
	w, err := c.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, webhookName, metav1.GetOptions{})
	if err != nil && !isNotFound(err) {
		return found, c.ignoreForbidden(err, webhookName)
	}
	ready, failed := c.readyAddresses(ctx, webhookName)
	const without = "pods are still created, placed by the scheduler alone; "
	switch {
	case failed != nil:
		return found, c.ignoreForbidden(failed, System+"/"+webhookName)
	case err != nil:
		found = append(found, noteFinding(without+installCommand, "the webhook %s is not registered", webhookName))
	case len(w.Webhooks) > 0 && len(w.Webhooks[0].ClientConfig.CABundle) == 0:
		found = append(found,
			noteFinding(without+"thaw-knative install, or "+schedulerhint.TrustCommand, "API servers do not trust the webhook %s", webhookName))
	case len(w.Webhooks) == 0 || ready == 0:
		found = append(found, noteFinding(without+logs, "the webhook %s is not served", webhookName))
	default:
		found = append(found, goodFinding("the webhook %s is served", webhookName))
	}
	return found, nil
}

// readyAddresses counts the ready addresses of one of thaw's Services.
func (c *Cluster) readyAddresses(ctx context.Context, service string) (n int, err error) {
	list, err := c.kube.DiscoveryV1().EndpointSlices(System).List(ctx,
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

const devicePluginHint = "GPUs appear once a device plugin reports them (nvidia.com/gpu under allocatable); kubectl describe nodes"

// nodes lists the cluster's nodes; seen is false if the account may not.
func (c *Cluster) nodes(ctx context.Context) (nodes []corev1.Node, seen bool, err error) {
	if err := eachItem(ctx, c.core.Nodes().List, func(n *corev1.Node) { nodes = append(nodes, *n) }); err != nil {
		return nil, false, c.ignoreForbidden(err, "nodes")
	}
	return nodes, true, nil
}

// GPUsOf returns how many GPUs a node has, and the name and memory of each by the labels of
// NVIDIA's GPU feature discovery, in MiB; memory 0 is not known.
func GPUsOf(node *corev1.Node) (count int, name string, memory functions.Bytes) {
	q := node.Status.Allocatable[GPU]
	if m, err := strconv.ParseInt(node.Labels["nvidia.com/gpu.memory"], 10, 64); err == nil && m > 0 && m < 1<<30 {
		memory = functions.Bytes(m << 20)
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

func (c *Cluster) gpuFindings(ctx context.Context) ([]Finding, error) {
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
		return []Finding{noteFinding(devicePluginHint, "none of %d nodes has a GPU", len(nodes))}, nil
	}
	return []Finding{goodFinding("%d of %d nodes have GPUs, %d in all", with, len(nodes), all)}, nil
}

func (c *Cluster) namespaceFindings(ctx context.Context, namespace string) ([]Finding, error) {
	n, err := c.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, c.ignoreForbidden(err, namespace+"/") // a team may deploy without the right to read its namespace
	}
	found := []Finding{podSecurityFinding(n)}
	if _, err := readPodDefaults(n); err != nil {
		found = append(found, badFinding("kubectl annotate namespace "+namespace+" "+PodAnnotation+"-", "%v", err))
	} else if n.Annotations[PodAnnotation] != "" {
		found = append(found, goodFinding("namespace %s: models with GPUs get its annotation %s", namespace, PodAnnotation))
	}
	limits, err := c.limits(ctx, n)
	return append(found, limits...), err
}

func (c *Cluster) podSecurity(ctx context.Context, namespace string) ([]Finding, error) {
	n, err := c.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, c.ignoreForbidden(err, namespace+"/")
	}
	return []Finding{podSecurityFinding(n)}, nil
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
