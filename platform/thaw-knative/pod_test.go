package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/knative"
)

// TestClusterPod has a pod of the rendered shape run: with Knative's own class
// and the cluster's own ingress, since ours start no pods yet, and with a program
// that says what it finds in the place of thaw's shim. All else is as rendered.
func TestClusterPod(t *testing.T) {
	ingress := os.Getenv("THAW_CLUSTER_INGRESS")
	c := open(t)
	if ingress == "" {
		t.Fatal("THAW_CLUSTER_INGRESS says not where requests go: make e2e")
	}
	// This machine is the node, in the cluster's own folders.
	store := filepath.Join(knative.DefaultStore, c.namespace)
	sockets := filepath.Join(store, knative.SocketFolder)
	if err := os.MkdirAll(sockets, 0o777); err != nil {
		t.Fatal(err)
	}
	os.Chmod(sockets, 0o777) // what keeps the pod from writing is the mount alone
	t.Cleanup(func() { os.RemoveAll(store) })
	if err := os.WriteFile(filepath.Join(sockets, "weights"), []byte("heavy"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, f := range knative.Features {
		c.kubectl("", "patch", "configmap", f.Map, "--namespace", "knative-serving", "--type", "merge", "-p", fmt.Sprintf(`{"data": {%q: %q}}`, f.Key, f.Value))
	}
	file := write(t, "m.yaml", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: pod}\nspec:\n  source: hf://a/b\n  engine: vllm\n"+
		"  args: [--chat-template, '{{ $(HOME) }} $$x']\n  env: {PRICE: '5$', A: \"two\\nlines\"}\n  resources: {memory: 32Mi}\n")
	printed, errs, exit := c.knative("deploy", "-f", file, "--dry-run", "-o", "yaml", "--thaw-image", "dev.local/shim:test", "--image",
		"vllm=dev.local/hello:test", "--store", store)
	if exit != 0 {
		t.Fatal(errs)
	}
	for ours, theirs := range map[string]string{"class: " + knative.AutoscalerClass + "\n": "class: kpa.autoscaling.knative.dev\n", knative.IngressClass: "edge.ingress.networking.knative.dev"} {
		if strings.Count(printed, ours) != 1 {
			t.Fatalf("%q is %d times in\n%s", ours, strings.Count(printed, ours), printed)
		}
		printed = strings.Replace(printed, ours, theirs, 1)
	}
	c.eventually("acceptance", func() (bool, string) {
		out, err := c.try(printed, "apply", "-f", "-")
		return err == nil, out
	})
	c.eventually("a Ready service", func() (bool, string) {
		out, _ := c.try("", "get", "ksvc", "pod", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		return strings.Contains(out, `"True"`), out
	})
	if out := c.kubectl("", "get", "pods", "-o", "name"); out != "" {
		t.Fatalf("a pod before the first request: %s", out)
	}

	// The first request wakes it.
	r, err := http.NewRequestWithContext(t.Context(), "GET", ingress, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "pod." + c.namespace + "." + os.Getenv("THAW_ROUTE_DOMAIN")
	var body []byte
	c.eventually("an answer", func() (bool, string) {
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, err.Error()
		}
		defer answer.Body.Close()
		body, _ = io.ReadAll(answer.Body)
		return answer.StatusCode == 200, answer.Status + " " + string(body)
	})
	var found struct {
		Program, CapEff, CapBnd, NoNewPrivs, Seccomp, Weights string
		UID, GID                                              int
		Env, Writes                                           []string
		Token                                                 bool
	}
	if err := json.Unmarshal(body, &found); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if found.Program != "/opt/thaw/thaw" || found.UID != 65532 || found.GID != 65532 || found.Token || found.Weights != "heavy" ||
		found.NoNewPrivs != "1" || found.Seccomp != "2" || strings.Trim(found.CapEff+found.CapBnd, "0") != "" {
		t.Errorf("the container is %+v", found)
	}
	if !slices.Equal(found.Writes, []string{"/tmp", "/dev/shm"}) {
		t.Errorf("it may write to %v", found.Writes)
	}
	var text string
	for _, e := range found.Env {
		if v, ok := strings.CutPrefix(e, "THAW_MODEL="); ok {
			text = v
		}
	}
	for _, want := range []string{`"{{ $(HOME) }} $$x"`, `PRICE: "5$"`, `A: "two\nlines"`, "source: hf://a/b", "namespace: " + c.namespace} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in THAW_MODEL:\n%s", want, text)
		}
	}
	for _, want := range []string{"PORT=8080", "THAW_SOCKETS=" + sockets, "HOME=/tmp", "USER=thaw", "NVIDIA_VISIBLE_DEVICES=void"} {
		if !slices.Contains(found.Env, want) {
			t.Errorf("%s is not in the environment: %q", want, found.Env)
		}
	}
}
