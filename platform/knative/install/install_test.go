package install

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/schedulerhint"
)

func objects(t *testing.T, o Options) []*unstructured.Unstructured {
	t.Helper()
	o.Image = cmp.Or(o.Image, "example.com/thaw:1")
	all, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// as decodes an object strictly: a field that Kubernetes does not know is an error.
func as[T any](t *testing.T, x *unstructured.Unstructured) *T {
	t.Helper()
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(x.Object, into, true); err != nil {
		t.Fatalf("%s: %v", Name(x), err)
	}
	return into
}

// TestPullPolicy: no container names a pull policy, so that Kubernetes pulls the tag latest
// anew and any other once. A fixed policy would leave nodes with different programs under
// one moving tag.
func TestPullPolicy(t *testing.T) {
	containers := 0
	for _, x := range objects(t, Options{Image: "example.com/thaw:latest", Warm: "example.com/vllm:latest"}) {
		var pod corev1.PodSpec
		switch x.GetKind() {
		case "Deployment":
			pod = as[appsv1.Deployment](t, x).Spec.Template.Spec
		case "DaemonSet":
			pod = as[appsv1.DaemonSet](t, x).Spec.Template.Spec
		}
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			if containers++; c.ImagePullPolicy != "" {
				t.Errorf("%s, container %s: imagePullPolicy: %s", Name(x), c.Name, c.ImagePullPolicy)
			}
		}
	}
	if containers < 6 {
		t.Errorf("only %d containers seen", containers)
	}
}

// TestKinds: every object has a known kind and known fields, and none is a Secret.
func TestKinds(t *testing.T) {
	for _, x := range objects(t, Options{}) {
		switch x.GetKind() {
		case "Namespace":
			as[corev1.Namespace](t, x)
		case "ServiceAccount":
			if s := as[corev1.ServiceAccount](t, x); s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken {
				t.Errorf("%s: its token goes into every pod", Name(x))
			}
		case "Service":
			as[corev1.Service](t, x)
		case "Deployment":
			as[appsv1.Deployment](t, x)
		case "DaemonSet":
			as[appsv1.DaemonSet](t, x)
		case "PodDisruptionBudget":
			as[policyv1.PodDisruptionBudget](t, x)
		case "NetworkPolicy":
			as[networkingv1.NetworkPolicy](t, x)
		case "ClusterRole":
			as[rbacv1.ClusterRole](t, x)
		case "ClusterRoleBinding":
			as[rbacv1.ClusterRoleBinding](t, x)
		case "Role":
			as[rbacv1.Role](t, x)
		case "RoleBinding":
			as[rbacv1.RoleBinding](t, x)
		case "MutatingWebhookConfiguration":
			// The webhook is called only for pods of models.
			for _, w := range as[admissionv1.MutatingWebhookConfiguration](t, x).Webhooks {
				if w.FailurePolicy == nil || *w.FailurePolicy != admissionv1.Ignore || w.TimeoutSeconds == nil || *w.TimeoutSeconds > 2 ||
					w.ObjectSelector == nil || !slices.ContainsFunc(w.ObjectSelector.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
					return e.Key == knative.ModelLabel && e.Operator == metav1.LabelSelectorOpExists
				}) || len(w.Rules) != 1 || !slices.Equal(w.Rules[0].Resources, []string{"pods"}) || !slices.Equal(w.Rules[0].Operations, []admissionv1.OperationType{admissionv1.Create}) {
					t.Errorf("%s stands in the way: %+v", Name(x), w)
				}
				if c := w.ClientConfig.Service; c == nil || c.Name != schedulerhint.Name || x.GetName() != schedulerhint.Name ||
					c.Namespace != Namespace || len(w.ClientConfig.CABundle) > 0 {
					t.Errorf("%s leads elsewhere: %+v", Name(x), w.ClientConfig)
				}
			}
		case "ValidatingAdmissionPolicy":
			as[admissionv1.ValidatingAdmissionPolicy](t, x)
		case "ValidatingAdmissionPolicyBinding":
			as[admissionv1.ValidatingAdmissionPolicyBinding](t, x)
		default:
			t.Errorf("%s is of an unexpected kind", Name(x))
		}
		if x.GetLabels()["app.kubernetes.io/part-of"] != "thaw" {
			t.Errorf("%s does not say that it is part of thaw", Name(x))
		}
	}
}

