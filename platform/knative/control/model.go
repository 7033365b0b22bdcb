package control

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	autoscaling "knative.dev/serving/pkg/apis/autoscaling"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/knative/clusterstate"
)

// unboundedReplicas is the maximum for max-scale 0, which means no limit.
const unboundedReplicas = 1000

// revision is one revision of class thaw.dev as a function.
type revision struct {
	model      *functions.Model // Metadata.Name is the revision's
	service    string           // its Knative Service; "": none
	deployment string           // the Deployment that is scaled
	shim       bool             // its container reads THAW_MODEL, so its shim reports to a loader
	problem    string           // what could not be decoded
	unusable   bool             // the problem is in what its pods start with
}

// isOurClass reports whether a PodAutoscaler is of class thaw.dev.
func isOurClass(pa *autoscalingv1alpha1.PodAutoscaler) bool {
	return pa.Annotations[autoscaling.ClassAnnotationKey] == knative.AutoscalerClass
}

// readRevision makes a function of a revision. The engine comes from the container
// (THAW_MODEL), the scale from the PodAutoscaler's annotations, and the queue limits from
// the model file on the Service. Revision and Service may be nil: a Service written by
// hand need not carry a model file.
func readRevision(pa *autoscalingv1alpha1.PodAutoscaler, rev *servingv1.Revision, service *servingv1.Service) revision {
	m := functions.NewModel()
	m.Spec.Engine = functions.EngineCommand
	m.Spec.Scale.Max = unboundedReplicas
	r := revision{model: m, service: pa.Labels[serving.ServiceLabelKey], deployment: pa.Spec.ScaleTargetRef.Name}
	if rev != nil {
		r.readContainer(m, rev)
	}
	if service != nil {
		r.readModelFile(m, service)
	}
	r.readScaling(m, pa)
	m.Spec.Resources.Pods = 1
	m.Metadata = functions.Metadata{Name: pa.Name, Namespace: pa.Namespace, Labels: maps.Clone(m.Metadata.Labels)}
	return r
}

// readContainer takes over the engine and the resources of a revision's pods.
func (r *revision) readContainer(m *functions.Model, rev *servingv1.Revision) {
	c := rev.Spec.GetContainer()
	for _, e := range c.Env {
		if e.Name != "THAW_MODEL" || e.Value == "" {
			continue
		}
		r.shim = true
		started, err := knative.DecodeStarted(rev.Name, e.Value)
		if err != nil {
			r.problem, r.unusable = problemText("cannot decode THAW_MODEL of revision "+rev.Name, err), true
			continue
		}
		max := m.Spec.Scale.Max
		*m = *started
		m.Spec.Scale.Max = max
	}
	m.Spec.Pod = knative.PodOf(&rev.Spec.PodSpec)
	own := &m.Spec.Resources
	own.GPUs = cmp.Or(int(clusterstate.Requested(c.Resources.Limits.Name(knative.GPU, resource.DecimalSI))), own.GPUs)
	own.Memory = cmp.Or(own.Memory, functions.Bytes(clusterstate.Requested(c.Resources.Requests.Memory())))
	own.CPU = cmp.Or(own.CPU, functions.CPU(clusterstate.RequestedMilli(c.Resources.Requests.Cpu())))
	if rev.Spec.ContainerConcurrency != nil && *rev.Spec.ContainerConcurrency > 0 {
		m.Spec.Scale.Target = int(min(*rev.Spec.ContainerConcurrency, math.MaxInt32))
	}
}

// readModelFile takes over the fields whose change makes no new revision.
func (r *revision) readModelFile(m *functions.Model, service *servingv1.Service) {
	doc := service.Annotations[knative.ModelAnnotation]
	if doc == "" {
		return
	}
	whole, err := knative.DecodeAnnotation(doc)
	if err != nil {
		r.problem = problemText(fmt.Sprintf("cannot decode the annotation %s of service %s", knative.ModelAnnotation, service.Name), err)
		return
	}
	m.Spec.Queue, m.Spec.Scale.Idle = whole.Spec.Queue, whole.Spec.Scale.Idle
	m.Metadata.Labels = whole.Metadata.Labels
}

// maxProblem bounds the text of a problem in a condition, an Event and the log.
const maxProblem = 512

func problemText(what string, err error) string {
	return functions.Shorten(what+": "+strings.ReplaceAll(err.Error(), "\n", "; "), maxProblem)
}

// readScaling takes over Knative's scaling annotations.
func (r *revision) readScaling(m *functions.Model, pa *autoscalingv1alpha1.PodAutoscaler) {
	number := func(key string, into *int) {
		if s, set := pa.Annotations[key]; set {
			if f, err := strconv.ParseFloat(s, 64); err == nil && f >= 0 && f <= math.MaxInt32 {
				*into = int(math.Ceil(f))
			}
		}
	}
	s := &m.Spec.Scale
	number(autoscaling.MaxScaleAnnotationKey, &s.Max)
	s.Max = cmp.Or(s.Max, unboundedReplicas)
	number(autoscaling.TargetAnnotationKey, &s.Target)
	s.Target = max(s.Target, 1)
	s.Min = 0
	if pa.Spec.Reachability != autoscalingv1alpha1.ReachabilityUnreachable {
		// A revision without a route has no minimum.
		number(autoscaling.MinScaleAnnotationKey, &s.Min)
		if !pa.Status.IsScaleTargetInitialized() {
			// A new revision becomes ready once it has had this many replicas.
			s.Min = max(s.Min, int(autoscale.Initial(pa)))
		}
	}
	s.Max = max(s.Max, s.Min)
	if d, err := time.ParseDuration(pa.Annotations[autoscaling.ScaleToZeroPodRetentionPeriodKey]); err == nil && d > 0 {
		s.Idle = functions.Duration(d)
	}
	if pa.Spec.Reachability == autoscalingv1alpha1.ReachabilityUnreachable {
		// No new request can reach it; running ones may finish.
		s.Idle = min(s.Idle, unreachedIdle)
	}
}

// unreachedIdle is how long a replica without a route is kept.
const unreachedIdle = functions.Duration(time.Second)
