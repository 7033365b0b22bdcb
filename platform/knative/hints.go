package knative

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	status "k8s.io/apimachinery/pkg/api/errors"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// hint is the way out of an error of the cluster in which these words are.
type hint struct{ words, hint string }

// hintOf returns the first hint whose words are in a text; "" for none.
func hintOf(hints []hint, text string) string {
	for _, h := range hints {
		if strings.Contains(text, h.words) {
			return h.hint
		}
	}
	return ""
}

// refusals are errors that an API server answers.
var refusals = []hint{
	{"exceeded quota", "remove models of the namespace that are not used any more, or raise the quota: kubectl edit resourcequota"},
	{"is being terminated", "deploy into another namespace, or again when this one is gone: kubectl get namespaces"},
	{"max-scale", "lower spec.scale.max, or raise max-scale-limit in config-autoscaler of " + servingNamespace},
	{"imeoutSeconds", "lower --request-timeout, or raise max-revision-timeout-seconds in config-defaults of " + servingNamespace},
	{`calling webhook "webhook.serving.knative.dev"`, knativeWebhook},
	{`calling webhook "validation.webhook.serving.knative.dev"`, knativeWebhook},
	{`calling webhook "config.webhook.serving.knative.dev"`, knativeWebhook},
	{"failed calling webhook", "the service behind that webhook has to run and be reachable: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"},
	{`webhook.serving.knative.dev" denied`, ""},
	{"denied the request", "a policy of the cluster refuses it, not thaw: its administrator has to allow what the message names for this namespace"},
	{"is forbidden: User", "the account of the kubeconfig lacks that right: thaw-knative team create NAMESPACE --user NAME gives what deploying takes"},
	{"<html", webPage},
	{"nauthorized", "the kubeconfig's credentials are expired or refused: log in again; kubectl auth whoami shows the same"},
}

const (
	knativeWebhook = "Knative's webhook is not there yet: kubectl get pods -n " + servingNamespace
	webPage        = "what answers there is a web page, not an API server: a proxy or a login page; compare server of the kubeconfig"
	tryAgain       = "try again in a minute"
)

// failures are errors of a connection to an API server.
var failures = []hint{
	{"getting credentials: ", "install the program that users.exec.command of the kubeconfig names, or log in again with it"},
	{"x509: ", "certificate-authority of the kubeconfig has to be the CA of that server, and server a name that its certificate has"},
	{"does not look like a TLS handshake", "server of the kubeconfig begins with http:// where it speaks no TLS; or a proxy answers: HTTPS_PROXY, NO_PROXY"},
	{"Proxy", "the connection goes through the proxy of HTTPS_PROXY: give it what it asks for, or add the server's host to NO_PROXY"},
	{"proxyconnect", "the proxy of HTTPS_PROXY is not reached: mend it, or add the server's host to NO_PROXY"},
	{"text/html", webPage},
	{"", "compare kubectl cluster-info"},
}

// isNotFound distinguishes a missing object from a missing kind.
func isNotFound(err error) bool {
	s, ok := errors.AsType[*status.StatusError](err)
	return ok && status.IsNotFound(err) && s.Status().Details != nil && s.Status().Details.Name != ""
}

// WithHint gives an error of the cluster an exit code and a hint.
func (c *Cluster) WithHint(err error, what string) error {
	text := err.Error()
	e := &kit.Error{Exit: kit.ExitFailed, What: what, Err: err, Hint: hintOf(refusals, text)}
	_, answered := errors.AsType[*status.StatusError](err)
	network, _ := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case isNotFound(err) && strings.HasPrefix(text, "namespaces "):
		namespace, _, _ := strings.Cut(what, "/")
		e.Exit, e.What, e.Hint, e.Err = kit.ExitNotFound, fmt.Sprintf("the cluster has no namespace %s", namespace),
			"a team is a namespace: thaw-knative team create "+namespace+", or kubectl create namespace "+namespace, nil
	case isNotFound(err):
		e.Exit, e.What, e.Err = kit.ExitNotFound, what+" is not on the cluster", nil
	case status.IsNotFound(err):
		e.Exit, e.What, e.Hint, e.Err = kit.ExitNotFound, "the cluster at "+c.host+" has no Knative Serving",
			"its kinds are installed with it: https://knative.dev/docs/install", nil
	case status.IsUnauthorized(err), status.IsForbidden(err):
		e.Exit = kit.ExitDenied
	case status.IsInvalid(err), status.IsBadRequest(err):
		e.Exit = kit.ExitUsage
		for i, f := range refusedFeatures(text) {
			if i == 0 {
				e.Hint = "thaw-knative doctor lists what Knative has to allow"
			}
			e.Hint += "; " + f.Why + ": " + f.Patch()
		}
	case status.IsConflict(err):
		e.What, e.Hint = what+" was changed concurrently", tryAgain
	case errors.Is(err, context.DeadlineExceeded), status.IsTimeout(err), status.IsServerTimeout(err),
		network != nil && network.Timeout():
		e.Exit = kit.ExitTimeout
		if e.Hint = tryAgain; !answered {
			e.What, e.Hint = "the API server at "+c.host+" does not answer in time", hintOf(failures, text)
		}
	case status.IsServiceUnavailable(err), status.IsTooManyRequests(err):
		e.Exit, e.What, e.Hint = kit.ExitUnavailable, "the API server at "+c.host+" cannot serve this now", tryAgain
	case !answered:
		e.Exit, e.What, e.Hint = kit.ExitUnavailable, "no API server answers at "+c.host, hintOf(failures, text)
		if strings.Contains(text, "getting credentials: ") {
			e.What = "there are no credentials for " + c.host
		}
	case strings.Contains(text, "failed calling webhook"):
		e.Exit = kit.ExitUnavailable
	}
	return e
}
