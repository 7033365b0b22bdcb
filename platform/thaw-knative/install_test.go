package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/testkit"
)

// TestWrongOnClusters: every way to say the verbs of a cluster wrong.
func TestWrongOnClusters(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, x := range []struct {
		args string
		exit int
		want string
	}{
		{"install x", kit.ExitUsage, "more than thaw-knative install takes"},
		{"install --wait --dry-run", kit.ExitUsage, "--wait cannot end"},
		{"install --uninstall --dry-run", kit.ExitUsage, "goes with neither"},
		{"install --force", kit.ExitUsage, "--force is for --uninstall"},
		{"install --loaders some", kit.ExitUsage, `"some" names no nodes`},
		{"install --activators -1", kit.ExitUsage, "less than none"},
		{"install -n other", kit.ExitUsage, "thaw's own namespace is thaw-system"},
		{"install --store x", kit.ExitUsage, "not a clean absolute path"},
		{"install --image ", kit.ExitUsage, "thaw's image is not set"},
		{"install", kit.ExitUsage, "--image IMAGE, or set THAW_IMAGE"},
		{"install --uninstall", kit.ExitUsage, "there is no kubeconfig"},
		{"install --image x", kit.ExitUsage, "there is no kubeconfig"},
		{"install --eviction fifo", kit.ExitUsage, `"fifo" is not one of lru, lfu, gdsf, next-use`},
		{"install --keep-alive always", kit.ExitUsage, `"always" is not one of fixed, learned`},
		{"install --prewarm yes", kit.ExitUsage, `"yes" is not one of off, on`},
		{"install --prewarm-budget soon", kit.ExitUsage, "--prewarm-budget"},
		{"install --prewarm-budget 0", kit.ExitUsage, "prewarm-budget must be more than 0"},
		{"install --cluster-domain .local", kit.ExitUsage, `cluster-domain: ".local" is no domain`},
		{"install --cluster-domain ", kit.ExitUsage, `cluster-domain: "" is no domain`},
		{"install --history-claim a/b", kit.ExitUsage, `"a/b" is not a name of a PersistentVolumeClaim`},
		{"install --source-secret A_", kit.ExitUsage, `"A_" is not a name of a Secret`},
		{"install --hold maybe", kit.ExitUsage, `"maybe" is not one of hold, pad, 503`},
		{"install --max-body 0", kit.ExitUsage, "max-body: 0 is too small for any request"},
		{"install --keep-free 15%", kit.ExitUsage, "--keep-free"},
		{"install --keep-free 96", kit.ExitUsage, "keep-free: 96 is no percentage of a disk: 0 to 95"},
		{"install --store-bytes much", kit.ExitUsage, "--store-bytes"},
		{"chown-store", kit.ExitUsage, "a folder and an id"},
		{"chown-store /nowhere/at/all 65532", kit.ExitNotFound, "/nowhere/at/all"},
		{"chown-store / 0", kit.ExitUsage, `"0" is no id`},
		{"control-token", kit.ExitUsage, "--file FILE"},
		{"keys", kit.ExitUsage, "nothing that is done with keys"},
		{"keys make", kit.ExitUsage, `"make" is nothing`},
		{"keys create", kit.ExitUsage, "--team is missing"},
		{"keys create --team A_", kit.ExitUsage, `"A_" is no team`},
		{"keys create x --team a", kit.ExitUsage, "more than keys create takes"},
		{"keys rm", kit.ExitUsage, "ID is missing"},
		{"keys list --name x", kit.ExitUsage, "--name is for keys create"},
		{"team", kit.ExitUsage, "create and a name"},
		{"team create kube-system", kit.ExitUsage, "belongs to the cluster"},
		{"team create ml --limit wages=1", kit.ExitUsage, "is not a limit"},
		{"team create ml --limit concurent=1", kit.ExitUsage, "did you mean concurrent?"},
		{"team create ml --gpus 1 --guaranteed 2", kit.ExitUsage, "cannot be guaranteed"},
		{"team create ml --gpus -1", kit.ExitUsage, "0 GPUs cannot be guaranteed of -1: --guaranteed and --gpus are 0 or more"},
		{"install --image R/x:1 --dry-run -o yaml", kit.ExitUsage, `"R/x:1" names no image: want [HOST[:PORT]/]PATH[:TAG]`},
		{"install --image r/x:1 --store relative --dry-run -o yaml", kit.ExitUsage, "is not a clean absolute path: --store, such as /var/lib/thaw"},
		{"team create ml --services -1", kit.ExitUsage, "-1 is no number of services"},
		{"team create ml -n x", kit.ExitUsage, "the namespace is the team itself"},
		{"team create ml", kit.ExitUsage, "there is no kubeconfig"},
		{"ps", kit.ExitUsage, "there is no kubeconfig"},
		{"ps --kubeconfig", kit.ExitUsage, "flag needs an argument: --kubeconfig"},
		{"ps -n ml", kit.ExitUsage, "there is no kubeconfig"},
		{"ps -n", kit.ExitUsage, "flag needs an argument: 'n' in -n"},
		{"ps -n A_", kit.ExitUsage, `"A_" cannot be a namespace`},
		{"ps -nA_", kit.ExitUsage, `"A_" cannot be a namespace`},
		{"get replicas --namespace=A_", kit.ExitUsage, `"A_" cannot be a namespace`},
		{"get -n A_ replicas", kit.ExitUsage, `"A_" cannot be a namespace`},
		{"get replicas -A", kit.ExitUsage, "there is no kubeconfig"},
		{"describ x", kit.ExitUsage, "did you mean describe?"},
	} {
		args := strings.Split(x.args, " ")
		out, errs, exit := thaw(t, nil, args...)
		if exit != x.exit || !strings.Contains(errs, x.want) || out != "" {
			t.Errorf("%s: exit %d, want %d with %q:\n%s%s", x.args, exit, x.exit, x.want, out, errs)
		}
	}
}

