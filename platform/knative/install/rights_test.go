package install

import (
	"strings"

	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/schedulerhint"
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
	rightRow{"*", "serving.knative.dev", "services", "", "list watch", "models, with their files in an annotation"},
	rightRow{"*", "serving.knative.dev", "revisions", "", "list watch", "functions: the revisions of models"},
	rightRow{"*", "autoscaling.internal.knative.dev", "podautoscalers", "", "get list watch",
		"revisions of class thaw.dev; a status is written over the current object"},
	rightRow{"*", "autoscaling.internal.knative.dev", "podautoscalers/status", "", "update", "desired and actual scale, and the reason"},
	rightRow{"*", "networking.internal.knative.dev", "serverlessservices", "", "list watch create update",
		"whether Knative's own activator is in the path of a revision"},
	rightRow{"*", "networking.internal.knative.dev", "ingresses", "", "list watch", "routes of our class"},
	rightRow{"*", "networking.internal.knative.dev", "ingresses/status", "", "update", "that a route is ready, and where"},
	rightRow{"*", "apps", "deployments", "", "get list watch", "the replicas of a revision as Kubernetes has them"},
	rightRow{"*", "apps", "deployments", "", "patch", "the scale; not by the subresource, since the patch also tests and writes the epoch, " +
		"so that an older controller writes nothing; the policy thaw-scale refuses other changes and other Deployments than a revision's"},
	rightRow{"*", "", "pods", "", "list watch", "replicas: their nodes, and reasons of failure"},
	rightRow{"*", "", "pods", "", "patch", "which pod of a Deployment is deleted first (pod-deletion-cost); the policy thaw-force-delete " +
		"refuses other changes and other pods than a revision's"},
	rightRow{"*", "", "pods", "", "delete", "a terminating pod that has drained releases its GPU without queue-proxy's 30 s; the policy " +
		"thaw-force-delete refuses pods that are not terminating or not a revision's"},
	rightRow{"*", "", "pods/log", "", "get", "thaw logs"},
	rightRow{"*", "", "nodes", "", "list watch", "GPUs and taints"},
	rightRow{"*", "", "namespaces", "", "list watch", "teams, and their limits in annotations"},
	rightRow{"*", "", "resourcequotas", "", "list watch", "GPUs that a team may hold"},
	rightRow{"*", "", "services", "", "list watch", "addresses of routes to other Services than models"},
	rightRow{"*", "", "secrets", "thaw-keys", "list watch", "the hashes of API keys; no other Secret can be read"},
	rightRow{"*", "", "events", "", "create patch", "decisions, as Events of the Service concerned"},
	rightRow{Namespace, "coordination.k8s.io", "leases", "", "create", "leader election; create cannot be granted by name"},
	rightRow{Namespace, "coordination.k8s.io", "leases", "thaw-controller", "get update", "leader election"},
	rightRow{Namespace, "", "secrets", "", "create", "the first two Secrets below, if missing"},
	rightRow{Namespace, "", "secrets", knative.ControlTLSSecret, "get update",
		"the token and the certificates of the control streams, which are renewed"},
	rightRow{Namespace, "", "secrets", knative.AdminSecret, "get", "the admin token of the control API"},
	rightRow{Namespace, "", "secrets", schedulerhint.SecretName, "get", "the certificate of the scheduler hint webhook"},
	rightRow{Namespace, "", "configmaps", "", "create", "the usage of teams; create cannot be granted by name"},
	rightRow{Namespace, "", "configmaps", "thaw-team-usage", "get update", "the usage of teams, which outlives a controller"},
	rightRow{Namespace, "", "services", "thaw-scheduler-hint", "get", "the port of the scheduler hint webhook"},
	rightRow{Namespace, "discovery.k8s.io", "endpointslices", "", "create",
		"leads API servers to the leader; create cannot be granted by name"},
	rightRow{Namespace, "discovery.k8s.io", "endpointslices", "thaw-scheduler-hint", "get update delete", "leads API servers to the leader"},
	rightRow{"*", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "thaw-scheduler-hint", "get",
		"whether API servers trust the webhook; a right to write it would lead to all rights of the cluster"},
	rightRow{"knative-serving", "discovery.k8s.io", "endpointslices", "", "list watch",
		"addresses of Knative's own activators, whose metrics count requests that bypass thaw's"},
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
