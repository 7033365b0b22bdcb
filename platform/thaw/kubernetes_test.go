package main

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/thaw-dev/thaw/"

// TestNoKubernetesInThaw: the program thaw imports no Kubernetes package.
func TestNoKubernetesInThaw(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command here to list what the program is made of")
	}
	out, err := exec.Command(tool, "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for dep := range strings.Lines(string(out)) {
		n++
		for _, heavy := range []string{"k8s.io/", "knative.dev/", module + "platform/knative"} {
			if strings.HasPrefix(dep, heavy) {
				t.Errorf("the program has %s in it", strings.TrimSpace(dep))
			}
		}
	}
	if n < 100 {
		t.Errorf("the program is made of %d packages: the list is broken", n)
	}
}
