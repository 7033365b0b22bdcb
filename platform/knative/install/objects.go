package install

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/thaw-dev/thaw/deploy/kustomize"
	"github.com/thaw-dev/thaw/platform/knative"
)

// Namespace is thaw's own on a cluster.
const Namespace = knative.System

// Object is anything that a cluster has.
type Object = unstructured.Unstructured

// placeholderName is the image of every container in the files.
const placeholderName = "thaw"

// warmHostName is the image of the interpreter that is lent.
const warmHostName = "thaw-warm"

// Options say what differs from cluster to cluster.
type Options struct {
	Image       string            // with /thaw and /thaw-knative
	Controllers int               // replicas; 0 is as in the files
	Activators  int               // replicas; 0 is as in the files
	Loaders     map[string]string // labels of the nodes that have a loader; nil is as in the files, an empty one all nodes
	Store       string            // the folder of the node; "" is as in the files
	Expose      bool              // the Service thaw is a load balancer's
	Warm        string            // the engine's image, of which nodes lend an interpreter to their pods; "" is none
	Controller  []string          // flags of thaw-knative controller beyond those in the files
	Activator   []string          // flags of thaw-knative activator beyond those in the files
	History     string            // the PersistentVolumeClaim of the controllers' history; "" is none: memory
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
	if o.History != "" && len(validation.IsDNS1123Subdomain(o.History)) > 0 {
		return nil, fmt.Errorf("%q is no name of a PersistentVolumeClaim", o.History)
	}
	names, err := fs.Glob(kustomize.Base, "base/*.yaml")
	if err != nil {
		return nil, err
	}
	texts := map[string][]byte{}
	for _, name := range names {
		if path.Base(name) == "kustomization.yaml" {
			continue
		}
		if texts[name], err = fs.ReadFile(kustomize.Base, name); err != nil {
			return nil, err
		}
	}
	if o.Warm != "" {
		texts["warm/warm.yaml"] = kustomize.Warm
	}
	var objects []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text := texts[name]
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
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return installOrder(a) - installOrder(b) })
	return objects, nil
}

const workloadOrder = 4

// installOrder has what others need made first.
func installOrder(x *unstructured.Unstructured) int {
	switch x.GetKind() {
	case "Namespace":
		return 0
	case "ServiceAccount", "ClusterRole", "Role":
		return 1
	case "ClusterRoleBinding", "RoleBinding", "NetworkPolicy":
		return 2
	case "Deployment", "DaemonSet":
		return workloadOrder
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
	var more []any // arguments of the container that is named as the part is
	var part string
	switch x.GetName() {
	case "thaw-controller":
		part, more = "controller", toAnyList(o.Controller)
		if o.History != "" {
			more = append(more, "--data="+historyDir)
		}
	case "thaw-activator":
		part, more = "activator", toAnyList(o.Activator)
	}
	for _, list := range []string{"initContainers", "containers"} {
		at := []string{"spec", "template", "spec", list}
		containers, _, err := unstructured.NestedSlice(x.Object, at...)
		if err != nil || containers == nil {
			continue
		}
		for _, c := range containers {
			c := c.(map[string]any)
			switch c["image"] {
			case placeholderName:
				c["image"] = o.Image
			case warmHostName:
				c["image"] = o.Warm
			}
			if c["name"] != part {
				continue
			}
			appendField(c, "args", more...)
			if part == "controller" && o.History != "" {
				appendField(c, "volumeMounts", map[string]any{"name": "history", "mountPath": historyDir})
			}
		}
		if err := unstructured.SetNestedSlice(x.Object, containers, at...); err != nil {
			return err
		}
	}
	if part == "controller" && o.History != "" {
		pod := x.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		appendField(pod, "volumes", map[string]any{"name": "history", "persistentVolumeClaim": map[string]any{"claimName": o.History}})
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

// historyDir is where the controller's container has the folder of its history.
const historyDir = "/history"

// toAnyList are texts as a list of an object has them.
func toAnyList(texts []string) []any {
	var list []any
	for _, s := range texts {
		list = append(list, s)
	}
	return list
}

// appendField appends to a list of an object.
func appendField(object map[string]any, field string, more ...any) {
	if len(more) > 0 {
		list, _ := object[field].([]any)
		object[field] = append(list, more...)
	}
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