// TestPrints need no cluster.
func TestPrints(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "gone"))
	out, errs, exit := thaw(t, nil, "install", "--image", "example.com/thaw:1", "--dry-run", "-o", "yaml")
	if exit != 0 || errs != "" || strings.Count(out, "image: example.com/thaw:1") != 5 || strings.Contains(out, "kind: Secret") {
		t.Errorf("exit %d %s\n%s", exit, errs, out)
	}
	var list struct{ Items []struct{ Kind string } }
	out, errs, exit = thaw(t, map[string]string{"THAW_IMAGE": "x"}, "install", "--dry-run", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || exit != 0 || len(list.Items) < 20 || list.Items[0].Kind != "Namespace" {
		t.Errorf("exit %d %s %v\n%s", exit, errs, err, out)
	}
	out, errs, exit = thaw(t, nil, "team", "create", "ml", "--gpus", "2", "--limit", "concurrent=3", "--dry-run", "-o", "yaml")
	if exit != 0 || errs != "" || !strings.Contains(out, `thaw.dev/concurrent: "3"`) || !strings.Contains(out, `requests.nvidia.com/gpu: "2"`) ||
		!strings.Contains(out, `count/services.serving.knative.dev: "500"`) {
		t.Errorf("exit %d %s\n%s", exit, errs, out)
	}
	out, errs, exit = thaw(t, nil, "team", "create", "ml", "--services", "0", "--dry-run", "-o", "yaml")
	if exit != 0 || errs != "" || strings.Contains(out, "ResourceQuota") {
		t.Errorf("without a limit: exit %d %s\n%s", exit, errs, out)
	}
}

