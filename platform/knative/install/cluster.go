package install

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	status "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/schedulerhint"
)

// Cluster installs thaw on a cluster. It is safe for concurrent use.
type Cluster struct {
	of     *knative.Cluster
	client dynamic.Interface
}

// Open makes a Cluster without sending a request.
func Open(of *knative.Cluster) (*Cluster, error) {
	client, err := dynamic.NewForConfig(of.Config())
	return &Cluster{of, client}, err
}

// Name is KIND NAME of an object, with its namespace unless that is thaw's own.
func Name(x *unstructured.Unstructured) string {
	kind := strings.ToLower(x.GetKind())
	if ns := x.GetNamespace(); ns != "" && ns != Namespace {
		return kind + " " + ns + "/" + x.GetName()
	}
	return kind + " " + x.GetName()
}

func (c *Cluster) resource(x *unstructured.Unstructured) dynamic.ResourceInterface {
	plural, _ := meta.UnsafeGuessKindToResource(x.GroupVersionKind()) // right for all kinds in the files
	if x.GetNamespace() == "" {
		return c.client.Resource(plural)
	}
	return c.client.Resource(plural).Namespace(x.GetNamespace())
}

// Apply applies the objects and reports each. With dry the server validates what it can
// without the namespace, and changes nothing.
func (c *Cluster) Apply(ctx context.Context, objects []*unstructured.Unstructured, dry bool,
	report func(name string, o knative.Outcome)) error {
	o := metav1.PatchOptions{FieldManager: "thaw", Force: new(true)}
	if dry {
		o.DryRun = []string{metav1.DryRunAll}
	}
	tokenMade := dry
	for _, x := range objects {
		if !tokenMade && installOrder(x) == workloadOrder {
			// otherwise kubelets notice the Secret only after a while
			if _, err := Token(ctx, c.of.Secrets(Namespace)); err != nil {
				return c.of.WithHint(err, "secrets "+knative.ControlTLSSecret+" and "+knative.AdminSecret)
			}
			tokenMade = true
		}
		old, err := c.resource(x).Get(ctx, x.GetName(), metav1.GetOptions{})
		if err != nil && !status.IsNotFound(err) {
			return c.withHint(err, x)
		}
		there := err == nil
		if x.GetKind() == "MutatingWebhookConfiguration" {
			if x, err = c.trusted(ctx, x, dry); err != nil {
				return c.of.WithHint(err, "secret "+schedulerhint.SecretName)
			}
		}
		body, err := json.Marshal(x.Object)
		if err != nil {
			return err
		}
		now, err := c.resource(x).Patch(ctx, x.GetName(), types.ApplyPatchType, body, o)
		switch {
		case err != nil && dry && status.IsNotFound(err) && x.GetNamespace() == Namespace:
			report(Name(x), knative.Created) // its namespace does not exist yet
		case status.IsNotFound(err) && (x.GetNamespace() == "" || x.GetNamespace() == Namespace): // its kind is not there
			return &kit.Error{Exit: kit.ExitNotFound, What: fmt.Sprintf("the cluster has no kind %s of %s", x.GetKind(), x.GetAPIVersion()),
				Hint: "thaw needs Kubernetes 1.33 or later: kubectl version"}
		case err != nil:
			return c.withHint(err, x)
		case !there:
			report(Name(x), knative.Created)
		case sameObject(old, now):
			report(Name(x), knative.Unchanged)
		default:
			report(Name(x), knative.Changed)
		}
	}
	return nil
}

// trusted returns a webhook's registration that trusts the certificate of the Secret
// thaw-scheduler-hint-tls, which is created if missing; with dry the registration stays
// without.
func (c *Cluster) trusted(ctx context.Context, x *unstructured.Unstructured, dry bool) (*unstructured.Unstructured, error) {
	secrets, host, now := c.of.Secrets(Namespace), schedulerhint.Host(schedulerhint.Name, Namespace), time.Now()
	var cert *schedulerhint.Certificate
	var err error
	if dry {
		cert, err = schedulerhint.ReadCertificate(ctx, secrets, host, now)
		if status.IsNotFound(err) {
			return x, nil
		}
	} else {
		cert, err = schedulerhint.EnsureCertificate(ctx, secrets, host, true, now)
	}
	if err != nil {
		return nil, err
	}
	x = x.DeepCopy()
	webhooks, _, _ := unstructured.NestedSlice(x.Object, "webhooks")
	for _, w := range webhooks {
		w.(map[string]any)["clientConfig"].(map[string]any)["caBundle"] = base64.StdEncoding.EncodeToString(cert.Root)
	}
	return x, unstructured.SetNestedSlice(x.Object, webhooks, "webhooks")
}

