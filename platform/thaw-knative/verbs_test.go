package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
)

var update = flag.Bool("update", false, "write what is rendered as what is wanted")

// thaw runs the program as main does.
func thaw(t *testing.T, env map[string]string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	var out, errs bytes.Buffer
	exit = run(t.Context(), args, func(name string) string { return env[name] }, &out, &errs)
	return out.String(), errs.String(), exit
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const model = "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen}\nspec: {source: 'hf://a/b', engine: vllm, resources: {gpus: " +
	"1}}\n"

// kubeconfig leads to a server.
func kubeconfig(t *testing.T, server string) string {
	return write(t, "kubeconfig", `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "`+server+`"}}],
"users": [{"name": "u", "user": {"token": "secret"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}], "current-context": "c"}`)
}

// TestWrong: every way to say it wrong has its exit code and a way out.
func TestWrong(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	file := write(t, "m.yaml", model)
	gone := filepath.Join(t.TempDir(), "gone")
	for _, x := range []struct {
		args string
		exit int
		want string
	}{
		{"deplo", kit.ExitUsage, "did you mean deploy?"},
		{"deploy", kit.ExitUsage, "-f FILE is missing"},
		{"deploy " + file, kit.ExitUsage, "thaw-knative deploy -f " + file},
		{"deploy -f " + gone, kit.ExitNotFound, "there is no file"},
		{"deploy -f " + write(t, "bad.yaml", "kind: Modell\n"), kit.ExitUsage, "bad.yaml:1"},
		{"deploy -f " + write(t, "remote.yaml", "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: a}\nspec: {url: \"https://api.example.com/v1\"}\n"), kit.ExitUsage, "a Remote is not on Kubernetes yet"},
		{"deploy -f " + write(t, "router.yaml", "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec: {rules: [{name: all, to: [a]}]}\n"), kit.ExitUsage, "a Router is not on Kubernetes yet"},
		{"deploy -f " + write(t, "panel.yaml", "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel}\nspec: {pattern: ensemble, members: [a, b], coordinator: a}\n"), kit.ExitUsage, "a Composition is not on Kubernetes yet"},
		{"deploy -f " + write(t, "team.yaml", "apiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: a}\nspec: {}\n"), kit.ExitUsage, "a team cannot be deployed"},
		{"deploy -f " + write(t, "local.yaml", strings.Replace(model, "hf://a/b", "./w", 1)), kit.ExitUsage, "spec.source: ./w is a folder of this machine"},
		{"deploy --namespace A_ -f " + file, kit.ExitUsage, `"A_" cannot be a namespace`},
		{"deploy --image vllm -f " + file, kit.ExitUsage, `"vllm" does not name an engine and its image`},
		{"deploy --image vlm=x -f " + file, kit.ExitUsage, "--image \"vlm=x\" does not name an engine and its image\nhint: such as vllm=vllm/vllm-openai:v0.32.0; engines: [ember vllm sglang llamacpp command]"},
		{"deploy --pod /nowhere -f " + file, kit.ExitNotFound, "--pod: open /nowhere: no such file"},
		{"deploy --image vllm= -f " + file, kit.ExitUsage, "does not name an engine and its image"},
		{"deploy --request-timeout 0.5s -f " + file, kit.ExitUsage, "500ms is no time for a request"},
		{"deploy --store x -f " + file, kit.ExitUsage, `the store "x" is not a clean absolute path`},
		{"deploy --stor x -f " + file, kit.ExitUsage, "unknown flag: --stor"},
		{"deploy --stor x -f " + file, kit.ExitUsage, "did you mean --store?"},
		{"get --kubeconfg x", kit.ExitUsage, "did you mean --kubeconfig?"},
		{"team create a --grup x", kit.ExitUsage, "did you mean --group?"},
		{"keys create --tem=a", kit.ExitUsage, "did you mean --team?"},
		{"install --activater 2", kit.ExitUsage, "did you mean --activators?"},
		{"activator --tokn-file x", kit.ExitUsage, "did you mean --token-file?"},
		{"controller --logformat text", kit.ExitUsage, "did you mean --log-format?"},
		{"get nodes --kubeconfg x", kit.ExitUsage, "did you mean --kubeconfig?"},
		{"rm --zzzzzzzz qwen", kit.ExitUsage, "thaw-knative rm --help lists the flags"},
		{"rm -z qwen", kit.ExitUsage, "thaw-knative rm --help lists the flags"},
		{"deploy --vulnerable-engines maybe -f " + file, kit.ExitUsage, `"maybe" is not one of refuse, allow`},
		{"deploy -o html -f " + file, kit.ExitUsage, `"html" is no form of output`},
		{"deploy --wait --dry-run -f " + file, kit.ExitUsage, "nothing is there to wait for"},
		{"deploy --pod " + gone + " -f " + file, kit.ExitNotFound, "gone"},
		{"deploy --pod " + write(t, "pod.yaml", "tolerations: [{kee: sku}]\n") + " -f " + file, kit.ExitUsage, "pod.yaml:1:16: tolerations[0].kee: unknown key (did you mean key?)"},
		{"deploy --pod " + write(t, "pod.yaml", "tolerations:\n- {value: gpu}\n") + " -f " + file, kit.ExitUsage, "pod.yaml:2:3: tolerations[0].key: a key is needed"},
		{"deploy -f " + write(t, "long.yaml", strings.Replace(model, "qwen", strings.Repeat("a", 58), 1)), kit.ExitUsage, "at most 57 letters"},
		{"deploy -f " + write(t, "llama.yaml", strings.Replace(model, "vllm", "llamacpp", 1)), kit.ExitUsage, "--image llamacpp=IMAGE names the one that holds the program"},
		{"deploy -f " + write(t, "pod.yaml", strings.Replace(model, "gpus: 1}", "gpus: 1}, pod: {hostNetwork: true}", 1)), kit.ExitUsage, "spec.pod.hostNetwork: unknown key"},
		{"doctor -f " + gone, kit.ExitNotFound, "there is no file"},
		{"deploy --timeout -1s -f " + file, kit.ExitUsage, "-1s is no time to wait"},
		{"deploy -f " + file, kit.ExitUsage, "there is no kubeconfig"},
		{"deploy --dry-run -o yaml -f " + file, kit.ExitUsage, "the image of thaw is not known: there is no kubeconfig"},
		{"deploy --dry-run -o json -f " + file, kit.ExitUsage, "--thaw-image IMAGE, or set THAW_IMAGE"},
		{"get --kubeconfig " + gone, kit.ExitUsage, "the kubeconfig names no usable cluster"},
		{"get --context other --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), kit.ExitUsage, `context "other" does not exist`},
		{"get -A qwen", kit.ExitUsage, "leave -A out"},
		{"get A_ --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), kit.ExitUsage, `"A_" names no model`},
		{"rm", kit.ExitUsage, "NAME is missing"},
		{"rm qwen:adapter --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), kit.ExitUsage, "names no model"},
		{"doctor x", kit.ExitUsage, "more than thaw-knative doctor takes"},
		{"get --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), kit.ExitUnavailable, "no API server answers at http://127.0.0.1:1"},
	} {
		out, errs, exit := thaw(t, nil, strings.Fields(x.args)...)
		if exit != x.exit || !strings.Contains(errs, x.want) || out != "" {
			t.Errorf("%s: exit %d, want %d with %q:\n%s%s", x.args, exit, x.exit, x.want, out, errs)
		}
	}
}

// TestPrint needs no cluster.
func TestPrint(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "gone"))
	two := write(t, "two.yaml", model+"---\n"+strings.Replace(model, "qwen", "other", 1))
	out, errs, exit := thaw(t, map[string]string{"THAW_IMAGE": "example.com/thaw:1"}, "deploy", "-f", two, "--dry-run", "-o", "yaml", "--image", "vllm=example.com/vllm:2", "-n", "ml")
	if exit != 0 || errs != "" || strings.Count(out, "\nkind: Service\n") != 2 || strings.Count(out, "image: example.com/thaw:1") != 2 ||
		strings.Count(out, "image: example.com/vllm:2") != 2 || strings.Count(out, "\n  namespace: ml\n") != 2 {
		t.Errorf("exit %d %s\n%s", exit, errs, out)
	}
	image := map[string]string{"THAW_IMAGE": "example.com/thaw:1"}
	out, errs, exit = thaw(t, image, "deploy", "-f", two, "--dry-run", "-o", "json")
	var list struct {
		Kind  string
		Items []struct{ Kind string }
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || exit != 0 || list.Kind != "List" || len(list.Items) != 2 ||
		list.Items[1].Kind != "Service" {
		t.Errorf("exit %d %v %s\n%s", exit, err, errs, out)
	}
	for value, want := range map[string]int{"allow": 2, "refuse": 0} {
		out, errs, exit = thaw(t, image, "deploy", "-f", two, "--dry-run", "-o", "yaml", "--vulnerable-engines", value)
		if exit != 0 || strings.Count(out, "- name: THAW_VULNERABLE_ENGINES\n") != want {
			t.Errorf("%s: exit %d %s\n%s", value, exit, errs, out)
		}
	}
	pod := write(t, "pod.yaml", "tolerations: [{key: sku, operator: Exists}]\n")
	out, errs, exit = thaw(t, image, "deploy", "-f", two, "--dry-run", "-o", "yaml", "--pod", pod)
	if exit != 0 || strings.Count(out, "      tolerations:\n      - key: sku\n        operator: Exists\n") != 2 {
		t.Errorf("exit %d %s\n%s", exit, errs, out)
	}
	out, _, exit = thaw(t, nil, "help", "deploy")
	if exit != 0 || !strings.Contains(out, "--thaw-image") || !strings.Contains(out, "--dry-run -o yaml") {
		t.Errorf("exit %d\n%s", exit, out)
	}
}

// TestAnswers: what a cluster may say, and what a person is told.
func TestAnswers(t *testing.T) {
	file := write(t, "m.yaml", model)
	status := func(code int, reason, message, details string) string {
		return `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": ` + strconv.Itoa(code) + `, "reason": "` + reason + `", "message": "` + message + `", "details": {` + details + `}}`
	}
	noName := status(404, "NotFound", `services.serving.knative.dev \"qwen\" not found`, `"name": "qwen", "group": "serving.knative.dev", "kind": "services"`)
	for _, x := range []struct {
		name, args string
		get, patch string // answers
		code       int    // of the last
		exit       int
		want       string
	}{
		{"no Knative", "deploy -f " + file, `{"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "the server could not find the requested resource", "details": {}}`, "", 404, kit.ExitNotFound, "has no Knative Serving"},
		{"not allowed", "get", status(403, "Forbidden", "you cannot list", ""), "", 403, kit.ExitDenied, "you cannot list"},
		{"no key", "get", status(401, "Unauthorized", "Unauthorized", ""), "", 401, kit.ExitDenied, "Unauthorized"},
		{"not there", "get qwen", noName, "", 404, kit.ExitNotFound, "ml/qwen is not on the cluster"},
		{"not there to remove", "rm qwen", noName, "", 404, kit.ExitNotFound, "ml/qwen is not on the cluster"},
		{"no namespace", "deploy -f " + file, noName, status(404, "NotFound", `namespaces \"ml\" not found`, `"name": "ml", "kind": "namespaces"`), 404, kit.ExitNotFound, "kubectl create namespace ml"},
		{"a feature of this model is off", "deploy -f " + file, noName, status(400, "BadRequest", `admission webhook denied the request: validation failed: must not set the field(s): spec.template.spec.tolerations`, ""), 400, kit.ExitUsage, `kubectl patch configmap config-features -n knative-serving --type merge -p '{"data":{"kubernetes.podspec-tolerations":"enabled"}}'`},
		{"a feature is off", "deploy -f " + file, noName, status(400, "BadRequest", `admission webhook denied the request: validation failed: HostPath volume support is disabled`, ""), 400, kit.ExitUsage, "thaw-knative doctor"},
		{"too long", "deploy -f " + file, noName, status(400, "BadRequest", `expected 0 <= 900 <= 600: spec.template.spec.timeoutSeconds`, ""), 400, kit.ExitUsage, "--request-timeout"},
		{"no webhook", "deploy -f " + file, noName, status(500, "InternalError", `Internal error occurred: failed calling webhook \"webhook.serving.knative.dev\"`, ""), 500, kit.ExitUnavailable, "Knative's webhook is not there yet"},
		{"overloaded", "get", status(503, "ServiceUnavailable", "later", ""), "", 503, kit.ExitUnavailable, "cannot serve this now: later"},
		{"not ours", "deploy -f " + file, `{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "qwen", "namespace": "default"}, "spec": {"template": {}}}`, "", 200, kit.ExitUsage, "is a Knative Service, but no model"},
		{"not ours to remove", "rm qwen", `{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "qwen", "namespace": "ml"}, "spec": {"template": {}}}`, "", 200, kit.ExitUsage, "is a Knative Service, but no model"},
		{"no answer of a cluster", "get", "<html>", "", 200, kit.ExitUnavailable, "no API server answers"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var changed []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				body, code := x.get, x.code
				if !strings.Contains(r.URL.Path, "serving.knative.dev") { // a team sees its models
					w.WriteHeader(403)
					w.Write([]byte(status(403, "Forbidden", "you cannot look", "")))
					return
				}
				if r.Method != "GET" {
					changed = append(changed, r.Method)
					body = x.patch
				} else if x.patch != "" {
					code = 404
				}
				w.WriteHeader(code)
				w.Write([]byte(body))
			}))
			defer server.Close()
			out, errs, exit := thaw(t, map[string]string{"THAW_IMAGE": "example.com/thaw:1"}, append(strings.Fields(x.args), "--kubeconfig", kubeconfig(t, server.URL))...)
			if exit != x.exit || !strings.Contains(errs, x.want) || out != "" {
				t.Errorf("exit %d, want %d with %q:\n%s%s", exit, x.exit, x.want, out, errs)
			}
			if x.patch == "" && len(changed) > 0 {
				t.Errorf("it sent %v", changed)
			}
			if strings.Contains(errs, "secret") {
				t.Errorf("the token is told: %s", errs)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := run(ctx, []string{"get", "--kubeconfig", kubeconfig(t, "http://127.0.0.1:1")}, os.Getenv, new(bytes.Buffer), new(bytes.Buffer)); code != kit.ExitInterrupted {
		t.Errorf("interrupted: exit %d", code)
	}
}

// TestPartlyDone: what was done before a failure is printed in every form.
func TestPartlyDone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		switch {
		case !strings.Contains(r.URL.Path, "serving.knative.dev"):
			w.WriteHeader(403)
			w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "you cannot look"}`))
		case r.Method == "PATCH" && name == "qwen":
			if q := r.URL.Query(); q.Get("fieldManager") != "thaw" || q.Get("force") != "true" ||
				r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
				t.Errorf("%s %s", r.URL, r.Header)
			}
			w.Header().Set("Warning", `299 - "mind \u001b[31m this"`)
			w.WriteHeader(201)
			w.Write([]byte(`{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "qwen"}}`))
		case r.Method == "PATCH":
			w.WriteHeader(403)
			w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "exceeded quota"}`))
		default:
			w.WriteHeader(404)
			w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "details": {"name": "` + name + `"}}`))
		}
	}))
	defer server.Close()
	file := write(t, "two.yaml", model+"---\n"+strings.Replace(model, "qwen", "other", 1))
	for form, want := range map[string]string{"table": "ml/qwen created\n", "name": "ml/qwen\n", "yaml": "- name: ml/qwen\n  outcome: created\n", "json": `"outcome": "created"`} {
		out, errs, exit := thaw(t, nil, "deploy", "-f", file, "--thaw-image", "example.com/thaw:1", "-o", form, "--kubeconfig",
			kubeconfig(t, server.URL))
		if exit != kit.ExitDenied || !strings.Contains(out, want) || strings.Contains(out, "other") ||
			!strings.Contains(errs, "ml/other: exceeded quota") || !strings.Contains(errs, "warning: mind") || strings.Contains(errs, "\x1b") {
			t.Errorf("%s: exit %d\n%s%s", form, exit, out, errs)
		}
	}
}

// TestThawImage: without --thaw-image models run from the image of the cluster's
// controller, and no other image is made up.
func TestThawImage(t *testing.T) {
	file := write(t, "m.yaml", model)
	failure := func(w http.ResponseWriter, code int, reason, details string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": %d, "reason": %q, "message": "no", "details": {%s}}`, code, reason, details)
	}
	const installed = `{"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "thaw-controller"}, "spec": {"template": {"spec": {
		"initContainers": [{"name": "control-token", "image": "other"}], "containers": [{"name": "proxy", "image": "mesh"}, {"name": "controller", "image": "example.com/thaw:7"}]}}}}`
	for _, x := range []struct {
		name, controller, args string
		env                    map[string]string
		exit                   int
		want                   string // of the output
		applied                string // image
	}{
		{name: "of the controller", controller: installed, want: "ml/qwen created", applied: "example.com/thaw:7"},
		{name: "printed", controller: installed, args: "--dry-run -o yaml", want: "image: example.com/thaw:7"},
		{name: "a flag", controller: installed, args: "--thaw-image mine", want: "ml/qwen created", applied: "mine"},
		{name: "a variable", controller: installed, env: map[string]string{"THAW_IMAGE": "mine"}, want: "ml/qwen created", applied: "mine"},
		{name: "not installed", args: "--skip-preflight", exit: kit.ExitNotFound, want: "the image of thaw is not known: thaw is not installed"},
		{name: "not to be read", controller: "forbidden", exit: kit.ExitDenied, want: "hint: --thaw-image IMAGE, or set THAW_IMAGE"},
		{name: "another Deployment", controller: `{"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "thaw-controller"}}`, exit: kit.ExitNotFound, want: "has no container controller"},
	} {
		t.Run(x.name, func(t *testing.T) {
			applied := ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.HasSuffix(r.URL.Path, "/deployments/thaw-controller") && strings.HasPrefix(x.controller, "{"):
					fmt.Fprint(w, x.controller)
				case strings.HasSuffix(r.URL.Path, "/deployments/thaw-controller") && x.controller == "":
					failure(w, 404, "NotFound", `"name": "thaw-controller", "group": "apps", "kind": "deployments"`)
				case !strings.Contains(r.URL.Path, "serving.knative.dev"):
					failure(w, 403, "Forbidden", "")
				case r.Method == "PATCH":
					var s knative.Service
					if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
						t.Error(err)
					}
					applied = s.Spec.Template.Spec.InitContainers[0].Image
					w.WriteHeader(201)
					fmt.Fprint(w, `{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "qwen"}}`)
				default:
					failure(w, 404, "NotFound", `"name": "qwen"`)
				}
			}))
			defer server.Close()
			out, errs, exit := thaw(t, x.env, append(strings.Fields("deploy -f "+file+" "+x.args), "--kubeconfig", kubeconfig(t, server.URL))...)
			if exit != x.exit || !strings.Contains(out+errs, x.want) || applied != x.applied {
				t.Errorf("exit %d, applied %q\n%s%s", exit, applied, out, errs)
			}
		})
	}
}

