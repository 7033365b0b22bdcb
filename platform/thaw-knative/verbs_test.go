package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli"
)

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

const model = "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: qwen}\nspec: {source: 'hf://a/b', engine: vllm, resources: {gpus: 1}}\n"

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
		{"deplo", cli.ExitUsage, "did you mean deploy?"},
		{"deploy", cli.ExitUsage, "-f FILE is missing"},
		{"deploy " + file, cli.ExitUsage, "thaw-knative deploy -f " + file},
		{"deploy -f " + gone, cli.ExitNotFound, "there is no file"},
		{"deploy -f " + write(t, "bad.yaml", "kind: Modell\n"), cli.ExitUsage, "bad.yaml:1"},
		{"deploy -f " + write(t, "team.yaml", "apiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: a}\nspec: {}\n"), cli.ExitUsage, "a team cannot be deployed"},
		{"deploy -f " + write(t, "local.yaml", strings.Replace(model, "hf://a/b", "./w", 1)), cli.ExitUsage, "spec.source: ./w is a folder of this machine"},
		{"deploy --namespace A_ -f " + file, cli.ExitUsage, `"A_" cannot be a namespace`},
		{"deploy --image vllm -f " + file, cli.ExitUsage, `"vllm" does not name an engine and its image`},
		{"deploy --image vlm=x -f " + file, cli.ExitUsage, `"vlm=x" does not name an engine`},
		{"deploy --image vllm= -f " + file, cli.ExitUsage, "does not name an engine and its image"},
		{"deploy --request-timeout 0.5s -f " + file, cli.ExitUsage, "500ms is no time for a request"},
		{"deploy --store x -f " + file, cli.ExitUsage, `the store "x" is no absolute path`},
		{"deploy --stor x -f " + file, cli.ExitUsage, "unknown flag: --stor"},
		{"deploy -o html -f " + file, cli.ExitUsage, `"html" is no form of output`},
		{"deploy --timeout -1s -f " + file, cli.ExitUsage, "-1s is no time to wait"},
		{"deploy -f " + file, cli.ExitUsage, "there is no kubeconfig to find a cluster with"},
		{"get --kubeconfig " + gone, cli.ExitUsage, "the kubeconfig does not lead to a cluster"},
		{"get --context other --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), cli.ExitUsage, `context "other" does not exist`},
		{"get -A qwen", cli.ExitUsage, "leave -A out"},
		{"get A_ --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), cli.ExitUsage, `"A_" names no model`},
		{"rm", cli.ExitUsage, "NAME is missing"},
		{"rm qwen:adapter --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), cli.ExitUsage, "names no model"},
		{"doctor x", cli.ExitUsage, "more than doctor takes"},
		{"get --kubeconfig " + kubeconfig(t, "http://127.0.0.1:1"), cli.ExitUnavailable, "no API server answers at http://127.0.0.1:1"},
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
	if exit != 0 || errs != "" || strings.Count(out, "\nkind: Service\n") != 2 || strings.Count(out, "image: example.com/thaw:1") != 2 || strings.Count(out, "image: example.com/vllm:2") != 2 || strings.Count(out, "\n  namespace: ml\n") != 2 {
		t.Errorf("exit %d %s\n%s", exit, errs, out)
	}
	out, errs, exit = thaw(t, nil, "deploy", "-f", two, "--dry-run", "-o", "json")
	var list struct {
		Kind  string
		Items []struct{ Kind string }
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || exit != 0 || list.Kind != "List" || len(list.Items) != 2 || list.Items[1].Kind != "Service" {
		t.Errorf("exit %d %v %s\n%s", exit, err, errs, out)
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
		{"no Knative", "deploy -f " + file, `{"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "the server could not find the requested resource", "details": {}}`, "", 404, cli.ExitNotFound, "has no Knative Serving"},
		{"not allowed", "get", status(403, "Forbidden", "you cannot list", ""), "", 403, cli.ExitDenied, "you cannot list"},
		{"no key", "get", status(401, "Unauthorized", "Unauthorized", ""), "", 401, cli.ExitDenied, "Unauthorized"},
		{"not there", "get qwen", noName, "", 404, cli.ExitNotFound, "ml/qwen is not on the cluster"},
		{"not there to remove", "rm qwen", noName, "", 404, cli.ExitNotFound, "ml/qwen is not on the cluster"},
		{"no namespace", "deploy -f " + file, noName, status(404, "NotFound", `namespaces \"default\" not found`, `"name": "default", "kind": "namespaces"`), 404, cli.ExitNotFound, "kubectl create namespace default"},
		{"a feature is off", "deploy -f " + file, noName, status(400, "BadRequest", `admission webhook denied the request: validation failed: HostPath volume support is disabled`, ""), 400, cli.ExitUsage, "thaw-knative doctor"},
		{"too long", "deploy -f " + file, noName, status(400, "BadRequest", `expected 0 <= 900 <= 600: spec.template.spec.timeoutSeconds`, ""), 400, cli.ExitUsage, "--request-timeout"},
		{"no webhook", "deploy -f " + file, noName, status(500, "InternalError", `Internal error occurred: failed calling webhook \"webhook.serving.knative.dev\"`, ""), 500, cli.ExitUnavailable, "Knative's webhook is not there yet"},
		{"overloaded", "get", status(503, "ServiceUnavailable", "later", ""), "", 503, cli.ExitUnavailable, "no API server answers"},
		{"not ours", "deploy -f " + file, `{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "qwen", "namespace": "default"}, "spec": {"template": {}}}`, "", 200, cli.ExitUsage, "is a Knative Service, but no model"},
		{"not ours to remove", "rm qwen", `{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "qwen", "namespace": "ml"}, "spec": {"template": {}}}`, "", 200, cli.ExitUsage, "is a Knative Service, but no model"},
		{"no answer of a cluster", "get", "<html>", "", 200, cli.ExitUnavailable, "no API server answers"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var changed []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				body, code := x.get, x.code
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
			out, errs, exit := thaw(t, nil, append(strings.Fields(x.args), "--kubeconfig", kubeconfig(t, server.URL))...)
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
	if code := run(ctx, []string{"get", "--kubeconfig", kubeconfig(t, "http://127.0.0.1:1")}, os.Getenv, new(bytes.Buffer), new(bytes.Buffer)); code != cli.ExitInterrupted {
		t.Errorf("interrupted: exit %d", code)
	}
}

// TestSome: what was done before a failure is told, in every form.
func TestSome(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		switch {
		case r.Method == "PATCH" && name == "qwen":
			if q := r.URL.Query(); q.Get("fieldManager") != "thaw" || q.Get("force") != "true" || r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
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
	for form, want := range map[string]string{"table": "default/qwen created\n", "name": "default/qwen\n", "yaml": "- name: default/qwen\n  outcome: created\n", "json": `"outcome": "created"`} {
		out, errs, exit := thaw(t, nil, "deploy", "-f", file, "-o", form, "--kubeconfig", kubeconfig(t, server.URL))
		if exit != cli.ExitDenied || !strings.Contains(out, want) || strings.Contains(out, "other") || !strings.Contains(errs, "default/other: exceeded quota") || !strings.Contains(errs, "warning: mind") || strings.Contains(errs, "\x1b") {
			t.Errorf("%s: exit %d\n%s%s", form, exit, out, errs)
		}
	}
}

// TestAzureModel: the model of the worked example is one.
func TestAzureModel(t *testing.T) {
	out, errs, exit := thaw(t, nil, "deploy", "-f", "../../deploy/azure/model.yaml", "--dry-run", "-o", "yaml", "-n", "ml", "--store", "/mnt/thaw/store")
	if exit != 0 || !strings.Contains(out, "path: /mnt/thaw/store") || !strings.Contains(out, "az://myaccount/models/qwen3-8b") || !strings.Contains(out, `nvidia.com/gpu: "1"`) {
		t.Errorf("exit %d %s\n%s", exit, errs, out)
	}
}
