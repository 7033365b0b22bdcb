package control

import (
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/thaw-dev/thaw/functions"
)

func deployment(annotations map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "a", Annotations: annotations},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}}
}

func newTestWriter(t *testing.T, epoch int64, real, cached *appsv1.Deployment) (*kubeWriter, *fake.Clientset) {
	t.Helper()
	kube := fake.NewClientset(real)
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := store.Add(cached); err != nil {
		t.Fatal(err)
	}
	return &kubeWriter{kube: kube, deployments: appslisters.NewDeploymentLister(store), epoch: epoch, leading: func() bool { return true },
		superseded: func() {}}, kube
}

func TestScaleIsFenced(t *testing.T) {
	name := functions.Name{Team: "a", Name: "r"}
	for title, tc := range map[string]struct {
		real, cached map[string]string
		stale        bool
	}{
		"the first":                      {nil, nil, false},
		"an annotation of others":        {map[string]string{"x": "y"}, map[string]string{"x": "y"}, false},
		"after an older one":             {map[string]string{epochAnnotation: "3"}, map[string]string{epochAnnotation: "3"}, false},
		"after itself":                   {map[string]string{epochAnnotation: "5"}, map[string]string{epochAnnotation: "5"}, false},
		"an older one wrote since":       {map[string]string{epochAnnotation: "4"}, map[string]string{epochAnnotation: "3"}, false},
		"a newer one wrote":              {map[string]string{epochAnnotation: "6"}, map[string]string{epochAnnotation: "6"}, true},
		"a newer one wrote, unseen here": {map[string]string{epochAnnotation: "6"}, map[string]string{epochAnnotation: "3"}, true},
	} {
		t.Run(title, func(t *testing.T) {
			h, kube := newTestWriter(t, 5, deployment(tc.real), deployment(tc.cached))
			told := false
			h.superseded = func() { told = true }
			err := h.Scale(t.Context(), name, "d", 2)
			got, gerr := kube.AppsV1().Deployments("a").Get(t.Context(), "d", metav1.GetOptions{})
			if gerr != nil {
				t.Fatal(gerr)
			}
			if tc.stale {
				if !errors.Is(err, functions.ErrStaleEpoch) || *got.Spec.Replicas != 0 || !told {
					t.Errorf("%v, %d replicas, told %v", err, *got.Spec.Replicas, told)
				}
				return
			}
			if err != nil || *got.Spec.Replicas != 2 || got.Annotations[epochAnnotation] != "5" || got.Annotations["x"] != tc.real["x"] {
				t.Errorf("%v, %d replicas, %v", err, *got.Spec.Replicas, got.Annotations)
			}
		})
	}
}

func TestWriterForbidden(t *testing.T) {
	h, kube := newTestWriter(t, 5, deployment(nil), deployment(nil))
	h.leading = func() bool { return false }
	if err := h.Scale(t.Context(), functions.Name{Team: "a"}, "d", 2); !errors.Is(err, functions.ErrStaleEpoch) {
		t.Error(err)
	}
	if n := len(kube.Actions()); n != 0 {
		t.Errorf("%d requests of one that does not lead", n)
	}
	h.leading = func() bool { return true }
	if err := h.Scale(t.Context(), functions.Name{Team: "a"}, "gone", 1); err == nil {
		t.Error("a Deployment that is not there")
	}
	if err := h.Scale(t.Context(), functions.Name{Team: "a"}, "gone", 0); err != nil {
		t.Error(err)
	}
	if err := h.DeleteFirst(t.Context(), "a", "gone"); err != nil {
		t.Error(err)
	}
	if err := h.forceDelete(t.Context(), terminatingPod{"a", "gone", "u"}); err != nil {
		t.Error(err)
	}
}
