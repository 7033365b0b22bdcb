package control

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	servingfake "knative.dev/serving/pkg/client/clientset/versioned/fake"
	servinginformers "knative.dev/serving/pkg/client/informers/externalversions"
	palisters "knative.dev/serving/pkg/client/listers/autoscaling/v1alpha1"
)

// countingLister counts the reads of a term.
type countingLister struct {
	palisters.PodAutoscalerLister
	reads atomic.Int64
}

func (l *countingLister) PodAutoscalers(namespace string) palisters.PodAutoscalerNamespaceLister {
	l.reads.Add(1)
	return l.PodAutoscalerLister.PodAutoscalers(namespace)
}

// TestUnwatch: a term that ends before it has seen every object leaves no handler in the
// informers, which serve the next term.
func TestUnwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube, serving := kubefake.NewClientset(), servingfake.NewSimpleClientset()
		c := &control{
			o: Options{Log: slog.New(slog.DiscardHandler)}, core: informers.NewSharedInformerFactory(kube, 0),
			deployments: informers.NewSharedInformerFactory(kube, 0), knative: servinginformers.NewSharedInformerFactory(serving, 0),
		}
		pas := c.knative.Autoscaling().V1alpha1().PodAutoscalers()
		counting := &countingLister{PodAutoscalerLister: pas.Lister()}
		r := &leaderTerm{c: c, log: c.o.Log, cluster: newTestCluster(nil), catalog: &revisionCatalog{pas: counting, log: c.o.Log}}
		life, end := context.WithCancel(t.Context())
		defer c.knative.Shutdown()
		defer end()
		pas.Informer()
		c.knative.Start(life.Done())
		c.knative.WaitForCacheSync(life.Done())

		term, cancel := context.WithCancel(t.Context())
		cancel()
		unwatch, err := r.watch(term)
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		create := func(name string) {
			pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
			if _, err := serving.AutoscalingV1alpha1().PodAutoscalers("a").Create(t.Context(), pa, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		create("watched")
		if counting.reads.Load() != 1 {
			t.Fatalf("%d reads of one object", counting.reads.Load())
		}
		unwatch()
		create("not-watched")
		if counting.reads.Load() != 1 {
			t.Error("the handler of a term that has ended is still called")
		}
	})
}
