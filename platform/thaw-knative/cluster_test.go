package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/testkit"
)

// cluster is a real one, with a namespace of its own for the test.
type cluster struct {
	*testing.T
	kubeconfig, namespace string
}

// open skips where no cluster is named. make e2e names the project's own, and is
// the only one that may run this: settings of Knative are changed.
func open(t *testing.T) *cluster {
	config := os.Getenv("THAW_CLUSTER_KUBECONFIG")
	if config == "" {
		testkit.Missing(t, "THAW_CLUSTER_KUBECONFIG names no cluster: make cluster e2e")
	}
	c := &cluster{T: t, kubeconfig: config}
	space := "e2e-" + strings.ToLower(strings.ReplaceAll(time.Now().UTC().Format("0102-150405.000"), ".", "-"))
	c.kubectl("", "create", "namespace", space)
	c.kubectl("", "label", "namespace", space, "thaw.dev/pod-policy=off") // stores of these tests are in other folders
	c.namespace = space
	t.Cleanup(func() {
		exec.Command("kubectl", "--kubeconfig", config, "delete", "namespace", space, "--wait=false").Run()
	})
	return c
}

// try runs kubectl in the test's namespace.
func (c *cluster) try(stdin string, args ...string) (string, error) {
	if c.namespace != "" {
		args = append([]string{"--namespace", c.namespace}, args...)
	}
	cmd := exec.CommandContext(c.Context(), "kubectl", append([]string{"--kubeconfig", c.kubeconfig, "--request-timeout", "30s"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) kubectl(stdin string, args ...string) string {
	c.Helper()
	out, err := c.try(stdin, args...)
	if err != nil {
		c.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// knative runs the program of this package.
func (c *cluster) knative(args ...string) (string, string, int) {
	return thaw(c.T, map[string]string{"THAW_IMAGE": "dev.local/thaw:test"}, append(args, "--kubeconfig", c.kubeconfig, "--namespace", c.namespace)...)
}

// eventually waits for what a cluster does in its own time.
func (c *cluster) eventually(what string, ok func() (bool, string)) {
	c.Helper()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); ; <-tick.C { // a start on a machine that is busy takes half of it
		good, saw := ok()
		if good {
			return
		}
		if time.Now().After(end) {
			c.Fatalf("%s: not within two minutes; last: %s", what, saw)
		}
	}
}

// TestCluster is the life of a model on a real cluster, by both programs.
func TestCluster(t *testing.T) {
	c := open(t)
	file := write(t, "m.yaml", model)

	// As Knative comes: doctor says what is missing, and so does a deploy.
	c.kubectl("", "label", "namespace", c.namespace, "pod-security.kubernetes.io/enforce=restricted")
	c.kubectl("", "patch", "configmap", "config-features", "--namespace", "knative-serving", "--type", "merge", "-p",
		`{"data": {"kubernetes.podspec-init-containers": null, "kubernetes.podspec-volumes-hostpath": null}}`)
	const patch = `kubectl patch configmap config-features -n knative-serving --type merge -p '{"data":{"kubernetes.podspec-init-containers":"enabled"}}'`
	c.eventually("refusal", func() (bool, string) {
		_, errs, exit := c.knative("deploy", "-f", file, "--dry-run", "--skip-preflight")
		return exit == kit.ExitUsage && strings.Contains(errs, "thaw-knative doctor") && strings.Contains(errs, patch), errs
	})
	if _, errs, exit := c.knative("deploy", "-f", file, "--dry-run"); exit != kit.ExitUsage || !strings.Contains(errs, patch) ||
		!strings.Contains(errs, "thaw is not installed") || strings.Contains(errs, "webhook") {
		t.Errorf("deploy: exit %d %s", exit, errs)
	}
	out, errs, exit := c.knative("doctor", "-o", "json")
	var list struct {
		Items []struct {
			What, Hint string
			Good, Note bool
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || exit != kit.ExitFailed || !strings.Contains(errs, "findings keep models") {
		t.Fatalf("doctor: exit %d %v\n%s%s", exit, err, out, errs)
	}
	// What it says to do is done, and is enough; but for thaw, which the tests that
	// need it install.
	keep := 0
	for _, x := range list.Items {
		if x.Good || x.Note {
			continue
		}
		if keep++; strings.HasPrefix(x.What, "thaw is not installed") {
			continue
		}
		_, command, _ := strings.Cut(x.Hint, "; ")
		sh := exec.CommandContext(t.Context(), "sh", "-c", command)
		sh.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
		if said, err := sh.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, said)
		}
	}
	if keep != 4 {
		t.Errorf("%d things keep models from running: %s", keep, out)
	}
	// The same by thaw, which hands over to the program beside it.
	programs := os.Getenv("THAW_PROGRAMS")
	if programs == "" {
		t.Fatal("THAW_PROGRAMS names no folder with thaw and thaw-knative: make e2e")
	}
	asked := exec.CommandContext(t.Context(), filepath.Join(programs, "thaw"), "doctor", "--to", "knative", "--kubeconfig", c.kubeconfig,
		"--namespace", c.namespace)
	if said, err := asked.CombinedOutput(); err == nil || strings.Count(string(said), "ok ") < 6 || strings.Count(string(said), "BAD ") != 1 ||
		!strings.Contains(string(said), "thaw-knative install") {
		t.Fatalf("thaw doctor: %v\n%s", err, said)
	}
	c.eventually("acceptance", func() (bool, string) {
		out, errs, exit := c.knative("deploy", "-f", file, "--dry-run", "--skip-preflight")
		return exit == 0 && out == c.namespace+"/qwen would be created\n", out + errs
	})
	if got := c.kubectl("", "get", "ksvc", "-o", "name"); strings.Contains(got, "qwen") {
		t.Fatalf("a dry run left %s", got)
	}

	t.Run("every rendering is taken by kubectl", func(t *testing.T) {
		files, _ := filepath.Glob(filepath.Join("..", "knative", "testdata", "render", "*.model.yaml"))
		if len(files) < 5 {
			t.Skip("the models to render are beside this package's source, and it runs elsewhere")
		}
		for _, f := range files {
			text, _ := os.ReadFile(f)
			f = write(t, filepath.Base(f), strings.ReplaceAll(string(text), ", namespace: ml", ""))
			out, errs, exit := c.knative("deploy", "-f", f, "--dry-run", "-o", "yaml", "--image", "command=example.com/own:1", "--image",
				"llamacpp=example.com/llama:1")
			if exit != 0 {
				t.Fatal(errs)
			}
			if strings.Contains(out, "nodeSelector:") {
				for _, f := range knative.PodFeatures {
					c.kubectl("", "patch", "configmap", f.Map, "--namespace", "knative-serving", "--type", "merge", "-p", `{"data": {"`+f.Key+`": "`+f.Value+`"}}`)
				}
				// Knative has the API server look at such a pod, and what it names has to be there.
				c.kubectl(`{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "models", "namespace": "`+c.namespace+`"}},
{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "interactive"}, "value": 1}]}`, "apply", "-f", "-")
				t.Cleanup(func() { c.try("", "delete", "runtimeclass/nvidia", "priorityclass/interactive") })
				c.eventually("acceptance of "+f, func() (bool, string) {
					said, err := c.try(out, "apply", "--dry-run=server", "-f", "-")
					return err == nil, said
				})
			}
			if said := c.kubectl(out, "apply", "--dry-run=server", "-f", "-"); strings.Contains(said, "Warning") ||
				!strings.Contains(said, "created (server dry run)") {
				t.Errorf("%s: %s", f, said)
			}
		}
	})

	deploy := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "thaw"), append([]string{"deploy", "--to", "knative", "-f", file, "--kubeconfig", c.kubeconfig, "--namespace", c.namespace,
			"--skip-preflight", "--thaw-image", "dev.local/thaw:test", "--image", "vllm=dev.local/vllm:test"}, args...)...) // Knative asks no registry what dev.local is
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil || errs.Len() > 0 {
			t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out.String(), errs.String())
		}
		return strings.TrimPrefix(strings.TrimSpace(out.String()), c.namespace+"/")
	}
	if got := deploy(); got != "qwen created" {
		t.Fatal(got)
	}
	if got := deploy(); got != "qwen unchanged" {
		t.Fatal(got)
	}
	if got := c.kubectl("", "get", "ksvc", "--no-headers"); !strings.HasPrefix(got, "qwen ") {
		t.Fatalf("kubectl get ksvc: %s", got)
	}

	// What Knative makes of it: a PodAutoscaler of our class, and no pod.
	c.eventually("a PodAutoscaler", func() (bool, string) {
		out, _ := c.try("", "get", "podautoscaler", "-o", `jsonpath={.items[*].metadata.annotations.autoscaling\.knative\.dev/class} {.items[*].metadata.annotations.autoscaling\.knative\.dev/initial-scale}`)
		return out == "thaw.dev 0", out
	})
	c.eventually("a Deployment at zero that asks for a GPU", func() (bool, string) {
		out, _ := c.try("", "get", "deployment", "-o", `jsonpath={.items[*].spec.replicas} {.items[*].spec.template.spec.containers[?(@.name=="model")].resources.limits.nvidia\.com/gpu} {.items[*].spec.progressDeadlineSeconds}`)
		return out == "0 1 4200", out
	})
	c.eventually("an ingress of our class", func() (bool, string) {
		out, _ := c.try("", "get", "route", "-o", `jsonpath={.items[*].metadata.annotations.networking\.knative\.dev/ingress\.class}`)
		return out == "thaw.ingress.networking.knative.dev", out
	})

	// kubectl apply of the print, over what thaw has applied, and back.
	printed, errs, exit := c.knative("deploy", "-f", file, "--dry-run", "-o", "yaml", "--thaw-image", "dev.local/thaw:other", "--image",
		"vllm=dev.local/vllm:test")
	if exit != 0 {
		t.Fatal(errs)
	}
	c.kubectl(printed, "apply", "-f", "-")
	if got := deploy(); got != "qwen changed" {
		t.Fatal(got)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(model, "gpus: 1", "gpus: 2", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := deploy("--dry-run"); got != "qwen would be changed" {
		t.Fatal(got)
	}
	if got := deploy(); got != "qwen changed" {
		t.Fatal(got)
	}

	// Listed, with what a person asks first.
	out, errs, exit = c.knative("get")
	if exit != 0 || !strings.Contains(out, c.namespace+"/qwen") || !strings.Contains(out, "vllm") || !strings.Contains(out, "0..1") {
		t.Fatalf("get: exit %d\n%s%s", exit, out, errs)
	}

	// A registry that does not answer is told by its image.
	bad := write(t, "bad.yaml", strings.Replace(model, "qwen", "bad", 1))
	if _, errs, exit := c.knative("deploy", "--skip-preflight", "-f", bad, "--image", "vllm=registry.invalid/vllm:1", "--thaw-image",
		"dev.local/thaw:test"); exit != 0 {
		t.Fatal(errs)
	}
	c.eventually("the reason", func() (bool, string) {
		out, _, _ := c.knative("get", "bad")
		return strings.Contains(out, "registry.invalid/vllm:1"), out
	})
	if _, errs, exit := c.knative("rm", "bad"); exit != 0 {
		t.Fatal(errs)
	}

	// A foreign Knative Service is not changed, listed or removed.
	c.kubectl(`{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "theirs"}, "spec": {"template": {"spec": {"containers": [{"image": "dev.local/hello:test", "imagePullPolicy": "IfNotPresent"}]}}}}`, "apply", "-f", "-")
	other := write(t, "theirs.yaml", strings.Replace(model, "qwen", "theirs", 1))
	for _, args := range [][]string{{"deploy", "-f", other, "--skip-preflight"}, {"rm", "theirs"}, {"get", "theirs"}} {
		if _, errs, exit := c.knative(args...); exit != kit.ExitUsage || !strings.Contains(errs, "no model") {
			t.Errorf("%v: exit %d %s", args, exit, errs)
		}
	}
	if out, _, _ := c.knative("get", "-o", "name"); out != c.namespace+"/qwen\n" {
		t.Errorf("listed: %s", out)
	}

	// One that is written by hand needs no more than the class.
	c.kubectl(`{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "hand"}, "spec": {"template": {"metadata": {"annotations": {"autoscaling.knative.dev/class": "thaw.dev", "autoscaling.knative.dev/initial-scale": "0"}}, "spec": {"containers": [{"image": "dev.local/hello:test", "imagePullPolicy": "IfNotPresent"}]}}}}`, "apply", "-f", "-")
	if out, _, _ := c.knative("get", "-o", "name"); out != c.namespace+"/hand\n"+c.namespace+"/qwen\n" {
		t.Errorf("listed: %s", out)
	}

	out, errs, exit = c.knative("rm", "qwen", "hand", "gone")
	if exit != kit.ExitNotFound || !strings.Contains(out, "qwen removed") || !strings.Contains(out, "hand removed") ||
		!strings.Contains(errs, "gone is not on the cluster") {
		t.Fatalf("rm: exit %d\n%s%s", exit, out, errs)
	}
	c.eventually("nothing of it is left", func() (bool, string) {
		out, _ := c.try("", "get", "ksvc,configuration,revision,podautoscaler,deployment", "-l", "serving.knative.dev/service!=theirs", "-o",
			"name")
		left := strings.ReplaceAll(out, "service.serving.knative.dev/theirs\n", "")
		return strings.TrimSpace(left) == "" || strings.HasPrefix(left, "No resources"), left
	})
}
