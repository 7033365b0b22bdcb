// Package policies evaluates thaw's ValidatingAdmissionPolicies with the code of the API
// server, without one: each clause refuses the objects that it names and admits the others.
package policies

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// readPolicies reads the policies of deploy/kustomize/base by their names.
func readPolicies(t *testing.T) map[string]*admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	files, err := filepath.Glob("../../kustomize/base/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	policies := map[string]*admissionv1.ValidatingAdmissionPolicy{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
			doc, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			if !bytes.Contains(doc, []byte("kind: ValidatingAdmissionPolicy\n")) {
				continue
			}
			p := new(admissionv1.ValidatingAdmissionPolicy)
			if err := yaml.UnmarshalStrict(doc, p); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			policies[p.Name] = p
		}
	}
	return policies
}

// compile compiles a policy as the API server does (validating.compilePolicy).
func compile(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	vars := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, v := range p.Spec.Variables {
		if r := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, vars, environment.StoredExpressions); r.Error != nil {
			t.Fatalf("%s: variable %s: %v", p.Name, v.Name, r.Error)
		}
	}
	var conditions, validations []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
	}
	var matcher matchconditions.Matcher
	if len(conditions) > 0 {
		matcher = matchconditions.NewMatcher(compiler.CompileCondition(conditions, vars, environment.StoredExpressions), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	}
	return validating.NewValidator(compiler.CompileCondition(validations, vars, environment.StoredExpressions), matcher,
		compiler.CompileCondition(nil, vars, environment.StoredExpressions), compiler.CompileCondition(nil, vars, environment.StoredExpressions), p.Spec.FailurePolicy)
}

// request is one request to the API server.
type request struct {
	operation     admission.Operation
	kind          schema.GroupVersionKind
	resource, sub string
	user          string
	object, old   runtime.Object
}

// refusals returns the messages of the clauses that refuse the request.
func (r request) refusals(t *testing.T, v validating.Validator) (messages []string) {
	t.Helper()
	gvr := r.kind.GroupVersion().WithResource(r.resource)
	a := admission.NewAttributesRecord(r.object, r.old, r.kind, "a", "x", gvr, r.sub, r.operation, nil, false, &user.DefaultInfo{Name: r.user})
	got := v.Validate(t.Context(), gvr, &admission.VersionedAttributes{Attributes: a, VersionedObject: r.object, VersionedOldObject: r.old, VersionedKind: r.kind}, nil, nil, apiservercel.RuntimeCELCostBudget, nil)
	for _, d := range got.Decisions {
		if d.Evaluation == validating.EvalError {
			t.Errorf("a clause fails: %s", d.Message)
		}
		if d.Action == validating.ActionDeny {
			messages = append(messages, d.Message)
		}
	}
	return messages
}

// row is an object that differs from another one, and part of the message of the clause
// that refuses it; "": it is admitted.
type row struct {
	Name    string         `json:"name"`
	Set     map[string]any `json:"set"` // by JSON pointer; null removes
	Message string         `json:"message"`
}

// changed returns a copy of the object with the row's changes.
func (r row) changed(t *testing.T, object, into runtime.Object) runtime.Object {
	t.Helper()
	b, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for pointer, value := range r.Set {
		doc = set(doc, strings.Split(pointer, "/")[1:], value)
	}
	if b, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	return into
}

// set changes the value at a JSON pointer; "-" appends to a list, nil removes.
func set(doc any, at []string, value any) any {
	if len(at) == 0 {
		return value
	}
	key := strings.ReplaceAll(at[0], "~1", "/")
	if list, ok := doc.([]any); ok {
		if key == "-" {
			return append(list, set(nil, at[1:], value))
		}
		i, _ := strconv.Atoi(key)
		list[i] = set(list[i], at[1:], value)
		return list
	}
	m, ok := doc.(map[string]any)
	if !ok {
		m = map[string]any{}
	}
	if m[key] = set(m[key], at[1:], value); m[key] == nil {
		delete(m, key)
	}
	return m
}

const controller = "system:serviceaccount:thaw-system:thaw-controller"