// sameObject compares two objects except for server fields and status.
func sameObject(old, now *unstructured.Unstructured) bool {
	withoutServerFields := func(x *unstructured.Unstructured) map[string]any {
		x = x.DeepCopy()
		x.SetManagedFields(nil)
		x.SetResourceVersion("")
		delete(x.Object, "status")
		return x.Object
	}
	return equality.Semantic.DeepEqual(withoutServerFields(old), withoutServerFields(now))
}

func (c *Cluster) withHint(err error, x *unstructured.Unstructured) error {
	if status.IsNotFound(err) && x.GetNamespace() != "" && x.GetNamespace() != Namespace {
		return &kit.Error{Exit: kit.ExitNotFound, What: "the cluster has no namespace " + x.GetNamespace(),
			Hint: "Knative Serving is installed first: https://knative.dev/docs/install"}
	}
	hinted := c.of.WithHint(err, Name(x))
	if e, ok := errors.AsType[*kit.Error](hinted); ok && status.IsForbidden(err) {
		e.Hint = "it takes the rights of cluster-admin: kubectl auth can-i '*' '*' -A"
	}
	return hinted
}

const waitInterval = 500 * time.Millisecond

// Wait returns when all workloads run. The error names those that do not.
func (c *Cluster) Wait(ctx context.Context, objects []*unstructured.Unstructured) error {
	missing := "nothing was seen"
	err := wait.PollUntilContextCancel(ctx, waitInterval, true, func(ctx context.Context) (bool, error) {
		var still []string
		for _, x := range objects {
			if x.GetKind() != "Deployment" && x.GetKind() != "DaemonSet" {
				continue
			}
			now, err := c.resource(x).Get(ctx, x.GetName(), metav1.GetOptions{})
			if err != nil {
				return false, cmp.Or(ctx.Err(), c.withHint(err, x))
			}
			if what := missingReadiness(now); what != "" {
				still = append(still, x.GetName()+": "+what)
			}
		}
		missing = strings.Join(still, "; ")
		return missing == "", nil
	})
	if ctx.Err() == nil || err == nil {
		return err
	}
	// ctx has ended, but the reason is worth another request
	moment, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	e := &kit.Error{Exit: kit.ExitTimeout, What: "it does not run yet: " + missing, Hint: "kubectl get pods,events -n " + Namespace}
	if pods, err := c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(Namespace).List(moment,
		metav1.ListOptions{}); err == nil {
		if why := podProblem(pods.Items); why != "" {
			e.Err = errors.New(why)
		}
	}
	return e
}

// podProblem is why the first failing pod does not run, in the words of its node or the
// scheduler; "": unknown.
func podProblem(pods []unstructured.Unstructured) string {
	for _, x := range pods {
		var p corev1.Pod
		if runtime.DefaultUnstructuredConverter.FromUnstructured(x.Object, &p) != nil {
			continue
		}
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
				return fmt.Sprintf("pod %s: %s", p.Name, cond.Message)
			}
		}
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if w := s.State.Waiting; w != nil && w.Message != "" {
				return fmt.Sprintf("pod %s: %s: %s", p.Name, s.Name, w.Message)
			}
			if end := s.LastTerminationState.Terminated; end != nil && !s.Ready {
				return fmt.Sprintf("pod %s: %s ended with exit code %d (%s)", p.Name, s.Name, end.ExitCode, end.Reason)
			}
		}
	}
	return ""
}

