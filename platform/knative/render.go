package knative

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// Annotations and labels that make a Knative Service a model. One written by hand needs
// the two classes and a container that reads THAW_MODEL.
const (
	AutoscalerClass = "thaw.dev"
	IngressClass    = "thaw.ingress.networking.knative.dev"

	ClassAnnotation   = "autoscaling.knative.dev/class"
	IngressAnnotation = "networking.knative.dev/ingress.class"
	ModelAnnotation   = "thaw.dev/model" // on the Service: the whole model file, as JSON
	ModelLabel        = "thaw.dev/model" // on Service and pods: the model's name

	minAnnotation      = "autoscaling.knative.dev/min-scale"
	maxAnnotation      = "autoscaling.knative.dev/max-scale"
	targetAnnotation   = "autoscaling.knative.dev/target"
	initialAnnotation  = "autoscaling.knative.dev/initial-scale"
	progressAnnotation = "serving.knative.dev/progress-deadline"

	nameLabel    = "app.kubernetes.io/name"
	managedLabel = "app.kubernetes.io/managed-by"
)

// GPU is the extended resource of a GPU.
const GPU corev1.ResourceName = "nvidia.com/gpu"

const (
	// DefaultStore is the folder of a node's loader: its checkpoints, and SocketFolder.
	DefaultStore = "/var/lib/thaw"

	// SocketFolder is the part of that folder that pods mount. It holds sockets only.
	SocketFolder = "sockets"

	// DefaultTimeout bounds a request unless Settings do; it equals Knative's default
	// max-revision-timeout-seconds.
	DefaultTimeout = 10 * time.Minute

	shimMemory = 64 << 20

	// maxDocument bounds the model file in bytes: the controller and the shim read no
	// more. It is in an annotation, in kubectl's last-applied copy and in an environment
	// variable.
	maxDocument = catalog.MaxTenant

	// maxName leaves room for the revision's suffix. Knative shortens a longer name to a
	// hash.
	maxName = 63 - len("-00001")

	nonrootID  = 65532 // uid and gid of the container
	port       = 8080
	program    = "/opt/thaw/thaw" // the shim, copied there by the init container
	scratch    = "/tmp"           // the only writable folder
	maxReplica = math.MaxInt32
)

// defaultImages holds the default images of engines. Ember is part of thaw; a command
// brings its own image; llama.cpp's is not on the default registry.
var defaultImages = map[functions.Engine]string{
	functions.EngineVLLM:   "vllm/vllm-openai:v0.32.0",
	functions.EngineSGLang: "lmsysorg/sglang:latest",
}

// DefaultImage is the default image of an engine; "": none.
func DefaultImage(e functions.Engine) string { return defaultImages[e] }

// Settings is what a model file does not contain.
type Settings struct {
	Thaw      string                      // thaw's image; its entry point is the program
	Images    map[functions.Engine]string // instead of DefaultImage
	Namespace string                      // for models whose file names none; "": default
	Store     string                      // the loader's folder on each node; "": DefaultStore
	Timeout   time.Duration               // of one request, whole seconds; 0: DefaultTimeout
	Pod       functions.Pod               // default spec.pod of models with GPUs

	// AllowVulnerable lets pods start engines below the version that fixes a known
	// vulnerability.
	AllowVulnerable bool
}

// Service is a Knative Service, for packages that do not import Kubernetes.
type Service = servingv1.Service

// Render turns a model into its Knative Service. The error is catalog.Problems: everything
// that Kubernetes does not support, each with a hint.
//
// What only the controller and the activator read (queue, scale.idle) is in an annotation
// of the Service, so its change makes no new revision. All else is part of the revision:
// running replicas keep it.
func Render(m *functions.Model, s Settings) (*servingv1.Service, error) {
	r := rendering{m: m, s: s}
	r.s.Store = cmp.Or(r.s.Store, DefaultStore)
	r.s.Timeout = cmp.Or(r.s.Timeout, DefaultTimeout)
	r.check()
	service := r.service()
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return service, nil
}

