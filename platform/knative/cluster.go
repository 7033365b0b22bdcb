package knative

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
	"knative.dev/pkg/apis"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	servingclient "knative.dev/serving/pkg/client/clientset/versioned/typed/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// Access selects a cluster and an account.
type Access struct {
	Kubeconfig string // "": KUBECONFIG, ~/.kube/config or the pod's own account
	Context    string // of the kubeconfig; "": the current one
	Warn       func(string)
}

// requestTimeout bounds one request; Knative's webhook may use 10 s of it.
const requestTimeout = 30 * time.Second

// eachItem calls f for each object of a list, which it reads in pages.
func eachItem[L runtime.Object, T any](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), f func(*T)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(x runtime.Object) error {
		f(any(x).(*T))
		return nil
	})
}

// Cluster manages the Knative Services of a cluster that are models. It is safe for
// concurrent use and needs no closing.
type Cluster struct {
	serving   servingclient.ServingV1Interface
	kube      kubernetes.Interface
	config    *rest.Config
	namespace string
	host      string
}

func (a Access) kubeconfig() (clientcmd.ClientConfig, *clientcmd.ClientConfigLoadingRules) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	rules.WarnIfAllMissing = false
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.Context}), rules
}

// ContextNamespace is the namespace of the kubeconfig's context, in a pod without one the
// pod's own; "" where there is none.
func ContextNamespace(a Access) string {
	loader, _ := a.kubeconfig()
	namespace, _, _ := loader.Namespace()
	return namespace
}

// Open makes a Cluster without sending a request.
func Open(a Access) (*Cluster, error) {
	loader, rules := a.kubeconfig()
	const hint = "--kubeconfig FILE, or set KUBECONFIG"
	config, err := loader.ClientConfig()
	if err != nil {
		e := &kit.Error{Exit: kit.ExitUsage, What: "the kubeconfig names no usable cluster", Hint: hint, Err: err}
		if clientcmd.IsEmptyConfig(err) {
			e.What, e.Err = "there is no kubeconfig in "+strings.Join(rules.GetLoadingPrecedence(), ", "), nil
		} else if clientcmd.IsContextNotFound(err) || strings.Contains(err.Error(), "context ") {
			e.Hint = "kubectl config get-contexts lists them; --context NAME"
		}
		return nil, e
	}
	config.Timeout = requestTimeout
	config.QPS, config.Burst = -1, 0 // one user; the server has its own limits
	config.UserAgent = "thaw-knative"
	config.WarningHandler = warningHandler(a.Warn)
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, &kit.Error{Exit: kit.ExitUsage, What: "the kubeconfig names no namespace", Err: err}
	}
	c := &Cluster{config: config, namespace: cmp.Or(namespace, functions.DefaultTeam), host: config.Host}
	if c.serving, err = servingclient.NewForConfig(config); err == nil {
		c.kube, err = kubernetes.NewForConfig(config)
	}
	if err != nil {
		return nil, &kit.Error{Exit: kit.ExitUsage, What: "the kubeconfig names no usable cluster", Hint: hint, Err: err}
	}
	return c, nil
}

type warningHandler func(string)

func (w warningHandler) HandleWarningHeader(code int, _, text string) {
	if w != nil && code == 299 && text != "" {
		w(text)
	}
}

func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Secrets are those of a namespace.
func (c *Cluster) Secrets(namespace string) corev1.SecretInterface {
	return c.kube.CoreV1().Secrets(namespace)
}

// Namespace is the namespace of the kubeconfig's context.
func (c *Cluster) Namespace() string { return c.namespace }

type Outcome string

const (
	Created   Outcome = "created"
	Changed   Outcome = "changed"
	Unchanged Outcome = "unchanged"
)

// Apply applies s. Fields that thaw rendered before and no longer does are removed, fields
// that others set stay. A Service of that name that is no model is not changed. With dry
// the server validates and changes nothing.
func (c *Cluster) Apply(ctx context.Context, s *servingv1.Service, dry bool) (Outcome, error) {
	name := s.Namespace + "/" + s.Name
	services := c.serving.Services(s.Namespace)
	old, err := services.Get(ctx, s.Name, metav1.GetOptions{})
	there := err == nil
	if err != nil && !isNotFound(err) {
		return "", c.WithHint(err, name)
	}
	if there && !isModel(old) {
		return "", errNameTaken(name)
	}
	body, err := FormatObjects("json", s)
	if err != nil {
		return "", err
	}
	o := metav1.PatchOptions{FieldManager: "thaw", Force: new(true)}
	if dry {
		o.DryRun = []string{metav1.DryRunAll}
	}
	now, err := services.Patch(ctx, s.Name, types.ApplyPatchType, body, o)
	switch {
	case err != nil:
		return "", c.WithHint(err, name)
	case !there:
		return Created, nil
	case equality.Semantic.DeepEqual(old.Spec, now.Spec) && equality.Semantic.DeepEqual(old.Labels, now.Labels) &&
		equality.Semantic.DeepEqual(old.Annotations, now.Annotations):
		return Unchanged, nil
	}
	return Changed, nil
}

