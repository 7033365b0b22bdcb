package autoscale

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	netv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/reconciler"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/autoscaler/config/autoscalerconfig"
	podautoscaler "knative.dev/serving/pkg/client/injection/reconciler/autoscaling/v1alpha1/podautoscaler"
	scaling "knative.dev/serving/pkg/reconciler/autoscaling"
)

// activators is how many of Knative's activators a revision's Service leads to in
// mode Proxy: as few as Knative itself uses.
const activators = 2

// noPrivate is what Knative's own class says until the Service is there.
const noPrivate = "No Private Service Name"

// kind brings one PodAutoscaler's status, its ServerlessService and its Service's
// Events up to what the controller says.
type kind struct {
	base     *scaling.Base
	pictures Pictures
	outside  *outside
	events   *events
}

var (
	_ podautoscaler.Interface        = (*kind)(nil)
	_ reconciler.OnDeletionInterface = (*kind)(nil)
)

// ReconcileKind is called by Knative's generated reconciler, which writes the status
// that it leaves.
func (k *kind) ReconcileKind(ctx context.Context, pa *v1alpha1.PodAutoscaler) reconciler.Event {
	ctx, cancel := context.WithTimeout(ctx, requestFor)
	defer cancel()
	s, known := k.pictures.Scale(pa.Namespace, pa.Name)
	sks, err := k.service(ctx, pa, s, known)
	if err != nil {
		return err
	}
	st := &pa.Status
	st.MetricsServiceName, st.ServiceName = sks.Status.PrivateServiceName, sks.Status.ServiceName
	switch {
	case sks.IsReady():
		st.MarkSKSReady()
	case sks.Status.PrivateServiceName == "":
		st.MarkSKSNotReady(noPrivate)
	default:
		st.MarkSKSNotReady(plain(sks.Status.GetCondition(netv1alpha1.ServerlessServiceConditionReady).GetMessage()))
	}
	k.say(pa, s, known)
	if known {
		k.events.scale(pa, s)
	}
	class, foreign := k.outside.class(pa.Namespace, pa.Name)
	k.events.blind(pa, foreign && k.outside.silent.Load(), class)
	return nil
}

// service makes the ServerlessService be there, in the right mode.
func (k *kind) service(ctx context.Context, pa *v1alpha1.PodAutoscaler, s Scale, known bool) (*netv1alpha1.ServerlessService, error) {
	mode := netv1alpha1.SKSOperationModeProxy
	switch {
	case !known:
		old, err := k.base.SKSLister.ServerlessServices(pa.Namespace).Get(pa.Name)
		if err != nil && !status.IsNotFound(err) {
			return nil, err
		}
		if err == nil {
			mode = old.Spec.Mode
		}
	case s.Desired > 0 && s.Ready > 0:
		if _, foreign := k.outside.class(pa.Namespace, pa.Name); !foreign {
			mode = netv1alpha1.SKSOperationModeServe
		}
	}
	sks, err := k.base.ReconcileSKS(ctx, pa, mode, activators)
	switch {
	case status.IsAlreadyExists(err):
		// It was made a moment ago, and will be seen in another.
		return &netv1alpha1.ServerlessService{}, nil
	case status.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, controller.NewSkipKey(pa.Namespace + "/" + pa.Name) // so is the revision
	case err != nil:
		return nil, fmt.Errorf("ServerlessService %s/%s: %w", pa.Namespace, pa.Name, err)
	}
	return sks, nil
}

// say writes the verdict into the status.
func (k *kind) say(pa *v1alpha1.PodAutoscaler, s Scale, known bool) {
	st := &pa.Status
	least, _ := pa.ScaleBounds(&autoscalerconfig.Config{})
	b := bounds{
		min: least, initial: Initial(pa),
		unreachable: pa.Spec.Reachability == v1alpha1.ReachabilityUnreachable,
		named:       st.ServiceName != "",
	}
	before := told{desired: st.DesiredScale, initialized: st.IsScaleTargetInitialized()}
	if c := st.GetCondition(v1alpha1.PodAutoscalerConditionActive); c != nil && (c.Reason != "" || !c.IsUnknown()) {
		before.active, before.reason, before.message = c.Status, c.Reason, c.Message
	}
	v := judge(s, known, b, before)
	st.DesiredScale = v.desired
	if known || st.ActualScale == nil {
		st.ActualScale = &v.ready
	}
	if v.initialized {
		st.MarkScaleTargetInitialized()
	}
	switch v.active {
	case corev1.ConditionTrue:
		if v.message == "" {
			st.MarkActive()
		} else {
			pa.GetConditionSet().Manage(st).MarkTrueWithReason(v1alpha1.PodAutoscalerConditionActive, v.reason, "%s", v.message)
		}
	case corev1.ConditionUnknown:
		st.MarkActivating(v.reason, v.message)
	case corev1.ConditionFalse:
		st.MarkInactive(v.reason, v.message)
	}
}

// ObserveDeletion is called for a PodAutoscaler that is gone.
func (k *kind) ObserveDeletion(_ context.Context, key types.NamespacedName) error {
	k.events.forget(key)
	return nil
}

// Initial is how many replicas a new revision must have had at once before it is
// ready, when its min scale asks for no more: what its annotation says, else one, as
// with Knative's own class. Whoever scales starts as many until
// ScaleTargetInitialized is true.
func Initial(pa *v1alpha1.PodAutoscaler) int32 {
	if n, ok := pa.InitialScale(); ok {
		return n
	}
	return 1
}