// RenderAll renders all models or none, and returns the problems of all.
func RenderAll(models []*functions.Model, s Settings) ([]*servingv1.Service, error) {
	var services []*servingv1.Service
	var problems catalog.Problems
	for _, m := range models {
		service, err := Render(m, s)
		if p, bad := errors.AsType[catalog.Problems](err); bad {
			for _, x := range p {
				// a problem of the settings is reported once
				if x.Path != "" || !slices.ContainsFunc(problems, func(y catalog.Problem) bool { return y.Message == x.Message }) {
					problems = append(problems, x)
				}
			}
			continue
		} else if err != nil {
			return nil, err
		}
		services = append(services, service)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return services, nil
}

// rendering is one model being rendered.
type rendering struct {
	m        *functions.Model
	s        Settings
	problems catalog.Problems
}

func (r *rendering) addProblem(path, hint, format string, args ...any) {
	r.problems = append(r.problems, ProblemOf(r.m, path, hint, fmt.Sprintf(format, args...)))
}

// ProblemOf returns a problem of a model's file at a path of it; "" is a problem of no file.
func ProblemOf(m *functions.Model, path, hint, message string) catalog.Problem {
	file, line := m.Origin, 0
	if path == "" {
		file = ""
	}
	if i := strings.LastIndexByte(file, ':'); i >= 0 {
		if n, err := strconv.Atoi(file[i+1:]); err == nil {
			file, line = file[:i], n
		}
	}
	return catalog.Problem{File: file, Line: line, Path: path, Message: message, Hint: hint}
}

// check collects what thaw supports and Kubernetes does not.
func (r *rendering) check() {
	m := r.m
	if bad := validation.IsDNS1035Label(m.Metadata.Name); len(bad) > 0 {
		r.addProblem("metadata.name", "take one that begins with a letter", "%q cannot be the name of a service of Kubernetes", m.Metadata.Name)
	} else if len(m.Metadata.Name) > maxName {
		r.addProblem("metadata.name", fmt.Sprintf("at most %d letters", maxName),
			"%q is too long: its revisions are named %s-00001 and so on, in 63 letters", m.Metadata.Name, m.Metadata.Name)
	}
	if ns := m.Metadata.Namespace; r.s.Namespace != "" && ns != functions.DefaultTeam && ns != r.s.Namespace {
		r.addProblem("metadata.namespace", "leave one of the two out", "the file says %q, --namespace %q", ns, r.s.Namespace)
	}
	if ns := r.namespace(); len(validation.IsDNS1123Label(ns)) > 0 {
		r.addProblem("metadata.namespace", "lower-case letters, digits and '-'", "%q cannot be a namespace", ns)
	} else if ns == "knative-serving" || strings.HasPrefix(ns, "kube-") {
		r.addProblem("metadata.namespace", "a team's own", "%q belongs to the cluster itself", ns)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Metadata.Labels)) {
		v := m.Metadata.Labels[k]
		switch {
		case len(validation.IsQualifiedName(k)) > 0:
			r.addProblem("metadata.labels", "such as tier or example.com/tier: at most 63 letters, digits, '-', '_' and '.' after the '/'",
				"%q cannot be the key of a label of Kubernetes", k)
		case strings.HasPrefix(k, "thaw.dev/") || k == nameLabel || k == managedLabel:
			r.addProblem("metadata.labels", "leave it out", "%s is set by thaw", k)
		case len(validation.IsValidLabelValue(v)) > 0:
			r.addProblem("metadata.labels", "at most 63 letters, digits, '-', '_' and '.'", "%s: %q cannot be the value of a label of Kubernetes", k,
				v)
		}
	}
	for _, p := range functions.CheckPod("pod", &r.s.Pod) {
		r.addProblem("", p.Hint, "what all pods of the namespace say: %s: %s", p.Path, p.Message)
	}
	if m.Spec.Folder != "" {
		r.addProblem("spec.folder", "leave it out: args count from the image's own folder", "a pod does not have the folders of this machine")
	}
	if m.Spec.Cache != (functions.Cache{}) {
		r.addProblem("spec.cache", "leave it out", "not on Kubernetes yet")
	}
	if m.Spec.Price != (functions.Price{}) {
		r.addProblem("spec.price", "leave it out", "not on Kubernetes yet")
	}
	r.source("spec.source", m.Spec.Source)
	for i, a := range m.Spec.Adapters {
		r.source(fmt.Sprintf("spec.adapters[%d].source", i), a.Source)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Spec.Env)) {
		if k == "PORT" || strings.HasPrefix(k, "K_") {
			r.addProblem("spec.env."+k, "take another name", "Knative sets this variable itself")
		}
	}
	for _, n := range []struct {
		path  string
		value int
	}{{"spec.scale.max", m.Spec.Scale.Max}, {"spec.scale.target", m.Spec.Scale.Target}} {
		if n.value > maxReplica {
			r.addProblem(n.path, "", "%d is more than Knative counts", n.value)
		}
	}
	if r.s.Thaw == "" {
		r.addProblem("", "--thaw-image IMAGE", "thaw's image is not set, and every model's pod needs it")
	}
	for i, image := range []string{r.s.Thaw, r.image()} {
		if image != "" && !IsImage(image) && (i == 0 || image != r.s.Thaw) {
			r.addProblem("", []string{"--thaw-image IMAGE", fmt.Sprintf("--image %s=IMAGE", r.m.Spec.Engine)}[i], "%q %s", image, NoImage)
		}
	}
	if r.image() == "" {
		r.addProblem("spec.engine", fmt.Sprintf("--image %s=IMAGE names the one that holds the program", m.Spec.Engine),
			"there is no image to run engine %s from", m.Spec.Engine)
	}
	if !path.IsAbs(r.s.Store) || path.Clean(r.s.Store) != r.s.Store || r.s.Store == "/" {
		r.addProblem("", "such as "+DefaultStore, "the store %q is not a clean absolute path", r.s.Store)
	}
	if r.s.Timeout < time.Second || r.s.Timeout%time.Second != 0 {
		r.addProblem("", "such as 10m", "%s is no time for a request: Knative counts whole seconds", r.s.Timeout)
	}
}

