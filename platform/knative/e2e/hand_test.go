package e2e

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/thaw-dev/thaw/platform/knative"
)

// byHand deploys a Knative Service written by hand with only the names of the two classes.
// Its container without shim and model file scales to zero and back as a model does.
func byHand(s *space) {
	doc, err := json.Marshal(map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service",
		"metadata": map[string]any{"name": "hand", "annotations": map[string]string{knative.IngressAnnotation: knative.IngressClass}},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{
				knative.ClassAnnotation: knative.AutoscalerClass, "autoscaling.knative.dev/initial-scale": "0",
				"autoscaling.knative.dev/scale-to-zero-pod-retention-period": "2s",
			}},
			"spec": map[string]any{"containers": []any{map[string]any{"image": "dev.local/hello:test"}}},
		}},
	})
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.core.Discovery().RESTClient().Post().AbsPath("/apis/serving.knative.dev/v1/namespaces", s.ns, "services").
		SetHeader("Content-Type", "application/json").Body(doc).DoRaw(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.ready("hand")
	revision := s.revision("hand")
	if pods := s.pods("hand"); len(pods) > 0 {
		s.Fatalf("%d pods before the first request", len(pods))
	}
	for _, call := range []string{"cold", "cold again"} {
		a := s.do(s.Context(), s.host("hand"), "/", "")
		if a.err != nil || a.status != http.StatusOK || !strings.HasPrefix(a.body, revision+"-deployment-") {
			s.Fatalf("%s: %s", call, a)
		}
		s.Logf("%s: %s", call, a)
		s.atZero(revision)
	}
}
