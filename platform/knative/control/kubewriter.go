package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"

	"github.com/thaw-dev/thaw/functions"
)

// epochAnnotation on a Deployment is the epoch of the controller that scaled it last. A
// scale is written only if it is still the value that the writer read, so a controller
// that lost its lease unnoticed writes nothing.
const epochAnnotation = "thaw.dev/epoch"

const costAnnotation = "controller.kubernetes.io/pod-deletion-cost"

// kubeWriter is the clusterstate.Writer of a real cluster.
type kubeWriter struct {
	kube         kubernetes.Interface
	deployments  appslisters.DeploymentLister
	epoch        int64
	leading      func() bool // the lease is surely still held
	superseded   func()      // called when a newer epoch is found
	log          *slog.Logger
	forceDeletes chan terminatingPod // queued for Run
}

// terminatingPod is a pod that Run deletes at once.
type terminatingPod struct {
	namespace, name string
	uid             types.UID
}

const maxForceDeletes = 1024

// Run carries out the queued removals of pods until ctx ends.
func (w *kubeWriter) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	lanes := make(chan struct{}, 16)
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-w.forceDeletes:
			lanes <- struct{}{}
			all.Go(func() {
				defer func() { <-lanes }()
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				if err := w.forceDelete(ctx, p); err != nil {
					w.log.Warn("cannot force the deletion of a pod", "pod", p.namespace+"/"+p.name, "error", err)
				}
			})
		}
	}
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Scale writes the size of a Deployment. functions.ErrStaleEpoch: a newer controller has
// written it.
func (w *kubeWriter) Scale(ctx context.Context, revision functions.Name, deployment string, replicas int) error {
	const path = "/metadata/annotations/thaw.dev~1epoch"
	d, err := w.deployments.Deployments(revision.Team).Get(deployment)
	for try := 0; ; try++ {
		if err != nil {
			if status.IsNotFound(err) && replicas == 0 {
				return nil
			}
			return fmt.Errorf("deployment %s/%s: %w", revision.Team, deployment, err)
		}
		if !w.leading() {
			return functions.ErrStaleEpoch
		}
		var ops []operation
		was, set := d.Annotations[epochAnnotation]
		if set {
			if n, err := strconv.ParseInt(was, 10, 64); err == nil && n > w.epoch {
				w.superseded()
				return functions.ErrStaleEpoch
			}
			ops = append(ops, operation{"test", path, was})
		} else if d.Annotations == nil {
			ops = append(ops, operation{"add", "/metadata/annotations", map[string]string{}})
		}
		ops = append(ops, operation{"add", path, strconv.FormatInt(w.epoch, 10)}, operation{"replace", "/spec/replicas", replicas})
		var b []byte
		if b, err = json.Marshal(ops); err != nil {
			return err
		}
		_, err = w.kube.AppsV1().Deployments(revision.Team).Patch(ctx, deployment, types.JSONPatchType, b,
			metav1.PatchOptions{FieldManager: "thaw"})
		if err == nil || try == 4 || ctx.Err() != nil || status.IsForbidden(err) {
			return err
		}
		// Changed meanwhile: decide on the current object.
		d, err = w.kube.AppsV1().Deployments(revision.Team).Get(ctx, deployment, metav1.GetOptions{})
	}
}

func (w *kubeWriter) DeleteFirst(ctx context.Context, namespace, pod string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"-1000"}}}`, costAnnotation)
	_, err := w.kube.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "thaw"})
	if status.IsNotFound(err) {
		return nil
	}
	return err
}

func (w *kubeWriter) ForceDelete(namespace, pod string, uid types.UID) {
	select {
	case w.forceDeletes <- terminatingPod{namespace, pod, uid}:
	default: // full: the pod ends by itself, later
	}
}

func (w *kubeWriter) forceDelete(ctx context.Context, p terminatingPod) error {
	err := w.kube.CoreV1().Pods(p.namespace).Delete(ctx, p.name,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &p.uid}})
	if status.IsNotFound(err) || status.IsConflict(err) {
		return nil
	}
	return err
}
