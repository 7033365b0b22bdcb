package autoscale

import (
	"context"
	"fmt"
	"log/slog"

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

	"github.com/thaw-dev/thaw/platform/knative"
)

// activatorSubset is the number of Knative's activators behind a revision's Service in
// mode Proxy, as Knative uses.
const activatorSubset = 2

// noPrivateService is the message of Knative's own class until the Service exists.
const noPrivateService = "No Private Service Name"

// classReconciler reconciles a PodAutoscaler's status, its ServerlessService and its
// Service's Events with the controller's state.
type classReconciler struct {
	base   *scaling.Base
	source ScaleSource
	demand *demandWatcher
	events *events
	log    *slog.Logger
}

var (
	_ podautoscaler.Interface        = (*classReconciler)(nil)
	_ reconciler.OnDeletionInterface = (*classReconciler)(nil)
)

// ReconcileKind updates pa.Status, which Knative's generated reconciler writes. A panic
// ends in the status and an Event of the one PodAutoscaler.
func (r *classReconciler) ReconcileKind(ctx context.Context, pa *v1alpha1.PodAutoscaler) (result reconciler.Event) {
	err := knative.Protect(r.log, "PodAutoscaler "+pa.Namespace+"/"+pa.Name, func() { result = r.reconcile(ctx, pa) })
	if err != nil {
		pa.Status.MarkInactive(ReasonBadModel, escapePercent(err.Error()))
		r.events.recordNote(pa, Note{Reason: ReasonBadModel, Warning: true, Message: err.Error()})
	}
	return result
}

func (r *classReconciler) reconcile(ctx context.Context, pa *v1alpha1.PodAutoscaler) reconciler.Event {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	s, known := r.source.Scale(pa.Namespace, pa.Name)
	sks, err := r.ensureService(ctx, pa, s, known)
	if err != nil {
		return err
	}
	st := &pa.Status
	st.MetricsServiceName, st.ServiceName = sks.Status.PrivateServiceName, sks.Status.ServiceName
	switch {
	case sks.IsReady():
		st.MarkSKSReady()
	case sks.Status.PrivateServiceName == "":
		st.MarkSKSNotReady(noPrivateService)
	default:
		st.MarkSKSNotReady(escapePercent(sks.Status.GetCondition(netv1alpha1.ServerlessServiceConditionReady).GetMessage()))
	}
	r.writeStatus(pa, s, known)
	if known {
		r.events.recordScale(pa, s)
	}
	class, foreign := r.demand.foreignClass(pa.Namespace, pa.Name)
	r.events.recordUnseen(pa, foreign && r.demand.unreadable.Load(), class)
	return nil
}

func (r *classReconciler) ensureService(ctx context.Context, pa *v1alpha1.PodAutoscaler, s Scale,
	known bool) (*netv1alpha1.ServerlessService, error) {
	mode := netv1alpha1.SKSOperationModeProxy
	switch {
	case !known:
		old, err := r.base.SKSLister.ServerlessServices(pa.Namespace).Get(pa.Name)
		if err != nil && !status.IsNotFound(err) {
			return nil, err
		}
		if err == nil {
			mode = old.Spec.Mode
		}
	case s.Desired > 0 && s.Ready > 0:
		if _, foreign := r.demand.foreignClass(pa.Namespace, pa.Name); !foreign {
			mode = netv1alpha1.SKSOperationModeServe
		}
	}
	sks, err := r.base.ReconcileSKS(ctx, pa, mode, activatorSubset)
	switch {
	case status.IsAlreadyExists(err):
		// created a moment ago and not in the cache yet
		return &netv1alpha1.ServerlessService{}, nil
	case status.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, controller.NewSkipKey(pa.Namespace + "/" + pa.Name) // the revision's namespace is ending as well
	case err != nil:
		return nil, fmt.Errorf("ServerlessService %s/%s: %w", pa.Namespace, pa.Name, err)
	}
	return sks, nil
}

func (r *classReconciler) writeStatus(pa *v1alpha1.PodAutoscaler, s Scale, known bool) {
	st := &pa.Status
	least, _ := pa.ScaleBounds(&autoscalerconfig.Config{})
	b := scaleBounds{
		min: least, initial: Initial(pa),
		unreachable: pa.Spec.Reachability == v1alpha1.ReachabilityUnreachable,
		hasService:  st.ServiceName != "",
	}
	v := scaleStatus{desired: st.DesiredScale, initialized: st.IsScaleTargetInitialized()}
	if c := st.GetCondition(v1alpha1.PodAutoscalerConditionActive); c != nil && (c.Reason != "" || !c.IsUnknown()) {
		v.active, v.reason, v.message = c.Status, c.Reason, c.Message
	}
	v = decideStatus(s, known, b, v)
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

func (r *classReconciler) ObserveDeletion(_ context.Context, key types.NamespacedName) error {
	r.events.forget(key)
	return nil
}

// Initial is how many replicas a new revision must have had at once to become ready: its
// annotation, else one as with Knative's own class. The controller starts as many until
// ScaleTargetInitialized is true.
func Initial(pa *v1alpha1.PodAutoscaler) int32 {
	if n, ok := pa.InitialScale(); ok {
		return n
	}
	return 1
}