// source refuses sources on the local machine. file:///PATH is a folder of the loaders.
func (r *rendering) source(path, source string) {
	if source == "" || strings.Contains(source, "://") {
		return
	}
	r.addProblem(path, "upload it and name it as az://ACCOUNT/CONTAINER/PREFIX, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://ORG/REPO or "+
		"https://…; a share that the loaders mount (loader.folders of the chart) is file:///PATH",
		"%s is a folder of this machine, and no pod can read it", source)
}

func (r *rendering) namespace() string {
	return cmp.Or(r.s.Namespace, r.m.Metadata.Namespace)
}

// image is the engine's image; ember's is thaw itself.
func (r *rendering) image() string {
	if own := r.s.Images[r.m.Spec.Engine]; own != "" {
		return own
	}
	if r.m.Spec.Engine == functions.EngineEmber {
		return r.s.Thaw
	}
	return defaultImages[r.m.Spec.Engine]
}

func (r *rendering) service() *servingv1.Service {
	m := r.m
	labels := map[string]string{nameLabel: m.Metadata.Name, managedLabel: "thaw", ModelLabel: m.Metadata.Name}
	maps.Copy(labels, m.Metadata.Labels)
	seconds := func(d time.Duration) *int64 { return new(int64(math.Ceil(d.Seconds()))) }
	podLabels := maps.Clone(labels)
	maps.DeleteFunc(podLabels, func(k, _ string) bool { return strings.Contains(k, "knative.dev/") }) // those are about the Service
	annotations := r.scaling()
	maps.Copy(annotations, r.podSettings().Annotations)
	answer := min(r.s.Timeout, m.Spec.Queue.Wait.Std()+m.Spec.Deadlines.FirstToken.Std())
	return &servingv1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name: m.Metadata.Name, Namespace: r.namespace(), Labels: labels,
			Annotations: map[string]string{IngressAnnotation: IngressClass, ModelAnnotation: r.modelText()},
		},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Labels:      podLabels,
				Annotations: annotations,
			},
			Spec: servingv1.RevisionSpec{
				PodSpec: r.pod(),
				// the activators bound the concurrency, not the pod
				ContainerConcurrency: new(int64(0)),
				TimeoutSeconds:       seconds(r.s.Timeout),
				// includes the start if Knative's activator holds the request
				ResponseStartTimeoutSeconds: seconds(answer),
			},
		}}},
	}
}

