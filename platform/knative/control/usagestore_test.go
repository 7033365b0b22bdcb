package control

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
)

func kept(t *testing.T, kube *fake.Clientset) (text, epoch string) {
	t.Helper()
	m, err := kube.CoreV1().ConfigMaps("thaw-system").Get(t.Context(), UsageConfigMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m.Data[usageKey], m.Annotations[epochAnnotation]
}

// endingMaps refuses calls whose context has ended, as an API server's client does.
type endingMaps struct{ core.ConfigMapInterface }

func (m endingMaps) Create(ctx context.Context, c *corev1.ConfigMap, o metav1.CreateOptions) (*corev1.ConfigMap, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return m.ConfigMapInterface.Create(ctx, c, o)
}

// TestUsageOutlivesTerm: a term loads what the previous one stored, and a late write
// of an older term changes nothing.
func TestUsageOutlivesTerm(t *testing.T) {
	kube := fake.NewClientset()
	term := func(epoch int64) *usageStore {
		a := newUsageStore(endingMaps{kube.CoreV1().ConfigMaps("thaw-system")}, epoch, slog.New(slog.DiscardHandler))
		if _, err := a.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := term(3)
	first.enqueue([]byte(`{"day":1}`))
	first.enqueue([]byte(`{"day":2}`)) // replaces the first
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Run(ctx); err != nil {
		t.Fatal(err)
	}
	first.flush(ctx) // flush works after the term's end
	if text, epoch := kept(t, kube); text != `{"day":2}` || epoch != "3" {
		t.Errorf("%s of epoch %s", text, epoch)
	}

	second := term(4)
	second.write(t.Context(), []byte(`{"day":3}`))
	first.write(t.Context(), []byte(`{"day":9}`))
	if text, epoch := kept(t, kube); text != `{"day":3}` || epoch != "4" || !first.superseded {
		t.Errorf("%s of epoch %s, over %v", text, epoch, first.superseded)
	}

	// If others delete the ConfigMap, it is created again.
	if err := kube.CoreV1().ConfigMaps("thaw-system").Delete(t.Context(), UsageConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second.write(t.Context(), []byte(`{"day":4}`))
	if text, _ := kept(t, kube); text != `{"day":4}` {
		t.Errorf("%s", text)
	}
}

// TestUsageInvalid: an invalid ConfigMap is an error; the usage starts at zero.
func TestUsageInvalid(t *testing.T) {
	kube := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: UsageConfigMap, Namespace: "thaw-system"}, Data: map[string]string{usageKey: `{"teams":{"a":{"used":-1}}}`}})
	a := newUsageStore(kube.CoreV1().ConfigMaps("thaw-system"), 1, slog.New(slog.DiscardHandler))
	ledger, err := a.load(t.Context())
	if err == nil || ledger == nil {
		t.Fatalf("%v %v", ledger, err)
	}
	a.write(t.Context(), []byte(`{"day":1}`))
	if text, _ := kept(t, kube); text != `{"day":1}` {
		t.Errorf("%s", text)
	}
}