// TestAzureModel: the model of the worked example is one, its pods may have the nodes
// that deploy/azure/up makes, and that turns on all that they need of Knative.
func TestAzureModel(t *testing.T) {
	args := []string{"deploy", "-f", "../../deploy/azure/model.yaml", "--dry-run", "-o", "yaml", "-n", "ml", "--store", "/mnt/thaw/store", "--thaw-image", "example.com/thaw:1"}
	out, errs, exit := thaw(t, nil, args...)
	if exit != 0 || !strings.Contains(out, "path: /mnt/thaw/store") || !strings.Contains(out, "az://myaccount/models/qwen3-8b") || !strings.Contains(out, `nvidia.com/gpu: "1"`) || strings.Contains(out, "tolerations") {
		t.Errorf("exit %d %s\n%s", exit, errs, out)
	}
	out, errs, exit = thaw(t, nil, append(args, "--pod", "../../deploy/azure/pod.yaml")...)
	if exit != 0 {
		t.Fatalf("exit %d %s", exit, errs)
	}
	var s knative.Service
	if err := yaml.UnmarshalStrict([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	up, err := os.ReadFile("../../deploy/azure/up")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range knative.Needs(&s) {
		if f.Unset != f.Value && !strings.Contains(string(up), `"`+f.Key+`": "`+f.Value+`"`) {
			t.Errorf("up does not turn %s on", f.Key)
		}
	}
	_, taint, _ := strings.Cut(string(up), "--node-taints ")
	taint, _, _ = strings.Cut(taint, " ")
	if key, rest, _ := strings.Cut(taint, "="); true {
		value, effect, _ := strings.Cut(rest, ":")
		pod := knative.PodOf(&s.Spec.Template.Spec.PodSpec)
		if why := pod.Refuses(map[string]string{"kubernetes.azure.com/agentpool": "gpu"}, []functions.Taint{{Key: key, Value: value, Effect: effect}}); why != "" || taint == "" {
			t.Errorf("a node with the taint %q is none for the model: %s", taint, why)
		}
	}
}

// TestExample: the worked example is a model file for both places, its print is what
// is rendered, and what its page has people type is known to the programs.
func TestExample(t *testing.T) {
	const at = "../../deploy/example/"
	out, errs, exit := thaw(t, nil, "deploy", "-f", at+"models/qwen.yaml", "--dry-run", "-o", "yaml", "-n", "ml", "--thaw-image",
		"example.com/thaw:test")
	if exit != 0 {
		t.Fatalf("exit %d %s", exit, errs)
	}
	if *update {
		if err := os.WriteFile(at+"qwen.service.yaml", []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if golden, _ := os.ReadFile(at + "qwen.service.yaml"); string(golden) != out {
		t.Errorf("qwen.service.yaml is not what is rendered (-update writes it):\n%s", out)
	}
	page, err := os.ReadFile(at + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	typed := 0
	for line := range strings.Lines(string(page)) {
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && words[0] == "thaw-knative":
		case len(words) > 1 && words[0] == "thaw" && strings.Contains(line, " --to knative"):
			words = strings.Fields(strings.Replace(line, " --to knative", "", 1))
			if words[1] == "ps" {
				continue // the controller's to answer
			}
		default:
			continue
		}
		typed++
		if out, errs, exit := thaw(t, nil, append(words[1:], "--help")...); exit != 0 || !strings.Contains(out, "Usage:") {
			t.Errorf("%s: exit %d\n%s%s", line, exit, out, errs)
		}
	}
	if typed < 6 {
		t.Errorf("only %d lines of the page were tried", typed)
	}
}

// TestNamespaceOfContext: a model without a namespace goes where kubectl would put it: into
// the namespace of -n, else of its file, else of the kubeconfig's context.
func TestNamespaceOfContext(t *testing.T) {
	config, err := os.ReadFile(kubeconfig(t, "http://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	in := string(config)
	own := strings.Replace(model, "name: qwen", "name: qwen, namespace: team-b", 1)
	for _, x := range []struct{ name, config, model, args, want string }{
		{"of the context", in, model, "", "ml"},
		{"of the file", in, own, "", "team-b"},
		{"default in the file", in, strings.Replace(own, "team-b", "default", 1), "", "default"},
		{"of the flag", in, model, "-n team-c", "team-c"},
		{"none anywhere", strings.Replace(in, `, "namespace": "ml"`, "", 1), model, "", "default"},
		{"no kubeconfig", "", model, "", "default"},
	} {
		t.Run(x.name, func(t *testing.T) {
			env := write(t, "kubeconfig", x.config)
			if x.config == "" {
				env = filepath.Join(t.TempDir(), "none")
			}
			args := append([]string{"deploy", "-f", write(t, "m.yaml", x.model), "--dry-run", "-o", "yaml", "--thaw-image", "mine", "--gpu-memory", "80Gi",
				"--kubeconfig", env}, strings.Fields(x.args)...)
			if out, errs, exit := thaw(t, nil, args...); exit != 0 || !strings.Contains(out, "  namespace: "+x.want+"\n") {
				t.Errorf("exit %d, want namespace %s:\n%s%s", exit, x.want, out, errs)
			}
		})
	}
}
