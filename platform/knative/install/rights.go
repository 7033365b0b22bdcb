package install

import "strings"

// Right is one thing that an installation allows its controller, with the reason.
type Right struct {
	Where    string // a namespace, or "*" for all and for what is in none
	Group    string
	Resource string
	Name     string // "" is any
	Verb     string
	Why      string
}

// Rights are all that are granted, to the ServiceAccount thaw-controller alone.
// Activators and loaders have none.
var Rights = rights(
	// The rows: where, group, resources, name, verbs, why.
	row{"*", "serving.knative.dev", "services", "", "get list watch", "models, and their own documents in an annotation; a team's requests are told about by events of them"},
	row{"*", "serving.knative.dev", "revisions", "", "get list watch", "functions: what each revision of a model runs, and which still exist"},
	row{"*", "autoscaling.internal.knative.dev", "podautoscalers", "", "get list watch", "what is to be scaled by our class"},
	row{"*", "autoscaling.internal.knative.dev", "podautoscalers/status", "", "update", "desired and actual scale, and why"},
	row{"*", "autoscaling.internal.knative.dev", "metrics", "", "get list watch create update delete", "Knative's autoscaler counts requests that come past our activator only where there is one"},
	row{"*", "networking.internal.knative.dev", "serverlessservices", "", "get list watch create update", "whether Knative's own activator stands before a revision"},
	row{"*", "networking.internal.knative.dev", "ingresses", "", "get list watch", "routes of our class"},
	row{"*", "networking.internal.knative.dev", "ingresses/status", "", "update", "that a route is ready, and where"},
	row{"*", "apps", "deployments", "", "get list watch", "the replicas of a revision as Kubernetes has them"},
	row{"*", "apps", "deployments/scale", "", "get update", "the scale itself, and nothing else of a Deployment"},
	row{"*", "", "pods", "", "get list watch", "replicas: where they are, and why one is not"},
	row{"*", "", "pods", "", "patch", "which pod of a Deployment is to go first (pod-deletion-cost)"},
	row{"*", "", "nodes", "", "get list watch", "GPUs there are, and taints"},
	row{"*", "", "nodes", "", "patch", "which models are near, as an annotation"},
	row{"*", "", "namespaces", "", "get list watch", "teams, and their limits in annotations"},
	row{"*", "", "resourcequotas", "", "get list watch", "GPUs that a team may hold"},
	row{"*", "", "services", "", "get list watch", "where a route leads to that is not our model's"},
	row{"*", "", "endpoints", "", "get list watch", "whether anything answers there"},
	row{"*", "", "secrets", "thaw-keys", "list watch", "the hashes of API keys; no other Secret can be read"},
	row{"*", "", "events", "", "create patch", "what was decided, at the Service it was decided about"},
	row{Namespace, "coordination.k8s.io", "leases", "", "create", "who leads; a name cannot be granted before it is there"},
	row{Namespace, "coordination.k8s.io", "leases", "thaw-controller", "get update", "who leads"},
	row{Namespace, "", "secrets", "", "create", "the token by which thaw's processes know each other, where there is none"},
	row{Namespace, "", "secrets", LinkSecret, "get", "that token"},
	row{"knative-serving", "", "configmaps", "config-autoscaler", "get list watch", "Knative's own settings of scaling hold for us too"},
	row{"knative-serving", "", "configmaps", "config-network", "get list watch", "the names of hosts, and what is done with plain HTTP"},
	row{"knative-serving", "", "configmaps", "config-domain", "get list watch", "the names of hosts"},
)

type row struct{ where, group, resource, name, verbs, why string }

func rights(rows ...row) []Right {
	var out []Right
	for _, r := range rows {
		for verb := range strings.FieldsSeq(r.verbs) {
			out = append(out, Right{r.where, r.group, r.resource, r.name, verb, r.why})
		}
	}
	return out
}