// TestInstallSettings: what is said of the parts comes to their containers, and what
// is not said does not.
func TestInstallSettings(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "gone"))
	all := []string{"--cluster-domain=k8s.example.com", "--eviction=gdsf", "--keep-alive=learned", "--prewarm=on", "--prewarm-budget=1h30m", "--hold=pad", "--max-body=64Mi", "--store-bytes=800Gi", "--keep-free=0"}
	print := func(more ...string) string {
		out, errs, exit := thaw(t, nil, append([]string{"install", "--image", "example.com/thaw:1", "--dry-run", "-o", "yaml"}, more...)...)
		if exit != 0 || errs != "" {
			t.Fatalf("%q: exit %d %s", more, exit, errs)
		}
		return out
	}
	said, plain := print(append(all, "--history-claim=past")...), print()
	for _, arg := range append(all, "--data=/history") {
		name, _, _ := strings.Cut(arg, "=")
		if strings.Count(said, "- "+arg+"\n") != 1 || strings.Contains(plain, name+"=") {
			t.Errorf("%s: said\n%s\nnot said\n%s", arg, said, plain)
		}
	}
	if out := print("--hold=pad", "--hold", "503"); strings.Count(out, "--hold=") != 1 || !strings.Contains(out, "- --hold=503\n") {
		t.Errorf("of what is said twice the last counts:\n%s", out)
	}
}

// TestInstallHistory: a controller without a folder neither reads nor writes history.
func TestInstallHistory(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if f := (&controllerSettings{sharedController: sharedController{PolicySettings: cli.PolicySettings{Prewarm: "on"}}}).foresee(
		log); f.File != "" || f.History == nil || !f.StartAhead {
		t.Errorf("%+v", f)
	}
	dir := t.TempDir()
	if f := (&controllerSettings{Data: dir}).foresee(log); f.File != filepath.Join(dir, "history.json") || f.StartAhead {
		t.Errorf("%+v", f)
	}
}