// Delete removes a model with its revisions and pods. A Service that is no model is not
// touched.
func (c *Cluster) Delete(ctx context.Context, namespace, name string) error {
	s, err := c.service(ctx, namespace, name)
	if err != nil {
		return err
	}
	// not a Service created since under the same name
	o := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}, PropagationPolicy: new(metav1.DeletePropagationBackground)}
	if err := c.serving.Services(namespace).Delete(ctx, name, o); err != nil {
		return c.WithHint(err, namespace+"/"+name)
	}
	return nil
}

type Model struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Engine    functions.Engine `json:"engine,omitempty"` // "": the Service was written by hand
	GPUs      int64            `json:"gpus"`
	Min       string           `json:"min,omitempty"`
	Max       string           `json:"max,omitempty"`
	Ready     string           `json:"ready"` // True, False or Unknown
	Reason    string           `json:"reason,omitempty"`
	Message   string           `json:"message,omitempty"`
	Revision  string           `json:"revision,omitempty"` // the latest
	URL       string           `json:"url,omitempty"`
	Created   time.Time        `json:"created"`
}

// List returns the models of a namespace sorted by name; "" means all namespaces.
func (c *Cluster) List(ctx context.Context, namespace string) ([]Model, error) {
	models := []Model{}
	err := eachItem(ctx, c.serving.Services(namespace).List, func(s *servingv1.Service) {
		if isModel(s) {
			models = append(models, modelOf(s))
		}
	})
	if err != nil {
		return nil, c.WithHint(err, "the services of "+cmp.Or(namespace, "all namespaces"))
	}
	if len(models) > 0 {
		// A model at zero is ready even if its last start failed; its revision has the
		// reason. Accounts that may not read revisions miss it.
		why := map[string]*apis.Condition{}
		_ = eachItem(ctx, c.serving.Revisions(namespace).List, func(r *servingv1.Revision) {
			why[r.Namespace+"/"+r.Name] = r.Status.GetCondition(servingv1.RevisionConditionActive)
		})
		for i := range models {
			models[i].setProblem(why[models[i].Namespace+"/"+models[i].Revision])
		}
	}
	slices.SortFunc(models, func(a, b Model) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return models, nil
}

// setProblem records why the latest revision does not run, unless it is idle or starting.
func (m *Model) setProblem(c *apis.Condition) {
	if c != nil && !c.IsTrue() && m.Reason == "" && c.Reason != "NoTraffic" && c.Reason != "Starting" && c.Reason != "Queued" &&
		c.Reason != "Stopping" {
		m.Reason, m.Message = c.Reason, c.Message
	}
}

func (c *Cluster) Get(ctx context.Context, namespace, name string) (Model, error) {
	s, err := c.service(ctx, namespace, name)
	if err != nil {
		return Model{}, err
	}
	m := modelOf(s)
	if m.Revision != "" {
		if r, err := c.serving.Revisions(namespace).Get(ctx, m.Revision, metav1.GetOptions{}); err == nil {
			m.setProblem(r.Status.GetCondition(servingv1.RevisionConditionActive))
		}
	}
	return m, nil
}

func (c *Cluster) service(ctx context.Context, namespace, name string) (*servingv1.Service, error) {
	s, err := c.serving.Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, c.WithHint(err, namespace+"/"+name)
	}
	if !isModel(s) {
		return nil, errNameTaken(namespace + "/" + name)
	}
	return s, nil
}

// isModel reports whether a Service is of class thaw.dev, also one written by hand.
func isModel(s *servingv1.Service) bool {
	return s.Spec.Template.Annotations[ClassAnnotation] == AutoscalerClass
}

func errNameTaken(name string) error {
	return &kit.Error{Exit: kit.ExitUsage,
		What: fmt.Sprintf("%s is a Knative Service, but no model: its template lacks the annotation %s: %s", name, ClassAnnotation,
			AutoscalerClass), Hint: "take another name, or kubectl delete ksvc"}
}

