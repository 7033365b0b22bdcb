package knative

import (
	"context"

	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

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

// controllerContainer is the container of the controller's pods that runs thaw's image.
const controllerContainer = "controller"
