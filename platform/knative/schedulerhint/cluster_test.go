package schedulerhint

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/thaw-dev/thaw/testkit"
)

// TestClusterHint: a real API server calls the webhook through its Service, and the
// created pod prefers the node. Without the webhook pods are created unchanged.
func TestClusterHint(t *testing.T) {
	file := os.Getenv("THAW_CLUSTER_KUBECONFIG")
	if file == "" {
		testkit.Missing(t, "THAW_CLUSTER_KUBECONFIG names no cluster: make cluster e2e")
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	c := kubernetes.NewForConfigOrDie(config)
	nodes, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		t.Fatal(err, "no node")
	}
	node := nodes.Items[0] // the test runs on it
	var ip string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ip = a.Address
		}
	}
	space := "hint-" + strings.ReplaceAll(time.Now().UTC().Format("0102-150405.000"), ".", "-")
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Services(space).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: space}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ignore, none := registrationv1.Ignore, registrationv1.SideEffectClassNone
	if _, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &registrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: space},
		Webhooks: []registrationv1.MutatingWebhook{{
			Name: "scheduler-hint.thaw.dev", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &ignore, SideEffects: &none, TimeoutSeconds: new(int32(2)),
			ClientConfig: registrationv1.WebhookClientConfig{Service: &registrationv1.ServiceReference{Namespace: space, Name: space,
				Path: new(path)}},
			ObjectSelector:    &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "thaw.dev/model", Operator: metav1.LabelSelectorOpExists}}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": space}},
			Rules: []registrationv1.RuleWithOperations{{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, space, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := c.CoreV1().Namespaces().Delete(ctx, space, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	w, err := New(Options{
		Client: c, Namespace: space, Name: space, Address: ip + ":0", Advertise: ip, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Hint: func(namespace, revision, _ string) (string, bool) {
			return node.Name, namespace == space && revision == "m-00001"
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer cancel()

	// An administrator makes API servers trust the certificate.
	var cert *Certificate
	wait := time.NewTicker(200 * time.Millisecond)
	defer wait.Stop()
	for end := time.Now().Add(time.Minute); cert == nil; <-wait.C {
		if cert, err = ReadCertificate(t.Context(), c.CoreV1().Secrets(space), w.host(), time.Now()); err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
	}
	patch, err := json.Marshal([]operation{{"add", "/webhooks/0/clientConfig/caBundle", cert.Root}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), space, types.JSONPatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	made := func(model string) *corev1.Affinity {
		t.Helper()
		labels := map[string]string{"serving.knative.dev/revision": "m-00001"}
		if model != "" {
			labels["thaw.dev/model"] = model
		}
		p, err := c.CoreV1().Pods(space).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "m-", Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "m", Image: "dev.local/hello:test"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Fatal(err)
		}
		return p.Spec.Affinity
	}
	// The API server and kube-proxy apply registrations and slices after a while.
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		if a := made("m"); a != nil && a.NodeAffinity != nil {
			terms := a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			if len(terms) != 1 || terms[0].Weight != preferenceWeight || terms[0].Preference.MatchFields[0].Values[0] != node.Name {
				t.Fatalf("%+v", terms)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("pods are made without a hint for a minute")
		}
	}
	if a := made(""); a != nil {
		t.Errorf("a pod of no model is asked about: %+v", a)
	}
	cancel()
	wg.Wait()
	if a := made("m"); a != nil {
		t.Errorf("a webhook that has ended gives hints: %+v", a)
	}
}