// scaling is the revision's scaling annotations. The first pod starts with the first
// request.
func (r *rendering) scaling() map[string]string {
	s, d := r.m.Spec.Scale, r.m.Spec.Deadlines
	return map[string]string{
		ClassAnnotation:   AutoscalerClass,
		minAnnotation:     strconv.Itoa(s.Min),
		maxAnnotation:     strconv.Itoa(s.Max),
		targetAnnotation:  strconv.Itoa(s.Target),
		initialAnnotation: "0",
		// after this time Knative fails the revision
		progressAnnotation: fmt.Sprintf("%ds", int64(math.Ceil((d.Stage.Std() + d.Start.Std()).Seconds()))),
	}
}

// sockets is the folder of the node that the pod mounts, under the same path.
func (r *rendering) sockets() string { return path.Join(r.s.Store, SocketFolder) }

// podSettings is the model's spec.pod, with GPUs over the namespace's.
func (r *rendering) podSettings() functions.Pod {
	if r.m.Spec.Resources.GPUs > 0 {
		return r.m.Spec.Pod.Over(r.s.Pod)
	}
	return r.m.Spec.Pod
}

func (r *rendering) pod() corev1.PodSpec {
	res := r.m.Spec.Resources
	pod := corev1.PodSpec{
		AutomountServiceAccountToken: new(false), // engines need no access to Kubernetes
		EnableServiceLinks:           new(false),
		Volumes: []corev1.Volume{
			// not created if missing: a node without a loader cannot serve
			{Name: "sockets", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: r.sockets(), Type: new(corev1.HostPathDirectory)}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
	}
	applyPod(&pod, r.podSettings())
	c := corev1.Container{
		Name: "model", Image: r.image(),
		Args:  []string{"runtime"},
		Env:   r.environment(),
		Ports: []corev1.ContainerPort{{Name: "http1", ContainerPort: port}},
		// The shim is ready after the engine has generated a token. No liveness probe:
		// starts may take long.
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(port)}},
			PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1,
		},
		Resources:       resourceRequirements(r.m.Spec.Engine, res),
		SecurityContext: lockedContext(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "sockets", MountPath: r.sockets(), ReadOnly: true},
			{Name: "scratch", MountPath: scratch},
		},
	}
	if r.m.Spec.Engine != functions.EngineEmber || r.image() != r.s.Thaw { // else the image has thaw in it
		c.Command = []string{program}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "thaw", MountPath: path.Dir(program), ReadOnly: true})
		pod.Volumes = append(pod.Volumes,
			corev1.Volume{Name: "thaw", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		install := memoryRequirements(shimMemory)
		install.Requests[corev1.ResourceCPU] = resource.MustParse("10m") // quotas of processors admit no container without a request
		pod.InitContainers = []corev1.Container{{
			Name: "thaw", Image: r.s.Thaw,
			Args:            []string{"runtime", "--install", program},
			Resources:       install,
			SecurityContext: lockedContext(),
			VolumeMounts:    []corev1.VolumeMount{{Name: "thaw", MountPath: path.Dir(program)}},
		}}
	}
	if e := r.m.Spec.Engine; e == functions.EngineVLLM || e == functions.EngineSGLang || res.GPUs > 1 {
		// Workers communicate through shared memory, of which a container has 64 MiB.
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "shared", MountPath: "/dev/shm"})
		pod.Volumes = append(pod.Volumes,
			corev1.Volume{Name: "shared",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}})
	}
	pod.Containers = []corev1.Container{c}
	return pod
}

