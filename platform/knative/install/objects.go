package install

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/thaw-dev/thaw/deploy/kustomize"
	"github.com/thaw-dev/thaw/platform/knative"
)

// Namespace is thaw's own on a cluster.
const Namespace = knative.System

// Object is anything that a cluster has.
type Object = unstructured.Unstructured

// placeholder is the image of every container in the files.
const placeholder = "thaw"

// Options say what differs from cluster to cluster.
type Options struct {
	Image       string            // with /thaw and /thaw-knative
	Controllers int               // replicas; 0 is as in the files
	Activators  int               // replicas; 0 is as in the files
	Loaders     map[string]string // labels of the nodes that have a loader; nil is as in the files, an empty one all nodes
	Store       string            // the folder of the node; "" is as in the files
	Expose      bool              // the Service thaw is a load balancer's
}

// Objects are all objects of an installation, in an order in which they can be
// made.
func Objects(o Options) ([]*unstructured.Unstructured, error) {
	if o.Image == "" {
		return nil, errors.New("no image of thaw is named")
	}
	if o.Store != "" && (!path.IsAbs(o.Store) || path.Clean(o.Store) != o.Store || o.Store == "/") {
		return nil, fmt.Errorf("the store %q is no absolute path of a folder of its own", o.Store)
	}
	names, err := fs.Glob(kustomize.Base, "base/*.yaml")
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, name := range names {
		if path.Base(name) == "kustomization.yaml" {
			continue
		}
		text, err := fs.ReadFile(kustomize.Base, name)
		if err != nil {
			return nil, err
		}
		if o.Store != "" {
			text = bytes.ReplaceAll(text, []byte("/var/lib/thaw"), []byte(o.Store))
		}
		found, err := Decode(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		objects = append(objects, found...)
	}
	for _, x := range objects {
		if err := o.set(x); err != nil {
			return nil, fmt.Errorf("%s %s: %w", x.GetKind(), x.GetName(), err)
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return order(a) - order(b) })
	return objects, nil
}

const workloads = 4

// order has what others need made first.
func order(x *unstructured.Unstructured) int {
	switch x.GetKind() {
	case "Namespace":
		return 0
	case "ServiceAccount", "ClusterRole", "Role":
		return 1
	case "ClusterRoleBinding", "RoleBinding", "NetworkPolicy":
		return 2
	case "Deployment", "DaemonSet":
		return workloads
	}
	return 3
}

func (o Options) set(x *unstructured.Unstructured) error {
	switch {
	case x.GetKind() == "Deployment" || x.GetKind() == "DaemonSet":
	case x.GetKind() == "Service" && x.GetName() == "thaw" && o.Expose:
		return unstructured.SetNestedField(x.Object, "LoadBalancer", "spec", "type")
	default:
		return nil
	}
	for _, list := range []string{"initContainers", "containers"} {
		at := []string{"spec", "template", "spec", list}
		containers, _, err := unstructured.NestedSlice(x.Object, at...)
		if err != nil || containers == nil {
			continue
		}
		for _, c := range containers {
			if c := c.(map[string]any); c["image"] == placeholder {
				c["image"] = o.Image
			}
		}
		if err := unstructured.SetNestedSlice(x.Object, containers, at...); err != nil {
			return err
		}
	}
	replicas := map[string]int{"thaw-controller": o.Controllers, "thaw-activator": o.Activators}[x.GetName()]
	if replicas > 0 {
		return unstructured.SetNestedField(x.Object, int64(replicas), "spec", "replicas")
	}
	if x.GetKind() == "DaemonSet" && o.Loaders != nil {
		at := []string{"spec", "template", "spec", "nodeSelector"}
		if len(o.Loaders) == 0 {
			unstructured.RemoveNestedField(x.Object, at...)
			return nil
		}
		return unstructured.SetNestedStringMap(x.Object, o.Loaders, at...)
	}
	return nil
}

// Decode reads documents of YAML.
func Decode(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	r := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		// Through JSON, so that numbers are int64 as the API's are.
		j, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			return nil, err
		}
		x := &unstructured.Unstructured{}
		if strings.TrimSpace(string(j)) == "null" {
			continue
		}
		if err := x.UnmarshalJSON(j); err != nil {
			return nil, err
		}
		if x.GetName() == "" {
			return nil, fmt.Errorf("a %s has no name", x.GetKind())
		}
		objects = append(objects, x)
	}
}

// YAML is what kubectl apply takes.
func YAML(objects []*unstructured.Unstructured) ([]byte, error) {
	var out bytes.Buffer
	for i, x := range objects {
		b, err := yaml.Marshal(x.Object)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(b)
	}
	return out.Bytes(), nil
}
