// Package helm_test renders the chart as helm does, and holds it to the objects of
// kustomize. It is a module of its own: Helm is no dependency of thaw.
package helm_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// objects are, under KIND NAMESPACE/NAME, what each is.
type objects map[string]map[string]any

func (o objects) add(t *testing.T, from string, text []byte) {
	t.Helper()
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		var m map[string]any
		if err := yaml.UnmarshalStrict(doc, &m); err != nil {
			t.Fatalf("%s: %v\n%s", from, err, doc)
		}
		if m == nil {
			continue
		}
		x := unstructured.Unstructured{Object: m}
		key := fmt.Sprintf("%s %s/%s", x.GetKind(), x.GetNamespace(), x.GetName())
		if o[key] != nil {
			t.Errorf("%s: %s is there twice", from, key)
		}
		o[key] = m
	}
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load("thaw")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// render is helm template with a file of values.
func render(t *testing.T, values string) (objects, error) {
	t.Helper()
	return rendered(t, engine.Engine{}, values)
}

func rendered(t *testing.T, e engine.Engine, values string) (objects, error) {
	t.Helper()
	c := load(t)
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(c, given,
		chartutil.ReleaseOptions{Name: "thaw", Namespace: "thaw-system", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := e.Render(c, all)
	if err != nil {
		return nil, err
	}
	got := objects{}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			got.add(t, name, []byte(text))
		}
	}
	return got, nil
}