// TestAsks: a question to the controller goes through the API server, with the token
// that the kubeconfig's rights let it read, or with the key that is given.
func TestAsks(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	token := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/thaw-system/")+" "+r.Header.Get("X-Api-Key"))
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/secrets/thaw-admin") && token:
			fmt.Fprint(w, `{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "thaw-admin"}, "data": {"token": "YWRtaW4K"}}`)
		case strings.HasSuffix(r.URL.Path, "/secrets/thaw-admin"):
			w.WriteHeader(403)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}`)
		case strings.HasSuffix(r.URL.Path, "/proxy/api/v1/teams"):
			fmt.Fprint(w, `{"items": [{"name": "ml", "functions": 3}]}`)
		default:
			fmt.Fprint(w, `{"items": []}`)
		}
	}))
	defer server.Close()
	config := kubeconfig(t, server.URL)
	const proxy = "GET services/https:thaw-controller:8090/proxy/api/v1/"
	for _, x := range []struct {
		args  string
		env   map[string]string
		may   bool
		want  string
		exit  int
		asked []string
	}{
		{"ps", nil, true, "none", 0, []string{"GET secrets/thaw-admin ", proxy + "replicas admin", proxy + "functions admin"}},
		{"ps --key sk-1", nil, false, "none", 0, []string{proxy + "replicas sk-1", proxy + "functions sk-1"}},
		{"get teams -o name", map[string]string{"THAW_KEY": "sk-2"}, false, "ml", 0, []string{proxy + "teams sk-2"}},
		{"describe team ml", nil, true, "Functions:      3", 0, []string{"GET secrets/thaw-admin ", proxy + "teams admin"}},
		{"describe team b", nil, true, "there is no team b", kit.ExitNotFound, []string{"GET secrets/thaw-admin ", proxy + "teams admin"}},
		{"ps", nil, false, "the admin token cannot be read", kit.ExitDenied, []string{"GET secrets/thaw-admin "}},
	} {
		asked, token = nil, x.may
		out, errs, exit := thaw(t, x.env, append(strings.Fields(x.args), "--kubeconfig", config)...)
		if exit != x.exit || !strings.Contains(out+errs, x.want) || strings.Join(asked, "\n") != strings.Join(x.asked, "\n") {
			t.Errorf("%s: exit %d %s%s\nasked %q", x.args, exit, out, errs, asked)
		}
	}
}

// TestNamespace: -n names the team of names that have none, and lists have its objects
// alone.
func TestNamespace(t *testing.T) {
	lists := map[string]string{
		"functions":  `{"items": [{"name": "ml/qwen", "team": "ml", "model": "qwen", "type": "Model", "queued": 2}, {"name": "b/qwen", "team": "b", "model": "qwen", "type": "Model", "queued": 7}, {"name": "b/other", "team": "b", "model": "other", "type": "Model"}]}`,
		"replicas":   `{"items": [{"id": "r-ml", "function": "ml/qwen", "state": "READY"}, {"id": "r-b", "function": "b/qwen", "state": "READY"}]}`,
		"coldstarts": `{"items": [{"id": "cs-ml", "function": "ml/qwen"}, {"id": "cs-b", "function": "b/qwen"}]}`,
		"events":     `{"items": [{"seq": 1, "kind": "ready", "function": "ml/qwen"}, {"seq": 2, "kind": "stop", "function": "b/qwen"}, {"seq": 3, "kind": "node_lost"}]}`,
		"teams":      `{"items": [{"name": "ml"}, {"name": "b"}]}`,
		"nodes":      `{"items": [{"id": "node-1"}]}`,
	}
	var mu sync.Mutex
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, path, ok := strings.Cut(r.URL.Path, "/proxy/api/v1/")
		mu.Lock()
		defer mu.Unlock()
		switch list, is := lists[path]; {
		case strings.Contains(r.URL.Path, "/ksvc") || strings.Contains(r.URL.Path, "serving.knative.dev"):
			w.WriteHeader(404)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "details": {"name": "modles"}}`)
		case is:
			fmt.Fprint(w, list)
		case ok:
			asked = r.Method + " " + path
			w.WriteHeader(202)
			fmt.Fprint(w, `{"function": "ml/qwen", "state": "READY"}`)
		default:
			w.WriteHeader(404)
		}
	}))
	defer server.Close()
	config := kubeconfig(t, server.URL)
	for _, x := range []struct {
		args, want string // of the output
		not        string
		asked      string
		exit       int
	}{
		{args: "ps -n ml -o name", want: "r-ml\n"},
		{args: "ps -nml -o name", want: "r-ml\n"},
		{args: "ps -n ml", want: "2 wait for", not: "7 wait for"},
		{args: "ps --namespace=ml -o name", want: "r-ml\n"},
		{args: "ps -o name", want: "r-ml\nr-b\n"},
		{args: "models -n b -o name", want: "b/qwen\nb/other\n"},
		{args: "get models -n ml -o name", want: "ml/qwen\n"},
		{args: "get -n ml model -o name", want: "ml/qwen\n"},
		{args: "get functions -n b -o name", want: "b/qwen\nb/other\n"},
		{args: "get replicas -n b -o name", want: "r-b\n"},
		{args: "get teams -n b -o name", want: "b\n"},
		{args: "get nodes -n b -o name", want: "node-1\n"},
		{args: "events -n ml", want: "ready", not: "node_lost"},
		{args: "get events -n b", want: "stop", not: "ready"},
		{args: "wake qwen -n ml", want: "ready", asked: "POST functions/ml/qwen/wake"},
		{args: "wake qwen", exit: kit.ExitUsage, want: "more than one team"},
		{args: "wake other -n ml", exit: kit.ExitNotFound, want: "there is no function other of team ml"},
		{args: "explain place qwen -n b", asked: "GET explain/place/b/qwen", want: "", exit: kit.ExitFailed},
		{args: "get modles -n ml", exit: kit.ExitNotFound, want: "did you mean models?"},
		{args: "get coldstarts -n ml -o name", want: "cs-ml\n"},
		{args: "get coldstarts -n b cs-ml", exit: kit.ExitNotFound, want: "there is no coldstart cs-ml"},
		{args: "get coldstarts -o name", want: "cs-ml\ncs-b\n"},
	} {
		asked = ""
		out, errs, exit := thaw(t, map[string]string{"THAW_KEY": "sk-1"}, append(strings.Fields(x.args), "--kubeconfig", config)...)
		exact := strings.HasSuffix(x.args, "-o name") && x.exit == 0
		if exit != x.exit && x.exit != kit.ExitFailed || !strings.Contains(out+errs, x.want) || exact && out != x.want ||
			x.not != "" && strings.Contains(out+errs, x.not) || x.asked != "" && asked != x.asked {
			t.Errorf("%s: exit %d, asked %q\n%s%s", x.args, exit, asked, out, errs)
		}
	}
}