// TestRights: the rights in the files equal the list, for the listed account only.
func TestRights(t *testing.T) {
	roles := map[string][]rbacv1.PolicyRule{}
	all := objects(t, Options{})
	for _, x := range all {
		switch x.GetKind() {
		case "ClusterRole":
			r := as[rbacv1.ClusterRole](t, x)
			if r.AggregationRule != nil {
				t.Errorf("%s takes rules from others", r.Name)
			}
			roles["*/"+r.Name] = r.Rules
		case "Role":
			roles[x.GetNamespace()+"/"+x.GetName()] = as[rbacv1.Role](t, x).Rules
		}
	}
	granted := map[Right]bool{}
	bound := func(where string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		if len(subjects) != 1 || subjects[0] != (rbacv1.Subject{Kind: "ServiceAccount", Name: "thaw-controller", Namespace: Namespace}) {
			t.Errorf("%s is bound to %v: it is the controller's alone", ref.Name, subjects)
		}
		key := where + "/" + ref.Name
		rules, ok := roles[key]
		if !ok {
			t.Errorf("%s %s is bound, and is not there or bound already", ref.Kind, key)
		}
		delete(roles, key)
		for _, r := range rules {
			if len(r.NonResourceURLs) > 0 {
				t.Errorf("%s grants %v", key, r.NonResourceURLs)
			}
			names := r.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, name := range names {
						for _, verb := range r.Verbs {
							granted[Right{Where: where, Group: group, Resource: resource, Name: name, Verb: verb}] = true
						}
					}
				}
			}
		}
	}
	for _, x := range all {
		switch x.GetKind() {
		case "ClusterRoleBinding":
			b := as[rbacv1.ClusterRoleBinding](t, x)
			bound("*", b.RoleRef, b.Subjects)
		case "RoleBinding":
			b := as[rbacv1.RoleBinding](t, x)
			if b.RoleRef.Kind != "Role" {
				t.Errorf("%s/%s binds a %s", b.Namespace, b.Name, b.RoleRef.Kind)
			}
			bound(b.Namespace, b.RoleRef, b.Subjects)
		}
	}
	for key := range roles {
		t.Errorf("role %s is not bound", key)
	}
	for _, r := range Rights {
		if r.Why == "" {
			t.Errorf("%+v has no reason", r)
		}
		for _, s := range []string{r.Verb, r.Resource, r.Group} {
			if strings.Contains(s, "*") {
				t.Errorf("%+v is anything", r)
			}
		}
		r.Why = ""
		if !granted[r] {
			t.Errorf("%+v is listed, and not granted (or listed twice)", r)
		}
		delete(granted, r)
	}
	for r := range granted {
		t.Errorf("%+v is granted, and has no reason in Rights", r)
	}
	// RBAC allows any patch of Deployments and pods and the deletion of any pod;
	// policies limit that to what the controller does.
	for _, r := range Rights {
		name := map[string]string{"deployments patch": "thaw-scale", "pods patch": "thaw-force-delete", "pods delete": "thaw-force-delete"}[r.Resource+" "+r.Verb]
		if name == "" {
			if slices.Contains([]string{"patch", "delete"}, r.Verb) && r.Name == "" && r.Resource != "events" {
				t.Errorf("%+v is of all there are, and bounded by no policy", r)
			}
			continue
		}
		operation := map[string]admissionv1.OperationType{"patch": admissionv1.Update, "delete": admissionv1.Delete}[r.Verb]
		policy, bound := false, false
		for _, x := range all {
			switch {
			case x.GetName() != name:
			case x.GetKind() == "ValidatingAdmissionPolicy":
				p := as[admissionv1.ValidatingAdmissionPolicy](t, x).Spec
				policy = p.FailurePolicy != nil && *p.FailurePolicy == admissionv1.Fail && p.MatchConstraints != nil &&
					len(p.MatchConstraints.ResourceRules) == 1 &&
					p.MatchConstraints.NamespaceSelector == nil && p.MatchConstraints.ObjectSelector == nil &&
					len(p.MatchConstraints.ExcludeResourceRules) == 0 && len(p.MatchConditions) == 1 &&
					p.MatchConditions[0].Expression == `request.userInfo.username == "system:serviceaccount:`+Namespace+`:thaw-controller"` &&
					slices.Equal(p.MatchConstraints.ResourceRules[0].APIGroups, []string{r.Group}) &&
					slices.Contains(p.MatchConstraints.ResourceRules[0].Operations, operation) &&
					slices.Contains(p.MatchConstraints.ResourceRules[0].Resources, r.Resource)
			case x.GetKind() == "ValidatingAdmissionPolicyBinding":
				b := as[admissionv1.ValidatingAdmissionPolicyBinding](t, x).Spec
				bound = b.PolicyName == name && slices.Equal(b.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) && b.MatchResources == nil
			}
		}
		if !policy || !bound || !strings.Contains(r.Why, "the policy "+name) {
			t.Errorf("%+v is bounded by no policy, or does not say by which", r)
		}
	}
	// These rights must never be added.
	for _, r := range Rights {
		// Policies do not apply to these objects, and with a webhook's registration the
		// controller could change any object of the cluster.
		if r.Group == "admissionregistration.k8s.io" && r.Verb != "get" {
			t.Errorf("%+v leads to every right of the cluster", r)
		}
		if r.Where == "*" && r.Resource == "secrets" && r.Name == "" {
			t.Errorf("%+v: all Secrets of the cluster", r)
		}
		if slices.Contains([]string{"impersonate", "escalate", "bind"}, r.Verb) || r.Group == "rbac.authorization.k8s.io" || r.Resource == "pods/exec" || r.Verb == "create" && r.Resource == "pods" {
			t.Errorf("%+v lets the controller impersonate", r)
		}
	}
}

