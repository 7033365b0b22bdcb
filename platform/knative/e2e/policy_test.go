package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/thaw-dev/thaw/platform/knative"
)

// podRow is a pod that differs from podTable.Object, and part of the message of the clause
// of the policy thaw-pods that refuses it; "": it is admitted.
type podRow struct {
	Name    string         `json:"name"`
	Set     map[string]any `json:"set"` // by JSON pointer; null removes
	Message string         `json:"message"`
}

// podTable is testdata/pods.json, which deploy/cluster/policies evaluates without a cluster.
type podTable struct {
	Object json.RawMessage `json:"object"`
	Rows   []podRow        `json:"rows"`
}

// setPointer changes the value at a JSON pointer; "-" appends to a list, nil removes.
func setPointer(doc any, at []string, value any) any {
	if len(at) == 0 {
		return value
	}
	if list, ok := doc.([]any); ok {
		if at[0] == "-" {
			return append(list, setPointer(nil, at[1:], value))
		}
		i, _ := strconv.Atoi(at[0])
		list[i] = setPointer(list[i], at[1:], value)
		return list
	}
	m, ok := doc.(map[string]any)
	if !ok {
		m = map[string]any{}
	}
	key := strings.ReplaceAll(at[0], "~1", "/")
	if m[key] = setPointer(m[key], at[1:], value); m[key] == nil {
		delete(m, key)
	}
	return m
}

// pod returns the pod of a row.
func (p *podTable) pod(s *space, r podRow) *corev1.Pod {
	var doc any
	if err := json.Unmarshal(p.Object, &doc); err != nil {
		s.Fatal(err)
	}
	for pointer, value := range r.Set {
		doc = setPointer(doc, strings.Split(pointer, "/")[1:], value)
	}
	b, err := json.Marshal(doc)
	if err != nil {
		s.Fatal(err)
	}
	pod := new(corev1.Pod)
	if err := json.Unmarshal(b, pod); err != nil {
		s.Fatalf("%s: %v", r.Name, err)
	}
	return pod
}

// policy sends each row of testdata/pods.json to the API server: as a pod of a Knative
// Service in a namespace without labels, and as any pod in a team's namespace. Other pods,
// and namespaces that are opted out, are left alone.
func policy(s *space) {
	text, err := os.ReadFile("testdata/pods.json")
	if err != nil {
		s.Fatal(err)
	}
	var table podTable
	if err := json.Unmarshal(text, &table); err != nil {
		s.Fatal(err)
	}
	refused := podRow{}
	for _, r := range table.Rows {
		if r.Name == "the store" {
			refused = r
		}
	}
	create := func(in *space, p *corev1.Pod) error {
		if len(p.Spec.EphemeralContainers) > 0 {
			return debugPod(in, p)
		}
		_, err := in.core.CoreV1().Pods(in.ns).Create(in.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	label := func(in *space, key, value string) {
		s.patch(s.T, "namespace", "", in.ns, map[string]any{"metadata": map[string]any{"labels": map[string]string{key: value}}})
	}
	rows := func(in *space, binding string, of func(*corev1.Pod) *corev1.Pod) {
		s.until("the policy applies to "+in.ns, func() (bool, string) {
			err := create(in, of(table.pod(s, refused)))
			return err != nil && strings.Contains(err.Error(), binding), fmt.Sprint(err)
		})
		for _, r := range table.Rows {
			err := create(in, of(table.pod(s, r)))
			switch {
			case r.Message == "" && err != nil:
				s.Errorf("%s: %s is refused: %v", binding, r.Name, err)
			case r.Message != "" &&
				(err == nil || !status.IsInvalid(err) && !status.IsForbidden(err) ||
					!strings.Contains(err.Error(), "'thaw-pods' with binding '"+binding+"'") || !strings.Contains(err.Error(), r.Message)):
				s.Errorf("%s: %s: %v, want a refusal with %q", binding, r.Name, err, r.Message)
			}
		}
	}
	unlabelled := func(p *corev1.Pod) *corev1.Pod {
		p.Labels = nil
		return p
	}
	rows(s, "thaw-pods-of-services", func(p *corev1.Pod) *corev1.Pod { return p })
	if err := create(s, unlabelled(table.pod(s, refused))); err != nil {
		s.Errorf("a pod of no Knative Service: %v", err)
	}

	members := s.team(s.T, "policy-team")
	label(members, "thaw.dev/team", "policy")
	label(members, "thaw.dev/pod-policy", "off") // has no effect in a team's namespace
	rows(members, "thaw-pods-of-teams", unlabelled)

	out := s.team(s.T, "policy-off")
	label(out, "thaw.dev/pod-policy", "off")
	s.until("the policy does not apply to "+out.ns, func() (bool, string) {
		err := create(out, table.pod(s, refused))
		return err == nil, fmt.Sprint(err)
	})
}

// debugPod creates a pod, adds its ephemeral containers without effect, as the API server
// takes them for existing pods only, and deletes it.
func debugPod(in *space, p *corev1.Pod) error {
	pods := in.core.CoreV1().Pods(in.ns)
	without := p.DeepCopy()
	without.Spec.EphemeralContainers = nil
	made, err := pods.Create(in.Context(), without, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	defer pods.Delete(in.Context(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": p.Spec.EphemeralContainers}})
	if err != nil {
		return err
	}
	_, err = pods.Patch(in.Context(), made.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "ephemeralcontainers")
	return err
}

// asController returns a client with the name of the controller's account, and its rights
// unless groups add more.
func (s *space) asController(groups ...string) kubernetes.Interface {
	s.Helper()
	as := rest.CopyConfig(s.config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + knative.System + ":thaw-controller", Groups: groups}
	controller, err := kubernetes.NewForConfig(as)
	if err != nil {
		s.Fatal(err)
	}
	return controller
}

// controllerPolicies checks the clauses of the controller's policies that RBAC would hide:
// as the controller's account in the group system:masters.
func controllerPolicies(s *space) {
	client := s.asController("system:masters").CoreV1().RESTClient()
	for _, x := range []struct{ name, path, verb, body, message string }{
		{"a new Deployment", "/apis/apps/v1/namespaces/" + s.ns + "/deployments", "POST",
			`{"metadata":{"name":"a"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"dev.local/hello:test"}]}}}}`, "makes no Deployment"},
		{"a deleted Deployment", "/apis/apps/v1/namespaces/thaw-system/deployments/thaw-activator", "DELETE", `{}`, "makes no Deployment"},
		{"the scale subresource", "/apis/apps/v1/namespaces/thaw-system/deployments/thaw-activator/scale", "PATCH", `{"spec":{"replicas":3}}`, "makes no Deployment"},
		{"a new pod", "/api/v1/namespaces/" + s.ns + "/pods", "POST", `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"dev.local/hello:test"}]}}`, "makes no pod"},
	} {
		kind := "application/json"
		if x.verb == "PATCH" {
			kind = string(types.MergePatchType)
		}
		if err := client.Verb(x.verb).AbsPath(x.path).Param("dryRun", metav1.DryRunAll).SetHeader("Content-Type",
			kind).Body([]byte(x.body)).Do(s.Context()).Error(); err == nil || !strings.Contains(err.Error(), x.message) {
			s.Errorf("%s: %v, want a refusal with %q", x.name, err, x.message)
		}
	}
}
