package e2e

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/platform/knative"
)

// near checks that a node is annotated with its cached models, and that the account that
// writes this can change nothing else of a node.
func near(s *space) {
	s.deployed(s.tiny("near"))
	s.must("cold", s.byModel("near", 2, false))
	entry := s.ns + "/near="
	node := ""
	s.until("a node says that the model is near", func() (bool, string) {
		list, err := s.core.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		saw := ""
		for _, n := range list.Items {
			text := n.Annotations[knative.CachedModelsAnnotation]
			saw += n.Name + ": " + text + "\n"
			if strings.Contains(text, entry+"memory") || strings.Contains(text, entry+"disk") {
				node = n.Name
			}
		}
		return node != "", saw
	})

	controller := s.asController()
	patch := func(body string, sub ...string) error {
		_, err := controller.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, []byte(body), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, sub...)
		return err
	}
	for _, x := range []struct {
		name, patch, why string
		sub              []string
	}{
		{"a taint", `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`, "nothing else", nil},
		{"unschedulable", `{"spec":{"unschedulable":true}}`, "nothing else", nil},
		{"a label", `{"metadata":{"labels":{"nvidia.com/gpu.present":"false"}}}`, "nothing else", nil},
		{"a label less", `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, "nothing else", nil},
		{"a finalizer", `{"metadata":{"finalizers":["a.dev/b"]}}`, "nothing else", nil},
		{"an owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"b"}]}}`, "nothing else", nil},
		{"another annotation", `{"metadata":{"annotations":{"thaw.dev/cached-models":"x","a":"b"}}}`, "no other", nil},
		{"an annotation less", `{"metadata":{"annotations":{"thaw.dev/cached-models":"x","volumes.kubernetes.io/controller-managed-attach-detach":null}}}`, "no other", nil},
		{"a book", `{"metadata":{"annotations":{"thaw.dev/cached-models":"` + strings.Repeat("x", 20000) + `"}}}`, "short", nil},
		{"its status", `{"status":{"capacity":{"nvidia.com/gpu":"99"}}}`, "forbidden", []string{"status"}},
	} {
		if err := patch(x.patch, x.sub...); err == nil || !strings.Contains(err.Error(), x.why) {
			s.Errorf("%s of a node: %v", x.name, err)
		}
	}
	if err := patch(`{"metadata":{"annotations":{"thaw.dev/cached-models":"a/b=disk"}}}`); err != nil {
		s.Errorf("the annotation: %v", err)
	}
}
