package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/thaw-dev/thaw/"

// layers is the house: a package imports from lower layers only, never from its
// own. A package not listed takes the layer of its nearest listed parent, so a
// new room must be entered here to get a place of its own.
var layers = map[string]int{
	"functions":                 -1,
	"functions/openai":          0,
	"functions/safetensors":     0,
	"functions/compose":         1,
	"activator":                 2,
	"activator/http1":           0,
	"activator/httpserver":      1,
	"activator/upstream":        1,
	"activator/auth":            1,
	"activator/ratelimit":       1,
	"activator/snapshot":        1,
	"loader":                    2,
	"loader/durable":            0,
	"runtime/hostinfo":          0,
	"deploy/docs":               8,
	"loader/source":             0,
	"loader/validate":           1,
	"loader/store":              1,
	"loader/source/dir":         1,
	"loader/source/azure":       1,
	"loader/source/web":         1,
	"loader/source/huggingface": 1,
	"loader/source/s3":          1,
	"loader/source/gcs":         1,
	"loader/p2p":                3,
	"loader/mount":              1,
	"loader/pagecache":          1,
	"loader/enginecache":        1,
	"runtime/ember":             1,
	"runtime/engine":            1,
	"runtime/supervisor":        1,
	"runtime/gpu":               1,
	"runtime/forkserver":        1,
	"runtime/tail":              0,
	"runtime/peercred":          0,
	"runtime/replica":           2,
	"platform/autoscale":        0,
	"platform/placement":        1,
	"platform/forecast":         2,
	"platform/quota":            2,
	"platform/catalog":          1,
	"platform/orchestrator":     4,
	"platform/simulate":         5,
	"platform/simulate/trace":   4,
	"platform/simulate/fleet":   4,
	"platform/simulate/study":   6,
	"platform/simulate/chaos":   6,
	"platform/nodestore":        4,
	"platform/agent":            5,
	"platform/knative":          5,
	"platform/knative/control":  6,
	"platform/knative/install":  6,
	"platform/knative/team":     4,
	"platform/knative/e2e":      8,
	"platform/controlstream":    3,
	"platform/mtls":             1,
	"platform/gateway":          4,
	"platform/shim":             4,
	"platform/enginehttp":       3,
	"runtime/forkserver/pods":   5,
	"platform/nodeloader":       5,
	"platform/local":            6,
	"platform/api":              5,
	"testkit":                   2,
	"deploy/kustomize":          0,
	"bench":                     7,
	"platform/cli":              7,
	"platform/thaw":             8,
	"platform/thaw-knative":     8,
}

// only names the one room that may import a heavy dependency. A bench may
// import what it compares with.
var only = map[string]string{
	"github.com/gofiber/fiber":          "activator/httpserver",
	"github.com/valyala/fasthttp":       "activator/httpserver",
	"github.com/NVIDIA/go-nvml":         "runtime/gpu",
	"github.com/goccy/go-yaml":          "platform/catalog",
	"github.com/Azure/azure-sdk-for-go": "loader/source/azure",
	"github.com/minio/minio-go":         "loader/source/s3",
	"golang.org/x/oauth2":               "loader/source/gcs",
	"github.com/spf13/cobra":            "platform/cli",
	"github.com/hanwen/go-fuse":         "loader/mount",
	"k8s.io/":                           "platform/knative",
	"knative.dev/":                      "platform/knative",
	"go.opentelemetry.io/":              "platform/knative",
	"go.uber.org/zap":                   "platform/knative",
}

// TestImportsGoDown walks every Go file of the module, tests included, and
// fails on an import that does not go down or that takes a heavy dependency
// out of its room.
func TestImportsGoDown(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "node_modules" || n == "testdata" || n == "data" || n == "bin" || (strings.HasPrefix(n, ".") && n != ".." && n != ".") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && p != root {
				return filepath.SkipDir // a module of its own is no part of the house
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		rel, _ := filepath.Rel(root, p)
		pkg := path.Dir(filepath.ToSlash(rel))
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		own, room := layerOf(pkg)
		if room == "" {
			t.Errorf("%s: package %s has no layer; add it to the list", rel, pkg)
			return nil
		}
		for _, im := range f.Imports {
			dep, _ := strconv.Unquote(im.Path.Value)
			if r, ok := strings.CutPrefix(dep, module); ok {
				l, target := layerOf(r)
				// A test may use test kits and what lies beside it in its own room.
				if target == room || target == "testkit" && strings.HasSuffix(p, "_test.go") || (strings.HasSuffix(p, "_test.go") && own >= 5) {
					continue
				}
				if l >= own {
					t.Errorf("%s (layer %d) imports %s (layer %d): imports go down", rel, own, r, l)
				}
				continue
			}
			for prefix, where := range only {
				if strings.HasPrefix(dep, prefix) && pkg != where && !strings.HasPrefix(pkg, where+"/") && !(prefix == "github.com/Azure/azure-sdk-for-go" && strings.HasSuffix(p, "_test.go")) && !(prefix == "github.com/spf13/cobra" && strings.HasPrefix(pkg, "bench")) && !(prefix == "github.com/Azure/azure-sdk-for-go" && pkg == "bench/loader") {
					t.Errorf("%s imports %s: only %s may", rel, dep, where)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Fatalf("saw %d files: the walk is broken", seen)
	}
}

// TestNoKubernetesInThaw: who runs thaw on one machine carries no cluster.
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

// layerOf finds the layer of a package and the listed room it belongs to.
func layerOf(pkg string) (int, string) {
	for p := pkg; p != "." && p != "/"; p = path.Dir(p) {
		if l, ok := layers[p]; ok {
			return l, p
		}
	}
	return -1, ""
}
