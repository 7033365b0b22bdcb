package schedulerhint

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"
)

// maxReviewBytes bounds a request's body: an object is at most 1.5 MiB, and an update
// holds two.
const maxReviewBytes = 4 << 20

// preferenceWeight is the largest weight of a preference.
const preferenceWeight = 100

// reviewHandler answers the API server's admission requests. It allows all of them.
type reviewHandler func(namespace, revision, uid string) (node string, ok bool)

func (h reviewHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != path {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "POST only", http.StatusMethodNotAllowed)
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "application/json only", http.StatusUnsupportedMediaType)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReviewBytes))
	if err != nil {
		http.Error(w, "the request is too large or incomplete", http.StatusRequestEntityTooLarge)
		return
	}
	var in admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &in); err != nil || in.Request == nil {
		http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
		return
	}
	out := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Response: h.review(in.Request)}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the API server has gone
}

// review answers for one pod, with a patch if there is a hint.
func (h reviewHandler) review(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	yes := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
	if r.Operation != admissionv1.Create || r.Resource.Resource != "pods" || r.SubResource != "" {
		return yes
	}
	var pod corev1.Pod
	if json.Unmarshal(r.Object.Raw, &pod) != nil {
		return yes
	}
	revision := pod.Labels[serving.RevisionLabelKey]
	if revision == "" || pod.Spec.NodeName != "" {
		return yes
	}
	node, ok := h(r.Namespace, revision, pod.Labels[serving.RevisionUID])
	if !ok || node == "" {
		return yes
	}
	patch, err := json.Marshal([]operation{preferNode(&pod, node)})
	if err != nil {
		return yes
	}
	kind := admissionv1.PatchTypeJSONPatch
	yes.Patch, yes.PatchType = patch, &kind
	return yes
}

// operation is one operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// preferNode adds a node preference to a pod's affinity.
func preferNode(pod *corev1.Pod, node string) operation {
	term := corev1.PreferredSchedulingTerm{Weight: preferenceWeight, Preference: corev1.NodeSelectorTerm{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}
	list := []corev1.PreferredSchedulingTerm{term}
	switch a := pod.Spec.Affinity; {
	case a == nil:
		return operation{"add", "/spec/affinity",
			corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: list}}}
	case a.NodeAffinity == nil:
		return operation{"add", "/spec/affinity/nodeAffinity", corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: list}}
	case len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0:
		return operation{"add", "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution", list}
	}
	return operation{"add", "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/-", term}
}
