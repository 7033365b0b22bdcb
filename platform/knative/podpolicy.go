package knative

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative/team"
)

const (
	// podPolicy is the ValidatingAdmissionPolicy that bounds what pods mount of their node.
	podPolicy = "thaw-pods"

	// PodPolicyLabel on a namespace with the value off: podPolicy does not apply there,
	// unless it is a team's.
	PodPolicyLabel = "thaw.dev/pod-policy"
)

// podPolicyBindings apply podPolicy to teams' namespaces and to Knative Services elsewhere.
var podPolicyBindings = []string{"thaw-pods-of-teams", "thaw-pods-of-services"}

// checkPodPolicy checks that pods can mount no folder of their node but that of the
// loader's socket, and names the namespaces where they can. Knative's hostPath feature is
// on or off for all namespaces.
func (d *doctor) checkPodPolicy(ctx context.Context) error {
	const what = "pods of Knative Services can mount any folder of their node: "
	admission := d.c.kube.AdmissionregistrationV1()
	missing := ""
	_, err := admission.ValidatingAdmissionPolicies().Get(ctx, podPolicy, metav1.GetOptions{})
	if isNotFound(err) {
		missing, err = "the policy "+podPolicy, nil
	}
	for _, name := range podPolicyBindings {
		if err != nil || missing != "" {
			break
		}
		if _, err = admission.ValidatingAdmissionPolicyBindings().Get(ctx, name, metav1.GetOptions{}); isNotFound(err) {
			missing, err = "the policy's binding "+name, nil
		}
	}
	switch {
	case err != nil:
		return d.c.ignoreForbidden(err, podPolicy)
	case missing != "":
		if is, err := d.installed(ctx); err != nil || !is {
			return err // reported by checkInstalled
		}
		d.add(noteFinding("Knative's hostPath feature is on for all namespaces; "+installCommand, what+"%s is missing", missing))
		return nil
	}
	off, err := d.c.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: PodPolicyLabel + "=off,!" + team.Label})
	if err != nil {
		return d.c.ignoreForbidden(err, "namespaces")
	}
	if len(off.Items) > 0 {
		names := functions.ConvertAll(off.Items, func(n corev1.Namespace) string { return n.Name })
		d.add(noteFinding("kubectl label namespace "+strings.Join(names, " ")+" "+PodPolicyLabel+"-", what+"%s has the label %s=off",
			strings.Join(names, ", "), PodPolicyLabel))
	} else {
		d.add(goodFinding("pods mount no folder of their node but that of the loader's socket, in all namespaces"))
	}
	return nil
}