// TestClusterInstall is an installation's life on a real cluster, but for its
// programs, which have tests of their own: what the API server takes, what it then
// lets the controller do, and that nothing is left.
func TestClusterInstall(t *testing.T) {
	c := open(t)
	if out := c.kubectl("", "get", "namespaces", "thaw-system", "--ignore-not-found", "-o", "name"); out != "" {
		testkit.Missing(t, "thaw is installed there already")
	}
	knative := func(args ...string) string {
		t.Helper()
		out, errs, exit := thaw(t, nil, append(args, "--kubeconfig", c.kubeconfig)...)
		if exit != 0 {
			t.Fatalf("%v: exit %d\n%s%s", args, exit, out, errs)
		}
		return out
	}
	// Labels on nodes that no node has: no pod starts.
	image := []string{"--image", "dev.local/none:test", "--loaders", "thaw.dev/none=none"}
	if out := knative(append([]string{"install", "--dry-run"}, image...)...); strings.Count(out, "would be created") < 20 {
		t.Fatal(out)
	}
	t.Cleanup(func() { thaw(t, nil, "install", "--uninstall", "--force", "--kubeconfig", c.kubeconfig) })
	if out := knative(append([]string{"install"}, image...)...); strings.Count(out, " created\n") < 20 {
		t.Fatal(out)
	}
	if out := knative(append([]string{"install"}, image...)...); strings.Count(out, " unchanged\n") < 20 || strings.Contains(out, " created\n") {
		t.Fatalf("a second time: %s", out)
	}
	before := c.kubectl("", "get", "secret", "thaw-control-tls", "--namespace", "thaw-system", "-o", "jsonpath={.data.token}")
	if len(before) < 40 {
		t.Errorf("the token is %q", before)
	}
	// The API server's own words of what the account may.
	can := func(want bool, args ...string) {
		t.Helper()
		c.eventually(fmt.Sprint("the right to ", args, ": ", want), func() (bool, string) { // rights are known a moment after they were given
			out, _ := c.try("", append([]string{"auth", "can-i", "--as", "system:serviceaccount:thaw-system:thaw-controller"}, args...)...)
			return strings.HasSuffix(strings.TrimSpace(out), "yes") == want, out // before it there may be a warning
		})
	}
	can(true, "list", "pods", "-A")
	can(true, "patch", "deployments.apps", "-n", c.namespace)
	can(true, "update", "leases.coordination.k8s.io/thaw-controller", "-n", "thaw-system")
	can(true, "get", "secrets/thaw-control-tls", "-n", "thaw-system")
	can(true, "list", "secrets/thaw-keys", "-n", c.namespace)
	can(false, "get", "secrets", "-n", c.namespace)
	can(false, "get", "secrets", "-n", "thaw-system")
	can(false, "list", "secrets", "-A")
	can(false, "create", "pods", "-n", c.namespace)
	can(false, "update", "mutatingwebhookconfigurations/thaw-scheduler-hint")
	can(false, "patch", "mutatingwebhookconfigurations/thaw-scheduler-hint")
	can(false, "update", "secrets/thaw-scheduler-hint-tls", "-n", "thaw-system")
	can(false, "create", "pods/exec", "-n", c.namespace)
	can(false, "update", "namespaces")
	can(false, "update", "nodes")
	can(false, "patch", "nodes", "--subresource=status")
	can(false, "patch", "nodes")
	can(false, "update", "services.serving.knative.dev", "-n", c.namespace)
	for _, account := range []string{"thaw-activator", "thaw-loader"} {
		if out, _ := c.try("", "auth", "can-i", "list", "pods", "--as", "system:serviceaccount:thaw-system:"+account); !strings.HasPrefix(out,
			"no") {
			t.Errorf("%s may list pods: %s", account, out)
		}
	}

	// A team sees its own.
	team := c.namespace + "-t"
	t.Cleanup(func() { c.try("", "delete", "namespace", team, "--wait=false") })
	create := []string{"team", "create", team, "--gpus", "2", "--limit", "requests-per-minute=60", "--user", "ann"}
	if out := knative(create...); strings.Count(out, " created\n") != 6 {
		t.Errorf("team: %s", out)
	}
	secret := strings.TrimSpace(knative("keys", "create", "--team", team, "--name", "laptop"))
	if out := knative(create...); strings.Count(out, " unchanged\n") != 6 {
		t.Errorf("team, a second time: %s", out)
	}
	if out := knative("keys", "list", "--team", team); !strings.Contains(out, "laptop") || strings.Contains(out, secret) {
		t.Errorf("keys: %s", out)
	}
	if raw := c.kubectl("", "get", "secret", "thaw-keys", "--namespace", team, "-o", "json"); strings.Contains(raw, secret) {
		t.Error("the key itself is in the cluster")
	}
	ann := func(want bool, args ...string) {
		t.Helper()
		c.eventually(fmt.Sprint("ann's right to ", args, ": ", want), func() (bool, string) {
			out, _ := c.try("", append([]string{"auth", "can-i", "--as", "ann"}, args...)...)
			return strings.HasSuffix(strings.TrimSpace(out), "yes") == want, out // before it there may be a warning
		})
	}
	ann(true, "create", "services.serving.knative.dev", "-n", team)
	ann(true, "get", "pods/log", "-n", team)
	ann(true, "get", "namespaces/"+team, "-n", team)
	ann(true, "patch", "secrets/thaw-keys", "-n", team)
	ann(false, "patch", "namespaces/"+team)
	ann(false, "get", "secrets/other", "-n", team)
	ann(false, "list", "pods", "-n", c.namespace)
	ann(false, "patch", "resourcequotas", "-n", team)
	// The policy thaw-pods applies: platform/knative/e2e has a row for each of its clauses.
	pod := func(want bool, spec string) {
		t.Helper()
		c.eventually("verdict", func() (bool, string) { // a policy is known a moment after it was made
			out, err := c.try(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": `+spec+`}`, "create", "--namespace", team, "--dry-run=server", "-f", "-")
			return (err == nil) == want && (err == nil || strings.Contains(out, "'thaw-pods' with binding 'thaw-pods-of-teams'")), out
		})
	}
	as := `{"runAsUser": 65532, "allowPrivilegeEscalation": false}`
	with := func(path, mount string) string {
		return `{"containers": [{"name": "m", "image": "dev.local/x:test", "securityContext": ` + as + `, "volumeMounts": [{"name": "v", "mountPath": "/v"` + mount + `}]}], "volumes": [{"name": "v", "hostPath": {"path": "` + path + `"}}]}`
	}
	pod(false, with("/", `, "readOnly": true`))
	pod(false, with("/var/lib/thaw", `, "readOnly": true`))
	pod(false, with("/var/lib/thaw/sockets", ""))
	pod(true, with("/var/lib/thaw/sockets", `, "readOnly": true`))
	for _, as = range []string{`{"allowPrivilegeEscalation": false}`, `{"runAsUser": 0, "allowPrivilegeEscalation": false}`, `{"runAsUser": 65533, "allowPrivilegeEscalation": false}`, `{"runAsUser": 65532}`} {
		pod(false, with("/var/lib/thaw/sockets", `, "readOnly": true`))
	}
	pod(false, `{"hostPID": true, "containers": [{"name": "m", "image": "dev.local/x:test"}]}`)
	pod(false, `{"containers": [{"name": "m", "image": "dev.local/x:test", "securityContext": {"privileged": true}}]}`)
	pod(false, `{"priorityClassName": "system-node-critical", "containers": [{"name": "m", "image": "dev.local/x:test"}]}`)
	pod(true, `{"containers": [{"name": "m", "image": "dev.local/x:test"}]}`)

	// Here is an installation of which nothing runs, and doctor says so, part by part.
	out, _, exit := thaw(t, nil, "doctor", "-n", team, "--kubeconfig", c.kubeconfig)
	for _, want := range []string{"its limits read", "BAD  thaw-controller: 0 of 2 pods available, dev.local/none:test", "BAD  thaw-activator: 0 of 2 pods available", "BAD  no node has a loader: none has the label thaw.dev/none=none", "no controller leads", "no activator is ready", "the webhook thaw-scheduler-hint is not served", "Kubernetes is v1."} {
		if exit != kit.ExitFailed || !strings.Contains(out, want) {
			t.Errorf("doctor: exit %d, no %q in\n%s", exit, want, out)
		}
	}
	c.kubectl("", "annotate", "namespace", team, "thaw.dev/tokens-per-minute=many")
	if out, _, exit := thaw(t, nil, "doctor", "-n", team, "--kubeconfig", c.kubeconfig); exit == 0 ||
		!strings.Contains(out, "tokens-per-minute") {
		t.Errorf("exit %d %s", exit, out)
	}

	knative("install", "--uninstall", "--timeout", "3m")
	for _, kind := range []string{"namespace", "clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding", "role,rolebinding,networkpolicy,poddisruptionbudget"} {
		if out := c.kubectl("", "get", kind, "-A", "-l", "app.kubernetes.io/part-of=thaw,app.kubernetes.io/component", "-o",
			"name"); strings.TrimSpace(out) != "" && !strings.HasPrefix(out, "No resources") {
			t.Errorf("left: %s", out)
		}
	}
}

// TestAdvertise: $(POD_IP):8090 of the manifests is an address on a cluster of IPv6 too, and
// what is none is refused before the controller starts.
func TestAdvertise(t *testing.T) {
	for given, want := range map[string]string{
		"10.0.0.7:8090": "10.0.0.7:8090", "[fd00::7]:8090": "[fd00::7]:8090", "fd00::7:8090": "[fd00::7]:8090", "::1:8090": "[::1]:8090",
		"host:8090": "host:8090", "10.0.0.7": "", "http://a:8090": "", "fd00:::8090": "[fd00::]:8090",
	} {
		if got, ok := bracketHost(given); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t; want %q", given, got, ok, want)
		}
	}
	s := &controllerSettings{Advertise: "fd00::7:8090", TokenFile: "t", sharedController: sharedController{ClusterDomain: "cluster.local"}}
	if err := s.check(); s.Advertise != "[fd00::7]:8090" {
		t.Errorf("%q, %v", s.Advertise, err)
	}
	s.Advertise = "10.0.0.7"
	if err := s.check(); err == nil || !strings.Contains(err.Error(), `"10.0.0.7" is no HOST:PORT`) {
		t.Error(err)
	}
}

