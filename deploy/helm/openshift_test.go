package helm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// restrictedV2 is the SCC restricted-v2 as OpenShift 4.11 and later have it.
const restrictedV2 = `
allowHostDirVolumePlugin: false
allowHostIPC: false
allowHostNetwork: false
allowHostPID: false
allowHostPorts: false
allowPrivilegeEscalation: false
allowPrivilegedContainer: false
allowedCapabilities: [NET_BIND_SERVICE]
defaultAddCapabilities: null
fsGroup: {type: MustRunAs}
readOnlyRootFilesystem: false
requiredDropCapabilities: [ALL]
runAsUser: {type: MustRunAsRange}
seLinuxContext: {type: MustRunAs}
seccompProfiles: [runtime/default]
supplementalGroups: {type: RunAsAny}
volumes: [configMap, csi, downwardAPI, emptyDir, ephemeral, persistentVolumeClaim, projected, secret]
`

// at returns what is at a path of an object; nil for nothing.
func at(o map[string]any, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	return v
}

func listAt(o map[string]any, path ...string) (all []map[string]any) {
	items, _, _ := unstructured.NestedSlice(o, path...)
	for _, x := range items {
		all = append(all, x.(map[string]any))
	}
	return all
}

// violations returns why an SCC does not admit a pod, by OpenShift's rules: what the pod leaves
// out the SCC fills in, and what it names must be allowed. A range of ids is the namespace's own,
// so no fixed id is in it.
func violations(scc, pod map[string]any) (found []string) {
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for field, allowed := range map[string]string{"hostIPC": "allowHostIPC", "hostNetwork": "allowHostNetwork", "hostPID": "allowHostPID"} {
		if pod[field] == true && scc[allowed] != true {
			add("%s", field)
		}
	}
	allowed, _, _ := unstructured.NestedStringSlice(scc, "volumes")
	for _, v := range listAt(pod, "volumes") {
		for kind := range v {
			if kind != "name" && (!slices.Contains(allowed, kind) || kind == "hostPath" && scc["allowHostDirVolumePlugin"] != true) {
				add("volume %s: %s", v["name"], kind)
			}
		}
	}
	if scc["fsGroup"].(map[string]any)["type"] == "MustRunAs" && at(pod, "securityContext", "fsGroup") != nil {
		add("fsGroup")
	}
	wrong := func(name, what string, bad bool) {
		if bad {
			add("container %s: %s", name, what)
		}
	}
	may, _, _ := unstructured.NestedStringSlice(scc, "allowedCapabilities")
	for _, c := range append(listAt(pod, "initContainers"), listAt(pod, "containers")...) {
		name := c["name"].(string)
		of := func(field string) any {
			if v := at(c, "securityContext", field); v != nil {
				return v
			}
			return at(pod, "securityContext", field)
		}
		user := of("runAsUser")
		switch scc["runAsUser"].(map[string]any)["type"] {
		case "MustRunAsRange":
			wrong(name, "runAsUser", user != nil)
		case "MustRunAsNonRoot":
			wrong(name, "root", fmt.Sprint(user) == "0" || user == nil && of("runAsNonRoot") != true)
		}
		wrong(name, "privileged", at(c, "securityContext", "privileged") == true)
		wrong(name, "allowPrivilegeEscalation", at(c, "securityContext", "allowPrivilegeEscalation") == true)
		wrong(name, "seLinuxOptions", of("seLinuxOptions") != nil)
		profile := of("seccompProfile")
		wrong(name, "seccompProfile", profile != nil && profile.(map[string]any)["type"] != "RuntimeDefault")
		capabilities, _, _ := unstructured.NestedStringSlice(c, "securityContext", "capabilities", "add")
		for _, x := range capabilities {
			wrong(name, "capability "+x, !slices.Contains(may, x))
		}
		drops, set, _ := unstructured.NestedStringSlice(c, "securityContext", "capabilities", "drop")
		wrong(name, "drops less than ALL", set && !slices.Contains(drops, "ALL"))
		for _, p := range listAt(c, "ports") {
			wrong(name, "hostPort", p["hostPort"] != nil && scc["allowHostPorts"] != true)
		}
	}
	slices.Sort(found)
	return found
}

