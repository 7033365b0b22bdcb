package e2e

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/platform/knative"
)

// bounds checks that the controller's account may only scale Deployments of revisions and
// remove their terminating pods, and change no other Deployment or pod. The other tests
// show that these rights suffice.
func bounds(s *space) {
	s.deployed(s.tiny("bounds", "scale: {idle: 10m}"))
	s.must("cold", s.byModel("bounds", 2, false))
	deployments, err := s.core.AppsV1().Deployments(s.ns).List(s.Context(),
		metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=" + s.revision("bounds")})
	if err != nil || len(deployments.Items) != 1 {
		s.Fatalf("%d Deployments of the revision, %v", len(deployments.Items), err)
	}
	pods := s.pods("bounds")
	own := s.thawPods("activator")
	if len(pods) == 0 || len(own) == 0 {
		s.Fatalf("%d pods of the model, %d activators", len(pods), len(own))
	}
	its, pod, another := deployments.Items[0].Name, pods[0], own[0]

	controller := s.asController()
	controllerPolicies(s)
	dry := []string{metav1.DryRunAll}
	scale := func(namespace, name, body string, sub ...string) error {
		_, err := controller.AppsV1().Deployments(namespace).Patch(s.Context(), name, types.MergePatchType, []byte(body),
			metav1.PatchOptions{DryRun: dry}, sub...)
		return err
	}
	write := func(p corev1.Pod, body string, sub ...string) error {
		_, err := controller.CoreV1().Pods(p.Namespace).Patch(s.Context(), p.Name, types.MergePatchType, []byte(body),
			metav1.PatchOptions{DryRun: dry}, sub...)
		return err
	}
	remove := func(p corev1.Pod, grace int64) error {
		return controller.CoreV1().Pods(p.Namespace).Delete(s.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, DryRun: dry})
	}
	node := func(body string, sub ...string) error {
		_, err := controller.CoreV1().Nodes().Patch(s.Context(), pod.Spec.NodeName, types.MergePatchType, []byte(body),
			metav1.PatchOptions{DryRun: dry}, sub...)
		return err
	}
	const (
		replicas = `{"spec":{"replicas":0},"metadata":{"annotations":{"thaw.dev/epoch":"7"}}}`
		first    = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-1000"}}}`
	)
	for _, x := range []struct {
		name, why string
		err       error
	}{
		{"a scale of another's", "no other", scale(knative.System, "thaw-activator", replicas)},
		{"an image", "nothing else", scale(s.ns, its, `{"spec":{"replicas":0,"template":{"spec":{"containers":[{"name":"a","image":"b"}]}}}}`)},
		{"a label of pods", "nothing else", scale(s.ns, its, `{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`)},
		{"a pause", "nothing else", scale(s.ns, its, `{"spec":{"paused":true}}`)},
		{"a deadline less", "nothing else", scale(s.ns, its, `{"spec":{"progressDeadlineSeconds":null}}`)},
		{"a label", "neither labels", scale(s.ns, its, `{"metadata":{"labels":{"a":"b"}}}`)},
		{"no label", "neither labels", scale(s.ns, its, `{"metadata":{"labels":null}}`)},
		{"a finalizer", "neither labels", scale(s.ns, its, `{"metadata":{"finalizers":["a.dev/b"]}}`)},
		{"another annotation", "no other", scale(s.ns, its, `{"metadata":{"annotations":{"a":"b"}}}`)},
		{"no annotation", "no other", scale(s.ns, its, `{"metadata":{"annotations":null}}`)},
		{"an epoch that is none", "no other", scale(s.ns, its, `{"metadata":{"annotations":{"thaw.dev/epoch":"x"}}}`)},
		{"the subresource", "forbidden", scale(s.ns, its, `{"spec":{"replicas":0}}`, "scale")},
		{"the first to go of another's", "no other", write(another, first)},
		{"another annotation of a pod", "no other", write(pod, `{"metadata":{"annotations":{"a":"b"}}}`)},
		{"a label of a pod", "nothing else", write(pod, `{"metadata":{"labels":{"a":"b"}}}`)},
		{"no owner of a pod", "nothing else", write(pod, `{"metadata":{"ownerReferences":null}}`)},
		{"a deadline of a pod", "nothing else", write(pod, `{"spec":{"activeDeadlineSeconds":1}}`)},
		{"an end of another's", "no other", remove(another, 0)},
		{"a sudden end", "not terminating", remove(pod, 0)},
		{"an end", "not terminating", remove(pod, 30)},
		{"a node's annotation", "cannot patch resource", node(`{"metadata":{"annotations":{"a":"b"}}}`)},
		{"a node's capacity", "cannot patch resource", node(`{"status":{"capacity":{"example.com/a":"9"}}}`, "status")},
	} {
		if x.err == nil || !status.IsForbidden(x.err) || !strings.Contains(x.err.Error(), x.why) {
			s.Errorf("%s: %v", x.name, x.err)
		}
	}
	if err := scale(s.ns, its, replicas); err != nil {
		s.Errorf("the scale: %v", err)
	}
	if err := write(pod, first); err != nil {
		s.Errorf("the first to go: %v", err)
	}

	// A finalizer keeps the pod while it terminates.
	s.patch(s.T, "pod", s.ns, pod.Name, map[string]any{"metadata": map[string]any{"finalizers": []string{"e2e.thaw.dev/held"}}})
	s.Cleanup(func() {
		if _, err := s.core.CoreV1().Pods(s.ns).Patch(context.Background(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			s.Error(err)
		}
	})
	if err := s.core.CoreV1().Pods(s.ns).Delete(s.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	if err := remove(pod, 0); err != nil {
		s.Errorf("what is ending anyway: %v", err)
	}
}