// TestInstallRefused: an API server that is too old, and an account without the rights, are
// named with the way out.
func TestInstallRefused(t *testing.T) {
	for _, x := range []struct {
		name, refused, answer string // the path of the objects, and what the API server says of their change
		code, exit            int
		want                  string
	}{
		{"an old Kubernetes", "/validatingadmissionpolicies/", "404 page not found", 404, kit.ExitNotFound, "the cluster has no kind ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1\nhint: thaw needs Kubernetes 1.33 or later"},
		{"no right", "/clusterroles/", `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "clusterroles is forbidden: User \"x\" cannot patch"}`, 403, kit.ExitDenied, "cannot patch\nhint: it takes the rights of cluster-admin"},
		{"rights that are not held", "/clusterroles/", `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "user \"x\" is attempting to grant RBAC permissions not currently held"}`, 403, kit.ExitDenied, "not currently held\nhint: it takes the rights of cluster-admin"},
	} {
		t.Run(x.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.Method == "PATCH" && strings.Contains(r.URL.Path, x.refused):
					if !strings.HasPrefix(x.answer, "{") {
						w.Header().Set("Content-Type", "text/plain")
					}
					w.WriteHeader(x.code)
					fmt.Fprint(w, x.answer)
				case r.Method == "GET":
					w.WriteHeader(404)
					fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "details": {"name": "a"}}`)
				default:
					b, _ := io.ReadAll(r.Body)
					w.Write(b)
				}
			}))
			defer server.Close()
			_, errs, exit := thaw(t, nil, "install", "--image", "example.com/thaw:1", "--kubeconfig", kubeconfig(t, server.URL))
			if exit != x.exit || !strings.Contains(errs, x.want) {
				t.Errorf("exit %d, want %d with %q:\n%s", exit, x.exit, x.want, errs)
			}
		})
	}
}
