// Package secret creates a Secret of thaw on Kubernetes or changes its entries by a function of the
// caller, with retries, so that several processes may do so at once.
package secret

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
)

// Labels returns those of every Secret that thaw creates.
func Labels() map[string]string { return map[string]string{"app.kubernetes.io/part-of": "thaw"} }

// Ensure returns the entries of a Secret, which it creates if missing. change brings them up
// to date and reports whether it changed any. Concurrent callers get the same entries.
func Ensure(ctx context.Context, secrets core.SecretInterface, name string,
	change func(data map[string][]byte, isNew bool) (changed bool, err error)) (data map[string][]byte, err error) {
	raced := func(err error) bool { return status.IsConflict(err) || status.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, raced, func() error {
		s, err := secrets.Get(ctx, name, metav1.GetOptions{})
		isNew := status.IsNotFound(err)
		if isNew {
			s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: Labels()}, Type: corev1.SecretTypeOpaque}
		} else if err != nil {
			return err
		}
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		changed, err := change(s.Data, isNew)
		switch {
		case err != nil:
			return err
		case isNew:
			s, err = secrets.Create(ctx, s, metav1.CreateOptions{})
		case changed:
			s, err = secrets.Update(ctx, s, metav1.UpdateOptions{}) // fails unless s is the newest version
		}
		if err == nil {
			data = s.Data
		}
		return err
	})
	return data, err
}