// TestPodPolicy: thaw-pods applies to all pods of teams' namespaces, and to pods of Knative
// Services in all others but those that are opted out; the pods of models pass it.
func TestPodPolicy(t *testing.T) {
	selectors := map[string]string{}
	for _, x := range objects(t, Options{}) {
		switch x.GetKind() {
		case "ValidatingAdmissionPolicy":
			if p := as[admissionv1.ValidatingAdmissionPolicy](t, x).Spec; x.GetName() == "thaw-pods" &&
				(p.MatchConstraints.NamespaceSelector != nil || p.MatchConstraints.ObjectSelector != nil || *p.FailurePolicy != admissionv1.Fail ||
					// An update changes nothing that is judged, but for ephemeral containers.
					len(p.MatchConditions) != 1 || p.MatchConditions[0].Expression != `request.operation == "CREATE" || has(request.subResource) && request.subResource == "ephemeralcontainers"`) {
				t.Errorf("it leaves pods out: %+v", p)
			}
		case "ValidatingAdmissionPolicyBinding":
			if b := as[admissionv1.ValidatingAdmissionPolicyBinding](t, x).Spec; b.PolicyName == "thaw-pods" {
				namespaces, err := metav1.LabelSelectorAsSelector(b.MatchResources.NamespaceSelector)
				if err != nil || !slices.Equal(b.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
					t.Fatal(err, b.ValidationActions)
				}
				pods, err := metav1.LabelSelectorAsSelector(cmp.Or(b.MatchResources.ObjectSelector, &metav1.LabelSelector{}))
				if err != nil {
					t.Fatal(err)
				}
				selectors[x.GetName()] = namespaces.String() + "; " + pods.String()
			}
		}
	}
	if want := map[string]string{
		"thaw-pods-of-teams":    "thaw.dev/team; ",
		"thaw-pods-of-services": "thaw.dev/pod-policy notin (off),!thaw.dev/team; serving.knative.dev/revision",
	}; !reflect.DeepEqual(selectors, want) {
		t.Errorf("%q", selectors)
	}
}