// missingReadiness is what a workload waits for; "": nothing.
func missingReadiness(x *unstructured.Unstructured) string {
	number := func(at ...string) int64 {
		n, _, _ := unstructured.NestedInt64(x.Object, at...)
		return n
	}
	want, ready, new := number("spec", "replicas"), number("status", "availableReplicas"), number("status", "updatedReplicas")
	if x.GetKind() == "DaemonSet" {
		want, ready, new = number("status", "desiredNumberScheduled"), number("status", "numberAvailable"),
			number("status", "updatedNumberScheduled")
	}
	switch {
	case number("status", "observedGeneration") < x.GetGeneration():
		return "not looked at yet"
	case new < want:
		return fmt.Sprintf("%d of %d are new", new, want)
	case ready < want:
		return fmt.Sprintf("%d of %d are ready", ready, want)
	}
	return ""
}

// Remove deletes all objects and returns when they are gone. While models exist it
// refuses, unless forced.
func (c *Cluster) Remove(ctx context.Context, objects []*unstructured.Unstructured, force bool, report func(name string)) error {
	if !force {
		models, err := c.of.List(ctx, "")
		if e, is := err.(*kit.Error); is && e.Exit == kit.ExitNotFound {
			err = nil // without Knative there are no models
		}
		if err != nil {
			return err
		}
		if len(models) > 0 {
			return &kit.Error{Exit: kit.ExitUsage,
				What: fmt.Sprintf("there are models, such as %s/%s (%d in all), which would no longer be scaled", models[0].Namespace, models[0].Name,
					len(models)),
				Hint: "remove them first (thaw-knative rm NAMESPACE/NAME), or --force"}
		}
	}
	gone := []*unstructured.Unstructured{}
	for _, x := range slices.Backward(objects) {
		err := c.resource(x).Delete(ctx, x.GetName(), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)})
		if status.IsNotFound(err) {
			continue
		}
		if err != nil {
			return c.withHint(err, x)
		}
		gone = append(gone, x)
	}
	for _, x := range gone {
		if err := c.waitAbsent(ctx, x); err != nil {
			return err
		}
		report(Name(x))
	}
	return c.removeAnnotations(ctx, report)
}

// RemoveWarmHosts deletes the warm host DaemonSet of an earlier installation. With dry it
// only reports it.
func (c *Cluster) RemoveWarmHosts(ctx context.Context, dry bool, report func(name string)) error {
	o := metav1.DeleteOptions{}
	if dry {
		o.DryRun = []string{metav1.DryRunAll}
	}
	objects, err := Objects(Options{Image: placeholderName, Warm: warmHostName})
	if err != nil {
		return err
	}
	for _, x := range objects {
		if x.GetLabels()["app.kubernetes.io/component"] != "warm" {
			continue
		}
		err := c.resource(x).Delete(ctx, x.GetName(), o)
		if status.IsNotFound(err) {
			continue
		}
		if err != nil {
			return c.withHint(err, x)
		}
		report(Name(x))
	}
	return nil
}

func (c *Cluster) waitAbsent(ctx context.Context, x *unstructured.Unstructured) error {
	err := wait.PollUntilContextCancel(ctx, waitInterval, true, func(ctx context.Context) (bool, error) {
		_, err := c.resource(x).Get(ctx, x.GetName(), metav1.GetOptions{})
		if err == nil || status.IsNotFound(err) {
			return err != nil, nil
		}
		return false, c.withHint(err, x)
	})
	if err != nil && ctx.Err() != nil {
		return &kit.Error{Exit: kit.ExitTimeout, What: Name(x) + " is still going away", Hint: "run it again with a longer --timeout"}
	}
	return err
}

func (c *Cluster) removeAnnotations(ctx context.Context, report func(string)) error {
	nodes := c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	list, err := nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return c.of.WithHint(err, "the nodes")
	}
	for _, n := range list.Items {
		m := map[string]any{}
		for part, has := range map[string]map[string]string{"labels": n.GetLabels(), "annotations": n.GetAnnotations()} {
			out := map[string]any{}
			for k := range has {
				if strings.HasPrefix(k, "thaw.dev/") {
					out[k] = nil
				}
			}
			if len(out) > 0 {
				m[part] = out
			}
		}
		if len(m) == 0 {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": m})
		if err != nil {
			return err
		}
		if _, err := nodes.Patch(ctx, n.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !status.IsNotFound(err) {
			return c.of.WithHint(err, "node "+n.GetName())
		}
		report("what was written on node " + n.GetName())
	}
	return nil
}
