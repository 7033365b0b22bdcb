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
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
)

const Namespace = knative.System

// Object is a Kubernetes object of any kind.
type Object = unstructured.Unstructured

// placeholderName is the image in the files.
const placeholderName = "thaw"

// warmHostName is the container image name of the warm host.
const warmHostName = "thaw-warm"

type Options struct {
	Image       string            // with /thaw and /thaw-knative
	Controllers int               // replicas; 0: as in the files
	Activators  int               // replicas; 0: as in the files
	Loaders     map[string]string // labels of nodes with a loader; nil: as in the files, empty: all nodes
	Store       string            // folder on the node; "": as in the files
	Sources     string            // Secret with credentials of sources; "": as in the files
	Expose      bool              // the Service thaw gets a load balancer
	Warm        string            // engine image for warm hosts; "": none
	Controller  []string          // further flags of thaw-knative controller
	Activator   []string          // further flags of thaw-knative activator
	Loader      []string          // further flags of thaw loader
	History     string            // PersistentVolumeClaim of the controllers' history; "": in memory
}

// ErrNoImage is the error where no image is given: there is no image that every cluster has.
var ErrNoImage = errors.New("thaw's image is not set")

// Objects returns the objects of an installation in an order in which they can be created.
func Objects(o Options) ([]*unstructured.Unstructured, error) {
	if o.Store != "" && (!path.IsAbs(o.Store) || path.Clean(o.Store) != o.Store || o.Store == "/") {
		return nil, fmt.Errorf("the store %q is not a clean absolute path: --store, such as %s", o.Store, knative.DefaultStore)
	}
	if o.History != "" && len(validation.IsDNS1123Subdomain(o.History)) > 0 {
		return nil, fmt.Errorf("%q is not a name of a PersistentVolumeClaim", o.History)
	}
	if o.Sources != "" && len(validation.IsDNS1123Subdomain(o.Sources)) > 0 {
		return nil, fmt.Errorf("%q is not a name of a Secret", o.Sources)
	}
	if o.Image == "" {
		return nil, ErrNoImage
	}
	for _, image := range []string{o.Image, o.Warm} {
		if image != "" && !knative.IsImage(image) {
			return nil, fmt.Errorf("%q %s", image, knative.NoImage)
		}
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
		if o.Sources != "" {
			text = bytes.ReplaceAll(text, []byte(knative.SourceSecret), []byte(o.Sources))
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

// installOrder ranks an object: what others refer to comes first.
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
	var more []any // arguments of the container named like the part
	var part string
	switch x.GetName() {
	case "thaw-controller":
		part, more = "controller", toAnyList(o.Controller)
		if o.History != "" {
			more = append(more, "--data="+historyDir)
		}
	case "thaw-activator":
		part, more = "activator", toAnyList(o.Activator)
	case "thaw-loader":
		part, more = "loader", toAnyList(o.Loader)
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
		nodes := o.Loaders
		if len(nodes) == 0 {
			nodes = map[string]string{"kubernetes.io/os": "linux"} // its image is of no other system
		}
		return unstructured.SetNestedStringMap(x.Object, nodes, "spec", "template", "spec", "nodeSelector")
	}
	return nil
}

// historyDir is the mount path of the controllers' history.
const historyDir = "/history"

// toAnyList converts texts to a list of an unstructured object.
func toAnyList(texts []string) []any {
	return functions.ConvertAll(texts, func(s string) any { return s })
}

// appendField appends to a list of an unstructured object.
func appendField(object map[string]any, field string, more ...any) {
	if len(more) > 0 {
		list, _ := object[field].([]any)
		object[field] = append(list, more...)
	}
}

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
		// via JSON, so that numbers become int64
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