// check evaluates a policy on all rows; each of its clauses must be the reason of one.
func check(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy, rows []row, of func(row) request) {
	t.Helper()
	v := compile(t, p)
	tested := map[string]bool{}
	for _, r := range rows {
		got := of(r).refusals(t, v)
		switch {
		case r.Message == "" && len(got) > 0:
			t.Errorf("%s is refused: %q", r.Name, got)
		case r.Message != "" && !strings.Contains(strings.Join(got, "\n"), r.Message):
			t.Errorf("%s: %q, want one with %q", r.Name, got, r.Message)
		}
		if len(got) == 1 {
			tested[got[0]] = true
		}
	}
	for _, c := range p.Spec.Validations {
		if !tested[c.Message] {
			t.Errorf("no row is refused for this clause alone: %s", c.Message)
		}
	}
}

// TestPods: the rows that TestCluster/alone/policy of platform/knative/e2e sends to an API server.
func TestPods(t *testing.T) {
	text, err := os.ReadFile("../../../platform/knative/e2e/testdata/pods.json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Object corev1.Pod `json:"object"`
		Rows   []row      `json:"rows"`
	}
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	p := readPolicies(t)["thaw-pods"]
	check(t, p, table.Rows, func(r row) request {
		return request{operation: admission.Create, kind: kind, resource: "pods", user: "ann", object: r.changed(t, &table.Object, &corev1.Pod{})}
	})
	// A pod that was there before the policy can be changed, so that it can end.
	v := compile(t, p)
	old := row{Set: map[string]any{"/spec/hostNetwork": true, "/metadata/finalizers": []any{"a.dev/b"}}}.changed(t, &table.Object, &corev1.Pod{})
	ending := row{Set: map[string]any{"/metadata/finalizers": nil}}.changed(t, old, &corev1.Pod{})
	for _, sub := range []string{"", "status"} {
		if got := (request{operation: admission.Update, kind: kind, resource: "pods", sub: sub, user: "ann", object: ending, old: old}).refusals(t, v); len(got) > 0 {
			t.Errorf("an update %q of a pod that the policy would not admit: %q", sub, got)
		}
	}
	// Ephemeral containers are added to a pod that exists.
	ephemeral := func(mount string) map[string]any {
		var list any
		if err := json.Unmarshal([]byte(`[{"name": "e", "image": "x", "securityContext": {"runAsUser": 65532, "allowPrivilegeEscalation": false}, "volumeMounts": [{"name": "sockets", "mountPath": "/v"`+mount+`}]}]`), &list); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"/spec/ephemeralContainers": list}
	}
	for _, r := range []row{
		{Name: "read-only", Set: ephemeral(`, "readOnly": true`)},
		{Name: "writable", Set: ephemeral(``), Message: "read-only"},
		{Name: "subPath", Set: ephemeral(`, "readOnly": true, "subPath": "warm"`), Message: "without subPath"},
	} {
		got := request{operation: admission.Update, kind: kind, resource: "pods", sub: "ephemeralcontainers", user: "ann", object: r.changed(t, &table.Object, &corev1.Pod{}), old: &table.Object}.refusals(t, v)
		if (len(got) > 0) != (r.Message != "") || r.Message != "" && !strings.Contains(got[0], r.Message) {
			t.Errorf("%s of an ephemeral container: %q", r.Name, got)
		}
	}
}

// decode decodes an object of a test.
func decode[T runtime.Object](t *testing.T, text string, into T) T {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatal(err)
	}
	return into
}

