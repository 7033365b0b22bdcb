package knative

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bounds are what a namespace's quotas and limit ranges allow its pods.
type bounds struct {
	quotas []corev1.ResourceQuota
	ranges []corev1.LimitRange
	proxy  map[string]string // Knative's config-deployment, which gives queue-proxy its resources
}

// boundsOf reads the bounds of a namespace; those that the account may not read are left out.
func (d *doctor) boundsOf(ctx context.Context, namespace string) (*bounds, error) {
	b := new(bounds)
	quotas, err := d.c.kube.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err = d.ignoreForbidden(err, namespace+"/resourcequotas"); err != nil {
		return nil, err
	}
	ranges, err := d.c.kube.CoreV1().LimitRanges(namespace).List(ctx, metav1.ListOptions{})
	if err = d.ignoreForbidden(err, namespace+"/limitranges"); err != nil {
		return nil, err
	}
	if b.quotas, b.ranges = quotas.Items, ranges.Items; len(b.quotas) == 0 {
		return b, nil
	}
	const name = "config-deployment"
	m, err := d.c.kube.CoreV1().ConfigMaps(servingNamespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		b.proxy = m.Data
	} else if isNotFound(err) {
		err = nil
	}
	return b, d.ignoreForbidden(err, servingNamespace+"/"+name)
}

// findings checks otherwise unused bounds against the replicas of a pod.
func (b *bounds) findings(name string, spec *corev1.PodSpec, replicas int) (found []Finding) {
	for i := range b.quotas {
		q := &b.quotas[i]
		if q.Spec.ScopeSelector != nil || len(q.Spec.Scopes) > 0 {
			continue // it may not apply to this pod
		}
		if over, is := quotaFinding(name, spec, replicas, q); is {
			found = append(found, over)
		}
		if lacks, is := b.unsetFinding(name, spec, q); is {
			found = append(found, lacks)
		}
	}
	for i := range b.ranges {
		found = append(found, rangeFindings(name, spec, &b.ranges[i])...)
	}
	return found
}

// unsetFinding checks for a quota of processors or memory that every container has the amount
// that it counts, from the pod or a limit range: Kubernetes creates no other pod.
func (b *bounds) unsetFinding(name string, spec *corev1.PodSpec, q *corev1.ResourceQuota) (Finding, bool) {
	for _, key := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
		kind, resourceName, is := strings.Cut(string(key), ".")
		if !is {
			kind, resourceName = "requests", string(key)
		}
		if resourceName != "cpu" && resourceName != "memory" || kind != "requests" && kind != "limits" || b.defaults(kind, resourceName) {
			continue
		}
		var lack []string
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			list := map[string]corev1.ResourceList{"requests": c.Resources.Requests, "limits": c.Resources.Limits}[kind]
			if _, set := list[corev1.ResourceName(resourceName)]; !set {
				lack = append(lack, c.Name)
			}
		}
		setting := "queue-sidecar-" + resourceName + "-" + strings.TrimSuffix(kind, "s")
		if b.proxy[setting] == "" && setting != "queue-sidecar-cpu-request" { // which has a default
			lack = append(lack, "Knative's queue-proxy ("+setting+" in config-deployment)")
		}
		if len(lack) > 0 {
			hint := ""
			if kind == "requests" && slices.Contains(lack, "model") {
				hint = "write spec.resources." + resourceName + "; or "
			}
			field := map[string]string{"requests": "defaultRequest", "limits": "default"}[kind]
			return badFinding(hint+fmt.Sprintf("put a LimitRange with a %s for %s into the namespace, or leave %s out of the quota: "+
				"kubectl edit resourcequota %s -n %s", field, resourceName, key, q.Name, q.Namespace),
				"%s: the quota %s of namespace %s counts %s, and these containers name none, so Kubernetes would create no pod: %s",
				name, q.Name, q.Namespace, key, strings.Join(lack, ", ")), true
		}
	}
	return Finding{}, false
}

// defaults reports whether a limit range fills in what a container leaves out.
func (b *bounds) defaults(kind, name string) bool {
	return slices.ContainsFunc(b.ranges, func(r corev1.LimitRange) bool {
		return slices.ContainsFunc(r.Spec.Limits, func(i corev1.LimitRangeItem) bool {
			_, limit := i.Default[corev1.ResourceName(name)]
			_, request := i.DefaultRequest[corev1.ResourceName(name)]
			return i.Type == corev1.LimitTypeContainer && (limit || request && kind == "requests")
		})
	})
}

// defaultLimitHints says what a limit does that a LimitRange gives a container without one.
var defaultLimitHints = map[corev1.ResourceName]string{
	corev1.ResourceMemory: "its engine is killed at that limit: write spec.resources.memory",
	corev1.ResourceCPU:    "its engine is slowed down to that limit, and thaw sets none of its own: raise it, or leave its default out",
}

// rangeFindings checks the containers of a pod against a limit range.
func rangeFindings(name string, spec *corev1.PodSpec, r *corev1.LimitRange) (found []Finding) {
	from := fmt.Sprintf("the LimitRange %s of namespace %s", r.Name, r.Namespace)
	edit := fmt.Sprintf("; kubectl edit limitrange %s -n %s", r.Name, r.Namespace)
	for _, item := range r.Spec.Limits {
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			for _, key := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
				asked, least := c.Resources.Requests[key], item.Min[key]
				most, bounded := item.Max[key]
				bound := "at least " + least.String()
				if bounded {
					bound = "from " + least.String() + " to " + most.String()
				}
				if asked.Cmp(least) < 0 || bounded && asked.Cmp(most) > 0 {
					found = append(found, badFinding("write other spec.resources"+edit, "%s: container %s requests %s of %s, and %s allows %s",
						name, c.Name, &asked, key, from, bound))
				}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(item.Default)) {
			limit, c := item.Default[key], spec.Containers[0].Resources
			if _, own := c.Limits[key]; own {
				continue
			}
			if asked := c.Requests[key]; asked.Cmp(limit) > 0 {
				found = append(found, badFinding(fmt.Sprintf("write spec.resources.%s of at most %s", key, &limit)+edit,
					"%s requests %s of %s, and gets a limit of %s from %s, so Kubernetes would create no pod", name, &asked, key, &limit, from))
			} else if hint := defaultLimitHints[key]; hint != "" {
				found = append(found, noteFinding(hint+edit, "%s gets a limit of %s of %s from %s", name, &limit, key, from))
			}
		}
	}
	return found
}

// quotaFinding checks whether an otherwise unused quota allows the replicas.
func quotaFinding(name string, spec *corev1.PodSpec, replicas int, q *corev1.ResourceQuota) (Finding, bool) {
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
			return badFinding(hint, "%s: a replica requests %s of %s, and the quota %s of namespace %s allows %s in all", name, &one, r, q.Name,
				q.Namespace, &hard), true
		}
		all := one.DeepCopy()
		if all.Mul(int64(replicas)); all.Cmp(hard) > 0 {
			return badFinding(hint, "%s: the minimum of %d replicas requests %s of %s, and the quota %s of namespace %s allows %s in all", name,
				replicas, &all, r, q.Name, q.Namespace, &hard), true
		}
	}
	return Finding{}, false
}