// environment is what the shim reads. The engine's env and args are in THAW_MODEL.
func (r *rendering) environment() []corev1.EnvVar {
	env := []corev1.EnvVar{
		{Name: "THAW_MODEL", Value: escapeDollars(r.startedSpec())},
		{Name: "THAW_SOCKETS", Value: escapeDollars(r.sockets())},
		{Name: "HOME", Value: scratch},
		{Name: "USER", Value: "thaw"}, // libraries fail for a uid without a name
	}
	if r.m.Spec.Resources.GPUs == 0 {
		// NVIDIA's runtime gives all GPUs to images that set "all", as engines' images do.
		env = append(env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"})
	}
	if r.s.AllowVulnerable {
		env = append(env, corev1.EnvVar{Name: "THAW_VULNERABLE_ENGINES", Value: "allow"})
	}
	return env
}

// escapeDollars keeps Kubernetes from expanding $(NAME): $$ stands for $.
func escapeDollars(s string) string { return strings.ReplaceAll(s, "$", "$$") }

// startedSpec is the model file for the shim, without what may change while a replica
// runs.
func (r *rendering) startedSpec() string {
	s := r.m.Spec
	doc, err := catalog.EncodeYAML(struct {
		APIVersion string             `json:"apiVersion"`
		Kind       string             `json:"kind"`
		Metadata   functions.Metadata `json:"metadata"`
		Spec       any                `json:"spec"`
	}{functions.APIVersion, functions.KindModel, functions.Metadata{Name: r.m.Metadata.Name, Namespace: r.namespace()}, struct {
		Source    string               `json:"source,omitempty"`
		Files     []string             `json:"files,omitempty"`
		Exclude   []string             `json:"exclude,omitempty"`
		Weights   string               `json:"weights,omitempty"`
		Engine    functions.Engine     `json:"engine,omitempty"`
		Args      []string             `json:"args,omitempty"`
		Env       map[string]string    `json:"env,omitempty"`
		Health    string               `json:"health,omitempty"`
		Serves    []functions.Endpoint `json:"serves,omitempty"`
		Probe     functions.Probe      `json:"probe,omitzero"`
		Adapters  []functions.Adapter  `json:"adapters,omitempty"`
		Resources functions.Resources  `json:"resources"`
		Deadlines functions.Deadlines  `json:"deadlines"`
	}{s.Source, s.Files, s.Exclude, s.Weights, s.Engine, s.Args, s.Env, s.Health, s.Serves, s.Probe, s.Adapters, s.Resources, s.Deadlines}})
	if err != nil {
		r.addProblem("", "", "cannot be written down: %v", err)
	}
	return string(doc)
}

// modelText is the model file for the controller and the activator.
func (r *rendering) modelText() string {
	m := *r.m
	m.Metadata.Namespace = r.namespace()
	doc, err := json.Marshal(&m)
	if err != nil {
		r.addProblem("", "", "cannot be written down: %v", err)
	} else if len(doc) > maxDocument {
		r.addProblem("", "keep long args and env in the image", "the model file takes %d bytes, and a service carries at most %d", len(doc),
			maxDocument)
	}
	return string(doc)
}

// DefaultCPU is the CPU request of a model without resources.cpu: one per GPU for engines
// with a scheduling loop, half a CPU where they compute on CPUs, nothing for ember and
// commands. Without a request the loop that feeds the GPUs would starve on a busy node. It
// is never a limit, so starts use what is free.
func DefaultCPU(e functions.Engine, r functions.Resources) functions.CPU {
	switch e {
	case functions.EngineVLLM, functions.EngineSGLang, functions.EngineLlamaCpp:
		return functions.CPU(max(500, 1000*r.GPUs))
	}
	return 0
}

// resourceRequirements of a model: GPUs and memory as request and limit, CPU as request.
func resourceRequirements(e functions.Engine, r functions.Resources) corev1.ResourceRequirements {
	list := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	if r.Memory > 0 {
		list = memoryRequirements(int64(r.Memory) + shimMemory)
	}
	if r.GPUs > 0 {
		list.Requests[GPU] = *resource.NewQuantity(int64(r.GPUs), resource.DecimalSI)
		list.Limits[GPU] = list.Requests[GPU]
	}
	if cpu := cmp.Or(r.CPU, DefaultCPU(e, r)); cpu > 0 {
		list.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(cpu), resource.DecimalSI)
	}
	return list
}

func memoryRequirements(bytes int64) corev1.ResourceRequirements {
	list := func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(bytes, resource.BinarySI)}
	}
	return corev1.ResourceRequirements{Requests: list(), Limits: list()}
}

// lockedContext is a security context without privileges. It is set on containers because
// the pod's needs a Knative feature.
func lockedContext() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(nonrootID)), RunAsGroup: new(int64(nonrootID)),
		ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// IsDomain reports whether name is a valid DNS domain of a cluster.
func IsDomain(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

var imagePattern = regexp.MustCompile(`^(([A-Za-z0-9-]*[.:][A-Za-z0-9.:-]*|localhost|\[[0-9a-fA-F:]+\](:[0-9]+)?)/)?` +
	`[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)

// IsImage reports whether a text may name an image.
func IsImage(name string) bool { return imagePattern.MatchString(name) }

// NoImage is what a text is that names none.
const NoImage = "names no image: want [HOST[:PORT]/]PATH[:TAG][@sha256:…], the path in lower-case letters"