// TestLocked: containers have no privileges beyond the listed ones.
func TestLocked(t *testing.T) {
	for _, x := range objects(t, Options{}) {
		var pod corev1.PodSpec
		switch x.GetKind() {
		case "Deployment":
			pod = as[appsv1.Deployment](t, x).Spec.Template.Spec
		case "DaemonSet":
			pod = as[appsv1.DaemonSet](t, x).Spec.Template.Spec
		default:
			continue
		}
		s := pod.SecurityContext
		if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 || s.SeccompProfile == nil ||
			s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: the pod is %+v", Name(x), s)
		}
		loader := x.GetName() == "thaw-loader"
		if pod.HostNetwork || pod.HostIPC || pod.HostPID != loader {
			t.Errorf("%s is in the host's namespaces", Name(x))
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken != (x.GetName() == "thaw-controller") {
			t.Errorf("%s: token of Kubernetes: %v", Name(x), pod.AutomountServiceAccountToken)
		}
		for _, v := range pod.Volumes {
			if v.HostPath != nil && !(loader && v.HostPath.Path == "/var/lib/thaw") {
				t.Errorf("%s has %s of the host", Name(x), v.HostPath.Path)
			}
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			s := c.SecurityContext
			if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil ||
				*s.AllowPrivilegeEscalation ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.Privileged != nil {
				t.Errorf("%s: container %s is %+v", Name(x), c.Name, s)
				continue
			}
			root := s.RunAsUser != nil && *s.RunAsUser == 0
			if root != (c.Name == "chown-store") || (len(s.Capabilities.Add) > 0) != root || root && !slices.Equal(s.Capabilities.Add, []corev1.Capability{"CHOWN"}) {
				t.Errorf("%s: container %s is root: %v, with %v", Name(x), c.Name, root, s.Capabilities.Add)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() ||
				c.Resources.Limits.Memory().IsZero() && c.Name != "loader" { // a loader's memory is mostly page cache
				t.Errorf("%s: container %s says not what it takes: %+v", Name(x), c.Name, c.Resources)
			}
			if c.Image != "example.com/thaw:1" {
				t.Errorf("%s: container %s runs %s", Name(x), c.Name, c.Image)
			}
		}
	}
}

// TestWarm: the warm host is installed if its image is named, with the listed rights only.
func TestWarm(t *testing.T) {
	for _, x := range objects(t, Options{}) {
		if x.GetName() == "thaw-warm" {
			t.Fatal("it is on")
		}
	}
	var found *appsv1.DaemonSet
	for _, x := range objects(t, Options{Warm: "example.com/vllm:1", Loaders: map[string]string{"a": "b"}, Store: "/mnt/thaw"}) {
		switch {
		case x.GetName() != "thaw-warm":
		case x.GetKind() == "DaemonSet":
			found = as[appsv1.DaemonSet](t, x)
		default:
			if p := as[networkingv1.NetworkPolicy](t, x); len(p.Spec.PolicyTypes) != 2 || len(p.Spec.Ingress)+len(p.Spec.Egress) > 0 {
				t.Errorf("it may speak: %+v", p.Spec)
			}
		}
	}
	if found == nil {
		t.Fatal("it is not there")
	}
	pod := found.Spec.Template.Spec
	if pod.HostNetwork || pod.HostIPC || !pod.HostPID || *pod.AutomountServiceAccountToken || pod.NodeSelector["a"] != "b" ||
		len(pod.Containers) != 1 || len(pod.InitContainers) != 1 {
		t.Errorf("%+v", pod)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && v.HostPath.Path != "/mnt/thaw/sockets" {
			t.Errorf("it has %s of the host", v.HostPath.Path)
		}
	}
	if c := pod.InitContainers[0]; c.Image != "example.com/thaw:1" || !*c.SecurityContext.RunAsNonRoot ||
		len(c.SecurityContext.Capabilities.Add) > 0 {
		t.Errorf("%+v", c)
	}
	c := pod.Containers[0]
	s := c.SecurityContext
	if c.Image != "example.com/vllm:1" || !slices.Contains(c.Args, "--sockets=/mnt/thaw/sockets") || s.Privileged != nil ||
		!*s.ReadOnlyRootFilesystem || s.SeccompProfile.Type != corev1.SeccompProfileTypeUnconfined ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!slices.Equal(s.Capabilities.Add, []corev1.Capability{"SYS_ADMIN", "SYS_PTRACE", "SYS_CHROOT", "SETUID", "SETGID", "SETPCAP", "KILL", "DAC_OVERRIDE"}) {
		t.Errorf("%+v", c)
	}
}

// TestOptions: each option changes only its own lines.
func TestOptions(t *testing.T) {
	lines := func(o Options) []string {
		all := objects(t, o)
		b, err := knative.ObjectsYAML(all...)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(all, again) {
			t.Errorf("%+v: written and read, it is another", o)
		}
		return strings.Split(string(b), "\n")
	}
	plain := lines(Options{})
	for _, x := range []struct {
		name string
		o    Options
		want string // removed and added lines, in order
	}{
		{"image", Options{Image: "dev.local/thaw:test"}, strings.Repeat("-image: example.com/thaw:1 +image: dev.local/thaw:test ", 5)},
		{"controllers", Options{Controllers: 1}, "-replicas: 2 +replicas: 1 "},
		{"activators", Options{Activators: 3}, "-replicas: 2 +replicas: 3 "},
		{"all nodes", Options{Loaders: map[string]string{}}, `-nvidia.com/gpu.present: "true" +kubernetes.io/os: linux `},
		{"a pool", Options{Loaders: map[string]string{"agentpool": "gpu"}}, `-nvidia.com/gpu.present: "true" +agentpool: gpu `},
		{"store", Options{Store: "/mnt/thaw"}, `-|| v.hostPath.path == "/var/lib/thaw/sockets")' +|| v.hostPath.path == "/mnt/thaw/sockets")' -message: a pod mounts no folder of its node but that of the loader's socket, /var/lib/thaw/sockets +message: a pod mounts no folder of its node but that of the loader's socket, /mnt/thaw/sockets ` +
			"-- --store=/var/lib/thaw +- --store=/mnt/thaw -- mountPath: /var/lib/thaw +- mountPath: /mnt/thaw -- /var/lib/thaw +- /mnt/thaw -- " +
			"mountPath: /var/lib/thaw +- mountPath: /mnt/thaw -path: /var/lib/thaw +path: /mnt/thaw "},
		{"controller", Options{Controller: []string{"--eviction=lfu", "--prewarm=on"}}, "+- --eviction=lfu +- --prewarm=on "},
		{"activator", Options{Activator: []string{"--hold=503"}}, "+- --hold=503 "},
		{"history", Options{History: "past"}, "+- --data=/history +- mountPath: /history +name: history +- name: history +persistentVolumeClaim: +claimName: past "},
		{"sources", Options{Sources: "buckets"}, "-name: thaw-sources +name: buckets -secretName: thaw-sources +secretName: buckets "},
		{"expose", Options{Expose: true}, "-type: ClusterIP +type: LoadBalancer "},
	} {
		if got := changes(plain, lines(x.o)); got != x.want {
			t.Errorf("%s: it changes\n%s\nand should\n%s", x.name, got, x.want)
		}
	}
	for _, o := range []Options{{}, {Image: "x", Store: "a"}, {Image: "x", Store: "/"}, {Image: "x", Store: "/a/../b"}, {Image: "x", History: "a/b"}} {
		if _, err := Objects(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// changes returns the differences between two similar texts, by line.
func changes(old, now []string) string {
	var out strings.Builder
	for len(old) > 0 || len(now) > 0 {
		switch {
		case len(old) > 0 && len(now) > 0 && old[0] == now[0]:
			old, now = old[1:], now[1:]
			continue
		case len(old) > 0 && (len(now) == 0 || len(old) >= len(now)):
			fmt.Fprintf(&out, "-%s ", strings.TrimSpace(old[0]))
			old = old[1:]
		default:
			fmt.Fprintf(&out, "+%s ", strings.TrimSpace(now[0]))
			now = now[1:]
		}
	}
	return out.String()
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]int{
		"":                      0,
		"# nothing\n---\n---\n": 0,
		"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: b}\n": 2,
		"apiVersion: v1\nkind: Secret\n": -1,
		"kind: Secret\nkind: Secret\n":   -1,
		"a: [":                           -1,
	} {
		got, err := Decode([]byte(text))
		if (err != nil) != (want < 0) || err == nil && len(got) != want {
			t.Errorf("%q: %d objects, %v", text, len(got), err)
		}
	}
}

// TestAzure: the DaemonSet of deploy/azure has valid fields and a valid script.
func TestAzure(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/azure/disk.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := Decode(text)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	set := as[appsv1.DaemonSet](t, all[0])
	command := set.Spec.Template.Spec.InitContainers[0].Command
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh")
	}
	if out, err := exec.CommandContext(t.Context(), sh, "-n", "-c", command[len(command)-1]).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if set.Spec.Template.Spec.NodeSelector["kubernetes.azure.com/agentpool"] != "gpu" {
		t.Error("it runs elsewhere than the loader")
	}
}

// TestPodProblem: the reason why a pod does not run is that of its node or of the scheduler.
func TestPodProblem(t *testing.T) {
	for want, status := range map[string]string{
		"pod p: 1 Insufficient cpu":               `{"conditions": [{"type": "PodScheduled", "status": "False", "message": "1 Insufficient cpu"}]}`,
		"pod p: chown-store: no such image":       `{"initContainerStatuses": [{"name": "chown-store", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}`,
		"pod p: c ended with exit code 2 (Error)": `{"containerStatuses": [{"name": "c", "ready": false, "state": {"waiting": {"reason": "x"}}, "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}}}]}`,
		"": `{"conditions": [{"type": "PodScheduled", "status": "True"}], "containerStatuses": [{"name": "c", "ready": true, "lastState": {"terminated": {"exitCode": 1}}}]}`,
	} {
		pod, err := Decode([]byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": ` + status + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := podProblem([]unstructured.Unstructured{*pod[0]}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSame: server fields and status are no difference between objects; anything else is.
func TestSame(t *testing.T) {
	old := objects(t, Options{})[0]
	for _, x := range []struct {
		name string
		edit func(*unstructured.Unstructured)
		same bool
	}{
		{"nothing", func(*unstructured.Unstructured) {}, true},
		{"what the server keeps", func(x *unstructured.Unstructured) {
			x.SetResourceVersion("2")
			x.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "thaw"}})
		}, true},
		{"its state", func(x *unstructured.Unstructured) { x.Object["status"] = map[string]any{"phase": "Active"} }, true},
		{"a label", func(x *unstructured.Unstructured) { x.SetLabels(map[string]string{"a": "b"}) }, false},
		{"another object of that name", func(x *unstructured.Unstructured) { x.SetUID("2") }, false},
		{"what it is to be", func(x *unstructured.Unstructured) { x.Object["spec"] = map[string]any{"finalizers": []any{"a"}} }, false},
	} {
		now := old.DeepCopy()
		x.edit(now)
		if sameObject(old, now) != x.same {
			t.Errorf("%s: same is %v", x.name, !x.same)
		}
	}
}