// TestScale: thaw-scale leaves the controller the scale of revisions' Deployments.
func TestScale(t *testing.T) {
	old := decode(t, `{metadata: {name: d, labels: {serving.knative.dev/revision: r, a: b}, annotations: {c: d, thaw.dev/epoch: "6"}}, spec: {replicas: 1, progressDeadlineSeconds: 5, template: {spec: {containers: [{name: m, image: i}]}}}}`, &appsv1.Deployment{})
	const another = "no revision's"
	rows := []row{
		{Name: "the scale", Set: map[string]any{"/spec/replicas": 0, "/metadata/annotations/thaw.dev~1epoch": "7"}},
		{Name: another, Set: map[string]any{"/spec/replicas": 0}, Message: "and no other"},
		{Name: "CREATE", Message: "makes no Deployment"},
		{Name: "scale", Set: map[string]any{"/spec/replicas": 0}, Message: "makes no Deployment"},
		{Name: "an image", Set: map[string]any{"/spec/template/spec/containers/0/image": "j"}, Message: "nothing else"},
		{Name: "a field that is removed", Set: map[string]any{"/spec/progressDeadlineSeconds": nil}, Message: "nothing else"},
		{Name: "a pause", Set: map[string]any{"/spec/paused": true}, Message: "nothing else"},
		{Name: "another annotation", Set: map[string]any{"/metadata/annotations/c": "e"}, Message: "no other"},
		{Name: "an annotation that is removed", Set: map[string]any{"/metadata/annotations/c": nil}, Message: "no other"},
		{Name: "an epoch that is no number", Set: map[string]any{"/metadata/annotations/thaw.dev~1epoch": "x"}, Message: "no other"},
		{Name: "a label", Set: map[string]any{"/metadata/labels/a": "c"}, Message: "neither labels"},
		{Name: "a finalizer", Set: map[string]any{"/metadata/finalizers": []any{"a.dev/b"}}, Message: "neither labels"},
	}
	p := readPolicies(t)["thaw-scale"]
	of := func(r row) request {
		q := request{operation: admission.Update, kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, resource: "deployments", user: controller, old: old, object: r.changed(t, old, &appsv1.Deployment{})}
		switch r.Name {
		case "CREATE":
			q.operation, q.old = admission.Connect, old // the other clauses need an old object: any operation but UPDATE is refused
		case "scale":
			q.sub = "scale"
		case another:
			q.old = row{Set: map[string]any{"/metadata/labels": map[string]any{"a": "b"}}}.changed(t, old, &appsv1.Deployment{})
			q.object = r.changed(t, q.old, &appsv1.Deployment{})
		}
		return q
	}
	check(t, p, rows, of)
	free := of(rows[4])
	free.user = "system:serviceaccount:kube-system:deployment-controller"
	if got := free.refusals(t, compile(t, p)); len(got) > 0 {
		t.Errorf("another account: %q", got)
	}
}

// TestForceDelete: thaw-force-delete leaves the controller the deletion cost of revisions'
// pods and the deletion of terminating ones.
func TestForceDelete(t *testing.T) {
	old := decode(t, `{metadata: {name: p, labels: {serving.knative.dev/revision: r}, annotations: {c: d}}, spec: {containers: [{name: m, image: i}]}}`, &corev1.Pod{})
	const cost = "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost"
	rows := []row{
		{Name: "the deletion cost", Set: map[string]any{cost: "-1000"}},
		{Name: "deletes a terminating pod"},
		{Name: "deletes a running pod", Message: "not terminating"},
		{Name: "no revision's", Set: map[string]any{cost: "-1000"}, Message: "and no other"},
		{Name: "eviction", Set: map[string]any{cost: "-1000"}, Message: "makes no pod"},
		{Name: "another annotation", Set: map[string]any{"/metadata/annotations/c": "e"}, Message: "no other"},
		{Name: "an annotation that is removed", Set: map[string]any{"/metadata/annotations/c": nil}, Message: "no other"},
		{Name: "a label", Set: map[string]any{"/metadata/labels/a": "c"}, Message: "nothing else"},
		{Name: "an image", Set: map[string]any{"/spec/containers/0/image": "j"}, Message: "nothing else"},
	}
	check(t, readPolicies(t)["thaw-force-delete"], rows, func(r row) request {
		q := request{operation: admission.Update, kind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, resource: "pods", user: controller, old: old, object: r.changed(t, old, &corev1.Pod{})}
		switch r.Name {
		case "deletes a terminating pod":
			q.operation, q.object, q.old = admission.Delete, nil, row{Set: map[string]any{"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"}}.changed(t, old, &corev1.Pod{})
		case "deletes a running pod":
			q.operation, q.object = admission.Delete, nil
		case "eviction":
			q.sub = "eviction"
		case "no revision's":
			q.old = row{Set: map[string]any{"/metadata/labels": map[string]any{"a": "b"}}}.changed(t, old, &corev1.Pod{})
			q.object = r.changed(t, q.old, &corev1.Pod{})
		}
		return q
	})
}