// base is what kustomize has, with an image in its place.
func base(t *testing.T, image string) objects {
	t.Helper()
	files, err := filepath.Glob("../kustomize/base/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	want := objects{}
	for _, f := range files {
		if filepath.Base(f) == "kustomization.yaml" || filepath.Base(f) == "namespace.yaml" { // helm --create-namespace
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		want.add(t, f, bytes.ReplaceAll(text, []byte("image: thaw\n"), []byte("image: "+image+"\n")))
	}
	return want
}

// TestSame: with the values it comes with, the chart is deploy/kustomize/base.
func TestSame(t *testing.T) {
	got, err := rendered(t, engine.Engine{Strict: true}, "") // a value that is not there is an error
	if err != nil {
		t.Fatal(err)
	}
	want := base(t, "thaw-dev/thaw:dev")
	for key := range want {
		a, _ := yaml.Marshal(want[key])
		b, _ := yaml.Marshal(got[key])
		if !bytes.Equal(a, b) {
			t.Errorf("%s: kustomize has\n%s\nand the chart\n%s", key, a, b)
		}
	}
	for key := range got {
		if want[key] == nil {
			t.Errorf("%s is in the chart alone", key)
		}
	}
}

// TestValues: what each value changes.
func TestValues(t *testing.T) {
	for _, x := range []struct {
		name, values string
		object       string
		want         []string // in it
		not          []string
	}{
		{"image", "image: {repository: example.com/thaw, tag: '2'}", "DaemonSet thaw-system/thaw-loader", []string{"image: example.com/thaw:2"}, []string{"thaw-dev"}},
		{"digest", "image: {digest: 'sha256:" + strings.Repeat("a", 64) + "', pullPolicy: Always, pullSecrets: [{name: mine}]}", "Deployment thaw-system/thaw-controller", []string{"image: thaw-dev/thaw@sha256:" + strings.Repeat("a", 64), "imagePullPolicy: Always", "- name: mine"}, nil},
		{"a dependency of another chart", "global: {imageRegistry: r}\nenabled: true", "DaemonSet thaw-system/thaw-loader", []string{"image: thaw-dev/thaw:dev"}, nil},
		{"a moving tag", "image: {tag: latest}", "DaemonSet thaw-system/thaw-loader", []string{"image: thaw-dev/thaw:latest"}, []string{"imagePullPolicy"}},
		{"all nodes", "loader: {nodeSelector: null}", "DaemonSet thaw-system/thaw-loader", nil, []string{"nodeSelector"}},
		{"a pool", "loader: {nodeSelector: {nvidia.com/gpu.present: null, agentpool: gpu}, store: /mnt/thaw, priorityClassName: " +
			"system-node-critical, podLabels: {a: b}, env: [{name: X, value: z}]}", "DaemonSet thaw-system/thaw-loader",
			[]string{"agentpool: gpu", "path: /mnt/thaw", "--store=/mnt/thaw", "- /mnt/thaw\n", "system-node-critical", "a: b", "name: X"}, []string{"gpu.present", "/var/lib/thaw"}},
		{"the size of the store", "loader: {storeBytes: 800Gi, keepFree: 0}", "DaemonSet thaw-system/thaw-loader", []string{"- --store-bytes=800Gi\n", "- --keep-free=0\n"}, nil},
		{"shares", "loader: {folders: [{path: /mnt/models}, {path: /nfs, volume: {nfs: {server: s, path: /x}}}]}", "DaemonSet thaw-system/thaw-loader",
			[]string{"- --folder=/mnt/models\n", "- --folder=/nfs\n", "mountPath: /nfs\n          name: folder-1\n          readOnly: true", "hostPath:\n          path: /mnt/models\n          type: Directory\n        name: folder-0", "name: folder-1\n        nfs:\n          path: /x"}, nil},
		{"many nodes", "loader: {maxUnavailable: 10%}", "DaemonSet thaw-system/thaw-loader", []string{"maxUnavailable: 10%"}, nil},
		{"what stays free", "loader: {keepFree: 30}", "DaemonSet thaw-system/thaw-loader", []string{"- --keep-free=30\n"}, []string{"--store-bytes"}},
		{"identity", "loader: {serviceAccount: {annotations: {azure.workload.identity/client-id: abc}}}", "ServiceAccount thaw-system/thaw-loader", []string{"azure.workload.identity/client-id: abc"}, nil},
		{"outside", "activator: {service: {type: LoadBalancer, annotations: {a: b}}, replicas: 3}", "Service thaw-system/thaw", []string{"type: LoadBalancer", "a: b"}, nil},
		{"a load balancer for some", "activator: {service: {type: LoadBalancer, spec: {loadBalancerSourceRanges: [10.0.0.0/8], externalTrafficPolicy: Local, ipFamilyPolicy: PreferDualStack}}}", "Service thaw-system/thaw",
			[]string{"- 10.0.0.0/8", "externalTrafficPolicy: Local", "ipFamilyPolicy: PreferDualStack", "type: LoadBalancer", "port: 80"}, nil},
		{"a registry with a port", "image: {repository: 'registry.example.com:5000/ml/thaw'}", "DaemonSet thaw-system/thaw-loader", []string{"image: registry.example.com:5000/ml/thaw:dev"}, nil},
		{"disk of the container", "controller: {resources: {requests: {ephemeral-storage: 1Gi}}}", "Deployment thaw-system/thaw-controller", []string{"ephemeral-storage: 1Gi", "memory: 128Mi"}, nil},
		{"more", "activator: {replicas: 3}", "Deployment thaw-system/thaw-activator", []string{"replicas: 3"}, nil},
		{"how the controller decides", "clusterDomain: k8s.example.com\ncontroller: {eviction: next-use, keepAlive: learned, prewarm: true, " +
			"prewarmBudget: 1h30m, historyClaim: past}", "Deployment thaw-system/thaw-controller",
			[]string{"- --cluster-domain=k8s.example.com\n", "- --eviction=next-use\n", "- --keep-alive=learned\n", "- --prewarm=on\n", "- --prewarm-budget=1h30m\n", "- --data=/history\n", "- mountPath: /history\n", "persistentVolumeClaim:\n          claimName: past\n"}, nil},
		{"no more than is said", "controller: {eviction: lru}", "Deployment thaw-system/thaw-controller", []string{"- --eviction=lru\n"}, []string{"cluster-domain", "keep-alive", "prewarm", "--data", "history"}},
		{"how requests wait", "activator: {hold: 503, maxBody: 64Mi}", "Deployment thaw-system/thaw-activator", []string{"- --hold=503\n", "- --max-body=64Mi\n"}, nil},
		{"the control API outside", "activator: {publicAPI: true}", "Deployment thaw-system/thaw-activator", []string{"- --public-api\n"}, nil},
		{"load balancers", "activator: {trustedProxies: [203.0.113.0/28, 10.0.0.1]}", "Deployment thaw-system/thaw-activator", []string{"- --trusted-proxy=203.0.113.0/28\n", "- --trusted-proxy=10.0.0.1\n"}, nil},
		{"what one client may use", "activator: {clientShare: 100}", "Deployment thaw-system/thaw-activator", []string{"- --client-share=100\n"}, []string{"--hold", "--max-body"}},
		{"how long they may be", "activator: {maxBody: '1000000'}", "Deployment thaw-system/thaw-activator", []string{"- --max-body=1000000\n"}, []string{"--hold", "--public-api"}},
		{"where the controller is", "controller: {affinity: {nodeAffinity: {x: on-demand}}, podLabels: {team: infra}, podAnnotations: {a/b: c}, env: [{name: GOMEMLIMIT, value: 400MiB}]}",
			"Deployment thaw-system/thaw-controller", []string{"affinity:\n        nodeAffinity:\n          x: on-demand", "team: infra", "a/b: c", "component: controller\n        app.kubernetes.io/part-of: thaw\n        team", "name: GOMEMLIMIT", "name: POD_IP"}, nil},
		{"where the activators are", "activator: {affinity: {podAntiAffinity: {x: zone}}, podLabels: {team: infra}, podAnnotations: {sidecar.istio.io/inject: 'false'}, env: [{name: GOMEMLIMIT, value: 400MiB}]}",
			"Deployment thaw-system/thaw-activator", []string{"affinity:\n        podAntiAffinity:\n          x: zone", "team: infra", "sidecar.istio.io/inject: \"false\"", "name: GOMEMLIMIT", "name: POD_NAMESPACE"}, nil},
		{"where the loaders are", "loader: {affinity: {nodeAffinity: {x: on-demand}}, podAnnotations: {a/b: c}}",
			"DaemonSet thaw-system/thaw-loader", []string{"affinity:\n        nodeAffinity:\n          x: on-demand", "a/b: c"}, nil},
		{"no right to change nodes", "", "ClusterRole /thaw-controller", []string{"nodes"}, []string{"bounded by", "- nodes\n  verbs:\n  - patch"}},
		{"elsewhere", "knative: {namespace: other}", "Role other/thaw-controller", []string{"endpointslices"}, nil},
		{"monitor", "serviceMonitor: {enabled: true, labels: {release: prometheus}}", "ServiceMonitor thaw-system/thaw-controller", []string{"release: prometheus", "interval: 30s", "key: metrics-token"}, nil},
		{"pods' monitor", "serviceMonitor: {enabled: true}", "PodMonitor thaw-system/thaw", []string{"port: metrics", "key: metrics-token"}, nil},
		{"metrics want a token", "", "Deployment thaw-system/thaw-activator", []string{"- --metrics-token-file=/run/thaw/metrics-token\n", "- key: metrics-token\n"}, nil},
		{"metrics are for the monitoring", "networkPolicies: {monitoring: [{namespaceSelector: {matchLabels: {a: b}}}]}", "NetworkPolicy thaw-system/thaw-activator", []string{"a: b"}, []string{"thaw.dev/monitoring"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			all, err := render(t, x.values)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := yaml.Marshal(all[x.object])
			for _, want := range x.want {
				if !strings.Contains(string(text), want) {
					t.Errorf("%s has no %q:\n%s", x.object, want, text)
				}
			}
			for _, not := range x.not {
				if strings.Contains(string(text), not) {
					t.Errorf("%s has %q:\n%s", x.object, not, text)
				}
			}
		})
	}
	all, err := render(t, "networkPolicies: {enabled: false}\npodDisruptionBudgets: {enabled: false}\npodPolicy: {enabled: false}")
	if err != nil {
		t.Fatal(err)
	}
	for key := range all {
		if kind, _, _ := strings.Cut(key, " "); slices.Contains([]string{"NetworkPolicy", "PodDisruptionBudget", "Secret", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, kind) && !strings.HasSuffix(key, "/thaw-scale") && !strings.HasSuffix(key, "/thaw-force-delete") {
			t.Errorf("%s is there all the same", key)
		}
	}
	for _, name := range []string{"thaw-scale", "thaw-force-delete"} { // they bound the controller's rights, and have no switch
		if all["ValidatingAdmissionPolicy /"+name] == nil || all["ValidatingAdmissionPolicyBinding /"+name] == nil {
			t.Errorf("%s is gone", name)
		}
	}
}

// TestWarm: the interpreter that nodes lend is not there unless it is enabled, and
// then it is deploy/kustomize/warm.
func TestWarm(t *testing.T) {
	const key, policy, image = "DaemonSet thaw-system/thaw-warm", "NetworkPolicy thaw-system/thaw-warm", "example.com/vllm:1"
	text, err := os.ReadFile("../kustomize/warm/warm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("image: thaw\n"), []byte("image: thaw-dev/thaw:dev\n"))
	want := objects{}
	want.add(t, "warm.yaml", bytes.ReplaceAll(text, []byte("image: thaw-warm\n"), []byte("image: "+image+"\n")))
	got, err := render(t, "warm: {enabled: true, image: '"+image+"'}")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{key, policy} {
		a, _ := yaml.Marshal(want[key])
		b, _ := yaml.Marshal(got[key])
		if len(want) != 2 || !bytes.Equal(a, b) {
			t.Errorf("kustomize has\n%s\nand the chart\n%s", a, b)
		}
	}
	got, err = render(t, "warm: {enabled: true, image: '"+image+"', env: [{name: X, value: z}], resources: {requests: {memory: 7Gi}}}")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := yaml.Marshal(got[key])
	for _, want := range []string{"name: X", "memory: 7Gi"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
	if _, err := render(t, "warm: {enabled: true}"); err == nil || !strings.Contains(err.Error(), "warm.image") {
		t.Errorf("without an image: %v", err)
	}
}

// TestAzure: with the values of deploy/azure, the loader is on the GPU pool, on the
// NVMe disk, and has its identity.
func TestAzure(t *testing.T) {
	values, err := os.ReadFile("../azure/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := render(t, string(values))
	if err != nil {
		t.Fatal(err)
	}
	for object, want := range map[string][]string{
		"DaemonSet thaw-system/thaw-loader":      {"kubernetes.azure.com/agentpool: gpu", "path: /mnt/thaw/store", "type: Directory\n", "--store=/mnt/thaw/store", `azure.workload.identity/use: "true"`, "serviceAccountName: thaw-loader"},
		"ServiceAccount thaw-system/thaw-loader": {"azure.workload.identity/client-id: 00000000-0000-0000-0000-000000000000"},
		"Service thaw-system/thaw":               {"type: LoadBalancer", "azure-load-balancer-internal"},
		"ValidatingAdmissionPolicy /thaw-pods":   {`v.hostPath.path == "/mnt/thaw/store/sockets"`},
	} {
		text, _ := yaml.Marshal(got[object])
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s has no %q:\n%s", object, w, text)
			}
		}
	}
	if text, _ := yaml.Marshal(got["DaemonSet thaw-system/thaw-loader"]); strings.Contains(string(text), "gpu.present") ||
		strings.Contains(string(text), "/var/lib/thaw") {
		t.Errorf("of the plain values there is left:\n%s", text)
	}
}

// TestSchema: a value that means nothing is refused, and every value is in the schema.
func TestSchema(t *testing.T) {
	for _, values := range []string{
		"imge: {}", "image: {tag: 'a b'}", "image: {digest: md5:1}", "image: {pullPolicy: Sometimes}", "controller: {replicas: 0}", "controller: {replicas: two}",
		"activator: {service: {type: ExternalName}}", "activator: {secret: x}", "loader: {store: relative}", "loader: {store: /}", "loader: {tolerations: [{effect: Never}]}",
		"loader: {storeBytes: much}", "loader: {storeBytes: 0}", "loader: {keepFree: 15%}", "loader: {keepFree: 96}", "loader: {maxUnavailable: 0}", "loader: {maxUnavailable: all}", "loader: {folders: [{path: models}]}", "loader: {folders: [/mnt]}", "loader: {folders: [{path: /a, volume: {}}]}",
		"networkPolicies: {enabled: 'yes'}", "networkPolicies: {apiServer: []}", "networkPolicies: {monitoring: [{}]}", "serviceMonitor: {interval: soon}", "token: secret",
		"loader: {resources: {requests: {gpu: 1}}}",
		"clusterDomain: .local", "clusterDomain: a b", "controller: {eviction: fifo}", "controller: {keepAlive: always}", "controller: {prewarm: 'yes'}", "controller: {prewarmBudget: 1}", "controller: {prewarmBudget: 0h}", "controller: {prewarmBudget: -1h}",
		"controller: {historyClaim: a/b}", "activator: {hold: maybe}", "activator: {hold: 404}", "activator: {maxBody: 0Mi}", "activator: {maxBody: many}", "activator: {maxBody: -1}", "activator: {clientShare: 101}",
		"image: {repository: 'r/x:1'}", "image: {repository: r/x@sha256}", "image: {repository: ''}", "loader: null", "controller: null", "loader: {sourceSecret: null}", "activator: {podLabels: {app.kubernetes.io/component: x}}",
		"activator: {trustedProxies: [nonsense]}", "activator: {service: {spec: {selector: {a: b}}}}", "controller: {resources: null}",
		"controller: {affinity: {nodes: {}}}", "controller: {podLabels: {a: 1}}", "activator: {env: [{value: x}]}", "loader: {podAnnotations: []}",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// TestNamespace: a release in a namespace where the programs do not look is refused.
func TestNamespace(t *testing.T) {
	c := load(t)
	all, err := chartutil.ToRenderValues(c, nil, chartutil.ReleaseOptions{Name: "thaw", Namespace: "ml", IsInstall: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (engine.Engine{}).Render(c, all); err == nil || !strings.Contains(err.Error(), "not in ml: helm install … -n thaw-system") {
		t.Error(err)
	}
}