// TestOpenShift: restricted-v2 admits the pods of controller and activator, and the SCC
// thaw-models those of models with Knative's container beside them, as they are rendered; without
// the value openshift it refuses them for their ids alone.
func TestOpenShift(t *testing.T) {
	scc := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(restrictedV2), &scc); err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string]string{
		"openshift: true": "",
		"openshift: true\ncontroller: {historyClaim: past, env: [{name: A, value: b}]}\nactivator: {publicAPI: true}": "",
		"": "runAsUser fsGroup",
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"thaw-controller", "thaw-activator"} {
			pod, _ := at(got["Deployment thaw-system/"+name], "spec", "template", "spec").(map[string]any)
			found := strings.Join(violations(scc, pod), ", ")
			if len(listAt(pod, "containers")) != 1 || (found == "") != (want == "") {
				t.Errorf("%q: %s: %s", values, name, found)
			}
			for _, w := range strings.Fields(want) {
				if !strings.Contains(found, w) {
					t.Errorf("%q: %s: no %s in: %s", values, name, w, found)
				}
			}
			for _, c := range append(listAt(pod, "initContainers"), listAt(pod, "containers")...) { // Pod Security's restricted too
				context, _ := yaml.Marshal(c["securityContext"])
				if at(pod, "securityContext", "runAsNonRoot") != true || at(pod, "securityContext", "seccompProfile", "type") != "RuntimeDefault" ||
					string(context) != "allowPrivilegeEscalation: false\ncapabilities:\n  drop:\n  - ALL\nreadOnlyRootFilesystem: true\n" {
					t.Errorf("%s: container %s has\n%s", name, c["name"], context)
				}
			}
		}
		loader, _ := at(got["DaemonSet thaw-system/thaw-loader"], "spec", "template", "spec").(map[string]any)
		if found := violations(scc, loader); !slices.Contains(found, "hostPID") || !slices.Contains(found, "volume store: hostPath") {
			t.Errorf("%q: restricted-v2 admits the loader, and the guide says that it needs privileged: %s", values, found)
		}
	}
	testModels(t, scc)
}

// testModels checks the SCC of models' pods against what the program renders.
func testModels(t *testing.T, restricted map[string]any) {
	got, err := render(t, "openshift: true")
	if err != nil {
		t.Fatal(err)
	}
	scc, role := got["SecurityContextConstraints /thaw-models"], got["ClusterRole /thaw-models"]
	if scc == nil || !strings.Contains(fmt.Sprint(role["rules"]), "resourceNames:[thaw-models]") {
		t.Fatalf("SCC %v, role %v", scc, role)
	}
	for _, field := range []string{"allowHostIPC", "allowHostNetwork", "allowHostPID", "allowHostPorts", "allowPrivilegeEscalation", "allowPrivilegedContainer"} {
		if scc[field] != false {
			t.Errorf("thaw-models: %s is %v", field, scc[field])
		}
	}
	files, err := filepath.Glob("../../platform/knative/testdata/render/*.service.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	// Knative's queue-proxy, as its controller makes it.
	var proxy map[string]any
	if err := yaml.Unmarshal([]byte("{name: queue-proxy, securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}}"), &proxy); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		services := objects{}
		services.add(t, f, text)
		for name, s := range services {
			pod, _ := at(s, "spec", "template", "spec").(map[string]any)
			pod["containers"] = append(pod["containers"].([]any), proxy)
			if found := violations(scc, pod); len(found) > 0 || len(listAt(pod, "containers")) != 2 {
				t.Errorf("%s: thaw-models refuses %s: %s", f, name, found)
			}
			if found := violations(restricted, pod); len(found) == 0 {
				t.Errorf("%s: restricted-v2 admits %s, and the guide says that it does not", f, name)
			}
		}
	}
}
