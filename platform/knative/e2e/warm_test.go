package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/platform/knative/install"
)

// lend installs a warm host with the machine's vLLM, as an operator does. The files that
// no image here contains are mounted.
func (b *bench) lend(h host) {
	b.Helper()
	if _, errs, code := b.program(b.Context(), "thaw-knative", "install", "--image", image, "--loaders", "all", "--keep-free", "0",
		"--warm-image", "dev.local/hello:test"); code != 0 {
		b.Fatalf("install: exit %d\n%s", code, errs)
	}
	type named = map[string]any
	var volumes, places, env []named
	for i, place := range slices.Sorted(maps.Keys(h.mounts)) {
		name := fmt.Sprintf("host-%d", i)
		volumes = append(volumes, named{"name": name, "hostPath": named{"path": h.mounts[place]}})
		places = append(places, named{"name": name, "mountPath": place, "readOnly": true})
	}
	vars := h.shimmed()
	vars["VLLM_TARGET_DEVICE"] = "cpu"
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, named{"name": k, "value": vars[k]})
	}
	patch, err := json.Marshal(named{"spec": named{"template": named{"spec": named{"volumes": volumes, "containers": []named{{"name": "warm", "volumeMounts": places, "env": env}}}}}})
	if err != nil {
		b.Fatal(err)
	}
	sets := b.core.AppsV1().DaemonSets(install.Namespace)
	d, err := sets.Patch(b.Context(), "thaw-warm", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if !b.Failed() {
			return
		}
		for _, p := range b.thawPods("warm") {
			b.Logf("-- %s: %s", p.Name, b.logs(b.Context(), install.Namespace, p.Name, "warm", 40))
		}
	})
	until(b.T, 5*time.Minute, "an interpreter that is lent", func() (bool, string) {
		now, err := sets.Get(b.Context(), "thaw-warm", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		st := now.Status
		return st.ObservedGeneration >= d.Generation && st.UpdatedNumberScheduled == 1 && st.NumberReady == 1, fmt.Sprintf("%+v", st)
	})
}
