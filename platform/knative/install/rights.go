package install

import (
	"strings"

	"github.com/thaw-dev/thaw/platform/knative"
)

// Right is one right of the controller, with its reason.
type Right struct {
	Where    string // a namespace; "*": all, and objects without one
	Group    string
	Resource string
	Name     string // "": any
	Verb     string
	Why      string
}

// Rights lists all rights, granted to the ServiceAccount thaw-controller. Activators and
// loaders have none.
var Rights = makeRights(
	rightRow{"*", "serving.knative.dev", "services", "", "list watch", "models, and their own documents in an annotation"},
	rightRow{"*", "serving.knative.dev", "revisions", "", "list watch", "functions: what each revision of a model runs, and which still exist"},
	rightRow{"*", "autoscaling.internal.knative.dev", "podautoscalers", "", "get list watch", "what is to be scaled by our class; a status is written over what is there now"},
	rightRow{"*", "autoscaling.internal.knative.dev", "podautoscalers/status", "", "update", "desired and actual scale, and why"},
	rightRow{"*", "networking.internal.knative.dev", "serverlessservices", "", "list watch create update", "whether Knative's own activator stands before a revision"},
	rightRow{"*", "networking.internal.knative.dev", "ingresses", "", "list watch", "routes of our class"},
	rightRow{"*", "networking.internal.knative.dev", "ingresses/status", "", "update", "that a route is ready, and where"},
	rightRow{"*", "apps", "deployments", "", "get list watch", "the replicas of a revision as Kubernetes has them"},
	rightRow{"*", "apps", "deployments", "", "patch", "the scale; not by the subresource, since it is written on the condition that nobody newer has written it, and the epoch that says so stands beside it; the policy thaw-scale refuses any other change, and any other Deployment than a revision's"},
	rightRow{"*", "", "pods", "", "list watch", "replicas: where they are, and why one is not"},
	rightRow{"*", "", "pods", "", "patch", "which pod of a Deployment is to go first (pod-deletion-cost); the policy thaw-hurry refuses any other change, and any other pod than a revision's"},
	rightRow{"*", "", "pods", "", "delete", "a pod that is terminating and has drained need not wait for queue-proxy's 30 s, while somebody waits for its GPU; the policy thaw-hurry refuses pods that are not terminating, or not a revision's"},
	rightRow{"*", "", "pods/log", "", "get", "thaw logs"},
	rightRow{"*", "", "nodes", "", "list watch", "GPUs there are, and taints"},
	rightRow{"*", "", "nodes", "", "patch", "which models are near, in the annotation thaw.dev/cached-models; the policy thaw-nodes refuses any other change"},
	rightRow{"*", "", "namespaces", "", "list watch", "teams, and their limits in annotations"},
	rightRow{"*", "", "resourcequotas", "", "list watch", "GPUs that a team may hold"},
	rightRow{"*", "", "services", "", "list watch", "where a route leads to that is not our model's"},
	rightRow{"*", "", "secrets", "thaw-keys", "list watch", "the hashes of API keys; no other Secret can be read"},
	rightRow{"*", "", "events", "", "create patch", "what was decided, at the Service it was decided about"},
	rightRow{Namespace, "coordination.k8s.io", "leases", "", "create", "who leads; a name cannot be granted before it is there"},
	rightRow{Namespace, "coordination.k8s.io", "leases", "thaw-controller", "get update", "who leads"},
	rightRow{Namespace, "", "secrets", "", "create", "the token by which thaw's processes know each other, where there is none"},
	rightRow{Namespace, "", "secrets", knative.ControlTLSSecret, "get update", "that token, and the certificates of the links, which are replaced before they run out"},
	rightRow{Namespace, "", "configmaps", "", "create", "what teams have used; a name cannot be granted before it is there"},
	rightRow{Namespace, "", "configmaps", "thaw-accounts", "get update", "what teams have used, which outlives a controller"},
	rightRow{Namespace, "", "services", "thaw-place", "get", "by which port API servers ask where a pod is wanted"},
	rightRow{Namespace, "discovery.k8s.io", "endpointslices", "", "create", "that who leads is asked; a name cannot be granted before it is there"},
	rightRow{Namespace, "discovery.k8s.io", "endpointslices", "thaw-place", "get update delete", "that who leads is asked"},
	rightRow{"*", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "thaw-place", "get update", "the authority of its certificate, which is new with each that leads"},
	rightRow{"knative-serving", "discovery.k8s.io", "endpointslices", "", "list watch", "where Knative's own activators are, which are asked for the requests that came to them and not to ours"},
)

type rightRow struct{ where, group, resource, name, verbs, why string }

func makeRights(rows ...rightRow) []Right {
	var out []Right
	for _, r := range rows {
		for verb := range strings.FieldsSeq(r.verbs) {
			out = append(out, Right{r.where, r.group, r.resource, r.name, verb, r.why})
		}
	}
	return out
}
