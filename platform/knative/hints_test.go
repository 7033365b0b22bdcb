package knative

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestHints: an error of a cluster keeps its words, and has the exit code and the way out of its kind.
func TestHints(t *testing.T) {
	answer := func(code int, reason metav1.StatusReason, message string) error {
		return &status.StatusError{ErrStatus: metav1.Status{Code: int32(code), Reason: reason, Message: message}}
	}
	const denied = `admission webhook "validation.webhook.serving.knative.dev" denied the request: validation failed: `
	for _, x := range []struct {
		err  error
		exit int
		hint string
	}{
		{answer(401, metav1.StatusReasonUnauthorized, "Unauthorized"), kit.ExitDenied, "log in again"},
		{answer(403, metav1.StatusReasonForbidden, `services.serving.knative.dev is forbidden: User "bob" cannot list resource "services"`), kit.ExitDenied, "thaw-knative team create NAMESPACE --user NAME"},
		{answer(403, metav1.StatusReasonForbidden, `services.serving.knative.dev "a" is forbidden: exceeded quota: thaw-services, requested: 1, used: 9, limited: 9`), kit.ExitDenied, "kubectl edit resourcequota"},
		{answer(403, metav1.StatusReasonForbidden, `services.serving.knative.dev "a" is forbidden: unable to create new content in namespace ml because it is being terminated`), kit.ExitDenied, "another namespace"},
		{answer(403, metav1.StatusReasonForbidden, `admission webhook "validation.gatekeeper.sh" denied the request: [limits] container <model> has no limits`), kit.ExitDenied, "a policy of the cluster"},
		{answer(400, metav1.StatusReasonBadRequest, `admission webhook "validate.kyverno.svc-fail" denied the request: host-path`), kit.ExitUsage, "a policy of the cluster"},
		{answer(400, metav1.StatusReasonBadRequest, denied+"expected 1 <= 5 <= 3: autoscaling.knative.dev/max-scale"), kit.ExitUsage, "max-scale-limit in config-autoscaler"},
		{answer(400, metav1.StatusReasonBadRequest, denied+"expected 0 <= 3600 <= 600: spec.template.spec.timeoutSeconds"), kit.ExitUsage, "--request-timeout"},
		{answer(400, metav1.StatusReasonBadRequest, denied+"expected 0 <= 3600 <= 600: spec.template.spec.responseStartTimeoutSeconds"), kit.ExitUsage, "max-revision-timeout-seconds"},
		{answer(500, metav1.StatusReasonInternalError, `failed calling webhook "webhook.serving.knative.dev": connection refused`), kit.ExitUnavailable, "get pods -n knative-serving"},
		{answer(500, metav1.StatusReasonInternalError, `failed calling webhook "validate.kyverno.svc-fail": no endpoints available`), kit.ExitUnavailable, "kubectl get validatingwebhookconfigurations"},
		{answer(429, metav1.StatusReasonTooManyRequests, "too many requests"), kit.ExitUnavailable, "try again"},
		{answer(503, metav1.StatusReasonServiceUnavailable, "etcdserver: leader changed"), kit.ExitUnavailable, "try again"},
		{answer(504, metav1.StatusReasonTimeout, "Timeout: request did not complete"), kit.ExitTimeout, "try again"},
		{answer(409, metav1.StatusReasonConflict, `conflict with "argocd-controller"`), kit.ExitFailed, "try again"},
		{answer(502, metav1.StatusReasonInternalError, "an error on the server (\"<html>Bad Gateway</html>\")"), kit.ExitFailed, "a web page"},
		{errors.New("serializer for text/html doesn't exist"), kit.ExitUnavailable, "a web page"},
		{errors.New(`Get "https://a": getting credentials: exec: executable gke-gcloud-auth-plugin not found`), kit.ExitUnavailable, "users.exec.command"},
		{errors.New(`Get "https://a": tls: failed to verify certificate: x509: certificate signed by unknown authority`), kit.ExitUnavailable, "certificate-authority"},
		{errors.New(`Get "https://a": tls: first record does not look like a TLS handshake`), kit.ExitUnavailable, "http://"},
		{errors.New(`Get "https://a": Proxy Authentication Required`), kit.ExitUnavailable, "NO_PROXY"},
		{errors.New(`Get "https://a": proxyconnect tcp: dial tcp: connection refused`), kit.ExitUnavailable, "NO_PROXY"},
		{errors.New(`Get "https://a": dial tcp 10.0.0.1:6443: connection refused`), kit.ExitUnavailable, "kubectl cluster-info"},
		{os.ErrDeadlineExceeded, kit.ExitTimeout, "kubectl cluster-info"},
		{context.DeadlineExceeded, kit.ExitTimeout, "kubectl cluster-info"},
	} {
		err := (&Cluster{host: "https://a"}).WithHint(x.err, "ml/qwen")
		e, is := errors.AsType[*kit.Error](err)
		if !is || e.Exit != x.exit || !strings.Contains(e.Hint, x.hint) || !strings.Contains(e.Error(), x.err.Error()) {
			t.Errorf("%v: %+v", x.err, err)
		}
	}
	if hintOf(refusals, denied+"something else") != "" {
		t.Error("what Knative refuses for other reasons is no policy of the cluster")
	}
}

// TestKubeconfigMissing: files and contexts that are not there are named.
func TestKubeconfigMissing(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nowhere/a:/nowhere/b")
	if _, err := Open(Access{}); err == nil || !strings.Contains(err.Error(), "/nowhere/a, /nowhere/b") {
		t.Error(err)
	}
	_, err := Open(Access{Context: "gone"})
	if e, is := errors.AsType[*kit.Error](err); !is || !strings.Contains(e.Error(), `"gone"`) || !strings.Contains(e.Hint, "get-contexts") {
		t.Errorf("%+v", err)
	}
}
