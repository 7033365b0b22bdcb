package team

import (
	"cmp"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative/secret"
)

// Label marks the namespace of a team. deploy/kustomize/base/pod-policy.yaml restricts its
// pods.
const Label = "thaw.dev/team"

// PodAnnotation on a namespace is the default spec.pod of its models with GPUs, as YAML or
// JSON. thaw-knative deploy copies it into the Service. Changing it takes the right to
// change the namespace; the right to write Services allows the same per Service.
const PodAnnotation = Prefix + "pod"

const objectName = "thaw-team" // name of the objects in a team's namespace

type Settings struct {
	Groups   []string // the team's members as the API server knows them; may be empty
	Users    []string
	Services int    // most Knative Services it may have; 0: no limit
	System   string // thaw's namespace; "": thaw-system
	Pod      string // PodAnnotation; may be empty
	Knative  string // Knative's namespace, whose activator may reach the engines; "": only thaw may
}

// ServicesQuota is the resource of a ResourceQuota that bounds the number of a team's Knative
// Services. The controller caches them all, and a team's members can write nothing else that
// it caches.
const ServicesQuota = corev1.ResourceName("count/services.serving.knative.dev")

// DefaultServices is how many Knative Services a team may have where nothing else is asked for.
const DefaultServices = 500

// Render returns the objects of a team's namespace in an order in which they can be
// created. Empty ones are left out: a quota without limits, a binding without members.
func Render(t *functions.Team, s Settings) ([]runtime.Object, error) {
	name := t.Metadata.Name
	if bad := validation.IsDNS1123Label(name); len(bad) > 0 {
		return nil, fmt.Errorf("%.80q cannot be a namespace: lower-case letters, digits and '-'", name)
	}
	if !IsTeam(name) {
		return nil, fmt.Errorf("%q belongs to the cluster itself", name)
	}
	if s.Services < 0 {
		return nil, fmt.Errorf("%d is no number of services", s.Services)
	}
	if g := t.Spec.GPUs; g.Max < 0 || g.Guaranteed < 0 || g.Max > 0 && g.Guaranteed > g.Max {
		return nil, fmt.Errorf("%d GPUs cannot be guaranteed of %d", g.Guaranteed, g.Max)
	}
	for _, l := range Limits {
		if n := l.get(&t.Spec); n < 0 || n > maxLimit {
			return nil, fmt.Errorf("%s: %d is not a valid limit", l.Key, n)
		}
	}
	switch { // both are about Remotes
	case t.Spec.Data != "":
		return nil, errors.New("spec.data: not on Kubernetes yet; leave it out")
	case t.Spec.Limits.SpendPerDay != 0:
		return nil, errors.New("spec.limits.spendPerDay: not on Kubernetes yet; leave it out")
	}
	s.System = cmp.Or(s.System, "thaw-system")
	meta := func(object string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: object, Namespace: name, Labels: secret.Labels()}
	}
	space := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{Label: name}, Annotations: Annotations(t)}}
	if s.Pod != "" {
		space.Annotations[PodAnnotation] = s.Pod
	}
	objects := []runtime.Object{space}
	if q := quota(meta(objectName), t.Spec.GPUs.Max, s.Services); len(q.Spec.Hard) > 0 {
		objects = append(objects, q)
	}
	objects = append(objects, newSecret(name), &rbacv1.Role{
		TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"}, ObjectMeta: meta(objectName),
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"services"}, Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"}},
			{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"configurations", "revisions", "routes"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"events", "limitranges", "pods", "resourcequotas"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{name}, Verbs: []string{"get"}},
			// The Secret exists, so that members need no right to create Secrets.
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{SecretName}, Verbs: []string{"get", "list", "patch"}},
		},
	})
	if len(s.Groups)+len(s.Users) > 0 {
		b := &rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"}, ObjectMeta: meta(objectName),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: objectName},
		}
		for _, subject := range []struct {
			kind  string
			names []string
		}{{rbacv1.GroupKind, s.Groups}, {rbacv1.UserKind, s.Users}} {
			for _, n := range subject.names {
				if n == "" {
					return nil, errors.New("a group or user has no name")
				}
				b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: subject.kind, Name: n})
			}
		}
		objects = append(objects, b)
	}
	return append(objects, networkPolicy(meta(objectName), s)), nil
}

// quota bounds the GPUs and the Knative Services of a namespace; 0 is no bound.
func quota(meta metav1.ObjectMeta, gpus, services int) *corev1.ResourceQuota {
	hard := corev1.ResourceList{}
	for name, n := range map[corev1.ResourceName]int{"requests.nvidia.com/gpu": gpus, ServicesQuota: services} {
		if n > 0 {
			hard[name] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		}
	}
	return &corev1.ResourceQuota{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"}, ObjectMeta: meta,
		Spec: corev1.ResourceQuotaSpec{Hard: hard}}
}

// networkPolicy admits only thaw's parts and the team to the pods of the namespace's
// Knative Services.
func networkPolicy(meta metav1.ObjectMeta, s Settings) *networkingv1.NetworkPolicy {
	of := func(namespace string, pods *metav1.LabelSelector) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}, PodSelector: pods,
		}
	}
	part := func(component string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/part-of": "thaw", "app.kubernetes.io/component": component}}
	}
	from := []networkingv1.NetworkPolicyPeer{
		{PodSelector: &metav1.LabelSelector{}}, // the team
		of(s.System, part("activator")),
		of(s.System, part("controller")), // it probes queue-proxy
	}
	if s.Knative != "" {
		from = append(from, of(s.Knative, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "activator"}}))
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"}, ObjectMeta: meta,
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "serving.knative.dev/revision", Operator: metav1.LabelSelectorOpExists}}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: from}},
		},
	}
}

// SetLimit sets a limit of a team from the value of its annotation.
func SetLimit(t *functions.Team, key, value string) error {
	var known []string
	for _, l := range Limits {
		known = append(known, l.Key)
		if l.Key != key {
			continue
		}
		n, err := l.read(value)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		l.set(&t.Spec, n)
		return nil
	}
	if near := functions.Nearest(key, known, 1); len(near) > 0 {
		return fmt.Errorf("%.80q is not a limit; did you mean %s?", key, near[0])
	}
	return fmt.Errorf("%.80q is not a limit", key)
}