func modelOf(s *servingv1.Service) Model {
	t := s.Spec.Template
	m := Model{
		Namespace: s.Namespace, Name: s.Name, Ready: "Unknown", Created: s.CreationTimestamp.Time,
		Min: t.Annotations[minAnnotation], Max: t.Annotations[maxAnnotation], Revision: s.Status.LatestCreatedRevisionName,
	}
	for _, container := range t.Spec.Containers {
		m.GPUs += container.Resources.Limits.Name(GPU, "").Value()
	}
	if ready := s.Status.GetCondition(apis.ConditionReady); ready != nil {
		m.Ready, m.Reason, m.Message = string(ready.Status), ready.Reason, ready.Message
	}
	// The Route only reports the missing revision; the Configuration has the reason.
	if c := s.Status.GetCondition(servingv1.ServiceConditionConfigurationsReady); c.IsFalse() {
		m.Reason, m.Message = c.Reason, c.Message
	}
	if s.Status.URL != nil {
		m.URL = s.Status.URL.String()
	}
	var file functions.Model
	if json.Unmarshal([]byte(s.Annotations[ModelAnnotation]), &file) == nil { // else a Service written by hand
		m.Engine = file.Spec.Engine
	}
	return m
}

var _ rest.WarningHandler = warningHandler(nil)

// Wait returns when a model accepts requests; for one at zero, when Knative routes to it.
// The error has the reason: a missing image, a quota, a controller that does not run.
func (c *Cluster) Wait(ctx context.Context, namespace, name string) error {
	var last Model
	err := wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(ctx context.Context) (ready bool, err error) {
		s, err := c.service(ctx, namespace, name)
		if err != nil || s.Status.ObservedGeneration != s.Generation {
			return false, err
		}
		last = modelOf(s)
		if last.Ready != "False" || last.Reason == "" {
			return last.Ready == "True", nil
		}
		e := &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("%s/%s: %s: %s", namespace, name, last.Reason, last.Message),
			Hint: "thaw-knative get " + name + " -n " + namespace}
		if strings.Contains(last.Reason, "ContainerMissing") || strings.Contains(last.Message, "Unable to fetch image") {
			e.Hint = "--image ENGINE=IMAGE or --thaw-image IMAGE names another; spec.pod.imagePullSecrets the Secrets of private registries"
		}
		return false, e
	})
	if ctx.Err() == nil {
		return err
	}
	return &kit.Error{Exit: kit.ExitTimeout,
		What: fmt.Sprintf("%s/%s is not ready yet (%s)", namespace, name, cmp.Or(last.Reason, "no status yet")),
		Hint: "thaw-knative doctor checks whether thaw runs; or raise --timeout"}
}

// ImageHint is the way out where the image of thaw is not known.
const ImageHint = "--thaw-image IMAGE, or set THAW_IMAGE: the image that thaw-knative install was given"

// InstalledImage returns the image of the cluster's controller, which has thaw as well.
func (c *Cluster) InstalledImage(ctx context.Context) (string, error) {
	d, err := c.kube.AppsV1().Deployments(System).Get(ctx, controllerName, metav1.GetOptions{})
	switch {
	case isNotFound(err):
		return "", &kit.Error{Exit: kit.ExitNotFound, What: "the image of thaw is not known: thaw is not installed at " + c.host,
			Hint: installCommand + "; or " + ImageHint}
	case status.IsForbidden(err):
		return "", &kit.Error{Exit: kit.ExitDenied, What: "the image of thaw cannot be read from the Deployment " + System + "/" + controllerName,
			Hint: ImageHint, Err: err}
	case err != nil:
		return "", c.WithHint(err, System+"/"+controllerName)
	}
	for _, container := range d.Spec.Template.Spec.Containers {
		if container.Name == controllerContainer && container.Image != "" {
			return container.Image, nil
		}
	}
	return "", &kit.Error{Exit: kit.ExitNotFound,
		What: "the Deployment " + System + "/" + controllerName + " has no container " + controllerContainer, Hint: ImageHint}
}

// InstalledStore returns the folder of the cluster's loaders on each node, unless one is given; ""
// where the account may not look.
func (c *Cluster) InstalledStore(ctx context.Context, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	loader, err := c.kube.AppsV1().DaemonSets(System).Get(ctx, loaderName, metav1.GetOptions{})
	if err != nil && !isNotFound(err) {
		return "", c.ignoreForbidden(err, System+"/"+loaderName)
	} else if err == nil {
		for _, container := range loader.Spec.Template.Spec.Containers {
			for _, arg := range container.Args {
				if store, is := strings.CutPrefix(arg, "--store="); is {
					return store, nil
				}
			}
		}
	}
	return "", nil
}

// controllerContainer is the container of the controller's pods that runs thaw's image.
const controllerContainer = "controller"
